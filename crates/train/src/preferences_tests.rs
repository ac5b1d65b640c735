//! Preferences against TRL, on a model and pairs that formulas give.

use super::*;
use crate::held_out::DocumentScorer;
use crate::runner::Runner;
use bessemer_arch::{Model, named};
use bessemer_kernels_cpu::{CpuBackend, CpuConfig};
use bessemer_loader::{Batch, Loader};
use bessemer_optim::OptimConfig;
use bessemer_parallel::{BatchSource, Job};
use bessemer_runtime::{ActivationConfig, Purpose, Shape, StepContext, TokenBatch};
use bessemer_shards::{ShardSet, ShardSetWriter, SplitMeta};
use bessemer_units::ParamStorage;
use std::sync::Arc;

/// Losses of steps, the norm of the first gradient, and rewards in the last step, chosen and rejected (`golden/preferences/dpo.py`).
const LOSSES: [f64; 20] = [
    std::f64::consts::LN_2,
    0.2880886,
    0.1682014,
    0.1155140,
    0.0828104,
    0.0615803,
    0.0476203,
    0.0383674,
    0.0319094,
    0.0270893,
    0.0232894,
    0.0201919,
    0.0176254,
    0.0154836,
    0.0136885,
    0.0121768,
    0.0108957,
    0.0098013,
    0.0088582,
    0.0080382,
];
const NORM: f64 = 3.267_282_5;
const REWARDS: [f64; 2] = [1.578_301_4, -3.454_593_7];

/// Chosen and rejected answers to three questions, and where the answers begin.
const PAIRS: [([&[u32]; 2], usize); 3] = [
    ([&[1, 5, 9, 3, 7, 2, 11, 4], &[1, 5, 9, 6, 14, 8]], 3),
    ([&[6, 6, 0, 14, 13, 8], &[6, 6, 0, 14, 3, 12, 10]], 4),
    ([&[12, 10, 2], &[12, 10, 15, 9, 9, 1, 4, 4]], 2),
];

/// Llama with 2 layers, width 8, 2 heads and 1 of keys and values.
fn llama() -> Model {
    Model {
        vocab_size: 16,
        layers: 2,
        width: 8,
        heads: 2,
        kv_heads: 1,
        head_dim: 4,
        ffn_width: 12,
        context: 8,
        norm_eps: 1e-5,
        rope_theta: 1e4,
        tied_embeddings: false,
        ..named("llama").unwrap()
    }
}

/// Element j, row by row, of tensor k in Hugging Face's order (embedding; of each layer q, k, v, o, gate, up, down; head) is
/// 0.3 sin(1.3 j + 0.7 k), and norms are 1.
fn value(name: &str, len: usize) -> Vec<f32> {
    let tensor =
        |k: usize, len: usize| (0..len).map(move |j| (0.3 * (1.3 * j as f64 + 0.7 * k as f64).sin()) as f32);
    let layer = name.split('.').find_map(|part| part.parse::<usize>().ok()).unwrap_or(0);
    let of_layer = |first: usize, lens: &[usize]| -> Vec<f32> {
        lens.iter().enumerate().flat_map(|(at, len)| tensor(1 + 7 * layer + first + at, *len)).collect()
    };
    match name {
        _ if name.contains("norm") => vec![1.0; len],
        "embed.tokens" => tensor(0, 128).collect(),
        "head.weight" => tensor(15, 128).collect(),
        _ if name.ends_with("attention.qkv.weight") => of_layer(0, &[64, 32, 32]),
        _ if name.ends_with("attention.out.weight") => of_layer(3, &[64]),
        _ if name.ends_with("mlp.gate_up.weight") => of_layer(4, &[96, 96]),
        _ => of_layer(6, &[96]),
    }
}

/// The pairs, in micro-batches of one pair.
struct Pairs<'a> {
    loader: &'a Loader,
    batch: Batch,
    weights: &'a PairWeights,
    scored: u64,
}

impl BatchSource for Pairs<'_> {
    fn micro_batch(&mut self, micro: usize) -> Result<(TokenBatch<'_>, StepContext), ParallelError> {
        self.loader.batch(2 * micro as u64, 2, &mut self.batch).unwrap();
        let batch = TokenBatch { ids: &self.batch.inputs, targets: &self.batch.targets, positions: None };
        let loss_scale = 1.0 / self.scored as f32;
        Ok((batch, StepContext { seed: 1, step: 0, first_sequence: 0, loss_scale, accumulate: false }))
    }

    fn target_weights(&self, micro: usize) -> Option<&[f32]> {
        self.weights.of(micro)
    }
}

/// Losses, accuracies and rewards of steps of AdamW, and the norm of the first gradient.
fn tuned(config: &PreferencesConfig, steps: u64) -> (Vec<f64>, Vec<BTreeMap<String, f64>>, f64) {
    let dir = tempfile::tempdir().unwrap();
    let meta = SplitMeta { split: "train".into(), vocab_size: 16, tokenizer: [1; 32].into() };
    let mut writer = ShardSetWriter::create(dir.path(), meta, 1 << 20).unwrap();
    for (number, (answers, begin)) in PAIRS.iter().enumerate() {
        for tokens in answers {
            let scored = *begin..tokens.len();
            writer.push_scored([number as u8; 16], 8, tokens, std::slice::from_ref(&scored)).unwrap();
        }
    }
    writer.finish().unwrap();
    let set = Arc::new(ShardSet::open(dir.path(), "train").unwrap());
    let recipe = Recipe::default();
    let recipe = Recipe {
        train: bessemer_recipe::TrainConfig {
            seq_len: 7,
            lengths: bessemer_recipe::SequenceLengths::Padded,
            length_buckets: vec![7],
            ..recipe.train
        },
        ..recipe
    };
    let loader = DocumentScorer::loader(&recipe, &set, 2).unwrap();
    let optim = OptimConfig {
        beta1: 0.9,
        beta2: 0.999,
        eps: 1e-8,
        weight_decay: 0.0,
        clip: 0.0,
        ..OptimConfig::default()
    };
    let (plan, model) = (Plan::single(), llama());
    let job = Job {
        model: &model,
        shape: Shape { sequences: 2, seq: 7, purpose: Purpose::Train },
        activations: ActivationConfig::default(),
        types: ParamStorage::default(),
        optim: &optim,
        losses: &[],
        plan: &plan,
        program: &plan.program(3, 1, None).unwrap(),
    };
    let mut backend = CpuBackend::new(CpuConfig { threads: 1, pin: false, ..CpuConfig::default() }).unwrap();
    let mut runner = Runner::new(&mut backend, &job, crate::runner::world_of_one()).unwrap();
    runner.worker.init(&mut backend, 1).unwrap();
    let decoder = runner.worker.decoder();
    for param in decoder.params() {
        decoder
            .write_param(&mut backend, &param.spec.name, &value(&param.spec.name, param.spec.len()))
            .unwrap();
    }
    let mut scorer = DocumentScorer::new(&runner);
    let mut score = |runner: &mut Runner, backend: &mut CpuBackend| {
        scorer.split(runner, backend, &loader, 6, &mut |_, _| Ok(())).unwrap()
    };
    let reference = score(&mut runner, &mut backend);
    let scored = set.scored_count();
    let (mut losses, mut means, mut norms) = (Vec::new(), Vec::new(), Vec::new());
    for t in 1..=steps {
        let nll = score(&mut runner, &mut backend);
        let mut weights = PairWeights::default();
        weights.begin(3);
        for micro in 0..3 {
            let pair = |all: &[f64]| [all[2 * micro], all[2 * micro + 1]];
            let share = scored as f64 / 3.0;
            weights.add(config, (pair(&nll), pair(&reference)), Some((micro, 0, 7)), share);
        }
        let mut source = Pairs { loader: &loader, batch: Batch::new(), weights: &weights, scored };
        let step = runner.step(&mut backend, &mut source, t, 1e-2).unwrap();
        losses.push(weights.sums.loss / weights.sums.pairs as f64);
        means.push(weights.sums.means());
        norms.push(step.stats.grad_norm);
    }
    (losses, means, norms[0])
}

/// `label_smoothing`, which TRL's form of this loss leaves out, is held to the slope of the loss in `the_weight_of_a_pair…`.
#[test]
fn twenty_steps_have_the_losses_of_trl() {
    let (losses, means, norm) = tuned(&PreferencesConfig { beta: 0.5, label_smoothing: 0.0 }, 20);
    for (step, (loss, wanted)) in losses.iter().zip(LOSSES).enumerate() {
        assert!((loss - wanted).abs() < 1e-5, "step {}: {loss} {wanted}", step + 1);
    }
    assert!((norm - NORM).abs() < 1e-5 * NORM, "{norm}");
    let rewards = [means[19]["chosen"], means[19]["rejected"]];
    assert!(rewards.iter().zip(REWARDS).all(|(found, wanted)| (found - wanted).abs() < 1e-3), "{rewards:?}");
    assert_eq!(
        [means[0]["margin"], means[0]["chosen"], means[0]["accuracy"], means[19]["accuracy"]],
        [0.0, 0.0, 0.0, 1.0]
    );
}
