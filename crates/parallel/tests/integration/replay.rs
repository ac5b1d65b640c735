//! Events of a step: the same launches, runs and sends as in a real step, and no deadlock.

use crate::steps::{Layout, layouts, rank};
use bessemer_collectives::Ledger;
use bessemer_filling::{RankFill, StepFill};
use bessemer_fixture::Repeated;
use bessemer_mesh::Axis;
use bessemer_parallel::{FillChoice, UpdateOps};
use bessemer_sim::SimError;
use bessemer_sim::replay::{
    CollectiveSeconds, Medium, MessageSeconds, NodeCosts, PERMUTATIONS, RankEvent, RankWriter, Replay,
    ReplayGroup, StepEvents, Traffic, replay,
};
use bessemer_tensor::null::NullBackend;
use bessemer_tensor::op::Op;
use std::collections::BTreeMap;

/// Computes seconds from floating-point operations and bytes; counts the requests.
#[derive(Default)]
struct Counting {
    /// Launches and floating-point operations, by operator.
    ops: BTreeMap<&'static str, (u64, f64)>,
    /// Bytes of collectives and messages.
    sent: f64,
    /// Seconds of a byte on a link.
    per_byte: f64,
}

impl NodeCosts for Counting {
    fn op(&mut self, op: &Op) -> Result<f64, SimError> {
        let (launches, flops) = self.ops.entry(op.name()).or_default();
        *launches += 1;
        *flops += op.flops().0;
        Ok(1e-6 + 1e-9 * op.flops().0)
    }

    fn copy(&mut self, bytes: u64) -> f64 {
        1e-10 * bytes as f64
    }

    fn collective(&mut self, _: &ReplayGroup, traffic: Traffic) -> CollectiveSeconds {
        self.sent += traffic.sent as f64;
        CollectiveSeconds { processor: 1e-6, link: self.per_byte * traffic.sent as f64, handoff: 0.0 }
    }

    fn message(&mut self, _: [usize; 2], bytes: u64) -> MessageSeconds {
        let busy = self.per_byte * bytes as f64;
        MessageSeconds { send: 0.0, receive: 0.0, busy, latency: 1e-6 }
    }

    fn medium(&mut self, _: &[usize]) -> Medium {
        Medium::Own
    }

    fn counts(&self) -> bool {
        true
    }
}

/// Collectives, sends and receives by the label under which they are counted.
fn calls(step: &StepEvents, rank: usize) -> BTreeMap<&str, u64> {
    let mut calls = BTreeMap::new();
    for event in &step.lists[rank] {
        let label = match event {
            RankEvent::Start { group, .. } | RankEvent::Collective { group, .. } => {
                step.groups[*group].label.as_str()
            }
            RankEvent::Send { tag, .. } | RankEvent::Receive { tag, .. } if tag & PERMUTATIONS > 0 => {
                "context"
            }
            RankEvent::Send { .. } | RankEvent::Receive { .. } => "pipeline",
            RankEvent::Compute { .. } | RankEvent::Wait { .. } => continue,
        };
        *calls.entry(label).or_insert(0) += 1;
    }
    calls
}

fn events(layout: &Layout, per_byte: f64) -> StepEvents {
    events_of(layout, per_byte, StepFill::default())
}

/// The events of a step that includes `fill`, compared with the launches and messages of each rank.
fn events_of(layout: &Layout, per_byte: f64, fill: StepFill) -> StepEvents {
    let mut step = StepEvents::new(layout.ranks);
    for at in 0..layout.ranks {
        let (ledger, mut null) = (Ledger::new(), NullBackend::new());
        let mut worker = rank(layout, at, &ledger, &mut null);
        if let Some(filling) = RankFill::of_mut(&mut worker) {
            filling.set_step(fill).unwrap();
        }
        let mut costs = Counting { per_byte, ..Counting::default() };
        let mut writer = RankWriter::new(&mut step, &mut costs, at);
        worker.write_events(&mut writer, &UpdateOps::default()).unwrap();
        writer.finish();

        null.reset_counts();
        ledger.clear();
        let sum = worker.gradients(&mut null, &mut Repeated::zeros(16)).unwrap();
        let launched: BTreeMap<&str, u64> =
            null.counts().iter().map(|(name, c)| (*name, c.launches)).collect();
        let written: BTreeMap<&str, u64> = costs.ops.iter().map(|(name, (n, _))| (*name, *n)).collect();
        assert_eq!(written, launched, "{}, rank {at}", layout.name);
        // A device without values touches all rows that an exchange has room for.
        if layout.config.experts == 1 {
            let flops: f64 = costs.ops.values().map(|(_, flops)| flops).sum();
            assert!((flops / null.flops().0 - 1.0).abs() < 1e-9, "{}, rank {at}", layout.name);
        }

        worker.sum_over_data(sum).unwrap();
        worker.grad_norm(&mut null).unwrap();
        worker.apply(&mut null, 1, 1e-3, 1.0).unwrap();
        let mut counted = BTreeMap::new();
        let (mut sent, rows) = (0.0, ledger.rows());
        // A reduction over one rank is a copy.
        let alone = worker.plan().mesh.degree(Axis::Shard) == 1;
        let called = rows.iter().filter(|(label, _, t)| t.calls > 0 && !(alone && label == "shard"));
        for (label, _, traffic) in called {
            *counted.entry(label.as_str()).or_insert(0) += traffic.calls;
            sent += traffic.volume.sent as f64;
        }
        assert_eq!(calls(&step, at), counted, "{}, rank {at}", layout.name);
        // On a device without values no row is exchanged.
        if per_byte > 0.0 && layout.config.experts == 1 {
            let bytes = |event: &RankEvent| match event {
                RankEvent::Send { busy, .. } => busy / per_byte,
                _ => 0.0,
            };
            let messages: f64 = step.lists[at].iter().map(bytes).sum();
            // Parts of ranks differ by at most an element a collective.
            let apart = (costs.sent + messages - sent).abs();
            assert!(apart <= 0.02 * sent, "{}, rank {at}: {sent} sent, {apart} apart", layout.name);
        }
    }
    step
}

fn replayed(layout: &Layout, per_byte: f64) -> Replay {
    replay(&events(layout, per_byte)).unwrap_or_else(|e| panic!("{}: {e}", layout.name))
}

#[test]
fn the_events_of_every_layout_are_what_it_launches_and_sends_and_they_end() {
    for layout in layouts().iter().filter(|layout| layout.updates == 1) {
        let [free, slow, slower] = [0.0, 1e-8, 1e-6].map(|per_byte| replayed(layout, per_byte).seconds());
        assert!(free > 0.0 && free <= slow && slow < slower, "{}: {free} {slow} {slower}", layout.name);
    }
}

/// Evaluations in bubbles are passes with messages of their own, so a step with them is replayed like any other.
#[test]
fn a_step_that_evaluates_in_its_bubbles_is_replayed() {
    for name in ["gpipe", "1f1b, zero1"] {
        let mut layout = layouts().into_iter().find(|layout| layout.name == name).unwrap();
        layout.config.fill = FillChoice::Evaluation.into();
        let evaluates = StepFill { evaluates: true, ..StepFill::default() };
        let [plain, filled] = [StepFill::default(), evaluates].map(|fill| {
            let events = events_of(&layout, 1e-9, fill);
            let passes = events.lists.iter().map(Vec::len).sum::<usize>();
            (passes, replay(&events).unwrap_or_else(|e| panic!("{name}: {e}")).seconds())
        });
        assert!(filled.0 > plain.0, "{name}: {filled:?} against {plain:?}");
    }
}

#[test]
fn overlap_hides_what_a_blocking_layout_shows() {
    for mut layout in layouts().into_iter().filter(|layout| ["ddp", "zero3"].contains(&layout.name)) {
        let per_byte = 1e-9;
        let hidden = replayed(&layout, per_byte).seconds();
        layout.config.overlap = false;
        let shown = replayed(&layout, per_byte).seconds();
        assert!(hidden < shown, "{}: {hidden} against {shown}", layout.name);
    }
}
