use crate::Suite;
use bessemer_tensor::op::{Activation, ActivationKind, Add, Copy, Fill, Linear, Op, SumSquares};
use bessemer_tensor::{Buffer, BufferSpec, Stream, TensorError};
use bessemer_units::{Bytes, DType};

pub(crate) fn a_launch_that_needs_more_than_was_reserved_is_refused_by_figures(suite: &Suite<'_>) {
    let mut s = suite.setup(suite.fastest(), 2);
    let op: Op = Linear {
        x: s.mat(64, 64),
        weight: s.mat(64, 64),
        bias: None,
        activation: None,
        residual: None,
        rowwise: false,
        out: s.mat(64, 64),
    }
    .into();
    let wanted = s.backend.workspace(&op).unwrap();
    s.backend.reserve_workspace(Bytes(wanted.0 - 1)).unwrap();
    match s.backend.launch(Stream::Compute, &op).unwrap_err() {
        TensorError::Workspace { op: "linear", wanted: w, reserved } => {
            assert_eq!((w, reserved), (wanted, Bytes(wanted.0 - 1)));
        }
        other => panic!("{other}"),
    }
    s.backend.reserve_workspace(wanted).unwrap();
    s.backend.launch(Stream::Compute, &op).unwrap();
}

pub(crate) fn reduced_types_are_refused_where_there_is_no_kernel_and_converted_where_there_is(
    suite: &Suite<'_>,
) {
    let mut b = suite.setup(suite.fastest(), 1).backend;
    for dtype in [DType::Bf16, DType::F16] {
        let x = b.alloc(BufferSpec { class: "test", name: "x", dtype, len: 4 }).unwrap().vector();
        let y = b.alloc(BufferSpec { class: "test", name: "y", dtype, len: 4 }).unwrap().vector();
        let wide =
            b.alloc(BufferSpec { class: "test", name: "w", dtype: DType::F32, len: 4 }).unwrap().vector();
        let op = Activation { kind: ActivationKind::Relu, x, out: wide };
        let e = b.launch(Stream::Compute, &op.into()).unwrap_err().to_string();
        assert!(
            e.starts_with("activation: ")
                && e.ends_with(&format!("found {}", if dtype == DType::F16 { "f16" } else { "f32" })),
            "{e}"
        );
        let op = SumSquares { x, out: y.columns(0, 1), accumulate: false };
        assert!(matches!(
            b.launch(Stream::Compute, &op.into()),
            Err(TensorError::DType { operand: "out", .. })
        ));
        // 1 + 2^-9 is a tie in bf16 (8 bits) that goes to even, and exact in f16 (11 bits).
        b.write_f32(x, &[1.0, -2.5, 1.001_953_1, 1e30]).unwrap();
        b.launch(Stream::Compute, &Copy { src: x, dst: wide }.into()).unwrap();
        let mut back = [0.0; 4];
        b.read_f32(wide, &mut back).unwrap();
        let mut bytes = [0; 8];
        b.read_bytes(Stream::Compute, x, &mut bytes).unwrap();
        b.write_bytes(Stream::Compute, y, &bytes).unwrap();
        let mut same = [0.0; 4];
        b.read_f32(y, &mut same).unwrap();
        assert_eq!(same, back);
        assert!(matches!(
            b.read_bytes(Stream::Compute, wide, &mut bytes),
            Err(TensorError::Shape { op: "read_bytes", .. })
        ));
        assert!(matches!(
            b.write_bytes(Stream::Compute, x, &bytes[..7]),
            Err(TensorError::Shape { op: "write_bytes", .. })
        ));
        let third = if dtype == DType::F16 { 1.001_953_1 } else { 1.0 };
        assert_eq!(back[..3], [1.0, -2.5, third]);
        assert_eq!(back[3].is_infinite(), dtype == DType::F16, "{}", back[3]);
    }
    let ids = b.alloc(BufferSpec { class: "test", name: "ids", dtype: DType::U32, len: 4 }).unwrap().vector();
    assert!(matches!(b.write_f32(ids, &[0.0; 4]), Err(TensorError::DType { .. })));
    assert!(matches!(
        b.launch(Stream::Compute, &Fill { dst: ids, value: 0.0 }.into()),
        Err(TensorError::DType { .. })
    ));
    b.write_u32(ids, &[1, 2, 3, 4]).unwrap();
    let mut bytes = [0; 8];
    b.read_bytes(Stream::Compute, ids.columns(1, 2), &mut bytes).unwrap();
    assert_eq!(bytes, [2u32.to_ne_bytes(), 3u32.to_ne_bytes()].as_flattened());
    let codes = b.alloc(BufferSpec { class: "test", name: "u8", dtype: DType::U8, len: 6 }).unwrap();
    b.write_bytes(Stream::Compute, codes.matrix(2, 3).columns(1, 2), &[1, 2, 3, 4]).unwrap();
    let mut back = [9; 6];
    b.read_bytes(Stream::Compute, codes.vector(), &mut back).unwrap();
    assert_eq!(back, [0, 1, 2, 0, 3, 4]);
}

/// Views of more than one piece, whose pieces begin and end inside rows, in a wider buffer: what threads share is written as a
/// whole, and nothing beside it.
pub(crate) fn host_copies_by_several_threads_write_the_view_and_nothing_else(suite: &Suite<'_>) {
    const ROWS: usize = 300;
    const COLUMNS: usize = 701;
    let mut b = suite.setup(suite.fastest(), 3).backend;
    let numbers: Vec<u32> = (0..ROWS * COLUMNS).map(|i| 1 + i as u32 % 200).collect();
    let floats: Vec<f32> = numbers.iter().map(|&n| n as f32).collect();
    let wide = COLUMNS + 9;
    for dtype in [DType::F32, DType::Bf16, DType::U8, DType::U32] {
        let spec = BufferSpec { class: "test", name: "wide", dtype, len: ROWS * wide };
        let whole = b.alloc(spec).unwrap().matrix(ROWS, wide);
        let view = whole.columns(4, COLUMNS);
        match dtype {
            DType::U32 => b.write_u32(view, &numbers).unwrap(),
            _ => b.write_f32(view, &floats).unwrap(),
        }
        let size = dtype.size();
        let mut bytes = vec![0xee; ROWS * wide * size];
        b.read_bytes(Stream::Compute, whole, &mut bytes).unwrap();
        let mut inside = Vec::new();
        for row in bytes.chunks_exact(wide * size) {
            let (before, rest) = row.split_at(4 * size);
            let (here, after) = rest.split_at(COLUMNS * size);
            assert!(before.iter().chain(after).all(|&byte| byte == 0), "{dtype}");
            inside.extend_from_slice(here);
        }
        let at = |i: usize| &inside[i * size..(i + 1) * size];
        for (i, &n) in numbers.iter().enumerate() {
            let same = match dtype {
                DType::F32 => at(i) == (n as f32).to_ne_bytes(),
                // Numbers up to 256 are exact in the upper half of f32.
                DType::Bf16 => at(i) == (((n as f32).to_bits() >> 16) as u16).to_ne_bytes(),
                DType::U8 => at(i) == [n as u8],
                _ => at(i) == n.to_ne_bytes(),
            };
            assert!(same, "{dtype}, element {i}");
        }
        // The same bytes written as such are the same buffer.
        let again = b.alloc(BufferSpec { name: "again", ..spec }).unwrap().matrix(ROWS, wide);
        b.write_bytes(Stream::Compute, again.columns(4, COLUMNS), &inside).unwrap();
        let mut same = vec![0xee; bytes.len()];
        b.read_bytes(Stream::Compute, again, &mut same).unwrap();
        assert!(same == bytes, "{dtype}");
    }
}

pub(crate) fn host_copies_follow_rows_and_refuse_wrong_counts(suite: &Suite<'_>) {
    let mut s = suite.setup(suite.fastest(), 1);
    let v = s.strided(3, 4, 2);
    let values: Vec<f32> = (0..12).map(|i| i as f32).collect();
    s.backend.write_f32(v, &values).unwrap();
    assert_eq!(s.read(v), values);
    assert_eq!(s.read(v.columns(1, 2).rows(1, 2)), [5.0, 6.0, 9.0, 10.0]);
    assert!(s.backend.write_f32(v, &values[..11]).is_err());
    assert!(s.backend.read_f32(v, &mut [0.0; 13]).is_err());
    assert!(s.backend.write_u32(v, &[0; 12]).is_err());
}

pub(crate) fn foreign_and_overflowing_views_are_refused(suite: &Suite<'_>) {
    let mut s = suite.setup(suite.fastest(), 1);
    let a = s.mat(2, 2);
    let foreign = Buffer { id: 99, len: 4, dtype: DType::F32 }.matrix(2, 2);
    assert!(s.backend.launch(Stream::Compute, &Add { a, b: foreign, out: a }.into()).is_err());
    let huge = bessemer_tensor::View { rows: usize::MAX, stride: usize::MAX, ..a };
    assert!(s.backend.launch(Stream::Compute, &Fill { dst: huge, value: 0.0 }.into()).is_err());
}

pub(crate) fn empty_views_are_no_work(suite: &Suite<'_>) {
    let mut s = suite.setup(suite.fastest(), 2);
    let a = s.mat(4, 4).rows(0, 0);
    let b = s.mat(4, 4).rows(0, 0);
    s.launch(&Add { a, b, out: a }.into()).unwrap();
    let weight = s.mat(3, 4);
    let out = s.mat(4, 3).rows(0, 0);
    s.launch(
        &Linear { x: a, weight, bias: None, activation: None, residual: None, rowwise: false, out }.into(),
    )
    .unwrap();
}
