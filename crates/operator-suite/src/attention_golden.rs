//! Attention against PyTorch's, with masks made by transformers: `golden/attention/make.py`.

use crate::Suite;
use bessemer_tensor::op::{Alibi, Attention, AttentionBackward, AttentionMask, AttentionShape};

const GOLDEN: &str = include_str!("../../../golden/attention/sdpa.txt");

const SHAPE: AttentionShape =
    AttentionShape { batch: 2, seq: 7, heads: 6, kv_heads: 2, head_dim: 4, scale: 0.5 };

fn values(number: usize, count: usize) -> Vec<f32> {
    (0..count).map(|i| (((i * 7919 + number * 104_729) % 2003) as f64 / 1001.5 - 1.0) as f32).collect()
}

fn golden(case: &str, what: &str) -> Vec<f32> {
    let line = GOLDEN.lines().find_map(|l| l.strip_prefix(&format!("{case} {what} "))).unwrap();
    line.split(' ').map(|x| x.parse().unwrap()).collect()
}

pub(crate) fn every_mask_gives_what_pytorch_gives(suite: &Suite<'_>) {
    for kernels in suite.kernels() {
        for (case, window, alibi, documents) in [
            ("causal", None, false, false),
            ("window", Some(3), false, false),
            ("alibi", None, true, false),
            ("documents", None, false, true),
            ("all", Some(2), true, true),
        ] {
            let mut s = suite.setup(kernels, 2);
            let starts = s.indices(&[0, 0, 0, 3, 3, 5, 5, 0, 1, 1, 1, 1, 1, 6]);
            let mask = AttentionMask {
                window,
                alibi: alibi.then(|| Alibi::of(6)),
                documents: documents.then_some(starts),
                ..AttentionMask::default()
            };
            let (n, hq, hk) = (14, 24, 8);
            let q = s.values(n, hq, &values(1, n * hq));
            let k = s.values(n, hk, &values(2, n * hk));
            let v = s.values(n, hk, &values(3, n * hk));
            let dout = s.values(n, hq, &values(4, n * hq));
            let (out, lse) = (s.mat(n, hq), s.mat(12, 7));
            s.launch(&Attention { shape: SHAPE, q, k, v, out, lse, mask, dropout: None }.into()).unwrap();
            let (dq, dk, dv) = (s.mat(n, hq), s.mat(n, hk), s.mat(n, hk));
            let dropout = None;
            let back = AttentionBackward { shape: SHAPE, q, k, v, out, lse, dout, dq, dk, dv, mask, dropout };
            s.launch(&back.into()).unwrap();
            for (what, view) in [("out", out), ("dq", dq), ("dk", dk), ("dv", dv)] {
                for (i, (found, wanted)) in s.read(view).iter().zip(golden(case, what)).enumerate() {
                    let near = (found - wanted).abs() <= suite.bound(2e-6);
                    assert!(near, "{kernels}, {case}, {what}[{i}]: {found}, PyTorch {wanted}");
                }
            }
        }
    }
}
