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
}

impl Bounds {
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
        Bounds { first_loss: 1e-5, any_loss: 1e-3, gradient: 1e-4 }
    }
}

/// How far a trajectory is from the reference.
#[derive(Debug, Clone, PartialEq)]
pub struct Comparison {
    /// Relative difference of the first step's loss.
    pub first_loss: f64,
    /// Largest relative difference of a step's loss, and the step (from 1).
    pub any_loss: (f64, u64),
    /// Largest relative difference of a gradient of the first step, and its name.
    pub gradient: (f64, String),
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
        let mut gradient = (0.0, String::new());
        let mut diverging = None;
        for ((name, a), (_, b)) in found.gradients.iter().zip(&reference.gradients) {
            let d = apart(a, b);
            if d > gradient.0 {
                gradient = (d, name.clone());
            }
            if d > bounds.gradient && diverging.is_none() {
                diverging = Some(name.clone());
            }
        }
        let mut problems = Vec::new();
        if found.losses.len() != reference.losses.len() || found.gradients.len() != reference.gradients.len()
        {
            problems.push("other numbers of steps or gradients".to_owned());
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
        if let Some(name) = &diverging {
            problems.push(format!(
                "first diverging gradient: {name}, worst {:.1e} in {}",
                gradient.0, gradient.1
            ));
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
        Trajectory { losses: losses.to_vec(), norms: losses.to_vec(), gradients, params: Vec::new() }
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
    }
}
