//! Which elements of a dim are here, and what an operator's own numbers are for them.

use bessemer_mesh::{Dim, DimRange};
use bessemer_tensor::op::{Op, VocabularyShard};
use std::ops::Range;

/// The elements of a dim that a rank has, in their order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Local(Vec<DimRange>);

impl Local {
    /// Of all elements, or of part `index` of `parts`.
    pub(crate) fn of(dim: &Dim, part: Option<(usize, usize)>) -> Local {
        Local(match part {
            Some((parts, index)) => dim.part(parts, index),
            None => dim.whole(),
        })
    }

    pub(crate) fn len(&self) -> usize {
        self.0.iter().map(|s| s.len).sum()
    }

    /// The first element that is here, in the whole dim.
    pub(crate) fn start(&self) -> usize {
        self.0.first().map_or(0, |s| s.start)
    }

    /// Where elements `first .. first + len` of the whole dim are here: those of them that are.
    pub(crate) fn range(&self, first: usize, len: usize) -> Range<usize> {
        let before =
            |element: usize| self.0.iter().map(|s| element.clamp(s.start, s.end()) - s.start).sum::<usize>();
        before(first)..before(first + len)
    }
}

/// Sets what an operator says about itself besides its views: heads, and where its part of the whole begins. `whole` is the
/// operator on the whole values; `origins` names, of each operand that is sharded, the dim and its first element.
pub(crate) fn localize(op: &mut Op, whole: &Op, origins: &[(&'static str, usize, usize)]) {
    let origin = |name: &str| origins.iter().find(|o| o.0 == name).map(|o| (o.1, o.2));
    match (op, whole) {
        (Op::Attention(o), Op::Attention(w)) => {
            let first = origin("q").map_or(0, |(_, first)| first) / w.shape.head_dim;
            (o.shape.heads, o.shape.kv_heads) = (o.q.cols / w.shape.head_dim, o.k.cols / w.shape.head_dim);
            o.mask.alibi.iter_mut().for_each(|alibi| alibi.first += first);
            o.dropout.iter_mut().for_each(|dropout| dropout.first += first);
        }
        (Op::AttentionBackward(o), Op::AttentionBackward(w)) => {
            let first = origin("q").map_or(0, |(_, first)| first) / w.shape.head_dim;
            (o.shape.heads, o.shape.kv_heads) = (o.q.cols / w.shape.head_dim, o.k.cols / w.shape.head_dim);
            o.mask.alibi.iter_mut().for_each(|alibi| alibi.first += first);
            o.dropout.iter_mut().for_each(|dropout| dropout.first += first);
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
        (Op::Embedding(o), Op::Embedding(w)) => {
            o.tensor_shard = origin("table")
                .map(|(_, first)| VocabularyShard { first, of: w.table.rows })
                .or(w.tensor_shard);
        }
        (Op::EmbeddingBackward(o), Op::EmbeddingBackward(w)) => {
            o.tensor_shard = origin("dtable")
                .map(|(_, first)| VocabularyShard { first, of: w.dtable.rows })
                .or(w.tensor_shard);
        }
        _ => {}
    }
}
