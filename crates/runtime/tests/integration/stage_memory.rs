//! Memory and operators of a stage, by the ledger and the counts of the null backend.

use bessemer_arch::{Model, named};
use bessemer_runtime::{
    ActivationConfig, Decoder, OneDevice, Purpose, Shape, StageConfig, StepContext, Stream, TokenBatch,
};
use bessemer_tensor::Backend;
use bessemer_tensor::null::NullBackend;
use bessemer_units::Bytes;

fn class(b: &NullBackend, name: &str) -> Bytes {
    b.memory().classes.iter().find(|c| c.0 == name).map_or(Bytes(0), |c| c.1)
}

/// "activations" of some layers with so many slots and pending sets.
fn activations(model: &Model, layers: std::ops::Range<usize>, slots: usize, pending: usize) -> u64 {
    let tensor_shard = model.tensor_shard(1, 0).unwrap();
    let shape = Shape { sequences: 1, seq: 1024, purpose: Purpose::Train };
    let span = bessemer_arch::Span { embedding: false, layers, head: false };
    let stage = StageConfig { span, slots, pending, overlap: false, shadowing: None };
    let mut b = NullBackend::new();
    let config = ActivationConfig::default();
    Decoder::of_stage(&mut b, &tensor_shard, Stream::WHOLE, shape, config, &stage, None).unwrap();
    class(&b, "activations").0
}

/// One GPT-2 124M layer at 1 x 1024 tokens: a slot of a span in the middle keeps of each layer 2 D + J + A + P = 10 D
/// elements of a row and the log-sum-exps of the attention, a pending set 4 D + J + A + P + F = 16 D.
#[test]
fn a_layer_of_gpt2_costs_what_can_be_counted_by_hand() {
    let model = Model { layers: 12, ..named("gpt2-124m").unwrap() };
    let slot = |layers: std::ops::Range<usize>| {
        activations(&model, layers.clone(), 2, 0) - activations(&model, layers, 1, 0)
    };
    let set = |layers: std::ops::Range<usize>| {
        activations(&model, layers.clone(), 1, 2) - activations(&model, layers, 1, 1)
    };
    let (rows, lse) = (4 * 1024 * 768, 4 * 12 * 1024);
    assert_eq!((slot(3..6) - slot(3..4)) / 2, 10 * rows + lse);
    assert_eq!(set(3..4), 16 * rows);
    assert_eq!(set(3..6), 3 * set(3..4));
    // Scratch does not grow with the layers.
    let shared = |layers: std::ops::Range<usize>| activations(&model, layers.clone(), 1, 0) - slot(layers);
    assert_eq!(shared(3..6), shared(3..4));
}

/// FLOPs of products by the part of a pass that they are made in.
#[test]
fn products_of_each_part_are_those_of_the_span() {
    for name in ["gpt2-124m", "llama-8b", "llama-1b"] {
        let model = named(name).unwrap();
        let tensor_shard = model.tensor_shard(1, 0).unwrap();
        let shape = Shape { sequences: 2, seq: 256, purpose: Purpose::Train };
        let tokens = vec![1; shape.tokens()];
        let batch = TokenBatch { ids: &tokens, targets: &tokens, positions: None };
        let ctx = StepContext { seed: 0, step: 0, first_sequence: 0, loss_scale: 1.0, accumulate: false };
        for span in model.split(3).unwrap() {
            let stage =
                StageConfig { span: span.clone(), slots: 1, pending: 1, overlap: false, shadowing: None };
            let (mut b, config) = (NullBackend::new(), ActivationConfig::default());
            let mut d =
                Decoder::of_stage(&mut b, &tensor_shard, Stream::WHOLE, shape, config, &stage, None).unwrap();
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
