//! Keys that a query sees, with operands at hand.
//!
//! Keys are numbered in memory order. Both queries and keys are stored in the order of their positions, so the keys that a query sees
//! are a range of these numbers, and neither end of it decreases from one query to the next.

use crate::operand::Indices;
use bessemer_tensor::TensorError;
use bessemer_tensor::op::{Alibi, AttentionCached, AttentionMask, AttentionShape, Positions};
use std::ops::Range;

/// Keys that a query sees: from [`Sight::first`] to before [`Sight::end`].
#[derive(Debug, Clone, Copy)]
pub(crate) struct Sight<'a> {
    /// Queries of a sequence.
    seq: usize,
    queries: Positions,
    /// Keys of a sequence that are here.
    pub(crate) keys: usize,
    key_positions: Positions,
    /// Positions of a whole sequence.
    pub(crate) all: usize,
    /// Keys that a query sees at most.
    window: usize,
    pub(crate) alibi: Option<Alibi>,
    /// For each row of queries the first position of its document.
    documents: Option<&'a [u32]>,
}

impl<'a> Sight<'a> {
    /// `rows`: those of the matrix of keys.
    pub(crate) fn new(
        s: &AttentionShape,
        mask: &AttentionMask,
        rows: usize,
        documents: Option<Indices<'a>>,
    ) -> Sight<'a> {
        let keys = s.keys(rows);
        Sight {
            seq: s.seq,
            queries: mask.queries,
            keys,
            key_positions: mask.keys.map_or(Positions::default(), |some| some.positions),
            all: mask.keys.map_or(keys, |some| some.seq),
            window: mask.window.unwrap_or(usize::MAX),
            alibi: mask.alibi,
            documents: documents.map(|d| d.0),
        }
    }

    pub(crate) fn cached(op: &AttentionCached) -> Sight<'static> {
        Sight {
            seq: op.shape.seq,
            queries: op.past.into(),
            keys: op.capacity,
            key_positions: Positions::default(),
            all: op.capacity,
            window: op.window.unwrap_or(usize::MAX),
            alibi: op.alibi,
            documents: None,
        }
    }

    /// Position of query `t`.
    pub(crate) fn position(&self, t: usize) -> usize {
        self.queries.at(t, self.seq)
    }

    /// Position of key `j`.
    pub(crate) fn key_position(&self, j: usize) -> usize {
        self.key_positions.at(j, self.keys)
    }

    /// Number of keys, from `j` on, whose positions are consecutive.
    pub(crate) fn run(&self, j: usize) -> usize {
        self.key_positions.run(j, self.keys)
    }

    /// Whether the positions of queries `t .. t + count` are consecutive.
    pub(crate) fn is_stretch(&self, t: usize, count: usize) -> bool {
        self.queries.run(t, self.seq) >= count
    }

    /// The position of the first key, if those of all keys follow each other.
    pub(crate) fn first_of_stretch(&self) -> Option<usize> {
        (self.run(0) >= self.keys).then_some(self.key_positions.first)
    }

    /// The first key that query `t` of sequence `b` sees. Does not decrease with t.
    pub(crate) fn first(&self, b: usize, t: usize) -> usize {
        let first = (self.position(t) + 1).saturating_sub(self.window);
        self.key_positions.before(self.starts(b, t, 1).map_or(first, |s| first.max(s[0] as usize)), self.keys)
    }

    /// One past the last key that query `t` sees. Does not decrease with t.
    pub(crate) fn end(&self, t: usize) -> usize {
        self.key_positions.before(self.position(t) + 1, self.keys)
    }

    /// Queries of sequence `b` that may see one of the keys; all others see none of them.
    pub(crate) fn queries(&self, b: usize, keys: &Range<usize>) -> Range<usize> {
        let start = partition_point(self.seq, |t| self.end(t) <= keys.start);
        start..partition_point(self.seq, |t| self.first(b, t) < keys.end).max(start)
    }

    /// Keys that a query sees at most.
    pub(crate) fn window(&self) -> usize {
        self.window
    }

    /// First positions of the documents of queries `t .. t + count`, if there are documents.
    pub(crate) fn starts(&self, b: usize, t: usize, count: usize) -> Option<&'a [u32]> {
        self.documents.map(|starts| &starts[b * self.seq + t..][..count])
    }

    /// Slope of head `h`, 0 without linear biases.
    pub(crate) fn slope(&self, h: usize) -> f32 {
        self.alibi.map_or(0.0, |a| a.slope(h))
    }

    /// Errors at the first document start that is neither its own position nor the start before it.
    pub(crate) fn check(&self, op: &'static str) -> Result<(), TensorError> {
        let Some(starts) = self.documents else { return Ok(()) };
        for (n, &start) in starts.iter().enumerate() {
            let (t, first) = (self.position(n % self.seq), n % self.seq == 0);
            // The entry before the first query of a stretch is not at hand.
            let apart = first || !self.is_stretch(n % self.seq - 1, 2);
            let before = if apart { start.min(t as u32) } else { starts[n - 1] };
            if start as usize != t && (start != before || t == 0) {
                return Err(TensorError::Shape {
                    op,
                    operand: "documents",
                    wanted: format!("{t} (a document starts) or {before} (it continues) at position {t}"),
                    found: format!("{start} in entry {n}"),
                });
            }
        }
        Ok(())
    }
}

/// Returns the first number below `len` that does not fulfil `is_before`, or `len`.
fn partition_point(len: usize, is_before: impl Fn(usize) -> bool) -> usize {
    let (mut low, mut high) = (0, len);
    while low < high {
        let middle = low.midpoint(high);
        if is_before(middle) { low = middle + 1 } else { high = middle }
    }
    low
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sight(window: usize, documents: Option<&[u32]>) -> Sight<'_> {
        let (queries, key_positions) = (Positions::default(), Positions::default());
        Sight { seq: 4, queries, keys: 20, key_positions, all: 20, window, alibi: None, documents }
    }

    #[test]
    fn windows_and_documents_meet() {
        let firsts = |s: Sight<'_>, b| (0..4).map(|t| s.first(b, t)).collect::<Vec<_>>();
        assert_eq!(firsts(sight(2, None), 0), [0, 0, 1, 2]);
        let starts = [0, 0, 0, 0, 0, 1, 1, 3];
        assert_eq!(firsts(sight(usize::MAX, Some(&starts)), 1), [0, 1, 1, 3]);
        assert_eq!(firsts(sight(2, Some(&starts)), 1), [0, 1, 1, 3]);
        assert_eq!(firsts(Sight { queries: 7.into(), ..sight(3, None) }, 0), [5, 6, 7, 8]);
        let queries = Positions { first: 2, later: Some(9), stride: 1 };
        let halves = Sight { queries, ..sight(2, None) };
        assert_eq!(firsts(halves, 0), [1, 2, 8, 9]);
        // Queries 2, 3 and 9, 10 see none, one and all of keys 3, 5, 7, 9; with the window none, one, one and one.
        let some = Sight { keys: 4, key_positions: Positions { first: 3, later: None, stride: 2 }, ..halves };
        assert_eq!((0..4).map(|t| some.end(t)).collect::<Vec<_>>(), [0, 1, 4, 4]);
        assert_eq!(firsts(some, 0), [0, 0, 3, 3]);
        assert!(halves.is_stretch(0, 2) && halves.is_stretch(2, 2) && !halves.is_stretch(1, 2));
    }

    #[test]
    fn queries_of_a_range_of_keys_are_those_that_see_one_of_them() {
        let starts = [0, 0, 0, 0, 0, 1, 1, 3];
        let later = Positions { first: 2, later: Some(9), stride: 1 };
        let some = Positions { first: 3, later: None, stride: 2 };
        for (window, documents, queries, key_positions) in [
            (usize::MAX, None, Positions::default(), Positions::default()),
            (2, None, Positions::default(), Positions::default()),
            (usize::MAX, Some(&starts[..]), Positions::default(), Positions::default()),
            (2, Some(&starts[..]), Positions::default(), Positions::default()),
            (3, None, 7.into(), Positions::default()),
            (9, None, later, some),
            (1, None, later, some),
        ] {
            let sight = Sight { queries, key_positions, keys: 6, ..sight(window, documents) };
            for b in 0..documents.map_or(1, |_| 2) {
                for (start, end) in (0..6).flat_map(|start| (start + 1..=6).map(move |end| (start, end))) {
                    let range = sight.queries(b, &(start..end));
                    for t in 0..4 {
                        let (first, last) = (sight.first(b, t).max(start), sight.end(t).min(end));
                        assert!(range.contains(&t) || first >= last, "{sight:?} {start}..{end} {t}");
                        assert!(!range.contains(&t) || sight.end(t) > start && sight.first(b, t) < end);
                    }
                }
            }
        }
    }

    #[test]
    fn starts_must_be_their_own_position_or_go_on() {
        let check = |starts: [u32; 8]| sight(9, Some(&starts)).check("attention");
        check([0, 0, 2, 2, 0, 1, 2, 3]).unwrap();
        let e = check([0, 0, 1, 1, 0, 0, 0, 0]).unwrap_err().to_string();
        assert!(
            e.contains("2 (a document starts) or 0 (it continues) at position 2, found 1 in entry 2"),
            "{e}"
        );
        assert!(check([0, 0, 0, 0, 3, 3, 3, 3]).is_err(), "the first position starts a document");
        assert!(check([0, 1, 2, 0, 0, 0, 0, 0]).is_err(), "no way back");
    }
}
