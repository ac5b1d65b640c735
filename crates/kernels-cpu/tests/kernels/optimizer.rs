use crate::harness::{check, fast_rungs, run};
use bessemer_kernels_cpu::Rung;
use bessemer_tensor::op::{AdamW, SumSquares};

const SHAPES: [(usize, usize); 5] = [(1, 1), (3, 17), (40, 64), (1, 50_001), (130, 257)];

#[test]
fn the_update_has_the_same_bits_on_every_rung() {
    for (i, (r, c)) in SHAPES.into_iter().enumerate() {
        let build = |s: &mut crate::harness::Setup| {
            let squares: Vec<f32> = (0..r * c).map(|i| (i % 97) as f32 * 1e-4).collect();
            AdamW {
                param: s.strided(r, c, i % 3),
                master: (i % 2 == 1).then(|| s.mat(r, c)),
                grad: s.strided(r, c, 1),
                m: s.mat(r, c),
                v: s.values(r, c, &squares),
                lr: 3e-4,
                beta1: 0.9,
                beta2: 0.95,
                eps: 1e-8,
                weight_decay: 0.1,
                grad_scale: 0.37,
                correction1: 1.0 - 0.9f32.powi(3),
                correction2: 1.0 - 0.95f32.powi(3),
            }
            .into()
        };
        let reference = run(Rung::Reference, 1, &build);
        for rung in fast_rungs() {
            for threads in [1, 2, 3] {
                let fast = run(rung, threads, &build);
                let same = fast.iter().flatten().zip(reference.iter().flatten());
                assert!(same.into_iter().all(|(a, b)| a.to_bits() == b.to_bits()), "{r}x{c} on {rung}");
            }
        }
    }
}

/// Computed by hand from the formula with p = 1, g = 0.5, m = v = 0 at step 1: m/c1 = g, v/c2 = g^2, so the step is
/// lr g / (|g| + eps), after the decay.
#[test]
fn the_first_step_moves_by_the_learning_rate() {
    let out = run(Rung::detect(), 1, &|s| {
        AdamW {
            param: s.values(1, 1, &[1.0]),
            master: None,
            grad: s.values(1, 1, &[0.5]),
            m: s.values(1, 1, &[0.0]),
            v: s.values(1, 1, &[0.0]),
            lr: 0.01,
            beta1: 0.9,
            beta2: 0.999,
            eps: 1e-8,
            weight_decay: 0.1,
            grad_scale: 1.0,
            correction1: 1.0 - 0.9,
            correction2: 1.0 - 0.999,
        }
        .into()
    });
    assert!((out[0][0] - (0.999 - 0.01)).abs() < 1e-6, "{}", out[0][0]);
    assert!((out[2][0] - 0.05).abs() < 1e-7 && (out[3][0] - 0.00025).abs() < 1e-7);
}

#[test]
fn sums_of_squares_agree_with_the_reference() {
    for (i, (r, c)) in SHAPES.into_iter().enumerate() {
        check(&format!("sum of squares {r}x{c}"), 1e-6, &|s| {
            SumSquares { x: s.strided(r, c, i % 3), out: s.mat(1, 1), accumulate: i % 2 == 1 }.into()
        });
    }
}
