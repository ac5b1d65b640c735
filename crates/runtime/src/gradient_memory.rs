//! Activations in the memory of gradients that are written later.
//!
//! A backward pass goes from the last unit to the first. When it writes the gradients of unit i, it has read all that the units
//! after i have kept for it. So the activations that unit j keeps, and the residual stream that enters it, may be stored in the gradients
//! of the units before j:
//!
//! ```text
//! backward pass of    reads what it keeps in    writes gradients of
//! unit 3              gradients of unit 2       unit 3
//! unit 2              gradients of unit 1       unit 2
//! unit 1              memory of its own         unit 1
//! ```
//!
//! L layers that keep a bytes each and have g bytes of gradients take a + g + (L - 1) max(a, g) bytes instead of L (a + g), less the
//! values that do not fit for their shape. The gradients are lost to the next forward pass, so this is for steps of one micro-batch
//! ([`crate::ActivationConfig::in_gradients`]). A tied token table is written first, by the head, and holds nothing.
//!
//! Where a backward pass frees activations and allocates gradients as it goes, as in PyTorch, an allocator may put the ones in the
//! memory of the others too. Here the locations are planned before the first step.

use crate::decoder::Purpose;
use crate::error::ModelError;
use crate::units::{Plan, StageUnit};
use bessemer_program::Class;
use bessemer_tensor::{Buffer, View};
use bessemer_units::DType;
use std::ops::Range;

/// Bytes that the place of a matrix is a multiple of.
const ALIGNED: usize = 256;

/// Gradients whose memory is not used by activations yet.
#[derive(Debug, Default)]
pub(crate) struct GradientMemory {
    free: Vec<Stretch>,
}

/// Bytes of a buffer.
#[derive(Debug, Clone)]
struct Stretch {
    buffer: Buffer,
    bytes: Range<usize>,
    /// Number of the unit that is the first to write them.
    writer: usize,
}

impl Stretch {
    /// Returns the matrix at the first aligned offset; `None` if it does not fit.
    fn at_front(&self, dtype: DType, rows: usize, cols: usize) -> Option<View> {
        let buffer = self.buffer.of_type(dtype)?;
        let start = self.bytes.start.next_multiple_of(ALIGNED);
        let view = View { buffer, offset: start / dtype.size(), rows, cols, stride: cols };
        (view.end() * dtype.size() <= self.bytes.end).then_some(view)
    }
}

impl Plan<'_> {
    /// Whether a slot may be stored in gradients; `shared`: it is another stage's too.
    ///
    /// # Errors
    /// A stage or a configuration whose slots last longer than a pass or have memory of another kind.
    pub(crate) fn in_gradients(&self, shared: bool) -> Result<bool, ModelError> {
        if !self.config.in_gradients || self.shape.purpose == Purpose::Score {
            return Ok(false);
        }
        let stage = self.stage;
        let problem = match () {
            () if stage.slots > 1 => format!("{} micro-batches at a time", stage.slots),
            () if stage.pending > 0 => "backward passes in two parts".into(),
            () if shared => "slots that two stages share".into(),
            () if self.has_arenas() => "micro-batches of several lengths or a budget of activations".into(),
            () if self.config.offload.is_on() => "offloaded activations".into(),
            () => return Ok(true),
        };
        Err(ModelError::Stage(format!(
            "activations in the memory of gradients need one micro-batch at a time in memory of its own, \
             found {problem}; leave ActivationConfig::in_gradients out"
        )))
    }
}

impl GradientMemory {
    /// All gradients of a decoder's parameters but those whose buffers several parameters alternate in.
    pub(crate) fn new(units: &[StageUnit], gradients: &[Option<View>]) -> GradientMemory {
        let mut all: Vec<Stretch> = Vec::new();
        for (number, view) in gradients.iter().enumerate() {
            let writes = |unit: &StageUnit| {
                let values = &unit.program.values;
                values.iter().any(|v| matches!(v.class, Class::Gradient(p) if unit.parameters[p] == number))
            };
            // The backward pass reaches the last unit first.
            let writer = units.iter().rposition(writes);
            if let (Some(view), Some(writer)) = (view.filter(View::is_contiguous), writer) {
                let size = view.dtype().size();
                let bytes = view.offset * size..view.end() * size;
                all.push(Stretch { buffer: view.buffer, bytes, writer });
            }
        }
        all.sort_by_key(|s| (s.buffer.id, s.bytes.start));
        let mut free: Vec<Stretch> = Vec::new();
        for buffer in all.chunk_by(|a, b| a.buffer.id == b.buffer.id) {
            if buffer.windows(2).any(|pair| pair[1].bytes.start < pair[0].bytes.end) {
                continue;
            }
            let joined = buffer.chunk_by(|a, b| a.writer == b.writer && a.bytes.end == b.bytes.start);
            free.extend(joined.map(|run| {
                let bytes = run[0].bytes.start..run[run.len() - 1].bytes.end;
                Stretch { bytes, ..run[0].clone() }
            }));
        }
        GradientMemory { free }
    }

    /// Takes memory for a matrix that the backward pass of unit number `last` is the last to read. Of the stretches that are large
    /// enough it is the one that is written next: earlier units can use only those that are written later.
    pub(crate) fn take(&mut self, last: usize, dtype: DType, rows: usize, cols: usize) -> Option<View> {
        let free = self.free.iter_mut().filter(|s| s.writer < last && rows * cols > 0);
        let fitting = free.filter_map(|s| Some((s.at_front(dtype, rows, cols)?, s)));
        let (view, stretch) = fitting.max_by_key(|(_, s)| s.writer)?;
        stretch.bytes.start = view.end() * dtype.size();
        Some(view)
    }
}
