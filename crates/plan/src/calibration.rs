//! Constants of one software stack, from a few of its steps.
//!
//! [`Efficiency`] is fitted first ([`fit`]). What remains is mostly a matter of the shape of a layer's products, for which libraries
//! choose kernels of their own; it is interpolated between shapes as a Gaussian process (kriging: Rasmussen and Williams 2006, equation
//! 2.23). With residuals `r_j = ln(measured / predicted)` of the fitted steps and distances d between the logarithms of tokens of a
//! micro-batch, width, tensor-parallel ranks and (half as far) the length of sequences, a prediction is multiplied by `exp(k (K + 0.2 I)^-1 r)`, `k = exp(-d^2/(2 0.5^2))`.
//! It tends to 1 where nothing near was measured.
//!
//! A prediction's [`Band`] comes from the fitted steps too: each is predicted from the others, constants fitted anew, and the deciles of
//! what comes out are those of the band.

use crate::fit::solve;
use crate::{Efficiency, Job, Machine, Measurement, StepTime, fit, step_time};
use serde::Serialize;

/// Most steps that constants are fitted to.
pub const MOST_FITTED: usize = 16;
/// Most steps among which rows are chosen; of a longer table every second, third, … step.
const MOST_CANDIDATES: usize = 2000;
/// Distance over which residuals are alike.
const REACH: f64 = 0.5;
/// Variance of what is not a matter of shape beside that of what is.
const NOISE: f64 = 0.2;
/// Fewest fitted steps that a band is made of.
const FEWEST: usize = 5;

/// Constants of a software stack, and how far predictions by them are off.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Calibration {
    /// Constants of the cost model.
    pub efficiency: Efficiency,
    /// Rows that they were fitted to.
    pub fitted: Vec<usize>,
    /// Range of measured times about predicted ones.
    pub band: Band,
    residuals: Vec<Residual>,
}

/// Factors on a predicted time between which eight of ten measured times are expected.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Band {
    /// First decile of measured over predicted.
    pub low: f64,
    /// Ninth decile.
    pub high: f64,
    /// Fitted steps that it comes from, each predicted from the others; 0: from the tables of other stacks.
    pub steps: usize,
}

impl Band {
    /// Where constants are fitted to nothing, or to too few steps: deciles over the published tables in
    /// `crates/plan/tests/tables`, each of the same weight, which a test recomputes.
    pub const OTHERS: Band = Band { low: 0.85, high: 1.45, steps: 0 };

    /// Deciles of measured over predicted times.
    fn of(left_out: &[f64]) -> Band {
        if left_out.len() < FEWEST {
            return Band::OTHERS;
        }
        let mut ratios: Vec<f64> = left_out.iter().map(|error| 1.0 / (1.0 + error)).collect();
        ratios.sort_by(f64::total_cmp);
        // The next step lies below the i-th of n ordered ones with probability i/(n + 1).
        let rank = ((ratios.len() + 1) as f64 * 0.1).floor().max(1.0) as usize;
        Band { low: ratios[rank - 1], high: ratios[ratios.len() - rank], steps: ratios.len() }
    }

    /// Whether a measured time lies in the band of a predicted one.
    pub fn holds(&self, predicted: f64, measured: f64) -> bool {
        (self.low * predicted..=self.high * predicted).contains(&measured)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
struct Residual {
    /// Logarithms of tokens, width and ranks.
    place: [f64; 4],
    /// Its part in what is interpolated: an element of `(K + 0.2 I)^-1 r`.
    coefficient: f64,
}

impl Calibration {
    /// Constants that nothing was fitted to.
    pub fn none() -> Calibration {
        Calibration::with(Efficiency::default())
    }

    /// Calibration with these constants, fitted to nothing.
    pub fn with(efficiency: Efficiency) -> Calibration {
        Calibration { efficiency, fitted: Vec::new(), band: Band::OTHERS, residuals: Vec::new() }
    }

    /// Fits to all of these steps.
    pub fn of(steps: &[Measurement]) -> Calibration {
        Calibration { band: Band::of(&Calibration::leave_one_out(steps)), ..Calibration::without_band(steps) }
    }

    /// Fits to all of these steps, and leaves the band that of other stacks: a fit for each step less.
    pub fn without_band(steps: &[Measurement]) -> Calibration {
        let efficiency = fit(steps, Efficiency::default(), 1.0);
        let places: Vec<[f64; 4]> = steps.iter().map(|step| shape(&step.job)).collect();
        let errors: Vec<f64> = steps
            .iter()
            .map(|step| (step.seconds / step_time(&step.job, &step.machine, &efficiency).total).ln())
            .collect();
        let mut matrix: Vec<Vec<f64>> =
            places.iter().map(|a| places.iter().map(|b| likeness(a, b)).collect()).collect();
        for (index, row) in matrix.iter_mut().enumerate() {
            row[index] += NOISE;
        }
        let coefficients = solve(matrix, errors);
        let residuals = places
            .into_iter()
            .zip(coefficients)
            .map(|(place, coefficient)| Residual { place, coefficient })
            .collect();
        let fitted = steps.iter().map(|step| step.row).collect();
        Calibration { efficiency, fitted, band: Band::OTHERS, residuals }
    }

    /// Predicts a step.
    pub fn predict(&self, job: &Job, machine: &Machine) -> StepTime {
        let place = shape(job);
        let error: f64 = self
            .residuals
            .iter()
            .map(|residual| residual.coefficient * likeness(&residual.place, &place))
            .sum();
        step_time(job, machine, &self.efficiency).scaled(error.exp())
    }

    /// Relative errors of the fitted steps, each predicted from the others: what to expect of steps that were not measured.
    pub fn leave_one_out(steps: &[Measurement]) -> Vec<f64> {
        let error = |index: usize| {
            let mut others = steps.to_vec();
            let left_out = others.remove(index);
            let predicted =
                Calibration::without_band(&others).predict(&left_out.job, &left_out.machine).total;
            predicted / left_out.seconds - 1.0
        };
        if steps.len() < 2 { Vec::new() } else { (0..steps.len()).map(error).collect() }
    }
}

/// Correlation of the residuals of two shapes.
fn likeness(a: &[f64; 4], b: &[f64; 4]) -> f64 {
    let squares: f64 = a.iter().zip(b).map(|(a, b)| (a - b).powi(2)).sum();
    (-squares / (2.0 * REACH * REACH)).exp()
}

/// Chooses at most [`MOST_FITTED`] steps, as [`choose_at_most`] does.
pub fn choose(table: &[Measurement]) -> Vec<Measurement> {
    choose_at_most(table, MOST_FITTED)
}

/// Chooses steps to measure or to fit: at most so many and at most [`MOST_FITTED`], greedily those that bring every step of the table nearest to a chosen
/// one. Measured times play no part. Steps near the limit of memory are left out ([`Measurement::crowded`]): what an allocator does
/// there is no matter of a layout.
pub fn choose_at_most(table: &[Measurement], most: usize) -> Vec<Measurement> {
    let table: Vec<&Measurement> = table.iter().filter(|step| !step.crowded()).collect();
    let every = table.len().div_ceil(MOST_CANDIDATES).max(1);
    let table: Vec<&Measurement> = table.into_iter().step_by(every).collect();
    let places: Vec<[f64; 9]> = table.iter().map(|step| layout(&step.job)).collect();
    let distance = |a: usize, b: usize| {
        places[a].iter().zip(&places[b]).map(|(a, b)| (a - b).powi(2)).sum::<f64>().sqrt()
    };
    let mut nearest = vec![f64::INFINITY; table.len()];
    let mut chosen: Vec<usize> = Vec::new();
    while chosen.len() < MOST_FITTED.min(most).min(table.len()) {
        let cost = |candidate: usize| -> f64 {
            (0..table.len()).map(|step| nearest[step].min(distance(step, candidate))).sum()
        };
        let candidates = (0..table.len()).filter(|step| !chosen.contains(step));
        let Some((best, _)) = candidates.map(|step| (step, cost(step))).min_by(|a, b| a.1.total_cmp(&b.1))
        else {
            break;
        };
        chosen.push(best);
        for (step, near) in nearest.iter_mut().enumerate() {
            *near = near.min(distance(step, best));
        }
    }
    chosen.sort_unstable();
    chosen.into_iter().map(|step| table[step].clone()).collect()
}

/// Where a layer's kernels lie: its products by tokens, width and ranks, attention by the length of sequences, which counts half.
fn shape(job: &Job) -> [f64; 4] {
    let tokens = job.layout.micro_batch * job.seq / job.layout.context;
    [(tokens, 1.0), (job.model.width, 1.0), (job.layout.tensor, 1.0), (job.seq, 0.5)]
        .map(|(number, weight)| weight * (number as f64).ln())
}

/// Where a whole step lies. What decides the shape of products counts twice, what only multiplies layers or ranks half.
fn layout(job: &Job) -> [f64; 9] {
    let Job { model, layout, seq, .. } = job;
    let numbers = [
        (layout.tensor, 2.0),
        (layout.micro_batch, 2.0),
        (model.width, 2.0),
        (layout.pipeline, 1.0),
        (job.micro_batches(), 1.0),
        (*seq, 1.0),
        (layout.data, 0.5),
        (model.layers, 0.5),
        (job.devices(), 0.5),
    ];
    numbers.map(|(number, weight): (usize, f64)| (number as f64).ln() * weight.sqrt())
}
