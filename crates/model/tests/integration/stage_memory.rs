//! What a stage holds and computes: the closed forms against the ledger and the counts of the null backend.

use crate::tiny;

use bessemer_arch::{Model, named};
use bessemer_model::{
    ActivationConfig, Decoder, OneDevice, Purpose, Shape, StageConfig, StepContext, Stream, TokenBatch,
    stage_memory,
};
use bessemer_tensor::Backend;
use bessemer_tensor::null::NullBackend;
use bessemer_units::{Bytes, Recompute, Storage};

fn class(b: &NullBackend, name: &str) -> Bytes {
    b.memory().classes.iter().find(|c| c.0 == name).map_or(Bytes(0), |c| c.1)
}

fn hold(
    what: &str,
    model: &Model,
    (degree, stream): (usize, Stream),
    shape: Shape,
    config: ActivationConfig,
) {
    let Ok(portion) = model.portion(degree, degree - 1) else { return };
    let mut held = 0;
    for counts in [vec![model.layers], vec![1, model.layers - 1], vec![0, model.layers, 0]] {
        for span in model.split_layers(&counts).unwrap() {
            let m = stage_memory(&portion, stream, shape, config, &span).unwrap();
            for (slots, pending) in [(1, 0), (3, 0), (2, 3)] {
                if pending > 0 && shape.purpose == Purpose::Score {
                    continue;
                }
                let mut b = NullBackend::new();
                let stage = StageConfig { span: span.clone(), slots, pending };
                Decoder::of_stage(&mut b, &portion, stream, shape, config, &stage, None).unwrap();
                let what = format!("{what}, {degree} {stream:?}, {shape:?}, {config:?}, {stage:?}");
                assert_eq!(class(&b, "activations"), m.activations(slots, pending), "{what}");
                assert_eq!(class(&b, "constants"), m.constants, "{what}");
                assert_eq!(class(&b, "weights"), Bytes(4 * m.parameters as u64), "{what}");
                if !span.layers.is_empty() {
                    // All of the split beside it, itself a second time included: no scratch is made anew.
                    let first =
                        Decoder::of_stage(&mut b, &portion, stream, shape, config, &stage, None).unwrap();
                    for span in model.split_layers(&counts).unwrap() {
                        let before = class(&b, "activations");
                        let m = stage_memory(&portion, stream, shape, config, &span).unwrap();
                        first.of_stage_beside(&mut b, &StageConfig { span, ..stage.clone() }, None).unwrap();
                        let wanted = before.0 + m.activations(slots, pending).0 - m.scratch.0;
                        assert_eq!(class(&b, "activations").0, wanted, "{what}: beside");
                    }
                }
                held += 1;
            }
        }
    }
    assert!(held >= 12);
}

#[test]
fn bytes_of_a_stage_are_the_closed_form() {
    let published = ["gpt2-124m", "llama-8b", "mistral-7b"].map(|name| (name, named(name).unwrap()));
    for (label, model) in published.into_iter().chain(tiny::all_kinds()) {
        for (layout, purpose) in [
            ((1, Stream::Whole), Purpose::Train),
            ((1, Stream::Whole), Purpose::Score),
            ((2, Stream::Whole), Purpose::Train),
            ((2, Stream::Rows), Purpose::Train),
            ((2, Stream::Rows), Purpose::Score),
        ] {
            for storage in [Storage::F32, Storage::Bf16] {
                for recompute in [Recompute::Selective, Recompute::None] {
                    let shape = Shape { sequences: 2, seq: model.context / 2, purpose };
                    hold(label, &model, layout, shape, ActivationConfig { storage, recompute });
                }
            }
        }
    }
}

/// One GPT-2 124M layer at 1 x 1024 tokens: a slot of a span in the middle keeps of each layer 2 D + J + A + P = 10 D
/// elements of a row and small numbers, a pending set 4 D + J + A + P + F = 16 D.
#[test]
fn a_layer_of_gpt2_costs_what_can_be_counted_by_hand() {
    let model = Model { layers: 12, ..named("gpt2-124m").unwrap() };
    let portion = model.portion(1, 0).unwrap();
    let shape = Shape { sequences: 1, seq: 1024, purpose: Purpose::Train };
    let config = ActivationConfig::default();
    let of = |layers| {
        let span = bessemer_arch::Span { embedding: false, layers, head: false };
        stage_memory(&portion, Stream::Whole, shape, config, &span).unwrap()
    };
    let (one, three) = (of(3..4), of(3..6));
    let rows = 4 * 1024 * 768;
    let (stats, lse) = (4 * 1024 * 4, 4 * 12 * 1024);
    assert_eq!((three.per_slot.0 - one.per_slot.0) / 2, 10 * rows + stats + lse);
    assert_eq!(one.per_pending.0, 16 * rows);
    assert_eq!(three.per_pending.0, 3 * one.per_pending.0);
    assert_eq!(three.shared, one.shared);
}

/// FLOPs of products by the part of a pass that they are made in.
#[test]
fn products_of_each_part_are_those_of_the_span() {
    for name in ["gpt2-124m", "llama-8b", "llama-1b"] {
        let model = named(name).unwrap();
        let portion = model.portion(1, 0).unwrap();
        let shape = Shape { sequences: 2, seq: 256, purpose: Purpose::Train };
        let tokens = vec![1; shape.tokens()];
        let batch = TokenBatch { ids: &tokens, targets: &tokens, positions: None };
        let ctx = StepContext { seed: 0, step: 0, first_sequence: 0, loss_scale: 1.0, accumulate: false };
        for span in model.split(3).unwrap() {
            let stage = StageConfig { span: span.clone(), slots: 1, pending: 1 };
            let (mut b, config) = (NullBackend::new(), ActivationConfig::default());
            let mut d =
                Decoder::of_stage(&mut b, &portion, Stream::Whole, shape, config, &stage, None).unwrap();
            let products = |b: &mut NullBackend| {
                let names =
                    ["linear", "linear_backward_input", "linear_backward_weight", "linear_cross_entropy"];
                let sum: f64 = names.iter().filter_map(|n| b.counts().get(n)).map(|c| c.flops.0).sum();
                b.reset_counts();
                sum / shape.tokens() as f64
            };
            // Sequences of no length have no attention.
            let wanted = span.flops_per_token(&model, 0);
            b.reset_counts();
            d.stage_forward(&mut b, &mut OneDevice, 0, &batch, Some(&ctx)).unwrap();
            assert_eq!(products(&mut b), wanted.forward.0, "{name} {span:?}");
            let (_, pending) = d.stage_backward_input(&mut b, &mut OneDevice, 0, false).unwrap();
            assert_eq!(products(&mut b), wanted.backward_input.0, "{name} {span:?}");
            d.stage_backward_weight(&mut b, &mut OneDevice, pending, false).unwrap();
            assert_eq!(products(&mut b), wanted.backward_weight.0, "{name} {span:?}");
        }
    }
}
