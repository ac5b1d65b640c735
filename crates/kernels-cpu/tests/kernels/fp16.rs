//! Products by fp16 multiply-adds against the plain formula, bit for bit.

use bessemer_kernels_cpu::{CpuBackend, CpuConfig, Engine, Rung};
use bessemer_operator_suite::Setup;
use bessemer_tensor::op::{Linear, LinearBackwardInput, LinearBackwardWeight, Op};
use bessemer_tensor::rng::RngKey;
use bessemer_tensor::{BufferSpec, View};
use bessemer_units::DType;

/// Products whose sum stays in fp16.
const BLOCK: usize = 128;

/// The nearest fp16, ties to even. For numbers below fp16's largest.
fn nearest(x: f64) -> f64 {
    let exponent = if x == 0.0 { -14 } else { x.abs().log2().floor().max(-14.0) as i32 };
    let unit = 2.0f64.powi(exponent - 10);
    (x / unit).round_ties_even() * unit
}

/// The power of two that brings the largest of these to 8 .. 16.
fn factor(v: &[f32]) -> f64 {
    let largest = v.iter().fold(0.0f32, |m, x| m.max(x.abs()));
    let exponent = if largest < f32::MIN_POSITIVE { -127 } else { f64::from(largest).log2().floor() as i32 };
    2.0f64.powi((3 - exponent).min(127))
}

/// One element of a product of up to 1024 k, which is one part.
fn reference(a: &[f32], b: &[f32]) -> f32 {
    let mut c = 0.0f32;
    for (a, b) in a.chunks(BLOCK).zip(b.chunks(BLOCK)) {
        let (fa, fb) = (factor(a), factor(b));
        let mut halves = [0.0; 2];
        for (k, (&x, &y)) in a.iter().zip(b).enumerate() {
            let (x, y) = (nearest(f64::from(x) * fa), nearest(f64::from(y) * fb));
            halves[k % 2] = nearest(x * y + halves[k % 2]);
        }
        let sum = nearest(halves[0] + halves[1]);
        // Exact in f64, so that only the addition rounds.
        c = (sum / fa / fb + f64::from(c)) as f32;
    }
    c
}

/// Values of different rows that differ by some magnitudes, with zeros among them.
fn values(seed: u64, rows: usize, k: usize) -> Vec<f32> {
    let mut values = vec![0.0; rows * k];
    RngKey::new(seed, 0, "fp16").fill_normal(0, 1.0, &mut values);
    for (i, x) in values.iter_mut().enumerate() {
        *x *= 10f32.powi((i / k * 5 % 17) as i32 - 8) * if i % 11 == 3 { 0.0 } else { 1.0 };
    }
    values
}

fn transposed(rows: usize, v: &[f32]) -> Vec<f32> {
    let cols = v.len() / rows;
    (0..v.len()).map(|i| v[i % rows * cols + i / rows]).collect()
}

/// A matrix without gaps of a type.
fn matrix(s: &mut Setup, rows: usize, cols: usize, dtype: DType, values: &[f32]) -> View {
    let spec = BufferSpec { class: "test", name: "x", dtype, len: rows * cols };
    let view = s.backend.alloc(spec).unwrap().matrix(rows, cols);
    s.backend.write_f32(view, values).unwrap();
    view
}

fn result(s: &mut Setup, op: &Op, out: View) -> Vec<f32> {
    s.launch(op).unwrap();
    s.read(out)
}

/// `a b^T` with operands stored as the forward pass, the input gradient and the weight gradient have them.
fn products((m, n, k): (usize, usize, usize), dtype: DType, a: &[f32], b: &[f32]) -> [Vec<f32>; 3] {
    let config = CpuConfig { threads: 1, ..CpuConfig::default() };
    let backend = CpuBackend::with_engine(config, Rung::detect(), Engine::Fp16).unwrap();
    let s = &mut Setup::over(Box::new(backend));
    let none = vec![0.0; m * n];
    let out = matrix(s, m, n, DType::F32, &none);
    let (x, weight) = (matrix(s, m, k, dtype, a), matrix(s, n, k, DType::F32, b));
    // The output of an operator on activations has their type.
    let y = matrix(s, m, n, dtype, &none);
    let op = Linear { x, weight, bias: None, activation: None, residual: None, rowwise: false, out: y };
    let forward = result(s, &op.into(), y);
    let weight = matrix(s, k, n, DType::F32, &transposed(n, b));
    let op = LinearBackwardInput { dy: x, weight, activation: None, dx: y, accumulate: false };
    let input = result(s, &op.into(), y);
    let (dy, x) = (matrix(s, k, m, dtype, &transposed(m, a)), matrix(s, k, n, dtype, &transposed(n, b)));
    let op = LinearBackwardWeight { x, dy, dweight: out, dbias: None, accumulate: false };
    let weight = result(s, &op.into(), out);
    [forward, input, weight]
}

#[test]
fn every_bit_is_that_of_the_formula() {
    if !Engine::Fp16.available(Rung::detect()) {
        return;
    }
    for (m, n, k) in [(8, 8, 8), (14, 32, 128), (15, 33, 129), (37, 45, 300), (9, 70, 1000)] {
        let (a, b) = (values(1, m, k), values(2, n, k));
        for (what, found) in ["forward", "input gradient", "weight gradient"].iter().zip(products(
            (m, n, k),
            DType::F32,
            &a,
            &b,
        )) {
            for (i, y) in found.iter().enumerate() {
                let wanted = reference(&a[i / n * k..][..k], &b[i % n * k..][..k]);
                assert_eq!(
                    y.to_bits(),
                    wanted.to_bits(),
                    "{what} {m} x {n} x {k}: element {i} is {y:e}, the formula gives {wanted:e}"
                );
            }
        }
    }
}

#[test]
fn activations_in_bf16_give_what_the_same_numbers_in_f32_give() {
    if !Engine::Fp16.available(Rung::detect()) {
        return;
    }
    let (m, n, k) = (21, 40, 200);
    let short =
        |v: Vec<f32>| -> Vec<f32> { v.into_iter().map(|x| half::bf16::from_f32(x).to_f32()).collect() };
    let (a, b) = (short(values(3, m, k)), short(values(4, n, k)));
    let wide = products((m, n, k), DType::F32, &a, &b);
    let narrow = products((m, n, k), DType::Bf16, &a, &b);
    assert_eq!(narrow[2], wide[2], "gradients of weights are f32");
    for (narrow, wide) in narrow.iter().zip(wide).take(2) {
        assert_eq!(*narrow, short(wide));
    }
}
