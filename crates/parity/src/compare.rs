//! Two trajectories side by side.

use crate::run::Trajectory;
use bessemer_units::{ParamDType, ParamStorage, ReduceDType};

/// How far a layout may be from one rank. Sums are f32 and in another order, so losses drift apart as rounding is amplified
/// by training; what they may not do is start apart.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Bounds {
    /// Relative difference of the first step's loss.
    pub first_loss: f64,
    /// Relative difference of any step's loss.
    pub any_loss: f64,
    /// Largest difference of a gradient of the first step, relative to its largest element.
    pub gradient: f64,
    /// The largest element for that is the one of the tensor's unit (a layer; embedding and head), with which it shares scales.
    pub of_unit: bool,
    /// Largest difference of a parameter after the last step, relative to its largest element; none where such a bound
    /// says nothing, since rounding has been amplified.
    pub parameter: Option<f64>,
}

impl Bounds {
    /// Bit by bit.
    pub const EXACT: Bounds =
        Bounds { first_loss: 0.0, any_loss: 0.0, gradient: 0.0, of_unit: false, parameter: Some(0.0) };

    /// For jobs whose parameters and gradients are kept so, and whose gradients travel so.
    ///
    /// In bf16 a gradient is rounded to 8 bits on every rank and after every micro-batch, so single elements differ by some
    /// units of 2^-8; a master that differs in its last bits may be rounded to the neighbouring bf16 value, which moves a
    /// weight by 2^-8, so losses drift apart sooner. The first step's loss has seen neither.
    ///
    /// In 8 bits a sum over ranks and micro-batches is off by at most 1/254 of the sum of its terms' largest magnitudes in the block, and an
    /// all-reduced one by 1/254 of its own besides. Terms of a mean of k that have nothing in common are up to sqrt(k) times as large as
    /// it, each 1/k of that: with the 32 of the parity jobs that is (sqrt(32) + 1) / 254.
    pub fn of(types: ParamStorage, reduce_dtype: ReduceDType) -> Bounds {
        let exact = Bounds::default();
        let of_unit = reduce_dtype == ReduceDType::Int8;
        let short = types.gradients != ParamDType::F32;
        let gradient = if short { 2e-2 } else { exact.gradient };
        Bounds {
            any_loss: if types.has_masters() || of_unit { 2e-2 } else { exact.any_loss },
            gradient: if of_unit { gradient + (32f64.sqrt() + 1.0) / 254.0 } else { gradient },
            of_unit,
            ..exact
        }
    }
}

impl Default for Bounds {
    fn default() -> Self {
        Bounds { first_loss: 1e-5, any_loss: 1e-3, gradient: 1e-4, of_unit: false, parameter: None }
    }
}

/// How far a trajectory is from the reference.
#[derive(Debug, Clone, PartialEq)]
pub struct Comparison {
    /// Relative difference of the first step's loss.
    pub first_loss: f64,
    /// Largest relative difference of a step's loss, and the step (from 1).
    pub any_loss: (f64, u64),
    /// Largest relative difference of a gradient of the first step, and its name; none where there are no gradients (of
    /// asynchronous schedules, whose stages step while others still compute).
    pub gradient: Option<(f64, String)>,
    /// The first gradient, in the order of the forward pass, that is beyond the bound.
    pub diverging: Option<String>,
    /// What is beyond the bounds, in words; nothing if all is well.
    pub problem: Option<String>,
}

fn relative(a: f64, b: f64) -> f64 {
    if a == b {
        return 0.0;
    }
    let apart = (a - b).abs() / b.abs().max(f64::MIN_POSITIVE);
    // NaN is as far as can be.
    if apart.is_nan() { f64::INFINITY } else { apart }
}

fn largest(values: &[f32]) -> f64 {
    values.iter().fold(0.0, |m, v| m.max(f64::from(v.abs())))
}

/// The unit of a tensor: "layers.3", or nothing for embedding and head.
fn unit(name: &str) -> &str {
    let layer = name.strip_prefix("layers.").and_then(|rest| rest.find('.'));
    layer.map_or("", |end| &name[.."layers.".len() + end])
}

/// Largest difference relative to `largest`.
fn apart(a: &[f32], b: &[f32], largest: f64) -> f64 {
    if a.len() != b.len() {
        return f64::INFINITY;
    }
    let worst = a.iter().zip(b).fold(0.0f64, |m, (x, y)| {
        let d = f64::from((x - y).abs());
        if d.is_nan() { f64::INFINITY } else { m.max(d) }
    });
    if worst == 0.0 { 0.0 } else { worst / largest.max(f64::MIN_POSITIVE) }
}

/// The largest relative difference of a tensor with its name, and the first that is beyond the bound. `of_unit`: relative to the largest
/// element of its unit.
fn worst(
    found: &[(String, Vec<f32>)],
    reference: &[(String, Vec<f32>)],
    (bound, of_unit): (f64, bool),
) -> (Option<(f64, String)>, Option<String>) {
    let (mut worst, mut first) = (None, None);
    for ((name, a), (_, b)) in found.iter().zip(reference) {
        let beside = reference.iter().filter(|(other, _)| of_unit && unit(other) == unit(name));
        let d = apart(a, b, beside.fold(largest(b), |most, (_, b)| most.max(largest(b))));
        if worst.as_ref().is_none_or(|(most, _)| d > *most) {
            worst = Some((d, name.clone()));
        }
        if d > bound && first.is_none() {
            first = Some(name.clone());
        }
    }
    (worst, first)
}

impl Comparison {
    /// Holds `found` against `reference`.
    pub fn new(found: &Trajectory, reference: &Trajectory, bounds: &Bounds) -> Comparison {
        let losses: Vec<f64> =
            found.losses.iter().zip(&reference.losses).map(|(a, b)| relative(*a, *b)).collect();
        let first_loss = losses.first().copied().unwrap_or(f64::INFINITY);
        let any_loss = losses
            .iter()
            .enumerate()
            .fold((0.0, 0), |worst, (i, &d)| if d > worst.0 { (d, i as u64 + 1) } else { worst });
        let (gradient, diverging) =
            worst(&found.gradients, &reference.gradients, (bounds.gradient, bounds.of_unit));
        let (parameter, drifted) =
            worst(&found.params, &reference.params, (bounds.parameter.unwrap_or(f64::INFINITY), false));
        let mut problems = Vec::new();
        let sizes = |t: &Trajectory| (t.losses.len(), t.gradients.len(), t.params.len());
        if sizes(found) != sizes(reference) {
            problems.push("other numbers of steps, gradients or parameters".to_owned());
        }
        if first_loss > bounds.first_loss {
            problems.push(format!("first loss {first_loss:.1e} apart (bound {:.0e})", bounds.first_loss));
        }
        if any_loss.0 > bounds.any_loss {
            problems.push(format!(
                "loss of step {} {:.1e} apart (bound {:.0e})",
                any_loss.1, any_loss.0, bounds.any_loss
            ));
        }
        for (what, first, worst) in [("gradient", &diverging, &gradient), ("parameter", &drifted, &parameter)]
        {
            if let (Some(name), Some((apart, of))) = (first, worst) {
                problems.push(format!("first diverging {what}: {name}, worst {apart:.1e} in {of}"));
            }
        }
        let problem = (!problems.is_empty()).then(|| problems.join("; "));
        Comparison { first_loss, any_loss, gradient, diverging, problem }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn trajectory(losses: &[f64], gradient: f32) -> Trajectory {
        let gradients = vec![("a".into(), vec![1.0, 2.0]), ("b".into(), vec![gradient, 4.0])];
        let params = vec![("a".into(), vec![gradient])];
        Trajectory { losses: losses.to_vec(), norms: losses.to_vec(), gradients, params }
    }

    #[test]
    fn the_first_diverging_tensor_is_named() {
        let reference = trajectory(&[4.0, 3.0], 1.0);
        let bounds = Bounds::default();
        assert_eq!(Comparison::new(&reference, &reference, &bounds).problem, None);
        let other = Comparison::new(&trajectory(&[4.0, 3.0], 1.1), &reference, &bounds);
        assert_eq!(other.diverging.as_deref(), Some("b"));
        assert!(other.problem.is_some_and(|p| p.contains("first diverging gradient: b")));
        let late = Comparison::new(&trajectory(&[4.0, 3.1], 1.0), &reference, &bounds);
        assert_eq!(late.any_loss.1, 2);
        assert!(late.problem.is_some_and(|p| p.contains("loss of step 2")));
        let nan = Comparison::new(&trajectory(&[f64::NAN, 3.0], f32::NAN), &reference, &bounds);
        assert!(nan.problem.is_some() && nan.diverging.as_deref() == Some("b"));
        let without = |gradient| Trajectory { gradients: Vec::new(), ..trajectory(&[4.0, 3.0], gradient) };
        let same = Comparison::new(&without(1.0), &without(1.0), &Bounds::EXACT);
        assert_eq!((same.problem, same.gradient), (None, None));
        let drifted = Comparison::new(&without(1.0000001), &without(1.0), &Bounds::EXACT);
        assert!(drifted.problem.is_some_and(|p| p.contains("first diverging parameter: a")));
        let later = Comparison::new(&trajectory(&[4.0, 3.0], 1.0), &without(1.0), &bounds);
        assert!(later.problem.is_some_and(|p| p.contains("other numbers")));
    }
}
