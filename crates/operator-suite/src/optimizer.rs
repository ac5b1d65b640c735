use crate::suite::{Build, types_of_parameters};
use crate::{Setup, Suite};
use bessemer_tensor::op::*;

/// With gradients, and AdamW's parameters, of every type.
fn same_bits(suite: &Suite<'_>, what: &str, build: Build<'_>) {
    suite.same_bits(what, &types_of_parameters(), build);
}

const SHAPES: [(usize, usize); 5] = [(1, 1), (3, 17), (40, 64), (1, 50_001), (130, 257)];

pub(crate) fn the_update_has_the_same_bits_on_every_rung(suite: &Suite<'_>) {
    for (i, (r, c)) in SHAPES.into_iter().enumerate() {
        same_bits(suite, &format!("adamw {r}x{c}"), &|s| {
            let squares: Vec<f32> = (0..r * c).map(|i| (i % 97) as f32 * 1e-4).collect();
            AdamW {
                param: s.param(r, c, i % 3),
                master: (i % 2 == 1).then(|| s.mat(r, c)),
                grad: s.gradient(r, c, 1),
                m: s.mat(r, c),
                v: s.values(r, c, &squares),
                step: s.values(1, 5, &[1.0, 0.37, 3e-4, 1.0 - 0.9f32.powi(3), 1.0 - 0.95f32.powi(3)]),
                beta1: 0.9,
                beta2: 0.95,
                eps: 1e-8,
                weight_decay: 0.1,
            }
            .into()
        });
    }
}

/// Computed by hand from the formula with p = 1, g = 0.5, m = v = 0 at step 1: m/c1 = g, v/c2 = g^2, so the step is
/// lr g / (|g| + eps), after the decay.
pub(crate) fn the_first_step_moves_by_the_learning_rate(suite: &Suite<'_>) {
    let out = suite.run(suite.fastest(), 1, &|s| {
        AdamW {
            param: s.values(1, 1, &[1.0]),
            master: None,
            grad: s.values(1, 1, &[0.5]),
            m: s.values(1, 1, &[0.0]),
            v: s.values(1, 1, &[0.0]),
            step: s.values(1, 5, &[1.0, 1.0, 0.01, 1.0 - 0.9, 1.0 - 0.999]),
            beta1: 0.9,
            beta2: 0.999,
            eps: 1e-8,
            weight_decay: 0.1,
        }
        .into()
    });
    let off = [(out[0][0], 0.999 - 0.01, 1e-6), (out[2][0], 0.05, 1e-7), (out[3][0], 0.00025, 1e-7)];
    assert!(off.iter().all(|(found, wanted, by)| (found - wanted).abs() < suite.bound(*by)), "{off:?}");
}

pub(crate) fn sums_of_squares_agree_with_the_reference(suite: &Suite<'_>) {
    for (i, (r, c)) in SHAPES.into_iter().enumerate() {
        suite.check(&format!("sum of squares {r}x{c}"), 1e-6, &|s| {
            SumSquares { x: s.gradient(r, c, i % 3), out: s.mat(1, 1), accumulate: i % 2 == 1 }.into()
        });
    }
}

pub(crate) fn descent_and_lion_have_the_same_bits_on_every_rung(suite: &Suite<'_>) {
    for (i, (r, c)) in SHAPES.into_iter().enumerate() {
        same_bits(suite, &format!("sgd {r}x{c}"), &|s| {
            Sgd {
                param: s.strided(r, c, i % 3),
                grad: s.gradient(r, c, 1),
                m: (i > 0).then(|| s.mat(r, c)),
                momentum: 0.9,
                nesterov: i % 2 == 1,
                step: s.values(1, 3, &[1.0, 0.37, 0.01]),
                weight_decay: 0.1,
                scale: 1.25,
            }
            .into()
        });
        same_bits(suite, &format!("lion {r}x{c}"), &|s| {
            Lion {
                param: s.strided(r, c, i % 3),
                grad: s.gradient(r, c, 1),
                m: s.mat(r, c),
                step: s.values(1, 3, &[1.0, 0.37, 0.01]),
                beta1: 0.9,
                beta2: 0.99,
                weight_decay: 0.1,
            }
            .into()
        });
    }
    // No gradient and no moment: no step, in either direction.
    let out = suite.run(suite.fastest(), 1, &|s| {
        let zero = |s: &mut Setup| s.values(1, 3, &[0.0, -0.0, 0.0]);
        let (grad, m) = (zero(s), zero(s));
        let param = s.values(1, 3, &[1.0, 2.0, 3.0]);
        let step = s.values(1, 3, &[1.0, 1.0, 0.1]);
        Lion { param, grad, m, step, beta1: 0.9, beta2: 0.99, weight_decay: 0.0 }.into()
    });
    assert_eq!(out[2], [1.0, 2.0, 3.0]);
}

pub(crate) fn sums_of_matrices_products_and_norms_agree_with_the_reference(suite: &Suite<'_>) {
    for (i, (r, c)) in SHAPES.into_iter().enumerate() {
        same_bits(suite, &format!("combine {r}x{c}"), &|s| {
            let (a, b) = (s.strided(r, c, i % 3), s.strided(r, c, 1));
            let out = if i % 2 == 0 { a } else { s.mat(r, c) };
            let step = (i > 1).then(|| s.values(1, 2, &[1.0, 0.37]));
            Combine { a, alpha: 0.95, b, beta: -1.5, step, out }.into()
        });
        same_bits(suite, &format!("divide by norm {r}x{c}"), &|s| {
            let (x, squares) = (s.strided(r, c, i % 3), s.values(1, 1, &[7.5]));
            let out = if i % 2 == 0 { x } else { s.mat(r, c) };
            DivideByNorm { x, squares, slack: 1.01, eps: 1e-6, out }.into()
        });
        suite.check(&format!("dot {r}x{c}"), 1e-6, &|s| {
            Dot { a: s.strided(r, c, i % 3), b: s.strided(r, c, 1), out: s.mat(1, 1) }.into()
        });
    }
}

pub(crate) fn adafactor_agrees_with_the_reference(suite: &Suite<'_>) {
    for (i, (r, c)) in SHAPES.into_iter().enumerate() {
        let positive = |n: usize| -> Vec<f32> { (0..n).map(|i| 0.1 + (i % 13) as f32).collect() };
        suite.check(&format!("moments {r}x{c}"), 1e-6, &|s| {
            FactoredMoments {
                grad: s.strided(r, c, i % 3),
                row: s.values(1, r, &positive(r)),
                col: s.values(1, c, &positive(c)),
                step: s.values(1, 3, &[1.0, 0.5, 0.9]),
                eps: 1e-30,
            }
            .into()
        });
        suite.check(&format!("factored direction {r}x{c}"), 1e-6, &|s| {
            let grad = s.strided(r, c, i % 3);
            FactoredDirection {
                grad,
                row: s.values(1, r, &positive(r)),
                col: s.values(1, c, &positive(c)),
                step: s.values(1, 2, &[1.0, 0.5]),
                out: if i % 2 == 0 { grad } else { s.mat(r, c) },
            }
            .into()
        });
        suite.check(&format!("direction {r}x{c}"), 1e-6, &|s| {
            let grad = s.strided(r, c, i % 3);
            let (v, out) = (s.values(r, c, &positive(r * c)), if i % 2 == 0 { grad } else { s.mat(r, c) });
            MomentDirection { grad, v, step: s.values(1, 3, &[1.0, 0.5, 0.9]), eps: 1e-30, out }.into()
        });
        suite.check(&format!("adafactor update {r}x{c}"), 1e-6, &|s| {
            AdafactorUpdate {
                param: s.strided(r, c, i % 3),
                direction: s.mat(r, c),
                direction_squares: s.values(1, 1, &[4.0 * (r * c) as f32]),
                param_squares: (i % 2 == 0).then(|| s.values(1, 1, &[0.3])),
                values: r * c,
                m: (i > 1).then(|| s.mat(r, c)),
                beta: 0.9,
                step: s.values(1, 2, &[1.0, 0.01]),
                eps: 1e-3,
                threshold: 1.0,
                weight_decay: 0.1,
            }
            .into()
        });
    }
}

/// Every operator with an apply flag, on `[3, 17]`, the flag at `apply`.
fn with_a_flag(s: &mut Setup, apply: f32) -> Vec<Op> {
    let (r, c) = (3, 17);
    let mut positive = |r: usize, c: usize| s.values(r, c, &vec![0.5; r * c]);
    let (row, col, v, one) = (positive(1, r), positive(1, c), positive(r, c), positive(1, 1));
    let (param, grad, m, out) = (s.mat(r, c), s.mat(r, c), s.mat(r, c), s.mat(r, c));
    let step = s.values(1, 5, &[apply, 0.5, 0.01, 0.3, 0.2]);
    let (two, three) = (step.columns(0, 2), step.columns(0, 3));
    let (beta1, beta2, eps, weight_decay) = (0.9, 0.95, 1e-8, 0.1);
    vec![
        AdamW { param, master: None, grad, m, v, step, beta1, beta2, eps, weight_decay }.into(),
        AdamW { param, master: Some(out), grad, m, v, step, beta1, beta2, eps, weight_decay }.into(),
        Sgd { param, grad, m: Some(m), momentum: 0.9, nesterov: true, step: three, weight_decay, scale: 1.0 }
            .into(),
        Lion { param, grad, m, step: three, beta1, beta2, weight_decay }.into(),
        FactoredMoments { grad, row, col, step: three, eps }.into(),
        FactoredDirection { grad, row, col, step: two, out }.into(),
        MomentDirection { grad, v, step: three, eps, out }.into(),
        AdafactorUpdate {
            param,
            direction: grad,
            direction_squares: one,
            param_squares: Some(one),
            values: r * c,
            m: Some(m),
            beta: 0.9,
            step: two,
            eps: 1e-3,
            threshold: 1.0,
            weight_decay,
        }
        .into(),
        Combine { a: param, alpha: 0.9, b: grad, beta: 1.0, step: Some(two), out: m }.into(),
    ]
}

pub(crate) fn an_apply_flag_of_zero_leaves_every_bit_as_it_was(suite: &Suite<'_>) {
    for kernels in suite.kernels() {
        let count = with_a_flag(&mut suite.setup(kernels, 1), 0.0).len();
        for apply in [0.0, 1.0] {
            for number in 0..count {
                let mut s = suite.setup(kernels, 2);
                let op = with_a_flag(&mut s, apply).swap_remove(number);
                let before = s.all();
                s.launch(&op).unwrap();
                assert_eq!(before == s.all(), apply == 0.0, "{} on {kernels}, flag {apply}", op.name());
            }
        }
    }
}

/// `x x^T` of a square random matrix, plus a diagonal that keeps it well away from singular.
fn positive_definite(s: &mut Setup, n: usize) -> bessemer_tensor::View {
    let rank = n.min(130);
    let mut x = vec![0.0f32; n * rank];
    bessemer_tensor::rng::RngKey::new(5, 0, "spd").fill_normal(0, 1.0, &mut x);
    let mut a = vec![0.0f32; n * n];
    for i in 0..n {
        for j in 0..n {
            let sum: f32 = (0..rank).map(|k| x[i * rank + k] * x[j * rank + k]).sum();
            a[i * n + j] = sum / n as f32 + if i == j { 0.5 } else { 0.0 };
        }
    }
    s.values(n, n, &a)
}

pub(crate) fn cholesky_factors_and_inverses_agree_with_the_reference_and_multiply_back(suite: &Suite<'_>) {
    // The last has more columns before a block than one stretch of products, and rows that fill no tile.
    for n in [1, 2, 7, 31, 32, 33, 64, 100, 130, 581] {
        suite.check(&format!("cholesky {n}"), 2e-5, &|s| {
            Cholesky { a: positive_definite(s, n), shift: 0.25, l: s.mat(n, n) }.into()
        });
        let mut s = suite.setup(suite.fastest(), 2);
        let (a, l, inverse) = (positive_definite(&mut s, n), s.mat(n, n), s.mat(n, n));
        s.launch(&Cholesky { a, shift: 0.0, l }.into()).unwrap();
        s.launch(&TriangularInverse { l, out: inverse }.into()).unwrap();
        let (a, l, m, bound) = (s.read(a), s.read(l), s.read(inverse), suite.bound(2e-5));
        for i in 0..n {
            for j in 0..n {
                let product: f32 = (0..n).map(|k| l[i * n + k] * l[j * n + k]).sum();
                assert!(
                    (product - a[i * n + j]).abs() < bound,
                    "n {n}: ({i}, {j}) of the product is {product}"
                );
                let unit: f32 = (0..n).map(|k| l[i * n + k] * m[k * n + j]).sum();
                let wanted = if i == j { 1.0 } else { 0.0 };
                assert!((unit - wanted).abs() < bound, "n {n}: ({i}, {j}) of l l^-1 is {unit}");
                assert!(j <= i || (l[i * n + j] == 0.0 && m[i * n + j] == 0.0));
            }
        }
        suite.check(&format!("triangular inverse {n}"), 5e-5, &|s| {
            // A triangle as a factor is: zeros above, a diagonal of about one.
            let values: Vec<f32> = (0..n * n)
                .map(|i| match (i / n).cmp(&(i % n)) {
                    std::cmp::Ordering::Less => 9.0,
                    std::cmp::Ordering::Equal => 1.0 + (i % 5) as f32 * 0.25,
                    std::cmp::Ordering::Greater => ((i * 37 % 101) as f32 / 101.0 - 0.5) / (n as f32).sqrt(),
                })
                .collect();
            TriangularInverse { l: s.values(n, n, &values), out: s.mat(n, n) }.into()
        });
    }
}

pub(crate) fn a_matrix_that_is_not_positive_definite_leaves_nan_on_the_diagonal(suite: &Suite<'_>) {
    for kernels in suite.kernels() {
        let out = suite.run(kernels, 1, &|s| {
            let a = s.values(3, 3, &[1.0, 2.0, 0.0, 2.0, 1.0, 0.0, 0.0, 0.0, 1.0]);
            Cholesky { a, shift: 0.5, l: s.mat(3, 3) }.into()
        });
        assert!(out[1][0].is_finite() && out[1][4].is_nan(), "{kernels}: {:?}", out[1]);
    }
}
