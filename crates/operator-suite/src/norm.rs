use crate::{Setup, Suite};
use bessemer_tensor::op::{Norm, NormBackward, NormKind};

const SHAPES: [(usize, usize); 7] = [(1, 1), (2, 3), (5, 16), (33, 17), (64, 192), (70, 385), (1, 5000)];

fn forward(s: &mut Setup, kind: NormKind, i: usize) -> Norm {
    let (n, d) = SHAPES[i];
    Norm {
        kind,
        x: s.act(n, d, i % 3),
        weight: s.param(1, d, 0),
        bias: (kind == NormKind::Layer && i.is_multiple_of(2)).then(|| s.param(1, d, 0)),
        out: s.act(n, d, (i + 1) % 3),
        mean: (kind == NormKind::Layer).then(|| s.mat(1, n)),
        rstd: s.mat(1, n),
        eps: 1e-5,
    }
}

pub(crate) fn forward_and_backward_agree_with_the_reference(suite: &Suite<'_>) {
    for kind in [NormKind::Layer, NormKind::Rms] {
        for (i, shape) in SHAPES.iter().enumerate() {
            suite.check(&format!("norm {kind:?} {shape:?}"), 1e-5, &|s| forward(s, kind, i).into());
            suite.check(&format!("norm backward {kind:?} {shape:?}"), 3e-5, &|s| {
                let f = forward(s, kind, i);
                s.launch(&f.into()).unwrap();
                let (n, d) = SHAPES[i];
                NormBackward {
                    kind,
                    x: f.x,
                    weight: f.weight,
                    mean: f.mean,
                    rstd: f.rstd,
                    dout: s.act(n, d, 1),
                    dx: s.act(n, d, 2),
                    accumulate_dx: i % 2 == 1,
                    dweight: s.gradient(1, d, 0),
                    dbias: (i % 3 != 1).then(|| s.gradient(1, d, 0)),
                    accumulate: i % 2 == 0,
                }
                .into()
            });
        }
    }
}

pub(crate) fn a_large_mean_does_not_spoil_the_variance(suite: &Suite<'_>) {
    suite.check("norm of values near 1000", 2e-3, &|s| {
        let x: Vec<f32> = (0..4 * 100).map(|i| 1000.0 + (i % 13) as f32).collect();
        let f = forward(s, NormKind::Layer, 2);
        let at = s.act(4, 100, 0);
        s.backend.write_f32(at, &x).unwrap();
        let x = at;
        Norm {
            x,
            weight: s.mat(1, 100),
            bias: None,
            out: s.act(4, 100, 0),
            mean: Some(s.mat(1, 4)),
            rstd: s.mat(1, 4),
            ..f
        }
        .into()
    });
}
