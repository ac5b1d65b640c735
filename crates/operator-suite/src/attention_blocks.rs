//! Attention of some queries to some keys, block by block, and the merge of its results: as attention over all of them.

use crate::{Kernels, Setup, Suite};
use bessemer_tensor::View;
use bessemer_tensor::op::{
    Add, Alibi, Attention, AttentionBackward, AttentionDropout, AttentionMask, AttentionMerge,
    AttentionShape, Op, Positions, SomeKeys,
};
use bessemer_tensor::rng::RngKey;
use bessemer_test_tier::Sample;

/// Ways in which ranks share a sequence.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Order {
    Consecutive,
    ZigZag,
    Striped,
}

pub(crate) const ORDERS: [Order; 3] = [Order::Consecutive, Order::ZigZag, Order::Striped];

/// Positions that rank `rank` of `ranks` has of a sequence of `seq`.
pub(crate) fn positions(order: Order, seq: usize, ranks: usize, rank: usize) -> Positions {
    let half = seq / ranks / 2;
    match order {
        Order::Consecutive => (rank * seq / ranks).into(),
        Order::ZigZag => {
            Positions { first: rank * half, later: Some((2 * ranks - 1 - rank) * half), stride: 1 }
        }
        Order::Striped => Positions { first: rank, later: None, stride: ranks },
    }
}

/// First positions of documents of some irregular lengths.
fn starts(seq: usize) -> Vec<u32> {
    let (mut start, mut next) = (0, 19);
    let of = |t| {
        if t == next {
            (start, next) = (t, t + 1 + t * 7919 % 83);
        }
        start as u32
    };
    (0..seq).map(of).collect()
}

/// (T, ranks, H, G, E, window, alibi, documents, dropout).
type Case = (usize, usize, usize, usize, usize, Option<usize>, bool, bool, bool);
const CASES: [Case; 7] = [
    (16, 2, 1, 1, 3, None, false, false, false),
    (96, 4, 4, 2, 8, None, false, false, true),
    (240, 3, 2, 1, 24, None, true, false, false),
    (240, 2, 2, 2, 17, Some(33), false, false, true),
    (320, 4, 2, 1, 16, None, false, true, false),
    (480, 2, 3, 3, 40, Some(150), true, true, true),
    (800, 2, 1, 1, 64, None, true, false, true),
];

fn shape(case: Case, seq: usize) -> AttentionShape {
    let (_, _, heads, kv_heads, head_dim, ..) = case;
    AttentionShape { batch: 1, seq, heads, kv_heads, head_dim, scale: 1.0 / (head_dim as f32).sqrt() }
}

/// Rows of a matrix at some positions.
fn some(values: &[f32], cols: usize, positions: &Positions, count: usize) -> Vec<f32> {
    (0..count).flat_map(|i| &values[positions.at(i, count) * cols..][..cols]).copied().collect()
}

/// One block of a case, on fresh operands.
fn block(s: &mut Setup, case: Case, order: Order, (query, key): (usize, usize)) -> Attention {
    let (seq, ranks, heads, kv_heads, head_dim, window, alibi, documents, dropout) = case;
    let n = seq / ranks;
    let queries = positions(order, seq, ranks, query);
    let keys = Some(SomeKeys { positions: positions(order, seq, ranks, key), seq });
    let documents = documents.then(|| {
        let of = |i| starts(seq)[queries.at(i, n)];
        s.indices(&(0..n).map(of).collect::<Vec<u32>>())
    });
    Attention {
        shape: shape(case, n),
        q: s.act(n, heads * head_dim, 3),
        k: s.act(n, kv_heads * head_dim, 1),
        v: s.act(n, kv_heads * head_dim, 0),
        out: s.strided(n, heads * head_dim, 2),
        lse: s.mat(heads, n),
        mask: AttentionMask { queries, keys, window, alibi: alibi.then(|| Alibi::of(heads)), documents },
        dropout: dropout.then(|| {
            let mask = s.dropout(0.3, RngKey::new(3, 5, "attention"), 7);
            AttentionDropout::of(heads, mask)
        }),
    }
}

pub(crate) fn some_of_the_keys_agree_with_the_reference(suite: &Suite<'_>) {
    let mut sample = Sample::one_in(3);
    for case in CASES {
        for order in ORDERS {
            for pair in [(0, 0), (1, 0), (0, 1)].into_iter().filter(|pair| case.0 < 300 || *pair == (1, 0)) {
                if !sample.takes() {
                    continue;
                }
                let what = format!("{case:?} {order:?} {pair:?}");
                suite.check(&format!("attention {what}"), 6e-6, &|s| block(s, case, order, pair).into());
                suite.check(&format!("attention backward {what}"), 5e-5, &|s| {
                    let f = block(s, case, order, pair);
                    s.launch(&f.into()).unwrap();
                    let (n, hq, hk) = (f.q.rows, f.q.cols, f.k.cols);
                    AttentionBackward {
                        shape: f.shape,
                        q: f.q,
                        k: f.k,
                        v: f.v,
                        out: s.act(n, hq, 0),
                        lse: f.lse,
                        dout: s.act(n, hq, 0),
                        dq: s.strided(n, hq, 1),
                        dk: s.strided(n, hk, 0),
                        dv: s.strided(n, hk, 5),
                        mask: f.mask,
                        dropout: f.dropout,
                    }
                    .into()
                });
            }
        }
    }
}

pub(crate) fn merged_results_agree_with_the_reference(suite: &Suite<'_>) {
    for (batch, seq, heads, head_dim) in [(1, 1, 1, 1), (2, 33, 4, 5), (1, 300, 2, 64), (1, 40, 3, 24)] {
        suite.check(&format!("merge {batch} {seq} {heads} {head_dim}"), 2e-6, &|s| {
            let shape = AttentionShape { batch, seq, heads, kv_heads: 1, head_dim, scale: 1.0 };
            let [out, part] = std::array::from_fn(|i| s.strided(batch * seq, heads * head_dim, i));
            let [lse, part_lse] = std::array::from_fn(|i| {
                let lse = s.mat(batch * heads, seq);
                // Near each other, far apart beyond what an exponential can hold, and sides that have seen nothing.
                let of = |j: usize| match (j + i) % 5 {
                    0 => f32::NEG_INFINITY,
                    1 if j.is_multiple_of(3) => 300.0,
                    1 => -300.0,
                    other => other as f32 / 7.0,
                };
                let values: Vec<f32> = (0..lse.len()).map(of).collect();
                s.backend.write_f32(lse, &values).unwrap();
                lse
            });
            AttentionMerge { shape, out, lse, part, part_lse }.into()
        });
    }
}

/// Sides that have seen nothing, on both sides: nothing changes, and nothing is a NaN.
pub(crate) fn a_side_that_has_seen_nothing_changes_nothing(suite: &Suite<'_>) {
    for kernels in suite.reference_and_fastest() {
        let mut s = suite.setup(kernels, 1);
        let shape = AttentionShape { batch: 1, seq: 4, heads: 1, kv_heads: 1, head_dim: 1, scale: 1.0 };
        let none = f32::NEG_INFINITY;
        let (out, part) = (s.values(4, 1, &[1.0, 2.0, 3.0, 4.0]), s.values(4, 1, &[5.0, 6.0, 7.0, 8.0]));
        let (lse, part_lse) =
            (s.values(1, 4, &[0.5, none, none, 90.0]), s.values(1, 4, &[none, 1.5, none, -90.0]));
        s.launch(&AttentionMerge { shape, out, lse, part, part_lse }.into()).unwrap();
        assert_eq!(s.read(out), [1.0, 6.0, 3.0, 4.0]);
        assert_eq!(s.read(lse), [0.5, 1.5, none, 90.0]);
    }
}

/// Values and gradients of a whole sequence, on one device.
struct Whole {
    q: Vec<f32>,
    k: Vec<f32>,
    v: Vec<f32>,
    dout: Vec<f32>,
    out: Vec<f32>,
    lse: Vec<f32>,
    dq: Vec<f32>,
    dk: Vec<f32>,
    dv: Vec<f32>,
}

fn whole(suite: &Suite<'_>, kernels: Kernels, case: Case) -> Whole {
    let (seq, _, heads, kv_heads, head_dim, window, alibi, documents, dropout) = case;
    let mut s = suite.setup(kernels, 2);
    let (hq, hk) = (heads * head_dim, kv_heads * head_dim);
    let [q, dout, out, dq] = std::array::from_fn(|_| s.mat(seq, hq));
    let [k, v, dk, dv] = std::array::from_fn(|_| s.mat(seq, hk));
    let lse = s.mat(heads, seq);
    let documents = documents.then(|| s.indices(&starts(seq)));
    let alibi = alibi.then(|| Alibi::of(heads));
    let mask = AttentionMask { window, alibi, documents, ..AttentionMask::default() };
    let drop = s.dropout(0.3, RngKey::new(3, 5, "attention"), 7);
    let dropout = dropout.then(|| AttentionDropout::of(heads, drop));
    let shape = shape(case, seq);
    s.launch(&Attention { shape, q, k, v, out, lse, mask, dropout }.into()).unwrap();
    s.launch(&AttentionBackward { shape, q, k, v, out, lse, dout, dq, dk, dv, mask, dropout }.into())
        .unwrap();
    let [q, k, v, dout, out, lse, dq, dk, dv] =
        [q, k, v, dout, out, lse, dq, dk, dv].map(|view| s.read(view));
    Whole { q, k, v, dout, out, lse, dq, dk, dv }
}

/// Every rank's queries against the keys of every rank, merged: the result of the whole. The backward pass of each block from the
/// whole's result, summed: its gradients.
pub(crate) fn blocks_together_are_the_whole(suite: &Suite<'_>) {
    for kernels in suite.kernels() {
        for case in CASES {
            if kernels == Kernels::Reference && case.0 > 300 {
                continue;
            }
            let whole = whole(suite, kernels, case);
            for order in ORDERS {
                hold_blocks(suite, &format!("{kernels} {case:?} {order:?}"), kernels, case, order, &whole);
            }
        }
    }
}

fn hold_blocks(suite: &Suite<'_>, what: &str, kernels: Kernels, case: Case, order: Order, whole: &Whole) {
    let (seq, ranks, heads, kv_heads, head_dim, ..) = case;
    let (n, hq, hk) = (seq / ranks, heads * head_dim, kv_heads * head_dim);
    let mut s = suite.setup(kernels, 2);
    let at = |rank| positions(order, seq, ranks, rank);
    let lse_at = |rank: usize| -> Vec<f32> {
        (0..heads).flat_map(|h| some(&whole.lse[h * seq..][..seq], 1, &at(rank), n)).collect()
    };
    let zeros = vec![0.0; n * hk];
    let sums: Vec<[View; 2]> = (0..ranks).map(|_| std::array::from_fn(|_| s.values(n, hk, &zeros))).collect();
    for a in 0..ranks {
        let [out, lse] =
            [s.values(n, hq, &vec![0.0; n * hq]), s.values(heads, n, &vec![f32::NEG_INFINITY; n * heads])];
        let dq_sum = s.values(n, hq, &vec![0.0; n * hq]);
        for (b, key_sums) in sums.iter().enumerate() {
            let mut op = block(&mut s, case, order, (a, b));
            // Alike in memory without gaps.
            let of = |s: &mut Setup, values: &[f32], cols, rank| {
                s.values(n, cols, &some(values, cols, &at(rank), n))
            };
            (op.q, op.k) = (of(&mut s, &whole.q, hq, a), of(&mut s, &whole.k, hk, b));
            op.v = of(&mut s, &whole.v, hk, b);
            s.launch(&op.into()).unwrap();
            let merge = AttentionMerge { shape: op.shape, out, lse, part: op.out, part_lse: op.lse };
            s.launch(&merge.into()).unwrap();
            let (all_out, dout) = (of(&mut s, &whole.out, hq, a), of(&mut s, &whole.dout, hq, a));
            let all_lse = s.values(heads, n, &lse_at(a));
            let (dq, dk, dv) = (s.mat(n, hq), s.mat(n, hk), s.mat(n, hk));
            let (q, k, v) = (op.q, op.k, op.v);
            let back = AttentionBackward {
                shape: op.shape,
                q,
                k,
                v,
                out: all_out,
                lse: all_lse,
                dout,
                dq,
                dk,
                dv,
                mask: op.mask,
                dropout: op.dropout,
            };
            s.launch(&back.into()).unwrap();
            for (sum, term) in [(dq_sum, dq), (key_sums[0], dk), (key_sums[1], dv)] {
                s.launch(&Add { a: sum, b: term, out: sum }.into()).unwrap();
            }
        }
        suite.close(&format!("{what} out"), &s.read(out), &some(&whole.out, hq, &at(a), n), 5e-6);
        suite.close(&format!("{what} lse"), &s.read(lse), &lse_at(a), 2e-6);
        suite.close(&format!("{what} dq"), &s.read(dq_sum), &some(&whole.dq, hq, &at(a), n), 3e-5);
    }
    for (b, key_sums) in sums.iter().enumerate() {
        suite.close(&format!("{what} dk"), &s.read(key_sums[0]), &some(&whole.dk, hk, &at(b), n), 5e-5);
        suite.close(&format!("{what} dv"), &s.read(key_sums[1]), &some(&whole.dv, hk, &at(b), n), 5e-5);
    }
}

/// A block that the mask hides as a whole is not computed, and gives nothing.
pub(crate) fn a_hidden_block_gives_nothing(suite: &Suite<'_>) {
    let case = (240, 2, 2, 1, 24, None, true, false, true);
    for kernels in suite.kernels() {
        let mut s = suite.setup(kernels, 2);
        let op = block(&mut s, case, Order::Consecutive, (0, 1));
        assert_eq!(Op::from(op).flops().0, 0.0);
        s.launch(&op.into()).unwrap();
        assert!(
            s.read(op.out).iter().all(|x| *x == 0.0)
                && s.read(op.lse).iter().all(|x| *x == f32::NEG_INFINITY)
        );
    }
}
