//! Work between two saves of a run that fails at a constant rate: how often to save. All times are in seconds.

/// Young's interval, sqrt(2 delta M) (Young 1974).
pub fn young_interval(save: f64, mean_time_to_failure: f64) -> f64 {
    (2.0 * save * mean_time_to_failure).sqrt()
}

/// Daly's interval of higher order (Daly 2006): sqrt(2 delta M) (1 + sqrt(delta/2M)/3 + (delta/2M)/9) - delta for delta < 2M, else M.
pub fn daly_interval(save: f64, mean_time_to_failure: f64) -> f64 {
    let ratio = save / (2.0 * mean_time_to_failure);
    if ratio >= 1.0 {
        return mean_time_to_failure;
    }
    young_interval(save, mean_time_to_failure) * (1.0 + ratio.sqrt() / 3.0 + ratio / 9.0) - save
}

/// Interval of least expected time: the root of ln(1 - u) + u + delta/M in u = tau/M.
pub fn best_interval(save: f64, mean_time_to_failure: f64) -> f64 {
    let wanted = save / mean_time_to_failure;
    // The function of u falls from delta/M to minus infinity.
    let value = |u: f64| (-u).ln_1p() + u + wanted;
    let (mut low, mut high) = (0.0, 1.0);
    for _ in 0..200 {
        let middle = 0.5 * (low + high);
        if value(middle) > 0.0 {
            low = middle;
        } else {
            high = middle;
        }
    }
    0.5 * (low + high) * mean_time_to_failure
}
