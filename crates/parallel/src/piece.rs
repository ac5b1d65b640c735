//! Pieces of a flat unit, each one collective.
//!
//! A unit is cut into pieces of about the bucket's size, so that staging memory does not depend on the model. A piece takes
//! the same stretch of every shard rank's part; in the staging buffer they are contiguous.

use crate::flat::FlatUnit;
use bessemer_collectives::Parts;
use bessemer_program::piece_width;
use std::ops::Range;

/// Part of a unit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Piece {
    /// Name in messages and in the flight recorder.
    pub(crate) name: String,
    /// Indexed by shard rank: elements of the unit.
    pub(crate) ranges: Vec<Range<usize>>,
    /// Indexed by shard rank: elements of the staging buffer.
    pub(crate) parts: Parts,
}

/// The pieces of a unit, each of at most `bucket` elements (or one of each part).
pub(crate) fn pieces(unit: &FlatUnit, parts: &Parts, bucket: usize) -> Vec<Piece> {
    let ranks = parts.count();
    let width = piece_width(bucket, ranks);
    let longest = (0..ranks).map(|r| parts.range(r).len()).max().unwrap_or(0);
    let piece = |number: usize| {
        let cut = |r: usize| {
            let part = parts.range(r);
            let start = (part.start + number * width).min(part.end);
            start..(start + width).min(part.end)
        };
        let ranges: Vec<_> = (0..ranks).map(cut).collect();
        let name =
            if longest <= width { unit.name.clone() } else { format!("{}, piece {number}", unit.name) };
        Piece { name, parts: Parts::of(ranges.iter().map(ExactSizeIterator::len)), ranges }
    };
    (0..longest.div_ceil(width)).map(piece).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_cover_every_element_once() {
        for (len, ranks, bucket) in
            [(1, 1, 10), (100, 1, 30), (103, 4, 20), (2, 4, 1), (64, 4, 64), (0, 2, 8)]
        {
            let unit = FlatUnit::new("u".into(), None, (0, ranks), &[(0, len)], None);
            let all = Parts::even(len, ranks);
            let mut seen = vec![0; len];
            for piece in pieces(&unit, &all, bucket) {
                assert!(piece.parts.len() <= bucket.max(ranks), "{len} {ranks} {bucket}");
                for (r, range) in piece.ranges.iter().enumerate() {
                    assert_eq!(piece.parts.range(r).len(), range.len());
                    assert!(range.is_empty() || all.range(r).start <= range.start);
                    assert!(range.is_empty() || range.end <= all.range(r).end);
                    range.clone().for_each(|i| seen[i] += 1);
                }
            }
            assert!(seen.iter().all(|&n| n == 1), "{len} {ranks} {bucket}: {seen:?}");
        }
    }
}
