//! The pass `partition`: converts a unit for one device into the unit of one rank.
//!
//! The layouts of parameters, gradients, inputs and of the residual stream are given; every other value gets its layout where it
//! is computed, from the sharding rule of the operator ([`bessemer_tensor::op::Op::rule`]):
//!
//! 1. A loop of the operator is sharded if a parameter or gradient that it touches is sharded there; else if a value that it
//!    writes is declared so; else if a value that it reads is.
//! 2. Operands with that loop must be sharded there: a replicated value is sliced. Operands without that loop must
//!    be replicated: rows that are sharded are gathered.
//! 3. A result is sharded if it has the loop, and partial if the loop is contracted. A partial value is reduced at once to
//!    its declared layout; if none is declared, to shards of rows where the loop is one of rows, and to all ranks
//!    otherwise. A partial gradient of a parameter stays partial, and is reduced when the unit's gradients are complete.
//! 4. If an operator reads a value both ways, some columns with the rows here and some with all rows, only the latter columns
//!    are gathered.
//!
//! With the Megatron-LM layouts of the parameters (Shoeybi et al. 2019) this yields their *f* and *g*; with the rows of the
//! residual stream sharded, sequence parallelism (Korthikanti et al. 2022): every all-reduce is then a reduce-scatter and an
//! all-gather. With those rows sharded and no parameter, context parallelism: each rank computes its queries' attention from the
//! keys and values of all ranks, which are gathered; its rows are two stretches, so that all ranks compute equally much (Llama 3:
//! Grattafiori et al. 2024, section 3.3.2), and their gradients are reduce-scattered. For s rows of keys and values of width w over c ranks
//! a rank sends 2 s w (c-1)/c elements a layer in the forward pass, and 4 s w (c-1)/c in the backward pass, which gathers them again. The
//! loss over a vocabulary that is sharded is the one composite: its two halves are operators of their own, and
//! log-sum-exps are combined between them.
//!
//! Bits: sums are formed in the order of the ranks; nothing else changes.

use crate::heads::ByHeads;
use crate::localize::{Local, first_token, localize};
use crate::loops::{Loop, dim_of, sharded_loop, unshardable};
use crate::node::{Collective, CollectiveKind, Launch, Node};
use crate::operands::key;
use crate::rank::{AxisRole, Rank, RowsPart};
use crate::unit::{Phase, UnitProgram};
use crate::value::{Class, Value};
use bessemer_mesh::{Axis, Placement, Reduction, even};
use bessemer_tensor::View;
use bessemer_tensor::op::{
    Access, Activation, ActivationBackward, Copy, FactorKind, Linear, LinearBackwardInput, Op, Operand,
    OperandRule, Rule, TermReduction,
};
use std::collections::BTreeMap;

/// Layouts that do not fit together.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{unit}, {phase}: {op} reads or makes {value} {found} over the {axis} axis, but {wanted}; {remedy}: change {key}"
)]
pub struct LayoutConflict {
    /// The unit.
    pub unit: String,
    /// The list.
    pub phase: &'static str,
    /// The operator.
    pub op: &'static str,
    /// The value.
    pub value: String,
    /// The axis.
    pub axis: Axis,
    /// Its layout.
    pub found: String,
    /// The layout that the operator needs.
    pub wanted: String,
    /// A way out of the conflict.
    pub remedy: String,
    /// The recipe key that takes this way: the annotation of the value or of a parameter that the operator reads, else the
    /// degree of the axis.
    pub key: String,
}

/// Rewrites the unit for a rank of several axes, one axis after the other. For one rank alone nothing changes.
///
/// To the pass of a later axis a collective of an earlier one is a node like any other: it works on every element alike, but for
/// the dim that it gathers or scatters. So the first of two axes of a grid divides rows first, and the last one divides gathered parameters
/// first: as in [`bessemer_mesh::Layout`], where the axis that gathers comes last.
///
/// Axes whose ranks share sequences come last, the one of blocks after the one of heads. Their ranks have the heads that a line of
/// tensor-parallel ranks has left them. The last axis divides rows first: a line with sequence parallelism shards the rows of its ranks'
/// positions, and ranks that exchange heads do so for the positions of their group.
///
/// # Errors
/// A value that an operator needs in a layout that no collective of this pass produces.
pub fn partition(unit: &UnitProgram, ranks: &[Rank]) -> Result<UnitProgram, Box<LayoutConflict>> {
    (0..ranks.len()).try_fold(unit.clone(), |unit, at| partition_over(&unit, ranks[at], &ranks[..at]))
}

/// Rewrites the unit for a rank of one axis. It has been rewritten for the axes `before`.
fn partition_over(
    unit: &UnitProgram,
    rank: Rank,
    before: &[Rank],
) -> Result<UnitProgram, Box<LayoutConflict>> {
    if rank.degree == 1 {
        let mut unit = unit.clone();
        for value in &mut unit.values {
            value.layout = value.layout.with(rank.axis, Placement::Replicate);
        }
        return Ok(unit);
    }
    let mut pass = Partition {
        global: unit,
        rank,
        before,
        shards_experts: shards_experts(unit, rank.axis),
        placements: vec![None; unit.values.len()],
        out: UnitProgram { lists: std::array::from_fn(|_| Vec::new()), again: Vec::new(), ..unit.clone() },
        gathered: BTreeMap::new(),
        by_heads: BTreeMap::new(),
        phase: Phase::Forward,
        next: 0,
    };
    for id in 0..unit.values.len() {
        if let Some(placement) = pass.declared(id) {
            pass.place(id, placement);
        }
    }
    let mut of_forward = BTreeMap::new();
    for phase in [Phase::Forward, Phase::Score, Phase::Backward] {
        (pass.phase, pass.next) = (phase, 0);
        pass.gathered.clear();
        pass.by_heads =
            if phase == Phase::Backward { std::mem::take(&mut of_forward) } else { BTreeMap::new() };
        for node in unit.list(phase) {
            match node {
                Node::Launch(launch) => pass.node(launch)?,
                Node::Collective(c) => pass.other_axis(c)?,
                // The passes that start collectives and offload values come later.
                Node::Start(_) | Node::Wait { .. } | Node::Offload(_) | Node::Reload(_) => {}
            }
        }
        if phase == Phase::Forward {
            of_forward = std::mem::take(&mut pass.by_heads);
        }
    }
    Ok(pass.out)
}

pub(crate) struct Partition<'a> {
    pub(crate) global: &'a UnitProgram,
    pub(crate) rank: Rank,
    /// Axes for which the unit has been rewritten.
    before: &'a [Rank],
    /// The axis shards every matrix of experts, so that each of its ranks needs the rows of all tokens.
    shards_experts: bool,
    /// Indexed by value of the global unit; `None` until it is determined.
    pub(crate) placements: Vec<Option<Placement>>,
    pub(crate) out: UnitProgram,
    /// All rows of values whose rows are sharded, or of some columns of them, as long as those are unchanged. Keyed by value, first
    /// column and number of columns.
    pub(crate) gathered: BTreeMap<(usize, usize, usize), View>,
    /// All rows of this rank's heads of values whose rows are sharded. Keyed by value. The backward pass reuses those of the forward
    /// pass.
    pub(crate) by_heads: BTreeMap<usize, ByHeads>,
    pub(crate) phase: Phase,
    /// Number of the next collective.
    pub(crate) next: usize,
}

impl Partition<'_> {
    /// The declared layout of a value, independent of its operator.
    fn declared(&self, id: usize) -> Option<Placement> {
        let value = &self.global.values[id];
        let (rows, columns) = (self.rank.sequence, self.rank.role.shards_columns());
        match value.class {
            _ if value.parameter.is_some() => Some(value.placement(self.rank.axis)),
            _ if value.residual && (rows || columns) => Some(Placement::Shard { dim: usize::from(columns) }),
            Class::Local if !value.residual => None,
            // Whatever its maker leaves: the host forms the sum over ranks.
            Class::AuxiliaryLoss(_) | Class::Counts => None,
            _ => Some(Placement::Replicate),
        }
    }

    /// Sets the placement of a value, and with it its shape here.
    pub(crate) fn place(&mut self, id: usize, placement: Placement) {
        self.placements[id] = Some(placement);
        let (rows, cols) = (self.local(id, placement, 0).len(), self.local(id, placement, 1).len());
        let (axis, sequences) = (self.rank.axis, self.rank.role.by_sequences());
        let part = (0..2).find_map(|dim| Some((dim, self.sharding(placement, dim)?)));
        let value = &mut self.out.values[id];
        (value.rows, value.cols) = (rows, cols);
        if let Some((dim, (parts, index))) = part {
            let whole = &self.global.values[id].form.dims[dim];
            value.form.dims[dim] = match dim == 0 && sequences {
                true => whole.of_range(even(whole.len(), parts, index)),
                false => whole.of_part(parts, index),
            };
        }
        value.layout = value.layout.with(axis, placement);
    }

    /// (parts, index) if the placement shards the dim.
    pub(crate) fn sharding(&self, placement: Placement, dim: usize) -> Option<(usize, usize)> {
        (placement == Placement::Shard { dim }).then_some((self.rank.degree, self.rank.index))
    }

    /// The elements of a dim of a value that a rank has in this placement.
    pub(crate) fn local(&self, id: usize, placement: Placement, dim: usize) -> Local {
        let all = &self.global.values[id].form.dims[dim];
        match self.sharding(placement, dim) {
            Some(part) if dim == 0 && self.rank.role.by_sequences() => Local::consecutive(all, part),
            part => Local::of(all, part),
        }
    }

    pub(crate) fn conflict(&self, op: &Op, id: usize, wanted: &str, remedy: &str) -> Box<LayoutConflict> {
        let placement = self.placements[id];
        Box::new(LayoutConflict {
            unit: self.global.name.clone(),
            phase: self.phase.name(),
            op: op.name(),
            value: self.global.values[id].name.clone(),
            axis: self.rank.axis,
            found: placement.map_or("without a layout".into(), |p| p.to_string()),
            wanted: wanted.into(),
            remedy: remedy.into(),
            key: self.recipe_key(op, id),
        })
    }

    /// The recipe key that changes the layout of a value, or of the operator that computes it.
    fn recipe_key(&self, op: &Op, id: usize) -> String {
        let operands: Vec<usize> = op.operands().iter().map(|o| o.view.buffer.id as usize).collect();
        let number = |id: &usize| self.global.values[*id].parameter;
        let number = std::iter::once(&id).chain(&operands).find_map(number);
        match number.filter(|_| self.rank.axis == Axis::Tensor) {
            Some(number) => {
                format!("parallel.annotate.\"{}{}\"", self.global.name, self.global.parameters[number])
            }
            None => format!("parallel.{}", self.rank.axis),
        }
    }

    /// The loop of the operator that the axis shards.
    fn choose(&self, op: &Op, rule: &Rule) -> Option<Loop> {
        let operands: Vec<_> = op.operands().iter().copied().collect();
        let of = |wanted: &dyn Fn(&Value, Access) -> bool| {
            operands.iter().zip(&rule.operands).find_map(|(operand, by)| {
                let id = operand.view.buffer.id as usize;
                let Some(Placement::Shard { dim }) = self.placements[id] else { return None };
                let found =
                    wanted(&self.global.values[id], operand.access).then(|| self.loop_of(rule, by, dim))?;
                let of_tokens = |f: &usize| rule.factors[*f].name == Rule::TOKENS;
                let whole = self.shards_experts && found.iter().any(of_tokens);
                (unshardable(rule, &found).is_none() && !found.is_empty() && !whole).then_some(found)
            })
        };
        let parameter = |v: &Value| v.parameter.is_some();
        let by_parameters = || of(&|v, _| parameter(v));
        let first = if self.rank.role == AxisRole::Sequences { None } else { by_parameters() };
        first
            .or_else(|| of(&|v, access| !parameter(v) && access != Access::Read))
            .or_else(|| of(&|v, access| !parameter(v) && access == Access::Read))
            .or_else(by_parameters)
    }

    /// The loop that a dim of an operand is sharded by.
    pub(crate) fn loop_of(&self, rule: &Rule, operand: &OperandRule, dim: usize) -> Loop {
        sharded_loop(rule, operand, dim, self.rank.role)
    }

    /// The dim of an operand that has the loop.
    pub(crate) fn dim_of(&self, rule: &Rule, operand: &OperandRule, sharded: &Loop) -> Option<usize> {
        dim_of(rule, operand, sharded, self.rank.role)
    }

    /// An operator, or the composite that it becomes on this axis.
    pub(crate) fn node(&mut self, launch: &Launch) -> Result<(), Box<LayoutConflict>> {
        match &launch.op {
            Op::LinearCrossEntropy(op) if self.rank.role == AxisRole::Turned => self.loss_of_tokens(*op),
            Op::LinearCrossEntropy(op) => self.loss(*op),
            // Operators after a product of terms run after their sum.
            Op::Linear(op) if op.activation.is_some() && self.sums(op.weight, 1) => {
                let Some((kind, pre)) = op.activation else { return Ok(()) };
                let product = Linear { activation: None, out: pre, ..*op };
                self.launch(&Launch { op: product.into(), ..launch.clone() })?;
                let op = Activation { kind, x: pre, out: op.out };
                self.launch(&Launch { op: op.into(), ..launch.clone() })
            }
            Op::LinearBackwardInput(op) if op.activation.is_some() && self.sums(op.weight, 0) => {
                let Some((kind, x)) = op.activation else { return Ok(()) };
                let product = LinearBackwardInput { activation: None, ..*op };
                self.launch(&Launch { op: product.into(), ..launch.clone() })?;
                let op = ActivationBackward { kind, x, dout: op.dx, dx: op.dx };
                self.launch(&Launch { op: op.into(), ..launch.clone() })
            }
            Op::Norm(op) if self.normalises_columns(op.weight) => self.norm(launch, op),
            Op::NormBackward(op) if self.normalises_columns(op.weight) => self.norm_backward(launch, op),
            _ => self.launch(launch),
        }
    }

    /// Whether ranks of an axis that shards columns of the residual stream make terms of a product, by this dim of its matrix.
    fn sums(&self, weight: View, dim: usize) -> bool {
        let sharded = self.placements[weight.buffer.id as usize] == Some(Placement::Shard { dim });
        self.rank.role.shards_columns() && sharded
    }

    pub(crate) fn launch(&mut self, launch: &Launch) -> Result<(), Box<LayoutConflict>> {
        if self.exchanges_heads(&launch.op) {
            return self.launch_by_heads(launch);
        }
        if self.passes_blocks(&launch.op) {
            return self.launch_by_blocks(&launch.op);
        }
        let (op, rule) = (&launch.op, launch.op.rule());
        let sharded = self.choose(op, &rule).unwrap_or_default();
        let sums = sharded.iter().any(|f| rule.factors[*f].kind == FactorKind::Sum);
        let operands: Vec<_> = op.operands().iter().copied().collect();
        let mut views: BTreeMap<usize, View> = BTreeMap::new();
        let mut local = op.clone();
        let mut terms = false;
        // Terms that only one rank may add.
        if sums && self.rank.index > 0 {
            without_once(&mut local, &rule);
        }
        for (operand, by) in operands.iter().zip(&rule.operands).filter(|(o, _)| o.access == Access::Read) {
            let id = operand.view.buffer.id as usize;
            let dim = self.dim_of(&rule, by, &sharded);
            // Another operand is this rank's rows of the same value.
            let rows_too = operands.iter().zip(&rule.operands).any(|(o, by)| {
                o.view.buffer == operand.view.buffer && self.dim_of(&rule, by, &sharded) == Some(0)
            });
            let columns = rows_too.then_some(operand.name);
            let is_term = matches!(self.placements[id], Some(Placement::Partial { .. }));
            let own = by.own.is_some_and(|factor| sharded.contains(&factor));
            let view = match is_term {
                // A rank's own rows have its own offsets; an operator that is linear in a term makes terms.
                true if own => self.local_view(id, operand.view, Placement::Replicate),
                true if by.passes_terms() => {
                    terms = true;
                    self.local_view(id, operand.view, Placement::Replicate)
                }
                false if own => {
                    let wanted = "it needs the offsets of this rank's rows";
                    return Err(self.conflict(op, id, wanted, "assign the rows of the same tokens"));
                }
                _ => self.read(op, id, operand.view, (dim, columns))?,
            };
            views.insert(key(&operand.view), view);
        }
        let mut after = Vec::new();
        let written = || operands.iter().zip(&rule.operands).filter(|(o, _)| o.access != Access::Read);
        let made = |by: &OperandRule| match dim_of(&rule, by, &sharded, self.rank.role) {
            Some(dim) => Placement::Shard { dim },
            None if (sums || terms) && by.reduce != TermReduction::Equal => {
                Placement::Partial { reduce: Reduction::Sum }
            }
            None => Placement::Replicate,
        };
        let made: Vec<Placement> = written().map(|(_, by)| made(by)).collect();
        let scatters = written().zip(&made).any(|((o, _), made)| self.scatters_gradient(o, *made));
        for ((operand, _), made) in written().zip(made) {
            let id = operand.view.buffer.id as usize;
            let rows = operand.view.rows;
            // Rows of a matrix may happen to be as many as tokens.
            let of_tokens = |view: &View| self.global.values[view.buffer.id as usize].parameter.is_none();
            let by_rows = operands.iter().zip(&rule.operands).any(|(o, by)| {
                self.dim_of(&rule, by, &sharded) == Some(0) && o.view.rows == rows && of_tokens(&o.view)
            });
            let view = match scatters && self.global.values[id].parameter.is_some() {
                true => self.write_terms(operand, made, &mut after),
                false => self.write(op, operand.name, (id, operand.view), (made, by_rows), &mut after)?,
            };
            views.insert(key(&operand.view), view);
            self.forget(id);
        }
        self.bind(launch, local, &views, &self.origins(&operands, &rule, &sharded), after);
        Ok(())
    }

    /// Appends `local`, this rank's part of an operator, on these views, and the nodes after it.
    pub(crate) fn bind(
        &mut self,
        launch: &Launch,
        mut local: Op,
        views: &BTreeMap<usize, View>,
        origins: &[(&'static str, usize, usize)],
        after: Vec<Node>,
    ) {
        local.for_each_view(&mut |view| {
            if let Some(bound) = views.get(&key(view)) {
                *view = *bound;
            }
        });
        localize(&mut local, &launch.op, origins, self.rank.role.by_sequences());
        self.set_first_token(&mut local, &launch.op, origins);
        let inner = match &launch.op {
            Op::Dropout(o) if self.rank.divides_rows_first() => self.inner_rows(o.x),
            Op::KeepChoices(o) if self.rank.divides_rows_first() => self.inner_rows(o.kept),
            Op::KeepInNode(o) if self.rank.divides_rows_first() => self.inner_rows(o.out),
            _ => RowsPart { parts: 1, index: 0 },
        };
        for op in self.rank.stretches(local, &launch.op, origins, inner) {
            self.push(Node::Launch(Launch { op, ..launch.clone() }));
        }
        after.into_iter().for_each(|node| self.push(node));
    }

    /// Sets where the tokens of this rank's part begin. An axis that divides rows first divides those that the axes before have divided as if
    /// they were all.
    fn set_first_token(&self, local: &mut Op, whole: &Op, origins: &[(&'static str, usize, usize)]) {
        let Some((first, tokens)) = first_token(local) else { return };
        let Some((_, _, origin)) = origins.iter().find(|(name, dim, _)| (*name, *dim) == (tokens, 0)) else {
            return;
        };
        let operand = whole.operands().iter().find(|o| o.name == tokens).map(|o| o.view);
        let inner = operand.map_or(1, |view| self.inner_rows(view).parts);
        *first = match self.rank.divides_rows_first() {
            true => origin * inner + *first / self.rank.degree,
            false => origin + *first,
        };
    }

    /// The part of the rows of a value's view that the axes before have left.
    fn inner_rows(&self, view: View) -> RowsPart {
        let value = &self.global.values[view.buffer.id as usize];
        let shards = |rank: &&Rank| value.placement(rank.axis) == Placement::Shard { dim: 0 };
        // A later axis divides first.
        self.before.iter().rev().filter(shards).fold(RowsPart { parts: 1, index: 0 }, |of, rank| RowsPart {
            parts: of.parts * rank.degree,
            index: of.index * rank.degree + rank.index,
        })
    }

    /// First element, in the whole, of this rank's part of each operand that is sharded.
    pub(crate) fn origins(
        &self,
        operands: &[Operand],
        rule: &Rule,
        sharded: &Loop,
    ) -> Vec<(&'static str, usize, usize)> {
        let origin = |(operand, by): (&Operand, &OperandRule)| {
            let dim = self.dim_of(rule, by, sharded)?;
            let held = self.local(operand.view.buffer.id as usize, Placement::Shard { dim }, dim);
            Some((operand.name, dim, held.start()))
        };
        operands.iter().zip(&rule.operands).filter_map(origin).collect()
    }

    /// Partitions a collective that an earlier pass has placed, over another axis: it moves this rank's part of its values.
    fn other_axis(&mut self, c: &Collective) -> Result<(), Box<LayoutConflict>> {
        let (src, dst) = (c.src.buffer.id as usize, c.dst.buffer.id as usize);
        let from = self.placements[src].unwrap_or_default();
        let last = self.rank.divides_rows_first() || self.global.values[dst].parameter.is_some();
        let along = c.kind.moves_dim().then_some(Placement::Shard { dim: c.dim });
        let whole = Some(from) == along && !last;
        let to = self.placements[dst].unwrap_or(if whole { Placement::Replicate } else { from });
        self.place(dst, to);
        // On a grid this rank's part is gathered before the collective of the other axis.
        let losses =
            self.rank.divides_rows_first() && self.global.values[dst].class == Class::Losses && from != to;
        let op = Op::from(Copy { src: c.src, dst: c.dst });
        let wanted = match if losses { from } else { to } {
            Placement::Shard { dim } => Some(dim),
            _ => None,
        };
        // The other axis moves parts of this rank's part if it divides last: in other values their order would be another one.
        if Some(to) == along && !last {
            let wanted = format!("it is gathered or scattered over {} along the same dim", c.axis);
            return Err(self.conflict(&op, src, &wanted, "shard another dim"));
        }
        let from = self.read(&op, src, c.src, (wanted, None))?;
        let mut after = Vec::new();
        let here = match losses {
            true => self.losses_of_rows(dst, &mut after),
            false => self.local_view(dst, c.dst, to),
        };
        self.next += 1;
        let moved = Collective { id: self.next - 1, src: from, dst: here, ..c.clone() };
        let rows = 0..moved.total_rows();
        self.push(Node::Collective(Collective { rows, ..moved }));
        after.into_iter().for_each(|node| self.push(node));
        self.forget(dst);
        Ok(())
    }

    /// A collective of this axis about a value, along a dim of it.
    pub(crate) fn collective(
        &mut self,
        kind: CollectiveKind,
        (id, dim): (usize, usize),
        src: View,
        dst: View,
    ) -> Collective {
        let name = format!("{}{}", self.global.name, self.out.values[id].name);
        self.next += 1;
        let (id, axis) = (self.next - 1, self.rank.axis);
        let order = self.rank.order;
        let (columns, messages, versions, rows) = (Vec::new(), Vec::new(), Vec::new(), 0..0);
        let whole = Collective {
            id,
            kind,
            axis,
            name,
            dim,
            order,
            columns,
            messages,
            by_counts: None,
            src,
            dst,
            rows,
            versions,
        };
        Collective { rows: 0..whole.total_rows(), ..whole }
    }

    pub(crate) fn push(&mut self, node: Node) {
        self.out.lists[self.phase as usize].push(node);
    }
}

/// Whether an axis shards the matrices of experts.
fn shards_experts(unit: &UnitProgram, axis: Axis) -> bool {
    let sharded = |weight: &View| {
        matches!(unit.values[weight.buffer.id as usize].placement(axis), Placement::Shard { .. })
    };
    let ops = unit.lists.iter().flatten().filter_map(Node::op);
    ops.into_iter().any(|op| matches!(op, Op::GroupedLinear(o) if sharded(&o.weight)))
}

/// Leaves out the operands of a partial product that only one rank adds.
fn without_once(op: &mut Op, rule: &Rule) {
    let once = |name: &str| rule.operand(name).is_some_and(|o| o.once);
    if let Op::Linear(o) = op {
        if once("bias") {
            o.bias = None;
        }
        if once("residual") {
            o.residual = None;
        }
    }
}
