//! Activations stored in bf16: loss and gradients near those of f32, the same bits for any number of threads, and half of
//! the memory.

use crate::tiny;

use bessemer_arch::{ActivationChoice, Model};
use bessemer_optim::OptimConfig;
use bessemer_runtime::{ActivationConfig, Decoder, LossSum, Purpose, Shape, TokenBatch};
use bessemer_tensor::Backend;
use bessemer_units::{Recompute, Storage};
use tiny::{SEQ, adamw, context, cpu, gradients, models, relative, scored, tokens, values};

fn decoder(b: &mut dyn Backend, model: &Model, config: ActivationConfig) -> Decoder {
    let shape = Shape { sequences: 2, seq: SEQ, purpose: Purpose::Train };
    let d = Decoder::with_activations(b, model, shape, config).unwrap();
    for (i, p) in d.params().iter().enumerate() {
        d.write_param(b, &p.spec.name, &values(i, &p.spec)).unwrap();
    }
    d
}

fn of(storage: Storage) -> ActivationConfig {
    ActivationConfig { storage, ..ActivationConfig::default() }
}

fn one_step(model: &Model, config: ActivationConfig, threads: usize) -> (LossSum, Vec<Vec<f32>>) {
    let mut b = cpu(threads);
    let mut d = decoder(&mut b, model, config);
    let (ids, targets) = tokens(5, 2);
    let batch = TokenBatch { ids: &ids, targets: &targets, positions: None };
    let sum = d.forward_backward(&mut b, &batch, &context(3, scored(&targets))).unwrap();
    (sum, gradients(&mut b, &d))
}

#[test]
fn loss_and_gradients_are_near_those_of_f32() {
    for (label, plain) in models() {
        for dropout in [0.0, 0.2] {
            let model = Model { dropout, ..plain.clone() };
            let (full, full_gradients) = one_step(&model, of(Storage::F32), 2);
            let (half, half_gradients) = one_step(&model, of(Storage::Bf16), 2);
            let error = (half.mean() / full.mean() - 1.0).abs();
            assert!(error < 3e-3, "{label}: loss {} in bf16, {} in f32", half.mean(), full.mean());
            let flat = |g: &[Vec<f32>]| g.concat();
            let error = relative(&flat(&half_gradients), &flat(&full_gradients));
            // Rounding takes values near zero to the other side of ReLU's kink.
            let most = if model.activation == ActivationChoice::Relu { 0.1 } else { 2e-2 };
            assert!(error > 0.0 && error < most, "{label}: gradients differ by {error}");
        }
    }
}

#[test]
fn bits_depend_neither_on_threads_nor_on_recomputation() {
    for (label, plain) in models() {
        let model = Model { dropout: 0.1, ..plain };
        let one = one_step(&model, of(Storage::Bf16), 1);
        for threads in [2, 3] {
            assert!(one == one_step(&model, of(Storage::Bf16), threads), "{label}, {threads} threads");
        }
        let stored = ActivationConfig {
            storage: Storage::Bf16,
            recompute: Recompute::None.into(),
            ..ActivationConfig::default()
        };
        assert!(one == one_step(&model, stored, 1), "{label} without recomputation");
    }
}

#[test]
fn training_goes_the_same_way() {
    for (label, model) in models() {
        let losses = [Storage::F32, Storage::Bf16].map(|storage| {
            let mut b = cpu(2);
            let mut d = decoder(&mut b, &model, of(storage));
            let mut optimizer = adamw(&mut b, &d, &OptimConfig::default());
            let (ids, targets) = tokens(7, 2);
            let batch = TokenBatch { ids: &ids, targets: &targets, positions: None };
            let mut last = f64::NAN;
            for step in 0..40 {
                last = d.forward_backward(&mut b, &batch, &context(step, scored(&targets))).unwrap().mean();
                optimizer.step(&mut b, step + 1, 3e-3).unwrap();
            }
            last
        });
        let [full, half] = losses;
        assert!(
            full < 3.0 && (half - full).abs() < 0.05 * full.max(0.5),
            "{label}: {half} in bf16, {full} in f32"
        );
    }
}
