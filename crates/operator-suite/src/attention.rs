use crate::{Setup, Suite};
use bessemer_tensor::op::{
    Alibi, Attention, AttentionBackward, AttentionCached, AttentionDropout, AttentionMask, AttentionShape,
    AttentionSlots, Rope, RopeScaling,
};
use bessemer_tensor::rng::RngKey;

/// (B, T, H, G, E): one position, less and more than a block, odd head widths, grouped heads, several strips.
const SHAPES: [(usize, usize, usize, usize, usize); 10] = [
    (1, 1, 1, 1, 1),
    (2, 5, 2, 1, 3),
    (1, 13, 3, 3, 8),
    (2, 31, 4, 2, 16),
    (1, 97, 2, 2, 17),
    (1, 112, 1, 1, 64),
    (2, 113, 2, 1, 24),
    (1, 225, 4, 2, 40),
    (1, 300, 2, 2, 48),
    (1, 461, 1, 1, 33),
];

fn mask(s: &mut Setup, on: bool, heads: usize) -> Option<AttentionDropout> {
    let mask = s.dropout(0.3, RngKey::new(3, 5, "attention"), 7);
    on.then_some(AttentionDropout { mask, heads: heads + 3, first: 2 })
}

/// Operands are slices of one fused matrix where `fused`, and matrices with gaps otherwise.
fn forward(s: &mut Setup, i: usize) -> Attention {
    let (batch, seq, heads, kv_heads, head_dim) = SHAPES[i];
    let shape =
        AttentionShape { batch, seq, heads, kv_heads, head_dim, scale: 1.0 / (head_dim as f32).sqrt() };
    let (n, hq, hk) = (batch * seq, heads * head_dim, kv_heads * head_dim);
    let fused = s.act(n, hq + 2 * hk, i % 2);
    Attention {
        shape,
        q: fused.columns(0, hq),
        k: fused.columns(hq, hk),
        v: fused.columns(hq + hk, hk),
        out: s.act(n, hq, i % 3),
        lse: s.mat(batch * heads, seq),
        mask: AttentionMask::default(),
        dropout: mask(s, i % 2 == 1, heads),
    }
}

pub(crate) fn forward_agrees_with_the_reference(suite: &Suite<'_>) {
    for (i, shape) in SHAPES.iter().enumerate() {
        suite.check(&format!("attention {shape:?}"), 4e-6, &|s| forward(s, i).into());
    }
}

pub(crate) fn backward_agrees_with_the_reference(suite: &Suite<'_>) {
    for (i, shape) in SHAPES.iter().enumerate() {
        suite.check(&format!("attention backward {shape:?}"), 2e-5, &|s| {
            let f = forward(s, i);
            s.launch(&f.into()).unwrap();
            let (n, hq, hk) = (f.q.rows, f.q.cols, f.k.cols);
            let dfused = s.act(n, hq + 2 * hk, 1);
            AttentionBackward {
                shape: f.shape,
                q: f.q,
                k: f.k,
                v: f.v,
                // Not the forward result: rounded to bf16, it may differ from one instruction set to another by a unit in its last place.
                out: s.act(n, hq, i % 3),
                lse: f.lse,
                dout: s.act(n, hq, i % 2),
                dq: dfused.columns(0, hq),
                dk: dfused.columns(hq, hk),
                dv: dfused.columns(hq + hk, hk),
                mask: f.mask,
                dropout: f.dropout,
            }
            .into()
        });
    }
}

pub(crate) fn decoding_agrees_with_the_reference(suite: &Suite<'_>) {
    // (B, new, past, capacity, H, G, E): one new position, a few, and a prompt with and without a past.
    let cases = [
        (1, 1, 0, 1, 1, 1, 1),
        (3, 1, 4, 9, 4, 2, 5),
        (2, 3, 40, 50, 2, 1, 64),
        (1, 1, 260, 261, 6, 3, 24),
        (2, 8, 0, 8, 2, 2, 16),
        (2, 20, 117, 140, 4, 2, 33),
        (1, 250, 7, 300, 2, 1, 48),
    ];
    for (batch, seq, past, capacity, heads, kv_heads, head_dim) in cases {
        let what = format!("cached attention {seq} new after {past}");
        suite.check(&what, 4e-6, &|s| {
            let shape = AttentionShape { batch, seq, heads, kv_heads, head_dim, scale: 0.2 };
            AttentionCached {
                shape,
                past,
                capacity,
                window: None,
                alibi: None,
                q: s.strided(batch * seq, heads * head_dim, 1),
                k_cache: s.mat(batch * capacity, kv_heads * head_dim),
                v_cache: s.strided(batch * capacity, kv_heads * head_dim, 2),
                out: s.mat(batch * seq, heads * head_dim),
            }
            .into()
        });
    }
}

/// Rows of a launch over slots: (slot, first visible position, position).
type Places = &'static [(u32, u32, u32)];

fn slots(s: &mut Setup, places: &[(u32, u32, u32)], window: Option<usize>) -> AttentionSlots {
    let (heads, kv_heads, head_dim, capacity, all) = (4, 2, 24, 90, 5);
    let rows = places.len();
    let shape = AttentionShape { batch: rows, seq: 1, heads, kv_heads, head_dim, scale: 0.2 };
    let numbers: Vec<u32> = places.iter().flat_map(|&(slot, start, at)| [slot, start, at]).collect();
    AttentionSlots {
        shape,
        capacity,
        window,
        alibi: window.map(|_| Alibi::of(heads)),
        places: s.indices(&numbers),
        q: s.strided(rows, heads * head_dim, 1),
        k: s.strided(rows, kv_heads * head_dim, 2),
        v: s.mat(rows, kv_heads * head_dim),
        k_cache: s.mat(all * capacity, kv_heads * head_dim),
        v_cache: s.strided(all * capacity, kv_heads * head_dim, 2),
        out: s.mat(rows, heads * head_dim),
    }
}

pub(crate) fn decoding_of_slots_agrees_with_the_reference(suite: &Suite<'_>) {
    let cases: [Places; 3] = [
        &[(4, 0, 0)],
        &[(3, 0, 89), (0, 0, 17), (2, 5, 40)],
        &[(0, 0, 3), (1, 3, 3), (2, 0, 64), (4, 80, 88)],
    ];
    for places in cases {
        for window in [None, Some(9)] {
            suite.check(&format!("slots {places:?}, window {window:?}"), 4e-6, &|s| {
                slots(s, places, window).into()
            });
        }
    }
}

pub(crate) fn places_outside_the_cache_are_refused(suite: &Suite<'_>) {
    for places in [[(5, 0, 0)], [(0, 0, 90)], [(0, 4, 3)]] {
        let mut s = suite.setup(suite.fastest(), 1);
        let op = slots(&mut s, &places, None);
        let e = s.launch(&op.into()).unwrap_err().to_string();
        assert!(e.contains("attention_slots: places") && e.contains("5 slots of 90 positions"), "{e}");
    }
}

pub(crate) fn large_scores_do_not_overflow(suite: &Suite<'_>) {
    suite.check("attention with scores of some thousands", 2e-3, &|s| {
        let f = forward(s, 7);
        Attention { shape: AttentionShape { scale: 100.0, ..f.shape }, dropout: None, ..f }.into()
    });
}

pub(crate) fn rotations_agree_with_the_reference_and_undo_each_other(suite: &Suite<'_>) {
    for (n, heads, e, theta, far) in
        [(1, 1, 2, 1e4, 0), (5, 3, 6, 1e4, 3), (40, 2, 64, 1e4, 2_000), (33, 4, 34, 5e5, 130_000)]
    {
        let positions: Vec<u32> = (0..n).map(|i| (i as u32 * 7919 + far) % (far + n as u32)).collect();
        for inverse in [false, true] {
            suite.check(&format!("rope {n} {heads} {e} inverse {inverse}"), 1e-6, &|s| {
                let x = s.act(n, heads * e, 3);
                Rope {
                    x,
                    positions: s.indices(&positions),
                    heads,
                    theta,
                    scaling: RopeScaling::None,
                    inverse,
                }
                .into()
            });
        }
        let mut s = suite.setup(suite.fastest(), 2);
        let x = s.mat(n, heads * e);
        let rope = Rope {
            x,
            positions: s.indices(&positions),
            heads,
            theta,
            scaling: RopeScaling::None,
            inverse: false,
        };
        let before = s.read(x);
        s.launch(&rope.into()).unwrap();
        s.launch(&Rope { inverse: true, ..rope }.into()).unwrap();
        let worst = s.read(x).iter().zip(&before).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        assert!(worst < suite.bound(2e-6), "{worst}");
    }
}
