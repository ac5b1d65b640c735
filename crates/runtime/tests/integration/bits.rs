//! The bits of training: parameters after twenty steps of two tiny models with every optimizer, dropout, z-loss and clipping.
//!
//! The portable kernels have the same bits on every x86-64 processor, and other ones where a multiply-add is rounded once:
//! on 64-bit Arm, whose NEON kernels have those too, and on x86-64 if the compiler may assume FMA
//! (`RUSTFLAGS="-C target-feature=+fma"`). A change that is to keep bits does not change these values; another one
//! states the change and replaces them: the test prints the values that it found.

use crate::{instruction_set, tiny};
use bessemer_arch::Model;
use bessemer_kernels_cpu::{CpuConfig, Rung};
use bessemer_optim::OptimizerChoice::{Adafactor, AdamW, Lion, Muon, Sgd};
use bessemer_optim::{MuonConfig, OptimConfig, OptimParam, Optimizer, OptimizerChoice};
use bessemer_runtime::{Purpose, StepContext, TokenBatch, WeighedLoss};
use bessemer_tensor::Backend;
use tiny::{SEQUENCES, batch, decoder, models, scored};

/// FNV-1a over the bits of all values.
fn hash(values: &[f32]) -> u64 {
    let bytes = values.iter().flat_map(|x| x.to_bits().to_le_bytes());
    bytes.fold(0xcbf2_9ce4_8422_2325, |h, b| (h ^ u64::from(b)).wrapping_mul(0x0000_0100_0000_01b3))
}

fn trained(model: &Model, optimizer: OptimizerChoice, rung: Rung) -> u64 {
    let config = CpuConfig { threads: 2, ..CpuConfig::default() };
    let mut b = instruction_set::with_rung(config, rung);
    let mut d = decoder(&mut b, model, SEQUENCES, Purpose::Train);
    d.weigh_losses(&[WeighedLoss::z_loss(1e-3)]).unwrap();
    let muon = MuonConfig { lr: 5e-3, ..MuonConfig::default() };
    let config = OptimConfig { optimizer, lr: 2e-3, clip: 0.5, muon, ..OptimConfig::default() };
    let params: Vec<OptimParam> =
        (d.params().iter()).filter_map(|p| Some(OptimParam::of(model, &p.spec, p.value, p.grad?))).collect();
    let mut optimizer = Optimizer::new(&mut b, &params, &config).unwrap();
    for step in 0..20 {
        // Two micro-batches, which differ in their masks.
        for (micro, accumulate) in [(0, false), (1, true)] {
            let (ids, targets) = batch(2 * step + micro);
            let tokens = TokenBatch { ids: &ids, targets: &targets, positions: None };
            let ctx = StepContext {
                seed: 11,
                step,
                first_sequence: micro * SEQUENCES as u64,
                loss_scale: 0.5 / scored(&targets) as f32,
                accumulate,
            };
            d.forward_backward(&mut b, &tokens, &ctx).unwrap();
        }
        let lr = config.lr * (1.0 - step as f64 / 40.0);
        let stats = optimizer.step(&mut b, step + 1, lr).unwrap();
        assert!(!stats.skipped);
    }
    let mut all = Vec::new();
    for p in d.params() {
        let mut values = vec![0.0; p.value.len()];
        b.read_f32(p.value, &mut values).unwrap();
        all.extend(values);
    }
    assert!(all.iter().all(|x| x.is_finite()));
    hash(&all)
}

/// Whether `a * b + c` is rounded once in plain code.
const ROUNDED_ONCE: bool = cfg!(any(target_arch = "aarch64", target_feature = "fma"));

/// Bits where a multiply-add is rounded twice.
const TWICE: [(&str, OptimizerChoice, u64); 10] = [
    ("gpt2", AdamW, 0x3825_4c43_f55b_2d8b),
    ("gpt2", Sgd, 0xf204_16c5_ea98_6ad5),
    ("gpt2", Lion, 0x7503_7d17_3fff_3e25),
    ("gpt2", Adafactor, 0xa707_4b3f_b2b2_f37b),
    ("gpt2", Muon, 0x4f8b_4218_912b_e363),
    ("llama", AdamW, 0xa008_da55_2a5a_66ff),
    ("llama", Sgd, 0x2f2a_6e7c_636e_8821),
    ("llama", Lion, 0x61b0_65d2_1142_d186),
    ("llama", Adafactor, 0x6540_2c83_11ed_1ced),
    ("llama", Muon, 0x64a9_be82_5144_6135),
];

/// Bits where it is rounded once.
const ONCE: [(&str, OptimizerChoice, u64); 10] = [
    ("gpt2", AdamW, 0x26d8_bb69_f12f_2176),
    ("gpt2", Sgd, 0xf720_7554_1796_e8bd),
    ("gpt2", Lion, 0x0755_d58c_c23d_f903),
    ("gpt2", Adafactor, 0xfdcb_f983_50cf_e9b8),
    ("gpt2", Muon, 0xf982_8e25_7272_c4e6),
    ("llama", AdamW, 0xf111_91d3_1d95_5ff9),
    ("llama", Sgd, 0x4027_6be4_040d_d4f8),
    ("llama", Lion, 0x61b0_65d2_1142_d186),
    ("llama", Adafactor, 0x0cd7_657d_65f8_26af),
    ("llama", Muon, 0x7fe9_03c1_b9ed_17fd),
];

#[test]
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
fn twenty_steps_have_the_recorded_bits() {
    let recorded = if ROUNDED_ONCE { ONCE } else { TWICE };
    let rungs = [Rung::Portable, Rung::Neon].into_iter().filter(|r| r.available());
    let models = models();
    let mut wrong = Vec::new();
    for rung in rungs {
        for (label, optimizer, wanted) in recorded {
            let (_, model) = models.iter().find(|m| m.0 == label).unwrap();
            let found = trained(&Model { dropout: 0.1, ..model.clone() }, optimizer, rung);
            if found != wanted {
                wrong.push(format!("{rung}: (\"{label}\", {optimizer:?}, {found:#018x}),"));
            }
        }
    }
    assert!(wrong.is_empty(), "other bits than recorded:\n{}", wrong.join("\n"));
}
