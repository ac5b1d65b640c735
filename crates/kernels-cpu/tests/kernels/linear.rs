use crate::harness::check;
use bessemer_tensor::op::{ActivationKind, Linear, LinearBackwardInput, LinearBackwardWeight};

/// (N, I, O): ones, odd and prime sizes, whole register tiles, several k blocks and several tiles.
const SHAPES: [(usize, usize, usize); 14] = [
    (1, 1, 1),
    (1, 64, 100),
    (2, 5, 3),
    (4, 17, 65),
    (5, 17, 31),
    (14, 16, 32),
    (15, 385, 33),
    (28, 8, 64),
    (31, 127, 97),
    (64, 770, 48),
    (113, 40, 257),
    (130, 96, 65),
    (211, 13, 307),
    (257, 401, 129),
];

#[test]
fn forward_agrees_with_the_reference() {
    for (i, (n, inputs, outputs)) in SHAPES.into_iter().enumerate() {
        let (with_bias, with_activation, with_residual) = (i % 2 == 0, i % 3 == 0, i % 4 < 2);
        let kinds = [
            ActivationKind::GeluTanh,
            ActivationKind::Silu,
            ActivationKind::ReluSquared,
            ActivationKind::GeluErf,
            ActivationKind::Relu,
        ];
        let tolerance = 4e-6 * (inputs as f32).sqrt() + 2e-6;
        check(&format!("linear {n}x{inputs}x{outputs}"), tolerance, &|s| {
            let gap = i % 3;
            Linear {
                x: s.act(n, inputs, gap),
                weight: s.strided(outputs, inputs, 2 * gap),
                bias: with_bias.then(|| s.mat(1, outputs)),
                activation: with_activation.then(|| (kinds[i % 5], s.act(n, outputs, gap))),
                residual: with_residual.then(|| s.act(n, outputs, gap)),
                out: s.act(n, outputs, gap + 1),
            }
            .into()
        });
    }
}

#[test]
fn input_gradient_agrees_with_the_reference() {
    for (i, (n, inputs, outputs)) in SHAPES.into_iter().enumerate() {
        let tolerance = 4e-6 * (outputs as f32).sqrt() + 2e-6;
        check(&format!("input gradient {n}x{inputs}x{outputs}"), tolerance, &|s| {
            let gap = (i + 1) % 3;
            LinearBackwardInput {
                dy: s.act(n, outputs, gap),
                weight: s.strided(outputs, inputs, gap),
                activation: (i % 2 == 0).then(|| (ActivationKind::GeluTanh, s.act(n, inputs, gap))),
                dx: s.act(n, inputs, gap + 1),
                accumulate: i % 3 == 0,
            }
            .into()
        });
    }
}

#[test]
fn weight_gradient_agrees_with_the_reference() {
    for (i, (n, inputs, outputs)) in SHAPES.into_iter().enumerate() {
        let tolerance = 4e-6 * (n as f32).sqrt() + 2e-6;
        check(&format!("weight gradient {n}x{inputs}x{outputs}"), tolerance, &|s| {
            let gap = i % 2;
            LinearBackwardWeight {
                x: s.act(n, inputs, gap),
                dy: s.act(n, outputs, gap),
                dweight: s.strided(outputs, inputs, gap + 1),
                dbias: (i % 2 == 0).then(|| s.mat(1, outputs)),
                accumulate: i % 3 == 0,
            }
            .into()
        });
    }
}
