//! A device whose launches a test intercepts.

use bessemer_tensor::op::Op;
use bessemer_tensor::{
    Backend, Buffer, BufferSpec, Event, MemoryUse, PendingRead, Stream, TensorError, View,
};
use bessemer_units::Bytes;

/// Replacement of a launch.
pub(crate) type Launch = Box<dyn FnMut(&mut dyn Backend, Stream, &Op) -> Result<(), TensorError> + Send>;

/// A device that passes each launch to `launch`.
pub(crate) struct Device {
    pub(crate) inner: Box<dyn Backend>,
    pub(crate) launch: Launch,
}

impl Backend for Device {
    fn name(&self) -> &str {
        self.inner.name()
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
        (self.launch)(&mut *self.inner, stream, op)
    }
    fn record(&mut self, stream: Stream) -> Result<Event, TensorError> {
        self.inner.record(stream)
    }
    fn wait(&mut self, stream: Stream, event: Event) -> Result<(), TensorError> {
        self.inner.wait(stream, event)
    }
    fn sync(&mut self) -> Result<(), TensorError> {
        self.inner.sync()
    }
    fn write_f32(&mut self, dst: View, values: &[f32]) -> Result<(), TensorError> {
        self.inner.write_f32(dst, values)
    }
    fn write_u32(&mut self, dst: View, values: &[u32]) -> Result<(), TensorError> {
        self.inner.write_u32(dst, values)
    }
    fn read_f32(&mut self, src: View, values: &mut [f32]) -> Result<(), TensorError> {
        self.inner.read_f32(src, values)
    }
    fn read_bytes(&mut self, stream: Stream, src: View, bytes: &mut [u8]) -> Result<(), TensorError> {
        self.inner.read_bytes(stream, src, bytes)
    }
    fn begin_read(
        &mut self,
        sources: Vec<(View, usize)>,
        values: Vec<f32>,
    ) -> Result<PendingRead, TensorError> {
        self.inner.begin_read(sources, values)
    }
    fn write_bytes(&mut self, stream: Stream, dst: View, bytes: &[u8]) -> Result<(), TensorError> {
        self.inner.write_bytes(stream, dst, bytes)
    }
    fn memory(&self) -> MemoryUse {
        self.inner.memory()
    }
}
