//! The minimum of a function of one variable by golden sections (Kiefer 1953).

/// Relative width at which the search ends.
const WIDTH: f64 = 1e-12;

/// Where `f` is least between `low` and `high`, if it falls and then rises. None if the bounds are not in order.
pub(crate) fn minimum(low: f64, high: f64, f: impl Fn(f64) -> f64) -> Option<f64> {
    if !(low.is_finite() && high.is_finite() && low <= high) {
        return None;
    }
    let ratio = (5f64.sqrt() - 1.0) / 2.0;
    let width = WIDTH * low.abs().max(high.abs()).max(1.0);
    let (mut low, mut high) = (low, high);
    let (mut left, mut right) = (high - ratio * (high - low), low + ratio * (high - low));
    let (mut at_left, mut at_right) = (f(left), f(right));
    while high - low > width {
        if at_left < at_right {
            (high, right, at_right) = (right, left, at_left);
            left = high - ratio * (high - low);
            at_left = f(left);
        } else {
            (low, left, at_left) = (left, right, at_right);
            right = low + ratio * (high - low);
            at_right = f(right);
        }
    }
    Some((low + high) / 2.0)
}
