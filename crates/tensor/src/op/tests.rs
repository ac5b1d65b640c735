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
