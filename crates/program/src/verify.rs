//! The verifier: refuses a rank's program that would compute something else than the program for one device.
//!
//! A term that is taken for the sum, a sum that is formed twice, a shard that is taken for the whole: such mistakes cause no error in
//! a run, the loss is only a little wrong (Megatron-LM issue 7452). So each list is run on states instead of numbers: for
//! every value whether it is undefined, replicated, sharded, partial or in flight, with the operators' sharding rules as
//! transfer functions. Every node is also compared with the versions of its operands that the program was sealed with: a node that
//! is missing, doubled, or at another position in the order leaves some node with another version than it was made for.
//!
//! | refused | because |
//! |---|---|
//! | a missing reduction | its consumer reads a partial value, or a partial value is left at the end |
//! | a doubled or re-targeted reduction | its operand is no partial value |
//! | a missing or early wait | a value is read in flight |
//! | dependent nodes exchanged | a version differs |
//! | a replicated operand of a sharded loop read whole, a bias on every rank | the shape of the operand, or its presence |
//! | columns of a fused value that no node has written | a value's columns are written one by one |
//! | a block of attention with another rank's rows than it is for, left out or taken in twice | see `verify_blocks` |
//! | a value read while it is in the second memory, left there, or written after it has left | see `verify_offload` |
//! | scratch values that overlap while both live | memory |

use crate::loops::{Loop, dim_of, sharded_loop, unshardable};
use crate::memory::{Home, UnitMemory};
use crate::node::{Collective, CollectiveKind, Node, Version};
use crate::rank::Rank;
use crate::run::adding_form;
use crate::unit::{Phase, UnitProgram};
use crate::value::Class;
use crate::verify_blocks::BlockRows;
use crate::verify_collectives::result;
use crate::verify_offload::AwayValues;
use crate::written::WrittenColumns;
use bessemer_mesh::{Placement, Reduction};
use bessemer_tensor::View;
use bessemer_tensor::op::{Access, FactorKind, Op, TermReduction};
use std::collections::{BTreeMap, BTreeSet};

/// Writes into every node the versions of the values that it touches, and the forms of operators that add to gradients: the last
/// pass.
pub fn seal(unit: &mut UnitProgram) {
    let UnitProgram { values, lists, .. } = &mut *unit;
    for node in lists.iter_mut().flatten() {
        if let Node::Launch(launch) = node {
            launch.adding = adding_form(values, &launch.op);
        }
    }
    for list in &mut unit.lists {
        let mut counts = vec![0u32; unit.values.len()];
        for node in list {
            let versions = count(node, &mut counts);
            node.set_versions(versions);
        }
    }
}

/// The versions of the values that a node touches, before it writes.
fn count(node: &Node, counts: &mut [u32]) -> Vec<Version> {
    let touches = node.touches();
    let version = |value: usize| Version { value, writes: counts[value] };
    let versions = touches.iter().map(|t| version(t.value())).collect();
    for touch in touches.iter().filter(|t| t.access != Access::Read) {
        counts[touch.value()] += 1;
    }
    versions
}

/// A program that must not run.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("program {unit}{phase}, node {node}: {value} {problem}")]
pub struct Violation {
    /// The unit.
    pub unit: String,
    /// The list.
    pub phase: &'static str,
    /// Number of the node in the list.
    pub node: usize,
    /// The value.
    pub value: String,
    /// Description of the fault.
    pub problem: String,
}

/// State of a value.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum State {
    Undefined,
    Is(Placement),
    /// Terms of a log-sum-exp: this rank's, or those of all ranks.
    LogTerms {
        gathered: bool,
    },
    /// Rows of another rank, or results and terms of gradients that lack some ranks' part.
    Block(BlockRows),
    /// Rows of a block that are in flight to this rank.
    Coming,
    /// A collective in flight writes or reads the value; rows that have arrived.
    Moving {
        done: Vec<std::ops::Range<usize>>,
        then: Placement,
    },
}

impl std::fmt::Display for State {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            State::Undefined => f.write_str("unwritten"),
            State::Is(placement) => write!(f, "{placement}"),
            State::LogTerms { gathered: true } => f.write_str("gathered terms of a log-sum-exp"),
            State::LogTerms { gathered: false } => f.write_str("terms of a log-sum-exp"),
            State::Block(_) => f.write_str("the rows of a block"),
            State::Coming | State::Moving { .. } => f.write_str("in flight"),
        }
    }
}

/// Checks every list that will run. `memory` is the plan that the program was sealed with.
///
/// # Errors
/// The first node that is wrong, with the value's name.
pub fn verify(
    unit: &UnitProgram,
    memory: &UnitMemory,
    phases: &[Phase],
    ranks: &[Rank],
) -> Result<(), Box<Violation>> {
    (0..ranks.len()).try_for_each(|at| verify_over(unit, memory, phases, ranks[at], &ranks[at + 1..]))
}

/// Checks every list with regard to one axis: collectives over others are operators that work on every element alike.
fn verify_over(
    unit: &UnitProgram,
    memory: &UnitMemory,
    phases: &[Phase],
    rank: Rank,
    later: &[Rank],
) -> Result<(), Box<Violation>> {
    let mut after_forward: Option<Vec<State>> = None;
    let mut after_input: Option<Vec<State>> = None;
    let mut away = AwayValues::default();
    for &phase in phases {
        let mut check = Checking {
            unit,
            rank,
            later,
            phase,
            states: vec![State::Undefined; unit.values.len()],
            written: WrittenColumns::none(unit.values.len()),
            under_way: BTreeMap::new(),
            elsewhere: BTreeSet::new(),
            away: std::mem::take(&mut away),
        };
        check.begin(memory, (&after_forward, &after_input));
        check.list()?;
        check.scratch(memory)?;
        away = std::mem::take(&mut check.away);
        match phase {
            Phase::Forward => after_forward = Some(check.states),
            Phase::BackwardInput => after_input = Some(check.states),
            _ => {}
        }
    }
    match away.forgotten() {
        Some((node, id)) => Err(Box::new(Violation {
            unit: unit.name.clone(),
            phase: Phase::Forward.name(),
            node,
            value: unit.values[id].name.clone(),
            problem: "is offloaded, and no backward list reloads it".into(),
        })),
        None => Ok(()),
    }
}

pub(crate) struct Checking<'a> {
    pub(crate) unit: &'a UnitProgram,
    pub(crate) rank: Rank,
    /// Axes for which the unit was rewritten after this one.
    pub(crate) later: &'a [Rank],
    pub(crate) phase: Phase,
    pub(crate) states: Vec<State>,
    pub(crate) written: WrittenColumns,
    /// Collectives in flight, keyed by number.
    pub(crate) under_way: BTreeMap<usize, Collective>,
    /// Numbers of those that ranks of other axes have started.
    pub(crate) elsewhere: BTreeSet<usize>,
    /// Values in the second memory.
    pub(crate) away: AwayValues,
}

impl Checking<'_> {
    /// Sets the state of every value before the list begins.
    fn begin(&mut self, memory: &UnitMemory, (forward, input): (&Option<Vec<State>>, &Option<Vec<State>>)) {
        let left =
            |of: &Option<Vec<State>>, id: usize| of.as_ref().map_or(State::Undefined, |s| s[id].clone());
        for id in 0..self.unit.values.len() {
            let value = &self.unit.values[id];
            self.states[id] = match (value.class, memory.homes[id]) {
                (Class::Local, home) if home.is_scratch(self.phase) => State::Undefined,
                (Class::Local, _) if self.phase == Phase::Forward || self.phase == Phase::Score => {
                    State::Undefined
                }
                (Class::Local, Home::Pending) => left(input, id),
                (Class::Local, _) => left(forward, id),
                _ if self.makes(id) => State::Undefined,
                _ => State::Is(value.placement(self.rank.axis)),
            };
            if self.states[id] != State::Undefined {
                self.written.all(id, value);
            }
        }
    }

    /// Whether the list makes the value from nothing: the residual stream that leaves the unit, losses, and in the head the stream's
    /// gradient.
    fn makes(&self, id: usize) -> bool {
        let backward = matches!(self.phase, Phase::Backward | Phase::BackwardInput);
        let last = || self.unit.values.iter().all(|v| v.class != Class::StreamOut);
        match self.unit.values[id].class {
            Class::StreamOut => matches!(self.phase, Phase::Forward | Phase::Score),
            Class::Losses => backward || self.phase == Phase::Score,
            Class::AuxiliaryLoss(number) => self.unit.makes_loss(self.phase, number),
            Class::Counts => self.phase == Phase::Forward,
            Class::StreamGradient => backward && last(),
            _ => false,
        }
    }

    pub(crate) fn wrong(&self, node: usize, id: usize, problem: impl Into<String>) -> Box<Violation> {
        Box::new(Violation {
            unit: self.unit.name.clone(),
            phase: self.phase.name(),
            node,
            value: self.unit.values[id].name.clone(),
            problem: problem.into(),
        })
    }

    fn list(&mut self) -> Result<(), Box<Violation>> {
        let list = self.unit.list(self.phase);
        let mut counts = vec![0; self.unit.values.len()];
        for (at, node) in list.iter().enumerate() {
            let found = count(node, &mut counts);
            let touches = node.touches();
            if let Some(i) = (0..touches.len()).find(|i| node.versions().get(*i) != found.get(*i)) {
                let name =
                    |v: &Version| format!("{} after {} writes", self.unit.values[v.value].name, v.writes);
                let wanted = node.versions().get(i).map_or("nothing".into(), name);
                let problem =
                    format!("has been written {} times; the node was made for {wanted}", found[i].writes);
                return Err(self.wrong(at, touches[i].value(), problem));
            }
            let mut written = touches.iter().filter(|t| t.access != Access::Read).map(|t| t.value());
            if let Some(id) = written.find(|id| self.phase == Phase::Forward && self.away.has(*id)) {
                return Err(self.wrong(at, id, "is written after it has been offloaded"));
            }
            match node {
                Node::Offload(moved) => self.offload(at, moved)?,
                Node::Reload(moved) => self.reload(at, moved)?,
                Node::Launch(launch) if self.computes_block(&launch.op) => self.block(at, &launch.op)?,
                Node::Launch(launch) => self.launch(at, &launch.op)?,
                Node::Collective(c) if c.axis != self.rank.axis => self.other_axis(at, c)?,
                Node::Start(c) if c.axis != self.rank.axis => {
                    self.elsewhere.insert(c.id);
                    self.other_axis(at, c)?;
                }
                Node::Wait { id, .. } if self.elsewhere.remove(id) => {}
                Node::Collective(c) if c.kind == CollectiveKind::Permute => {
                    self.permuted(at, c)?;
                    self.permutation_arrived(c);
                }
                Node::Collective(c) => {
                    self.source(at, c)?;
                    let terms = matches!(self.states[c.src.buffer.id as usize], State::LogTerms { .. });
                    // The source of a reduce-scatter is unspecified afterwards.
                    if c.kind == CollectiveKind::ReduceScatter {
                        self.undefine(c.src.buffer.id as usize);
                    }
                    self.written.add(&self.unit.values[c.dst.buffer.id as usize], &c.dst);
                    self.states[c.dst.buffer.id as usize] = match terms {
                        true => State::LogTerms { gathered: true },
                        false => self.arrived(c, result(c)),
                    };
                }
                Node::Start(c) => self.start(at, c)?,
                Node::Wait { id, .. } => self.wait(at, *id)?,
            }
        }
        let end = list.len();
        if let Some(c) = self.under_way.values().next() {
            return Err(self.wrong(end, c.dst.buffer.id as usize, "is still in flight when the list ends"));
        }
        for (id, state) in self.states.iter().enumerate() {
            let value = &self.unit.values[id];
            let wanted = value.placement(self.rank.axis);
            let complete = match state {
                State::Is(found) => *found == wanted,
                // A list that is not there makes nothing.
                State::Undefined => list.is_empty() || !self.makes(id),
                // Scratch that no later node reads.
                State::LogTerms { .. } | State::Block(_) => value.class == Class::Local,
                State::Moving { .. } | State::Coming => false,
            };
            if !complete {
                return Err(self.wrong(end, id, format!("is left {state}, wanted {wanted}")));
            }
        }
        Ok(())
    }

    pub(crate) fn undefine(&mut self, id: usize) {
        self.states[id] = State::Undefined;
        self.written.clear(id);
    }

    /// The placement of an operand that is read.
    pub(crate) fn readable(&self, at: usize, view: &View) -> Result<Placement, Box<Violation>> {
        let id = view.buffer.id as usize;
        let value = &self.unit.values[id];
        let row = view.offset / value.cols.max(1);
        let rows = row..row + view.rows;
        match &self.states[id] {
            State::Undefined if self.phase != Phase::Forward && self.away.has(id) => {
                Err(self.wrong(at, id, "is read while it is in the second memory: a reload is missing"))
            }
            State::Undefined => Err(self.wrong(at, id, "is read before anything has written it")),
            State::LogTerms { .. } => {
                Err(self.wrong(at, id, "is read, but only terms of its log-sum-exps are here"))
            }
            State::Block(rows) => {
                Err(self.wrong(at, id, format!("is read as this rank's rows, but has {rows}")))
            }
            State::Coming => Err(self.wrong(at, id, "is read while it is in flight: a wait is missing")),
            State::Is(placement @ Placement::Partial { .. })
                if value.placement(self.rank.axis) == *placement =>
            {
                Ok(*placement)
            }
            State::Is(Placement::Partial { .. }) => {
                Err(self.wrong(at, id, "is read as the sum, but is one term of it: a reduction is missing"))
            }
            State::Is(_) if !self.written.has(value, view) => {
                Err(self.wrong(at, id, "is read before anything has written some of its columns"))
            }
            State::Is(placement) => Ok(*placement),
            State::Moving { done, then }
                if done.iter().any(|d| d.start <= rows.start && rows.end <= d.end) =>
            {
                Ok(*then)
            }
            State::Moving { .. } => {
                Err(self.wrong(at, id, "is read while it is in flight: a wait is missing"))
            }
        }
    }

    fn launch(&mut self, at: usize, op: &Op) -> Result<(), Box<Violation>> {
        let rule = op.rule();
        let operands: Vec<_> = op.operands().iter().copied().collect();
        let axis = self.rank.axis;
        let mut sharded: Option<(Loop, usize)> = None;
        let mut placements = Vec::with_capacity(operands.len());
        let mut terms = false;
        let mut own = Vec::new();
        for (operand, by) in operands.iter().zip(&rule.operands) {
            let id = operand.view.buffer.id as usize;
            let value = &self.unit.values[id];
            // Terms of a gradient that are begun with zeros.
            let begun = || {
                let written = self.states[id] != State::Undefined;
                operand.access == Access::Update && value.parameter.is_some() && written
            };
            let parameter = matches!(value.class, Class::Gradient(_)) || begun();
            let adds = || matches!(op, Op::Add(_) | Op::Copy(_) | Op::AddShadowGradients(_));
            let term = || adds() && value.parameter.is_some();
            let placement = match operand.access {
                _ if parameter => match value.placement(axis) {
                    Placement::Partial { .. } => Placement::Replicate,
                    placement => placement,
                },
                Access::Write => value.placement(axis),
                Access::Read
                    if matches!(op, Op::CombineLogSums(_))
                        && self.states[id] == (State::LogTerms { gathered: true }) =>
                {
                    Placement::Replicate
                }
                Access::Read | Access::Update => match self.readable(at, &operand.view)? {
                    // A term of a gradient is added to a term of it; an operator that is linear in a term makes terms.
                    Placement::Partial { .. } if term() || value.parameter.is_none() && by.passes_terms() => {
                        terms = true;
                        Placement::Replicate
                    }
                    Placement::Partial { .. } if by.own.is_some() => {
                        own.push(id);
                        Placement::Replicate
                    }
                    Placement::Partial { .. } => {
                        let problem = "is read as the sum, but is one term of it: a reduction is missing";
                        return Err(self.wrong(at, id, problem));
                    }
                    placement => placement,
                },
            };
            placements.push(placement);
            let Placement::Shard { dim } = placement else { continue };
            let found = sharded_loop(&rule, by, dim, self.rank.role);
            if let Some(name) = unshardable(&rule, &found) {
                let problem = format!("is sharded along {name}, which {} needs whole", op.name());
                return Err(self.wrong(at, id, problem));
            }
            match &sharded {
                Some((other, _)) if *other != found => {
                    let problem =
                        format!("is sharded along another loop of {} than the operands before it", op.name());
                    return Err(self.wrong(at, id, problem));
                }
                _ => sharded = Some((found, id)),
            }
        }
        let sharded = sharded.map(|s| s.0).unwrap_or_default();
        // Rows and gradients of an expert have come from all ranks of this axis.
        let of_all = matches!(op, Op::GroupedLinearBackwardWeight(_) | Op::AddShadowGradients(_));
        let complete = self.rank.exchanges_rows && of_all;
        let sums = !complete && sharded.iter().any(|f| rule.factors[*f].kind == FactorKind::Sum);
        for ((operand, by), placement) in operands.iter().zip(&rule.operands).zip(&placements) {
            let id = operand.view.buffer.id as usize;
            let has = dim_of(&rule, by, &sharded, self.rank.role);
            let wants_own = by.own.is_some_and(|factor| sharded.contains(&factor));
            if operand.access == Access::Read && wants_own != own.contains(&id) {
                let problem = match wants_own {
                    true => "counts the rows of all ranks, where this rank's are wanted",
                    false => "counts this rank's rows, where those of all ranks are wanted",
                };
                return Err(self.wrong(at, id, problem));
            }
            if sums && by.once && self.rank.index > 0 {
                return Err(self.wrong(at, id, "is added by more than one rank to the terms of one sum"));
            }
            // A replicated operand of a sharded loop is a slice of its value.
            if let (Some(dim), Placement::Replicate, Access::Read) = (has, placement, operand.access) {
                let value = &self.unit.values[id];
                let (len, all) =
                    if dim == 0 { (operand.view.rows, value.rows) } else { (operand.view.cols, value.cols) };
                if len >= all && all > 1 {
                    return Err(self.wrong(at, id, "is read whole where this rank computes a part"));
                }
            }
        }
        for (operand, by) in operands.iter().zip(&rule.operands).filter(|(o, _)| o.access != Access::Read) {
            let id = operand.view.buffer.id as usize;
            self.written.add(&self.unit.values[id], &operand.view);
            let made = match dim_of(&rule, by, &sharded, self.rank.role) {
                Some(dim) => Placement::Shard { dim },
                None if sums && by.reduce == TermReduction::Sum => {
                    Placement::Partial { reduce: Reduction::Sum }
                }
                None if sums && by.reduce == TermReduction::LogSumExp => {
                    self.states[id] = State::LogTerms { gathered: false };
                    continue;
                }
                None if terms && !complete && by.reduce != TermReduction::Equal => {
                    Placement::Partial { reduce: Reduction::Sum }
                }
                None => Placement::Replicate,
            };
            match op {
                // Zeros are a term of every sum.
                Op::Fill(_) if self.states[id] == State::Undefined => {
                    self.states[id] = State::Is(self.unit.values[id].placement(self.rank.axis));
                }
                Op::Fill(_) => {}
                _ => self.written(at, id, made, operand.access)?,
            }
        }
        Ok(())
    }

    fn written(
        &mut self,
        at: usize,
        id: usize,
        made: Placement,
        access: Access,
    ) -> Result<(), Box<Violation>> {
        let value = &self.unit.values[id];
        let wanted = value.placement(self.rank.axis);
        let partial = matches!(made, Placement::Partial { .. });
        if matches!(self.states[id], State::LogTerms { .. }) {
            return Ok(());
        }
        if let State::Moving { .. } = self.states[id] {
            // Rows of a value whose other rows are in flight.
            return Ok(());
        }
        let gradient = matches!(value.class, Class::Gradient(_));
        if gradient && made != wanted {
            return Err(self.wrong(
                at,
                id,
                format!("is written {made}, but the optimizer expects it to be {wanted}"),
            ));
        }
        if access == Access::Update && partial && value.parameter.is_none() {
            return Err(self.wrong(at, id, "is the sum, and a term is added to it"));
        }
        if !partial && made != wanted && !gradient {
            return Err(self.wrong(at, id, format!("is written {made}, wanted {wanted}")));
        }
        self.states[id] = State::Is(made);
        Ok(())
    }

    /// Scratch values that live at one time do not overlap.
    fn scratch(&self, memory: &UnitMemory) -> Result<(), Box<Violation>> {
        let mut lives: BTreeMap<usize, (usize, usize)> = BTreeMap::new();
        for (at, node) in self.unit.list(self.phase).iter().enumerate() {
            for touch in node.touches() {
                lives.entry(touch.value()).or_insert((at, at)).1 = at;
            }
        }
        let offsets = &memory.offsets[self.phase as usize];
        let placed: Vec<(usize, usize, (usize, usize))> =
            lives.iter().filter_map(|(id, life)| Some((*id, offsets[*id]?, *life))).collect();
        for (i, (a, from_a, life_a)) in placed.iter().enumerate() {
            for (b, from_b, life_b) in &placed[i + 1..] {
                let (va, vb) = (&self.unit.values[*a], &self.unit.values[*b]);
                let together = life_a.0 < life_b.1 && life_b.0 < life_a.1;
                let overlap =
                    va.dtype == vb.dtype && *from_a < from_b + vb.len() && *from_b < from_a + va.len();
                if together && overlap {
                    let problem = format!("shares scratch with {} while both live", vb.name);
                    return Err(self.wrong(life_a.0.max(life_b.0), *a, problem));
                }
            }
        }
        Ok(())
    }
}
