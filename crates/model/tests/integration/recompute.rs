//! What the backward pass computes again has the bits of what would have been stored.

use crate::tiny;

use bessemer_arch::Model;
use bessemer_model::{ActivationConfig, Decoder, Purpose, Shape, TokenBatch};
use bessemer_units::Recompute;
use tiny::{SEQ, all_kinds, context, cpu, gradients, scored, tokens, values};

fn run(model: &Model, recompute: Recompute) -> (f64, Vec<Vec<f32>>) {
    let mut b = cpu(2);
    let shape = Shape { sequences: 2, seq: SEQ, purpose: Purpose::Train };
    let config = ActivationConfig { recompute, ..ActivationConfig::default() };
    let mut d = Decoder::with_activations(&mut b, model, shape, config).unwrap();
    for (i, p) in d.params().iter().enumerate() {
        d.write_param(&mut b, &p.spec.name, &values(i, &p.spec)).unwrap();
    }
    let (ids, targets) = tokens(5, 2);
    let batch = TokenBatch { ids: &ids, targets: &targets, positions: None };
    let sum = d.forward_backward(&mut b, &batch, &context(3, scored(&targets))).unwrap();
    (sum.nats, gradients(&mut b, &d))
}

#[test]
fn recomputation_changes_no_bit_of_loss_and_gradients() {
    for (label, plain) in all_kinds() {
        for dropout in [0.0, 0.2] {
            let model = Model { dropout, ..plain.clone() };
            let stored = run(&model, Recompute::None);
            assert!(stored == run(&model, Recompute::Selective), "{label}, dropout {dropout}");
        }
    }
}
