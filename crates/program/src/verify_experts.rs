//! The verifier's part about ranks that share experts: rows are read in the order in which they lie, counts have come from all ranks,
//! and gradients of experts are made from the rows of all of them.
//!
//! | refused | because |
//! |---|---|
//! | a missing or doubled exchange, dispatch and combination exchanged | rows are read in the other order |
//! | offsets of this rank's rows where those of all ranks are wanted, or of another rank's experts | the groups are others |
//! | an expert's matrix read by another operator, or with rows that have not been exchanged | the rank has some experts only |
//! | a gradient of an expert from rows of this rank alone, any other from received rows | terms are missing, or are other parameters' |
//! | a sum over this axis within a list | data-parallel reductions follow the lists |
//! | an operator that touches rows that have not come | it has no count of them |
//!
//! Counts of another micro-batch, and nodes in another order, have other versions ([`crate::seal`]).

use crate::node::{Collective, CollectiveKind, Node};
use crate::rank::Rank;
use crate::unit::{Phase, UnitProgram};
use crate::value::Class;
use crate::verify::Violation;
use bessemer_mesh::Placement;
use bessemer_tensor::View;
use bessemer_tensor::op::{Access, Op, Rule};
use std::collections::BTreeMap;

/// Contents of a value with regard to the axis.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Holds {
    Nothing,
    /// Values of this rank's tokens, or the same ones on every rank.
    Own,
    /// Matrices of some experts.
    Experts,
    /// Offsets of this rank's rows.
    Offsets,
    /// Offsets of all ranks' rows.
    AllOffsets,
    /// Groups of the rows that have come.
    Groups,
    /// Rows of this rank's tokens, by expert.
    Sent,
    /// Rows for this rank's experts, by rank and expert.
    Received,
}

impl Holds {
    fn name(self) -> &'static str {
        match self {
            Holds::Nothing => "unwritten",
            Holds::Own => "of this rank's tokens",
            Holds::Experts => "of some experts",
            Holds::Offsets => "offsets of this rank's rows",
            Holds::AllOffsets => "offsets of all ranks' rows",
            Holds::Groups => "groups of received rows",
            Holds::Sent => "rows of this rank's tokens by expert",
            Holds::Received => "rows for this rank's experts",
        }
    }
}

/// Checks every list that will run with regard to the axis whose ranks share experts.
///
/// # Errors
/// The first node that is wrong, with the value's name.
pub fn verify_experts(unit: &UnitProgram, phases: &[Phase], rank: Rank) -> Result<(), Box<Violation>> {
    let mut after: Option<Vec<Holds>> = None;
    let mut away = BTreeMap::new();
    for &phase in phases {
        let holds = unit.values.iter().enumerate().map(|(id, value)| match value.class {
            // What earlier lists have left.
            Class::Local => match (phase, &after) {
                (Phase::Forward | Phase::Score, _) | (_, None) => Holds::Nothing,
                (_, Some(after)) => after[id],
            },
            Class::Parameter(_) if sharded(unit, id, rank) => Holds::Experts,
            _ => Holds::Own,
        });
        let mut check = CheckingExperts { unit, rank, phase, holds: holds.collect(), away: &mut away };
        for (at, node) in unit.list(phase).iter().enumerate() {
            check.node(at, node)?;
        }
        if matches!(phase, Phase::Forward | Phase::BackwardInput) {
            after = Some(check.holds);
        }
    }
    Ok(())
}

fn sharded(unit: &UnitProgram, id: usize, rank: Rank) -> bool {
    unit.values[id].placement(rank.axis) == Placement::Shard { dim: 0 }
}

struct CheckingExperts<'a> {
    unit: &'a UnitProgram,
    rank: Rank,
    phase: Phase,
    holds: Vec<Holds>,
    /// By place in the second memory.
    away: &'a mut BTreeMap<u64, Holds>,
}

impl CheckingExperts<'_> {
    fn wrong(&self, node: usize, id: usize, problem: String) -> Box<Violation> {
        Box::new(Violation {
            unit: self.unit.name.clone(),
            phase: self.phase.name(),
            node,
            value: self.unit.values[id].name.clone(),
            problem,
        })
    }

    fn expect(&self, at: usize, view: &View, wanted: Holds) -> Result<(), Box<Violation>> {
        let id = view.buffer.id as usize;
        match self.holds[id] {
            found if found == wanted => Ok(()),
            found => {
                let problem = format!("is {}, wanted {}", found.name(), wanted.name());
                Err(self.wrong(at, id, problem))
            }
        }
    }

    fn set(&mut self, view: &View, holds: Holds) {
        self.holds[view.buffer.id as usize] = holds;
    }

    fn node(&mut self, at: usize, node: &Node) -> Result<(), Box<Violation>> {
        match node {
            Node::Launch(launch) => self.op(at, &launch.op),
            Node::Collective(c) if c.axis == self.rank.axis => self.collective(at, c),
            Node::Start(c) if c.axis == self.rank.axis => {
                Err(self.wrong(at, c.src.buffer.id as usize, format!("is started over {}", c.axis)))
            }
            Node::Offload(moved) => {
                self.away.insert(moved.offset, self.holds[moved.value()]);
                Ok(())
            }
            Node::Reload(moved) => {
                self.holds[moved.value()] = self.away.get(&moved.offset).copied().unwrap_or(Holds::Nothing);
                Ok(())
            }
            // Over other axes: what the ranks have of it, they have afterwards.
            Node::Collective(c) | Node::Start(c) if c.src.rows > 0 && c.dst.rows > 0 => {
                let holds = self.holds[c.src.buffer.id as usize];
                self.set(&c.dst, holds);
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn collective(&mut self, at: usize, c: &Collective) -> Result<(), Box<Violation>> {
        match (c.kind, c.by_counts) {
            (CollectiveKind::AllGather, None) => {
                self.expect(at, &c.src, Holds::Offsets)?;
                self.set(&c.dst, Holds::AllOffsets);
            }
            (CollectiveKind::AllToAll, Some(by)) => {
                self.expect(at, &by.offsets, Holds::AllOffsets)?;
                let (from, to) = match by.to_experts {
                    true => (Holds::Sent, Holds::Received),
                    false => (Holds::Received, Holds::Sent),
                };
                self.expect(at, &c.src, from)?;
                if c.src.cols != c.dst.cols {
                    let problem = "has another width than what it is exchanged for".into();
                    return Err(self.wrong(at, c.src.buffer.id as usize, problem));
                }
                self.set(&c.dst, to);
            }
            (kind, _) => {
                let (id, axis) = (c.src.buffer.id as usize, c.axis);
                return Err(self.wrong(at, id, format!("is the operand of {} over {axis}", kind.name())));
            }
        }
        Ok(())
    }

    fn op(&mut self, at: usize, op: &Op) -> Result<(), Box<Violation>> {
        use Holds::{AllOffsets, Experts, Groups, Offsets, Own, Received, Sent};
        match op {
            Op::AssignRows(o) => {
                self.expect(at, &o.experts, Own)?;
                self.set(&o.rows, Own);
                self.set(&o.sources, Own);
                self.set(&o.offsets, Offsets);
            }
            Op::ReceivedGroups(o) => {
                self.expect(at, &o.offsets, AllOffsets)?;
                let experts = (o.offsets.cols - 1) / self.rank.degree;
                if o.first != self.rank.index * experts || o.groups.cols != self.rank.degree * experts + 1 {
                    let problem = format!("counts rows of other experts than {experts} from {} on", o.first);
                    return Err(self.wrong(at, o.groups.buffer.id as usize, problem));
                }
                self.set(&o.groups, Groups);
            }
            Op::Dispatch(o) => {
                self.expect(at, &o.x, Own)?;
                self.expect(at, &o.sources, Own)?;
                self.set(&o.out, Sent);
            }
            Op::DispatchBackward(o) => {
                self.expect(at, &o.dout, Sent)?;
                self.expect(at, &o.rows, Own)?;
                self.set(&o.dx, Own);
            }
            Op::CombineRows(o) => {
                self.expect(at, &o.x, Sent)?;
                self.expect(at, &o.rows, Own)?;
                self.expect(at, &o.weights, Own)?;
                self.set(&o.out, Own);
            }
            Op::CombineRowsBackward(o) => {
                self.expect(at, &o.x, Sent)?;
                for view in [&o.dout, &o.rows, &o.sources, &o.weights] {
                    self.expect(at, view, Own)?;
                }
                self.set(&o.dx, Sent);
                self.set(&o.dweights, Own);
            }
            Op::GroupedLinear(o) => self.product(at, [&o.x, &o.offsets, &o.weight], &o.out)?,
            Op::GroupedLinearBackwardInput(o) => self.product(at, [&o.dy, &o.offsets, &o.weight], &o.dx)?,
            Op::GroupedLinearBackwardWeight(o) => {
                self.expect(at, &o.x, Received)?;
                self.expect(at, &o.dy, Received)?;
                self.expect(at, &o.offsets, Groups)?;
                let id = o.dweight.buffer.id as usize;
                if !sharded(self.unit, id, self.rank) {
                    return Err(self.wrong(
                        at,
                        id,
                        "is made as a gradient of experts, but every rank has all of the parameter".into(),
                    ));
                }
                self.holds[id] = Experts;
            }
            op => self.other(at, op)?,
        }
        Ok(())
    }

    fn product(
        &mut self,
        at: usize,
        [rows, offsets, weight]: [&View; 3],
        out: &View,
    ) -> Result<(), Box<Violation>> {
        self.expect(at, rows, Holds::Received)?;
        self.expect(at, offsets, Holds::Groups)?;
        self.expect(at, weight, Holds::Experts)?;
        self.set(out, Holds::Received);
        Ok(())
    }

    /// An operator that is not one of a mixture: on this rank's tokens, or on single rows between the products of experts.
    fn other(&mut self, at: usize, op: &Op) -> Result<(), Box<Violation>> {
        let operands = op.operands();
        let read = || operands.iter().filter(|o| o.access != Access::Write);
        let live = |name: &str| name == Rule::LIVE;
        let received = read().any(|o| self.holds[o.view.buffer.id as usize] == Holds::Received);
        for o in read() {
            let wanted = match (received, live(o.name)) {
                (_, true) => Holds::Groups,
                (true, false) => Holds::Received,
                (false, false) => Holds::Own,
            };
            let id = o.view.buffer.id as usize;
            // A gradient that is added to, or a value whose other columns are written elsewhere.
            if o.access == Access::Update && self.holds[id] == Holds::Nothing {
                continue;
            }
            self.expect(at, &o.view, wanted)?;
        }
        if received && !operands.iter().any(|o| live(o.name)) {
            let id = operands.iter().next().map_or(0, |o| o.view.buffer.id as usize);
            return Err(self.wrong(at, id, format!("is read by {} without a count of its rows", op.name())));
        }
        for o in operands.iter().filter(|o| o.access != Access::Read) {
            let id = o.view.buffer.id as usize;
            if sharded(self.unit, id, self.rank) {
                return Err(self.wrong(
                    at,
                    id,
                    format!("is made by {}, of this rank's rows alone", op.name()),
                ));
            }
            self.holds[id] = if received { Holds::Received } else { Holds::Own };
        }
        Ok(())
    }
}
