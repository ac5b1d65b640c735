//! The best setting of a sweep: where the loss over the logarithm of a setting is least.

/// Place of the least value of a sweep.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Optimum {
    /// Between tried settings: the vertex of the parabola in ln x through the least point and its neighbours.
    Inside {
        /// Setting.
        at: f64,
        /// Value there.
        value: f64,
    },
    /// The smallest setting was the best: the least may lie below it.
    AtLowest,
    /// The largest setting was the best: the least may lie above it.
    AtHighest,
}

impl Optimum {
    /// The optimum of points `[x, y]` with ascending x above 0, the y of runs that diverged left out. `diverged_above`: whether
    /// larger settings than the last one were tried and diverged, so that the last one is no open end.
    ///
    /// `None` for fewer than two points.
    pub fn of(points: &[[f64; 2]], diverged_above: bool) -> Option<Optimum> {
        let least = (0..points.len()).min_by(|i, j| points[*i][1].total_cmp(&points[*j][1]))?;
        if points.len() < 2 {
            return None;
        }
        if least == 0 {
            return Some(Optimum::AtLowest);
        }
        if least + 1 == points.len() {
            // Past it the loss is not finite: no parabola, but the best is known to within a step.
            let [at, value] = points[least];
            return Some(if diverged_above { Optimum::Inside { at, value } } else { Optimum::AtHighest });
        }
        let [p, q, r] = [points[least - 1], points[least], points[least + 1]];
        let (a, b) = (p[0].ln() - q[0].ln(), r[0].ln() - q[0].ln());
        let (left, right) = ((p[1] - q[1]) / a, (r[1] - q[1]) / b);
        // y - y_q = slope u + curvature u^2 with u = ln x - ln x_q.
        let curvature = (right - left) / (b - a);
        let slope = left - curvature * a;
        if curvature <= 0.0 {
            // Three equal values.
            return Some(Optimum::Inside { at: q[0], value: q[1] });
        }
        let u = -slope / (2.0 * curvature);
        Some(Optimum::Inside { at: q[0] * u.exp(), value: q[1] - slope * slope / (4.0 * curvature) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A parabola in ln x with its vertex at 3e-3.
    fn value(x: f64) -> f64 {
        2.5 + 0.04 * (x / 3e-3f64).ln().powi(2)
    }

    #[test]
    fn the_vertex_of_a_parabola_is_found_from_any_spacing() {
        for settings in [[1e-3, 2e-3, 4e-3, 8e-3], [5e-4, 1e-3, 5e-3, 6e-3]] {
            let points = settings.map(|x| [x, value(x)]);
            let Some(Optimum::Inside { at, value }) = Optimum::of(&points, false) else { panic!("inside") };
            assert!((at / 3e-3 - 1.0).abs() < 1e-9 && (value - 2.5).abs() < 1e-12, "{at} {value}");
        }
    }

    #[test]
    fn an_open_end_is_said_and_divergence_closes_one() {
        let of = |settings: &[f64], diverged| {
            Optimum::of(&settings.iter().map(|x| [*x, value(*x)]).collect::<Vec<_>>(), diverged)
        };
        assert_eq!(of(&[4e-3, 8e-3, 16e-3], false), Some(Optimum::AtLowest));
        assert_eq!(of(&[5e-4, 1e-3, 2e-3], false), Some(Optimum::AtHighest));
        assert!(matches!(of(&[5e-4, 1e-3, 2e-3], true), Some(Optimum::Inside { at: 2e-3, .. })));
        assert_eq!(of(&[5e-4], true), None);
        assert_eq!(of(&[], false), None);
        let flat = [[1.0, 2.0], [2.0, 2.0], [4.0, 2.0]];
        assert_eq!(Optimum::of(&flat, false), Some(Optimum::AtLowest));
    }
}
