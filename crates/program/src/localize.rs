//! Elements of a dim that are here, and the attributes of an operator on them.

use bessemer_mesh::{Dim, DimRange, even};
use bessemer_tensor::View;
use bessemer_tensor::op::{AttentionDropout, AttentionMask, AttentionShape, Op, VocabularyShard};
use std::ops::Range;

/// The elements of a dim that a rank has, in their order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Local(Vec<DimRange>);

impl Local {
    /// Elements of the whole dim, or of part `index` of `parts`.
    pub(crate) fn of(dim: &Dim, part: Option<(usize, usize)>) -> Local {
        Local(match part {
            Some((parts, index)) => dim.part(parts, index),
            None => dim.whole(),
        })
    }

    /// Part `index` of `parts` of all elements, as if there were no blocks.
    pub(crate) fn consecutive(dim: &Dim, (parts, index): (usize, usize)) -> Local {
        Local(vec![even(dim.len(), parts, index)])
    }

    pub(crate) fn len(&self) -> usize {
        self.0.iter().map(|s| s.len).sum()
    }

    /// The first element that is here, in the whole dim.
    pub(crate) fn start(&self) -> usize {
        self.0.first().map_or(0, |s| s.start)
    }

    /// Local range of elements `first .. first + len` of the whole dim: of those that are here.
    pub(crate) fn range(&self, first: usize, len: usize) -> Range<usize> {
        let before =
            |element: usize| self.0.iter().map(|s| element.clamp(s.start, s.end()) - s.start).sum::<usize>();
        before(first)..before(first + len)
    }
}

/// Part of an attention that a rank computes.
#[derive(Debug, Clone, Copy)]
struct AttentionPart {
    /// Number of its first query head.
    head: usize,
    /// Position of its first query.
    query: usize,
    /// Number of its first sequence, if it has whole ones.
    sequence: Option<usize>,
}

impl AttentionPart {
    /// Returns the part for the dim by which queries are sharded, and its first element here. `by_sequences`: rows are sharded in whole
    /// sequences.
    fn new(origin: Option<(usize, usize)>, whole: &AttentionShape, by_sequences: bool) -> AttentionPart {
        let all = AttentionPart { head: 0, query: 0, sequence: None };
        match origin {
            Some((0, row)) if by_sequences => AttentionPart { sequence: Some(row / whole.seq.max(1)), ..all },
            Some((0, query)) => AttentionPart { query, ..all },
            Some((_, first)) => AttentionPart { head: first / whole.head_dim, ..all },
            None => all,
        }
    }

    /// Sets the attributes of an attention with these queries and keys.
    fn of(
        self,
        (shape, mask, dropout): (&mut AttentionShape, &mut AttentionMask, &mut Option<AttentionDropout>),
        whole: &AttentionShape,
        (q, k): (&View, &View),
    ) {
        (shape.heads, shape.kv_heads) = (q.cols / whole.head_dim, k.cols / whole.head_dim);
        match self.sequence {
            Some(first) => {
                shape.batch = q.rows / whole.seq.max(1);
                // Weights of all heads of the sequences before.
                if let Some(d) = dropout {
                    let keys = whole.seq * whole.seq;
                    d.mask.first = d.mask.first.wrapping_add((first * d.heads * keys) as u64);
                }
            }
            None => shape.seq = q.rows / whole.batch.max(1),
        }
        mask.queries.first += self.query;
        mask.alibi.iter_mut().for_each(|alibi| alibi.first += self.head);
        dropout.iter_mut().for_each(|dropout| dropout.first += self.head);
    }
}

/// Number of the first token of an operator that counts tokens by sequence, and the operand that has them.
pub(crate) fn first_token(op: &mut Op) -> Option<(&mut usize, &'static str)> {
    match op {
        Op::BalanceLoss(o) => Some((&mut o.span.first, "probabilities")),
        Op::CountChoices(o) => Some((&mut o.span.first, "experts")),
        Op::RouteBackward(o) => Some((&mut o.span.first, "probabilities")),
        _ => None,
    }
}

/// Sets the attributes of an operator besides its views: heads, and where its part of the whole begins. `whole` is the
/// operator on the whole values; `origins` names, of each operand that is sharded, the dim and its first element.
pub(crate) fn localize(
    op: &mut Op,
    whole: &Op,
    origins: &[(&'static str, usize, usize)],
    by_sequences: bool,
) {
    let origin = |name: &str| origins.iter().find(|o| o.0 == name).map(|o| (o.1, o.2));
    match (op, whole) {
        (Op::Attention(o), Op::Attention(w)) => {
            let here = AttentionPart::new(origin("q"), &w.shape, by_sequences);
            here.of((&mut o.shape, &mut o.mask, &mut o.dropout), &w.shape, (&o.q, &o.k));
        }
        (Op::AttentionBackward(o), Op::AttentionBackward(w)) => {
            let here = AttentionPart::new(origin("q"), &w.shape, by_sequences);
            here.of((&mut o.shape, &mut o.mask, &mut o.dropout), &w.shape, (&o.q, &o.k));
        }
        (Op::Rope(o), Op::Rope(w)) => o.heads = o.x.cols * w.heads / w.x.cols,
        (Op::Dropout(o), Op::Dropout(w)) => {
            let before = match origin("x") {
                Some((0, first)) => first * w.global_cols,
                Some((_, first)) => first,
                None => 0,
            };
            o.mask.first = o.mask.first.wrapping_add(before as u64);
        }
        (Op::KeepChoices(o), Op::KeepChoices(w)) => {
            o.here.skip = w.here.skip + origin("kept").map_or(0, |(_, first)| first);
        }
        (Op::KeepInNode(o), Op::KeepInNode(w)) => {
            o.here.skip = w.here.skip + origin("out").map_or(0, |(_, first)| first);
        }
        (Op::Embedding(o), Op::Embedding(w)) => {
            o.tensor_shard = origin("table")
                .filter(|(dim, _)| *dim == 0)
                .map(|(_, first)| VocabularyShard { first, of: w.table.rows })
                .or(w.tensor_shard);
        }
        (Op::EmbeddingBackward(o), Op::EmbeddingBackward(w)) => {
            o.tensor_shard = origin("dtable")
                .filter(|(dim, _)| *dim == 0)
                .map(|(_, first)| VocabularyShard { first, of: w.dtable.rows })
                .or(w.tensor_shard);
        }
        _ => {}
    }
}
