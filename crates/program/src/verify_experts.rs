//! The verifier's part about ranks that share experts: rows are read in their stored order, counts have arrived from all ranks,
//! and gradients of experts are made from the rows of all of them.
//! | refused | because |
//! |---|---|
//! | a missing or doubled exchange, dispatch and combination exchanged | rows are read in the other order |
//! | offsets of this rank's rows where those of all ranks are wanted, or of another rank's experts | the groups are others |
//! | an expert's matrix read by another operator, or with rows that have not been exchanged | the rank has some experts only |
//! | a gradient of an expert from rows of this rank alone, any other from received rows | terms are missing, or are other parameters' |
//! | a sum over this axis within a list | data-parallel reductions follow the lists |
//! | an operator that touches rows that have not arrived | it has no count of them |
//! | rows numbered without shadows, or exchanged by such counts, where there are shadows | rows for shadows would be sent |
//! | rows without those for shadows, or without those that are returned | some of them have not been written |
//! | matrices of shadows that were not gathered, gradients of shadows that stay | other ranks have the expert |
//! | a piece of an exchange that is missing, doubled or in another order, or another exchange between two | peers exchange others |
//! | rows of a piece that are read before its wait, or written while it is in flight | they may not have arrived, or may be overwritten |
//!
//! Counts of another micro-batch, and nodes in another order, have other versions ([`crate::seal`]).

use crate::node::{ByCounts, Collective, CollectiveKind, ExchangePiece, Node};
use crate::overlap::PIECES;
use crate::rank::Rank;
use crate::unit::{Phase, UnitProgram};
use crate::value::Class;
use crate::verify::Violation;
use bessemer_mesh::Placement;
use bessemer_tensor::View;
use bessemer_tensor::op::{Access, Op, Rule};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

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
    /// Places of rows, where shadows are chosen by their number.
    Unshadowed,
    /// Shadowed experts.
    Choice,
    /// Offsets of all ranks' rows that are exchanged, where others are those of shadows.
    Routed,
    /// Offsets of this rank's rows for shadows.
    ShadowOffsets,
    /// Matrices of shadows.
    ShadowMatrices,
    /// This rank's gradient of the matrices of shadows.
    ShadowGradient,
    /// Gradients of this rank's experts by all ranks.
    ShadowTerms,
    /// Rows for shadows, by shadow.
    ShadowRows,
    /// Rows as [`Holds::Sent`], without rows for shadows.
    WithoutShadows,
    /// Rows for shadows alone of [`Holds::Sent`].
    ShadowsAlone,
    /// Groups of the received rows.
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
            Holds::Unshadowed => "places of rows before shadows were chosen",
            Holds::Choice => "shadowed experts",
            Holds::Routed => "offsets of all ranks' rows that are exchanged",
            Holds::ShadowOffsets => "offsets of rows for shadows",
            Holds::ShadowMatrices => "matrices of shadows",
            Holds::ShadowGradient => "this rank's gradient of shadows",
            Holds::ShadowTerms => "terms of gradients of all ranks",
            Holds::ShadowRows => "rows for shadows",
            Holds::WithoutShadows => "rows of this rank's tokens by expert without those for shadows",
            Holds::ShadowsAlone => "rows of this rank's tokens for shadows",
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
    let shadows = unit.lists.iter().flatten().any(|node| matches!(node.op(), Some(Op::ChooseShadows(_))));
    let tokens = |node: &Node| match node {
        Node::Collective(c) | Node::Start(c) => match c.by_counts? {
            ByCounts::Rows { to_experts, .. } => Some(if to_experts { c.src } else { c.dst }),
            ByCounts::Shadows { .. } => None,
        },
        _ => None,
    };
    let sent: BTreeSet<u32> =
        unit.lists.iter().flatten().filter_map(tokens).map(|view| view.buffer.id).collect();
    let mut after: Option<Vec<Holds>> = None;
    let mut away = BTreeMap::new();
    for &phase in phases {
        let holds = unit.values.iter().enumerate().map(|(id, value)| match value.class {
            // Contents left by earlier lists.
            Class::Local => match (phase, &after) {
                (Phase::Forward | Phase::Score, _) | (_, None) => Holds::Nothing,
                (_, Some(after)) => after[id],
            },
            Class::Parameter(_) if sharded(unit, id, rank) => Holds::Experts,
            _ => Holds::Own,
        });
        let holds = holds.collect();
        let mut check = CheckingExperts {
            unit,
            rank,
            phase,
            shadows,
            sent: &sent,
            holds,
            away: &mut away,
            some: BTreeMap::new(),
            in_flight: Vec::new(),
            open: None,
        };
        for (at, node) in unit.list(phase).iter().enumerate() {
            check.node(at, node)?;
        }
        check.ended()?;
        let left =
            check.holds.iter().position(|holds| matches!(holds, Holds::ShadowGradient | Holds::ShadowTerms));
        if let Some(id) = left {
            return Err(check.wrong(
                unit.list(phase).len(),
                id,
                "does not reach the gradient of the expert".into(),
            ));
        }
        if matches!(phase, Phase::Forward | Phase::BackwardInput) {
            after = Some(check.holds);
        }
    }
    Ok(())
}

/// Direction and piece of an exchange of rows.
fn rows_of(c: &Collective) -> Option<(bool, ExchangePiece)> {
    match c.by_counts? {
        ByCounts::Rows { to_experts, piece, .. } => Some((to_experts, piece)),
        ByCounts::Shadows { .. } => None,
    }
}

fn sharded(unit: &UnitProgram, id: usize, rank: Rank) -> bool {
    unit.values[id].placement(rank.axis) == Placement::Shard { dim: 0 }
}

struct CheckingExperts<'a> {
    unit: &'a UnitProgram,
    rank: Rank,
    phase: Phase,
    /// The unit has shadows.
    shadows: bool,
    /// Values of rows of this rank's tokens.
    sent: &'a BTreeSet<u32>,
    holds: Vec<Holds>,
    /// Keyed by position in the second memory.
    away: &'a mut BTreeMap<u64, Holds>,
    /// Keyed by value that has the rows of some ranks only: these ranks.
    some: BTreeMap<usize, BTreeSet<usize>>,
    /// Pieces that were started and not waited for.
    in_flight: Vec<Collective>,
    /// The last piece of an exchange that is not the exchange's last.
    open: Option<Collective>,
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
            found if found == wanted => self.expect_of(at, view, &(0..self.rank.degree)),
            found => {
                let problem = format!("is {}, wanted {}", found.name(), wanted.name());
                Err(self.wrong(at, id, problem))
            }
        }
    }

    /// Refuses a value that lacks rows of one of these ranks.
    fn expect_of(&self, at: usize, view: &View, ranks: &Range<usize>) -> Result<(), Box<Violation>> {
        let id = view.buffer.id as usize;
        let lacks = |here: &BTreeSet<usize>| ranks.clone().find(|rank| !here.contains(rank));
        match self.some.get(&id).and_then(lacks) {
            None => Ok(()),
            Some(rank) => Err(self.wrong(at, id, format!("lacks the rows of rank {rank}"))),
        }
    }

    fn set(&mut self, view: &View, holds: Holds) {
        self.holds[view.buffer.id as usize] = holds;
        self.some.remove(&(view.buffer.id as usize));
    }

    /// Rows of some ranks are written, and of the others if all were there before. Returns whether all are there then.
    fn set_of(&mut self, at: usize, view: &View, ranks: &Range<usize>) -> Result<bool, Box<Violation>> {
        let id = view.buffer.id as usize;
        let here = self.some.entry(id).or_default();
        if let Some(rank) = ranks.clone().find(|rank| !here.insert(*rank)) {
            return Err(self.wrong(at, id, format!("has the rows of rank {rank} already")));
        }
        let all = here.len() == self.rank.degree;
        if all {
            self.some.remove(&id);
        }
        Ok(all)
    }

    /// Refuses a node that writes memory of a piece in flight.
    fn free(&self, at: usize, view: &View, ranks: &Range<usize>) -> Result<(), Box<Violation>> {
        let id = view.buffer.id;
        let in_flight = self.in_flight.iter().any(|c| {
            let (to_experts, piece) = rows_of(c).unwrap_or((true, ExchangePiece::WHOLE));
            let received = if to_experts { c.dst } else { c.src };
            let theirs = piece.sources(self.rank.degree, self.rank.index);
            let apart = ranks.end <= theirs.start || theirs.end <= ranks.start;
            received.buffer.id == id && !apart
                || received.buffer.id != id && [c.src.buffer.id, c.dst.buffer.id].contains(&id)
        });
        match in_flight {
            false => Ok(()),
            true => {
                Err(self.wrong(at, id as usize, "is written while it is in flight: a wait is missing".into()))
            }
        }
    }

    /// Checks that no collective is in flight or in pieces at the end of the list.
    fn ended(&self) -> Result<(), Box<Violation>> {
        let end = self.unit.list(self.phase).len();
        if let Some(c) = self.in_flight.first() {
            let problem = "is still in flight when the list ends".into();
            return Err(self.wrong(end, c.dst.buffer.id as usize, problem));
        }
        if let Some(c) = &self.open {
            let problem = "is exchanged without its last pieces".into();
            return Err(self.wrong(end, c.src.buffer.id as usize, problem));
        }
        match self.some.keys().next() {
            Some(id) => Err(self.wrong(end, *id, "is left with the rows of some ranks only".into())),
            None => Ok(()),
        }
    }

    fn node(&mut self, at: usize, node: &Node) -> Result<(), Box<Violation>> {
        match node {
            Node::Launch(launch) => self.op(at, &launch.op),
            Node::Collective(c) if c.axis == self.rank.axis => {
                self.collective(at, c)?;
                self.finished(at, c)
            }
            Node::Start(c) if c.axis == self.rank.axis => {
                if rows_of(c).is_none() {
                    let id = c.src.buffer.id as usize;
                    return Err(self.wrong(at, id, format!("is started over {}", c.axis)));
                }
                self.collective(at, c)?;
                self.in_flight.push(c.clone());
                Ok(())
            }
            Node::Wait { id, .. } => match self.in_flight.iter().position(|c| c.id == *id) {
                Some(0) => {
                    let c = self.in_flight.remove(0);
                    self.finished(at, &c)
                }
                Some(number) => {
                    let id = self.in_flight[number].dst.buffer.id as usize;
                    Err(self.wrong(at, id, "is waited for before what was started first".into()))
                }
                // Over another axis.
                None => Ok(()),
            },
            Node::Offload(moved) => {
                self.away.insert(moved.offset, self.holds[moved.value()]);
                Ok(())
            }
            Node::Reload(moved) => {
                self.holds[moved.value()] = self.away.get(&moved.offset).copied().unwrap_or(Holds::Nothing);
                Ok(())
            }
            // Over other axes, collectives do not change the contents.
            Node::Collective(c) | Node::Start(c) if c.src.rows > 0 && c.dst.rows > 0 => {
                self.expect_of(at, &c.src, &(0..self.rank.degree))?;
                self.free(at, &c.dst, &(0..self.rank.degree))?;
                let holds = self.holds[c.src.buffer.id as usize];
                self.set(&c.dst, holds);
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// A collective begins: one piece after the other, and nothing between two.
    fn collective(&mut self, at: usize, c: &Collective) -> Result<(), Box<Violation>> {
        let (to_experts, piece) = rows_of(c).unwrap_or((true, ExchangePiece::WHOLE));
        let follows = match self.open.take() {
            Some(last) => {
                let (to, before) = rows_of(&last).unwrap_or((true, ExchangePiece::WHOLE));
                let same = (to, before.of, last.src, last.dst) == (to_experts, piece.of, c.src, c.dst);
                same && piece.number == before.number + 1
            }
            None => piece.number == 0,
        };
        if !follows || ![1, PIECES.min(self.rank.degree)].contains(&piece.of) {
            let problem = format!("is exchanged in another order than piece by piece over {}", c.axis);
            return Err(self.wrong(at, c.src.buffer.id as usize, problem));
        }
        self.open = (piece.number + 1 < piece.of).then(|| c.clone());
        match (c.kind, c.by_counts) {
            (CollectiveKind::AllGather, None) => {
                self.expect(at, &c.src, Holds::Offsets)?;
                self.set(&c.dst, Holds::AllOffsets);
            }
            (CollectiveKind::AllToAll, Some(ByCounts::Rows { offsets, to_experts, piece })) => {
                self.expect(at, &offsets, self.routed())?;
                let sources = piece.sources(self.rank.degree, self.rank.index);
                match to_experts {
                    true => self.expect(at, &c.src, Holds::Sent)?,
                    false => self.received(at, &c.src, &sources)?,
                }
                if c.src.cols != c.dst.cols {
                    let problem = "has another width than what it is exchanged for".into();
                    return Err(self.wrong(at, c.src.buffer.id as usize, problem));
                }
                // Rows of the first piece are the first that are there.
                if piece.number == 0 {
                    let shadows = !to_experts && self.holds[c.dst.buffer.id as usize] == Holds::ShadowsAlone;
                    self.set(&c.dst, if shadows { Holds::ShadowsAlone } else { Holds::Nothing });
                }
            }
            (CollectiveKind::AllGather, Some(ByCounts::Shadows { slots, experts })) => {
                self.expect(at, &slots, Holds::Choice)?;
                self.expect(at, &c.src, Holds::Experts)?;
                self.divides(at, &c.src, experts)?;
                self.set(&c.dst, Holds::ShadowMatrices);
            }
            (CollectiveKind::AllToAll, Some(ByCounts::Shadows { slots, experts })) => {
                self.expect(at, &slots, Holds::Choice)?;
                self.expect(at, &c.src, Holds::ShadowGradient)?;
                self.divides(at, &c.dst, experts)?;
                self.set(&c.src, Holds::Nothing);
                self.set(&c.dst, Holds::ShadowTerms);
            }
            (kind, _) => {
                let (id, axis) = (c.src.buffer.id as usize, c.axis);
                return Err(self.wrong(at, id, format!("is the operand of {} over {axis}", kind.name())));
            }
        }
        Ok(())
    }

    /// Rows of an exchange are there.
    fn finished(&mut self, at: usize, c: &Collective) -> Result<(), Box<Violation>> {
        let Some((to_experts, piece)) = rows_of(c) else { return Ok(()) };
        let Rank { degree, index, .. } = self.rank;
        let ranks = if to_experts { piece.sources(degree, index) } else { piece.experts(degree, index) };
        let all = self.set_of(at, &c.dst, &ranks)?;
        match to_experts {
            true => self.holds[c.dst.buffer.id as usize] = Holds::Received,
            false if all => self.arrive(&c.dst, [Holds::WithoutShadows, Holds::ShadowsAlone]),
            false => {}
        }
        Ok(())
    }

    /// Refuses anything but rows for this rank's experts, of the tokens of these ranks at least.
    fn received(&self, at: usize, view: &View, ranks: &Range<usize>) -> Result<(), Box<Violation>> {
        match self.holds[view.buffer.id as usize] {
            Holds::Received => self.expect_of(at, view, ranks),
            _ => self.expect(at, view, Holds::Received),
        }
    }

    /// Rows for this rank's experts are made of the tokens of these ranks.
    fn make_received(&mut self, at: usize, view: &View, ranks: &Range<usize>) -> Result<(), Box<Violation>> {
        self.set_of(at, view, ranks)?;
        self.holds[view.buffer.id as usize] = Holds::Received;
        Ok(())
    }

    /// Ranks whose tokens have these groups of rows.
    fn sources(&self, at: usize, groups: &View) -> Result<Range<usize>, Box<Violation>> {
        self.expect(at, groups, Holds::Groups)?;
        let id = groups.buffer.id as usize;
        let all = self.unit.values[id].cols;
        let here = all.saturating_sub(1) / self.rank.degree;
        // The number of all rows is their last offset.
        if groups.cols == 1 && groups.offset + 1 == all {
            return Ok(0..self.rank.degree);
        }
        let (first, len) = (groups.offset, groups.cols.saturating_sub(1));
        match here > 0 && len > 0 && first.is_multiple_of(here) && len.is_multiple_of(here) {
            true => Ok(first / here..(first + len) / here),
            false => Err(self.wrong(at, id, "is read for some experts of a rank only".into())),
        }
    }

    /// Offsets by which rows are exchanged.
    fn routed(&self) -> Holds {
        if self.shadows { Holds::Routed } else { Holds::AllOffsets }
    }

    /// Some rows of this rank's tokens are written: with those that are there already, if they are the others, all are.
    fn arrive(&mut self, view: &View, [these, others]: [Holds; 2]) {
        let found = self.holds[view.buffer.id as usize];
        self.set(view, if found == others || !self.shadows { Holds::Sent } else { these });
    }

    /// Refuses a stack of another rank's experts, or of a part of them.
    fn divides(&self, at: usize, stack: &View, experts: usize) -> Result<(), Box<Violation>> {
        let all = self.unit.values[stack.buffer.id as usize].rows;
        match stack.rows == all && experts > 0 && all.is_multiple_of(experts) {
            true => Ok(()),
            false => {
                let problem = format!("is not a stack of {experts} experts");
                Err(self.wrong(at, stack.buffer.id as usize, problem))
            }
        }
    }

    fn op(&mut self, at: usize, op: &Op) -> Result<(), Box<Violation>> {
        use Holds::{AllOffsets, Choice, Experts, Groups, Offsets, Own, Received, Sent};
        let counts = match op {
            Op::GroupedLinear(o) => Some(o.offsets),
            Op::GroupedLinearBackwardInput(o) => Some(o.offsets),
            Op::Gated(o) => o.live,
            Op::GatedBackward(o) => o.live,
            _ => None,
        };
        let ranks = match counts.filter(|view| self.holds[view.buffer.id as usize] == Groups) {
            Some(groups) => self.sources(at, &groups)?,
            None => 0..self.rank.degree,
        };
        for operand in op.operands().iter().filter(|operand| operand.access != Access::Read) {
            self.free(at, &operand.view, &ranks)?;
        }
        match op {
            Op::AssignRows(o) => {
                self.expect(at, &o.experts, Own)?;
                let places = match (self.shadows, &o.shadows) {
                    (true, None) => Holds::Unshadowed,
                    _ => Own,
                };
                self.set(&o.rows, places);
                self.set(&o.sources, places);
                self.set(&o.offsets, Offsets);
                if let Some(shadows) = &o.shadows {
                    self.expect(at, &shadows.slots, Choice)?;
                    self.set(&shadows.offsets, Holds::ShadowOffsets);
                    // Counted with shadows: no offsets of all ranks come from these.
                    self.set(&o.offsets, Own);
                }
            }
            Op::ChooseShadows(o) => {
                self.expect(at, &o.offsets, AllOffsets)?;
                self.set(&o.slots, Choice);
                self.set(&o.routed, Holds::Routed);
            }
            Op::AddShadowGradients(o) => {
                self.expect(at, &o.terms, Holds::ShadowTerms)?;
                self.expect(at, &o.slots, Choice)?;
                self.expect(at, &o.dweight, Experts)?;
                let experts = o.experts * self.rank.degree;
                if o.first != self.rank.index * o.experts {
                    let problem = format!(
                        "adds gradients of other experts than those of rank {} of {experts}",
                        self.rank.index
                    );
                    return Err(self.wrong(at, o.dweight.buffer.id as usize, problem));
                }
                self.set(&o.terms, Holds::Nothing);
            }
            Op::ReceivedGroups(o) => {
                self.expect(at, &o.offsets, self.routed())?;
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
            Op::GroupedLinearBackwardWeight(o) if self.of_shadows(&o.offsets) => {
                self.shadow_rows(at, &o.x)?;
                self.shadow_rows(at, &o.dy)?;
                if sharded(self.unit, o.dweight.buffer.id as usize, self.rank) {
                    let problem = "is made of rows for shadows, which other ranks have".into();
                    return Err(self.wrong(at, o.dweight.buffer.id as usize, problem));
                }
                self.set(&o.dweight, Holds::ShadowGradient);
            }
            Op::GroupedLinearBackwardWeight(o) => {
                self.expect(at, &o.x, Received)?;
                self.expect(at, &o.dy, Received)?;
                if self.sources(at, &o.offsets)? != (0..self.rank.degree) {
                    let problem = "is made of the rows of some ranks only".into();
                    return Err(self.wrong(at, o.dweight.buffer.id as usize, problem));
                }
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
        if self.of_shadows(offsets) {
            self.shadow_rows(at, rows)?;
            self.expect(at, weight, Holds::ShadowMatrices)?;
            match self.sent.contains(&out.buffer.id) {
                true => self.arrive(out, [Holds::ShadowsAlone, Holds::WithoutShadows]),
                false => self.set(out, Holds::ShadowRows),
            }
            return Ok(());
        }
        let sources = self.sources(at, offsets)?;
        self.received(at, rows, &sources)?;
        self.expect(at, weight, Holds::Experts)?;
        self.make_received(at, out, &sources)
    }

    /// Whether these offsets are those of rows for shadows.
    fn of_shadows(&self, offsets: &View) -> bool {
        self.holds[offsets.buffer.id as usize] == Holds::ShadowOffsets
    }

    /// Refuses a value that lacks the rows for shadows.
    fn shadow_rows(&self, at: usize, view: &View) -> Result<(), Box<Violation>> {
        let whole = self.sent.contains(&view.buffer.id);
        self.expect(at, view, if whole { Holds::Sent } else { Holds::ShadowRows })
    }

    /// An operator that is not one of a mixture: on this rank's tokens, or on single rows between the products of experts.
    fn other(&mut self, at: usize, op: &Op) -> Result<(), Box<Violation>> {
        let operands = op.operands();
        let read = || operands.iter().filter(|o| o.access != Access::Write);
        let live = |name: &str| name == Rule::LIVE;
        let of = |holds: Holds| read().any(|o| self.holds[o.view.buffer.id as usize] == holds);
        let (rows, counts) = match (of(Holds::Received), of(Holds::ShadowRows)) {
            (true, _) => (Holds::Received, Holds::Groups),
            (false, true) => (Holds::ShadowRows, Holds::ShadowOffsets),
            (false, false) => (Holds::Own, Holds::Own),
        };
        let counted = rows != Holds::Own;
        let mut sources = 0..self.rank.degree;
        for o in read() {
            let wanted = if live(o.name) { counts } else { rows };
            let id = o.view.buffer.id as usize;
            // A gradient that is added to, or a value whose other columns are written by other nodes.
            if o.access == Access::Update && self.holds[id] == Holds::Nothing {
                continue;
            }
            match wanted {
                Holds::Groups => sources = self.sources(at, &o.view)?,
                // The ranks that they belong to are known after the counts.
                Holds::Received if self.holds[id] == Holds::Received => {}
                _ => self.expect(at, &o.view, wanted)?,
            }
        }
        for o in read().filter(|o| rows == Holds::Received && !live(o.name)) {
            self.expect_of(at, &o.view, &sources)?;
        }
        if counted && !operands.iter().any(|o| live(o.name)) {
            let id = operands.iter().next().map_or(0, |o| o.view.buffer.id as usize);
            return Err(self.wrong(at, id, format!("is read by {} without a count of its rows", op.name())));
        }
        let mut made = BTreeSet::new();
        for o in operands.iter().filter(|o| o.access != Access::Read) {
            let id = o.view.buffer.id as usize;
            if sharded(self.unit, id, self.rank) {
                return Err(self.wrong(
                    at,
                    id,
                    format!("is made by {}, of this rank's rows alone", op.name()),
                ));
            }
            match rows {
                // Columns of one value that one operator writes are one piece.
                Holds::Received if made.insert(id) => self.make_received(at, &o.view, &sources)?,
                Holds::Received => {}
                _ => self.set(&o.view, rows),
            }
        }
        Ok(())
    }
}
