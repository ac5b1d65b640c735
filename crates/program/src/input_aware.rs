//! Input-aware recomputation: which layers recompute is planned for each input size, under a memory budget (Liao et al. 2022,
//! "Mimose: An Input-Aware Checkpointing Planner for Efficient Training on GPU").
//!
//! 1. Samples of some sizes give each layer's activation bytes as a quadratic in the input size ([`SizeModel::fit`]): linear
//!    terms come from rows, the quadratic one from attention scores, where they are stored.
//! 2. For a size, bytes that are missing under the budget are freed by recomputing layers, as few as the greedy choice of the
//!    paper finds ([`choose_layers`]).
//! 3. Sizes are rounded up to multiples of [`SIZE_STEP`], and every rounded size is planned once ([`InputAwarePlan`]).

use bessemer_units::Bytes;
use std::collections::{BTreeMap, BTreeSet};

/// Sizes are planned in steps of so many.
pub const SIZE_STEP: u64 = 5;
/// Largest relative error of a fit.
const RELATIVE: f64 = 0.1;
/// Bytes below which an error is relative to these.
const LEAST_BYTES: f64 = 1024.0;
/// Error of a fit in bytes that is small whatever it is relative to.
const ABSOLUTE: f64 = 10e6;
/// Layers of one bucket take at least this share of the bucket's largest.
const BUCKET: f64 = 0.9;

/// Activation bytes that were measured or planned at one input size.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SizeSample {
    /// Input size, such as tokens of a micro-batch.
    pub size: u64,
    /// Bytes that are kept for the backward pass.
    pub bytes: Bytes,
}

/// Samples that no quadratic in the input size describes, or a budget below what recomputation leaves.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum InputAwareError {
    /// No samples.
    #[error("activation bytes by input size: expected at least one sample, found none")]
    NoSamples,
    /// The fit is too far from a sample.
    #[error(
        "activation bytes by input size: the fitted quadratic gives {predicted} at size {size}, where {found} were measured; take \
         more samples of sizes near it"
    )]
    PoorFit {
        /// Input size of the sample.
        size: u64,
        /// Bytes of the sample.
        found: Bytes,
        /// Bytes of the fit.
        predicted: Bytes,
    },
    /// All layers recomputed free too little.
    #[error(
        "inputs of size {size} need {missing} more than there are with every layer recomputed; use a smaller train.micro_batch or \
         shorter sequences"
    )]
    Budget {
        /// Input size, rounded up.
        size: u64,
        /// Bytes that are missing.
        missing: Bytes,
    },
}

/// Activation bytes as a quadratic in the input size.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SizeModel {
    /// Coefficients of 1, size and size².
    coefficients: [f64; 3],
}

impl SizeModel {
    /// The quadratic nearest to the samples in the sense of least squares; of fewer than three sizes the line or constant.
    ///
    /// # Errors
    /// No samples; a sample that the fit misses by more than 10 % (of at least 1 KB) and by more than 10 MB.
    pub fn fit(samples: &[SizeSample]) -> Result<SizeModel, InputAwareError> {
        let largest = samples.iter().map(|s| s.size).max().ok_or(InputAwareError::NoSamples)?.max(1) as f64;
        let sizes: BTreeSet<u64> = samples.iter().map(|s| s.size).collect();
        let terms = sizes.len().min(3);
        // Normal equations in size / largest, whose powers are of one magnitude.
        let mut rows = [[0.0; 4]; 3];
        for sample in samples {
            let x = sample.size as f64 / largest;
            let powers = [1.0, x, x * x];
            for (row, of_row) in rows.iter_mut().zip(powers) {
                for (cell, of_column) in row.iter_mut().zip(powers) {
                    *cell += of_row * of_column;
                }
                row[3] += of_row * sample.bytes.0 as f64;
            }
        }
        let scaled = solve(rows, terms);
        let model =
            SizeModel { coefficients: [scaled[0], scaled[1] / largest, scaled[2] / largest / largest] };
        for sample in samples {
            let (found, predicted) = (sample.bytes.0 as f64, model.at(sample.size));
            let error = (found - predicted).abs();
            if error > RELATIVE * found.max(LEAST_BYTES) && error > ABSOLUTE {
                let predicted = model.predict(sample.size);
                return Err(InputAwareError::PoorFit { size: sample.size, found: sample.bytes, predicted });
            }
        }
        Ok(model)
    }

    fn at(&self, size: u64) -> f64 {
        let [constant, linear, quadratic] = self.coefficients;
        let x = size as f64;
        constant + x * (linear + x * quadratic)
    }

    /// Bytes at a size, at least 0.
    pub fn predict(&self, size: u64) -> Bytes {
        Bytes(self.at(size).max(0.0).round() as u64)
    }
}

/// Gaussian elimination with pivots on the first `terms` unknowns; the others are 0.
fn solve(mut rows: [[f64; 4]; 3], terms: usize) -> [f64; 3] {
    for column in 0..terms {
        let size = |row: &usize| rows[*row][column].abs();
        let pivot = (column..terms).max_by(|a, b| size(a).total_cmp(&size(b))).unwrap_or(column);
        rows.swap(column, pivot);
        let of = rows[column];
        for row in rows.iter_mut().take(terms).skip(column + 1) {
            let factor = row[column] / of[column];
            row.iter_mut().zip(of).for_each(|(cell, of)| *cell -= factor * of);
        }
    }
    let mut solution = [0.0; 3];
    for row in (0..terms).rev() {
        let known: f64 = (row + 1..terms).map(|column| rows[row][column] * solution[column]).sum();
        solution[row] = (rows[row][3] - known) / rows[row][row];
    }
    solution
}

/// Layers, by increasing number, whose recomputation frees at least `needed` bytes; `freed` says for each layer what its
/// recomputation frees. All of them if even they do not free so much.
///
/// Layers are sorted into buckets of nearly equal bytes, the largest first, and within a bucket deeper layers first. Of these the last
/// that frees all that is still needed is taken; if none does, the first, and the search goes on.
pub fn choose_layers(freed: &[Bytes], needed: Bytes) -> Vec<usize> {
    let mut by_bytes: Vec<usize> = (0..freed.len()).collect();
    by_bytes.sort_by_key(|layer| (std::cmp::Reverse(freed[*layer]), *layer));
    let mut left: Vec<usize> = Vec::with_capacity(freed.len());
    let mut begin = 0;
    while begin < by_bytes.len() {
        let least = BUCKET * freed[by_bytes[begin]].0 as f64;
        let of_bucket = by_bytes[begin..].iter().take_while(|layer| freed[**layer].0 as f64 >= least).count();
        let bucket = &mut by_bytes[begin..begin + of_bucket];
        bucket.sort_by_key(|layer| std::cmp::Reverse(*layer));
        left.extend_from_slice(bucket);
        begin += of_bucket;
    }
    let (mut chosen, mut missing) = (Vec::new(), needed.0);
    while missing > 0 && !left.is_empty() {
        let enough = left.iter().rposition(|layer| freed[*layer].0 >= missing);
        let layer = left.remove(enough.unwrap_or(0));
        missing = missing.saturating_sub(freed[layer].0);
        chosen.push(layer);
    }
    chosen.sort_unstable();
    chosen
}

/// Layers that recompute, by input size.
#[derive(Debug, Clone)]
pub struct InputAwarePlan {
    /// By layer: bytes that recomputing it frees.
    freed: Vec<SizeModel>,
    /// Bytes of a pass that recomputes nothing.
    whole: SizeModel,
    budget: Bytes,
    /// By rounded size.
    planned: BTreeMap<u64, Vec<usize>>,
}

impl InputAwarePlan {
    /// For layers of which each frees `freed` bytes when it recomputes, in a pass that takes `whole` bytes without any, of which
    /// `budget` are there.
    pub fn new(freed: Vec<SizeModel>, whole: SizeModel, budget: Bytes) -> InputAwarePlan {
        InputAwarePlan { freed, whole, budget, planned: BTreeMap::new() }
    }

    /// The layers that recompute for inputs of a size, by increasing number.
    ///
    /// # Errors
    /// A size that does not fit with every layer recomputed.
    pub fn layers(&mut self, size: u64) -> Result<&[usize], InputAwareError> {
        let size = size.next_multiple_of(SIZE_STEP);
        if !self.planned.contains_key(&size) {
            let needed = Bytes(self.whole.predict(size).0.saturating_sub(self.budget.0));
            let freed: Vec<Bytes> = self.freed.iter().map(|layer| layer.predict(size)).collect();
            let layers = choose_layers(&freed, needed);
            let most: u64 = layers.iter().map(|layer| freed[*layer].0).sum();
            if most < needed.0 {
                return Err(InputAwareError::Budget { size, missing: Bytes(needed.0 - most) });
            }
            self.planned.insert(size, layers);
        }
        Ok(&self.planned[&size])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn samples(bytes: impl Fn(u64) -> u64, sizes: &[u64]) -> Vec<SizeSample> {
        sizes.iter().map(|size| SizeSample { size: *size, bytes: Bytes(bytes(*size)) }).collect()
    }

    /// Korthikanti et al. 2022: 34 s b h + 5 a s² b bytes of a layer, for h = 6144, a = 64, b = 4.
    fn korthikanti(tokens: u64) -> u64 {
        34 * tokens * 4 * 6144 + 5 * 64 * tokens * tokens * 4
    }

    #[test]
    fn a_quadratic_is_found_from_three_sizes_and_holds_at_others() {
        let model = SizeModel::fit(&samples(korthikanti, &[128, 512, 777])).unwrap();
        for size in [1, 64, 2048, 8192] {
            let (found, wanted) = (model.predict(size).0 as f64, korthikanti(size) as f64);
            assert!((found / wanted - 1.0).abs() < 1e-6, "{size}: {found} {wanted}");
        }
        // Least squares by hand: 1, 2, 2, 5 at 0, 1, 2, 3 give 1.2 - 0.3 x + 0.5 x². In units of 1 MB every error is below 10 MB.
        let four = |unit: u64| {
            let sample = |(size, bytes): (u64, u64)| SizeSample { size, bytes: Bytes(bytes * unit) };
            SizeModel::fit(&[(0, 1), (1, 2), (2, 2), (3, 5)].map(sample))
        };
        assert_eq!(four(1_000_000).unwrap().coefficients.map(f64::round), [1.2e6, -0.3e6, 0.5e6]);
        let predicted = Bytes(1_200_000_000);
        let wanted = InputAwareError::PoorFit { size: 0, found: Bytes(1_000_000_000), predicted };
        assert_eq!(four(1_000_000_000), Err(wanted));
    }

    #[test]
    fn fewer_sizes_give_a_line_or_a_constant() {
        let line = SizeModel::fit(&samples(|n| 7 * n + 100, &[10, 30, 10])).unwrap();
        assert_eq!(line.predict(100), Bytes(800));
        let constant = SizeModel::fit(&samples(|n| 7 * n, &[10, 10])).unwrap();
        assert_eq!(constant.predict(1000), Bytes(70));
        assert_eq!(SizeModel::fit(&[]), Err(InputAwareError::NoSamples));
        assert_eq!(line.predict(0), Bytes(100));
    }

    fn chosen(freed: &[u64], needed: u64) -> Vec<usize> {
        let freed: Vec<Bytes> = freed.iter().map(|bytes| Bytes(*bytes)).collect();
        choose_layers(&freed, Bytes(needed))
    }

    #[test]
    fn layers_are_chosen_as_by_hand() {
        assert!(chosen(&[10, 10, 10], 0).is_empty());
        // Equal layers are one bucket: the deepest is at its head, the smallest that suffices at its end.
        assert_eq!(chosen(&[10, 10, 10], 5), [0]);
        assert_eq!(chosen(&[10, 10, 10], 15), [0, 2]);
        assert_eq!(chosen(&[10, 10, 10], 99), [0, 1, 2]);
        // The order is 91, 100; 50; 19, 20. The last that suffices is taken, or the first.
        let freed = [100, 20, 50, 91, 19];
        assert_eq!(chosen(&freed, 45), [2]);
        assert_eq!(chosen(&freed, 20), [1]);
        assert_eq!(chosen(&freed, 110), [1, 3]);
        assert_eq!(chosen(&freed, 192), [0, 1, 3]);
    }

    #[test]
    fn sizes_are_planned_in_steps_under_the_budget() {
        let layer = SizeModel::fit(&samples(|n| 1000 * n, &[10, 20, 40])).unwrap();
        let whole = SizeModel::fit(&samples(|n| 4200 * n, &[10, 20, 40])).unwrap();
        let mut plan = InputAwarePlan::new(vec![layer; 4], whole, Bytes(100_000));
        assert_eq!(plan.layers(20), Ok(&[][..]));
        // 21 is planned as 25: 105000 bytes.
        assert_eq!(plan.layers(21), Ok(&[0][..]));
        assert_eq!(plan.layers(40), Ok(&[0, 3][..]));
        assert_eq!(plan.planned.keys().collect::<Vec<_>>(), [&20, &25, &40]);
        assert_eq!(
            plan.layers(1000),
            Err(InputAwareError::Budget { size: 1000, missing: Bytes(4_200_000 - 100_000 - 4_000_000) })
        );
    }
}
