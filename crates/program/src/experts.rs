//! The pass `experts`: a layer whose rank has all experts becomes that of a rank that has some of them. Other ranks have the others, and
//! each has tokens of its own (Lepikhin et al. 2020, GShard; Gale et al. 2022, MegaBlocks, without a capacity).
//!
//! | rows | order | made by | read by |
//! |---|---|---|---|
//! | of this rank's tokens | expert, token, choice | dispatch, gradients of a combination | combination, gradients of a dispatch |
//! | for this rank's experts | rank, expert, token, choice | products of experts | products of experts |
//!
//! An exchange leads from one to the other: an all-to-all whose parts are counted on the device ([`ByCounts`]). All ranks gather the
//! offsets of all ranks' rows once in a forward pass, (E+1)(p-1) numbers for E experts on p ranks. Of R rows of width d on each rank,
//! equally many for every expert, a rank sends R d (p-1)/p elements in each of the four exchanges of a layer and micro-batch.
//!
//! Values of received rows hold at most all choices of all ranks that one rank's experts can have: N min(k, E/p) rows for N tokens of all
//! ranks with k choices each. Kernels read the offsets and touch only the rows that have come.
//!
//! Bits: rows are computed one by one and combined in the order of the choices of a token, so they do not depend on the ranks. The
//! gradient of an expert is the sum over the ranks' rows, in the order of the ranks.

use crate::node::{ByCounts, Collective, CollectiveKind, Launch, Node};
use crate::rank::Rank;
use crate::unit::{Phase, UnitProgram};
use crate::value::{Class, Value};
use bessemer_mesh::{Axis, Dim, Form, Placement, PositionOrder, even};
use bessemer_tensor::View;
use bessemer_tensor::op::{AssignRows, Op, ReceivedGroups, Rule};
use bessemer_units::DType;
use std::collections::{BTreeMap, BTreeSet};

/// Tokens whose rows the ranks of an axis exchange in one pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExchangedTokens {
    /// Every rank has as many as the unit.
    EachRank,
    /// One rank has at most so many, the others have none.
    OneRank(usize),
}

/// Spreads the experts of a unit over the ranks of an axis. A unit without experts stays as it is.
pub fn experts(unit: &mut UnitProgram, rank: Rank, tokens: ExchangedTokens) {
    let assigns = |node: &Node| match node.op() {
        Some(Op::AssignRows(op)) => Some(*op),
        _ => None,
    };
    let assigned = Phase::ALL.iter().find_map(|phase| unit.list(*phase).iter().find_map(assigns));
    let Some(assigned) = assigned.filter(|_| rank.degree > 1) else { return };
    let mut spreading = Spreading::new(unit, rank, &assigned, tokens);
    for phase in Phase::ALL {
        let list = std::mem::take(&mut spreading.unit.lists[phase.index()]);
        let first_free = |node: &Node| match node {
            Node::Collective(c) | Node::Start(c) => c.id + 1,
            _ => 0,
        };
        spreading.next = list.iter().map(first_free).max().unwrap_or(0);
        (spreading.phase, spreading.list) = (phase, Vec::with_capacity(list.len() + 8));
        list.into_iter().for_each(|node| spreading.node(node));
        spreading.unit.lists[phase.index()] = std::mem::take(&mut spreading.list);
    }
}

/// Number of the external value that holds the offsets of a rank without tokens ([`without_tokens`]): `[1, E+1]` zeros of type u32.
pub const NO_OFFSETS: usize = 0;

/// Keeps of a unit that [`experts`] has rewritten the operators and collectives of a rank that has experts and no tokens: it receives other
/// ranks' rows, computes them and sends them back. A unit without experts keeps no operator.
pub fn without_tokens(unit: &mut UnitProgram) {
    let of_experts = |op: &Op| {
        let counted = || op.operands().iter().any(|operand| operand.name == Rule::LIVE);
        matches!(op, Op::ReceivedGroups(_)) || is_grouped(op) || counted()
    };
    for list in &mut unit.lists {
        list.retain(|node| match node {
            Node::Collective(c) => c.axis == Axis::Expert,
            node => node.op().is_some_and(of_experts),
        });
        for node in &*list {
            if let Node::Collective(Collective { kind: CollectiveKind::AllGather, src, .. }) = node {
                unit.values[src.buffer.id as usize].class = Class::External(NO_OFFSETS);
            }
        }
    }
}

/// Values by what an operator of a mixture does with them.
#[derive(Default)]
struct Sides {
    /// Rows of this rank's tokens.
    sent: BTreeSet<usize>,
    /// Rows for this rank's experts.
    received: BTreeSet<usize>,
    /// Stacks of matrices, and their gradients.
    stacks: BTreeSet<usize>,
}

impl Sides {
    fn of(unit: &UnitProgram) -> Sides {
        let mut sides = Sides::default();
        let id = |view: &View| view.buffer.id as usize;
        for op in unit.lists.iter().flatten().filter_map(Node::op) {
            match op {
                Op::Dispatch(o) => sides.sent.extend([id(&o.out)]),
                Op::DispatchBackward(o) => sides.sent.extend([id(&o.dout)]),
                Op::CombineRows(o) => sides.sent.extend([id(&o.x)]),
                Op::CombineRowsBackward(o) => sides.sent.extend([id(&o.x), id(&o.dx)]),
                Op::GroupedLinear(o) => {
                    sides.received.extend([id(&o.x), id(&o.out)]);
                    sides.stacks.extend([id(&o.weight)]);
                }
                Op::GroupedLinearBackwardInput(o) => {
                    sides.received.extend([id(&o.dy), id(&o.dx)]);
                    sides.stacks.extend([id(&o.weight)]);
                }
                Op::GroupedLinearBackwardWeight(o) => {
                    sides.received.extend([id(&o.x), id(&o.dy)]);
                    sides.stacks.extend([id(&o.dweight)]);
                }
                _ => {}
            }
        }
        sides
    }
}

struct Spreading<'a> {
    unit: &'a mut UnitProgram,
    rank: Rank,
    /// By value of this rank's rows that an expert reads or makes: the value of the rows on the side of the experts.
    crossing: BTreeMap<usize, usize>,
    /// All values on the side of the experts.
    received: BTreeSet<usize>,
    stacks: BTreeSet<usize>,
    /// Offsets of all ranks' rows.
    offsets: View,
    /// Groups of the received rows.
    groups: View,
    experts: usize,
    phase: Phase,
    list: Vec<Node>,
    next: usize,
}

impl<'a> Spreading<'a> {
    fn new(
        unit: &'a mut UnitProgram,
        rank: Rank,
        assigned: &AssignRows,
        tokens: ExchangedTokens,
    ) -> Spreading<'a> {
        let Sides { sent, mut received, stacks } = Sides::of(unit);
        let (ranks, choices) = (rank.degree, assigned.experts.cols);
        let experts = assigned.offsets.cols - 1;
        let here = experts / ranks;
        let tokens = match tokens {
            ExchangedTokens::EachRank => assigned.experts.rows * ranks,
            ExchangedTokens::OneRank(most) => most,
        };
        let room = tokens * choices.min(here);
        // Operators on single rows, between the products of an expert, follow these.
        for op in unit.lists.iter().flatten().filter_map(Node::op) {
            let operands = op.operands();
            let touches = |id: usize| received.contains(&id) && !sent.contains(&id);
            if operands.iter().any(|o| touches(o.view.buffer.id as usize)) && !is_grouped(op) {
                received.extend(operands.iter().map(|o| o.view.buffer.id as usize));
            }
        }
        let mut crossing = BTreeMap::new();
        for id in received.clone() {
            let Value { form, rows, .. } = &mut unit.values[id];
            if sent.contains(&id) {
                let value = &unit.values[id];
                let name = format!("{}.received", value.name);
                let form = Form { dims: vec![Dim::plain(room), value.form.dims[1].clone()] };
                let value = Value { name, rows: room, form, ..value.clone() };
                let view = unit.add(value);
                crossing.insert(id, view.buffer.id as usize);
                received.remove(&id);
                received.insert(view.buffer.id as usize);
            } else {
                (form.dims[0], *rows) = (Dim::plain(room), room);
            }
        }
        for id in &stacks {
            let value = &mut unit.values[*id];
            value.rows /= ranks;
            let part = even(value.form.dims[0].len(), ranks, rank.index);
            value.form.dims[0] = value.form.dims[0].of_range(part);
            value.layout = value.layout.with(rank.axis, Placement::Shard { dim: 0 });
        }
        let like = unit.values[assigned.offsets.buffer.id as usize].clone();
        let of_all = |name: &str, [rows, cols]: [usize; 2]| Value {
            name: format!("{}.{name}", like.name),
            class: Class::Local,
            dtype: DType::U32,
            form: Form::plain(&[rows, cols]),
            rows,
            cols,
            ..like.clone()
        };
        let offsets = unit.add(of_all("all", [ranks, experts + 1]));
        let groups = unit.add(of_all("received", [1, ranks * here + 1]));
        let (phase, list) = (Phase::Forward, Vec::new());
        Spreading { unit, rank, crossing, received, stacks, offsets, groups, experts, phase, list, next: 0 }
    }

    /// The view of what an operator of an expert touches.
    fn on_experts(&self, view: &mut View) {
        let id = view.buffer.id as usize;
        let id = self.crossing.get(&id).copied().unwrap_or(id);
        if self.received.contains(&id) || self.stacks.contains(&id) {
            let value = &self.unit.values[id];
            *view = View { buffer: value.buffer(id), rows: value.rows, ..*view };
        }
    }

    fn node(&mut self, node: Node) {
        let Node::Launch(mut launch) = node else { return self.list.push(node) };
        let of_experts = |id: &usize| self.received.contains(id);
        let ids: Vec<usize> = launch.op.operands().iter().map(|o| o.view.buffer.id as usize).collect();
        if !is_grouped(&launch.op) && !ids.iter().any(of_experts) {
            return self.of_tokens(launch);
        }
        let made: Vec<View> = written(&launch.op);
        launch.op.for_each_view(&mut |view| self.on_experts(view));
        let live = Some(self.groups.columns(self.groups.cols - 1, 1));
        match &mut launch.op {
            Op::GroupedLinear(o) => o.offsets = self.groups,
            Op::GroupedLinearBackwardInput(o) => o.offsets = self.groups,
            Op::GroupedLinearBackwardWeight(o) => o.offsets = self.groups,
            Op::Gated(o) => o.live = live,
            Op::GatedBackward(o) => o.live = live,
            _ => {}
        }
        self.list.push(Node::Launch(launch));
        for view in made {
            let id = view.buffer.id as usize;
            if let Some(received) = self.crossing.get(&id).copied() {
                self.exchange(id, received, false);
            }
        }
    }

    /// An operator on rows of this rank's tokens.
    fn of_tokens(&mut self, launch: Launch) {
        let op = launch.op.clone();
        self.list.push(Node::Launch(launch));
        match &op {
            Op::AssignRows(o) => self.gather_offsets(o),
            op => {
                for view in written(op) {
                    let id = view.buffer.id as usize;
                    if let Some(received) = self.crossing.get(&id).copied() {
                        self.exchange(id, received, true);
                    }
                }
            }
        }
    }

    fn gather_offsets(&mut self, op: &AssignRows) {
        let offsets = self.offsets;
        self.collective(CollectiveKind::AllGather, (op.offsets, offsets), None);
        let first = self.rank.index * (self.experts / self.rank.degree);
        let groups = ReceivedGroups { offsets, first, groups: self.groups };
        self.list.push(Node::launch(groups));
    }

    fn exchange(&mut self, sent: usize, received: usize, to_experts: bool) {
        let view = |id: usize| self.unit.values[id].view(id);
        let (sent, received) = (view(sent), view(received));
        let sides = if to_experts { (sent, received) } else { (received, sent) };
        let by = ByCounts { offsets: self.offsets, to_experts };
        self.collective(CollectiveKind::AllToAll, sides, Some(by));
    }

    fn collective(&mut self, kind: CollectiveKind, (src, dst): (View, View), by_counts: Option<ByCounts>) {
        let value = &self.unit.values
            [if by_counts.is_some_and(|by| !by.to_experts) { dst } else { src }.buffer.id as usize];
        let whole = Collective {
            id: self.next,
            kind,
            axis: self.rank.axis,
            name: format!("{}{}", self.unit.name, value.name),
            dim: 0,
            order: PositionOrder::Consecutive,
            columns: Vec::new(),
            messages: Vec::new(),
            by_counts,
            src,
            dst,
            rows: 0..0,
            versions: Vec::new(),
        };
        self.next += 1;
        let rows = 0..whole.total_rows();
        self.list.push(Node::Collective(Collective { rows, ..whole }));
    }
}

/// Whether only those rows of a value are there that other ranks have sent.
pub(crate) fn has_counted_rows(unit: &UnitProgram, id: usize) -> bool {
    let nodes = || unit.lists.iter().flatten();
    let receives = nodes().any(|node| matches!(node.op(), Some(Op::ReceivedGroups(_))));
    receives
        && nodes().any(|node| {
            let counts = node.op().is_some_and(|op| {
                is_grouped(op) || op.operands().iter().any(|operand| operand.name == Rule::LIVE)
            });
            counts && node.touches().iter().any(|touch| touch.value() == id)
        })
}

/// Whether an operator reads or makes rows with the matrices of experts.
fn is_grouped(op: &Op) -> bool {
    matches!(
        op,
        Op::GroupedLinear(_) | Op::GroupedLinearBackwardInput(_) | Op::GroupedLinearBackwardWeight(_)
    )
}

fn written(op: &Op) -> Vec<View> {
    use bessemer_tensor::op::Access;
    op.operands().iter().filter(|o| o.access != Access::Read).map(|o| o.view).collect()
}
