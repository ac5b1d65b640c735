//! A backend around another one, which hands every call on and shows launches to an observer.

use bessemer_tensor::op::Op;
use bessemer_tensor::{Backend, Buffer, BufferSpec, Event, MemoryUse, Stream, TensorError, View};
use bessemer_units::Bytes;

/// Observer of the calls of a backend.
pub trait Observer: Send {
    /// Launches `op` through `launch`.
    fn launch(
        &mut self,
        op: &Op,
        launch: &mut dyn FnMut() -> Result<(), TensorError>,
    ) -> Result<(), TensorError>;

    /// The host writes or reads, for which it may have waited.
    fn host(&mut self) {}
}

/// A backend with an observer.
pub struct Observed<O> {
    inner: Box<dyn Backend>,
    pub(crate) observer: O,
}

impl<O> Observed<O> {
    pub(crate) fn around(inner: Box<dyn Backend>, observer: O) -> Self {
        Observed { inner, observer }
    }
}

impl<O: Observer> Observed<O> {
    fn host(&mut self) -> &mut dyn Backend {
        self.observer.host();
        &mut *self.inner
    }
}

impl<O: Observer> Backend for Observed<O> {
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
        let inner = &mut self.inner;
        self.observer.launch(op, &mut || inner.launch(stream, op))
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
        self.host().write_f32(dst, values)
    }

    fn write_u32(&mut self, dst: View, values: &[u32]) -> Result<(), TensorError> {
        self.host().write_u32(dst, values)
    }

    fn read_f32(&mut self, src: View, values: &mut [f32]) -> Result<(), TensorError> {
        self.host().read_f32(src, values)
    }

    fn read_bytes(&mut self, stream: Stream, src: View, bytes: &mut [u8]) -> Result<(), TensorError> {
        self.host().read_bytes(stream, src, bytes)
    }

    fn write_bytes(&mut self, stream: Stream, dst: View, bytes: &[u8]) -> Result<(), TensorError> {
        self.host().write_bytes(stream, dst, bytes)
    }

    fn memory(&self) -> MemoryUse {
        self.inner.memory()
    }
}
