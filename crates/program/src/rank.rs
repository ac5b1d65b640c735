//! A rank of one axis, and which rows of a unit's values it has.

use bessemer_mesh::{Axis, BlockSchedule, ContextMethod, ContextSharing, DimRange, PositionOrder};
use bessemer_tensor::View;
use bessemer_tensor::op::{Dropout, DropoutMask, Op, Positions, TokenRows};

/// Way in which an axis shards the computation of the layers.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, Hash)]
pub enum AxisRole {
    /// Along the loops of the parameters: heads, hidden units, rows of the vocabulary. The residual stream is whole, or its rows are
    /// sharded ([`Rank::sequence`]).
    #[default]
    Line,
    /// Along sequences: all rows are sharded, in whole sequences. Parameters that are sharded are gathered for every use, and their
    /// gradients reduce-scattered.
    Sequences,
    /// Along columns: those of the residual stream, and the outputs of every product. A product gathers the columns of its input.
    Columns,
    /// Along columns of the residual stream, and along sequences in between: the first product of a block is a term of a sum that is
    /// reduce-scattered to rows, the second gathers rows.
    Turned,
}

impl AxisRole {
    /// Whether rows are sharded in whole sequences.
    pub(crate) fn by_sequences(self) -> bool {
        matches!(self, AxisRole::Sequences | AxisRole::Turned)
    }

    /// Whether the columns of the residual stream are sharded.
    pub fn shards_columns(self) -> bool {
        matches!(self, AxisRole::Columns | AxisRole::Turned)
    }
}

/// One of several equal parts of rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RowsPart {
    pub(crate) parts: usize,
    pub(crate) index: usize,
}

/// A rank of one axis, and the role of the axis besides sharding parameters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rank {
    /// The axis.
    pub axis: Axis,
    /// Ranks along it.
    pub degree: usize,
    /// Position of this rank.
    pub index: usize,
    /// Way in which it shards the computation of the layers.
    pub role: AxisRole,
    /// Whether the rows of the residual stream are sharded.
    pub sequence: bool,
    /// Order of the sharded rows, if they are. Inputs that every rank has whole are then in the order of the ranks.
    pub order: PositionOrder,
    /// Requested communication of the ranks of the context axis around attention.
    pub context: ContextSharing,
    /// Whether each rank keeps some rows of the residual stream between the passes of a micro-batch, although all of them are
    /// on every rank in a pass ([`crate::partition_activations()`]).
    pub partition: bool,
    /// Whether its ranks exchange rows of experts with each other ([`crate::experts()`]), each having whole experts. An expert then computes
    /// the rows of all of them.
    pub exchanges_rows: bool,
}

impl Rank {
    /// The only rank.
    pub fn alone() -> Rank {
        Rank {
            axis: Axis::Tensor,
            degree: 1,
            index: 0,
            role: AxisRole::Line,
            sequence: false,
            order: PositionOrder::Consecutive,
            partition: false,
            exchanges_rows: false,
            context: ContextSharing::default(),
        }
    }

    /// Whether this axis divides rows before the axes that are rewritten earlier: each of those shards the rows that a rank of
    /// this axis has.
    pub(crate) fn divides_rows_first(&self) -> bool {
        Axis::SEQUENCES.contains(&self.axis)
    }

    /// The operator as launches, where its rows are several stretches of the whole. `whole`: the operator on the whole values;
    /// `inner`: the part of its rows that axes have left which divide them after this one.
    pub(crate) fn stretches(
        &self,
        mut op: Op,
        whole: &Op,
        origins: &[(&'static str, usize, usize)],
        inner: RowsPart,
    ) -> Vec<Op> {
        let by_rows = origins.iter().any(|(_, dim, _)| *dim == 0);
        if !by_rows || (self.order == PositionOrder::Consecutive && inner.parts == 1) {
            return vec![op];
        }
        match (&mut op, whole) {
            (Op::Attention(o), Op::Attention(w)) => o.mask.queries = self.positions(w.shape.seq, self.index),
            (Op::AttentionBackward(o), Op::AttentionBackward(w)) => {
                o.mask.queries = self.positions(w.shape.seq, self.index);
            }
            (Op::KeepChoices(o), Op::KeepChoices(w)) => {
                o.here = self.token_rows(w.experts.rows, inner.index * o.kept.rows);
            }
            (Op::KeepInNode(o), Op::KeepInNode(w)) => {
                o.here = self.token_rows(w.logits.rows, inner.index * o.out.rows);
            }
            // Elements are numbered by row. Every n-th row is a row of a matrix with n times as many columns.
            (Op::Dropout(o), Op::Dropout(w)) => {
                let first_of = |row: usize| {
                    let before = inner.index * w.x.rows * w.global_cols;
                    let whole = w.mask.first.wrapping_sub(before as u64);
                    whole.wrapping_add((row * w.global_cols) as u64)
                };
                // Counters of the rows of this rank's positions.
                let mine = DimRange { start: inner.index * o.x.rows, len: o.x.rows };
                if self.order == PositionOrder::Striped {
                    o.mask.first = first_of(self.index + mine.start * self.degree);
                    o.global_cols = w.global_cols * self.degree;
                    return vec![op];
                }
                let mut at = 0;
                let part = |stretch: DimRange| {
                    at += stretch.len;
                    let here = DimRange { start: at - stretch.len, len: stretch.len }.common(mine);
                    let first = first_of(stretch.start + here.start - (at - stretch.len));
                    let rows = |view: View| view.rows(here.start - mine.start, here.len);
                    let mask = DropoutMask { first, ..o.mask };
                    (here.len > 0).then(|| Op::from(Dropout { x: rows(o.x), out: rows(o.out), mask, ..*o }))
                };
                let all = self.order.stretches(w.x.rows * inner.parts, self.degree, self.index);
                return all.filter_map(part).collect();
            }
            _ => {}
        }
        vec![op]
    }

    /// Rows of this rank's part of `tokens` tokens, `skip` of them left out.
    fn token_rows(&self, tokens: usize, skip: usize) -> TokenRows {
        TokenRows { positions: self.positions(tokens, self.index), count: tokens / self.degree, skip }
    }

    /// Positions that rank `rank` of the axis has of a sequence of `seq`.
    pub(crate) fn positions(&self, seq: usize, rank: usize) -> Positions {
        let (mut stretches, stride) = match self.order {
            PositionOrder::Striped => {
                (self.order.stretches(seq, self.degree, rank).take(1).collect(), self.degree)
            }
            order => (order.stretches(seq, self.degree, rank).collect::<Vec<_>>(), 1),
        };
        let later = if stretches.len() > 1 { stretches.pop() } else { None };
        let first = stretches.first().map_or(0, |s| s.start);
        Positions { first, later: later.map(|s| s.start), stride }
    }

    /// The blocks in which ranks compute the attention to a sequence of `seq`, by a method that has blocks.
    pub(crate) fn schedule(&self, seq: usize, window: Option<usize>) -> BlockSchedule {
        let (order, ranks) = (self.order, self.degree);
        let sees = |query, key| order.sees(seq, ranks, window, query, key);
        match self.context.method {
            ContextMethod::LightSeq => BlockSchedule::lightseq(ranks, sees),
            _ => BlockSchedule::ring(ranks, sees),
        }
    }
}
