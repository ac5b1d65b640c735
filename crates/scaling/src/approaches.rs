//! The first two approaches of Hoffmann et al. 2022 (section 3): the best size by compute, read off training curves.
//!
//! 1. *Envelope*: of all training curves, which has the least loss at a compute; a power law through size and tokens there.
//! 2. *Isoflops*: at each of some budgets of compute, a parabola of the final loss over ln N; a power law through the minima.
//!
//! The third is [`crate::fit_parametric`].

use crate::compute::FLOPS_PER_PARAMETER_AND_TOKEN;
use crate::{Allocation, ScalingError, TrainedRun};

/// `y = factor x^exponent`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PowerLaw {
    /// y at x = 1.
    pub factor: f64,
    /// Slope of ln y over ln x.
    pub exponent: f64,
}

impl PowerLaw {
    /// y at x.
    pub fn at(&self, x: f64) -> f64 {
        self.factor * x.powf(self.exponent)
    }

    /// Least squares of ln y over ln x. None with fewer than two different x.
    pub fn fit(points: &[[f64; 2]]) -> Option<PowerLaw> {
        let n = points.len() as f64;
        let mean = |i: usize| points.iter().map(|p| p[i].ln()).sum::<f64>() / n;
        let (mx, my) = (mean(0), mean(1));
        let sxx: f64 = points.iter().map(|p| (p[0].ln() - mx).powi(2)).sum();
        let sxy: f64 = points.iter().map(|p| (p[0].ln() - mx) * (p[1].ln() - my)).sum();
        let exponent = sxy / sxx;
        (sxx > 0.0).then(|| PowerLaw { factor: (my - exponent * mx).exp(), exponent })
    }
}

/// Best parameters and tokens by compute, and the single budgets that they were fitted to.
#[derive(Debug, Clone, PartialEq)]
pub struct Frontier {
    /// Parameters by floating-point operations.
    pub parameters: PowerLaw,
    /// Tokens by floating-point operations.
    pub tokens: PowerLaw,
    /// Best sizes at single budgets.
    pub points: Vec<Allocation>,
}

impl Frontier {
    fn of(points: Vec<Allocation>) -> Option<Frontier> {
        let fit = |of: fn(&Allocation) -> f64| {
            PowerLaw::fit(&points.iter().map(|p| [p.flops(), of(p)]).collect::<Vec<_>>())
        };
        Some(Frontier { parameters: fit(|p| p.parameters)?, tokens: fit(|p| p.tokens)?, points })
    }

    /// Best sizes at a compute, by the power laws.
    pub fn best(&self, flops: f64) -> Allocation {
        Allocation { parameters: self.parameters.at(flops), tokens: self.tokens.at(flops) }
    }
}

/// A training curve.
#[derive(Debug, Clone, PartialEq)]
pub struct Curve {
    /// Parameters.
    pub parameters: f64,
    /// Tokens read so far and the loss there, in the order of the run.
    pub points: Vec<[f64; 2]>,
}

/// Budgets of compute between the ends of the curves at which the envelope is read, as many as the paper takes.
const ENVELOPE_POINTS: usize = 1500;

/// Standard deviation in points of the Gaussian that smooths losses of a training curve, as in the paper.
pub const SMOOTHING: f64 = 10.0;

/// The losses of a curve, smoothed by a Gaussian of so many points, its weights renormalised at both ends.
pub fn smooth(points: &[[f64; 2]], deviation: f64) -> Vec<[f64; 2]> {
    let reach = (4.0 * deviation).ceil() as usize;
    let weights: Vec<f64> = (0..=reach).map(|i| (-0.5 * (i as f64 / deviation).powi(2)).exp()).collect();
    (0..points.len())
        .map(|i| {
            let range = i.saturating_sub(reach)..(i + reach + 1).min(points.len());
            let (mut sum, mut weight) = (0.0, 0.0);
            for j in range {
                let w = weights[i.abs_diff(j)];
                sum += w * points[j][1];
                weight += w;
            }
            [points[i][0], sum / weight]
        })
        .collect()
}

/// The first approach. Budgets at which the smallest or the largest size has the least loss are left out: the best size lies beyond them. Curves of each size should have learning rates that decay over several lengths: a curve that has not decayed yet lies
/// above what a shorter run would reach.
///
/// # Errors
/// Curves of which fewer than two between the smallest and the largest are best anywhere.
pub fn envelope(curves: &[Curve]) -> Result<Frontier, ScalingError> {
    let flops = |curve: &Curve, tokens: f64| FLOPS_PER_PARAMETER_AND_TOKEN * curve.parameters * tokens;
    let ends = |pick: fn(&Curve) -> Option<&[f64; 2]>| {
        curves.iter().filter_map(move |curve| pick(curve).map(|point| flops(curve, point[0])))
    };
    let first = ends(|c| c.points.first()).fold(f64::INFINITY, f64::min);
    let last = ends(|c| c.points.last()).fold(0.0, f64::max);
    let sizes = curves.iter().map(|curve| curve.parameters);
    let (smallest, largest) = sizes.fold((f64::INFINITY, 0.0), |(l, h), size| (size.min(l), size.max(h)));
    let mut best: Vec<Allocation> = Vec::new();
    for i in 0..ENVELOPE_POINTS {
        let share = i as f64 / (ENVELOPE_POINTS - 1) as f64;
        let at = (first.ln() * (1.0 - share) + last.ln() * share).exp();
        let losses = curves.iter().filter_map(|curve| {
            let tokens = at / (FLOPS_PER_PARAMETER_AND_TOKEN * curve.parameters);
            Some((interpolate(&curve.points, tokens)?, Allocation { parameters: curve.parameters, tokens }))
        });
        if let Some((_, one)) = losses.min_by(|a, b| a.0.total_cmp(&b.0))
            && smallest < one.parameters
            && one.parameters < largest
        {
            best.push(one);
        }
    }
    let mut sizes: Vec<f64> = best.iter().map(|one| one.parameters).collect();
    sizes.sort_by(f64::total_cmp);
    sizes.dedup();
    let hint = "train smaller and larger sizes";
    if sizes.len() < 2 {
        return Err(ScalingError::TooFewBudgets { found: sizes.len(), hint });
    }
    Frontier::of(best).ok_or(ScalingError::TooFewBudgets { found: sizes.len(), hint })
}

/// The loss at `tokens`, between two points of a curve on a line over ln tokens. None outside of the curve.
fn interpolate(points: &[[f64; 2]], tokens: f64) -> Option<f64> {
    let after = points.partition_point(|p| p[0] < tokens);
    let right = points.get(after)?;
    if right[0] == tokens {
        return Some(right[1]);
    }
    let left = points.get(after.checked_sub(1)?)?;
    let share = (tokens / left[0]).ln() / (right[0] / left[0]).ln();
    Some(left[1] + share * (right[1] - left[1]))
}

/// Relative difference in compute up to which two runs belong to one budget.
const ONE_BUDGET: f64 = 0.1;

/// The second approach, over runs that ended at one of some budgets of compute. A budget counts whose parabola has its minimum among its
/// sizes; others have their best size beyond the runs.
///
/// # Errors
/// Fewer than two such budgets.
pub fn isoflops(runs: &[TrainedRun]) -> Result<Frontier, ScalingError> {
    let mut sorted = runs.to_vec();
    sorted.sort_by(|a, b| a.at.flops().total_cmp(&b.at.flops()));
    let mut groups: Vec<Vec<TrainedRun>> = Vec::new();
    for run in sorted {
        match groups.last_mut() {
            Some(group) if (run.at.flops() / group[0].at.flops()).ln() <= ONE_BUDGET => group.push(run),
            _ => groups.push(vec![run]),
        }
    }
    let minima: Vec<Allocation> = groups.iter().filter_map(|group| minimum_of_parabola(group)).collect();
    let found = minima.len();
    let hint = "give three sizes or more to each budget, on both sides of the best";
    if found < 2 {
        return Err(ScalingError::TooFewBudgets { found, hint });
    }
    Frontier::of(minima).ok_or(ScalingError::TooFewBudgets { found, hint })
}

/// The size at the minimum of a least-squares parabola of the loss over ln N, with the tokens that the budget's mean compute leaves.
fn minimum_of_parabola(group: &[TrainedRun]) -> Option<Allocation> {
    let n = group.len() as f64;
    let mean = |of: fn(&TrainedRun) -> f64| group.iter().map(of).sum::<f64>() / n;
    let (middle, loss) = (mean(|r| r.at.parameters.ln()), mean(|r| r.loss));
    let moment =
        |power: i32| group.iter().map(|r| (r.at.parameters.ln() - middle).powi(power)).sum::<f64>() / n;
    let with_loss = |power: i32| {
        group.iter().map(|r| (r.at.parameters.ln() - middle).powi(power) * (r.loss - loss)).sum::<f64>() / n
    };
    let (m2, m3, m4) = (moment(2), moment(3), moment(4));
    // The normal equations of `loss + s x + q (x^2 - m2)`, whose constant is free.
    let determinant = m2 * (m4 - m2 * m2) - m3 * m3;
    if group.len() < 3 || determinant.is_nan() || determinant <= 1e-12 * m2.powi(3) {
        return None;
    }
    let (p1, p2) = (with_loss(1), with_loss(2));
    let slope = (p1 * (m4 - m2 * m2) - p2 * m3) / determinant;
    let bend = (p2 * m2 - p1 * m3) / determinant;
    let sizes = group.iter().map(|r| r.at.parameters.ln());
    let (low, high) = sizes.fold((f64::INFINITY, f64::NEG_INFINITY), |(l, h), x| (l.min(x), h.max(x)));
    let best = middle - slope / (2.0 * bend);
    if bend.is_nan() || bend <= 0.0 || !(low..=high).contains(&best) {
        return None;
    }
    let flops = mean(|r| r.at.flops().ln()).exp();
    let parameters = best.exp();
    Some(Allocation { parameters, tokens: flops / (FLOPS_PER_PARAMETER_AND_TOKEN * parameters) })
}
