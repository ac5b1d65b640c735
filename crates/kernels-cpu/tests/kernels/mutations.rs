//! Tests of the operator suite: backends with one operator left out.

use crate::devices::Cpu;
use bessemer_operator_suite::{CASES, Devices, run};
use bessemer_tensor::op::Op;
use bessemer_tensor::{Backend, Buffer, BufferSpec, Event, MemoryUse, Stream, TensorError, View};
use bessemer_units::Bytes;
use std::panic::catch_unwind;

/// The CPU with its fastest kernels, which skips every launch of an operator.
struct Without(&'static str);

struct Skipping {
    backend: Box<dyn Backend>,
    operator: &'static str,
}

impl Devices for Without {
    fn reference(&self) -> Box<dyn Backend> {
        Cpu.reference()
    }

    fn variants(&self) -> Vec<&'static str> {
        Cpu.variants().split_off(Cpu.variants().len() - 1)
    }

    fn backend(&self, _: usize, workers: usize) -> Box<dyn Backend> {
        let backend = Cpu.backend(Cpu.variants().len() - 1, workers);
        Box::new(Skipping { backend, operator: self.0 })
    }
}

impl Backend for Skipping {
    fn name(&self) -> &str {
        "skipping"
    }

    fn launch(&mut self, stream: Stream, op: &Op) -> Result<(), TensorError> {
        if op.name() == self.operator { Ok(()) } else { self.backend.launch(stream, op) }
    }

    fn alloc(&mut self, spec: BufferSpec<'_>) -> Result<Buffer, TensorError> {
        self.backend.alloc(spec)
    }

    fn workspace(&self, op: &Op) -> Result<Bytes, TensorError> {
        self.backend.workspace(op)
    }

    fn reserve_workspace(&mut self, bytes: Bytes) -> Result<(), TensorError> {
        self.backend.reserve_workspace(bytes)
    }

    fn record(&mut self, stream: Stream) -> Result<Event, TensorError> {
        self.backend.record(stream)
    }

    fn wait(&mut self, stream: Stream, event: Event) -> Result<(), TensorError> {
        self.backend.wait(stream, event)
    }

    fn sync(&mut self) -> Result<(), TensorError> {
        self.backend.sync()
    }

    fn write_f32(&mut self, dst: View, values: &[f32]) -> Result<(), TensorError> {
        self.backend.write_f32(dst, values)
    }

    fn write_u32(&mut self, dst: View, values: &[u32]) -> Result<(), TensorError> {
        self.backend.write_u32(dst, values)
    }

    fn read_f32(&mut self, src: View, values: &mut [f32]) -> Result<(), TensorError> {
        self.backend.read_f32(src, values)
    }

    fn read_bytes(&mut self, stream: Stream, src: View, bytes: &mut [u8]) -> Result<(), TensorError> {
        self.backend.read_bytes(stream, src, bytes)
    }

    fn write_bytes(&mut self, stream: Stream, dst: View, bytes: &[u8]) -> Result<(), TensorError> {
        self.backend.write_bytes(stream, dst, bytes)
    }

    fn memory(&self) -> MemoryUse {
        self.backend.memory()
    }
}

#[test]
fn every_case_of_an_operator_finds_that_the_operator_is_left_out() {
    let mut survivors = Vec::new();
    for case in CASES {
        for &operator in case.operators {
            if catch_unwind(|| run(case.name, &Without(operator))).is_ok() {
                survivors.push((case.name, operator));
            }
        }
    }
    assert!(survivors.is_empty(), "pass without the operator: {survivors:?}");
}
