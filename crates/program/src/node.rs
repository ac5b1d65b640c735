//! Nodes: the entries of a list.

use bessemer_mesh::{Axis, Block, DimRange, Messages, PositionOrder, even};
use bessemer_tensor::View;
use bessemer_tensor::op::{Access, Op};
use std::ops::Range;

/// Source of random numbers: [`bessemer_tensor::rng::RngKey::new`] of the run's seed, the step and `place`, counted
/// from the step's first sequence.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Random {
    /// Name of the place: "layers.3.mlp.down.dropout".
    pub place: String,
    /// Elements of the masked tensor for each sequence.
    pub per_sequence: u64,
}

/// A value as one node finds it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Version {
    /// Number of the value.
    pub value: usize,
    /// Number of preceding nodes of the list that have written it.
    pub writes: u32,
}

/// Gradients that one pass replaces or adds to together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum GradientPart {
    /// Gradients of the layers' matrices and their biases: the weight part of a split backward pass.
    Matrices,
    /// All others: the input part.
    Others,
}

/// An operator that adds to a gradient where the launch's own replaces it.
#[derive(Debug, Clone, PartialEq)]
pub struct AddingForm {
    /// Part of the gradients that it writes.
    pub part: GradientPart,
    /// The operator.
    pub op: Box<Op>,
}

/// An operator.
#[derive(Debug, Clone, PartialEq)]
pub struct Launch {
    /// The operator, on views of virtual buffers. A mask's `first` is the begin of this rank's part within a sequence batch.
    pub op: Op,
    /// Runs only in the pass that begins the gradients of an update.
    pub first_only: bool,
    /// The form of the operator in passes that add to the gradients in memory. None until the program is sealed, and for operators
    /// that write no gradient.
    pub adding: Option<AddingForm>,
    /// The version of each value that it touches, as [`Node::touches`] lists them. Empty until the program is sealed.
    pub versions: Vec<Version>,
}

/// Kind of a collective.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum CollectiveKind {
    /// Every rank has the sum of all ranks' values: `src` and `dst` are one view.
    AllReduce,
    /// Every rank has its rows, or columns, of the sum of all ranks' values: `src` all of them, `dst` this rank's.
    ReduceScatter,
    /// Every rank has all ranks' rows, or columns: `src` this rank's, `dst` all.
    AllGather,
    /// Every rank has all rows of its columns, where it had its rows of all columns; or the other way round. `src` and `dst`:
    /// the values before and after.
    AllToAll,
    /// Some ranks send one other rank some values each: a partial permutation ([`Collective::messages`]). `src`: values that this rank sends,
    /// `dst`: values that it receives; the side that does not exist has no rows and names the value of the other one. Ranks that do neither have
    /// no such node. A send does not wait, so in one order on all ranks no permutation ever waits for a later one.
    Permute,
}

impl CollectiveKind {
    /// Whether parts of a dim become the whole dim, or the other way round.
    pub(crate) fn moves_dim(self) -> bool {
        matches!(self, CollectiveKind::AllGather | CollectiveKind::ReduceScatter)
    }

    /// Name in printed programs.
    pub fn name(self) -> &'static str {
        match self {
            CollectiveKind::AllReduce => "all_reduce",
            CollectiveKind::ReduceScatter => "reduce_scatter",
            CollectiveKind::AllGather => "all_gather",
            CollectiveKind::AllToAll => "all_to_all",
            CollectiveKind::Permute => "permute",
        }
    }
}

/// Columns of one block that a rank has in an all-to-all.
#[derive(Debug, Clone, Copy)]
struct BlockColumns {
    /// Place among all columns.
    whole: DimRange,
    /// Place among the columns of the rank.
    local: DimRange,
}

/// One of the pieces of an exchange of rows of tokens for experts (He et al. 2022, FasterMoE, smart schedule). The ranks are in even blocks of
/// neighbours. In piece i the ranks of block b send to those of block b + i and receive from those of block b - i, counted around; what goes
/// back takes the same ways. Rows of one piece follow each other at both ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ExchangePiece {
    /// Number of the piece, from 0: the distance of the blocks.
    pub number: usize,
    /// Blocks, and pieces: 1 to the number of ranks.
    pub of: usize,
}

impl ExchangePiece {
    /// The exchange in one piece.
    pub const WHOLE: ExchangePiece = ExchangePiece { number: 0, of: 1 };

    /// Ranks at a distance of so many blocks from that of a rank.
    fn block(self, ranks: usize, rank: usize, distance: usize) -> Range<usize> {
        let of = |block: usize| even(ranks, self.of, block);
        let mine = (0..self.of).find(|block| rank < of(*block).end()).unwrap_or(0);
        let block = of((mine + distance) % self.of);
        block.start..block.end()
    }

    /// Ranks whose tokens have rows in this piece for the experts of rank `rank` of `ranks`.
    pub fn sources(self, ranks: usize, rank: usize) -> Range<usize> {
        self.block(ranks, rank, self.of - self.number)
    }

    /// Ranks whose experts have rows in this piece of the tokens of rank `rank` of `ranks`.
    pub fn experts(self, ranks: usize, rank: usize) -> Range<usize> {
        self.block(ranks, rank, self.number)
    }

    /// Whether every rank exchanges rows with itself alone.
    pub fn is_local(self, ranks: usize) -> bool {
        self.number == 0 && self.of == ranks
    }
}

/// Parts of a collective that are counted on the device. Each of p ranks has E/p experts, the first rank the first ones; received rows
/// are stored in the order of their ranks, and rows after the last received one are not written.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum ByCounts {
    /// An all-to-all of rows: those of this rank's tokens by expert, for those of all ranks' tokens for its experts.
    Rows {
        /// u32 `[p, E + 1]`: rows `offsets[r, e] .. offsets[r, e + 1]` of rank r are for expert e. Rows before the first are not exchanged.
        offsets: View,
        /// Rows go to the ranks of their experts; otherwise back.
        to_experts: bool,
        /// The ranks between which rows are exchanged.
        piece: ExchangePiece,
    },
    /// Matrices of shadowed experts: an all-gather of those of this rank for those of all slots, or an all-to-all of gradients of all slots
    /// for the gradients by all ranks of this rank's.
    Shadows {
        /// u32 `[1, S]`, as of [`bessemer_tensor::op::ChooseShadows`].
        slots: View,
        /// E/p.
        experts: usize,
    },
}

impl ByCounts {
    /// The counts.
    pub fn view(&self) -> View {
        match self {
            ByCounts::Rows { offsets, .. } => *offsets,
            ByCounts::Shadows { slots, .. } => *slots,
        }
    }

    /// Returns the same counts for a piece of the rows; matrices of shadows have none.
    pub(crate) fn of_piece(self, piece: ExchangePiece) -> ByCounts {
        match self {
            ByCounts::Rows { offsets, to_experts, .. } => ByCounts::Rows { offsets, to_experts, piece },
            shadows @ ByCounts::Shadows { .. } => shadows,
        }
    }

    fn view_mut(&mut self) -> &mut View {
        match self {
            ByCounts::Rows { offsets, .. } => offsets,
            ByCounts::Shadows { slots, .. } => slots,
        }
    }

    /// Name of the counts among the operands.
    fn name(&self) -> &'static str {
        match self {
            ByCounts::Rows { .. } => "offsets",
            ByCounts::Shadows { .. } => "slots",
        }
    }

    /// Rows of the tokens of rank `tokens` for the experts of some ranks, among all of its rows; `offsets` has the values of `[p, E + 1]`.
    pub fn rows(
        offsets: &[u32],
        [ranks, columns]: [usize; 2],
        tokens: usize,
        experts: Range<usize>,
    ) -> Range<usize> {
        let here = (columns - 1) / ranks;
        let at = |rank: usize| offsets[tokens * columns + rank * here] as usize;
        at(experts.start)..at(experts.end)
    }

    /// Slots with experts of a rank that has `experts`: they follow each other. `slots` has their values.
    pub fn slots_of(slots: &[u32], experts: usize, rank: usize) -> Range<usize> {
        let here = rank * experts..(rank + 1) * experts;
        let of_rank = |slot: &u32| here.contains(&(*slot as usize));
        let first = slots.iter().position(of_rank).unwrap_or(0);
        first..first + slots[first..].iter().take_while(|slot| of_rank(slot)).count()
    }
}

/// A collective over views of virtual buffers.
#[derive(Debug, Clone, PartialEq)]
pub struct Collective {
    /// Number within the list; a [`Node::Wait`] names it.
    pub id: usize,
    /// Kind of the collective.
    pub kind: CollectiveKind,
    /// The axis whose ranks take part.
    pub axis: Axis,
    /// Name of the values, for messages and the flight recorder.
    pub name: String,
    /// The dim that is gathered or scattered: 0, rows, or 1, columns, of which every rank has equally many. 0 for other kinds.
    pub dim: usize,
    /// Order in which the ranks share the rows of the whole.
    pub order: PositionOrder,
    /// Columns of an all-to-all, in blocks each of which is sharded by itself. Empty for other kinds.
    pub columns: Vec<Block>,
    /// Messages of a permutation, indexed by sending rank. Empty for other kinds.
    pub messages: Messages,
    /// Parts that are counted on the device.
    pub by_counts: Option<ByCounts>,
    /// View that is read.
    pub src: View,
    /// View that is written.
    pub dst: View,
    /// The rows of the whole matrix that it is about: all of them, or one piece.
    pub rows: Range<usize>,
    /// Versions, as in [`Launch::versions`].
    pub versions: Vec<Version>,
}

impl Collective {
    /// Rows of the whole matrix. Where columns are gathered or scattered, a row counts as as many rows as there are parts.
    pub fn total_rows(&self) -> usize {
        match self.kind {
            CollectiveKind::AllGather => self.dst.len() / self.src.cols.max(1),
            CollectiveKind::ReduceScatter => self.src.len() / self.dst.cols.max(1),
            CollectiveKind::AllToAll => self.src.rows.max(self.dst.rows),
            CollectiveKind::AllReduce | CollectiveKind::Permute => self.src.rows,
        }
    }

    /// Elements of one of the rows that [`Collective::total_rows`] counts.
    pub fn row_len(&self) -> usize {
        if self.kind == CollectiveKind::ReduceScatter { self.dst.cols } else { self.src.cols }
    }

    /// Rows or columns of the whole matrix that each of `ranks` ranks has, rank by rank: views of `whole`, which is `src` of a
    /// reduction and `dst` of a gather.
    pub fn parts(&self, whole: View, ranks: usize) -> impl Iterator<Item = View> {
        let (order, columns) = (self.order, self.dim == 1);
        let len = if columns { whole.cols } else { whole.rows };
        (0..ranks).flat_map(move |rank| order.stretches(len, ranks, rank)).map(move |part| match columns {
            true => whole.columns(part.start, part.len),
            false => whole.rows(part.start, part.len),
        })
    }

    /// Rank to which rank `index` sends in a permutation.
    pub fn to(&self, index: usize) -> Option<usize> {
        self.messages.get(index)?.as_ref().map(|message| message.to)
    }

    /// Rank from which rank `index` receives in a permutation.
    pub fn from(&self, index: usize) -> Option<usize> {
        self.messages.iter().position(|message| message.as_ref().is_some_and(|m| m.to == index))
    }

    /// Whether an all-to-all leads from some rows of all columns to all rows of some columns.
    pub fn to_columns(&self) -> bool {
        self.src.rows < self.dst.rows
    }

    /// The columns that rank `rank` has in an all-to-all, block by block. If several ranks have the same ones and the all-to-all returns
    /// to rows, the terms of these ranks are side by side: all columns, once for each of them.
    fn columns_of(&self, ranks: usize, rank: usize) -> impl Iterator<Item = BlockColumns> {
        let all: usize = self.columns.iter().map(|block| block.len()).sum();
        let replicas = self.columns.first().map_or(1, |block| block.replicas(ranks));
        let (mut start, mut local) = (if self.to_columns() { 0 } else { rank % replicas * all }, 0);
        self.columns.iter().map(move |block| {
            let part = block.part(ranks, rank);
            let whole = DimRange { start: start + part.start, len: part.len };
            (start, local) = (start + block.len(), local + part.len);
            BlockColumns { whole, local: DimRange { start: local - part.len, len: part.len } }
        })
    }

    /// Columns that rank `rank` has in an all-to-all.
    pub fn width(&self, ranks: usize, rank: usize) -> usize {
        self.columns_of(ranks, rank).map(|columns| columns.whole.len).sum()
    }

    /// Elements that one rank of `ranks` sends another, or itself, in an all-to-all.
    pub fn exchanged(&self, ranks: usize, from: usize, to: usize) -> usize {
        let (rows, columns) = if self.to_columns() { (from, to) } else { (to, from) };
        even(self.total_rows(), ranks, rows).len * self.width(ranks, columns)
    }

    /// The views of `whole`, which is `src` or `dst` of an all-to-all on rank `index` of `ranks`, that are sent to or received from
    /// each rank, rank by rank.
    pub fn exchange(&self, whole: View, ranks: usize, index: usize) -> impl Iterator<Item = View> {
        let (order, total) = (self.order, self.total_rows());
        let all_rows = whole.rows == total;
        (0..ranks).flat_map(move |rank| {
            self.columns_of(ranks, if all_rows { index } else { rank }).flat_map(move |columns| {
                let (cols, rows) = match all_rows {
                    true => (columns.local, order.stretches(total, ranks, rank)),
                    // All of the rows that are here.
                    false => (columns.whole, PositionOrder::Consecutive.stretches(whole.rows, 1, 0)),
                };
                rows.map(move |rows| whole.rows(rows.start, rows.len).columns(cols.start, cols.len))
            })
        })
    }

    /// Bytes that rank `index` of `ranks` sends under ring algorithms; in an all-to-all or a permutation, the bytes sent to others; by
    /// counts, if all are equal.
    pub fn bytes_sent(&self, ranks: usize, index: usize) -> u64 {
        let (total, cols) = (self.total_rows(), self.row_len());
        let element = self.src.dtype().size();
        let rows_of = |rank: usize| {
            let part = even(total, ranks, rank);
            let (from, to) = (part.start.max(self.rows.start), part.end().min(self.rows.end));
            to.saturating_sub(from)
        };
        let all = self.rows.len() * cols;
        let elements = match self.kind {
            CollectiveKind::AllReduce => {
                let part = |rank| even(all, ranks, rank).len;
                2 * all - part(index) - part((index + 1) % ranks)
            }
            CollectiveKind::ReduceScatter => all - rows_of(index) * cols,
            CollectiveKind::AllGather => all - rows_of((index + 1) % ranks) * cols,
            CollectiveKind::AllToAll if self.by_counts.is_some() => {
                let all = self.src.rows.min(self.dst.rows);
                let others = match self.by_counts {
                    Some(ByCounts::Rows { to_experts: true, piece, .. }) => piece.experts(ranks, index),
                    Some(ByCounts::Rows { to_experts: false, piece, .. }) => piece.sources(ranks, index),
                    _ => 0..ranks,
                };
                // This rank's own rows stay.
                (all * others.len() / ranks - if others.contains(&index) { all / ranks } else { 0 }) * cols
            }
            CollectiveKind::AllToAll => {
                (0..ranks).filter(|to| *to != index).map(|to| self.exchanged(ranks, index, to)).sum()
            }
            CollectiveKind::Permute => self.src.len(),
        };
        (elements * element) as u64
    }
}

/// A value that is copied to or from the second memory.
#[derive(Debug, Clone, PartialEq)]
pub struct OffloadedValue {
    /// First byte of the copy, counted from the first one that the unit has for the micro-batch.
    pub offset: u64,
    /// The value, as a whole.
    pub view: View,
    /// Versions, as in [`Launch::versions`].
    pub versions: Vec<Version>,
}

impl OffloadedValue {
    /// Number of the value.
    pub fn value(&self) -> usize {
        self.view.buffer.id as usize
    }

    /// Bytes of the value.
    pub fn bytes(&self) -> usize {
        self.view.len() * self.view.dtype().size()
    }

    /// One past the last byte of the copy.
    pub fn end(&self) -> u64 {
        self.offset + self.bytes() as u64
    }
}

/// One entry of a list. The list order alone is correct on one device stream.
#[derive(Debug, Clone, PartialEq)]
#[expect(clippy::large_enum_variant, reason = "nearly all nodes are operators")]
pub enum Node {
    /// An operator.
    Launch(Launch),
    /// A collective that is complete before the next node begins.
    Collective(Collective),
    /// A collective that may run concurrently with the next nodes, until its [`Node::Wait`].
    Start(Collective),
    /// `dst` of the collective with this number has its values after this.
    Wait {
        /// Number of the collective.
        id: usize,
        /// View that the collective reads.
        src: View,
        /// View that the collective writes.
        dst: View,
        /// Versions, as in [`Launch::versions`].
        versions: Vec<Version>,
    },
    /// A value begins its way to the second memory. Its own memory may be written after this.
    Offload(OffloadedValue),
    /// A value is back from the second memory after this.
    Reload(OffloadedValue),
}

/// A view that a node touches.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Touch {
    /// Name of the operand.
    pub operand: &'static str,
    /// The view.
    pub view: View,
    /// Kind of access.
    pub access: Access,
}

impl Touch {
    /// Number of the value.
    pub fn value(&self) -> usize {
        self.view.buffer.id as usize
    }
}

impl Launch {
    /// An operator that runs every time.
    pub fn new(op: impl Into<Op>) -> Launch {
        Launch { op: op.into(), first_only: false, adding: None, versions: Vec::new() }
    }

    /// Iterates over both forms of the operator.
    pub fn forms_mut(&mut self) -> impl Iterator<Item = &mut Op> {
        let adding = self.adding.as_mut().map(|adding| &mut *adding.op);
        std::iter::once(&mut self.op).chain(adding)
    }
}

impl Node {
    /// An operator that runs every time.
    pub fn launch(op: impl Into<Op>) -> Node {
        Node::Launch(Launch::new(op))
    }

    /// The operator, if it is one.
    pub fn op(&self) -> Option<&Op> {
        match self {
            Node::Launch(launch) => Some(&launch.op),
            _ => None,
        }
    }

    /// Every view that the node touches, reads first. A collective in flight touches its views when it starts and when it
    /// is waited for.
    pub fn touches(&self) -> Vec<Touch> {
        let touch = |operand, view, access| Touch { operand, view, access };
        // A side of a permutation that is not there is no touch.
        let sides = |sides: [Touch; 2]| sides.into_iter().filter(|t| t.view.rows > 0).collect::<Vec<Touch>>();
        match self {
            Node::Launch(launch) => {
                let operands = launch.op.operands();
                let of = |reads: bool| {
                    let mine = move |o: &&bessemer_tensor::op::Operand| (o.access == Access::Read) == reads;
                    operands.iter().filter(mine).map(|o| touch(o.name, o.view, o.access)).collect::<Vec<_>>()
                };
                let mut all = of(true);
                all.extend(of(false));
                all
            }
            Node::Collective(c) | Node::Start(c) if c.src == c.dst => {
                vec![touch("values", c.src, Access::Update)]
            }
            Node::Collective(c) | Node::Start(c) => {
                let counts = c.by_counts.map(|by| touch(by.name(), by.view(), Access::Read));
                let both = sides([touch("src", c.src, Access::Read), touch("dst", c.dst, Access::Write)]);
                counts.into_iter().chain(both).collect()
            }
            Node::Wait { src, dst, .. } if src == dst => vec![touch("values", *src, Access::Update)],
            Node::Wait { src, dst, .. } => {
                sides([touch("src", *src, Access::Read), touch("dst", *dst, Access::Update)])
            }
            Node::Offload(moved) => vec![touch("src", moved.view, Access::Read)],
            Node::Reload(moved) => vec![touch("dst", moved.view, Access::Write)],
        }
    }

    /// The versions of the values that it touches.
    pub fn versions(&self) -> &[Version] {
        match self {
            Node::Launch(Launch { versions, .. }) | Node::Wait { versions, .. } => versions,
            Node::Collective(c) | Node::Start(c) => &c.versions,
            Node::Offload(moved) | Node::Reload(moved) => &moved.versions,
        }
    }

    pub(crate) fn set_versions(&mut self, of: Vec<Version>) {
        match self {
            Node::Launch(Launch { versions, .. }) | Node::Wait { versions, .. } => *versions = of,
            Node::Collective(c) | Node::Start(c) => c.versions = of,
            Node::Offload(moved) | Node::Reload(moved) => moved.versions = of,
        }
    }

    /// Calls `f` with every view, to change it.
    pub fn for_each_view(&mut self, f: &mut dyn FnMut(&mut View)) {
        match self {
            Node::Launch(launch) => launch.forms_mut().for_each(|op| op.for_each_view(f)),
            Node::Collective(c) | Node::Start(c) => {
                f(&mut c.src);
                f(&mut c.dst);
                c.by_counts.iter_mut().for_each(|by| f(by.view_mut()));
            }
            Node::Wait { src, dst, .. } => {
                f(src);
                f(dst);
            }
            Node::Offload(moved) | Node::Reload(moved) => f(&mut moved.view),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_have_the_rows_of_every_pair_of_ranks_once() {
        for ranks in 1..18 {
            for of in 1..=ranks {
                let mut met = vec![0; ranks * ranks];
                for piece in (0..of).map(|number| ExchangePiece { number, of }) {
                    for tokens in 0..ranks {
                        for owner in piece.experts(ranks, tokens) {
                            assert!(
                                piece.sources(ranks, owner).contains(&tokens),
                                "{piece:?} of {ranks} ranks"
                            );
                            met[tokens * ranks + owner] += 1;
                            assert!(!piece.is_local(ranks) || tokens == owner);
                        }
                    }
                }
                assert!(met.iter().all(|count| *count == 1), "{of} pieces of {ranks} ranks: {met:?}");
            }
        }
    }
}
