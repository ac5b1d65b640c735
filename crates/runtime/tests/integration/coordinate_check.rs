//! muP's coordinate check (Yang et al. 2022, appendix D.1): after a few steps of AdamW the logits have the same size at
//! every width under muP, and grow with the width under the standard parametrisation at the same learning rate.

use crate::tiny;

use bessemer_arch::{InitChoice, Model};
use bessemer_kernels_cpu::CpuBackend;
use bessemer_optim::{OptimConfig, OptimParam, Optimizer};
use bessemer_runtime::{Decoder, Purpose, Shape, TokenBatch};
use tiny::{context, cpu, models, scored, tokens};

const WIDTHS: [usize; 4] = [64, 128, 256, 512];
const STEPS: u64 = 4;
const SEEDS: [u64; 3] = [5, 6, 7];

/// Mean magnitude of the logits' change since the initialisation, after [`STEPS`] steps on one batch.
fn coordinate(model: &Model, seed: u64) -> f64 {
    let mut b = cpu(2);
    let shape = Shape { sequences: 2, seq: tiny::SEQ, purpose: Purpose::Train };
    let mut d = Decoder::new(&mut b, model, shape).unwrap();
    d.init(&mut b, seed).unwrap();
    let config = OptimConfig { lr: 1e-2, weight_decay: 0.0, clip: 0.0, ..OptimConfig::default() };
    let params: Vec<_> =
        d.params().iter().map(|p| OptimParam::of(model, &p.spec, p.value, p.grad.unwrap())).collect();
    let mut optimizer = Optimizer::new(&mut b, &params, &config).unwrap();
    let (ids, targets) = tokens(5, 2);
    let batch = TokenBatch { ids: &ids, targets: &targets, positions: None };
    let logits = |d: &mut Decoder, b: &mut CpuBackend| {
        let mut all = Vec::new();
        d.logits(b, &batch, |_, row| all.extend_from_slice(row)).unwrap();
        all
    };
    let before = logits(&mut d, &mut b);
    for step in 0..STEPS {
        d.forward_backward(&mut b, &batch, &context(step, scored(&targets))).unwrap();
        optimizer.step(&mut b, step + 1, config.lr).unwrap();
    }
    let after = logits(&mut d, &mut b);
    let moved: f64 = before.iter().zip(&after).map(|(a, b)| f64::from((b - a).abs())).sum();
    moved / before.len() as f64
}

fn sizes(init: InitChoice) -> Vec<f64> {
    let of = |width: usize| {
        let heads = width / 16;
        let mup_base_width = (init == InitChoice::MuP).then_some(WIDTHS[0]);
        let base = models()[0].1.clone();
        Model {
            init,
            mup_base_width,
            width,
            heads,
            kv_heads: heads,
            head_dim: 16,
            ffn_width: 4 * width,
            ..base
        }
    };
    let mean = |model: Model| SEEDS.iter().map(|s| coordinate(&model, *s)).sum::<f64>() / SEEDS.len() as f64;
    WIDTHS.iter().map(|w| mean(of(*w))).collect()
}

#[test]
fn logits_move_as_far_at_every_width_under_mup_and_farther_with_width_otherwise() {
    let (mup, standard) = (sizes(InitChoice::MuP), sizes(InitChoice::Gpt2));
    println!("widths {WIDTHS:?}: muP {mup:.3?}, standard {standard:.3?}");
    let growth = |sizes: &[f64]| sizes[sizes.len() - 1] / sizes[0];
    assert!((0.5..1.6).contains(&growth(&mup)), "muP {mup:?}");
    assert!(growth(&standard) > 2.0, "standard {standard:?}");
    assert!(
        (mup[0] / standard[0] - 1.0).abs() < 1e-6,
        "the base width is the standard one: {mup:?} {standard:?}"
    );
}
