//! Parameters in bf16 or f16: the loss and the gradients are those of an f32 decoder whose weights were rounded, bit for bit
//! with gradients in f32, and rounded where they are short too.

use crate::tiny;

use bessemer_arch::Model;
use bessemer_kernels_cpu::{CpuBackend, CpuConfig, Engine};
use bessemer_optim::OptimConfig;
use bessemer_runtime::{ActivationConfig, Decoder, LossSum, Param, Purpose, Shape, TokenBatch};
use bessemer_tensor::{Backend, BufferSpec};
use bessemer_units::{DType, Storage};
use half::{bf16, f16};
use tiny::{SEQ, adamw, context, gradients, models, relative, scored, tokens, values};

/// f32 multiply-adds: the tile unit splits short operands in fewer parts, and sums in another order.
fn cpu(threads: usize) -> CpuBackend {
    let config = CpuConfig { threads, ..CpuConfig::default() };
    CpuBackend::with_engine(config, crate::instruction_set::rung(), Engine::Fma).unwrap()
}

fn rounded(dtype: DType, x: f32) -> f32 {
    match dtype {
        DType::Bf16 => bf16::from_f32(x).to_f32(),
        DType::F16 => f16::from_f32(x).to_f32(),
        _ => x,
    }
}

/// A decoder with parameters and gradients of some types, and the formula's weights, rounded to `values_of`.
fn decoder(
    b: &mut dyn Backend,
    model: &Model,
    storage: Storage,
    (weights, grads): (DType, DType),
    values_of: DType,
) -> Decoder {
    let place = |spec: bessemer_arch::ParamSpec| {
        let (rows, cols) = spec.matrix();
        let mut view = |dtype| {
            let buffer = BufferSpec { class: "weights", name: &spec.name, dtype, len: rows * cols };
            b.alloc(buffer).unwrap().matrix(rows, cols)
        };
        let (value, grad) = (view(weights), Some(view(grads)));
        Param { spec, value, grad }
    };
    let params: Vec<Param> = model.params().into_iter().map(place).collect();
    let shape = Shape { sequences: 2, seq: SEQ, purpose: Purpose::Train };
    let config = ActivationConfig { storage, ..ActivationConfig::default() };
    let d = Decoder::with_params(b, model, shape, config, params).unwrap();
    for (i, p) in d.params().iter().enumerate() {
        let values: Vec<f32> = values(i, &p.spec).into_iter().map(|x| rounded(values_of, x)).collect();
        d.write_param(b, &p.spec.name, &values).unwrap();
    }
    d
}

fn step(b: &mut dyn Backend, d: &mut Decoder) -> (LossSum, Vec<Vec<f32>>) {
    let (ids, targets) = tokens(5, 2);
    let batch = TokenBatch { ids: &ids, targets: &targets, positions: None };
    let sum = d.forward_backward(b, &batch, &context(3, scored(&targets))).unwrap();
    (sum, gradients(b, d))
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|x| x.to_bits()).collect()
}

#[test]
fn a_step_is_that_of_an_f32_decoder_with_rounded_weights() {
    for (label, plain) in models() {
        let model = Model { dropout: 0.1, ..plain };
        for (weights, grads, storage) in [
            (DType::Bf16, DType::F32, Storage::F32),
            (DType::F16, DType::F32, Storage::F32),
            (DType::Bf16, DType::F32, Storage::Bf16),
            (DType::Bf16, DType::Bf16, Storage::F32),
            (DType::F16, DType::F16, Storage::F32),
        ] {
            let what =
                format!("{label}, weights in {weights}, gradients in {grads}, activations in {storage}");
            let (mut b, mut wide) = (cpu(2), cpu(1));
            let mut d = decoder(&mut b, &model, storage, (weights, grads), weights);
            let mut truth = decoder(&mut wide, &model, storage, (DType::F32, DType::F32), weights);
            let (found, gradients) = step(&mut b, &mut d);
            let (wanted, exact) = step(&mut wide, &mut truth);
            assert_eq!(found.nats.to_bits(), wanted.nats.to_bits(), "{what}");
            for ((p, g), e) in d.params().iter().zip(&gradients).zip(&exact) {
                let name = &p.spec.name;
                let once: Vec<f32> = e.iter().map(|x| rounded(grads, *x)).collect();
                // A tied table has two terms, a head's norm one a head; each is rounded into the sum.
                let terms = name == "embed.tokens" && model.tied_embeddings
                    || name.contains("attention.q_norm")
                    || name.contains("attention.k_norm");
                if terms && grads != DType::F32 {
                    assert!(relative(g, e) < 8e-3, "{what}: {name}");
                } else {
                    assert_eq!(bits(g), bits(&once), "{what}: {name}");
                }
            }
        }
    }
}

/// Three hundred steps on the same two batches: masters accumulate updates that are too small for short weights.
#[test]
fn training_with_short_parameters_goes_the_way_of_f32() {
    let (label, model) = models().swap_remove(0);
    let run = |weights, grads| {
        let mut b = cpu(2);
        let mut d = decoder(&mut b, &model, Storage::F32, (weights, grads), DType::F32);
        let mut optimizer = adamw(&mut b, &d, &OptimConfig::default());
        optimizer.adopt_values(&mut b).unwrap();
        let mut curve = Vec::new();
        for t in 1..=300 {
            let (ids, targets) = tokens(7 + t % 2, 2);
            let batch = TokenBatch { ids: &ids, targets: &targets, positions: None };
            let sum = d.forward_backward(&mut b, &batch, &context(t, scored(&targets))).unwrap();
            curve.push(sum.mean());
            assert!(!optimizer.step(&mut b, t, 5e-4).unwrap().skipped);
        }
        curve
    };
    let full = run(DType::F32, DType::F32);
    for (weights, grads) in [(DType::Bf16, DType::F32), (DType::Bf16, DType::Bf16), (DType::F16, DType::F16)]
    {
        let short = run(weights, grads);
        // The output that docs/lab-log.md quotes: run with --nocapture.
        println!("{label}: weights {weights}, gradients {grads}: {} for {}", short[299], full[299]);
        for (at, (s, f)) in short.iter().zip(&full).enumerate() {
            assert!((s - f).abs() < 0.03 * f + 0.03, "{label}, {weights}, {grads}: step {at}: {s} for {f}");
        }
    }
    assert!(full[299] < 0.7 * full[0], "{} to {}", full[0], full[299]);
}
