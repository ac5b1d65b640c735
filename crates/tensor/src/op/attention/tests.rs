use super::*;
use crate::Buffer;
use crate::op::Op;
use bessemer_units::DType;

fn view(id: u32, dtype: DType, rows: usize, cols: usize) -> View {
    Buffer { id, len: rows * cols, dtype }.matrix(rows, cols)
}

fn attention(heads: usize, kv_heads: usize) -> Attention {
    let f32s = |id, rows, cols| view(id, DType::F32, rows, cols);
    Attention {
        shape: AttentionShape { batch: 1, seq: 5, heads, kv_heads, head_dim: 2, scale: 1.0 },
        q: f32s(0, 5, 2 * heads),
        k: f32s(1, 5, 2 * kv_heads),
        v: f32s(2, 5, 2 * kv_heads),
        out: f32s(3, 5, 2 * heads),
        lse: f32s(4, heads, 5),
        mask: AttentionMask::default(),
        dropout: None,
    }
}

fn message(op: Attention) -> String {
    Op::from(op).check().unwrap_err().to_string()
}

#[test]
fn slopes_are_those_of_the_paper() {
    let eight: Vec<f32> = (0..8).map(|h| Alibi::of(8).slope(h)).collect();
    assert_eq!(eight, [0.5, 0.25, 0.125, 0.0625, 0.03125, 0.015625, 0.0078125, 0.00390625]);
    // `transformers.models.bloom.modeling_bloom._get_alibi_slopes(6)` and `(12)`.
    let six: Vec<f32> = (0..6).map(|h| Alibi::of(6).slope(h)).collect();
    assert_eq!(six, [0.25, 0.0625, 0.015625, 0.00390625, 0.5, 0.125]);
    let last: Vec<f32> = (8..12).map(|h| Alibi::of(12).slope(h)).collect();
    for (found, wanted) in last.iter().zip([0.707_106_77, 0.353_553_38, 0.176_776_69, 0.088_388_346]) {
        assert!((found - wanted).abs() < 1e-7, "{last:?}");
    }
    assert_eq!(Alibi { heads: 8, first: 3 }.slope(2), Alibi::of(8).slope(5));
}

#[test]
fn grouped_heads_must_divide_and_slopes_must_exist() {
    let e = message(attention(3, 2));
    assert!(e.contains("divisor of 3 query heads"), "{e}");
    let mask = AttentionMask { alibi: Some(Alibi { heads: 4, first: 1 }), ..AttentionMask::default() };
    let e = message(Attention { mask, ..attention(4, 2) });
    assert_eq!(e, "attention: alibi should be that of 4 heads from 1 on, found a layer of 4 heads");
    let mask = DropoutMask { p: 0.5, counters: view(7, DType::U32, 1, DropoutMask::WORDS), first: 0 };
    let dropout = Some(AttentionDropout { first: 5, ..AttentionDropout::of(8, mask) });
    let e = message(Attention { dropout, ..attention(4, 2) });
    assert_eq!(e, "attention: dropout should be that of 4 heads from 5 on, found a layer of 8 heads");
}

#[test]
fn windows_and_documents_are_checked() {
    let mask = AttentionMask { window: Some(0), ..AttentionMask::default() };
    let e = message(Attention { mask, ..attention(4, 2) });
    assert!(e.contains("window should be at least 1"), "{e}");
    let documents = |view| AttentionMask { documents: Some(view), ..AttentionMask::default() };
    Op::from(Attention { mask: documents(view(5, DType::U32, 1, 5)), ..attention(4, 2) }).check().unwrap();
    let e = message(Attention { mask: documents(view(5, DType::U32, 1, 4)), ..attention(4, 2) });
    assert_eq!(e, "attention: documents should be [1, 5], found [1, 4]");
    let e = message(Attention { mask: documents(view(5, DType::F32, 1, 5)), ..attention(4, 2) });
    assert!(e.contains("documents should be u32 indices"), "{e}");
}

#[test]
fn flops_count_the_visible_pairs() {
    let pairs = |window, queries: Positions, keys: Option<(usize, SomeKeys)>| {
        let seq = if queries.later.is_some() { 4 } else { 5 };
        let shape = AttentionShape { batch: 1, seq, heads: 1, kv_heads: 1, head_dim: 1, scale: 1.0 };
        let (count, keys) = keys.map_or((10, None), |(count, keys)| (count, Some(keys)));
        shape.product(&AttentionMask { queries, keys, window, ..AttentionMask::default() }, count) / 2.0
    };
    // Queries 2, 3 and 7, 8.
    let apart = Positions { first: 2, later: Some(7), stride: 1 };
    assert_eq!([pairs(None, apart, None), pairs(Some(4), apart, None)], [24.0, 15.0]);
    let of = |window, first: usize| pairs(window, first.into(), None);
    assert_eq!([of(None, 0), of(Some(2), 0), of(Some(9), 0)], [15.0, 9.0, 15.0]);
    assert_eq!([of(None, 3), of(Some(2), 3), of(Some(5), 3)], [30.0, 10.0, 24.0]);
    // Queries 3 to 7, keys 5 to 8; and keys 1, 4, 7, 10.
    let keys = |positions| Some((4, SomeKeys { positions, seq: 12 }));
    let of = |window, positions| pairs(window, 3.into(), keys(positions));
    assert_eq!([of(None, 5.into()), of(Some(2), 5.into())], [6.0, 5.0]);
    let thirds = Positions { first: 1, later: None, stride: 3 };
    assert_eq!([of(None, thirds), of(Some(3), thirds)], [10.0, 5.0]);
    // No query is at or behind them.
    assert_eq!(of(None, 8.into()), 0.0);
}

/// Every pair of stretches, with strides that divide each other and that do not, and windows.
#[test]
fn visible_pairs_are_those_that_are_counted_one_by_one() {
    let of = |first, later, stride| Positions { first, later, stride };
    let all = [
        of(0, None, 1),
        of(5, None, 1),
        of(1, Some(9), 1),
        of(2, None, 4),
        of(3, None, 2),
        of(2, Some(20), 3),
        of(40, None, 1),
    ];
    for (queries, keys) in all.iter().flat_map(|q| all.iter().map(move |k| (*q, *k))) {
        for window in [None, Some(1), Some(4), Some(17), Some(100)] {
            let shape = AttentionShape { batch: 2, seq: 6, heads: 3, kv_heads: 1, head_dim: 5, scale: 1.0 };
            let positions = |p: Positions| (0..6).map(move |i| p.at(i, 6));
            let sees = |p: usize, s: usize| s <= p && window.is_none_or(|w| s + w > p);
            let visible = |p| positions(keys).filter(move |s| sees(p, *s)).count();
            let counted: usize = positions(queries).map(visible).sum();
            let some = Some(SomeKeys { positions: keys, seq: 64 });
            let mask = AttentionMask { queries, keys: some, window, ..AttentionMask::default() };
            let found = shape.product(&mask, 6);
            assert_eq!(found, (2 * 2 * 3 * 5 * counted) as f64, "{queries:?} {keys:?} {window:?}");
        }
    }
}

#[test]
fn positions_are_counted_and_checked() {
    for positions in [
        Positions::from(4),
        Positions { first: 1, later: Some(9), stride: 1 },
        Positions { first: 2, later: None, stride: 4 },
        Positions { first: 2, later: Some(20), stride: 3 },
    ] {
        let all: Vec<usize> = (0..6).map(|i| positions.at(i, 6)).collect();
        assert!(all.is_sorted() && positions.end(6) == Some(all[5] + 1), "{all:?}");
        for position in 0..40 {
            let before = all.iter().filter(|p| **p < position).count();
            assert_eq!(positions.before(position, 6), before, "{positions:?} before {position}");
        }
        for i in 0..6 {
            let follow = |n: &usize| *n == i || all[*n] == all[*n - 1] + 1;
            let run = (i..6).take_while(follow).count();
            assert!(positions.run(i, 6) <= run && (positions.stride > 1 || positions.run(i, 6) == run));
        }
    }
    let with = |queries, keys| {
        let mask = AttentionMask { queries, keys, ..AttentionMask::default() };
        Op::from(Attention { mask, ..attention(4, 2) })
            .check()
            .map_or_else(|e| e.to_string(), |()| "fine".into())
    };
    let keys = |positions, seq| Some(SomeKeys { positions, seq });
    assert_eq!(with(3.into(), keys(5.into(), 10)), "fine");
    for (queries, keys) in
        [(6, keys(5.into(), 10)), (3, keys(6.into(), 10)), (usize::MAX, keys(0.into(), 10))]
    {
        let e = with(queries.into(), keys);
        assert!(e.contains("keys and queries at positions of a sequence of 10"), "{e}");
    }
    let e = with(Positions { stride: 0, ..Positions::default() }, None);
    assert!(e.contains("a stride of at least 1"), "{e}");
}
