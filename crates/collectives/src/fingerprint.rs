//! Fingerprints of values that several ranks should hold, and which ranks disagree.
//!
//! Data-parallel replicas hold the same bits after every update (docs/parallel.md). A 64-bit hash of what each rank holds finds
//! any difference, but for one in 2^64 by chance. Which rank is wrong follows from the others: with three or more holders the
//! majority is right, with two nobody can tell.

use std::collections::BTreeMap;
use xxhash_rust::xxh3::Xxh3;

/// A hash of values, of all of their bits (XXH3, 64 bits). It depends on the values and their order, not on how they are split over calls.
#[derive(Clone, Default)]
pub struct Fingerprint(Box<Xxh3>);

impl std::fmt::Debug for Fingerprint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Fingerprint({:016x})", self.value())
    }
}

impl Fingerprint {
    /// Adds values.
    pub fn push(&mut self, values: &[f32]) {
        self.0.update(bytemuck::cast_slice(values));
    }

    /// The hash of all values so far.
    pub fn value(&self) -> u64 {
        self.0.digest()
    }

    /// Forgets all values.
    pub fn reset(&mut self) {
        self.0.reset();
    }
}

/// The holders of one set of values that disagree with the others.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Disagreement {
    /// Ranks that may be wrong, ascending: those outside the majority; all holders if there is none.
    pub suspects: Vec<usize>,
    /// More than half of the holders agree, so that the others are wrong.
    pub majority: bool,
}

/// Compares what the holders of one set of values have; `None` if all agree. Each holder is (rank, hash).
pub fn disagreement(holders: &[(usize, u64)]) -> Option<Disagreement> {
    let mut groups: BTreeMap<u64, Vec<usize>> = BTreeMap::new();
    for (rank, hash) in holders {
        groups.entry(*hash).or_default().push(*rank);
    }
    if groups.len() < 2 {
        return None;
    }
    let right = groups.iter().find(|(_, ranks)| 2 * ranks.len() > holders.len()).map(|(hash, _)| *hash);
    let wrong = holders.iter().filter(|(_, hash)| Some(*hash) != right).map(|(rank, _)| *rank);
    let mut suspects: Vec<usize> = wrong.collect();
    suspects.sort_unstable();
    suspects.dedup();
    Some(Disagreement { suspects, majority: right.is_some() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fingerprint_is_that_of_the_values_however_they_come_and_changes_with_every_bit() {
        let values: Vec<f32> = (0..1000).map(|i| (i as f32).sin()).collect();
        let of = |parts: &[&[f32]]| {
            let mut hash = Fingerprint::default();
            parts.iter().for_each(|part| hash.push(part));
            hash.value()
        };
        let whole = of(&[&values]);
        assert_eq!(whole, of(&[&values[..1], &values[1..700], &[], &values[700..]]));
        for bit in 0..32 {
            let mut other = values.clone();
            other[517] = f32::from_bits(other[517].to_bits() ^ 1 << bit);
            assert_ne!(whole, of(&[&other]), "bit {bit}");
        }
        assert_ne!(of(&[&[0.0]]), of(&[&[-0.0]]));
        let mut again = Fingerprint::default();
        again.push(&[1.0]);
        again.reset();
        again.push(&values);
        assert_eq!(again.value(), whole);
    }

    #[test]
    fn the_majority_names_who_is_wrong() {
        let of = |hashes: &[u64]| {
            let holders: Vec<_> = hashes.iter().enumerate().map(|(rank, hash)| (10 + rank, *hash)).collect();
            disagreement(&holders).map(|d| (d.suspects, d.majority))
        };
        assert_eq!(of(&[]), None);
        assert_eq!(of(&[5]), None);
        assert_eq!(of(&[5, 5, 5]), None);
        assert_eq!(of(&[5, 6]), Some((vec![10, 11], false)));
        assert_eq!(of(&[5, 6, 5]), Some((vec![11], true)));
        assert_eq!(of(&[1, 1, 2, 2]), Some((vec![10, 11, 12, 13], false)));
        assert_eq!(of(&[1, 2, 1, 3, 1]), Some((vec![11, 13], true)));
        assert_eq!(of(&[1, 2, 3]), Some((vec![10, 11, 12], false)));
    }
}
