//! Which keys a query sees, with operands at hand.

use crate::operand::Indices;
use bessemer_tensor::TensorError;
use bessemer_tensor::op::{Alibi, AttentionCached, AttentionMask, AttentionShape};

/// What a query sees: the keys from [`Sight::first`] to itself.
#[derive(Clone, Copy)]
pub(crate) struct Sight<'a> {
    /// Query positions of a sequence.
    seq: usize,
    /// Keys before the first query.
    pub(crate) past: usize,
    /// Keys before the first query of the second half, if the two are apart.
    later: Option<usize>,
    /// Keys that a query sees at most.
    window: usize,
    pub(crate) alibi: Option<Alibi>,
    /// For each row of queries the first position of its document.
    documents: Option<&'a [u32]>,
}

impl<'a> Sight<'a> {
    pub(crate) fn new(s: &AttentionShape, mask: &AttentionMask, documents: Option<Indices<'a>>) -> Sight<'a> {
        Sight {
            seq: s.seq,
            past: mask.past,
            later: mask.later,
            window: mask.window.unwrap_or(usize::MAX),
            alibi: mask.alibi,
            documents: documents.map(|d| d.0),
        }
    }

    pub(crate) fn cached(op: &AttentionCached) -> Sight<'static> {
        Sight {
            seq: op.shape.seq,
            past: op.past,
            later: None,
            window: op.window.unwrap_or(usize::MAX),
            alibi: op.alibi,
            documents: None,
        }
    }

    /// Position of query `t`, which is also the last key that it sees.
    pub(crate) fn position(&self, t: usize) -> usize {
        match self.later {
            Some(later) if t >= self.seq / 2 => later + t - self.seq / 2,
            _ => self.past + t,
        }
    }

    /// Whether the positions of queries `t .. t + count` follow each other.
    pub(crate) fn is_stretch(&self, t: usize, count: usize) -> bool {
        self.later.is_none() || t + count <= self.seq / 2 || t >= self.seq / 2
    }

    /// The first key that query `t` of sequence `b` sees. Does not decrease with t.
    pub(crate) fn first(&self, b: usize, t: usize) -> usize {
        let first = (self.position(t) + 1).saturating_sub(self.window);
        match self.documents {
            Some(starts) => first.max(starts[b * self.seq + t] as usize),
            None => first,
        }
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
                    wanted: format!("{t} (a document starts) or {before} (it goes on) at position {t}"),
                    found: format!("{start} in entry {n}"),
                });
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sight(window: usize, documents: Option<&[u32]>) -> Sight<'_> {
        Sight { seq: 4, past: 0, later: None, window, alibi: None, documents }
    }

    #[test]
    fn windows_and_documents_meet() {
        let firsts = |s: Sight<'_>, b| (0..4).map(|t| s.first(b, t)).collect::<Vec<_>>();
        assert_eq!(firsts(sight(2, None), 0), [0, 0, 1, 2]);
        let starts = [0, 0, 0, 0, 0, 1, 1, 3];
        assert_eq!(firsts(sight(usize::MAX, Some(&starts)), 1), [0, 1, 1, 3]);
        assert_eq!(firsts(sight(2, Some(&starts)), 1), [0, 1, 1, 3]);
        assert_eq!(firsts(Sight { past: 7, ..sight(3, None) }, 0), [5, 6, 7, 8]);
        let halves = Sight { past: 2, later: Some(9), ..sight(2, None) };
        assert_eq!(firsts(halves, 0), [1, 2, 8, 9]);
        assert!(halves.is_stretch(0, 2) && halves.is_stretch(2, 2) && !halves.is_stretch(1, 2));
    }

    #[test]
    fn starts_must_be_their_own_position_or_go_on() {
        let check = |starts: [u32; 8]| sight(9, Some(&starts)).check("attention");
        check([0, 0, 2, 2, 0, 1, 2, 3]).unwrap();
        let e = check([0, 0, 1, 1, 0, 0, 0, 0]).unwrap_err().to_string();
        assert!(
            e.contains("2 (a document starts) or 0 (it goes on) at position 2, found 1 in entry 2"),
            "{e}"
        );
        assert!(check([0, 0, 0, 0, 3, 3, 3, 3]).is_err(), "the first position starts a document");
        assert!(check([0, 1, 2, 0, 0, 0, 0, 0]).is_err(), "no way back");
    }
}
