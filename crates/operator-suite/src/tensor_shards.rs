//! Operators that hold a part of their layer or table: alone against the reference, together against the whole.

use crate::setup::{ids, targets};
use crate::{Kernels, Setup, Suite};
use bessemer_tensor::View;
use bessemer_tensor::op::*;
use bessemer_tensor::rng::RngKey;

/// (N, D, rows of the whole, first row here, rows here); the last is cut into several chunks.
const SHAPES: [(usize, usize, usize, usize, usize); 5] = [
    (1, 1, 2, 1, 1),
    (3, 5, 7, 0, 3),
    (17, 16, 33, 20, 13),
    (40, 24, 130, 44, 43),
    (530, 3, 70_000, 1_000, 33_000),
];

fn sums(s: &mut Setup, (n, d, of, first, rows): (usize, usize, usize, usize, usize)) -> LogitSums {
    LogitSums {
        x: s.act(n, d, 1),
        weight: s.param(rows, d, 2),
        tensor_shard: VocabularyShard { first, of },
        targets: s.indices(&targets(n, of)),
        lse: s.mat(1, n),
        target_logit: s.mat(1, n),
    }
}

pub(crate) fn sums_losses_and_gradients_agree_with_the_reference(suite: &Suite<'_>) {
    for (i, shape) in SHAPES.into_iter().enumerate() {
        if shape.4 > 30_000 {
            continue;
        }
        suite.check(&format!("sums {shape:?}"), 4e-6, &|s| sums(s, shape).into());
        for backward in [false, true] {
            suite.check(&format!("loss {shape:?} {backward}"), 1e-5, &|s| {
                let given = sums(s, shape);
                s.launch(&given.into()).unwrap();
                let LogitSums { x, weight, tensor_shard, targets, lse, target_logit } = given;
                let (loss, scored_lse) = (s.mat(1, x.rows), (i % 2 == 1).then(|| s.mat(1, x.rows)));
                let backward = backward.then(|| LossBackward {
                    z_loss: (i % 2 == 0).then(|| s.values(1, 1, &[0.03])),
                    dx: s.act(x.rows, x.cols, 1),
                    dweight: s.gradient(weight.rows, x.cols, 0),
                    accumulate: i % 2 == 1,
                    factors: s.factors(x.rows),
                });
                LinearCrossEntropyShard {
                    x,
                    weight,
                    tensor_shard,
                    targets,
                    lse,
                    target_logit,
                    loss,
                    scored_lse,
                    backward,
                }
                .into()
            });
        }
    }
}

/// Combines what several devices found out: log of the sum of exponentials, and the sum.
fn combined(terms: &[[Vec<f32>; 2]]) -> [Vec<f32>; 2] {
    let n = terms[0][0].len();
    let lse = |i: usize| terms.iter().map(|t| f64::from(t[0][i]).exp()).sum::<f64>().ln() as f32;
    let hit = |i: usize| terms.iter().map(|t| t[1][i]).sum();
    [(0..n).map(lse).collect(), (0..n).map(hit).collect()]
}

pub(crate) fn combined_sums_agree_with_the_reference(suite: &Suite<'_>) {
    for (ranks, n) in [(1, 1), (2, 5), (3, 70), (8, 40_001)] {
        suite.check(&format!("combined sums of {ranks}, {n}"), 0.0, &|s| {
            let (parts, lse, target_logit) = (s.strided(2 * ranks, n, 1), s.mat(1, n), s.mat(1, n));
            CombineLogSums { parts, lse, target_logit }.into()
        });
    }
}

/// Large and small terms neither overflow nor vanish, and the derivative of the log-sum-exp by a term is the term's part of the
/// probability, as the gradients of the loss take it to be.
pub(crate) fn combined_sums_are_those_of_all_terms_and_have_their_derivatives(suite: &Suite<'_>) {
    for kernels in suite.kernels() {
        let mut s = suite.setup(kernels, 1);
        let (lse, target_logit) = (s.mat(1, 4), s.mat(1, 4));
        let sums = |s: &mut Setup, lses: [[f32; 4]; 2], targets: [[f32; 4]; 2]| {
            let parts = s.values(4, 4, &[lses[0], targets[0], lses[1], targets[1]].concat());
            s.launch(&CombineLogSums { parts, lse, target_logit }.into()).unwrap();
            [s.read(lse), s.read(target_logit)]
        };
        let targets = [[0.5, 0.0, -3.0, 0.0], [0.0, 0.25, 0.0, 0.0]];
        let terms = [[3.0, 800.0, -800.0, 1.0], [3.0, -800.0, -800.0, f32::NEG_INFINITY]];
        let [found, target] = sums(&mut s, terms, targets);
        let ln2 = std::f32::consts::LN_2;
        suite.equal(&format!("lse on {kernels}"), &found, &[3.0 + ln2, 800.0, -800.0 + ln2, 1.0]);
        suite.equal(&format!("target logits on {kernels}"), &target, &[0.5, 0.25, -3.0, 0.0]);

        let (one, other, step) = ([0.5, -1.0, 2.0, 6.0f32], [1.0, 1.5, -2.0, 6.0f32], 1.0 / 64.0);
        let lse = sums(&mut s, [one, other], targets)[0].clone();
        let above = sums(&mut s, [one.map(|x| x + step), other], targets)[0].clone();
        let below = sums(&mut s, [one.map(|x| x - step), other], targets)[0].clone();
        for i in 0..4 {
            let (slope, part) = ((above[i] - below[i]) / (2.0 * step), (one[i] - lse[i]).exp());
            assert!((slope - part).abs() < suite.bound(1e-4), "{kernels}, token {i}: {slope} for {part}");
        }
    }
}

pub(crate) fn combined_sums_refuse_an_odd_number_of_rows(suite: &Suite<'_>) {
    let mut s = suite.setup(Kernels::Reference, 1);
    let (parts, lse, target_logit) = (s.mat(3, 5), s.mat(1, 5), s.mat(1, 5));
    let e = s.launch(&CombineLogSums { parts, lse, target_logit }.into()).unwrap_err().to_string();
    assert_eq!(e, "combine_log_sums: parts should be [4, 5], found [3, 5]");
}

pub(crate) fn portions_of_the_vocabulary_together_have_the_loss_and_the_gradients_of_the_whole(
    suite: &Suite<'_>,
) {
    for (n, d, v, cuts) in [(19, 12, 37, vec![0, 13, 25, 37]), (530, 3, 40_000, vec![0, 33_000, 40_000])] {
        let rungs = suite.variants().chain((v < 100).then_some(Kernels::Reference));
        for kernels in rungs {
            let mut s = suite.setup(kernels, 2);
            let (x, weight, loss) = (s.act(n, d, 0), s.mat(v, d), s.mat(1, n));
            let targets = s.indices(&targets(n, v));
            let (dx, dweight) = (s.act(n, d, 0), s.mat(v, d));
            let (factors, z_loss) = (s.factors(n), Some(s.values(1, 1, &[0.05])));
            let back = LossBackward { factors, z_loss, dx, dweight, accumulate: false };
            let scored = s.mat(1, n);
            let scored_lse = Some(scored);
            let whole = LinearCrossEntropy {
                x,
                weight,
                targets,
                loss,
                scored_lse,
                backward: Some(back),
                teacher: None,
            };
            s.launch(&whole.into()).unwrap();
            let [wanted_loss, wanted_lse, wanted_dx, wanted_dw] =
                [loss, scored, dx, dweight].map(|view| s.read(view));

            let (lse, target_logit) = (s.mat(1, n), s.mat(1, n));
            let parts: Vec<_> = cuts.windows(2).map(|c| (c[0], weight.rows(c[0], c[1] - c[0]))).collect();
            let terms: Vec<[Vec<f32>; 2]> = (parts.iter())
                .map(|&(first, weight)| {
                    let tensor_shard = VocabularyShard { first, of: v };
                    s.launch(&LogitSums { x, weight, tensor_shard, targets, lse, target_logit }.into())
                        .unwrap();
                    [lse, target_logit].map(|view| s.read(view))
                })
                .collect();
            let gathered: Vec<f32> = terms.iter().flatten().flatten().copied().collect();
            let parts_of_sums = s.values(2 * terms.len(), n, &gathered);
            s.launch(&CombineLogSums { parts: parts_of_sums, lse, target_logit }.into()).unwrap();
            let together = combined(&terms);
            suite.close("lse", &s.read(lse), &together[0], 1e-6);
            suite.close("target logit", &s.read(target_logit), &together[1], 1e-6);
            s.backend.write_f32(dweight, &vec![f32::NAN; v * d]).unwrap();
            let mut sum_dx = vec![0.0; n * d];
            for &(first, weight) in &parts {
                let tensor_shard = VocabularyShard { first, of: v };
                let backward = Some(LossBackward { dweight: dweight.rows(first, weight.rows), ..back });
                let op = LinearCrossEntropyShard {
                    x,
                    weight,
                    tensor_shard,
                    targets,
                    lse,
                    target_logit,
                    loss,
                    scored_lse,
                    backward,
                };
                s.launch(&op.into()).unwrap();
                sum_dx.iter_mut().zip(s.read(dx)).for_each(|(sum, term)| *sum += term);
                suite.close("loss", &s.read(loss), &wanted_loss, 4e-6);
                suite.close("lse", &s.read(scored), &wanted_lse, 1e-6);
            }
            suite.close("dx", &sum_dx, &wanted_dx, 1e-5);
            suite.close("dweight", &s.read(dweight), &wanted_dw, 1e-5);
        }
    }
}

pub(crate) fn large_logits_do_not_overflow(suite: &Suite<'_>) {
    suite.check("sums of logits of some thousands", 1e-3, &|s| {
        let o = sums(s, (6, 4, 60, 5, 50));
        let x: Vec<f32> = (0..6 * 4).map(|i| 300.0 * ((i % 7) as f32 - 3.0)).collect();
        s.backend.write_f32(o.x, &x).unwrap();
        o.into()
    });
}

pub(crate) fn portions_of_a_table_add_up_to_the_whole(suite: &Suite<'_>) {
    let (v, n, d) = (31, 57, 19);
    for kernels in suite.kernels() {
        let mut s = suite.setup(kernels, 2);
        let (table, out, dtable) = (s.mat(v, d), s.mat(n, d), s.mat(v, d));
        let ids = s.indices(&ids(n, v));
        let start = s.read(dtable);
        let all = Embedding { table, tensor_shard: None, ids, positions: None, out };
        let back = EmbeddingBackward { ids, dout: out, dtable, tensor_shard: None, positions: None };
        s.launch(&all.into()).unwrap();
        let wanted = s.read(out);
        s.launch(&back.into()).unwrap();
        let wanted_gradient = s.read(dtable);

        let mut sum = vec![0.0; n * d];
        s.backend.write_f32(dtable, &start).unwrap();
        for (first, rows) in [(0, 11), (11, 9), (20, 11)] {
            let tensor_shard = Some(VocabularyShard { first, of: v });
            s.launch(&Embedding { table: table.rows(first, rows), tensor_shard, ..all }.into()).unwrap();
            sum.iter_mut().zip(s.read(out)).for_each(|(sum, term)| *sum += term);
            s.backend.write_f32(out, &wanted).unwrap();
            s.launch(&EmbeddingBackward { dtable: dtable.rows(first, rows), tensor_shard, ..back }.into())
                .unwrap();
        }
        suite.same(&format!("sum on {kernels}"), &sum, &wanted);
        suite.same(&format!("gradient on {kernels}"), &s.read(dtable), &wanted_gradient);
    }
    suite.check("embedding, a part", 0.0, &|s| {
        let tensor_shard = Some(VocabularyShard { first: 7, of: v });
        let positions = Some(PositionTable { table: s.mat(5, d), positions: s.indices(&ids(n, 5)) });
        Embedding {
            table: s.param(9, d, 0),
            tensor_shard,
            ids: s.indices(&ids(n, v)),
            positions,
            out: s.act(n, d, 1),
        }
        .into()
    });
}

pub(crate) fn what_is_outside_the_whole_is_named(suite: &Suite<'_>) {
    for kernels in suite.kernels() {
        let mut s = suite.setup(kernels, 1);
        let good = sums(&mut s, (3, 5, 7, 2, 3));
        s.launch(&good.into()).unwrap();
        let targets = s.indices(&[6, IGNORED, 7]);
        assert_eq!(s.index_error(&LogitSums { targets, ..good }.into()), ("targets", 2, 7, 7));
        let tensor_shard = VocabularyShard { first: 5, of: 7 };
        let e = s.launch(&LogitSums { tensor_shard, ..good }.into()).unwrap_err().to_string();
        assert_eq!(
            e,
            "logit_sums: tensor shard should be 3 rows from 5 on, of 7, found fewer rows in the whole"
        );
        let (table, out, tensor_shard) =
            (s.mat(3, 5), s.mat(3, 5), Some(VocabularyShard { first: 2, of: 7 }));
        let op = Embedding { table, tensor_shard, ids: targets, positions: None, out };
        assert_eq!(s.index_error(&op.into()), ("ids", 1, IGNORED, 7));
    }
}

/// Heads 2 and 3 of a layer of six, alone.
pub(crate) fn a_part_of_the_heads_drops_and_lowers_what_the_whole_layer_does(suite: &Suite<'_>) {
    for kernels in suite.kernels() {
        let mut s = suite.setup(kernels, 2);
        let (batch, seq, heads, e) = (2, 150, 6, 5);
        let shape = AttentionShape { batch, seq, heads, kv_heads: heads, head_dim: e, scale: 0.4 };
        let n = batch * seq;
        let mut mat = || s.mat(n, heads * e);
        let [q, k, v, out, dout, dq, dk, dv] = std::array::from_fn(|_| mat());
        let lse = s.mat(batch * heads, seq);
        let weights = s.dropout(0.3, RngKey::new(3, 5, "attention"), 11);
        let dropout = Some(AttentionDropout::of(heads, weights));
        let mask = AttentionMask { alibi: Some(Alibi::of(heads)), ..AttentionMask::default() };
        let forward = Attention { shape, q, k, v, out, lse, mask, dropout };
        let back = AttentionBackward { shape, q, k, v, out, lse, dout, dq, dk, dv, mask, dropout };
        let read = |s: &mut Setup, view: View| s.read(view.columns(2 * e, 2 * e));
        s.launch(&forward.into()).unwrap();
        s.launch(&back.into()).unwrap();
        let wanted = [out, dq, dk, dv].map(|view| read(&mut s, view));

        let part = |view: View| view.columns(2 * e, 2 * e);
        let shape = AttentionShape { heads: 2, kv_heads: 2, ..shape };
        let mask = AttentionMask { alibi: Some(Alibi { heads, first: 2 }), ..mask };
        let dropout = Some(AttentionDropout { mask: weights, heads, first: 2 });
        let lse = lse.rows(0, batch * 2);
        let [q, k, v, dout] = [q, k, v, dout].map(part);
        let [o, dq, dk, dv] = std::array::from_fn(|_| s.mat(n, 2 * e));
        s.launch(&Attention { shape, q, k, v, out: o, lse, mask, dropout }.into()).unwrap();
        s.launch(&AttentionBackward { shape, q, k, v, out: o, lse, dout, dq, dk, dv, mask, dropout }.into())
            .unwrap();
        for (view, wanted) in [o, dq, dk, dv].into_iter().zip(&wanted) {
            suite.same(&format!("{kernels}"), &s.read(view), wanted);
        }
    }
}
