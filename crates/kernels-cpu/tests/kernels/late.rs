//! The device of the operator suite that runs streams late: its results, its findings, and its errors.

use crate::devices::instruction_set::with_rung;
use bessemer_kernels_cpu::{CpuConfig, Rung};
use bessemer_operator_suite::{LateStreams, Lateness};
use bessemer_tensor::op::{Add, Embedding, Fill, Op};
use bessemer_tensor::{Backend, BufferSpec, Stream, TensorError, View};
use bessemer_units::DType;

fn late(lateness: Lateness) -> LateStreams {
    let config = CpuConfig { threads: 1, ..CpuConfig::default() };
    LateStreams::new(Box::new(with_rung(config, Rung::detect())), lateness)
}

fn vector(backend: &mut dyn Backend, dtype: DType, len: usize) -> View {
    backend.alloc(BufferSpec { class: "test", name: "x", dtype, len }).unwrap().vector()
}

fn fill(backend: &mut dyn Backend, dst: View, value: f32) -> Result<(), TensorError> {
    backend.launch(Stream::Compute, &Fill { dst, value }.into())
}

fn order(backend: &mut dyn Backend, first: Stream, then: Stream) {
    let event = backend.record(first).unwrap();
    backend.wait(then, event).unwrap();
}

fn bytes_of(values: [f32; 2]) -> [u8; 8] {
    let mut bytes = [0; 8];
    bytes.chunks_exact_mut(4).zip(values).for_each(|(to, value)| to.copy_from_slice(&value.to_ne_bytes()));
    bytes
}

/// A value leaves, another comes in its place, and both are added: the sums, and how many events they needed.
fn sums(device: &mut LateStreams) -> Result<[f32; 2], TensorError> {
    let [x, y] = [(); 2].map(|()| vector(device, DType::F32, 2));
    fill(device, x, 1.0)?;
    order(device, Stream::Compute, Stream::ToHost);
    let mut bytes = [0; 8];
    device.read_bytes(Stream::ToHost, x, &mut bytes)?;
    fill(device, y, 10.0)?;
    device.launch(Stream::Compute, &Add { a: x, b: y, out: y }.into())?;
    order(device, Stream::Compute, Stream::ToDevice);
    device.write_bytes(Stream::ToDevice, x, &bytes_of([5.0, 6.0]))?;
    order(device, Stream::ToDevice, Stream::Compute);
    device.launch(Stream::Compute, &Add { a: x, b: y, out: y }.into())?;
    let mut found = [0.0; 2];
    device.read_f32(y, &mut found)?;
    let left = f32::from_ne_bytes(*bytes.first_chunk().unwrap());
    Ok([found[0] * left, found[1] * left])
}

#[test]
fn a_missing_event_changes_values() {
    for lateness in Lateness::EACH {
        let mut device = late(lateness);
        assert_eq!(sums(&mut device).unwrap(), [16.0, 17.0], "{lateness:?}");
        // No new event to wait for.
        order(&mut device, Stream::ToDevice, Stream::Compute);
        assert_eq!(device.waits(), 3);
    }
    for omitted in 0..3 {
        let found = |lateness| sums(&mut late(lateness).without_wait(omitted)).unwrap() != [16.0, 17.0];
        assert!(Lateness::EACH.into_iter().any(found), "wait {omitted}");
    }
}

#[test]
fn an_index_outside_its_table_is_found_after_the_launch() {
    let mut device = late(Lateness::All);
    let [table, out] = [3 * 4, 2 * 4].map(|len| vector(&mut device, DType::F32, len).buffer);
    let ids = vector(&mut device, DType::U32, 2);
    device.write_u32(ids, &[1, 3]).unwrap();
    let (table, out) = (table.matrix(3, 4), out.matrix(2, 4));
    let op: Op = Embedding { table, tensor_shard: None, ids, positions: None, out }.into();
    device.launch(Stream::Compute, &op).unwrap();
    let error = device.read_f32(out, &mut [0.0; 8]).unwrap_err();
    assert!(
        matches!(error, TensorError::LateIndex { operand: "ids", at: 1, index: 3, len: 3, .. }),
        "{error}"
    );
    assert!(error.to_string().contains("found after the launch"), "{error}");
    // Everything that it holds is unusable.
    for later in [device.sync(), device.launch(Stream::Compute, &op), fill(&mut device, out, 0.0)] {
        match later.unwrap_err() {
            TensorError::Device { problem, .. } => assert_eq!(*problem, *error.to_string()),
            other => panic!("{other}"),
        }
    }
}
