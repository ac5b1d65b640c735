//! Constants of one software stack, from a few of its steps.
//!
//! [`Efficiency`] is fitted first ([`fit`]). What remains is mostly a matter of the shape of a layer's products, for which libraries
//! choose kernels of their own; it is smoothed over shapes: with residuals `r_j = ln(measured / predicted)` of the fitted steps and
//! distances `d_j` between the logarithms of tokens of a micro-batch, width and tensor-parallel ranks, a prediction is multiplied by
//! `exp(sum_j w_j r_j / (sum_j w_j + 0.4))`, `w_j = exp(-d_j^2 / (2 0.3^2))` (Nadaraya and Watson's estimate, drawn to 0 where nothing
//! near was measured).

use crate::{Efficiency, Job, Machine, Measurement, StepTime, fit, step_time};
use serde::Serialize;

/// Most steps that constants are fitted to.
pub const MOST_FITTED: usize = 16;
/// Standard deviation that the logarithm of a constant is expected to have: almost free.
const WIDTH: f64 = 5.0;
/// Most steps among which rows are chosen; of a longer table every second, third, … step.
const MOST_CANDIDATES: usize = 2000;
/// Distance over which residuals are smoothed.
const REACH: f64 = 0.3;
/// Weight of the residual 0.
const DOUBT: f64 = 0.4;

/// What is known of a software stack.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Calibration {
    /// Constants of the cost model.
    pub efficiency: Efficiency,
    /// Rows that they were fitted to.
    pub fitted: Vec<usize>,
    residuals: Vec<Residual>,
}

#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
struct Residual {
    /// Logarithms of tokens, width and ranks.
    place: [f64; 3],
    /// Logarithm of measured over predicted.
    error: f64,
}

impl Calibration {
    /// Constants that nothing was fitted to.
    pub fn none() -> Calibration {
        Calibration::with(Efficiency::default())
    }

    /// These constants, fitted to nothing.
    pub fn with(efficiency: Efficiency) -> Calibration {
        Calibration { efficiency, fitted: Vec::new(), residuals: Vec::new() }
    }

    /// Fits to all of these steps.
    pub fn of(steps: &[Measurement]) -> Calibration {
        let efficiency = fit(steps, Efficiency::default(), WIDTH);
        let residual = |step: &Measurement| Residual {
            place: shape(&step.job),
            error: (step.seconds / step_time(&step.job, &step.machine, &efficiency).total).ln(),
        };
        let fitted = steps.iter().map(|step| step.row).collect();
        Calibration { efficiency, fitted, residuals: steps.iter().map(residual).collect() }
    }

    /// Predicts a step.
    pub fn predict(&self, job: &Job, machine: &Machine) -> StepTime {
        let place = shape(job);
        let (mut sum, mut weights) = (0.0, DOUBT);
        for residual in &self.residuals {
            let squares = residual.place.iter().zip(&place).map(|(a, b)| (a - b).powi(2)).sum::<f64>();
            let weight = (-squares / (2.0 * REACH * REACH)).exp();
            sum += weight * residual.error;
            weights += weight;
        }
        step_time(job, machine, &self.efficiency).scaled((sum / weights).exp())
    }

    /// Relative errors of the fitted steps, each predicted from the others: what to expect of steps that were not measured.
    pub fn leave_one_out(steps: &[Measurement]) -> Vec<f64> {
        let error = |index: usize| {
            let mut others = steps.to_vec();
            let left_out = others.remove(index);
            let predicted = Calibration::of(&others).predict(&left_out.job, &left_out.machine).total;
            predicted / left_out.seconds - 1.0
        };
        if steps.len() < 2 { Vec::new() } else { (0..steps.len()).map(error).collect() }
    }
}

/// Chooses steps to measure or to fit: at most [`MOST_FITTED`], greedily those that bring every step of the table nearest to a chosen
/// one. Measured times play no part.
pub fn choose(table: &[Measurement]) -> Vec<Measurement> {
    let every = table.len().div_ceil(MOST_CANDIDATES).max(1);
    let table: Vec<&Measurement> = table.iter().step_by(every).collect();
    let places: Vec<[f64; 9]> = table.iter().map(|step| layout(&step.job)).collect();
    let distance = |a: usize, b: usize| {
        places[a].iter().zip(&places[b]).map(|(a, b)| (a - b).powi(2)).sum::<f64>().sqrt()
    };
    let mut nearest = vec![f64::INFINITY; table.len()];
    let mut chosen: Vec<usize> = Vec::new();
    while chosen.len() < MOST_FITTED.min(table.len()) {
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

/// Where a layer's products lie.
fn shape(job: &Job) -> [f64; 3] {
    [job.layout.micro_batch * job.seq, job.model.width, job.layout.tensor].map(|number| (number as f64).ln())
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
