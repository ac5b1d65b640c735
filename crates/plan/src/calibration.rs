//! Constants of one software stack, from a few of its steps.
//!
//! A Gaussian model of the logarithms of times ([`fit`](crate::fit)) gives the constants of [`Efficiency`] and, for layouts that were
//! not measured, an expected time and a covariance. The same model chooses the steps to measure ([`choose`]) and says what a choice may
//! cost ([`Calibration::regret`]).
//!
//! A prediction's [`Band`] comes from the fitted steps: each is predicted from the others, constants fitted anew, and the deciles of
//! what comes out are those of the band.

use crate::fit::{Location, NOISE_VARIANCE, Posterior, cholesky, matrix};
use crate::{Efficiency, Job, Machine, Measurement, StepTime, step_time};
use bessemer_tensor::rng::RngKey;
use serde::Serialize;

/// Most steps that constants are fitted to.
pub const MOST_FITTED: usize = 16;
/// Most steps among which rows are chosen; of a longer table every second, third, … step.
const MOST_CANDIDATES: usize = 2000;
/// Variance that the choice of steps assumes for a tensor degree of a model, besides that of the fit: a deviation of 10 %. It makes the
/// choice cover degrees. Where no step has the degree, nothing else could tell that all layouts of it are slow.
const DEGREE_VARIANCE: f64 = 0.1 * 0.1;
/// Draws of times from which a regret comes.
const DRAWS: usize = 2000;
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
    #[serde(skip)]
    posterior: Posterior,
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

/// What the choice of a layout may cost: measured time of the chosen layout over that of the fastest of some, minus 1.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Regret {
    /// Mean.
    pub expected: f64,
    /// First decile.
    pub low: f64,
    /// Ninth decile.
    pub high: f64,
    /// Probability that the chosen layout is the fastest.
    pub fastest: f64,
    /// Layouts among which it was chosen.
    pub layouts: usize,
}

impl Calibration {
    /// Constants that nothing was fitted to.
    pub fn none() -> Calibration {
        Calibration::with(Efficiency::default())
    }

    /// Calibration with these constants, fitted to nothing.
    pub fn with(efficiency: Efficiency) -> Calibration {
        Calibration {
            efficiency,
            fitted: Vec::new(),
            band: Band::OTHERS,
            posterior: Posterior::none(efficiency),
        }
    }

    /// Fits to all of these steps.
    pub fn of(steps: &[Measurement]) -> Calibration {
        Calibration { band: Band::of(&Calibration::leave_one_out(steps)), ..Calibration::without_band(steps) }
    }

    /// Fits to all of these steps, and leaves the band that of other stacks: a fit for each step less.
    pub fn without_band(steps: &[Measurement]) -> Calibration {
        let posterior = Posterior::fit(steps, Efficiency::default());
        let fitted = steps.iter().map(|step| step.row).collect();
        Calibration { efficiency: posterior.efficiency, fitted, band: Band::OTHERS, posterior }
    }

    /// Predicts a step.
    pub fn predict(&self, job: &Job, machine: &Machine) -> StepTime {
        step_time(job, machine, &self.efficiency).scaled(self.posterior.deviation(job).exp())
    }

    /// What the choice of layout number `chosen` of some may cost, where each is expected to take so many seconds. None for fewer than two.
    ///
    /// Times are drawn from the Gaussian model: layouts that constants and shapes make alike err together. Without fitted steps the model
    /// has only the deviations that constants are expected to have, which is too little for layouts of an unknown stack.
    pub fn regret(&self, layouts: &[(&Job, &Machine, f64)], chosen: usize) -> Option<Regret> {
        if layouts.len() < 2 || chosen >= layouts.len() {
            return None;
        }
        let jobs: Vec<(&Job, &Machine)> = layouts.iter().map(|(job, machine, _)| (*job, *machine)).collect();
        let factor = cholesky(self.posterior.covariance(&jobs));
        let key = RngKey::new(0, 0, "regret");
        let mut draws = vec![0.0f32; layouts.len()];
        let mut regrets: Vec<f64> = Vec::with_capacity(DRAWS);
        for draw in 0..DRAWS {
            key.fill_normal((draw * layouts.len()) as u64, 1.0, &mut draws);
            let times = layouts.iter().zip(&factor).map(|((_, _, seconds), row)| {
                seconds * row.iter().zip(&draws).map(|(a, b)| a * f64::from(*b)).sum::<f64>().exp()
            });
            let times: Vec<f64> = times.collect();
            regrets.push(times[chosen] / times.iter().copied().fold(f64::INFINITY, f64::min) - 1.0);
        }
        regrets.sort_by(f64::total_cmp);
        let fastest = regrets.iter().filter(|regret| **regret <= 0.0).count();
        Some(Regret {
            expected: regrets.iter().sum::<f64>() / DRAWS as f64,
            low: regrets[DRAWS / 10],
            high: regrets[DRAWS * 9 / 10],
            fastest: fastest as f64 / DRAWS as f64,
            layouts: layouts.len(),
        })
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

/// Chooses at most [`MOST_FITTED`] steps, as [`choose_at_most`] does.
pub fn choose(table: &[Measurement]) -> Vec<Measurement> {
    choose_at_most(table, MOST_FITTED)
}

/// Chooses steps to measure or to fit, at most so many and at most [`MOST_FITTED`]: a design of experiments for the whole table.
///
/// Greedily the step whose measurement leaves the least sum of variances of all steps of the table in the Gaussian model (integrated
/// variance; Santner, Williams and Notz 2003, section 6.2). Every constant that moves times apart, every shape and every tensor degree
/// of a model so gets a step near it. Measured times play no part. Steps near the limit of memory are left out
/// ([`Measurement::crowded`]): what an allocator does there is no matter of a layout.
pub fn choose_at_most(table: &[Measurement], most: usize) -> Vec<Measurement> {
    let table: Vec<&Measurement> = table.iter().filter(|step| !step.crowded()).collect();
    let every = table.len().div_ceil(MOST_CANDIDATES).max(1);
    let table: Vec<&Measurement> = table.into_iter().step_by(every).collect();
    let first = Efficiency::default();
    let locations: Vec<Location> =
        table.iter().map(|step| Location::new(&step.job, &step.machine, &first)).collect();
    let mut covariance = matrix(&locations, |a, b| a.covariance(b) + DEGREE_VARIANCE * a.same_degree(b));
    let mut chosen: Vec<usize> = Vec::new();
    while chosen.len() < MOST_FITTED.min(most).min(table.len()) {
        let gain = |step: usize| {
            let squares: f64 = covariance[step].iter().map(|value| value * value).sum();
            squares / (covariance[step][step] + NOISE_VARIANCE)
        };
        let candidates = (0..table.len()).filter(|step| !chosen.contains(step));
        let Some((best, _)) =
            candidates.map(|step| (step, gain(step))).max_by(|a, b| a.1.total_cmp(&b.1).then(b.0.cmp(&a.0)))
        else {
            break;
        };
        chosen.push(best);
        let known = covariance[best].clone();
        let variance = known[best] + NOISE_VARIANCE;
        for (row, factor) in covariance.iter_mut().zip(&known) {
            for (value, other) in row.iter_mut().zip(&known) {
                *value -= factor * other / variance;
            }
        }
    }
    chosen.sort_unstable();
    chosen.into_iter().map(|step| table[step].clone()).collect()
}
