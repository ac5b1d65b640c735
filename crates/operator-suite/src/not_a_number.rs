//! A NaN must not vanish: it shows up in what depends on it, and nowhere else.

use crate::{Setup, Suite};
use bessemer_tensor::op::*;

/// Puts a NaN into element (r, c) of a view.
fn spoil(s: &mut Setup, view: bessemer_tensor::View, r: usize, c: usize) {
    s.backend.write_f32(view.rows(r, 1).columns(c, 1), &[f32::NAN]).unwrap();
}

fn spoiled(values: &[f32]) -> Vec<usize> {
    values.iter().enumerate().filter(|v| v.1.is_nan()).map(|v| v.0).collect()
}

pub(crate) fn products_spoil_exactly_the_rows_that_read_it(suite: &Suite<'_>) {
    for kernels in suite.variants() {
        let mut s = suite.setup(kernels, 2);
        let (x, weight, out) = (s.mat(40, 20), s.mat(30, 20), s.mat(40, 30));
        spoil(&mut s, x, 17, 3);
        s.launch(
            &Linear { x, weight, bias: None, activation: None, residual: None, rowwise: false, out }.into(),
        )
        .unwrap();
        assert_eq!(spoiled(&s.read(out)), (17 * 30..18 * 30).collect::<Vec<_>>(), "{kernels}");
    }
}

pub(crate) fn attention_spoils_the_queries_that_see_it(suite: &Suite<'_>) {
    for kernels in suite.variants() {
        let mut s = suite.setup(kernels, 1);
        let shape = AttentionShape { batch: 1, seq: 130, heads: 1, kv_heads: 1, head_dim: 8, scale: 0.3 };
        let (q, k, v, out) = (s.mat(130, 8), s.mat(130, 8), s.mat(130, 8), s.mat(130, 8));
        let lse = s.mat(1, 130);
        spoil(&mut s, k, 120, 2);
        s.launch(
            &Attention { shape, q, k, v, out, lse, mask: AttentionMask::default(), dropout: None }.into(),
        )
        .unwrap();
        assert_eq!(spoiled(&s.read(out)), (120 * 8..130 * 8).collect::<Vec<_>>(), "{kernels}");
        assert_eq!(spoiled(&s.read(lse)), (120..130).collect::<Vec<_>>(), "{kernels}");
    }
}

pub(crate) fn losses_norms_and_sums_of_squares_keep_it(suite: &Suite<'_>) {
    for kernels in suite.variants() {
        let mut s = suite.setup(kernels, 1);
        let (x, weight, loss) = (s.mat(6, 20), s.mat(50, 20), s.mat(1, 6));
        let (targets, one, out) = (s.indices(&[0, 1, 2, 3, 4, 5]), s.mat(1, 1), s.mat(6, 20));
        let (gain, rstd) = (s.mat(1, 20), s.mat(1, 6));
        spoil(&mut s, x, 2, 19);
        s.launch(
            &LinearCrossEntropy { x, weight, targets, loss, scored_lse: None, backward: None, teacher: None }
                .into(),
        )
        .unwrap();
        assert_eq!(spoiled(&s.read(loss)), [2], "{kernels}");
        s.launch(&SumSquares { x, out: one, accumulate: false }.into()).unwrap();
        assert_eq!(spoiled(&s.read(one)), [0], "{kernels}");
        let kind = NormKind::Rms;
        s.launch(&Norm { kind, x, weight: gain, bias: None, out, mean: None, rstd, eps: 1e-5 }.into())
            .unwrap();
        assert_eq!(spoiled(&s.read(out)), (40..60).collect::<Vec<_>>(), "{kernels}");
    }
}
