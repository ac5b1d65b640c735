//! Every wrong list of a layer whose experts are spread over ranks is refused.

#![allow(clippy::print_stdout, reason = "the tests print how many mutants there are")]

use crate::expert_exchanges::shadowed;
use crate::experts::{folded_over_context, folded_over_tensor, mixture, on_ranks};
use bessemer_mesh::Axis;
use bessemer_parallel::{ParallelConfig, Worker};
use bessemer_program::{
    ByCounts, Collective, CollectiveKind, Node, Phase, UnitMemory, UnitProgram, seal, verify, verify_experts,
};
use bessemer_tensor::op::Op;
use bessemer_tensor::{Buffer, View};
use std::collections::BTreeMap;

fn first_layer(worker: &Worker) -> (&UnitProgram, &UnitMemory) {
    let mut programs = worker.decoder().programs();
    let (_, unit, memory) = programs.find(|(unit, ..)| unit.layer() == Some(0)).unwrap();
    (unit, memory)
}

/// Mutants of the lists of a rank's first layer, which the verifiers refuse; their numbers by kind.
struct Mutants<'a> {
    worker: &'a Worker,
    count: BTreeMap<&'static str, usize>,
}

impl Mutants<'_> {
    /// Seals the layer again with this list in its phase, so that no version reveals the change.
    fn refused(&mut self, what: &'static str, phase: Phase, list: Vec<Node>, node: &Node) {
        let decoder = self.worker.decoder();
        let (unit, memory) = first_layer(self.worker);
        let mut mutant = unit.clone();
        mutant.lists[phase as usize] = list;
        seal(&mut mutant);
        let by_rules = verify(&mutant, memory, decoder.phases(), decoder.ranks());
        let by_rows = verify_experts(&mutant, decoder.phases(), decoder.expert_rank().unwrap());
        assert!(by_rules.is_err() || by_rows.is_err(), "{what} of {node:?} is not refused");
        *self.count.entry(what).or_insert(0) += 1;
    }
}

/// Every wrong list of a layer whose exchanges go in pieces is refused: sealed again, so that no version reveals the change.
#[test]
fn every_wrong_piece_is_refused() {
    let model = mixture(true);
    let mut count = BTreeMap::new();
    let base = || ParallelConfig { experts: 2, ..ParallelConfig::default() };
    for (config, ranks, sequences) in [
        (base(), 2, 16),
        (ParallelConfig { experts: 4, ..base() }, 4, 32),
        (shadowed(ParallelConfig { experts: 4, ..base() }, 2), 4, 32),
        (ParallelConfig { tensor: 2.into(), sequence: true, ..base() }, 4, 16),
        (folded_over_tensor(4), 4, 32),
    ] {
        let found = on_ranks(&model, &config, (ranks, sequences), |_, worker, _| wrong_pieces(worker));
        for (what, number) in found.into_iter().flatten() {
            *count.entry(what).or_insert(0) += number;
        }
    }
    println!("{count:?}");
    assert!(count.len() == 9 && count.values().sum::<usize>() > 300, "{count:?}");
}

/// Mutants of the pieces of a rank's layers, by kind, all of which are refused.
fn wrong_pieces(worker: &Worker) -> BTreeMap<&'static str, usize> {
    let (unit, _) = first_layer(worker);
    let phases = worker.decoder().phases();
    verify_experts(unit, phases, worker.decoder().expert_rank().unwrap()).unwrap();
    let mut mutants = Mutants { worker, count: BTreeMap::new() };
    let mut refused = |what, phase, list, node: &Node| mutants.refused(what, phase, list, node);
    let piece = |node: &Node| match node {
        Node::Collective(Collective { by_counts: Some(ByCounts::Rows { piece, .. }), .. })
        | Node::Start(Collective { by_counts: Some(ByCounts::Rows { piece, .. }), .. }) => Some(*piece),
        _ => None,
    };
    let groups = unit.find("mlp.experts.offsets.received").unwrap() as u32;
    // Offsets of the rows that a product reads.
    let product = |node: &Node| match node.op()? {
        Op::GroupedLinear(o) => Some(o.offsets),
        Op::GroupedLinearBackwardInput(o) => Some(o.offsets),
        Op::Gated(o) => o.live,
        Op::GatedBackward(o) => o.live,
        _ => None,
    };
    let product = |node: &Node| product(node).filter(|offsets| offsets.buffer.id == groups);
    for &phase in phases {
        let list = unit.list(phase);
        let ours: Vec<usize> = list
            .iter()
            .filter_map(|node| piece(node).and(if let Node::Start(c) = node { Some(c.id) } else { None }))
            .collect();
        for (at, node) in list.iter().enumerate() {
            let with = |other: &[Node]| [&list[..at], other, &list[at + 1..]].concat();
            let next = |wanted: &dyn Fn(&Node) -> bool| (at + 1..list.len()).find(|at| wanted(&list[*at]));
            let after = |to: usize| {
                let mut moved = list.to_vec();
                let node = moved.remove(at);
                moved.insert(to, node);
                moved
            };
            if piece(node).is_some() {
                refused("missing", phase, with(&[]), node);
                refused("doubled", phase, with(&[node.clone(), node.clone()]), node);
                if let Node::Start(c) = node {
                    let of = |other: &&Node| !matches!(other, Node::Wait { id, .. } if *id == c.id);
                    let without = with(&[]);
                    refused(
                        "missing with its wait",
                        phase,
                        without.iter().filter(of).cloned().collect(),
                        node,
                    );
                }
                if let Some(other) = next(&|node| piece(node).is_some()) {
                    let mut turned = list.to_vec();
                    turned.swap(at, other);
                    refused("another order", phase, turned, node);
                }
            } else if let Node::Wait { id, .. } = node
                && ours.contains(id)
            {
                refused("missing wait", phase, with(&[]), node);
                // After the first node that reads its rows.
                let reads = |other: &Node| match node {
                    Node::Wait { dst, .. } => {
                        let touches = other.touches();
                        touches.iter().any(|t| {
                            t.view.buffer.id == dst.buffer.id
                                && !matches!(other, Node::Wait { .. } | Node::Start(_) | Node::Collective(_))
                        })
                    }
                    _ => false,
                };
                if let Some(first) = next(&reads) {
                    refused("late wait", phase, after(first), node);
                }
            } else if let Some(offsets) = product(node) {
                refused("missing product", phase, with(&[]), node);
                refused("doubled product", phase, with(&[node.clone(), node.clone()]), node);
                let other =
                    View { offset: if offsets.offset == 0 { offsets.cols - 1 } else { 0 }, ..offsets };
                let mut wrong = node.op().unwrap().clone();
                match &mut wrong {
                    Op::GroupedLinear(o) => o.offsets = other,
                    Op::GroupedLinearBackwardInput(o) => o.offsets = other,
                    Op::Gated(o) => o.live = Some(other),
                    Op::GatedBackward(o) => o.live = Some(other),
                    _ => continue,
                }
                refused("other groups", phase, with(&[Node::launch(wrong)]), node);
            }
        }
    }
    mutants.count
}

/// Every wrong list of a layer whose experts are sharded is refused: sealed again, so that no version reveals the change.
#[test]
fn every_wrong_exchange_is_refused() {
    let model = mixture(true);
    let mut count = BTreeMap::new();
    for (config, ranks) in [
        (ParallelConfig { experts: 2, ..ParallelConfig::default() }, 2),
        (ParallelConfig { experts: 2, tensor: 2.into(), sequence: true, ..ParallelConfig::default() }, 4),
        (ParallelConfig { experts: 2, context: 2, ..ParallelConfig::default() }, 4),
        (folded_over_tensor(2), 2),
        (folded_over_context(2), 2),
        (shadowed(folded_over_tensor(2), 2), 2),
        (shadowed(ParallelConfig { experts: 2, ..ParallelConfig::default() }, 2), 2),
        (shadowed(ParallelConfig { experts: 2, tensor: 2.into(), ..ParallelConfig::default() }, 2), 4),
    ] {
        let sequences = if config.context > 1 { ranks / 2 } else { 4 };
        let found = on_ranks(&model, &config, (ranks, sequences), |_, worker, _| wrong_lists(worker));
        for (what, number) in found.into_iter().flatten() {
            *count.entry(what).or_insert(0) += number;
        }
    }
    println!("{count:?}");
    assert!(count.len() == 8 && count.values().sum::<usize>() > 300, "{count:?}");
}

fn view(unit: &UnitProgram, id: usize) -> View {
    let value = &unit.values[id];
    Buffer { id: id as u32, len: value.len(), dtype: value.dtype }.matrix(value.rows, value.cols)
}

/// Mutants of the lists of a rank's layers, by kind, all of which are refused.
fn wrong_lists(worker: &Worker) -> BTreeMap<&'static str, usize> {
    let (unit, _) = first_layer(worker);
    let phases = worker.decoder().phases();
    let mut mutants = Mutants { worker, count: BTreeMap::new() };
    let mut refused = |what, phase, list, node: &Node| mutants.refused(what, phase, list, node);
    let of_mixture = |op: &Op| {
        matches!(
            op,
            Op::AssignRows(_)
                | Op::ReceivedGroups(_)
                | Op::Dispatch(_)
                | Op::DispatchBackward(_)
                | Op::CombineRows(_)
                | Op::CombineRowsBackward(_)
                | Op::GroupedLinear(_)
                | Op::GroupedLinearBackwardInput(_)
                | Op::ChooseShadows(_)
                | Op::AddShadowGradients(_)
        )
    };
    let offsets = unit.find("mlp.experts.offsets").unwrap();
    let own = view(unit, offsets);
    let all = view(unit, unit.find("mlp.experts.offsets.all").unwrap());
    let shadows = unit.find("mlp.experts.offsets.slots").is_some();
    for &phase in phases {
        let list = unit.list(phase);
        for (at, node) in list.iter().enumerate() {
            let with = |other: &[Node]| [&list[..at], other, &list[at + 1..]].concat();
            match node {
                Node::Collective(c) if c.axis == Axis::Expert => {
                    refused("missing", phase, with(&[]), node);
                    let by = |by| vec![Node::Collective(Collective { by_counts: Some(by), ..c.clone() })];
                    match c.by_counts {
                        Some(ByCounts::Rows { offsets, to_experts, piece }) => {
                            let turned = ByCounts::Rows { offsets, to_experts: !to_experts, piece };
                            refused("turned", phase, with(&by(turned)), node);
                            refused(
                                "own offsets",
                                phase,
                                with(&by(ByCounts::Rows { offsets: own, to_experts, piece })),
                                node,
                            );
                            if shadows {
                                let all = ByCounts::Rows { offsets: all, to_experts, piece };
                                refused("offsets without shadows", phase, with(&by(all)), node);
                            }
                        }
                        Some(ByCounts::Shadows { slots, experts }) => {
                            let more = ByCounts::Shadows { slots, experts: experts + 1 };
                            refused("other experts", phase, with(&by(more)), node);
                        }
                        None => {}
                    }
                    let summed = Collective { kind: CollectiveKind::AllReduce, by_counts: None, ..c.clone() };
                    refused("summed", phase, with(&[Node::Collective(summed)]), node);
                }
                Node::Launch(launch) if of_mixture(&launch.op) => {
                    refused("missing", phase, with(&[]), node);
                    let mut op = launch.op.clone();
                    match &mut op {
                        Op::GroupedLinear(o) => o.offsets = own,
                        Op::GroupedLinearBackwardInput(o) => o.offsets = own,
                        Op::ReceivedGroups(o) => o.first = if o.first == 0 { 2 } else { 0 },
                        Op::AddShadowGradients(o) => o.first = if o.first == 0 { 2 } else { 0 },
                        _ => continue,
                    }
                    refused("other groups", phase, with(&[Node::launch(op)]), node);
                }
                Node::Launch(launch) => {
                    let mut op = launch.op.clone();
                    match &mut op {
                        Op::Gated(o) => o.live = None,
                        Op::GatedBackward(o) => o.live = None,
                        _ => continue,
                    }
                    refused("all rows", phase, with(&[Node::launch(op)]), node);
                }
                _ => {}
            }
        }
    }
    mutants.count
}
