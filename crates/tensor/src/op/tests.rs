use super::*;
use crate::Buffer;
use bessemer_units::DType;

fn f32s(id: u32, rows: usize, cols: usize) -> View {
    Buffer { id, len: rows * cols, dtype: DType::F32 }.matrix(rows, cols)
}

fn linear() -> Linear {
    Linear {
        x: f32s(0, 5, 3),
        weight: f32s(1, 4, 3),
        bias: None,
        activation: None,
        residual: None,
        rowwise: false,
        out: f32s(2, 5, 4),
    }
}

#[test]
fn a_linear_map_counts_two_flops_per_multiply_add() {
    let op = Op::from(linear());
    op.check().unwrap();
    assert_eq!(op.flops().0, 2.0 * 5.0 * 3.0 * 4.0);
    assert_eq!(op.bytes().0, 4 * (15 + 12 + 20));
}

#[test]
fn wrong_shapes_and_overlaps_are_named() {
    let e = Op::from(Linear { out: f32s(2, 5, 3), ..linear() }).check().unwrap_err().to_string();
    assert_eq!(e, "linear: out should be [5, 4], found [5, 3]");
    let x = f32s(0, 5, 4);
    let e =
        Op::from(Linear { x, weight: f32s(1, 4, 4), out: x, ..linear() }).check().unwrap_err().to_string();
    assert!(e.contains("out overlaps x"), "{e}");
}

#[test]
fn in_place_is_allowed_only_where_the_operator_says_so() {
    let (a, b) = (f32s(0, 2, 2), f32s(1, 2, 2));
    Op::from(Add { a, b, out: a }).check().unwrap();
    let half = Buffer { id: 0, len: 8, dtype: DType::F32 };
    let shifted = View { buffer: half, offset: 1, rows: 2, cols: 2, stride: 2 };
    let at_zero = View { offset: 0, ..shifted };
    assert!(Op::from(Add { a: at_zero, b, out: shifted }).check().is_err(), "partial overlap");
    assert!(Op::from(Activation { kind: ActivationKind::Relu, x: a, out: a }).check().is_err());
}

/// What is bound to memory are exactly the operands: an operand that [`Op::for_each_view`] passes over would go on naming
/// the buffer of a recording.
#[test]
fn every_operand_is_among_the_views() {
    let (x, dy, dw, db) = (f32s(0, 5, 3), f32s(1, 5, 4), f32s(2, 4, 3), f32s(3, 1, 4));
    let norm = NormBackward {
        kind: NormKind::Layer,
        x: f32s(0, 5, 6),
        weight: f32s(1, 1, 3),
        mean: Some(f32s(2, 2, 5)),
        rstd: f32s(3, 2, 5),
        dout: f32s(4, 5, 6),
        dx: f32s(5, 5, 6),
        accumulate_dx: true,
        dweight: f32s(6, 1, 3),
        dbias: Some(f32s(7, 1, 3)),
        accumulate: false,
    };
    let ops = [
        Op::from(linear()),
        LinearBackwardWeight { x, dy, dweight: dw, dbias: Some(db), accumulate: true }.into(),
        norm.into(),
        Fill { dst: x, value: 0.0 }.into(),
    ];
    for mut op in ops {
        op.check().unwrap();
        let wanted = op.operands().iter().count();
        let mut seen = Vec::new();
        op.for_each_view(&mut |view| {
            seen.push(view.buffer.id);
            view.buffer.id += 100;
        });
        seen.sort_unstable();
        seen.dedup();
        assert_eq!(seen.len(), wanted, "{}", op.name());
        assert!(op.operands().iter().all(|o| o.view.buffer.id >= 100), "{}", op.name());
    }
    let head = norm.head(1);
    assert_eq!((head.x.offset, head.rstd.offset, head.accumulate), (3, 5, true));
    Op::from(head).check().unwrap();
}
