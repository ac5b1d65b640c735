//! Sliding windows, linear biases, packed documents, and what they have in common.

use crate::{Kernels, Setup, Suite};
use bessemer_tensor::View;
use bessemer_tensor::op::{
    Alibi, Attention, AttentionBackward, AttentionCached, AttentionDropout, AttentionMask, AttentionShape,
    Positions,
};
use bessemer_tensor::rng::RngKey;
use bessemer_test_tier::either;

/// First positions of documents of some irregular lengths, one of them a single position.
fn starts(batch: usize, seq: usize) -> Vec<u32> {
    let mut all = Vec::new();
    for b in 0..batch {
        let (mut start, mut next) = (0, 1 + 37 * b);
        for t in 0..seq {
            if t == next {
                (start, next) = (t, t + 1 + (t * 7919 + b) % 171);
            }
            all.push(start as u32);
        }
    }
    all
}

/// (B, T, H, G, E, window, alibi, documents, dropout).
type Case = (usize, usize, usize, usize, usize, Option<usize>, bool, bool, bool);
const CASES: [Case; 12] = [
    (1, 1, 1, 1, 3, Some(1), true, true, false),
    (1, 70, 2, 1, 8, Some(1), false, false, false),
    (2, 33, 4, 2, 5, Some(4), false, false, true),
    (1, 300, 2, 2, 16, Some(33), false, false, false),
    (1, 390, 1, 1, 40, Some(150), true, false, false),
    (2, 130, 6, 3, 12, None, true, false, false),
    (1, 200, 5, 1, 20, None, true, false, true),
    (2, 190, 2, 2, 24, None, false, true, false),
    (1, 420, 2, 1, 64, None, false, true, true),
    (1, 260, 3, 3, 17, Some(90), true, true, true),
    (2, 65, 4, 1, 80, Some(64), false, true, false),
    (1, 1100, 1, 1, 8, Some(500), false, false, false),
];

/// Positions before the queries, between their halves, and after them, of keys.
type Apart = (usize, usize, usize);
const LATER: [(Case, Apart); 9] = [
    ((1, 65, 2, 1, 8, None, false, false, false), (70, 0, 0)),
    ((2, 33, 4, 2, 5, Some(4), false, false, true), (9, 0, 3)),
    ((1, 200, 2, 2, 24, Some(150), true, true, true), (190, 0, 200)),
    ((1, 130, 1, 1, 64, None, true, true, false), (1300, 0, 70)),
    ((1, 1, 3, 3, 17, None, false, true, true), (260, 0, 0)),
    ((1, 130, 2, 1, 8, None, false, false, false), (0, 300, 0)),
    ((2, 34, 4, 2, 5, Some(4), false, false, true), (9, 500, 3)),
    ((1, 200, 2, 2, 24, Some(150), true, true, true), (190, 77, 200)),
    ((1, 70, 1, 1, 64, None, true, true, true), (35, 1100, 35)),
];

fn forward(s: &mut Setup, case: Case) -> Attention {
    later(s, (case, (0, 0, 0)))
}

/// Queries at some of the positions of each sequence.
fn later(s: &mut Setup, (case, (past, between, more)): (Case, Apart)) -> Attention {
    let (batch, seq, heads, kv_heads, head_dim, window, alibi, documents, dropout) = case;
    let shape =
        AttentionShape { batch, seq, heads, kv_heads, head_dim, scale: 1.0 / (head_dim as f32).sqrt() };
    let (n, hq, hk) = (batch * seq, heads * head_dim, kv_heads * head_dim);
    let keys = batch * (past + between + seq + more);
    let half = if between > 0 { seq / 2 } else { 0 };
    let of_queries = |starts: Vec<u32>| -> Vec<u32> {
        let of =
            |sequence: &[u32]| [&sequence[past..past + half], &sequence[past + half + between..]].concat();
        starts.chunks(past + between + seq).flat_map(of).collect()
    };
    let mask = AttentionMask {
        queries: Positions { first: past, later: (between > 0).then_some(past + half + between), stride: 1 },
        keys: None,
        window,
        alibi: alibi.then(|| Alibi::of(heads)),
        documents: documents.then(|| s.indices(&of_queries(starts(batch, past + between + seq)))),
    };
    Attention {
        shape,
        q: s.act(n, hq, 3),
        k: s.act(keys, hk, 1),
        v: s.act(keys, hk, 0),
        out: s.act(n, hq, 2),
        lse: s.mat(batch * heads, seq),
        mask,
        dropout: dropout.then(|| {
            let mask = s.dropout(0.3, RngKey::new(3, 5, "attention"), 7);
            AttentionDropout::of(heads, mask)
        }),
    }
}

fn backward(s: &mut Setup, f: &Attention) -> AttentionBackward {
    let (n, hq, hk) = (f.q.rows, f.q.cols, f.k.cols);
    AttentionBackward {
        shape: f.shape,
        q: f.q,
        k: f.k,
        v: f.v,
        out: f.out,
        lse: f.lse,
        dout: s.act(n, hq, 0),
        dq: s.act(n, hq, 1),
        dk: s.act(f.k.rows, hk, 0),
        dv: s.act(f.k.rows, hk, 5),
        mask: f.mask,
        dropout: f.dropout,
    }
}

pub(crate) fn masks_agree_with_the_reference(suite: &Suite<'_>) {
    for case in CASES {
        suite.check(&format!("attention {case:?}"), 6e-6, &|s| forward(s, case).into());
        suite.check(&format!("attention backward {case:?}"), 3e-5, &|s| {
            let f = forward(s, case);
            s.launch(&f.into()).unwrap();
            let back = backward(s, &f);
            any_out(s, back).into()
        });
    }
}

/// The same with an `out` that no forward pass made: one rounded to bf16 may differ from one instruction set to another by a unit in its last
/// place, and everything after it would.
fn any_out(s: &mut Setup, op: AttentionBackward) -> AttentionBackward {
    AttentionBackward { out: s.act(op.out.rows, op.out.cols, 0), ..op }
}

pub(crate) fn some_of_the_queries_agree_with_the_reference(suite: &Suite<'_>) {
    for case in LATER {
        suite.check(&format!("attention {case:?}"), 6e-6, &|s| later(s, case).into());
        suite.check(&format!("attention backward {case:?}"), 3e-5, &|s| {
            let f = later(s, case);
            s.launch(&f.into()).unwrap();
            let back = backward(s, &f);
            any_out(s, back).into()
        });
    }
}

pub(crate) fn queries_without_their_keys_are_refused(suite: &Suite<'_>) {
    let case = (2, 33, 4, 2, 5, None, false, false, false);
    let mut s = suite.setup(Kernels::Reference, 1);
    let few = Attention {
        mask: AttentionMask { queries: 10.into(), ..AttentionMask::default() },
        ..later(&mut s, (case, (9, 0, 0)))
    };
    let e = s.launch(&few.into()).unwrap_err().to_string();
    assert!(e.contains("at least 43 rows for each of 2 sequences") && e.contains("found 84 rows"), "{e}");
}

pub(crate) fn many_strips_of_keys_add_up_in_one_order(suite: &Suite<'_>) {
    // One sequence and head: every thread works on strips of its own, and waits for its turn at dq.
    let case = (1, either(500, 1500), 2, 1, 72, None, false, false, false);
    suite.check("attention backward in strips", 5e-5, &|s| {
        let f = forward(s, case);
        s.launch(&f.into()).unwrap();
        let back = backward(s, &f);
        any_out(s, back).into()
    });
}

pub(crate) fn decoding_with_windows_and_biases_agrees_with_the_reference(suite: &Suite<'_>) {
    // (new, past, window, alibi)
    for (seq, past, window, alibi) in [
        (1, 0, Some(1), true),
        (1, 90, Some(17), false),
        (3, 40, None, true),
        (2, 30, Some(200), true),
        (20, 117, Some(33), true),
        (150, 60, Some(100), false),
        (150, 0, None, true),
    ] {
        suite.check(&format!("cached attention {seq} after {past}, window {window:?}"), 6e-6, &|s| {
            let (batch, heads, kv_heads, head_dim, capacity) = (2, 4, 2, 24, past + seq + 3);
            AttentionCached {
                shape: AttentionShape { batch, seq, heads, kv_heads, head_dim, scale: 0.2 },
                past,
                capacity,
                window,
                alibi: alibi.then(|| Alibi::of(heads)),
                q: s.strided(batch * seq, heads * head_dim, 1),
                k_cache: s.mat(batch * capacity, kv_heads * head_dim),
                v_cache: s.strided(batch * capacity, kv_heads * head_dim, 2),
                out: s.mat(batch * seq, heads * head_dim),
            }
            .into()
        });
    }
}

pub(crate) fn packed_documents_are_as_if_alone(suite: &Suite<'_>) {
    let (seq, heads, kv_heads, head_dim) = (230, 4, 2, 24);
    let cuts = [0, 1, 60, 61, 190, 230];
    for kernels in suite.reference_and_fastest() {
        let mut s = suite.setup(kernels, 2);
        let mut first = Vec::new();
        for pair in cuts.windows(2) {
            first.extend((pair[0]..pair[1]).map(|_| pair[0] as u32));
        }
        let case = (1, seq, heads, kv_heads, head_dim, None, true, false, false);
        let mut packed = forward(&mut s, case);
        packed.mask.documents = Some(s.indices(&first));
        s.launch(&packed.into()).unwrap();
        let back = backward(&mut s, &packed);
        s.launch(&back.into()).unwrap();
        for pair in cuts.windows(2) {
            let (t, count) = (pair[0], pair[1] - pair[0]);
            let part = |view: View| view.rows(t, count);
            let mut alone = Attention {
                shape: AttentionShape { seq: count, ..packed.shape },
                q: part(packed.q),
                k: part(packed.k),
                v: part(packed.v),
                out: s.mat(count, heads * head_dim),
                lse: s.mat(heads, count),
                ..packed
            };
            alone.mask.documents = None;
            s.launch(&alone.into()).unwrap();
            suite.close("out", &s.read(part(packed.out)), &s.read(alone.out), 5e-6);
            let mut gradients = backward(&mut s, &alone);
            gradients.dout = part(back.dout);
            s.launch(&gradients.into()).unwrap();
            for (what, whole, one) in
                [("dq", back.dq, gradients.dq), ("dk", back.dk, gradients.dk), ("dv", back.dv, gradients.dv)]
            {
                suite.close(what, &s.read(part(whole)), &s.read(one), 5e-6);
            }
        }
    }
}

pub(crate) fn a_wide_window_is_no_window_bit_for_bit(suite: &Suite<'_>) {
    let case = |window| (2, 300, 2, 1, 40, window, false, false, true);
    let wide = suite.run(suite.fastest(), 2, &|s| forward(s, case(Some(300))).into());
    let none = suite.run(suite.fastest(), 2, &|s| forward(s, case(None)).into());
    suite.same("a wide window and none", &wide.concat(), &none.concat());
}

pub(crate) fn wrong_documents_are_named(suite: &Suite<'_>) {
    for kernels in suite.reference_and_fastest() {
        let mut s = suite.setup(kernels, 1);
        let f = forward(&mut s, (1, 5, 1, 1, 4, None, false, true, false));
        let view = f.mask.documents.unwrap();
        s.backend.write_u32(view, &[0, 0, 3, 3, 3]).unwrap();
        let e = s.launch(&f.into()).unwrap_err().to_string();
        assert!(e.contains("documents should be 2 (a document starts) or 0 (it continues)"), "{e}");
        let back = backward(&mut s, &f);
        let e = s.launch(&back.into()).unwrap_err().to_string();
        assert!(e.starts_with("attention_backward: documents"), "{e}");
    }
}
