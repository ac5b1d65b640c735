//! Mixtures: how much is taken from each data set, and which sample of which data set comes at which place.
//!
//! ```text
//! temperature   w_d = n_d^(1/T) / Σ n^(1/T)         T = 1: by size; T → ∞: all alike (Conneau & Lample 2019)
//! epochs        no data set gives more than epochs_d · n_d samples; what it would have given is shared out by weight
//! blend         place i: the data set with the largest  w_d · max(i, 1) − taken_d,  the first of equals (Megatron-LM)
//! exhaustive    the same with w = n / Σ n, and a data set that is spent takes part no more
//! ```
//!
//! All sums are in f64 and in the order of the data sets, so a mixture is the same everywhere.

use crate::error::LoadError;

/// Which sample stands at which place: place *i* holds sample `samples[i]` of data set `datasets[i]`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Blend {
    /// Data set at each place.
    pub datasets: Vec<u16>,
    /// Number of the sample within that data set, counted from 0; beyond its size the data set begins again.
    pub samples: Vec<u64>,
}

fn wrong(problem: String) -> LoadError {
    LoadError::Mixture(problem)
}

/// Weights that sum to 1.
///
/// # Errors
/// No data set, more than 65,536, a weight that is negative or no number, or none above 0.
pub fn normalised(weights: &[f64]) -> Result<Vec<f64>, LoadError> {
    if weights.is_empty() || weights.len() > usize::from(u16::MAX) + 1 {
        return Err(wrong(format!("a mixture of {} data sets: expected 1 to 65536", weights.len())));
    }
    if let Some((index, weight)) =
        weights.iter().enumerate().find(|(_, weight)| !(weight.is_finite() && **weight >= 0.0))
    {
        return Err(wrong(format!("the weight of data set {index} is {weight}: expected a number from 0")));
    }
    let sum: f64 = weights.iter().sum();
    if sum > 0.0 && sum.is_finite() {
        Ok(weights.iter().map(|weight| weight / sum).collect())
    } else {
        Err(wrong(format!("the weights of a mixture sum to {sum}: expected more than 0")))
    }
}

/// Weights of data sets of these sizes at a temperature: proportional to size^(1/T).
///
/// # Errors
/// A temperature that is not above 0, or no data set with a sample.
pub fn temperature_weights(sizes: &[u64], temperature: f64) -> Result<Vec<f64>, LoadError> {
    if !(temperature > 0.0 && temperature.is_finite()) {
        return Err(wrong(format!("a mixture's temperature is {temperature}: expected a number above 0")));
    }
    // Relative to the largest, so that low temperatures do not overflow.
    let largest = sizes.iter().copied().max().unwrap_or(0).max(1) as f64;
    let weight = |&size: &u64| (size as f64 / largest).powf(temperature.recip());
    normalised(&sizes.iter().map(weight).collect::<Vec<f64>>())
}

/// Weights under which `total` samples take no more than `epochs[d] * sizes[d]` from data set *d*: those that would are
/// held at that, and the others share what is left by their weights.
///
/// # Errors
/// Lists of different lengths, weights or epochs out of range, or fewer samples than `total` under the caps.
pub fn capped_weights(
    weights: &[f64],
    sizes: &[u64],
    epochs: &[f64],
    total: u64,
) -> Result<Vec<f64>, LoadError> {
    if sizes.len() != weights.len() || epochs.len() != weights.len() {
        let (w, s, e) = (weights.len(), sizes.len(), epochs.len());
        return Err(wrong(format!(
            "a mixture with {w} weights, {s} sizes and {e} epochs: expected as many of each"
        )));
    }
    if let Some(epochs) = epochs.iter().find(|epochs| epochs.is_nan() || **epochs < 0.0) {
        return Err(wrong(format!("a data set's epochs are {epochs}: expected a number from 0")));
    }
    let weights = normalised(weights)?;
    // An empty data set under infinite epochs still has nothing.
    let caps: Vec<f64> = sizes
        .iter()
        .zip(epochs)
        .map(|(&size, &epochs)| if size == 0 { 0.0 } else { size as f64 * epochs })
        .collect();
    let total = total as f64;
    let mut share: Vec<Option<f64>> = vec![None; weights.len()];
    loop {
        let held: f64 = share.iter().flatten().sum();
        let open: f64 = weights.iter().zip(&share).filter(|(_, s)| s.is_none()).map(|(w, _)| w).sum();
        let left = total - held;
        if open <= 0.0 {
            if left > 0.5 {
                return Err(wrong(format!(
                    "a mixture of {total} samples: under their epochs the data sets give {held:.0}; allow more epochs or take \
                     fewer samples"
                )));
            }
            return normalised(&share.into_iter().map(|share| share.unwrap_or(0.0)).collect::<Vec<f64>>());
        }
        let over: Vec<usize> = (0..weights.len())
            .filter(|&d| share[d].is_none() && left * weights[d] / open > caps[d])
            .collect();
        if over.is_empty() {
            let taken = |d: usize| share[d].unwrap_or(left * weights[d] / open);
            return normalised(&(0..weights.len()).map(taken).collect::<Vec<f64>>());
        }
        for d in over {
            share[d] = Some(caps[d]);
        }
    }
}

/// The first `size` places of a blend. Each data set's share of any beginning of it differs from its weight by less than
/// the number of data sets.
///
/// Cost: size · data sets.
///
/// # Errors
/// Errors of [`normalised`].
pub fn blend(weights: &[f64], size: usize) -> Result<Blend, LoadError> {
    let weights = normalised(weights)?;
    let mut taken = vec![0_u64; weights.len()];
    let mut blend = Blend { datasets: Vec::with_capacity(size), samples: Vec::with_capacity(size) };
    for place in 0..size {
        let chosen = most_behind(&weights, &taken, place, |_| true);
        blend.push(chosen, &mut taken);
    }
    Ok(blend)
}

/// A blend that takes every sample of data sets of these sizes once.
///
/// # Errors
/// No data set, more than 65,536, or none with a sample.
pub fn exhaustive_blend(sizes: &[u64]) -> Result<Blend, LoadError> {
    let weights = normalised(&sizes.iter().map(|&size| size as f64).collect::<Vec<f64>>())?;
    let total: u64 = sizes.iter().sum();
    let mut taken = vec![0_u64; sizes.len()];
    let mut blend = Blend::default();
    for place in 0..total as usize {
        let chosen = most_behind(&weights, &taken, place, |d| taken[d] < sizes[d]);
        blend.push(chosen, &mut taken);
    }
    Ok(blend)
}

/// Samples that a data set must be ready to give for its share of `total`: ⌈⌈total · weight⌉ (1 + surplus)⌉, with
/// Megatron-LM's surplus of 0.005 for the unevenness of a blend.
pub fn wanted_samples(total: u64, weight: f64) -> u64 {
    ((total as f64 * weight).ceil() * (1.0 + 0.005)).ceil() as u64
}

/// R* of data: how soon repeated text loses its worth (Muennighoff et al. 2023, table of fitted constants).
const REPETITION: f64 = 15.4;

/// Passes of new text that `epochs` passes over the same text are worth: 1 + R* (1 − exp(−(epochs − 1) / R*)), the
/// effective data of Muennighoff et al. 2023, "Scaling data-constrained language models", over the unique data. Less than one pass
/// is worth what it is.
pub fn effective_epochs(epochs: f64) -> f64 {
    if epochs <= 1.0 { epochs } else { 1.0 + REPETITION * (1.0 - (-(epochs - 1.0) / REPETITION).exp()) }
}

/// The data set that is furthest behind its weight, the first of equals.
fn most_behind(weights: &[f64], taken: &[u64], place: usize, open: impl Fn(usize) -> bool) -> usize {
    let at = place.max(1) as f64;
    let mut best = (f64::NEG_INFINITY, 0);
    for (d, (weight, taken)) in weights.iter().zip(taken).enumerate() {
        let behind = weight * at - *taken as f64;
        if open(d) && behind > best.0 {
            best = (behind, d);
        }
    }
    best.1
}

impl Blend {
    fn push(&mut self, dataset: usize, taken: &mut [u64]) {
        // `normalised` has let through no more than 65,536 data sets.
        self.datasets.push(dataset as u16);
        self.samples.push(taken[dataset]);
        taken[dataset] += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Values of Megatron-LM's `build_blending_indices` and `build_exhaustive_blending_indices`.
    #[test]
    fn blends_are_those_of_megatron() {
        let found = blend(&[0.5, 0.25, 0.25], 12).unwrap();
        assert_eq!(found.datasets, [0, 1, 2, 0, 0, 1, 2, 0, 0, 1, 2, 0]);
        assert_eq!(found.samples, [0, 0, 0, 1, 2, 1, 1, 3, 4, 2, 2, 5]);
        assert_eq!(blend(&[1.0 / 3.0; 3], 9).unwrap().datasets, [0, 1, 2, 0, 1, 2, 0, 1, 2]);
        assert_eq!(blend(&[0.6, 0.4], 10).unwrap().datasets, [0, 1, 0, 1, 0, 0, 1, 0, 1, 0]);
        let found = exhaustive_blend(&[4, 1, 3]).unwrap();
        assert_eq!(found.datasets, [0, 2, 1, 0, 2, 0, 2, 0]);
        assert_eq!(found.samples, [0, 0, 0, 1, 1, 2, 2, 3]);
    }

    /// D'/U_D of the paper's formula for R* = 15.4.
    #[test]
    fn repeated_text_is_worth_less_and_less() {
        for (epochs, worth) in [
            (0.5, 0.5),
            (1.0, 1.0),
            (2.0, 1.968_224),
            (4.0, 3.725_878),
            (16.0, 10.585_577),
            (40.0, 15.176_274),
        ] {
            assert!((effective_epochs(epochs) - worth).abs() < 1e-6, "{epochs}");
        }
    }

    #[test]
    fn shares_follow_the_weights_at_every_place() {
        let weights = [0.05, 0.61, 0.0, 0.3, 0.04];
        let found = blend(&weights, 5000).unwrap();
        let mut taken = [0_u64; 5];
        for (place, &dataset) in found.datasets.iter().enumerate() {
            taken[usize::from(dataset)] += 1;
            for (weight, taken) in weights.iter().zip(taken) {
                let off = (weight * (place + 1) as f64 - taken as f64).abs();
                assert!(off < weights.len() as f64, "place {place}: {off}");
            }
        }
        assert_eq!(taken[2], 0);
    }

    #[test]
    fn temperature_flattens_and_caps_hold() {
        let sizes = [900, 90, 10];
        let close = |found: &[f64], wanted: &[f64]| {
            found.iter().zip(wanted).all(|(found, wanted)| (found - wanted).abs() < 1e-12)
        };
        assert!(close(&temperature_weights(&sizes, 1.0).unwrap(), &[0.9, 0.09, 0.01]));
        let roots = [30.0, 90f64.sqrt(), 10f64.sqrt()];
        let sum: f64 = roots.iter().sum();
        assert!(close(&temperature_weights(&sizes, 2.0).unwrap(), &roots.map(|root| root / sum)));
        // 100 samples by halves; the second has 10 and may be read twice, the third not at all.
        let found = capped_weights(&[0.25, 0.5, 0.25], &[1000, 10, 50], &[f64::INFINITY, 2.0, 0.0], 100);
        assert!(close(&found.unwrap(), &[0.8, 0.2, 0.0]));
        let error = capped_weights(&[0.5, 0.5], &[10, 10], &[2.0, 1.0], 31).unwrap_err().to_string();
        assert!(error.contains("31") && error.contains("30"), "{error}");
        assert!(close(
            &capped_weights(&[0.5, 0.5], &[10, 10], &[2.0, 1.0], 30).unwrap(),
            &[2.0 / 3.0, 1.0 / 3.0]
        ));
        assert_eq!((wanted_samples(1000, 0.5), wanted_samples(3, 0.5)), (503, 3));
    }

    #[test]
    fn what_is_no_mixture_is_refused() {
        for weights in [&[][..], &[0.0, 0.0], &[1.0, -1.0], &[f64::NAN], &[f64::INFINITY]] {
            assert!(blend(weights, 3).is_err(), "{weights:?}");
        }
        assert!(exhaustive_blend(&[0, 0]).is_err() && temperature_weights(&[1], 0.0).is_err());
        assert!(capped_weights(&[1.0], &[1, 2], &[1.0], 1).is_err());
    }
}
