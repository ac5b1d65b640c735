//! Engines of matrix products: each against the reference over a list of shapes, bit for bit for any number of threads;
//! and the exactness that each promises, against sums in f64.

use crate::devices::Cpu;
use crate::devices::instruction_set::{self, InstructionSet, engines};
use bessemer_kernels_cpu::{CpuBackend, CpuConfig, Engine, Rung};
use bessemer_operator_suite::{Devices, Setup};
use bessemer_tensor::View;
use bessemer_tensor::op::{
    ActivationKind, Alibi, Attention, AttentionBackward, AttentionMask, AttentionShape, Linear,
    LinearBackwardInput, LinearBackwardWeight, Op,
};
use bessemer_tensor::rng::RngKey;
use bessemer_units::MatmulPrecision;

/// (M, N, K) of products: below a tile, at its edges, several panels, blocks and parts of k.
const SHAPES: [(usize, usize, usize); 12] = [
    (5, 3, 2),
    (8, 8, 8),
    (16, 16, 32),
    (17, 15, 33),
    (32, 33, 64),
    (31, 97, 127),
    (48, 64, 770),
    (113, 257, 40),
    (130, 65, 1100),
    (40, 24, 3300),
    (600, 40, 96),
    (257, 401, 129),
];

fn setup(engine: Engine, threads: usize) -> Setup {
    let config = CpuConfig { threads, ..CpuConfig::default() };
    Setup::over(Box::new(CpuBackend::with_engine(config, instruction_set::rung(), engine).unwrap()))
}

/// Bound on the error of an element of a product of k normal values, several times the rms error.
fn tolerance(engine: Engine, k: usize) -> f32 {
    let each = match engine {
        Engine::Fma | Engine::Amx6 => 4e-6,
        Engine::Amx3 => 6e-5,
        Engine::Amx => 2e-2,
        Engine::Fp16 => 8e-3,
    };
    each * ((k as f32).sqrt() + 1.0)
}

fn agrees(what: &str, k: usize, build: &dyn Fn(&mut Setup) -> Op) {
    let result = |mut s: Setup| {
        let op = build(&mut s);
        s.launch(&op).unwrap();
        s.all()
    };
    let truth = result(Setup::over(Cpu.reference()));
    for engine in engines() {
        let one = result(setup(engine, 1));
        let limit = tolerance(engine, k);
        for (b, (fast, truth)) in one.iter().zip(&truth).enumerate() {
            for (i, (f, t)) in fast.iter().zip(truth).enumerate() {
                let fine = (f - t).abs() <= limit * t.abs().max(1.0);
                assert!(fine, "{what} by {engine}: buffer {b} element {i} is {f}, the reference says {t}");
            }
        }
        for threads in [2, 3] {
            let same =
                result(setup(engine, threads)).iter().flatten().map(|x| x.to_bits()).collect::<Vec<_>>()
                    == one.iter().flatten().map(|x| x.to_bits()).collect::<Vec<_>>();
            assert!(same, "{what} by {engine}: {threads} threads give other bits than one");
        }
    }
}

#[test]
fn every_engine_agrees_with_the_reference_and_threads_do_not_change_a_bit() {
    for (i, (m, n, k)) in SHAPES.into_iter().enumerate() {
        let gap = i % 3;
        agrees(&format!("forward {m} x {n} x {k}"), k, &|s| {
            Linear {
                x: s.strided(m, k, gap),
                weight: s.strided(n, k, 2 * gap),
                bias: (i % 2 == 0).then(|| s.mat(1, n)),
                activation: (i % 3 == 0).then(|| (ActivationKind::GeluTanh, s.strided(m, n, gap))),
                residual: (i % 4 < 2).then(|| s.strided(m, n, gap)),
                rowwise: false,
                out: s.strided(m, n, gap + 1),
            }
            .into()
        });
        agrees(&format!("input gradient {m} x {n} x {k}"), k, &|s| {
            LinearBackwardInput {
                dy: s.strided(m, k, gap),
                weight: s.strided(k, n, gap),
                activation: (i % 2 == 0).then(|| (ActivationKind::GeluTanh, s.strided(m, n, gap))),
                dx: s.strided(m, n, gap + 1),
                accumulate: i % 3 != 1,
            }
            .into()
        });
        agrees(&format!("weight gradient {m} x {n} x {k}"), k, &|s| {
            LinearBackwardWeight {
                x: s.strided(k, n, gap),
                dy: s.strided(k, m, gap),
                dweight: s.strided(m, n, gap + 1),
                dbias: None,
                accumulate: i % 3 == 0,
            }
            .into()
        });
    }
}

/// Attention takes as many bf16 parts as products do, forward and backward: heads of less and more than a panel of 32 elements,
/// sequences of one query, of a half panel, of several blocks and strips, grouped heads, windows, biases.
#[test]
fn attention_agrees_with_the_reference_and_threads_do_not_change_a_bit() {
    // (B, T, H, G, E), window, biases.
    let cases = [
        ((1, 1, 1, 1, 32), None, false),
        ((2, 17, 2, 1, 33), None, true),
        ((1, 97, 4, 2, 64), Some(20), false),
        ((1, 210, 2, 2, 80), None, false),
        ((1, 700, 1, 1, 128), Some(300), true),
    ];
    for ((batch, seq, heads, kv_heads, head_dim), window, biases) in cases {
        let operands = |s: &mut Setup| {
            let scale = (head_dim as f32).sqrt().recip();
            let shape = AttentionShape { batch, seq, heads, kv_heads, head_dim, scale };
            let alibi = biases.then(|| Alibi::of(heads));
            let mask = AttentionMask { window, alibi, ..AttentionMask::default() };
            let (q, out) = (s.mat(batch * seq, heads * head_dim), s.mat(batch * seq, heads * head_dim));
            let (k, v) = (s.mat(batch * seq, kv_heads * head_dim), s.mat(batch * seq, kv_heads * head_dim));
            Attention { shape, q, k, v, out, lse: s.mat(batch * heads, seq), mask, dropout: None }
        };
        let what =
            format!("{batch} x {seq}, {heads}/{kv_heads} x {head_dim}, window {window:?}, biases {biases}");
        agrees(&format!("attention {what}"), 1, &|s| operands(s).into());
        // Gradients of scores are differences of sums over the elements of a head.
        agrees(&format!("attention backward {what}"), 4 * head_dim, &|s| {
            let Attention { shape, q, k, v, out, lse, mask, dropout } = operands(s);
            // Log-sum-exp that make weights of about 1/seq, whatever the engine.
            s.backend.write_f32(lse, &vec![(seq as f32).ln() + 0.5; batch * heads * seq]).unwrap();
            let [dq, dout] = [0, 1].map(|_| s.mat(batch * seq, heads * head_dim));
            let [dk, dv] = [0, 1].map(|_| s.mat(batch * seq, kv_heads * head_dim));
            AttentionBackward { shape, q, k, v, out, lse, dout, dq, dk, dv, mask, dropout }.into()
        });
    }
}

/// `a b^T` by an engine.
fn product(engine: Engine, (m, n, k): (usize, usize, usize), a: &[f32], b: &[f32]) -> Vec<f32> {
    let mut s = setup(engine, 1);
    let (x, weight) = (s.values(m, k, a), s.values(n, k, b));
    let out: View = s.mat(m, n);
    let op = Linear { x, weight, bias: None, activation: None, residual: None, rowwise: false, out };
    s.launch(&op.into()).unwrap();
    s.read(out)
}

/// Largest and rms error of the elements of `a b^T`, each relative to `sum |a| |b|`; without the loss of the tile unit because it
/// has no subnormal numbers, which is at most a few of the smallest normal number for each k.
fn error(engine: Engine, shape: (usize, usize, usize), a: &[f32], b: &[f32]) -> (f64, f64) {
    let (m, n, k) = shape;
    let found = product(engine, shape, a, b);
    let (mut worst, mut squares) = (0.0f64, 0.0);
    for i in 0..m {
        for j in 0..n {
            let terms = (0..k).map(|x| f64::from(a[i * k + x]) * f64::from(b[j * k + x]));
            let (sum, size) = terms.fold((0.0, 0.0), |(s, z), t| (s + t, z + t.abs()));
            let lost = 4.0 * k as f64 * f64::from(f32::MIN_POSITIVE);
            let e = ((f64::from(found[i * n + j]) - sum).abs() - lost).max(0.0) / size;
            worst = worst.max(e);
            squares += e * e;
        }
    }
    (worst, (squares / (m * n) as f64).sqrt())
}

fn normal(seed: u64, len: usize) -> Vec<f32> {
    let mut values = vec![0.0; len];
    RngKey::new(seed, 0, "engines").fill_normal(0, 1.0, &mut values);
    values
}

/// Operands that are hard to multiply: (name, a, b).
fn hard(m: usize, n: usize, k: usize) -> Vec<(&'static str, Vec<f32>, Vec<f32>)> {
    let (a, b) = (normal(1, m * k), normal(2, n * k));
    let scale = |v: &[f32], f: &dyn Fn(usize, usize) -> f32| -> Vec<f32> {
        v.iter().enumerate().map(|(i, x)| x * f(i / k, i % k)).collect()
    };
    let power = |i: usize, range: i32| 10f32.powi((i * 7 % (2 * range as usize + 1)) as i32 - range);
    let rows = (scale(&a, &|r, _| power(r, 17)), scale(&b, &|r, _| power(r + 3, 17)));
    let mixed = (scale(&a, &|_, c| power(c, 4)), scale(&b, &|_, c| power(c / 3, 4)));
    // Pairs of k that cancel up to a little noise.
    let cancel = (
        scale(&a, &|_, _| 1.0).chunks(2).flat_map(|p| [p[0], p[0]]).take(m * k).collect::<Vec<f32>>(),
        b.chunks(2).flat_map(|p| [p[0], -p[0] * (1.0 + 1e-6 * p[p.len() - 1])]).take(n * k).collect(),
    );
    // All bits of the mantissa set; parts that are as large as rounding leaves them; all of one sign.
    let ones = (vec![1.999_999_9; m * k], vec![1.999_999_9; n * k]);
    let half = f32::from_bits(0x3f80_7f7f);
    let halves = (vec![half; m * k], vec![half; n * k]);
    let positive =
        (scale(&a, &|_, _| 1.0).iter().map(|x| x.abs()).collect(), b.iter().map(|x| x.abs()).collect());
    vec![
        ("normal", a.clone(), b.clone()),
        ("rows of 1e-17 to 1e17", rows.0, rows.1),
        ("elements of 1e-4 to 1e4", mixed.0, mixed.1),
        ("cancellation", cancel.0, cancel.1),
        ("all bits set", ones.0, ones.1),
        ("largest parts", halves.0, halves.1),
        ("positive", positive.0, positive.1),
    ]
}

#[test]
fn six_products_of_parts_are_as_exact_as_f32_multiply_adds() {
    if !engines().any(|e| e == Engine::Amx6) {
        return;
    }
    for k in [8, 32, 100, 768, 3072] {
        let (m, n) = (40, 48);
        for (what, a, b) in hard(m, n, k) {
            let (worst, rms) = error(Engine::Amx6, (m, n, k), &a, &b);
            let (fma_worst, fma_rms) = error(Engine::Fma, (m, n, k), &a, &b);
            // Errors below the rounding of the result itself do not count; where all elements are the same number, rounding is not
            // random, and one sample proves little.
            let constant = matches!(what, "all bits set" | "largest parts");
            let one = f64::from(f32::EPSILON) * if constant { 1.0 } else { 0.5 };
            assert!(
                rms <= 1.1 * fma_rms.max(one) && worst <= 1.5 * fma_worst.max(one),
                "{what}, k = {k}: rms {rms:.2e} against {fma_rms:.2e}, worst {worst:.2e} against {fma_worst:.2e}"
            );
        }
    }
}

#[test]
fn fewer_parts_have_the_bits_that_they_promise() {
    for (engine, limit) in
        [(Engine::Amx3, 2.0f64.powi(-15)), (Engine::Amx, 2.0f64.powi(-7)), (Engine::Fp16, 2.0f64.powi(-7))]
    {
        if !engines().any(|e| e == engine) {
            continue;
        }
        for k in [32, 768] {
            for (what, a, b) in hard(40, 48, k) {
                let (worst, _) = error(engine, (40, 48, k), &a, &b);
                assert!(worst <= limit, "{engine}, {what}, k = {k}: {worst:.2e} above {limit:.2e}");
            }
        }
    }
}

/// The bound of the error of an element by fp16 multiply-adds, as its module states it.
fn fp16_bound(a: &[f32], b: &[f32]) -> f64 {
    let size = |v: &[f32]| v.iter().map(|x| f64::from(x.abs())).collect::<Vec<f64>>();
    let (mut rounding, mut lost, mut products) = (0.0, 0.0, 0.0);
    for (a, b) in a.chunks(128).zip(b.chunks(128)) {
        let (a, b) = (size(a), size(b));
        let largest = |v: &[f64]| v.iter().fold(0.0f64, |m, x| m.max(*x));
        let (la, lb) = (largest(&a), largest(&b));
        for (x, y) in a.iter().zip(&b) {
            products += x * y;
            lost += la * y + x * lb;
        }
        rounding = 67.0 * products;
    }
    // Higher orders: 67 u is 0.033.
    1.04 * (2f64.powi(-11) * rounding + 2f64.powi(-28) * lost) + 1e-6 * products
}

#[test]
fn fp16_keeps_to_its_bound_and_is_twice_as_exact_as_bf16_on_normal_values() {
    let engine = Engine::Fp16;
    if !engines().any(|e| e == engine) {
        return;
    }
    let (m, n) = (40, 48);
    for k in [8, 100, 128, 768, 3072] {
        let mut operands = hard(m, n, k);
        // One element of every row of A is larger than all others by more than fp16 has bits for.
        let outliers = normal(3, m * k).into_iter().enumerate();
        let outliers = outliers.map(|(i, x)| if i % k == i / k % k { 1e6 } else { x }).collect();
        operands.push(("outliers", outliers, normal(4, n * k)));
        let small = |seed, len| normal(seed, len).iter().map(|x| x * 1e-8).collect::<Vec<f32>>();
        operands.push(("gradients of 1e-8", small(5, m * k), small(6, n * k)));
        for (what, a, b) in operands {
            let found = product(engine, (m, n, k), &a, &b);
            let (mut errors, mut sizes) = (0.0, 0.0);
            for (i, y) in found.iter().enumerate() {
                let (a, b) = (&a[i / n * k..][..k], &b[i % n * k..][..k]);
                let sum: f64 = a.iter().zip(b).map(|(x, y)| f64::from(*x) * f64::from(*y)).sum();
                let (error, bound) = ((f64::from(*y) - sum).abs(), fp16_bound(a, b));
                assert!(error <= bound, "{what}, k = {k}: {y:e} for {sum:e}, bound {bound:.1e}");
                errors += error * error;
                sizes += sum * sum;
            }
            let rms = (errors / sizes).sqrt();
            let ordinary = matches!(what, "normal" | "gradients of 1e-8");
            assert!(!ordinary || rms < 1.4e-3, "{what}, k = {k}: rms error {rms:.2e}");
        }
    }
}

#[test]
fn values_at_the_ends_of_the_range_stay_what_they_are() {
    let (m, n, k) = (16, 16, 32);
    for engine in engines() {
        let b = vec![1e-10; n * k];
        // The largest f32 would round up to an infinite bf16; with one part it does.
        let mut a = vec![0.0; m * k];
        a[0] = f32::MAX;
        let found = product(engine, (m, n, k), &a, &b);
        if engine != Engine::Amx {
            let limit = if engine == Engine::Fp16 { 5e-4 } else { 1e-4 };
            assert!((found[0] / (f32::MAX * 1e-10) - 1.0).abs() < limit, "{engine}: {}", found[0]);
        }
        for special in [f32::INFINITY, f32::NEG_INFINITY, f32::NAN] {
            for bits in [special.to_bits(), special.to_bits() | 0x003f_ffff | (special.to_bits() & 0x40_0000)]
            {
                let special = f32::from_bits(bits);
                for at in [0, 3, k - 1] {
                    let mut a = normal(5, m * k);
                    a[2 * k + at] = special;
                    let found = product(engine, (m, n, k), &a, &b);
                    for (i, y) in found.iter().enumerate() {
                        assert_eq!(
                            y.is_finite(),
                            i / n != 2,
                            "{engine}: {special} gives {y} in row {}",
                            i / n
                        );
                    }
                    let mut w = normal(6, n * k);
                    w[3 * k + at] = special;
                    let found = product(engine, (m, n, k), &normal(7, m * k), &w);
                    for (i, y) in found.iter().enumerate() {
                        assert_eq!(
                            y.is_finite(),
                            i % n != 3,
                            "{engine}: {special} gives {y} in column {}",
                            i % n
                        );
                    }
                }
            }
        }
        // Subnormal operands and the loss of small ones: below the smallest normal number for each k.
        let small: Vec<f32> = normal(8, m * k).iter().map(|x| x * 1e-37).collect();
        let b = normal(9, n * k);
        let found = product(engine, (m, n, k), &small, &b);
        for (i, y) in found.iter().enumerate() {
            let terms = (0..k).map(|x| f64::from(small[i / n * k + x]) * f64::from(b[i % n * k + x]));
            let (sum, size) = terms.fold((0.0, 0.0), |(s, z), t| (s + t, z + f64::abs(t)));
            let lost = 2.0 * k as f64 * f64::from(f32::MIN_POSITIVE) + 0.01 * size;
            assert!((f64::from(*y) - sum).abs() <= lost, "{engine}: {y:e} for {sum:e}");
        }
    }
}

#[test]
fn each_precision_has_an_engine_and_unavailable_ones_are_refused_by_name() {
    for precision in MatmulPrecision::ALL {
        for rung in Rung::ALL.into_iter().filter(|r| r.available()) {
            let config = CpuConfig { threads: 1, matmul: precision, ..CpuConfig::default() };
            let b = CpuBackend::with_rung(config, rung).unwrap();
            assert_eq!(b.engine(), Engine::fastest(rung, precision));
            if rung != Rung::detect() {
                assert_eq!(b.engine(), Engine::Fma, "{rung} {precision}");
            }
        }
    }
    let config = CpuConfig { threads: 1, ..CpuConfig::default() };
    let e = CpuBackend::with_engine(config, Rung::Portable, Engine::Amx6).err().unwrap().to_string();
    assert!(e.contains("amx6") && e.contains("portable"), "{e}");
}

/// `.ci/instruction-sets` reads these lines.
#[test]
#[allow(clippy::print_stdout, reason = "the list is what the test is for")]
fn list_of_instruction_sets() {
    for set in &InstructionSet::ALL {
        println!("instruction-set {} {}", set.name, if set.available() { "available" } else { "absent" });
    }
    if let Some(set) = instruction_set::forced() {
        let backend = instruction_set::cpu(1);
        assert_eq!((backend.rung(), backend.engine()), (set.rung, set.engines[0]));
    }
}
