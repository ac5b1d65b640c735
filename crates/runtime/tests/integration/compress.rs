//! Compression of stored activations: losses keep their bits, gradients stay near, memory by written formulas.

use crate::tiny;

use bessemer_arch::{ActivationChoice, Model, Span, named};
use bessemer_program::{Home, Node};
use bessemer_runtime::{
    ActivationConfig, Decoder, Phase, Purpose, Shape, StageConfig, Stream, TokenBatch, Unit,
};
use bessemer_tensor::Backend;
use bessemer_tensor::null::NullBackend;
use bessemer_units::{Compression, CompressionPlan, Recompute, RecomputePlan, Storage};
use std::collections::BTreeSet;
use tiny::{SEQ, all_kinds, context, cpu, gradients, scored, tokens, values};

const FORMS: [Compression; 2] = [Compression::Bf16, Compression::Int8];

fn config(recompute: impl Into<RecomputePlan>, compression: impl Into<CompressionPlan>) -> ActivationConfig {
    ActivationConfig {
        recompute: recompute.into(),
        compression: compression.into(),
        ..ActivationConfig::default()
    }
}

fn of_values(form: Compression, names: &[&str]) -> CompressionPlan {
    CompressionPlan { form, values: names.iter().map(|name| (*name).to_owned()).collect() }
}

/// Loss and gradients by name.
fn run(model: &Model, config: ActivationConfig) -> (f64, Vec<(String, Vec<f32>)>) {
    let mut b = cpu(2);
    let shape = Shape { sequences: 2, seq: SEQ, purpose: Purpose::Train };
    let mut d = Decoder::with_activations(&mut b, model, shape, config).unwrap();
    d.verify().unwrap();
    for (i, p) in d.params().iter().enumerate() {
        d.write_param(&mut b, &p.spec.name, &values(i, &p.spec)).unwrap();
    }
    let (ids, targets) = tokens(5, 2);
    let batch = TokenBatch { ids: &ids, targets: &targets, positions: None };
    let sum = d.forward_backward(&mut b, &batch, &context(3, scored(&targets))).unwrap();
    let names: Vec<String> = d.params().iter().map(|p| p.spec.name.clone()).collect();
    (sum.nats, names.into_iter().zip(gradients(&mut b, &d)).collect())
}

fn norm(values: impl Iterator<Item = f32>) -> f64 {
    values.map(|v| f64::from(v).powi(2)).sum::<f64>().sqrt()
}

/// Half a unit is 2^-9 of a value in bf16 and 1/254 of a block's largest in 8 bits. A gradient is a sum over tokens of products with such
/// values, whose errors have no common direction: it is off by a few units of its norm, and by more only where products of
/// activations are added to a sum of small terms (the biases of keys, whose gradient is rounding). Where the input of a ReLU is recomputed
/// from rounded values, some change their sign, and with it whether a gradient passes.
#[test]
fn losses_keep_their_bits_and_gradients_stay_near() {
    for (label, plain) in all_kinds() {
        let model = Model { dropout: 0.2, ..plain.clone() };
        let (loss, exact) = run(&model, config(Recompute::None, Compression::None));
        let whole = norm(exact.iter().flat_map(|(_, g)| g.iter().copied()));
        for form in FORMS {
            for recompute in [Recompute::None, Recompute::Selective, Recompute::Attention, Recompute::Full] {
                let (found, gradients) = run(&model, config(recompute, form));
                assert_eq!(loss.to_bits(), found.to_bits(), "{label} {form} {recompute}");
                let pairs = exact.iter().zip(&gradients);
                let apart = pairs.map(|(a, b)| norm(a.1.iter().zip(&b.1).map(|(a, b)| a - b)).powi(2));
                let apart = apart.sum::<f64>().sqrt() / whole;
                eprintln!("{label} {form} {recompute}: {apart:.1e}");
                let unit = if form == Compression::Bf16 { 1.0 / 512.0 } else { 1.0 / 254.0 };
                let changes_sign = model.activation == ActivationChoice::Relu && recompute == Recompute::Full;
                // A weight of an expert's result has the gradient <result, gradient>, whose terms nearly cancel.
                let least = if model.experts.is_some() { 16.0 } else { 8.0 };
                let bound = if changes_sign { 0.2 } else { least * unit };
                assert!(apart > 0.0 && apart < bound, "{label} {form} {recompute}: {apart}, bound {bound}");
            }
        }
    }
}

/// Only what reads a compressed value changes, and nothing that does not: the input of the last product is read for its weight's
/// gradient alone.
#[test]
fn gradients_change_where_a_compressed_value_is_read_and_nowhere_else() {
    const READERS: [&str; 3] = ["mlp.down.weight", "mlp.down.lora_a", "mlp.experts.down.weight"];
    for (label, model) in all_kinds() {
        let (_, exact) = run(&model, config(Recompute::None, Compression::None));
        for form in FORMS {
            let (_, found) = run(&model, config(Recompute::None, of_values(form, &["mlp.hidden"])));
            let changed: BTreeSet<&str> =
                exact.iter().zip(&found).filter(|(a, b)| a != b).map(|(a, _)| a.0.as_str()).collect();
            let wanted: BTreeSet<&str> = exact
                .iter()
                .map(|(name, _)| name.as_str())
                .filter(|n| READERS.iter().any(|reader| n.ends_with(reader)))
                .collect();
            assert!(!wanted.is_empty(), "{label}");
            assert_eq!(changed, wanted, "{label} {form}");
        }
    }
}

/// Bytes that one more micro-batch in flight takes in some layers of GPT-2 124M at 1 x 1024 tokens.
fn slot(storage: Storage, recompute: Recompute, compression: CompressionPlan, pending: usize) -> u64 {
    let model = named("gpt2-124m").unwrap();
    let tensor_shard = model.tensor_shard(1, 0).unwrap();
    let of = |slots: usize| {
        let span = Span { embedding: false, layers: 4..8, head: false };
        let stage = StageConfig { span, slots, pending, overlap: false, shadowing: None };
        let config = ActivationConfig { storage, ..config(recompute, compression.clone()) };
        let mut b = NullBackend::new();
        let shape = Shape { sequences: 1, seq: 1024, purpose: Purpose::Train };
        Decoder::of_stage(&mut b, &tensor_shard, Stream::WHOLE, shape, config, &stage, None).unwrap();
        b.memory().classes.iter().find(|c| c.0 == "activations").unwrap().1.0
    };
    of(2) - of(1)
}

/// Elements of a layer as in `recompute::memory_of_a_micro_batch_is_that_of_the_formulas`, of 2 bytes in bf16 and of 1 + 4/256 in 8
/// bits. Log-sum-exps and statistics stay. The input and output of the stage are unchanged.
#[test]
fn memory_of_a_micro_batch_is_that_of_the_formulas() {
    let (sbh, lse, statistics) = (1024 * 768u64, 4 * 12 * 1024, 2 * 2 * 4 * 1024);
    for (storage, size) in [(Storage::F32, 4), (Storage::Bf16, 2)] {
        let rest = 3 * 4 * 1024 + 2 * size * sbh;
        for form in FORMS {
            // Bytes per element, in units of 1/64 byte.
            let element = match form {
                Compression::Int8 => 65,
                _ if size == 4 => 128,
                // The values are not smaller than without compression.
                _ => continue,
            };
            let of = |recompute| slot(storage, recompute, form.into(), 0) - rest;
            assert_eq!(of(Recompute::None), 4 * (16 * sbh * element / 64 + lse + statistics));
            assert_eq!(of(Recompute::Selective), 4 * (10 * sbh * element / 64 + lse));
            assert_eq!(of(Recompute::Attention), 4 * 9 * sbh * element / 64);
            assert_eq!(of(Recompute::AttentionOutput), 4 * (2 * sbh * element / 64 + lse));
            assert_eq!(of(Recompute::Full), 4 * sbh * element / 64);
            // Inputs of the layers, but for the first, and the rest as it is.
            let named = slot(storage, Recompute::None, of_values(form, &["mlp.pre"]), 0);
            let stays = 4 * (12 * size * sbh + lse + statistics);
            assert_eq!(named - rest + size * sbh, stays + 4 * 4 * sbh * element / 64);
        }
    }
}

/// Where the backward pass is split, operands of the weight part are kept compressed.
#[test]
fn split_backward_passes_keep_compressed_values_for_their_weight_part() {
    let model = named("gpt2-124m").unwrap();
    let tensor_shard = model.tensor_shard(1, 0).unwrap();
    let shape = Shape { sequences: 1, seq: 1024, purpose: Purpose::Train };
    let stage = StageConfig { pending: 1, ..StageConfig::whole(&tensor_shard.model) };
    let config = config(Recompute::None, Compression::Int8);
    let d =
        Decoder::of_stage(&mut NullBackend::new(), &tensor_shard, Stream::WHOLE, shape, config, &stage, None)
            .unwrap();
    d.verify().unwrap();
    let (_, program, memory) = d.programs().find(|p| p.0 == Unit::Layer(0)).unwrap();
    let home = |name: &str| memory.homes[program.find(name).unwrap()];
    assert_eq!(home("mlp.hidden.codes"), Home::Kept);
    assert_eq!(home("mlp.hidden.scales"), Home::Kept);
    assert_eq!(home("mlp.pre.codes"), Home::Saved);
    assert_eq!(home("mlp.hidden"), Home::Scratch);
    let decompressed = |phase: Phase| {
        let ops = program.list(phase).iter().filter_map(Node::op);
        ops.filter(|op| op.name() == "dequantise").count()
    };
    assert!(decompressed(Phase::BackwardInput) > 0 && decompressed(Phase::BackwardWeight) > 0);
}

#[test]
fn a_name_that_is_no_value_is_refused() {
    let (_, model) = all_kinds().into_iter().next().unwrap();
    let shape = Shape { sequences: 1, seq: SEQ, purpose: Purpose::Train };
    let config = config(Recompute::None, of_values(Compression::Int8, &["mlp.prae"]));
    let e =
        Decoder::with_activations(&mut NullBackend::new(), &model, shape, config).unwrap_err().to_string();
    assert!(e.contains("mlp.prae") && e.contains("mlp.hidden") && e.contains("attention.qkv.out"), "{e}");
}
