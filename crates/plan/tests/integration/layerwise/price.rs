//! Prices of the programs of a real model.

use bessemer_arch::{Model, Span, named};
use bessemer_plan::layerwise::{NodeSeconds, UnitPrice};
use bessemer_program::{Class, Collective, Node, Phase, UnitProgram};
use bessemer_runtime::{ActivationConfig, Decoder, LineStream, Purpose, Shape, StageConfig, Stream, Unit};
use bessemer_tensor::Backend;
use bessemer_tensor::null::NullBackend;
use bessemer_tensor::op::Op;
use bessemer_units::Recompute;

/// Seconds that are the same for all nodes of a kind.
struct Flat {
    op: f64,
    collective: f64,
    host: f64,
}

impl NodeSeconds for Flat {
    fn op(&self, _: &Op) -> f64 {
        self.op
    }

    fn collective(&self, _: &Collective) -> f64 {
        self.collective
    }

    fn host(&self) -> f64 {
        self.host
    }
}

const SHAPE: Shape = Shape { sequences: 4, seq: 64, purpose: Purpose::Train };

fn model() -> Model {
    Model { layers: 1, ..named("gpt2").unwrap() }
}

/// The first of two tensor shards.
fn decoder(model: &Model, stage: StageConfig, recompute: Recompute, backend: &mut NullBackend) -> Decoder {
    let shard = model.tensor_shard(2, 0).unwrap();
    let config = ActivationConfig { recompute: recompute.into(), ..ActivationConfig::default() };
    let stream = Stream { line: LineStream::Rows, ..Stream::WHOLE };
    Decoder::of_stage(backend, &shard, stream, SHAPE, config, &stage, None).unwrap()
}

/// Operators that run in every pass, and collectives that begin.
fn counts(program: &UnitProgram, phase: Phase) -> [f64; 2] {
    let list = program.list(phase);
    let op = |node: &&Node| matches!(node, Node::Launch(launch) if !launch.first_only);
    let begins = |node: &&Node| matches!(node, Node::Collective(_) | Node::Start(_));
    [list.iter().filter(op).count() as f64, list.iter().filter(begins).count() as f64]
}

#[test]
fn collectives_add_to_operators_but_for_those_that_run_beside_them() {
    let model = model();
    for overlap in [false, true] {
        let stage = StageConfig { overlap, ..StageConfig::whole(&model) };
        let decoder = decoder(&model, stage, Recompute::None, &mut NullBackend::new());
        let (_, program, memory) =
            decoder.programs().find(|(unit, ..)| matches!(unit, Unit::Layer(_))).unwrap();
        let price = UnitPrice::of(program, memory, &Flat { op: 1.0, collective: 0.25, host: 0.0 });
        for (phase, seconds) in [(Phase::Forward, price.forward), (Phase::Backward, price.backward)] {
            let [ops, collectives] = counts(program, phase);
            assert!(collectives > 0.0);
            let all = ops + 0.25 * collectives;
            match overlap {
                false => assert_eq!(seconds, all),
                true => assert!(ops < seconds && seconds < all, "{ops} {seconds} {all}"),
            }
        }
        // A host that is slower than the device says when operators begin.
        let slow = UnitPrice::of(program, memory, &Flat { op: 1.0, collective: 0.0, host: 10.0 });
        let [ops, _] = counts(program, Phase::Forward);
        assert_eq!(slow.forward, 10.0 * ops + 1.0);
    }
}

#[test]
fn what_a_layer_keeps_is_what_one_more_micro_batch_takes() {
    let model = model();
    for recompute in [
        Recompute::None,
        Recompute::Selective,
        Recompute::Attention,
        Recompute::AttentionOutput,
        Recompute::Full,
    ] {
        let span = Span { layers: 0..1, embedding: false, head: false };
        let held = |slots: usize| {
            let mut backend = NullBackend::new();
            let stage =
                StageConfig { span: span.clone(), slots, pending: 0, overlap: false, shadowing: None };
            let decoder = decoder(&model, stage, recompute, &mut backend);
            let (_, program, memory) = decoder.programs().next().unwrap();
            let price = UnitPrice::of(program, memory, &Flat { op: 0.0, collective: 0.0, host: 0.0 });
            // What another stage sends has memory of its own, whether the backward pass reads it again or not.
            let touches = program.list(Phase::Backward).iter().flat_map(Node::touches);
            let mut classes = touches.map(|touch| program.values[touch.value()].class);
            let streams = if classes.any(|class| class == Class::StreamIn) { 1.0 } else { 2.0 };
            (backend.memory().total().0 as f64, price, streams * decoder.stream_bytes() as f64)
        };
        let ((one, price, streams), (two, ..)) = (held(1), held(2));
        // Ids, targets and positions, and the stream behind the layer.
        let besides = 3.0 * 4.0 * (SHAPE.sequences * SHAPE.seq) as f64 + streams;
        assert_eq!(two - one, price.saved + besides, "{recompute}");
    }
}
