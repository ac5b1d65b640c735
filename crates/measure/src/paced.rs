//! A device that computes nothing and takes the time: for more ranks than this machine has cores.

use bessemer_tensor::null::NullBackend;
use bessemer_tensor::op::Op;
use bessemer_tensor::{Backend, Buffer, BufferSpec, Event, MemoryUse, Stream, TensorError, View};
use bessemer_units::Bytes;
use std::time::{Duration, Instant};

/// Operations in the time of a byte to or from the device's memory.
const FLOPS_PER_BYTE: f64 = 10.0;

/// A null device whose launches sleep as long as a device of this rate computes, or reads and writes the operands.
pub(crate) struct Paced {
    inner: NullBackend,
    /// Floating-point operations a second.
    rate: f64,
    /// End of the last launch, if nothing but launches came after it. A sleep that was too long shortens the next one.
    until: Option<Instant>,
}

impl Paced {
    pub(crate) fn new(rate: f64) -> Paced {
        Paced { inner: NullBackend::new(), rate, until: None }
    }

    /// The host works, or has waited.
    fn host<T>(&mut self, work: impl FnOnce(&mut NullBackend) -> T) -> T {
        self.until = None;
        work(&mut self.inner)
    }
}

impl Backend for Paced {
    fn name(&self) -> &str {
        "paced"
    }

    fn alloc(&mut self, spec: BufferSpec<'_>) -> Result<Buffer, TensorError> {
        self.inner.alloc(spec)
    }

    fn workspace(&self, op: &Op) -> Result<Bytes, TensorError> {
        self.inner.workspace(op)
    }

    fn reserve_workspace(&mut self, bytes: Bytes) -> Result<(), TensorError> {
        self.inner.reserve_workspace(bytes)
    }

    fn launch(&mut self, stream: Stream, op: &Op) -> Result<(), TensorError> {
        let begun = self.until.unwrap_or_else(Instant::now);
        self.inner.launch(stream, op)?;
        let work = op.flops().0.max(FLOPS_PER_BYTE * op.bytes().0 as f64);
        let until = begun + Duration::from_secs_f64(work / self.rate);
        std::thread::sleep(until.saturating_duration_since(Instant::now()));
        self.until = Some(until);
        Ok(())
    }

    fn record(&mut self, stream: Stream) -> Event {
        self.inner.record(stream)
    }

    fn wait(&mut self, stream: Stream, event: Event) {
        self.inner.wait(stream, event);
    }

    fn sync(&mut self) -> Result<(), TensorError> {
        self.inner.sync()
    }

    fn write_f32(&mut self, dst: View, values: &[f32]) -> Result<(), TensorError> {
        self.host(|inner| inner.write_f32(dst, values))
    }

    fn write_u32(&mut self, dst: View, values: &[u32]) -> Result<(), TensorError> {
        self.host(|inner| inner.write_u32(dst, values))
    }

    fn read_f32(&mut self, src: View, values: &mut [f32]) -> Result<(), TensorError> {
        self.host(|inner| inner.read_f32(src, values))
    }

    fn read_bytes(&mut self, src: View, bytes: &mut [u8]) -> Result<(), TensorError> {
        self.host(|inner| inner.read_bytes(src, bytes))
    }

    fn write_bytes(&mut self, dst: View, bytes: &[u8]) -> Result<(), TensorError> {
        self.host(|inner| inner.write_bytes(dst, bytes))
    }

    fn memory(&self) -> MemoryUse {
        self.inner.memory()
    }
}
