//! The one trait between models and devices.

use crate::op::Op;
use crate::pending::all_finite;
use crate::{Buffer, PendingRead, TensorError, View};
use bessemer_units::{Bytes, DType};

/// What a buffer is for: shown in memory reports and errors.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct BufferSpec<'a> {
    /// Who asks, e.g. "weights", "gradients", "adamw", "activations".
    pub class: &'static str,
    /// Which tensor, e.g. "layers.3.attention.qkv.weight".
    pub name: &'a str,
    /// Element type.
    pub dtype: DType,
    /// Elements.
    pub len: usize,
}

/// A queue of operators and copies that run in order, by its role. What stands in two streams runs in any order, unless one of them
/// waits for the other ([`Backend::wait`]). A device may run several of them as one.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Stream {
    /// Operators, and every copy that names no stream.
    #[default]
    Compute,
    /// Copies to host memory.
    ToHost,
    /// Copies from host memory.
    ToDevice,
    /// Collectives of the ranks along one axis, by the caller's number of the axis.
    Axis(u8),
}

/// A point in a stream that another stream can wait for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Event(pub u64);

/// Memory held, by class, largest first.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct MemoryUse {
    /// (class, bytes).
    pub classes: Vec<(&'static str, Bytes)>,
    /// Scratch memory shared by all operators.
    pub workspace: Bytes,
}

impl MemoryUse {
    /// Everything together.
    pub fn total(&self) -> Bytes {
        self.classes.iter().map(|c| c.1).sum::<Bytes>() + self.workspace
    }
}

/// A device. Object-safe: one dynamic call per operator costs nothing at these sizes.
///
/// Life of a backend: `alloc` everything and `reserve_workspace` once (planning), then `launch` for the whole run.
/// Operators launched on one stream run in order. Copies that name no stream stand in [`Stream::Compute`]; every copy returns when its
/// host memory may be used again, a copy to the host when the values are there. Results do not depend on the number of threads.
///
/// A device may compute later than it launches. [`TensorError::Device`] and [`TensorError::LateIndex`] may then come from any later
/// call, and the buffers hold nothing that can be used.
pub trait Backend: Send {
    /// Short name for messages: "cpu", "null".
    fn name(&self) -> &str;

    /// A zeroed buffer in the arena. Only while planning: a warm step never allocates.
    fn alloc(&mut self, spec: BufferSpec<'_>) -> Result<Buffer, TensorError>;

    /// Scratch bytes that `op` needs on this backend.
    fn workspace(&self, op: &Op) -> Result<Bytes, TensorError>;

    /// Makes the shared scratch memory at least this large.
    fn reserve_workspace(&mut self, bytes: Bytes) -> Result<(), TensorError>;

    /// Puts an operator at the end of a stream. Shapes are checked here; numbers may be computed later.
    fn launch(&mut self, stream: Stream, op: &Op) -> Result<(), TensorError>;

    /// Marks the present end of a stream.
    ///
    /// # Errors
    /// A device that failed.
    fn record(&mut self, stream: Stream) -> Result<Event, TensorError>;

    /// What is put into `stream` from now on, copies too, waits for `event`.
    ///
    /// # Errors
    /// A device that failed.
    fn wait(&mut self, stream: Stream, event: Event) -> Result<(), TensorError>;

    /// Returns when everything launched has been computed.
    fn sync(&mut self) -> Result<(), TensorError>;

    /// Named copy host -> device, f32 values converted to the view's type. `values` is row-major without gaps.
    fn write_f32(&mut self, dst: View, values: &[f32]) -> Result<(), TensorError>;

    /// Named copy host -> device of indices.
    fn write_u32(&mut self, dst: View, values: &[u32]) -> Result<(), TensorError>;

    /// Named copy device -> host, converted to f32, row-major without gaps.
    fn read_f32(&mut self, src: View, values: &mut [f32]) -> Result<(), TensorError>;

    /// Named copy device -> host of elements of any type as they are, row-major without gaps, in the byte order of the host: what they
    /// are at the present end of `stream`.
    fn read_bytes(&mut self, stream: Stream, src: View, bytes: &mut [u8]) -> Result<(), TensorError>;

    /// Begins to read views into `values`, converted to f32, each to the place that stands beside it, while what is launched from now on
    /// is computed. They are read as they are now: an operator or a write that would change a buffer of one waits until the read is
    /// over. A backend that cannot do so reads at once.
    fn begin_read(
        &mut self,
        sources: Vec<(View, usize)>,
        mut values: Vec<f32>,
    ) -> Result<PendingRead, TensorError> {
        let mut finite = true;
        for (view, to) in sources {
            let found = values.len();
            let here = to.checked_add(view.len()).and_then(|end| values.get_mut(to..end));
            let here = here.ok_or_else(|| TensorError::Shape {
                op: "begin_read",
                operand: "values",
                wanted: format!("room for {} values from {to} on", view.len()),
                found: found.to_string(),
            })?;
            self.read_f32(view, here)?;
            finite &= all_finite(here);
        }
        Ok(PendingRead::over(values, finite))
    }

    /// Named copy host -> device of elements of any type as they are, at the end of `stream`.
    fn write_bytes(&mut self, stream: Stream, dst: View, bytes: &[u8]) -> Result<(), TensorError>;

    /// Memory held now.
    fn memory(&self) -> MemoryUse;
}

impl dyn Backend + '_ {
    /// What is put into `then` from now on waits for what is in `first` now.
    ///
    /// # Errors
    /// A device that failed.
    pub fn order(&mut self, first: Stream, then: Stream) -> Result<(), TensorError> {
        let event = self.record(first)?;
        self.wait(then, event)
    }
}
