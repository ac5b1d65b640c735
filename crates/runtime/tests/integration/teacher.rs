//! Distillation in one decoder: the divergence is that of both models' logits, its gradient is a slope, and without it nothing changes.

use crate::tiny::{
    SEQ, SEQUENCES, all_kinds, batch, context, cpu, decoder, gradients, models, scored, values,
};
use bessemer_arch::Model;
use bessemer_model::DISTILLATION_LOSS;
use bessemer_runtime::{
    ActivationConfig, Decoder, LossSum, Purpose, Shape, StepContext, Teacher, TokenBatch, WeighedLoss,
};
use bessemer_tensor::Backend;
use bessemer_tensor::op::IGNORED;
use bessemer_tensor::rng::RngKey;

const SHAPE: Shape = Shape { sequences: SEQUENCES, seq: SEQ, purpose: Purpose::Train };

/// Parameters of a teacher: other values than its student would have.
fn teacher(b: &mut dyn Backend, model: &Model, temperature: f32) -> Teacher {
    let teacher = Teacher::new(b, model, SHAPE, temperature).unwrap();
    for (i, param) in teacher.params().iter().enumerate() {
        b.write_f32(param.value, &values(100 + i, &param.spec)).unwrap();
    }
    teacher
}

/// A student of the formula's weights, and its loss.
fn student(b: &mut dyn Backend, model: &Model, teacher: Teacher, loss: WeighedLoss) -> Decoder {
    let config = ActivationConfig { teacher: Some(teacher.operands()), ..ActivationConfig::default() };
    let mut d = Decoder::with_activations(b, model, SHAPE, config).unwrap();
    for (i, p) in d.params().to_vec().into_iter().enumerate() {
        d.write_param(b, &p.spec.name, &values(i, &p.spec)).unwrap();
    }
    d.weigh_losses(&[loss]).unwrap();
    d.set_teacher(teacher).unwrap();
    d
}

fn logits(b: &mut dyn Backend, model: &Model, first: usize, batch: &TokenBatch<'_>) -> Vec<Vec<f64>> {
    let mut d = decoder(b, model, SEQUENCES, Purpose::Score);
    for (i, p) in d.params().to_vec().into_iter().enumerate() {
        d.write_param(b, &p.spec.name, &values(first + i, &p.spec)).unwrap();
    }
    let mut rows = Vec::new();
    d.logits(b, batch, |_, row| rows.push(row.iter().map(|z| f64::from(*z)).collect())).unwrap();
    rows
}

fn log_softmax(logits: &[f64], temperature: f64) -> Vec<f64> {
    let max = logits.iter().fold(f64::NEG_INFINITY, |a, &b| a.max(b)) / temperature;
    let lse = max + logits.iter().map(|z| (z / temperature - max).exp()).sum::<f64>().ln();
    logits.iter().map(|z| z / temperature - lse).collect()
}

/// Any kind of model teaches: tied tables, scaled logits, other places of the last norm, experts by the routing of an evaluation.
#[test]
fn the_divergence_is_that_of_both_models_logits() {
    let student_model = &models()[1].1;
    let (ids, targets) = batch(3);
    let batch = TokenBatch { ids: &ids, targets: &targets, positions: None };
    for (label, model) in all_kinds() {
        let mut b = cpu(1);
        let tau = 1.5;
        let model = Model { dropout: 0.2, ..model };
        let taught = teacher(&mut b, &model, tau as f32);
        let mut d = student(&mut b, student_model, taught, WeighedLoss::new(DISTILLATION_LOSS, 0.5));
        let sum = d.forward_backward(&mut b, &batch, &context(0, scored(&targets))).unwrap();
        let ours = logits(&mut b, student_model, 0, &batch);
        let theirs = logits(&mut b, &model, 100, &batch);
        let mut wanted = 0.0;
        for ((z, t), _) in ours.iter().zip(&theirs).zip(&targets).filter(|(_, target)| **target != IGNORED) {
            let (p, q) = (log_softmax(z, tau), log_softmax(t, tau));
            wanted += tau * tau * q.iter().zip(&p).map(|(q, p)| q.exp() * (q - p)).sum::<f64>();
        }
        let wanted = wanted / scored(&targets) as f64;
        let found = sum.mean_auxiliary(0);
        assert!((found / wanted - 1.0).abs() < 1e-4, "{label}: {found}, wanted {wanted}");
    }
}

#[test]
fn gradients_are_slopes_of_both_losses() {
    const WEIGHT: f64 = 0.8;
    let model = &models()[0].1;
    let mut b = cpu(1);
    let taught = teacher(&mut b, &models()[1].1, 2.0);
    let mut d = student(&mut b, model, taught, WeighedLoss::new(DISTILLATION_LOSS, WEIGHT));
    let (ids, targets) = batch(5);
    let batch = TokenBatch { ids: &ids, targets: &targets, positions: None };
    let ctx = context(7, scored(&targets));
    d.forward_backward(&mut b, &batch, &ctx).unwrap();
    for (i, gradient) in gradients(&mut b, &d).iter().enumerate() {
        let spec = d.params()[i].spec.clone();
        let at = values(i, &spec);
        let mut direction = vec![0.0; at.len()];
        RngKey::new(3, 0, &spec.name).fill_normal(0, 1.0, &mut direction);
        let h = 2e-3;
        let mut objective = |sign: f32| {
            let moved: Vec<f32> = at.iter().zip(&direction).map(|(v, s)| v + sign * h * s).collect();
            d.write_param(&mut b, &spec.name, &moved).unwrap();
            let sum = d.forward_backward(&mut b, &batch, &ctx).unwrap();
            sum.mean() + WEIGHT * sum.mean_auxiliary(0)
        };
        let measured = (objective(1.0) - objective(-1.0)) / (2.0 * f64::from(h));
        d.write_param(&mut b, &spec.name, &at).unwrap();
        let slope: f64 = gradient.iter().zip(&direction).map(|(g, s)| f64::from(*g) * f64::from(*s)).sum();
        assert!(
            (measured - slope).abs() < 2e-2 * slope.abs() + 2e-3,
            "{}: {measured}, gradient {slope}",
            spec.name
        );
    }
}

/// Gradients of a sum of micro-batches are those of one micro-batch of all of them, and after its last step a teacher leaves no trace.
#[test]
fn a_teacher_ends_with_the_bits_of_the_loss_alone() {
    let model = &models()[1].1;
    let (ids, targets) = batch(3);
    let batch = TokenBatch { ids: &ids, targets: &targets, positions: None };
    let bits = |d: &mut Decoder, b: &mut dyn Backend, ctx: &StepContext| {
        let LossSum { nats, auxiliary, .. } = d.forward_backward(b, &batch, ctx).unwrap();
        let gradients: Vec<u32> = gradients(b, d).concat().into_iter().map(f32::to_bits).collect();
        (nats.to_bits(), gradients, auxiliary[0])
    };
    let mut b = cpu(1);
    let taught = teacher(&mut b, &models()[0].1, 1.0);
    let loss = WeighedLoss { until: Some(4), ..WeighedLoss::new(DISTILLATION_LOSS, 1.0) };
    let mut d = student(&mut b, model, taught, loss);
    let mut alone = decoder(&mut b, model, SEQUENCES, Purpose::Train);
    for (step, distils) in [(3, true), (4, false), (9, false), (0, true)] {
        let ctx = context(step, scored(&targets));
        let (with, without) = (bits(&mut d, &mut b, &ctx), bits(&mut alone, &mut b, &ctx));
        assert_eq!(with.0, without.0, "step {step}: the loss is the cross-entropy");
        assert_eq!(with.1 != without.1, distils, "step {step}");
        assert_eq!(with.2 > 0.0, distils, "step {step}");
    }
    // A second micro-batch adds as much as the first.
    let ctx = context(0, scored(&targets));
    let once = {
        bits(&mut d, &mut b, &ctx);
        gradients(&mut b, &d).concat()
    };
    bits(&mut d, &mut b, &StepContext { accumulate: true, ..ctx });
    for (twice, once) in gradients(&mut b, &d).concat().into_iter().zip(once) {
        assert!((twice - 2.0 * once).abs() <= 1e-6 * once.abs().max(1e-3), "{twice} {once}");
    }
}

#[test]
fn a_student_without_its_teacher_is_refused() {
    let model = &models()[1].1;
    let (ids, targets) = batch(3);
    let batch = TokenBatch { ids: &ids, targets: &targets, positions: None };
    let mut b = cpu(1);
    let [taught, other] = [1.0, 2.0].map(|tau| teacher(&mut b, &models()[0].1, tau));
    let config = ActivationConfig { teacher: Some(taught.operands()), ..ActivationConfig::default() };
    let mut d = Decoder::with_activations(&mut b, model, SHAPE, config.clone()).unwrap();
    d.weigh_losses(&[WeighedLoss::new(DISTILLATION_LOSS, 1.0)]).unwrap();
    let e = d.forward_backward(&mut b, &batch, &context(0, 1)).unwrap_err().to_string();
    assert!(e.contains("wanted a teacher for a loss that compares with one, found none"), "{e}");
    let e = d.set_teacher(other).unwrap_err().to_string();
    assert!(e.contains("found another"), "{e}");
    d.set_teacher(taught).unwrap();
    d.forward_backward(&mut b, &batch, &context(0, 1)).unwrap();
    let lengths = ActivationConfig { lengths: vec![4], ..config };
    let e = Decoder::with_activations(&mut b, model, SHAPE, lengths).unwrap_err().to_string();
    assert!(
        e.contains("one micro-batch of one length at a time, found 1 slots and 1 shorter lengths"),
        "{e}"
    );
}
