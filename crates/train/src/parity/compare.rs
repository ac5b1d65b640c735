//! Two trajectories side by side.

use super::run::Trajectory;
use bessemer_units::{ParamDType, ParamStorage};

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
    /// Largest difference of a parameter after the last step, relative to its largest element; none where such a bound
    /// says nothing, since rounding has been amplified.
    pub parameter: Option<f64>,
}

impl Bounds {
    /// Bit by bit.
    pub const EXACT: Bounds = Bounds { first_loss: 0.0, any_loss: 0.0, gradient: 0.0, parameter: Some(0.0) };

    /// For jobs whose parameters and gradients are kept so.
    ///
    /// In bf16 a gradient is rounded to 8 bits on every rank and after every micro-batch, so single elements differ by some
    /// units of 2^-8; a master that differs in its last bits may be rounded to the neighbouring bf16 value, which moves a
    /// weight by 2^-8, so losses drift apart sooner. The first step's loss has seen neither.
    pub fn of(types: ParamStorage) -> Bounds {
        let exact = Bounds::default();
        Bounds {
            any_loss: if types.has_masters() { 2e-2 } else { exact.any_loss },
            gradient: if types.gradients == ParamDType::F32 { exact.gradient } else { 2e-2 },
            ..exact
        }
    }
}

impl Default for Bounds {
    fn default() -> Self {
        Bounds { first_loss: 1e-5, any_loss: 1e-3, gradient: 1e-4, parameter: None }
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

/// Largest difference relative to the reference's largest element.
fn apart(a: &[f32], b: &[f32]) -> f64 {
    if a.len() != b.len() {
        return f64::INFINITY;
    }
    let largest = b.iter().fold(0.0f64, |m, v| m.max(f64::from(v.abs())));
    let worst = a.iter().zip(b).fold(0.0f64, |m, (x, y)| {
        let d = f64::from((x - y).abs());
        if d.is_nan() { f64::INFINITY } else { m.max(d) }
    });
    if worst == 0.0 { 0.0 } else { worst / largest.max(f64::MIN_POSITIVE) }
}

/// The largest relative difference of a tensor with its name, and the first that is beyond the bound.
fn worst(
    found: &[(String, Vec<f32>)],
    reference: &[(String, Vec<f32>)],
    bound: f64,
) -> (Option<(f64, String)>, Option<String>) {
    let (mut worst, mut first) = (None, None);
    for ((name, a), (_, b)) in found.iter().zip(reference) {
        let d = apart(a, b);
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
        let (gradient, diverging) = worst(&found.gradients, &reference.gradients, bounds.gradient);
        let (parameter, drifted) =
            worst(&found.params, &reference.params, bounds.parameter.unwrap_or(f64::INFINITY));
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
