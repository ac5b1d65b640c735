//! A rank of one axis, and which rows of a unit's values it has.

use bessemer_mesh::{Axis, ContextMethod, DimRange, PositionOrder};
use bessemer_tensor::View;
use bessemer_tensor::op::{AttentionMask, Dropout, DropoutMask, Op};

/// A rank of one axis, and what the axis does besides sharding parameters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rank {
    /// The axis.
    pub axis: Axis,
    /// Ranks along it.
    pub degree: usize,
    /// Position of this rank.
    pub index: usize,
    /// Whether the rows of the residual stream are sharded.
    pub sequence: bool,
    /// Which rows, if so. Inputs of which every rank has all stand in the order of the ranks then.
    pub order: PositionOrder,
    /// What ranks of the context axis exchange around attention.
    pub method: ContextMethod,
    /// Whether each rank keeps some rows of the residual stream between the passes of a micro-batch, although all of them are
    /// on every rank in a pass ([`crate::partition_activations()`]).
    pub partition: bool,
}

impl Rank {
    /// The only rank.
    pub fn alone() -> Rank {
        Rank {
            axis: Axis::Tensor,
            degree: 1,
            index: 0,
            sequence: false,
            order: PositionOrder::Consecutive,
            partition: false,
            method: ContextMethod::default(),
        }
    }

    /// The operator as launches, where its rows are several stretches of the whole. `whole`: the operator on the whole values.
    pub(crate) fn stretches(
        &self,
        mut op: Op,
        whole: &Op,
        origins: &[(&'static str, usize, usize)],
    ) -> Vec<Op> {
        let by_rows = origins.iter().any(|(_, dim, _)| *dim == 0);
        if self.order == PositionOrder::Consecutive || !by_rows {
            return vec![op];
        }
        match (&mut op, whole) {
            (Op::Attention(o), Op::Attention(w)) => self.two_stretches(&mut o.mask, w.shape.seq),
            (Op::AttentionBackward(o), Op::AttentionBackward(w)) => {
                self.two_stretches(&mut o.mask, w.shape.seq);
            }
            // Elements are numbered by row.
            (Op::Dropout(o), Op::Dropout(w)) => {
                let mut at = 0;
                let stretches = self.order.stretches(w.x.rows, self.degree, self.index);
                let part = |stretch: DimRange| {
                    let first = w.mask.first.wrapping_add((stretch.start * w.global_cols) as u64);
                    at += stretch.len;
                    let rows = |view: View| view.rows(at - stretch.len, stretch.len);
                    let mask = DropoutMask { first, ..o.mask };
                    Op::from(Dropout { x: rows(o.x), out: rows(o.out), mask, ..*o })
                };
                return stretches.map(part).collect();
            }
            _ => {}
        }
        vec![op]
    }

    /// Queries of a sequence of `seq` that are two stretches of it.
    fn two_stretches(&self, mask: &mut AttentionMask, seq: usize) {
        let mut starts = self.order.stretches(seq, self.degree, self.index).map(|s| s.start);
        mask.queries.first = starts.next().unwrap_or(0);
        mask.queries.later = starts.next();
    }
}
