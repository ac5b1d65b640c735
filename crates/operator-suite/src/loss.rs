use crate::setup::targets;
use crate::{Setup, Suite};
use bessemer_tensor::op::{IGNORED, LinearCrossEntropy, LossBackward, Teacher};

/// (N, D, V); the last is cut into several chunks.
const SHAPES: [(usize, usize, usize); 6] =
    [(1, 1, 1), (3, 5, 7), (17, 16, 33), (40, 24, 130), (65, 9, 1000), (530, 4, 33_000)];

fn op(
    s: &mut Setup,
    (n, d, v): (usize, usize, usize),
    backward: bool,
    accumulate: bool,
) -> LinearCrossEntropy {
    LinearCrossEntropy {
        x: s.act(n, d, 1),
        weight: s.param(v, d, 2),
        targets: s.indices(&targets(n, v)),
        loss: s.mat(1, n),
        scored_lse: backward.then(|| s.mat(1, n)),
        backward: backward.then(|| LossBackward {
            // Every other shape, so that both forms are held against the reference.
            z_loss: (n % 2 == 0).then(|| s.values(1, 1, &[0.03])),
            dx: s.act(n, d, 1),
            dweight: s.gradient(v, d, 0),
            accumulate,
            factors: s.factors(n),
        }),
        teacher: None,
    }
}

pub(crate) fn loss_and_gradients_agree_with_the_reference(suite: &Suite<'_>) {
    for (i, shape) in SHAPES.into_iter().enumerate() {
        if shape.2 > 30_000 {
            continue;
        }
        suite.check(&format!("loss {shape:?}"), 4e-6, &|s| op(s, shape, false, false).into());
        let accumulate = i % 2 == 1;
        suite.check(&format!("loss and gradients {shape:?}"), 1e-5, &|s| {
            op(s, shape, true, accumulate).into()
        });
    }
}

/// A teacher of width 1 more than the student, of weight `factor`.
fn teacher(s: &mut Setup, (n, d, v): (usize, usize, usize), factor: f32, temperature: f32) -> Teacher {
    Teacher {
        x: s.strided(n, d + 1, 1),
        weight: s.param(v, d + 1, 0),
        factor: s.values(1, 1, &[factor]),
        temperature,
        divergence: s.mat(1, n),
    }
}

pub(crate) fn distillation_agrees_with_the_reference(suite: &Suite<'_>) {
    for (i, shape) in SHAPES.into_iter().enumerate() {
        if shape.2 > 30_000 {
            continue;
        }
        for backward in [false, true] {
            let temperature = [1.0, 2.0, 0.7][i % 3];
            suite.check(&format!("distillation {shape:?}, gradients {backward}"), 2e-5, &|s| {
                let teacher = teacher(s, shape, 0.8, temperature);
                LinearCrossEntropy { teacher: Some(teacher), ..op(s, shape, backward, i % 2 == 1) }.into()
            });
        }
    }
    // Several pieces of the teacher's logits for one chunk of the student's, the last of them shorter.
    suite.check("distillation in pieces", 2e-5, &|s| {
        let shape = (601, 5, 33);
        LinearCrossEntropy { teacher: Some(teacher(s, shape, 1.5, 2.0)), ..op(s, shape, true, false) }.into()
    });
}

pub(crate) fn a_teacher_of_factor_0_leaves_the_bits_of_the_loss(suite: &Suite<'_>) {
    for shape in [(17, 16, 33), (601, 5, 33), (530, 4, 33_000)] {
        let mut s = suite.setup(suite.fastest(), 2);
        let alone = op(&mut s, shape, true, false);
        let b = alone.backward.unwrap();
        let outputs = [alone.loss, alone.scored_lse.unwrap(), b.dx, b.dweight];
        s.launch(&alone.into()).unwrap();
        let before = outputs.map(|view| s.read(view));
        let taught = teacher(&mut s, shape, 0.0, 2.0);
        s.launch(&LinearCrossEntropy { teacher: Some(taught), ..alone }.into()).unwrap();
        for (found, wanted) in outputs.map(|view| s.read(view)).iter().zip(&before) {
            suite.same("teacher of factor 0", found, wanted);
        }
        assert!(s.read(taught.divergence).iter().all(|divergence| *divergence == 0.0));
    }
}

pub(crate) fn chunks_of_rows_give_what_the_rows_give_alone(suite: &Suite<'_>) {
    let (n, d, v) = SHAPES[5];
    let all = suite.run(suite.fastest(), 2, &|s| op(s, (n, d, v), true, false).into());
    // The same values in two launches, the second adding to the weight gradient of the first.
    let halves = {
        let mut s = suite.setup(suite.fastest(), 2);
        let whole = op(&mut s, (n, d, v), true, false);
        let b = whole.backward.unwrap();
        let half = n / 2 - 3;
        let all_targets = targets(n, v);
        for (first, count) in [(0, half), (half, n - half)] {
            let part = LinearCrossEntropy {
                x: whole.x.rows(first, count),
                targets: s.indices(&all_targets[first..first + count]),
                loss: whole.loss.columns(first, count),
                scored_lse: whole.scored_lse.map(|lse| lse.columns(first, count)),
                backward: Some(LossBackward {
                    factors: b.factors.columns(first, count),
                    dx: b.dx.rows(first, count),
                    accumulate: first > 0,
                    ..b
                }),
                ..whole
            };
            s.launch(&part.into()).unwrap();
        }
        s.all()
    };
    suite.close("chunks", &all.concat(), &halves.concat(), 1e-5);
}

pub(crate) fn a_target_past_the_vocabulary_is_named(suite: &Suite<'_>) {
    for kernels in suite.kernels() {
        let mut s = suite.setup(kernels, 1);
        let good = op(&mut s, (3, 5, 7), true, false);
        let bad = LinearCrossEntropy { targets: s.indices(&[6, IGNORED, 7]), ..good };
        assert_eq!(s.index_error(&bad.into()), ("targets", 2, 7, 7));
    }
}

pub(crate) fn large_logits_do_not_overflow(suite: &Suite<'_>) {
    suite.check("loss with logits of some thousands", 1e-3, &|s| {
        let x: Vec<f32> = (0..6 * 4).map(|i| 300.0 * ((i % 7) as f32 - 3.0)).collect();
        let o = op(s, (6, 4, 50), true, false);
        s.backend.write_f32(o.x, &x).unwrap();
        o.into()
    });
}
