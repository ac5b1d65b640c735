//! Newton's method for sums of Huber's penalties, damped until it descends (Levenberg 1944).

/// Most constants of a law.
pub(crate) const MOST: usize = 5;
pub(crate) type Vector = [f64; MOST];
pub(crate) type Matrix = [Vector; MOST];

/// Residual in ln L from which the penalty grows linearly.
pub const HUBER_DELTA: f64 = 1e-3;

/// Penalty of a residual, its first and second derivative.
pub(crate) fn huber(residual: f64) -> (f64, f64, f64) {
    if residual.abs() <= HUBER_DELTA {
        (residual * residual / 2.0, residual, 1.0)
    } else {
        (HUBER_DELTA * (residual.abs() - HUBER_DELTA / 2.0), HUBER_DELTA * residual.signum(), 0.0)
    }
}

/// Most iterations.
const ROUNDS: usize = 500;

/// The constants at which the objective that `evaluate` gives with gradient and Hessian is least, from `x` on, and the objective there. It is a sum over
/// `points` residuals.
pub(crate) fn descend(
    evaluate: impl Fn(&Vector) -> (f64, Vector, Matrix),
    mut x: Vector,
    points: usize,
) -> (Vector, f64) {
    let mut damping = 1e-3;
    let (mut now, mut gradient, mut hessian) = evaluate(&x);
    for _ in 0..ROUNDS {
        let mut damped = hessian;
        // Relative to the curvature without its signs, which the linear part of the penalty lets vanish.
        for (i, row) in damped.iter_mut().enumerate() {
            row[i] += damping * (hessian[i][i].abs() + 1e-9 * points as f64);
        }
        let step = cholesky_solve(&damped, &gradient);
        let better = step.and_then(|step| {
            let moved: Vector = std::array::from_fn(|i| x[i] - step[i]);
            let next = evaluate(&moved);
            (next.0 < now).then_some((moved, next))
        });
        match better {
            Some((moved, next)) => {
                let gain = now - next.0;
                x = moved;
                (now, gradient, hessian) = next;
                damping = (damping / 10.0).max(1e-12);
                if gain <= 1e-15 * now {
                    break;
                }
            }
            None if damping > 1e12 => break,
            None => damping *= 4.0,
        }
    }
    (x, now)
}

/// Solves `M y = r` for a positive definite matrix; None if it is not one.
pub(crate) fn cholesky_solve(m: &Matrix, r: &Vector) -> Option<Vector> {
    let mut lower = [[0.0; MOST]; MOST];
    for i in 0..MOST {
        for j in 0..=i {
            let dot: f64 = (0..j).map(|k| lower[i][k] * lower[j][k]).sum();
            let left = m[i][j] - dot;
            if i == j {
                if left.is_nan() || left <= 0.0 {
                    return None;
                }
                lower[i][i] = left.sqrt();
            } else {
                lower[i][j] = left / lower[j][j];
            }
        }
    }
    let mut y = [0.0; MOST];
    for i in 0..MOST {
        let dot: f64 = (0..i).map(|k| lower[i][k] * y[k]).sum();
        y[i] = (r[i] - dot) / lower[i][i];
    }
    for i in (0..MOST).rev() {
        let dot: f64 = (i + 1..MOST).map(|k| lower[k][i] * y[k]).sum();
        y[i] = (y[i] - dot) / lower[i][i];
    }
    Some(y)
}
