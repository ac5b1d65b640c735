//! The pass `experts`: converts a layer whose rank has all experts into that of a rank that has some of them. Other ranks have the others, and
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
//! ranks with k choices each. Kernels read the offsets and touch only the rows that have arrived.
//!
//! With [`Shadowing`] some experts are computed by every rank for its own tokens (He et al. 2022, FasterMoE): their rows come first among the
//! rows of this rank's tokens and are not exchanged. A forward pass chooses them by the rows of all ranks and gathers their matrices; a backward
//! pass sends each rank's gradient of them to the rank that has the expert, which adds them in the order of the ranks. Operators between
//! exist twice: on received rows, and on rows of shadows.
//!
//! | rows | order | made by | read by |
//! |---|---|---|---|
//! | for shadows | shadow, token, choice | dispatch, gradients of a combination, products of shadows | products of shadows, combination |
//!
//! Bits: rows are computed one by one and combined in the order of the choices of a token, so they do not depend on the ranks. The
//! gradient of an expert is the sum over the ranks' rows, in the order of the ranks, with and without a shadow.

use crate::node::{ByCounts, Collective, CollectiveKind, ExchangePiece, Launch, Node};
use crate::rank::Rank;
use crate::unit::{Phase, UnitProgram};
use crate::value::{Class, Value};
use bessemer_mesh::{Axis, Dim, Form, Placement, PositionOrder, even};
use bessemer_tensor::View;
use bessemer_tensor::op::{
    AddShadowGradients, AssignRows, ChooseShadows, ExpertSize, GroupedLinear, Op, ReceivedGroups, Rule,
    ShadowCosts, ShadowRates, ShadowRows,
};
use bessemer_units::DType;
use std::collections::{BTreeMap, BTreeSet};

/// Experts that every rank may compute for its own tokens.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Shadowing {
    /// Most shadows of a layer.
    pub slots: usize,
    /// Rates by which they are chosen.
    pub rates: ShadowRates,
}

/// Tokens whose rows the ranks of an axis exchange in one pass.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum ExchangedTokens {
    /// Every rank has as many as the unit, and may compute shadows for them.
    EachRank(Option<Shadowing>),
    /// One rank has at most so many, the others have none.
    OneRank(usize),
}

/// Spreads the experts of a unit over the ranks of an axis. `others`: this rank on the axes for which the unit has been partitioned; where
/// they exchange rows too ([`Rank::exchanges_rows`]), `rank` counts their ranks, and gradients of experts are complete over them. A unit
/// without experts stays as it is.
pub fn experts(unit: &mut UnitProgram, rank: Rank, others: &[Rank], tokens: ExchangedTokens) {
    let assigns = |node: &Node| match node.op() {
        Some(Op::AssignRows(op)) => Some(*op),
        _ => None,
    };
    let assigned = Phase::ALL.iter().find_map(|phase| unit.list(*phase).iter().find_map(assigns));
    let Some(assigned) = assigned.filter(|_| rank.degree > 1) else { return };
    let stacks = Sides::of(unit).stacks;
    for axis in others.iter().filter(|other| other.exchanges_rows).map(|other| other.axis) {
        for id in &stacks {
            let layout = &mut unit.values[*id].layout;
            *layout = layout.with(axis, Placement::Replicate);
        }
    }
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

/// Values by their role in an operator of a mixture.
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

/// Sizes of the experts of a unit, whose lists are those of one rank with all experts.
fn expert_size(unit: &UnitProgram, experts: usize) -> ExpertSize {
    let mut stacks: BTreeMap<usize, GroupedLinear> = BTreeMap::new();
    let mut row_bytes = 0;
    for op in unit.lists.iter().flatten().filter_map(Node::op) {
        match op {
            Op::GroupedLinear(o) => {
                stacks.insert(o.weight.buffer.id as usize, *o);
            }
            Op::Dispatch(o) => row_bytes = o.out.cols * o.out.dtype().size(),
            _ => {}
        }
    }
    let flops = |o: &GroupedLinear| 2.0 * (o.x.cols * o.out.cols) as f64;
    let bytes: u64 = stacks.values().map(|o| o.weight.bytes()).sum();
    ExpertSize {
        row_flops: stacks.values().map(flops).sum(),
        row_bytes: row_bytes as f64,
        bytes: bytes as f64 / experts as f64,
    }
}

/// Shadows of a rank.
struct Shadows {
    costs: ShadowCosts,
    /// Experts, and the offsets of their rows.
    rows: ShadowRows,
    /// Offsets of all ranks' rows that are exchanged.
    routed: View,
    /// Keyed by value of received rows that no exchange makes or reads: the value of the rows for shadows.
    values: BTreeMap<usize, usize>,
    /// Keyed by stack of matrices: the matrices of shadows.
    matrices: BTreeMap<usize, View>,
    /// Keyed by gradient of a stack: that of the shadows' matrices, and the gradients by all ranks of those of this rank's experts.
    gradients: BTreeMap<usize, [View; 2]>,
}

impl Shadows {
    fn new(
        unit: &mut UnitProgram,
        rank: Rank,
        assigned: &AssignRows,
        (of_experts, sides): (&BTreeSet<usize>, &Sides),
        shadowing: Shadowing,
    ) -> Shadows {
        let (ranks, choices) = (rank.degree, assigned.experts.len());
        let experts = assigned.offsets.cols - 1;
        let slots = shadowing.slots.min(experts);
        let costs = ShadowCosts::new(expert_size(unit, experts), shadowing.rates, ranks);
        let offsets = assigned.offsets.buffer.id as usize;
        let mut counts = |name: &str, dims| add_like(unit, offsets, name, dims, None);
        let rows =
            ShadowRows { slots: counts("slots", [1, slots]), offsets: counts("shadows", [1, slots + 1]) };
        let routed = counts("routed", [ranks, experts + 1]);
        let values = of_experts.iter().filter(|id| !sides.sent.contains(id)).map(|id| {
            let dims = [choices, unit.values[*id].cols];
            (*id, add_like(unit, *id, "shadows", dims, None).buffer.id as usize)
        });
        let values = values.collect();
        let (mut matrices, mut gradients) = (BTreeMap::new(), BTreeMap::new());
        for id in &sides.stacks {
            let &Value { rows, cols, class, .. } = &unit.values[*id];
            let outputs = rows / experts;
            let mut of_slots = |name: &str, copies: usize, dtype| {
                let view = add_like(unit, *id, name, [copies * slots * outputs, cols], dtype);
                let layout = &mut unit.values[view.buffer.id as usize].layout;
                *layout = layout.with(rank.axis, Placement::Replicate);
                view
            };
            match class {
                Class::Parameter(_) => {
                    matrices.insert(*id, of_slots("shadows", 1, None));
                }
                _ => {
                    let f32 = Some(DType::F32);
                    gradients.insert(*id, [of_slots("shadows", 1, f32), of_slots("terms", ranks, f32)]);
                }
            }
        }
        Shadows { costs, rows, routed, values, matrices, gradients }
    }
}

/// Adds a value of the unit's own that is like another one but for its size and, if one is given, its type.
fn add_like(
    unit: &mut UnitProgram,
    like: usize,
    name: &str,
    [rows, cols]: [usize; 2],
    dtype: Option<DType>,
) -> View {
    let like = &unit.values[like];
    let columns = if cols == like.cols { like.form.dims[1].clone() } else { Dim::plain(cols) };
    unit.add(Value {
        name: format!("{}.{name}", like.name),
        class: Class::Local,
        dtype: dtype.unwrap_or(like.dtype),
        form: Form { dims: vec![Dim::plain(rows), columns] },
        rows,
        cols,
        ..like.clone()
    })
}

struct Spreading<'a> {
    unit: &'a mut UnitProgram,
    rank: Rank,
    /// Keyed by value of this rank's rows that an expert reads or makes: the value of the rows on the side of the experts.
    crossing: BTreeMap<usize, usize>,
    /// All values on the side of the experts.
    received: BTreeSet<usize>,
    stacks: BTreeSet<usize>,
    /// Offsets of all ranks' rows.
    offsets: View,
    /// Groups of the received rows.
    groups: View,
    experts: usize,
    shadows: Option<Shadows>,
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
        let sides = Sides::of(unit);
        let Sides { sent, received, stacks } = &sides;
        let mut received = received.clone();
        let (ranks, choices) = (rank.degree, assigned.experts.cols);
        let experts = assigned.offsets.cols - 1;
        let here = experts / ranks;
        let (tokens, shadowing) = match tokens {
            ExchangedTokens::EachRank(shadowing) => (assigned.experts.rows * ranks, shadowing),
            ExchangedTokens::OneRank(most) => (most, None),
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
        let shadows = shadowing
            .filter(|of| of.slots > 0)
            .map(|of| Shadows::new(unit, rank, assigned, (&received, &sides), of));
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
        for id in stacks {
            let value = &mut unit.values[*id];
            value.rows /= ranks;
            let part = even(value.form.dims[0].len(), ranks, rank.index);
            value.form.dims[0] = value.form.dims[0].of_range(part);
            value.layout = value.layout.with(rank.axis, Placement::Shard { dim: 0 });
        }
        let assigned = assigned.offsets.buffer.id as usize;
        let offsets = add_like(unit, assigned, "all", [ranks, experts + 1], None);
        let groups = add_like(unit, assigned, "received", [1, ranks * here + 1], None);
        let (phase, list) = (Phase::Forward, Vec::new());
        Spreading {
            unit,
            rank,
            crossing,
            received,
            stacks: sides.stacks,
            offsets,
            groups,
            experts,
            shadows,
            phase,
            list,
            next: 0,
        }
    }

    /// The view that an operator of an expert touches.
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
        let of_shadows = self.of_shadows(&launch.op);
        launch.op.for_each_view(&mut |view| self.on_experts(view));
        let live = self.groups.columns(self.groups.cols - 1, 1);
        by_groups(&mut launch.op, self.groups, live);
        self.list.push(Node::Launch(launch));
        if let Some(op) = of_shadows {
            self.list.push(Node::launch(op.clone()));
            if let Op::GroupedLinearBackwardWeight(o) = op {
                self.return_gradients(o.dweight, made[0].buffer.id as usize);
            }
        }
        for view in made {
            let id = view.buffer.id as usize;
            if let Some(received) = self.crossing.get(&id).copied() {
                self.exchange(id, received, false);
            }
        }
    }

    /// Returns the same operator of experts on the rows for shadows.
    fn of_shadows(&self, op: &Op) -> Option<Op> {
        let shadows = self.shadows.as_ref()?;
        let mut op = op.clone();
        op.for_each_view(&mut |view| {
            let id = view.buffer.id as usize;
            if let Some(id) = shadows.values.get(&id) {
                let value = &self.unit.values[*id];
                *view = View { buffer: value.buffer(*id), rows: value.rows, ..*view };
            } else if let Some(matrices) = shadows.matrices.get(&id) {
                *view = *matrices;
            } else if let Some([gradient, _]) = shadows.gradients.get(&id) {
                *view = *gradient;
            }
        });
        let offsets = shadows.rows.offsets;
        by_groups(&mut op, offsets, offsets.columns(offsets.cols - 1, 1));
        Some(op)
    }

    /// Sends the gradient of shadows to the ranks that have the experts, and adds the received ones to theirs.
    fn return_gradients(&mut self, gradient: View, dweight: usize) {
        let Some(Shadows { rows, gradients, .. }) = &self.shadows else { return };
        let (slots, terms) = (rows.slots, gradients[&dweight][1]);
        let experts = self.experts / self.rank.degree;
        let by = ByCounts::Shadows { slots, experts };
        self.collective(CollectiveKind::AllToAll, (gradient, terms), Some(by));
        let dweight = self.unit.values[dweight].view(dweight);
        let first = self.rank.index * experts;
        self.list.push(Node::launch(AddShadowGradients { terms, slots, first, experts, dweight }));
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
        self.collective(CollectiveKind::AllGather, (op.offsets, self.offsets), None);
        let experts = self.experts / self.rank.degree;
        if let Some(&Shadows { costs, rows, routed, .. }) = self.shadows.as_ref() {
            let offsets = self.offsets;
            self.list.push(Node::launch(ChooseShadows { offsets, costs, slots: rows.slots, routed }));
            self.list.push(Node::launch(AssignRows { shadows: Some(rows), ..*op }));
        }
        let first = self.rank.index * experts;
        let groups = ReceivedGroups { offsets: self.exchanged_offsets(), first, groups: self.groups };
        self.list.push(Node::launch(groups));
        let Some(shadows) = &self.shadows else { return };
        let by = ByCounts::Shadows { slots: shadows.rows.slots, experts };
        let stack = |id: usize| self.unit.values[id].view(id);
        let gathers: Vec<_> = shadows.matrices.iter().map(|(id, matrices)| (stack(*id), *matrices)).collect();
        for sides in gathers {
            self.collective(CollectiveKind::AllGather, sides, Some(by));
        }
    }

    /// Offsets of all ranks' rows that are exchanged.
    fn exchanged_offsets(&self) -> View {
        self.shadows.as_ref().map_or(self.offsets, |shadows| shadows.routed)
    }

    fn exchange(&mut self, sent: usize, received: usize, to_experts: bool) {
        let view = |id: usize| self.unit.values[id].view(id);
        let (sent, received) = (view(sent), view(received));
        let sides = if to_experts { (sent, received) } else { (received, sent) };
        let by =
            ByCounts::Rows { offsets: self.exchanged_offsets(), to_experts, piece: ExchangePiece::WHOLE };
        self.collective(CollectiveKind::AllToAll, sides, Some(by));
    }

    fn collective(&mut self, kind: CollectiveKind, (src, dst): (View, View), by_counts: Option<ByCounts>) {
        let back = matches!(by_counts, Some(ByCounts::Rows { to_experts: false, .. }));
        let value = &self.unit.values[if back { dst } else { src }.buffer.id as usize];
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

/// Whether a value contains only those rows that other ranks have sent.
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

/// Lets an operator of experts read so many rows of each group.
fn by_groups(op: &mut Op, offsets: View, live: View) {
    match op {
        Op::GroupedLinear(o) => o.offsets = offsets,
        Op::GroupedLinearBackwardInput(o) => o.offsets = offsets,
        Op::GroupedLinearBackwardWeight(o) => o.offsets = offsets,
        Op::Gated(o) => o.live = Some(live),
        Op::GatedBackward(o) => o.live = Some(live),
        _ => {}
    }
}

/// Whether an operator reads or writes rows with the matrices of experts.
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
