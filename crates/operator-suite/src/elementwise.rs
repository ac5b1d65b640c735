use crate::{Setup, Suite};
use bessemer_tensor::op::*;
use bessemer_tensor::rng::RngKey;
use bessemer_units::DType;
use proptest::test_runner::{Config, TestRunner};

/// Edges of vectors, of rows and of blocks; one row longer than a block.
const SHAPES: [(usize, usize); 7] = [(1, 1), (3, 7), (5, 16), (17, 33), (64, 257), (1, 40_001), (700, 48)];

const KINDS: [ActivationKind; 5] = [
    ActivationKind::Relu,
    ActivationKind::ReluSquared,
    ActivationKind::GeluTanh,
    ActivationKind::GeluErf,
    ActivationKind::Silu,
];

fn each(
    suite: &Suite<'_>,
    what: &str,
    tolerance: f32,
    build: impl Fn(&mut Setup, usize, usize, usize) -> Op,
) {
    for (i, (r, c)) in SHAPES.into_iter().enumerate() {
        suite.check(&format!("{what} {r}x{c}"), tolerance, &|s| build(s, r, c, i % 3));
    }
}

pub(crate) fn fill_copy_and_add_agree_with_the_reference(suite: &Suite<'_>) {
    each(suite, "fill", 0.0, |s, r, c, gap| Fill { dst: s.act(r, c, gap), value: 2.5 }.into());
    each(suite, "copy", 0.0, |s, r, c, gap| Copy { src: s.act(r, c, 1), dst: s.act(r, c, gap) }.into());
    each(suite, "add", 0.0, |s, r, c, gap| {
        Add { a: s.act(r, c, gap), b: s.act(r, c, 1), out: s.act(r, c, 0) }.into()
    });
    each(suite, "add in place", 0.0, |s, r, c, gap| {
        let a = s.act(r, c, gap);
        Add { a, b: s.act(r, c, 1), out: a }.into()
    });
    each(suite, "add gradients in place", 0.0, |s, r, c, gap| {
        let b = s.gradient(r, c, gap);
        Add { a: s.gradient(r, c, 1), b, out: b }.into()
    });
}

/// Sums of gradients over micro-batches are formed in f32 and rounded once, to nearest, ties to even.
pub(crate) fn sums_of_gradients_are_rounded_to_their_type(suite: &Suite<'_>) {
    for kernels in suite.kernels() {
        for (gradient, wanted) in [
            (DType::F32, [1.003_906_3, 1.000_488_3, -0.0]),
            (DType::Bf16, [1.0, 1.0, -0.0]),
            (DType::F16, [1.003_906_3, 1.0, -0.0]),
        ] {
            let build = |s: &mut Setup| -> Op {
                let (a, out) = (s.gradient(1, 3, 0), s.gradient(1, 3, 0));
                s.backend.write_f32(a, &[0.003_906_25, 0.000_488_281_25, -0.0]).unwrap();
                s.backend.write_f32(out, &[1.0, 1.0, -0.0]).unwrap();
                Add { a, b: out, out }.into()
            };
            let found = suite.run_in([DType::F32, DType::F32, gradient], kernels, 1, &build);
            let bits = |values: &[f32]| values.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
            assert_eq!(bits(&found[1]), bits(&wanted), "{gradient} on {kernels}: {:?}", found[1]);
        }
    }
}

pub(crate) fn scale_agrees_with_the_reference_also_in_place(suite: &Suite<'_>) {
    each(suite, "scale", 0.0, |s, r, c, gap| {
        Scale { x: s.act(r, c, gap), out: s.act(r, c, 1), factor: 2.632148 }.into()
    });
    each(suite, "scale in place", 0.0, |s, r, c, gap| {
        let x = s.act(r, c, gap);
        Scale { x, out: x, factor: -0.1 }.into()
    });
}

pub(crate) fn activations_agree_with_the_reference(suite: &Suite<'_>) {
    for kind in KINDS {
        each(suite, &format!("{kind:?}"), 1e-6, |s, r, c, gap| {
            Activation { kind, x: s.act(r, c, gap), out: s.act(r, c, 1) }.into()
        });
        each(suite, &format!("{kind:?} backward"), 2e-6, |s, r, c, gap| {
            let dout = s.act(r, c, gap);
            ActivationBackward {
                kind,
                x: s.act(r, c, 0),
                dout,
                dx: if gap == 0 { dout } else { s.act(r, c, 0) },
            }
            .into()
        });
    }
}

pub(crate) fn gated_units_agree_with_the_reference_also_in_place(suite: &Suite<'_>) {
    for kind in KINDS {
        each(suite, &format!("gated {kind:?}"), 2e-6, |s, r, c, gap| {
            Gated { live: None, kind, gate: s.act(r, c, gap), up: s.act(r, c, 0), out: s.act(r, c, 1) }.into()
        });
        each(suite, &format!("gated {kind:?} backward"), 4e-6, |s, r, c, gap| {
            let (gate, up) = (s.act(r, c, gap), s.act(r, c, 0));
            let (dgate, dup) = if gap == 0 { (gate, up) } else { (s.act(r, c, 0), s.act(r, c, 1)) };
            GatedBackward { live: None, kind, gate, up, dout: s.act(r, c, 0), dgate, dup }.into()
        });
    }
}

pub(crate) fn gated_rows_agree_with_the_reference_also_in_place(suite: &Suite<'_>) {
    each(suite, "add gated rows", 2e-6, |s, r, c, gap| {
        let (x, y, gates) = (s.act(r, c, gap), s.act(r, c, 0), s.strided(r, 1, gap));
        AddGatedRows { x, y, gates, out: if gap == 1 { x } else { s.act(r, c, 1) } }.into()
    });
    each(suite, "add gated rows backward", 4e-5, |s, r, c, gap| {
        let (dout, y, dy) = (s.act(r, c, gap), s.act(r, c, 0), s.act(r, c, 1));
        let (gates, dgates) = (s.strided(r, 1, gap), s.strided(r, 1, 1));
        AddGatedRowsBackward { dout, y, gates, mixed: None, dy, dgates }.into()
    });
    each(suite, "mixed rows", 2e-6, |s, r, c, gap| {
        let (x, y, gates) = (s.act(r, c, gap), s.act(r, c, 0), s.strided(r, 2, gap));
        AddGatedRows { x, y, gates, out: if gap == 1 { x } else { s.act(r, c, 1) } }.into()
    });
    each(suite, "mixed rows backward", 4e-5, |s, r, c, gap| {
        let (dout, y, dy) = (s.act(r, c, gap), s.act(r, c, 0), s.act(r, c, 1));
        let mixed = Some(MixedRows { x: s.act(r, c, 0), dx: s.act(r, c, gap) });
        AddGatedRowsBackward { dout, y, gates: s.strided(r, 2, gap), mixed, dy, dgates: s.strided(r, 2, 1) }
            .into()
    });
}

pub(crate) fn magnitudes_agree_with_the_reference_also_in_place(suite: &Suite<'_>) {
    for (i, (o, columns)) in SHAPES.into_iter().enumerate() {
        suite.check(&format!("adapted squares {o}x{columns}"), 2e-5, &|s| {
            let (rank, gap) = ([1, 5, 16][i % 3], i % 3);
            let (weight, a, b) = (s.param(o, columns, gap), s.param(rank, columns, 1), s.param(o, rank, gap));
            AdaptedSquares { weight, a, b, scale: 0.5, out: s.mat(1, o) }.into()
        });
    }
    // A row of zeros among the others.
    let squares = |s: &mut Setup, c: usize| {
        let squares: Vec<f32> = (0..c).map(|c| [0.0, 0.3, 2.5, 17.0][(c + 1) % 4]).collect();
        s.values(1, c, &squares)
    };
    each(suite, "magnitudes", 4e-6, |s, r, c, gap| {
        let (x, magnitude, squares) = (s.act(r, c, gap), s.param(1, c, 0), squares(s, c));
        let bias = (gap != 2).then(|| s.param(1, c, 0));
        Magnitudes { x, bias, magnitude, squares, out: if gap == 1 { x } else { s.act(r, c, 1) } }.into()
    });
    each(suite, "magnitudes backward", 4e-5, |s, r, c, gap| {
        let (dout, x, magnitude, squares) =
            (s.act(r, c, gap), s.act(r, c, 0), s.param(1, c, 0), squares(s, c));
        let bias = (gap != 2).then(|| s.param(1, c, 0));
        let dx = if gap == 1 { dout } else { s.act(r, c, 1) };
        let (dmagnitude, accumulate) = (s.gradient(1, c, 0), gap == 0);
        MagnitudesBackward { dout, x, bias, magnitude, squares, dx, dmagnitude, accumulate }.into()
    });
}

pub(crate) fn dropout_is_the_mask_by_element_number(suite: &Suite<'_>) {
    for first in [0, 1, 6, 1 << 40] {
        each(suite, "dropout", 0.0, |s, r, c, gap| {
            let mask = s.dropout(0.4, RngKey::new(1, 9, "dropout"), first);
            let x = s.act(r, c, gap);
            Dropout {
                x,
                out: if gap == 1 { x } else { s.act(r, c, 0) },
                mask,
                noise: Noise::Bernoulli,
                global_cols: c,
            }
            .into()
        });
    }
}

pub(crate) fn dropout_keeps_the_mean_and_the_right_share(suite: &Suite<'_>) {
    let ones = vec![1.0; 40_000];
    let out = suite.run(suite.fastest(), 2, &|s| {
        let mask = s.dropout(0.25, RngKey::new(4, 0, "share"), 0);
        let x = s.values(100, 400, &ones);
        Dropout { x, out: x, mask, noise: Noise::Bernoulli, global_cols: x.cols }.into()
    });
    let kept = out[0].iter().filter(|&&x| x > 0.0).count() as f32 / 40_000.0;
    let mean = out[0].iter().sum::<f32>() / 40_000.0;
    assert!((kept - 0.75).abs() < 0.01 && (mean - 1.0).abs() < 0.015, "{kept} {mean}");
}

pub(crate) fn any_small_shape_agrees(suite: &Suite<'_>) {
    let shapes = (1usize..40, 1usize..70, 0usize..5);
    let agrees = |(r, c, gap)| {
        suite.check("gated", 2e-6, &|s| {
            Gated {
                live: None,
                kind: ActivationKind::Silu,
                gate: s.act(r, c, gap),
                up: s.act(r, c, 0),
                out: s.act(r, c, gap),
            }
            .into()
        });
        suite.check("dropout", 0.0, &|s| {
            let mask = s.dropout(0.5, RngKey::new(1, 9, "any"), gap as u64);
            Dropout {
                x: s.act(r, c, gap),
                out: s.act(r, c, 0),
                mask,
                noise: Noise::Bernoulli,
                global_cols: c,
            }
            .into()
        });
        Ok(())
    };
    let config = Config { failure_persistence: None, ..Config::with_cases(12) };
    TestRunner::new(config).run(&shapes, agrees).unwrap();
}
