//! An auxiliary loss in a middle layer, on one device: its gradient is its slope, its value is reported by name.

use crate::tiny::{context, cpu, gradients, models, scored, tokens, values};
use bessemer_arch::Unit;
use bessemer_mesh::Dim;
use bessemer_program::{Phase, Recorder, UnitProgram};
use bessemer_runtime::{ActivationConfig, Decoder, Purpose, Shape, TokenBatch, UnitPass, WeighedLoss};
use bessemer_tensor::op::{Combine, Dot};
use bessemer_tensor::rng::RngKey;

const NAME: &str = "stream_squares";

/// The sum of the squares of the input of layer 1.
fn squares(of: Unit, unit: UnitProgram) -> UnitProgram {
    if of != Unit::Layer(1) {
        return unit;
    }
    let mut recorder = Recorder::of(unit);
    let (x, dx) = (recorder.find("x").unwrap(), recorder.find("x.gradient").unwrap());
    recorder.begin(Phase::Forward);
    let (out, weight) = recorder.auxiliary_loss(NAME, false, [Dim::plain(1), Dim::plain(1)]);
    recorder.launch(Dot { a: x, b: x, out });
    recorder.begin(Phase::Backward);
    recorder.launch(Combine { a: dx, alpha: 1.0, b: x, beta: 2.0, step: Some(weight), out: dx });
    recorder.finish()
}

#[test]
fn its_gradient_is_the_slope_of_the_objective() {
    const WEIGHT: f64 = 0.3;
    let model = &models()[0].1;
    let mut b = cpu(1);
    let shape = Shape { sequences: 2, seq: crate::tiny::SEQ, purpose: Purpose::Train };
    let passes = vec![UnitPass { name: NAME, apply: squares }];
    let config = ActivationConfig { passes, ..ActivationConfig::default() };
    let mut d = Decoder::with_activations(&mut b, model, shape, config).unwrap();
    for (i, p) in d.params().to_vec().into_iter().enumerate() {
        d.write_param(&mut b, &p.spec.name, &values(i, &p.spec)).unwrap();
    }
    d.weigh_losses(&[WeighedLoss::new(NAME, WEIGHT)]).unwrap();
    let (ids, targets) = tokens(5, 2);
    let batch = TokenBatch { ids: &ids, targets: &targets, positions: None };
    let ctx = context(7, scored(&targets));
    d.forward_backward(&mut b, &batch, &ctx).unwrap();
    let slopes = gradients(&mut b, &d);
    let mut reached = 0;
    for (i, gradient) in slopes.iter().enumerate() {
        let spec = d.params()[i].spec.clone();
        let at = values(i, &spec);
        let mut direction = vec![0.0; at.len()];
        RngKey::new(3, 0, &spec.name).fill_normal(0, 1.0, &mut direction);
        let h = 2e-3;
        let mut terms = |sign: f32| {
            let moved: Vec<f32> = at.iter().zip(&direction).map(|(v, s)| v + sign * h * s).collect();
            d.write_param(&mut b, &spec.name, &moved).unwrap();
            let sum = d.forward_backward(&mut b, &batch, &ctx).unwrap();
            [sum.mean(), WEIGHT * sum.mean_auxiliary(0)]
        };
        let (up, down) = (terms(1.0), terms(-1.0));
        d.write_param(&mut b, &spec.name, &at).unwrap();
        let measured = |of: usize| (up[of] - down[of]) / (2.0 * f64::from(h));
        let slope: f64 = gradient.iter().zip(&direction).map(|(g, s)| f64::from(*g) * f64::from(*s)).sum();
        let whole = measured(0) + measured(1);
        assert!(
            (whole - slope).abs() < 2e-2 * slope.abs() + 2e-3,
            "{}: {whole}, gradient {slope}",
            spec.name
        );
        reached += usize::from(measured(1).abs() > 0.1 * whole.abs().max(0.01));
    }
    assert!(reached > 0, "the loss reaches no parameter");
}

#[test]
fn more_losses_than_a_sum_has_are_refused() {
    let mut b = cpu(1);
    let mut d = Decoder::new(&mut b, &models()[0].1, Shape { sequences: 1, seq: 4, purpose: Purpose::Train })
        .unwrap();
    let e = d.weigh_losses(&[WeighedLoss::z_loss(0.1); 5]).unwrap_err().to_string();
    assert!(e.contains("wanted at most 4 auxiliary losses, found 5"), "{e}");
}
