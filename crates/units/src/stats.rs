//! Statistics of slices.

/// Arithmetic mean, summed in the order of the slice; NaN of an empty slice.
pub fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

/// Median: the mean of the two middle values if their number is even, NaN of an empty slice. Sorts `values`.
pub fn median(values: &mut [f64]) -> f64 {
    let upper = upper_median(values);
    if values.is_empty() || values.len() % 2 == 1 {
        return upper;
    }
    f64::midpoint(values[values.len() / 2 - 1], upper)
}

/// Upper median: the greater of the two middle values if their number is even, so always one of the values; NaN of an
/// empty slice. Sorts `values`.
pub fn upper_median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_of_even_and_odd_lengths() {
        assert_eq!((mean(&[1.0, 2.0, 6.0]), median(&mut [6.0, 1.0, 2.0])), (3.0, 2.0));
        assert_eq!((median(&mut [4.0, 9.0, 1.0, 2.0]), upper_median(&mut [4.0, 9.0, 1.0, 2.0])), (3.0, 4.0));
        assert!(mean(&[]).is_nan() && median(&mut []).is_nan() && upper_median(&mut []).is_nan());
    }
}
