//! Values in 8 bits: activations by blocks of a row, and AdamW's moments.

use crate::suite::{TYPES, types_of_parameters};
use crate::{Setup, Suite};
use bessemer_tensor::View;
use bessemer_tensor::op::*;
use bessemer_tensor::quantise::{DynamicCode, MOMENT_BLOCK, SIGNED, UNSIGNED};
use bessemer_units::DType;

/// Rows, columns and blocks of a row.
const SHAPES: [(usize, usize, usize); 6] =
    [(1, 1, 1), (3, 17, 1), (40, 64, 4), (7, 768, 3), (130, 257, 257), (64, 512, 2)];

fn zeros(s: &mut Setup, rows: usize, cols: usize) -> View {
    s.codes(rows, cols, &vec![0.0; rows * cols])
}

pub(crate) fn activations_and_gradients_have_the_same_codes_on_every_rung(suite: &Suite<'_>) {
    let types = [TYPES[0], TYPES[1], [DType::F16; 3]];
    for ((i, (r, c, b)), gradients) in SHAPES.into_iter().enumerate().flat_map(|s| [(s, false), (s, true)]) {
        suite.same_bits(&format!("quantise {r}x{c}"), &types, &|s| {
            let (src, codes, scales) = (s.act(r, c, i % 3), zeros(s, r, c), s.strided(r, b, i % 2));
            Quantise { src, codes, scales, keep_sign: !gradients }.into()
        });
        let codes: Vec<f32> = (0..r * c).map(|i| (i * 91 % 256) as f32).collect();
        suite.same_bits(&format!("dequantise {r}x{c}"), &types, &|s| {
            let (codes, scales, dst) = (s.codes(r, c, &codes), s.strided(r, b, 1), s.act(r, c, i % 3));
            Dequantise { codes, scales, dst, accumulate: gradients }.into()
        });
    }
}

/// max |x| / 254 for each block, and what the product with the factor and the one with the scale are rounded by: of a number of at
/// most 127 units 2^-23 each. With their sign kept, smaller values become a whole unit.
pub(crate) fn values_come_back_within_half_a_unit_of_their_block(suite: &Suite<'_>) {
    for (kernels, keep_sign) in suite.variants().flat_map(|kernels| [(kernels, true), (kernels, false)]) {
        for (r, c, b) in SHAPES {
            let mut s = suite.setup(kernels, 2);
            let (src, dst, scales) = (s.mat(r, c), s.mat(r, c), s.mat(r, b));
            let codes = zeros(&mut s, r, c);
            let mut values = s.read(src);
            // A block of zeros, and one of magnitudes below the least.
            values[..c / b].fill(0.0);
            values[(r - 1) * c..][..c / b].fill(1e-33);
            s.backend.write_f32(src, &values).unwrap();
            s.launch(&Quantise { src, codes, scales, keep_sign }.into()).unwrap();
            s.launch(&Dequantise { codes, scales, dst, accumulate: false }.into()).unwrap();
            let found = s.read(dst);
            for (x, y) in values.chunks(c / b).zip(found.chunks(c / b)) {
                let largest = x.iter().fold(0.0f32, |m, x| x.abs().max(m));
                let half = largest / 254.0 * (1.0 + 127.0 * 4.0 / 8_388_608.0) + 1e-30;
                for (x, y) in x.iter().zip(y) {
                    let bound = if keep_sign && x.abs() < half { 2.0 * half } else { half };
                    assert!((x - y).abs() <= bound, "{kernels} {r}x{c}: {x} {y}, bound {bound}");
                    let sign = *x == 0.0 || largest < 1e-30 || (*x < 0.0) == (*y < 0.0);
                    let sign = sign || !keep_sign && *y == 0.0;
                    assert!(sign && (*x != 0.0 || *y == 0.0), "{kernels} {r}x{c}: {x} {y}");
                }
            }
        }
    }
}

pub(crate) fn what_is_not_finite_spoils_its_block_and_no_other(suite: &Suite<'_>) {
    for kernels in suite.kernels() {
        for bad in [f32::NAN, f32::INFINITY] {
            let mut s = suite.setup(kernels, 1);
            let (src, dst, scales) = (s.mat(3, 64), s.mat(3, 64), s.mat(3, 2));
            let codes = zeros(&mut s, 3, 64);
            s.backend.write_f32(src.rows(1, 1).columns(40, 1), &[bad]).unwrap();
            s.launch(&Quantise { src, codes, scales, keep_sign: false }.into()).unwrap();
            s.launch(&Dequantise { codes, scales, dst, accumulate: false }.into()).unwrap();
            let found = s.read(dst);
            for (i, x) in found.iter().enumerate() {
                assert_eq!(x.is_nan(), (96..128).contains(&i), "{kernels}, element {i}");
            }
        }
    }
}

pub(crate) fn blocks_that_do_not_divide_a_row_or_are_too_long_are_refused(suite: &Suite<'_>) {
    let mut s = suite.setup(suite.fastest(), 1);
    for (columns, blocks) in [(10, 3), (257, 1), (512, 1)] {
        let (src, codes, scales) = (s.mat(2, columns), zeros(&mut s, 2, columns), s.mat(2, blocks));
        let e = s.launch(&Quantise { src, codes, scales, keep_sign: true }.into()).unwrap_err().to_string();
        assert!(e.contains("quantise: scales should be [2, blocks]"), "{e}");
    }
    let (src, scales) = (s.mat(2, 10), s.mat(2, 1));
    let e = s.launch(&Quantise { src, codes: src, scales, keep_sign: true }.into()).unwrap_err().to_string();
    assert!(e.contains("codes"), "{e}");
}

/// A moment on the device from values in f32.
fn moment(s: &mut Setup, code: &DynamicCode, r: usize, c: usize, values: &[f32]) -> (View, View) {
    let (mut codes, mut scales) = (vec![0u8; r * c], Vec::new());
    for (values, codes) in values.chunks(MOMENT_BLOCK).zip(codes.chunks_mut(MOMENT_BLOCK)) {
        scales.push(code.encode(values, codes));
    }
    let codes: Vec<f32> = codes.into_iter().map(f32::from).collect();
    (s.codes(r, c, &codes), s.values(1, scales.len(), &scales))
}

fn decoded(s: &mut Setup, code: &DynamicCode, codes: View, scales: View) -> (Vec<f32>, Vec<f32>) {
    let (codes, scales) = (s.read(codes), s.read(scales));
    let mut values = vec![0.0; codes.len()];
    let blocks = values.chunks_mut(MOMENT_BLOCK).zip(codes.chunks(MOMENT_BLOCK)).zip(&scales);
    for ((values, codes), scale) in blocks {
        let codes: Vec<u8> = codes.iter().map(|c| *c as u8).collect();
        code.decode(&codes, *scale, values);
    }
    (values, scales)
}

const STEP: [f32; 5] = [1.0, 0.37, 3e-4, 0.271, 0.142_625];
const MATRICES: [(usize, usize); 6] = [(1, 1), (3, 17), (1, 256), (40, 64), (1, 50_001), (130, 257)];

fn squares(n: usize) -> Vec<f32> {
    (0..n).map(|i| (i % 97) as f32 * 1e-4).collect()
}

fn int8(s: &mut Setup, shape: (usize, usize), master: bool, flag: f32) -> AdamWInt8 {
    let (r, c) = shape;
    let values = s.mat(r, c);
    let values = s.read(values);
    let (m, m_scales) = moment(s, &SIGNED, r, c, &values);
    let (v, v_scales) = moment(s, &UNSIGNED, r, c, &squares(r * c));
    let [_, rest @ ..] = STEP;
    let step: Vec<f32> = [flag].into_iter().chain(rest).collect();
    AdamWInt8 {
        param: s.param(r, c, 0),
        master: master.then(|| s.mat(r, c)),
        grad: s.gradient(r, c, 0),
        m,
        m_scales,
        v,
        v_scales,
        step: s.values(1, 5, &step),
        beta1: 0.9,
        beta2: 0.95,
        eps: 1e-8,
        weight_decay: 0.1,
    }
}

pub(crate) fn the_update_in_8_bits_has_the_same_bits_on_every_rung(suite: &Suite<'_>) {
    let types = types_of_parameters();
    for (i, shape) in MATRICES.into_iter().enumerate() {
        suite
            .same_bits(&format!("adamw_int8 {shape:?}"), &types, &|s| int8(s, shape, i % 2 == 1, 1.0).into());
    }
}

/// From the same moments, the parameter has the bits of the update in f32, and the new moments differ from those in f32 by
/// the bound of their code.
pub(crate) fn the_update_in_8_bits_is_that_in_f32_whose_moments_are_rounded(suite: &Suite<'_>) {
    for kernels in suite.variants() {
        for shape in MATRICES {
            let mut s = suite.setup(kernels, 2);
            let op = int8(&mut s, shape, false, 1.0);
            let (m, _) = decoded(&mut s, &SIGNED, op.m, op.m_scales);
            let (v, _) = decoded(&mut s, &UNSIGNED, op.v, op.v_scales);
            let values = s.read(op.param);
            let plain = AdamW {
                param: s.values(shape.0, shape.1, &values),
                master: None,
                grad: op.grad,
                m: s.values(shape.0, shape.1, &m),
                v: s.values(shape.0, shape.1, &v),
                step: op.step,
                beta1: op.beta1,
                beta2: op.beta2,
                eps: op.eps,
                weight_decay: op.weight_decay,
            };
            s.launch(&op.into()).unwrap();
            s.launch(&plain.into()).unwrap();
            suite.same(&format!("{kernels} {shape:?}"), &s.read(op.param), &s.read(plain.param));
            for (code, codes, scales, exact) in
                [(&SIGNED, op.m, op.m_scales, plain.m), (&UNSIGNED, op.v, op.v_scales, plain.v)]
            {
                let (found, scales) = decoded(&mut s, code, codes, scales);
                let exact = s.read(exact);
                for (i, (x, y)) in exact.iter().zip(&found).enumerate() {
                    // Besides the gap: rounding of the quotient, the product and the middle between two values.
                    let bound = scales[i / MOMENT_BLOCK].abs() * (code.bound() + 3.0 / 16_777_216.0);
                    assert!((x - y).abs() <= bound, "{kernels} {shape:?} {i}: {x} {y}, bound {bound}");
                }
            }
        }
    }
}

pub(crate) fn an_update_in_8_bits_that_does_not_apply_changes_nothing(suite: &Suite<'_>) {
    for kernels in suite.kernels() {
        let mut s = suite.setup(kernels, 1);
        let op = int8(&mut s, (5, 300), true, 0.0);
        let before = s.all();
        s.launch(&op.into()).unwrap();
        assert_eq!(before, s.all(), "{kernels}");
    }
}

pub(crate) fn moments_with_gaps_or_other_scales_are_refused(suite: &Suite<'_>) {
    let mut s = suite.setup(suite.fastest(), 1);
    let op = int8(&mut s, (5, 300), false, 1.0);
    let (grad, m_scales) = (s.strided(5, 300, 1), s.mat(1, 5));
    let e = s.launch(&AdamWInt8 { grad, ..op }.into()).unwrap_err().to_string();
    assert!(e.contains("adamw_int8: grad should be rows of 300 elements without gaps"), "{e}");
    let e = s.launch(&AdamWInt8 { m_scales, ..op }.into()).unwrap_err().to_string();
    assert!(e.contains("adamw_int8: m_scales should be [1, 6]"), "{e}");
}
