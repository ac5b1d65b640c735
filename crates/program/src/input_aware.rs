//! Input-aware recomputation: the recomputing layers are planned for each input size, under a memory budget (Liao et al. 2022,
//! "Mimose: An Input-Aware Checkpointing Planner for Efficient Training on GPU").
//!
//! Mimose measures the bytes of each layer at some sizes while it trains, and fits a quadratic in the size to them. The bytes of a unit
//! program are exact at every size ([`crate::plan_memory`]), so nothing is fitted here: the caller has the bytes that each layer
//! frees when it recomputes, and [`choose_layers`] is the greedy choice of the paper.

use bessemer_units::Bytes;

/// Layers of one bucket take at least this share of the bucket's largest.
const BUCKET: f64 = 0.9;

/// Layers, by increasing number, whose recomputation frees at least `needed` bytes; `freed` has for each layer the bytes that its
/// recomputation frees. All of them if even they do not free so much.
///
/// Layers are sorted into buckets of nearly equal bytes, the largest first, and within a bucket deeper layers first. Of these the last
/// that frees all that is still needed is taken; if none does, the first, and the search continues.
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

#[cfg(test)]
mod tests {
    use super::*;

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
}
