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
    let pairs = |window, past: (usize, Option<usize>)| {
        let seq = if past.1.is_some() { 4 } else { 5 };
        let shape = AttentionShape { batch: 1, seq, heads: 1, kv_heads: 1, head_dim: 1, scale: 1.0 };
        shape.product(past, window) / 2.0
    };
    // Queries 2, 3 and 7, 8.
    assert_eq!([pairs(None, (2, Some(7))), pairs(Some(4), (2, Some(7)))], [24.0, 15.0]);
    assert_eq!(
        [pairs(None, (0, None)), pairs(Some(2), (0, None)), pairs(Some(9), (0, None))],
        [15.0, 9.0, 15.0]
    );
    assert_eq!(
        [pairs(None, (3, None)), pairs(Some(2), (3, None)), pairs(Some(5), (3, None))],
        [30.0, 10.0, 24.0]
    );
}
