//! Recomputation: the bits of a pass that has kept everything, memory by written formulas, and the recomputed values.

use crate::tiny;

use bessemer_arch::{Model, Span, named};
use bessemer_program::Node;
use bessemer_runtime::{
    ActivationConfig, Decoder, OneDevice, Phase, Purpose, Shape, StageConfig, Stream, TokenBatch,
};
use bessemer_tensor::Backend;
use bessemer_tensor::null::NullBackend;
use bessemer_units::{Recompute, RecomputePlan, RecomputePolicy, Storage};
use std::collections::BTreeMap;
use tiny::{SEQ, all_kinds, context, cpu, gradients, scored, tokens, values};

fn run(model: &Model, recompute: RecomputePlan) -> (f64, Vec<Vec<f32>>) {
    let mut b = cpu(2);
    let shape = Shape { sequences: 2, seq: SEQ, purpose: Purpose::Train };
    let config = ActivationConfig { recompute, ..ActivationConfig::default() };
    let mut d = Decoder::with_activations(&mut b, model, shape, config).unwrap();
    d.verify().unwrap();
    for (i, p) in d.params().iter().enumerate() {
        d.write_param(&mut b, &p.spec.name, &values(i, &p.spec)).unwrap();
    }
    let (ids, targets) = tokens(5, 2);
    let batch = TokenBatch { ids: &ids, targets: &targets, positions: None };
    let sum = d.forward_backward(&mut b, &batch, &context(3, scored(&targets))).unwrap();
    (sum.nats, gradients(&mut b, &d))
}

fn of_values(names: &[&str]) -> RecomputePolicy {
    RecomputePolicy::Values(names.iter().map(|name| (*name).to_owned()).collect())
}

fn plan(default: impl Into<RecomputePolicy>, layers: &[(&str, RecomputePolicy)]) -> RecomputePlan {
    let layers: BTreeMap<_, _> =
        layers.iter().map(|(key, policy)| ((*key).to_owned(), policy.clone())).collect();
    let layers = layers.try_into().unwrap();
    RecomputePlan { default: default.into(), layers, ..RecomputePlan::default() }
}

#[test]
fn recomputation_changes_no_bit_of_loss_and_gradients() {
    for (label, plain) in all_kinds() {
        for dropout in [0.0, 0.2] {
            let model = Model { dropout, ..plain.clone() };
            let stored = run(&model, Recompute::None.into());
            let policies =
                [Recompute::Selective, Recompute::Attention, Recompute::AttentionOutput, Recompute::Full];
            for policy in policies {
                assert!(stored == run(&model, policy.into()), "{label}, dropout {dropout}, {policy}");
            }
            for names in [&["mlp.pre"][..], &["attention"], &["attention.qkv", "mlp"], &["attention.out"]] {
                let found = run(&model, plan(of_values(names), &[]));
                assert!(stored == found, "{label}, dropout {dropout}, {names:?}");
            }
            let mixed =
                plan(Recompute::None, &[("0", Recompute::Full.into()), ("1", of_values(&["mlp.pre"]))]);
            assert!(stored == run(&model, mixed), "{label}, dropout {dropout}, by layers");
        }
    }
}

/// Bytes that one more micro-batch in flight takes in some layers of GPT-2 124M at 1 x 1024 tokens, over `degree` ranks
/// that hold the residual stream so.
fn slot(storage: Storage, recompute: &RecomputePlan, (degree, stream): (usize, Stream)) -> u64 {
    let model = named("gpt2-124m").unwrap();
    let tensor_shard = model.tensor_shard(degree, 0).unwrap();
    let of = |slots: usize| {
        let span = Span { embedding: false, layers: 4..8, head: false };
        let stage = StageConfig { span, slots, pending: 0, overlap: false, shadowing: None };
        let config =
            ActivationConfig { storage, recompute: recompute.clone(), ..ActivationConfig::default() };
        let mut b = NullBackend::new();
        let shape = Shape { sequences: 1, seq: 1024, purpose: Purpose::Train };
        Decoder::of_stage(&mut b, &tensor_shard, stream, shape, config, &stage, None).unwrap();
        b.memory().classes.iter().find(|c| c.0 == "activations").unwrap().1.0
    };
    of(2) - of(1)
}

/// One rank.
const ONE: (usize, Stream) = (1, Stream::WHOLE);

/// Korthikanti et al. 2022, table 2, without dropout and with a flash attention, whose log-sum-exps take 4 a s b bytes: s b h
/// elements of a layer are its input 1, queries, keys and values 3, attention's result 1, the stream between the blocks 1
/// and pre-activations 4; two norms and the activation's result are 6 more. With the attention's output a layer keeps that
/// and its input, 4 s b h bytes in 16 bits, and the log-sum-exps. Recomputed in full it keeps 2 s b h bytes, or 2 s b h / t
/// where ranks shard the rows.
#[test]
fn memory_of_a_micro_batch_is_that_of_the_formulas() {
    let (sbh, lse, statistics) = (1024 * 768, 4 * 12 * 1024, 2 * 2 * 4 * 1024);
    // Ids, targets and positions, and the stream that leaves the last layer.
    let rest = |size: u64, degree: u64| 3 * 4 * 1024 + size * sbh / degree;
    for (storage, size) in [(Storage::F32, 4), (Storage::Bf16, 2)] {
        let of = |policy: Recompute| slot(storage, &policy.into(), ONE) - rest(size, 1);
        assert_eq!(of(Recompute::None), 4 * (16 * size * sbh + lse + statistics));
        assert_eq!(of(Recompute::Selective), 4 * (10 * size * sbh + lse));
        assert_eq!(of(Recompute::Attention), 4 * 9 * size * sbh);
        assert_eq!(of(Recompute::AttentionOutput), 4 * (2 * size * sbh + lse));
        assert_eq!(of(Recompute::Full), 4 * size * sbh);
        let named = plan(of_values(&["mlp.pre"]), &[]);
        assert_eq!(
            slot(storage, &named, ONE) - rest(size, 1),
            4 * ((16 - 8) * size * sbh + lse + statistics)
        );
        // Each layer has the memory of its policy.
        for layers in ["5-6", "stage 1-2"] {
            let full = plan(Recompute::Selective, &[(layers, Recompute::Full.into())]);
            assert_eq!(
                slot(storage, &full, ONE) - rest(size, 1),
                2 * size * sbh + 2 * (10 * size * sbh + lse)
            );
        }
        for degree in [2, 4] {
            // Rows of the input, heads of the attention's output: each rank has its part of both.
            for (policy, whole) in
                [(Recompute::Full, size * sbh), (Recompute::AttentionOutput, 2 * size * sbh + lse)]
            {
                let found = slot(storage, &policy.into(), (degree, Stream::ROWS)) - rest(size, degree as u64);
                assert_eq!(found, 4 * whole / degree as u64, "{policy} over {degree} ranks");
            }
            // Rajbhandari et al. 2020, section 6.1: 1/t of each layer's input. The input and output of the stage are whole.
            let found = slot(storage, &Recompute::Full.into(), (degree, Stream::PARTITIONED));
            let ends = rest(size, 1) + size * sbh;
            assert_eq!(found - ends, 4 * size * sbh / degree as u64, "partitioned over {degree} ranks");
        }
    }
}

/// FLOPs of one step by operator.
fn flops(model: &Model, recompute: RecomputePlan) -> BTreeMap<&'static str, f64> {
    let mut b = NullBackend::new();
    let shape = Shape { sequences: 2, seq: 256, purpose: Purpose::Train };
    let config = ActivationConfig { recompute, ..ActivationConfig::default() };
    let mut d = Decoder::with_activations(&mut b, model, shape, config).unwrap();
    let ids = vec![1; shape.tokens()];
    let batch = TokenBatch { ids: &ids, targets: &ids, positions: None };
    b.reset_counts();
    d.forward_backward(&mut b, &batch, &context(3, ids.len())).unwrap();
    b.counts().iter().map(|(name, count)| (*name, count.flops.0)).collect()
}

/// The last product of a layer is not made again: nothing in its backward pass reads it.
#[test]
fn what_is_computed_again_is_counted() {
    for name in ["gpt2-124m", "llama-1b"] {
        let m = Model { layers: 4, ..named(name).unwrap() };
        let (n, d) = (512.0, m.width as f64);
        let once = flops(&m, Recompute::None.into());
        let more = |plan: RecomputePlan, op: &str| flops(&m, plan)[op] - once[op];
        let again = 2.0 * n * d * (m.qkv_width() + m.attention_width() + m.mlp_in_width()) as f64;
        for (plan, layers) in [
            (RecomputePlan::from(Recompute::Selective), 0.0),
            (Recompute::Full.into(), 4.0),
            (plan(Recompute::None, &[("1-3", Recompute::Full.into())]), 3.0),
        ] {
            assert_eq!(more(plan.clone(), "linear"), layers * again, "{name} {plan}");
            assert_eq!(more(plan.clone(), "attention"), layers * once["attention"] / 4.0, "{name} {plan}");
        }
        let output = RecomputePlan::from(Recompute::AttentionOutput);
        assert_eq!(more(output.clone(), "linear"), 4.0 * again, "{name}");
        assert_eq!(more(output, "attention"), 0.0, "{name}: the attention runs forward once");
        let attention = RecomputePlan::from(Recompute::Attention);
        assert_eq!(more(attention.clone(), "linear"), 0.0, "{name}");
        assert_eq!(more(attention, "attention"), once["attention"], "{name}");
    }
}

/// Korthikanti et al. 2022, appendix C: micro-batches for which there is memory keep everything.
#[test]
fn stored_micro_batches_take_the_memory_and_the_work_of_no_recomputation() {
    let model = Model { layers: 4, ..named("gpt2-124m").unwrap() };
    let tensor_shard = model.tensor_shard(1, 0).unwrap();
    let shape = Shape { sequences: 1, seq: 256, purpose: Purpose::Train };
    let make = |b: &mut NullBackend, policy: Recompute, stored_micro_batches, slots, pending| {
        let recompute = RecomputePlan { stored_micro_batches, ..policy.into() };
        let config = ActivationConfig { recompute, ..ActivationConfig::default() };
        let stage = StageConfig { slots, pending, ..StageConfig::whole(&model) };
        Decoder::of_stage(b, &tensor_shard, Stream::WHOLE, shape, config, &stage, None)
    };
    let bytes = |policy, stored, slots| {
        let mut b = NullBackend::new();
        make(&mut b, policy, stored, slots, 0).unwrap();
        b.memory().classes.iter().find(|c| c.0 == "activations").unwrap().1.0
    };
    for policy in [Recompute::Selective, Recompute::Full] {
        let one = |policy| bytes(policy, 0, 4) - bytes(policy, 0, 3);
        assert_eq!(bytes(policy, 2, 4) - bytes(policy, 1, 4), one(Recompute::None) - one(policy));
        assert_eq!(bytes(policy, 1, 4) - bytes(policy, 1, 3), one(policy));
        assert_eq!(bytes(policy, 9, 4), bytes(Recompute::None, 0, 4));
    }
    let mut b = NullBackend::new();
    let mut d = make(&mut b, Recompute::Full, 1, 2, 0).unwrap();
    d.verify().unwrap();
    let ids = vec![1; shape.tokens()];
    let batch = TokenBatch { ids: &ids, targets: &ids, positions: None };
    let mut flops = |slot: usize| {
        b.reset_counts();
        d.stage_forward(&mut b, &mut OneDevice, slot, &batch, Some(&context(3, ids.len()))).unwrap();
        d.stage_backward(&mut b, &mut OneDevice, slot, true).unwrap();
        b.counts()["linear"].flops.0
    };
    let (stored, recomputed) = (flops(0), flops(1));
    // A layer's products forward, and all of them but the last once more.
    assert_eq!(recomputed / stored, (12.0 + 8.0) / 12.0);
    let e = make(&mut b, Recompute::Full, 1, 2, 1).unwrap_err().to_string();
    assert!(e.contains("train.stored_micro_batches = 0"), "{e}");
}

/// Shoeybi et al. 2019 count two all-reduces more when a layer is computed again. The last one is spared here, as is the
/// gathering of rows for the gradients of weights, which are here already. Rows of a layer's input that each rank has kept in
/// part are gathered once: s b h (t-1)/t elements.
#[test]
fn collectives_of_a_layer_that_is_computed_again_are_counted() {
    let model = Model { layers: 1, ..named("llama-1b").unwrap() };
    let tensor_shard = model.tensor_shard(2, 0).unwrap();
    for (stream, none, full) in [(Stream::WHOLE, 4, 6), (Stream::PARTITIONED, 5, 7), (Stream::ROWS, 6, 7)] {
        for (policy, wanted) in [(Recompute::None, none), (Recompute::Full, full)] {
            let config = ActivationConfig { recompute: policy.into(), ..ActivationConfig::default() };
            let shape = Shape { sequences: 1, seq: 1024, purpose: Purpose::Train };
            let (mut b, stage) = (NullBackend::new(), StageConfig::whole(&tensor_shard.model));
            let d = Decoder::of_stage(&mut b, &tensor_shard, stream, shape, config, &stage, None).unwrap();
            let (_, program, _) = d.programs().nth(1).unwrap();
            let sent = |node: &Node| match node {
                Node::Collective(c) => c.bytes_sent(2, 0),
                _ => 0,
            };
            let sent: u64 = program.list(Phase::Backward).iter().map(sent).sum();
            assert_eq!(sent, wanted * 4 * 1024 * 2048 / 2, "{stream:?} {policy}");
        }
    }
}

#[test]
fn a_name_that_is_no_saved_value_is_refused_with_those_that_are() {
    let model = named("gpt2").unwrap();
    let config =
        ActivationConfig { recompute: plan(of_values(&["mlp.prae"]), &[]), ..ActivationConfig::default() };
    let shape = Shape { sequences: 1, seq: 8, purpose: Purpose::Train };
    let e =
        Decoder::with_activations(&mut NullBackend::new(), &model, shape, config).unwrap_err().to_string();
    assert!(e.contains("reads no value \"mlp.prae\"") && e.contains("mlp.pre, "), "{e}");
}
