//! A backend that computes nothing and counts everything: memory by class, operators, FLOPs and bytes moved.
//!
//! It makes a dry run of any size possible, and is how a plan knows its memory before work starts.

use crate::backend::{Backend, BufferSpec, Event, MemoryUse, Stream};
use crate::op::Op;
use crate::{Buffer, TensorError, View};
use bessemer_units::{Bytes, Flops};
use std::collections::BTreeMap;

/// Launches of the operators of one name.
#[derive(Debug, Default, Clone, Copy, PartialEq)]
pub struct Count {
    /// Launches.
    pub launches: u64,
    /// Floating-point operations.
    pub flops: Flops,
    /// Bytes read and written.
    pub bytes: Bytes,
}

/// The counting backend.
#[derive(Debug, Default)]
pub struct NullBackend {
    /// Of each buffer.
    bytes: Vec<u64>,
    classes: BTreeMap<&'static str, u64>,
    workspace: u64,
    counts: BTreeMap<&'static str, Count>,
    events: u64,
    launched: Option<Vec<Op>>,
}

impl NullBackend {
    /// An empty one.
    pub fn new() -> NullBackend {
        NullBackend::default()
    }

    /// Launches by operator name since the start or the last [`NullBackend::reset_counts`].
    pub fn counts(&self) -> &BTreeMap<&'static str, Count> {
        &self.counts
    }

    /// FLOPs of all launches.
    pub fn flops(&self) -> Flops {
        self.counts.values().map(|c| c.flops).sum()
    }

    /// Forgets the launches, keeps the memory.
    pub fn reset_counts(&mut self) {
        self.counts.clear();
    }

    /// Keeps every launch from now on.
    pub fn keep_launches(&mut self) {
        self.launched = Some(Vec::new());
    }

    /// The launches since they are kept, or since the last call.
    pub fn take_launches(&mut self) -> Vec<Op> {
        self.launched.as_mut().map(std::mem::take).unwrap_or_default()
    }

    fn inside(&self, view: &View) -> Result<(), TensorError> {
        let known = self.bytes.get(view.buffer.id as usize).filter(|bytes| **bytes == view.buffer.bytes());
        let len = if known.is_some() { view.buffer.len } else { 0 };
        if known.is_some() && view.end() <= len {
            return view.check();
        }
        Err(TensorError::OutOfBounds { buffer: view.buffer.id, end: view.end(), len })
    }
}

impl Backend for NullBackend {
    fn name(&self) -> &str {
        "null"
    }

    fn alloc(&mut self, spec: BufferSpec<'_>) -> Result<Buffer, TensorError> {
        let buffer = Buffer { id: self.bytes.len() as u32, len: spec.len, dtype: spec.dtype };
        self.bytes.push(buffer.bytes());
        *self.classes.entry(spec.class).or_default() += buffer.bytes();
        Ok(buffer)
    }

    fn workspace(&self, _op: &Op) -> Result<Bytes, TensorError> {
        Ok(Bytes(0))
    }

    fn reserve_workspace(&mut self, bytes: Bytes) -> Result<(), TensorError> {
        self.workspace = self.workspace.max(bytes.0);
        Ok(())
    }

    fn launch(&mut self, _stream: Stream, op: &Op) -> Result<(), TensorError> {
        op.check()?;
        for o in op.operands().iter() {
            self.inside(&o.view)?;
        }
        let c = self.counts.entry(op.name()).or_default();
        c.launches += 1;
        c.flops += op.flops();
        c.bytes += op.bytes();
        if let Some(launched) = &mut self.launched {
            launched.push(op.clone());
        }
        Ok(())
    }

    fn record(&mut self, _stream: Stream) -> Result<Event, TensorError> {
        self.events += 1;
        Ok(Event(self.events))
    }

    fn wait(&mut self, _stream: Stream, _event: Event) -> Result<(), TensorError> {
        Ok(())
    }

    fn sync(&mut self) -> Result<(), TensorError> {
        Ok(())
    }

    fn write_f32(&mut self, dst: View, _values: &[f32]) -> Result<(), TensorError> {
        self.inside(&dst)
    }

    fn write_u32(&mut self, dst: View, _values: &[u32]) -> Result<(), TensorError> {
        self.inside(&dst)
    }

    fn read_f32(&mut self, src: View, values: &mut [f32]) -> Result<(), TensorError> {
        self.inside(&src)?;
        values.fill(0.0);
        Ok(())
    }

    /// Leaves `bytes` as they are: a dry run of a large step would else fill terabytes.
    fn read_bytes(&mut self, _stream: Stream, src: View, _bytes: &mut [u8]) -> Result<(), TensorError> {
        self.inside(&src)
    }

    fn write_bytes(&mut self, _stream: Stream, dst: View, _bytes: &[u8]) -> Result<(), TensorError> {
        self.inside(&dst)
    }

    fn memory(&self) -> MemoryUse {
        let mut classes: Vec<_> = self.classes.iter().map(|(k, v)| (*k, Bytes(*v))).collect();
        classes.sort_by_key(|c| std::cmp::Reverse(c.1));
        MemoryUse { classes, workspace: Bytes(self.workspace) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::op::Fill;
    use bessemer_units::DType;

    #[test]
    fn memory_and_launches_are_counted() {
        let mut b = NullBackend::new();
        let w = b.alloc(BufferSpec { class: "weights", name: "w", dtype: DType::Bf16, len: 10 }).unwrap();
        b.alloc(BufferSpec { class: "gradients", name: "w", dtype: DType::F32, len: 10 }).unwrap();
        b.launch(Stream::Compute, &Fill { dst: w.vector(), value: 0.0 }.into()).unwrap();
        assert_eq!(b.memory().classes, vec![("gradients", Bytes(40)), ("weights", Bytes(20))]);
        assert_eq!(b.counts()["fill"], Count { launches: 1, flops: Flops(0.0), bytes: Bytes(20) });
        let foreign = Buffer { id: 9, len: 10, dtype: DType::F32 }.vector();
        assert!(b.launch(Stream::Compute, &Fill { dst: foreign, value: 0.0 }.into()).is_err());
    }
}
