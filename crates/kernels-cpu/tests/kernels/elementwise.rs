use crate::harness::{Setup, check, run, run_in};
use crate::instruction_set;
use bessemer_tensor::Backend;
use bessemer_tensor::op::*;
use bessemer_tensor::rng::RngKey;
use bessemer_units::DType;
use proptest::prelude::*;

/// Edges of vectors, of rows and of blocks; one row longer than a block.
const SHAPES: [(usize, usize); 7] = [(1, 1), (3, 7), (5, 16), (17, 33), (64, 257), (1, 40_001), (700, 48)];

const KINDS: [ActivationKind; 5] = [
    ActivationKind::Relu,
    ActivationKind::ReluSquared,
    ActivationKind::GeluTanh,
    ActivationKind::GeluErf,
    ActivationKind::Silu,
];

fn each(what: &str, tolerance: f32, build: impl Fn(&mut Setup, usize, usize, usize) -> Op) {
    for (i, (r, c)) in SHAPES.into_iter().enumerate() {
        check(&format!("{what} {r}x{c}"), tolerance, &|s| build(s, r, c, i % 3));
    }
}

#[test]
fn fill_copy_and_add_agree_with_the_reference() {
    each("fill", 0.0, |s, r, c, gap| Fill { dst: s.act(r, c, gap), value: 2.5 }.into());
    each("copy", 0.0, |s, r, c, gap| Copy { src: s.act(r, c, 1), dst: s.act(r, c, gap) }.into());
    each("add", 0.0, |s, r, c, gap| {
        Add { a: s.act(r, c, gap), b: s.act(r, c, 1), out: s.act(r, c, 0) }.into()
    });
    each("add in place", 0.0, |s, r, c, gap| {
        let a = s.act(r, c, gap);
        Add { a, b: s.act(r, c, 1), out: a }.into()
    });
    each("add gradients in place", 0.0, |s, r, c, gap| {
        let b = s.gradient(r, c, gap);
        Add { a: s.gradient(r, c, 1), b, out: b }.into()
    });
}

/// Sums of gradients over micro-batches are formed in f32 and rounded once, to nearest, ties to even.
#[test]
fn sums_of_gradients_are_rounded_to_their_type() {
    for rung in instruction_set::rungs() {
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
            let found = run_in([DType::F32, DType::F32, gradient], rung, 1, &build).0;
            let bits = |values: &[f32]| values.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
            assert_eq!(bits(&found[1]), bits(&wanted), "{gradient} on {rung}: {:?}", found[1]);
        }
    }
}

#[test]
fn scale_agrees_with_the_reference_also_in_place() {
    each("scale", 0.0, |s, r, c, gap| {
        Scale { x: s.act(r, c, gap), out: s.act(r, c, 1), factor: 2.632148 }.into()
    });
    each("scale in place", 0.0, |s, r, c, gap| {
        let x = s.act(r, c, gap);
        Scale { x, out: x, factor: -0.1 }.into()
    });
}

#[test]
fn activations_agree_with_the_reference() {
    for kind in KINDS {
        each(&format!("{kind:?}"), 1e-6, |s, r, c, gap| {
            Activation { kind, x: s.act(r, c, gap), out: s.act(r, c, 1) }.into()
        });
        each(&format!("{kind:?} backward"), 2e-6, |s, r, c, gap| {
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

#[test]
fn gated_units_agree_with_the_reference_also_in_place() {
    for kind in KINDS {
        each(&format!("gated {kind:?}"), 2e-6, |s, r, c, gap| {
            Gated { kind, gate: s.act(r, c, gap), up: s.act(r, c, 0), out: s.act(r, c, 1) }.into()
        });
        each(&format!("gated {kind:?} backward"), 4e-6, |s, r, c, gap| {
            let (gate, up) = (s.act(r, c, gap), s.act(r, c, 0));
            let (dgate, dup) = if gap == 0 { (gate, up) } else { (s.act(r, c, 0), s.act(r, c, 1)) };
            GatedBackward { kind, gate, up, dout: s.act(r, c, 0), dgate, dup }.into()
        });
    }
}

#[test]
fn dropout_is_the_mask_by_element_number() {
    for first in [0, 1, 6, 1 << 40] {
        each("dropout", 0.0, |s, r, c, gap| {
            let mask = s.dropout(0.4, RngKey::new(1, 9, "dropout"), first);
            let x = s.act(r, c, gap);
            Dropout { x, out: if gap == 1 { x } else { s.act(r, c, 0) }, mask, global_cols: c }.into()
        });
    }
}

#[test]
fn dropout_keeps_the_mean_and_the_right_share() {
    let ones = vec![1.0; 40_000];
    let out = run(crate::instruction_set::rung(), 2, &|s| {
        let mask = s.dropout(0.25, RngKey::new(4, 0, "share"), 0);
        let x = s.values(100, 400, &ones);
        Dropout { x, out: x, mask, global_cols: x.cols }.into()
    });
    let kept = out[0].iter().filter(|&&x| x > 0.0).count() as f32 / 40_000.0;
    let mean = out[0].iter().sum::<f32>() / 40_000.0;
    assert!((kept - 0.75).abs() < 0.01 && (mean - 1.0).abs() < 0.015, "{kept} {mean}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]
    #[test]
    fn any_small_shape_agrees(r in 1usize..40, c in 1usize..70, gap in 0usize..5) {
        check("gated", 2e-6, &|s| {
            Gated { kind: ActivationKind::Silu, gate: s.act(r, c, gap), up: s.act(r, c, 0), out: s.act(r, c, gap) }
                .into()
        });
        check("dropout", 0.0, &|s| {
            let mask = s.dropout(0.5, RngKey::new(1, 9, "any"), gap as u64);
            Dropout { x: s.act(r, c, gap), out: s.act(r, c, 0), mask, global_cols: c }.into()
        });
    }
}
