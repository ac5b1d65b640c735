//! A layer of experts over ranks, with the rows that its tokens have for each expert.

use super::counted::on_rows;
use super::programs::GroupPlace;
use super::{Copied, GroupChoices, RoutedRows, RoutingProfile, Traffic};
use crate::SimError;
use crate::shadow::{ExpertSize, ShadowChoice, ShadowCosts, choose};
use bessemer_program::{Collective, CollectiveKind, Node, UnitProgram};
use bessemer_tensor::View;
use bessemer_tensor::op::{AssignRows, Op};
use std::collections::BTreeMap;

/// Routes of a unit.
#[derive(Debug, Clone)]
pub(super) struct RoutedUnit {
    rows: RoutedRows,
    /// Place of this rank in the group of the exchanges.
    place: GroupPlace,
    /// Experts that every rank computes for its own tokens; none without shadowing.
    choice: Option<ShadowChoice>,
    /// Bytes of an expert's matrices.
    expert_bytes: u64,
}

/// Operators of a unit's lists.
fn ops(unit: &UnitProgram) -> impl Iterator<Item = &Op> {
    unit.lists.iter().flatten().filter_map(Node::op)
}

/// Exchanges by counts of a unit.
fn exchanges(unit: &UnitProgram) -> impl Iterator<Item = &Collective> {
    unit.lists.iter().flatten().filter_map(|node| match node {
        Node::Collective(c) | Node::Start(c) if c.by_counts.is_some() => Some(c),
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
        place: &dyn Fn(&Collective) -> GroupPlace,
    ) -> Result<Option<RoutedUnit>, SimError> {
        let Some(exchange) = exchanges(unit).next() else { return Ok(None) };
        let assigned = ops(unit).find_map(|op| if let Op::AssignRows(op) = op { Some(*op) } else { None });
        let (Some(AssignRows { experts: choices, offsets, .. }), Some(by)) = (assigned, exchange.by_counts)
        else {
            return Ok(None);
        };
        let (ranks, experts) = (by.offsets.rows, offsets.cols - 1);
        let (tokens, choices) = ((choices.rows * ranks) as u64, choices.cols as u64);
        let rows = profile.loads.rows(layer, GroupChoices { ranks, experts, tokens, choices })?;
        let mut stacks: BTreeMap<u64, View> = BTreeMap::new();
        let mut row_flops = 0.0;
        for op in ops(unit) {
            if let Op::GroupedLinear(op) = op
                && stacks.insert(op.weight.buffer.id as u64, op.weight).is_none()
            {
                row_flops += 2.0 * (op.x.cols * op.out.cols) as f64;
            }
        }
        let stacked: u64 = stacks.values().map(View::bytes).sum();
        let expert_bytes = stacked / (experts / ranks).max(1) as u64;
        let choice = match profile.shadowing {
            Some(shadowing) => {
                let row_bytes = (exchange.src.cols * exchange.src.dtype().size()) as f64;
                let size = ExpertSize { row_flops, row_bytes, bytes: expert_bytes as f64 };
                let costs = ShadowCosts::new(size, shadowing.rates, ranks)?;
                Some(choose(&rows, &costs, shadowing.slots))
            }
            None => None,
        };
        Ok(Some(RoutedUnit { rows, place: place(exchange), choice, expert_bytes }))
    }

    /// Number of the group of the exchanges.
    pub(super) fn group(&self) -> usize {
        self.place.group
    }

    /// Chosen shadows, where the profile may have some.
    pub(super) fn choice(&self) -> Option<&ShadowChoice> {
        self.choice.as_ref()
    }

    fn shadowed(&self) -> &[usize] {
        self.choice.as_ref().map_or(&[], |choice| &choice.experts)
    }

    /// Traffic of an exchange by counts.
    pub(super) fn exchange(&self, c: &Collective, to_experts: bool) -> (Traffic, Copied) {
        let RoutedUnit { rows, place: GroupPlace { index: me, .. }, .. } = self;
        let shadows = self.shadowed();
        let row = (c.row_len() * c.src.dtype().size()) as u64;
        let ranks = rows.ranks() as u64;
        let most = (0..rows.ranks()).map(|rank| rows.sent(rank, shadows).max(rows.received(rank, shadows)));
        let sent = row * most.max().unwrap_or(0);
        let own = if to_experts { rows.sent(*me, shadows) } else { rows.received(*me, shadows) };
        let [here, there] = [rows.brought(*me, shadows), rows.arriving(*me, shadows)].map(|rows| rows * row);
        let copied = match to_experts {
            true => Copied { read: here, written: there },
            false => Copied { read: there, written: here },
        };
        // A rank of an even exchange sends all but its own part.
        let bytes = sent * ranks / (ranks - 1).max(1);
        (Traffic { kind: c.kind, bytes, sent, own: row * own, ranks: rows.ranks() }, copied)
    }

    /// Broadcast of the shadows' matrices, or reduction of their gradients; none without shadows.
    pub(super) fn shadows(&self, kind: CollectiveKind) -> Option<(Traffic, Copied)> {
        let bytes = self.expert_bytes * self.shadowed().len() as u64;
        let own =
            self.shadowed().iter().filter(|expert| self.rows.owner(**expert) == self.place.index).count()
                as u64;
        let own = self.expert_bytes * own;
        let copied = match kind {
            CollectiveKind::AllGather => Copied { read: own, written: bytes },
            _ => Copied { read: bytes, written: own },
        };
        (bytes > 0).then(|| (Traffic::even(kind, bytes, self.rows.ranks()), copied))
    }

    /// The operator on the rows that this rank has for experts; none for an operator that touches all of its rows.
    pub(super) fn on_rows(&self, op: &Op) -> Option<Op> {
        on_rows(op, self.rows.computed(self.place.index, self.shadowed()) as usize)
    }
}
