//! A layer of experts over ranks, with the rows that its tokens have for each expert.

use super::counted::{counted_by, on_rows};
use super::{Copied, GroupChoices, RoutedRows, RoutingProfile, Traffic};
use crate::SimError;
use crate::shadow::{RowCounts, ShadowChoice, choose};
use bessemer_program::{ByCounts, Collective, CollectiveKind, ExchangePiece, Node, UnitProgram};
use bessemer_tensor::View;
use bessemer_tensor::op::{AssignRows, Op};
use std::ops::Range;

/// Routes of a unit.
#[derive(Debug, Clone)]
pub(super) struct RoutedUnit {
    rows: RoutedRows,
    /// Place of this rank in the group of the exchanges.
    place: usize,
    /// Experts that every rank computes for its own tokens, and the buffer of the offsets of their rows; none without shadowing.
    shadows: Option<(ShadowChoice, u32)>,
}

/// Operators of a unit's lists.
fn ops(unit: &UnitProgram) -> impl Iterator<Item = &Op> {
    unit.lists.iter().flatten().filter_map(Node::op)
}

/// Offsets by which a collective exchanges rows, if it does.
fn exchanged_by(c: &Collective) -> Option<View> {
    match c.by_counts? {
        ByCounts::Rows { offsets, .. } => Some(offsets),
        ByCounts::Shadows { .. } => None,
    }
}

/// Exchanges of rows of a unit.
fn exchanges(unit: &UnitProgram) -> impl Iterator<Item = &Collective> {
    unit.lists.iter().flatten().filter_map(|node| match node {
        Node::Collective(c) | Node::Start(c) => exchanged_by(c).map(|_| c),
        _ => None,
    })
}

impl RoutedUnit {
    /// The routes of layer `layer` under a profile; none where no rows are exchanged by counts. `place`: of this rank in the group of an exchange.
    ///
    /// # Errors
    /// Loads of another model.
    pub(super) fn new(
        unit: &UnitProgram,
        layer: usize,
        profile: &RoutingProfile,
        place: &dyn Fn(&Collective) -> usize,
    ) -> Result<Option<RoutedUnit>, SimError> {
        let Some(exchange) = exchanges(unit).next() else { return Ok(None) };
        let assigned = ops(unit).filter_map(|op| if let Op::AssignRows(op) = op { Some(*op) } else { None });
        let (Some(AssignRows { experts: choices, shadows: placed, .. }), Some(offsets)) =
            (assigned.max_by_key(|op| op.shadows.is_some()), exchanged_by(exchange))
        else {
            return Ok(None);
        };
        let (ranks, experts) = (offsets.rows, offsets.cols - 1);
        let (tokens, choices) = ((choices.rows * ranks) as u64, choices.cols as u64);
        let rows = profile.loads.rows(layer, GroupChoices { ranks, experts, tokens, choices })?;
        let chosen = ops(unit).find_map(|op| if let Op::ChooseShadows(op) = op { Some(*op) } else { None });
        let shadows = chosen
            .zip(placed)
            .map(|(op, placed)| (choose(&rows, &op.costs, op.slots.cols), placed.offsets.buffer.id));
        Ok(Some(RoutedUnit { rows, place: place(exchange), shadows }))
    }

    /// Chosen shadows, where there may be some.
    pub(super) fn choice(&self) -> Option<&ShadowChoice> {
        self.shadows.as_ref().map(|(choice, _)| choice)
    }

    fn shadowed(&self) -> &[u32] {
        self.choice().map_or(&[], |choice| &choice.experts)
    }

    /// Traffic of a collective whose parts are counted.
    pub(super) fn traffic(&self, c: &Collective, by: ByCounts) -> (Traffic, Copied) {
        match by {
            ByCounts::Rows { to_experts, piece, .. } => self.exchange(c, to_experts, piece),
            ByCounts::Shadows { slots, .. } => self.shadows(c, slots.cols),
        }
    }

    /// Rows of the tokens of rank `tokens` that are exchanged for experts of rank `owner`.
    fn between(&self, tokens: usize, owner: usize) -> u64 {
        let here = self.rows.experts() / self.rows.ranks();
        let experts = (owner * here..(owner + 1) * here).filter(|e| !self.shadowed().contains(&(*e as u32)));
        experts.map(|expert| self.rows.rows(tokens, expert)).sum()
    }

    fn exchange(&self, c: &Collective, to_experts: bool, piece: ExchangePiece) -> (Traffic, Copied) {
        let RoutedUnit { rows, place: me, .. } = self;
        let (row, ranks) = ((c.row_len() * c.src.dtype().size()) as u64, rows.ranks());
        // Rows of a rank's tokens in this piece, and for its experts, without those that stay where they are.
        let of_tokens = |rank: usize, owners: Range<usize>| -> u64 {
            owners.map(|owner| self.between(rank, owner)).sum::<u64>()
        };
        let for_experts = |rank: usize, sources: Range<usize>| -> u64 {
            sources.map(|source| self.between(source, rank)).sum::<u64>()
        };
        let brought = |rank: usize| of_tokens(rank, piece.experts(ranks, rank));
        let arriving = |rank: usize| for_experts(rank, piece.sources(ranks, rank));
        let stays = |rank: usize| match piece.sources(ranks, rank).contains(&rank) {
            true => self.between(rank, rank),
            false => 0,
        };
        let most = (0..ranks).map(|rank| brought(rank).max(arriving(rank)) - stays(rank));
        let sent = row * most.max().unwrap_or(0);
        let leaving = if to_experts { brought(*me) } else { arriving(*me) };
        let [here, there] = [brought(*me), arriving(*me)].map(|rows| rows * row);
        let copied = match to_experts {
            true => Copied { read: here, written: there },
            false => Copied { read: there, written: here },
        };
        // A rank of an even exchange sends all but its own part.
        let bytes = sent * ranks as u64 / (ranks as u64 - 1).max(1);
        (Traffic { kind: c.kind, bytes, sent, own: row * (leaving - stays(*me)), ranks }, copied)
    }

    /// Bytes of this rank's own rows, if the collective is no more than a copy of these.
    pub(super) fn own_copy(&self, c: &Collective) -> Option<u64> {
        let ByCounts::Rows { piece, .. } = c.by_counts? else { return None };
        let row = (c.row_len() * c.src.dtype().size()) as u64;
        piece.is_local(self.rows.ranks()).then(|| row * self.between(self.place, self.place))
    }

    /// The matrices of shadows, or their gradients: between the owner of each and all others.
    fn shadows(&self, c: &Collective, slots: usize) -> (Traffic, Copied) {
        let RoutedUnit { rows, place: me, .. } = self;
        let gathered = c.kind == CollectiveKind::AllGather;
        let of_slots = if gathered { c.dst } else { c.src };
        let (ranks, matrix) = (rows.ranks() as u64, of_slots.bytes() / slots.max(1) as u64);
        let own =
            |rank: usize| self.shadowed().iter().filter(|e| rows.owner(**e as usize) == rank).count() as u64;
        let all = self.shadowed().len() as u64;
        let sent = |rank: usize| matrix * if gathered { own(rank) * (ranks - 1) } else { all - own(rank) };
        let received =
            |rank: usize| matrix * if gathered { all - own(rank) } else { own(rank) * (ranks - 1) };
        let most = (0..rows.ranks()).map(|rank| sent(rank).max(received(rank))).max().unwrap_or(0);
        let (here, there) = (matrix * own(*me), matrix * all);
        let copied = match gathered {
            true => Copied { read: here, written: there },
            false => Copied { read: there, written: here * ranks },
        };
        // The owner's lines bound both, whatever the pattern.
        let bytes = most * ranks / (ranks - 1).max(1);
        let kind = CollectiveKind::AllToAll;
        (Traffic { kind, bytes, sent: most, own: sent(*me), ranks: rows.ranks() }, copied)
    }

    /// The operator on the rows that this rank has for experts; none for an operator that touches all of its rows.
    pub(super) fn on_rows(&self, op: &Op) -> Option<Op> {
        let (me, counts) = (self.place, counted_by(op)?);
        let rows: u64 = match &self.shadows {
            Some((choice, offsets)) if counts.buffer.id == *offsets => {
                choice.experts.iter().map(|expert| self.rows.rows(me, *expert as usize)).sum()
            }
            _ => self.sources(counts).map(|source| self.between(source, me)).sum(),
        };
        on_rows(op, rows as usize)
    }

    /// Ranks of whose tokens these offsets, or this number of all rows, count rows.
    fn sources(&self, counts: View) -> Range<usize> {
        let (ranks, here) = (self.rows.ranks(), self.rows.experts() / self.rows.ranks());
        match counts.cols {
            ..=1 => 0..ranks,
            cols => counts.offset / here..(counts.offset + cols - 1) / here,
        }
    }
}
