//! The backward pass against the forward pass, and independence of a step from the cut into micro-batches and the
//! number of threads.

use crate::tiny;

use bessemer_arch::{Adapters, Init, InitChoice, Model, PositionChoice};
use bessemer_optim::OptimConfig;
use bessemer_runtime::{Decoder, LossSum, Purpose, StepContext, TokenBatch, WeighedLoss};
use bessemer_tensor::Backend;
use bessemer_tensor::rng::RngKey;
use tiny::{SEQ, adamw, all_kinds, context, cpu, decoder, gradients, models, relative, scored, tokens};

#[test]
fn every_gradient_is_the_slope_of_the_loss_with_and_without_dropout() {
    // ReLU's slope jumps within the step of a difference; OPT's gradients are held against PyTorch's in golden.rs.
    let kinds = all_kinds().into_iter().chain([tiny::with_adapter_dropout()]);
    for (label, plain) in kinds.filter(|k| k.0 != "opt") {
        for dropout in [0.0, 0.3] {
            let model = Model { dropout, ..plain.clone() };
            let mut b = cpu(1);
            let mut d = decoder(&mut b, &model, 2, Purpose::Train);
            let (ids, targets) = tokens(5, 2);
            let batch = TokenBatch { ids: &ids, targets: &targets, positions: None };
            let ctx = StepContext { first_sequence: 3, ..context(7, scored(&targets)) };
            d.forward_backward(&mut b, &batch, &ctx).unwrap();
            let slopes = gradients(&mut b, &d);
            for (i, gradient) in slopes.iter().enumerate() {
                let p = d.params()[i].clone();
                // Norms of adapted matrices are constants in the backward pass.
                let role = p.spec.id.role();
                let is_normed = |of: &Adapters| {
                    of.magnitude && (model.sets_norms_of(role) || p.spec.name.contains(".lora_"))
                };
                if p.grad.is_none() || model.adapters.as_ref().is_some_and(is_normed) {
                    continue;
                }
                let values = tiny::values(i, &p.spec);
                // A direction with a part along the gradient, so that the slope is well above rounding.
                let mut direction = vec![0.0; values.len()];
                RngKey::new(3, 0, &p.spec.name).fill_normal(0, 1.0, &mut direction);
                let norm = |v: &[f32]| v.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>().sqrt();
                let (g, r) = (norm(gradient), norm(&direction));
                let direction: Vec<f64> = gradient
                    .iter()
                    .zip(&direction)
                    .map(|(a, b)| f64::from(*a) / g + f64::from(*b) / r)
                    .collect();
                // With experts, one of two is small enough for no choice to change.
                let steps: &[f64] = if model.experts.is_some() { &[5e-4, 1e-4] } else { &[4e-3] };
                let mut loss_at = |h: f64| {
                    let moved: Vec<f32> =
                        values.iter().zip(&direction).map(|(v, s)| (f64::from(*v) + h * s) as f32).collect();
                    d.write_param(&mut b, &p.spec.name, &moved).unwrap();
                    d.forward_backward(&mut b, &batch, &ctx).unwrap().mean()
                };
                let measured: Vec<f64> =
                    steps.iter().map(|h| (loss_at(*h) - loss_at(-h)) / (2.0 * h)).collect();
                d.write_param(&mut b, &p.spec.name, &values).unwrap();
                let slope: f64 = gradient.iter().zip(&direction).map(|(g, s)| f64::from(*g) * s).sum();
                let close = |(m, h): (&f64, &f64)| (m - slope).abs() < 2e-2 * slope.abs() + 8e-7 / h;
                assert!(
                    measured.iter().zip(steps).any(close),
                    "{label}, dropout {dropout}, {}: measured {measured:?}, gradient {slope}",
                    p.spec.name
                );
            }
        }
    }
}

/// Loss and gradients of four sequences in micro-batches of `sequences`.
fn in_micro_batches(model: &Model, sequences: usize) -> (LossSum, Vec<Vec<f32>>) {
    let mut b = cpu(2);
    let mut d = decoder(&mut b, model, sequences, Purpose::Train);
    let (ids, targets) = tokens(5, 4);
    let mut sum = LossSum::default();
    // Gradients left by an earlier step must not matter.
    for grad in d.params().iter().filter_map(|p| p.grad) {
        b.write_f32(grad, &vec![f32::NAN; grad.len()]).unwrap();
    }
    let rows = sequences * SEQ;
    for (i, (ids, targets_part)) in ids.chunks(rows).zip(targets.chunks(rows)).enumerate() {
        let batch = TokenBatch { ids, targets: targets_part, positions: None };
        let ctx = StepContext {
            first_sequence: (i * sequences) as u64,
            accumulate: i > 0,
            ..context(7, scored(&targets))
        };
        sum += d.forward_backward(&mut b, &batch, &ctx).unwrap();
    }
    (sum, gradients(&mut b, &d))
}

/// Kernels may add in another order for another number of rows, so equal up to rounding, not bit for bit.
#[test]
fn four_micro_batches_of_one_are_one_of_four_even_under_dropout() {
    for (label, plain) in all_kinds().into_iter().chain([tiny::with_adapter_dropout()]) {
        for dropout in [0.0, 0.3] {
            let model = Model { dropout, ..plain.clone() };
            let (whole, gradients_whole) = in_micro_batches(&model, 4);
            for sequences in [1, 2] {
                let (cut, gradients_cut) = in_micro_batches(&model, sequences);
                assert_eq!(cut.scored, whole.scored);
                assert!((cut.nats / whole.nats - 1.0).abs() < 1e-6, "{label}: {cut:?} {whole:?}");
                for (a, b) in gradients_cut.iter().zip(&gradients_whole) {
                    let difference = relative(a, b);
                    assert!(difference < 1e-5, "{label}, dropout {dropout}: {difference}");
                }
            }
        }
    }
}

#[test]
fn dropout_changes_with_the_step_the_seed_and_the_sequence_and_not_otherwise() {
    let model = Model { dropout: 0.3, ..models()[1].1.clone() };
    let mut b = cpu(1);
    let mut d = decoder(&mut b, &model, 1, Purpose::Train);
    let (ids, targets) = tokens(5, 1);
    let batch = TokenBatch { ids: &ids, targets: &targets, positions: None };
    let base = context(0, scored(&targets));
    let mut loss = |ctx: StepContext| d.forward_backward(&mut b, &batch, &ctx).unwrap().nats;
    let first = loss(base);
    assert_eq!(first, loss(base));
    for other in [
        StepContext { step: 1, ..base },
        StepContext { seed: 2, ..base },
        StepContext { first_sequence: 1, ..base },
    ] {
        assert_ne!(first, loss(other), "{other:?}");
    }
    let plain = decoder(&mut b, &Model { dropout: 0.0, ..model }, 1, Purpose::Score)
        .loss(&mut b, &batch, None)
        .unwrap();
    assert_eq!(d.loss(&mut b, &batch, None).unwrap(), plain, "scoring drops nothing");
}

/// Three steps; every parameter's bits at the end.
fn three_steps(model: &Model, threads: usize) -> Vec<u32> {
    let mut b = cpu(threads);
    let mut d = decoder(&mut b, model, 2, Purpose::Train);
    let mut optimizer = adamw(&mut b, &d, &OptimConfig { lr: 1e-2, ..Default::default() });
    for step in 0..3 {
        let (ids, targets) = tokens(step, 2);
        let batch = TokenBatch { ids: &ids, targets: &targets, positions: None };
        d.forward_backward(&mut b, &batch, &context(step, scored(&targets))).unwrap();
        optimizer.step(&mut b, step + 1, 1e-2).unwrap();
    }
    bits(&mut b, &d)
}

fn bits(backend: &mut dyn Backend, d: &Decoder) -> Vec<u32> {
    d.read_params(backend).unwrap().iter().flat_map(|t| t.values.iter().map(|v| v.to_bits())).collect()
}

#[test]
fn three_steps_have_the_same_bits_on_any_number_of_threads() {
    // Wide enough that every operator is cut into several tiles.
    let wide = |m: &Model| Model { width: 96, head_dim: 24, ffn_width: 320, dropout: 0.1, ..m.clone() };
    for (label, model) in all_kinds() {
        let model = wide(&model);
        let one = three_steps(&model, 1);
        for threads in [2, 3, 5] {
            assert!(one == three_steps(&model, threads), "{label}: {threads} threads");
        }
    }
}

#[test]
fn positions_left_out_count_from_zero_in_every_sequence() {
    // Without a table or rotation no position is read; documents count their own.
    let reads = |m: &Model| {
        !matches!(m.positions, PositionChoice::None | PositionChoice::Alibi) && m.document_end.is_none()
    };
    for (_, model) in all_kinds().into_iter().filter(|m| reads(&m.1)) {
        let mut b = cpu(1);
        let mut d = decoder(&mut b, &model, 2, Purpose::Train);
        let (ids, targets) = tokens(5, 2);
        let mut nats = |positions: Option<&[u32]>| {
            let batch = TokenBatch { ids: &ids, targets: &targets, positions };
            d.loss(&mut b, &batch, None).unwrap().nats
        };
        let counted: Vec<u32> = (0..2 * SEQ as u32).map(|n| n % SEQ as u32).collect();
        let restarted: Vec<u32> = counted.iter().map(|p| p % 5).collect();
        assert_eq!(nats(None), nats(Some(&counted)));
        assert_ne!(nats(None), nats(Some(&restarted)));
    }
}

#[test]
fn initial_values_have_the_written_moments_and_depend_on_seed_and_name_only() {
    let mut model = models()[0].1.clone();
    model.width = 64;
    model.head_dim = 16;
    let mut b = cpu(1);
    let d = decoder(&mut b, &model, 1, Purpose::Score);
    d.init(&mut b, 11).unwrap();
    let first = d.read_params(&mut b).unwrap();
    let mut names = 0;
    for t in &first {
        let n = t.values.len() as f64;
        let mean = t.values.iter().map(|v| f64::from(*v)).sum::<f64>() / n;
        let std = (t.values.iter().map(|v| (f64::from(*v) - mean).powi(2)).sum::<f64>() / n).sqrt();
        let wanted = match t.name.as_str() {
            s if s.ends_with("norm.weight") => (1.0, 0.0),
            s if s.ends_with("bias") => (0.0, 0.0),
            s if s.ends_with("attention.out.weight") || s.ends_with("down.weight") => (0.0, 0.02 / 2.0),
            _ => (0.0, 0.02),
        };
        // Five standard errors.
        let slack = 5.0 * wanted.1 / n.sqrt();
        assert!(
            (mean - wanted.0).abs() <= slack && (std - wanted.1).abs() <= slack,
            "{}: {mean} {std}",
            t.name
        );
        names += 1;
    }
    assert_eq!(names, model.params().len());
    // The same seed in a decoder of another shape has the same bits; another seed does not.
    let d = decoder(&mut b, &model, 2, Purpose::Train);
    d.init(&mut b, 11).unwrap();
    assert!(first == d.read_params(&mut b).unwrap());
    d.init(&mut b, 12).unwrap();
    assert!(first != d.read_params(&mut b).unwrap());
}

/// Every initialisation, held against the standard deviation that its distribution in the table has, slice by slice.
#[test]
fn values_of_every_initialisation_have_the_standard_deviation_of_the_table() {
    let base = Model { width: 64, head_dim: 16, kv_heads: 2, ..models()[0].1.clone() };
    let kinds = [
        InitChoice::Gpt2,
        InitChoice::Xavier,
        InitChoice::Lri,
        InitChoice::DsInit,
        InitChoice::TFixup,
        InitChoice::DeepNorm,
        InitChoice::MuP,
    ];
    for init in kinds {
        let mup_base_width = (init == InitChoice::MuP).then_some(16);
        let model = Model { init, mup_base_width, ..base.clone() };
        let mut b = cpu(1);
        let d = decoder(&mut b, &model, 1, Purpose::Score);
        d.init(&mut b, 3).unwrap();
        for (tensor, p) in d.read_params(&mut b).unwrap().iter().zip(d.params()) {
            let (rows, columns) = p.spec.matrix();
            let slices = match &p.spec.init {
                Init::Rows(slices) => slices.clone(),
                whole => vec![(rows, whole.clone())],
            };
            assert_eq!(slices.iter().map(|s| s.0).sum::<usize>(), rows);
            let mut at = 0;
            for (rows, init) in slices {
                let values = &tensor.values[at * columns..(at + rows) * columns];
                at += rows;
                let n = values.len() as f64;
                let std = (values.iter().map(|v| f64::from(*v).powi(2)).sum::<f64>() / n).sqrt();
                let wanted = match init {
                    Init::Normal(std) => std,
                    Init::Uniform(bound) => {
                        assert!(values.iter().all(|v| f64::from(v.abs()) <= bound * (1.0 + 1e-6)));
                        bound / 3f64.sqrt()
                    }
                    Init::Constant(c) => c,
                    Init::RowNorms(_) => panic!("{} without adapters", tensor.name),
                    Init::Rows(_) => panic!("rows within rows"),
                };
                let slack = 5.0 * wanted / (2.0 * n).sqrt();
                assert!(
                    (std - wanted).abs() <= slack,
                    "{:?} {}: {std}, wanted {wanted}",
                    model.init,
                    tensor.name
                );
            }
        }
    }
}

#[test]
fn the_z_loss_is_told_apart_from_the_loss() {
    let model = &models()[0].1;
    let mut b = cpu(1);
    let mut d = decoder(&mut b, model, 2, Purpose::Train);
    let (ids, targets) = tokens(5, 2);
    let batch = TokenBatch { ids: &ids, targets: &targets, positions: None };
    let mut squares = 0.0;
    d.logits(&mut b, &batch, |n, row| {
        if targets[n] != bessemer_tensor::op::IGNORED {
            squares += row.iter().map(|z| f64::from(*z).exp()).sum::<f64>().ln().powi(2);
        }
    })
    .unwrap();
    let ctx = context(0, scored(&targets));
    let without = d.forward_backward(&mut b, &batch, &ctx).unwrap();
    let before = gradients(&mut b, &d);
    d.weigh_losses(&[WeighedLoss::z_loss(0.1)]).unwrap();
    let with = d.forward_backward(&mut b, &batch, &ctx).unwrap();
    assert_eq!((without.auxiliary[0], without.nats, without.scored), (0.0, with.nats, with.scored));
    assert!((with.auxiliary[0] / squares - 1.0).abs() < 1e-5, "{} {squares}", with.auxiliary[0]);
    assert_ne!(before, gradients(&mut b, &d));
    assert_eq!(d.loss(&mut b, &batch, None).unwrap().auxiliary[0], 0.0);
}
