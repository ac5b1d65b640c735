//! Older versions of a stage's weights, for schedules that update while micro-batches are in flight (weight stashing).
//!
//! PipeDream (Harlap et al. 2018) keeps a version as long as a micro-batch that went forward with it has not finished its backward
//! pass; PipeDream-2BW (Narayanan et al. 2021) keeps one besides the newest. The program determines how many there are at a time.

use crate::memory::{ParamMemory, Stretch};
use bessemer_runtime::{Decoder, ModelError};
use bessemer_tensor::op::{Copy, Op};
use bessemer_tensor::{Backend, BufferSpec, Stream, TensorError, View};

/// One version.
#[derive(Debug)]
struct Version {
    /// Indexed by unit.
    units: Vec<View>,
    /// The views that the model reads.
    params: Vec<View>,
}

/// The versions of one stage.
#[derive(Debug, Default)]
pub(crate) struct WeightVersions {
    versions: Vec<Version>,
    /// The version that passes read now; none: the weights themselves.
    reading: Option<usize>,
}

impl WeightVersions {
    /// Allocates `count` versions of the values in `memory`.
    pub(crate) fn alloc(
        backend: &mut dyn Backend,
        memory: &ParamMemory,
        names: &[String],
        count: usize,
    ) -> Result<WeightVersions, TensorError> {
        let mut versions = Vec::with_capacity(count);
        for _ in 0..count {
            let mut units = Vec::with_capacity(names.len());
            for (name, Stretch { whole, .. }) in names.iter().zip(&memory.values) {
                let (dtype, len) = (whole.dtype(), whole.len());
                units
                    .push(backend.alloc(BufferSpec { class: "stashed weights", name, dtype, len })?.vector());
            }
            let elsewhere = |value: View| {
                let unit = memory.values.iter().position(|s| s.whole.buffer == value.buffer);
                let unit = unit.expect("every parameter lies in a unit");
                let moved = value.offset - memory.values[unit].whole.offset;
                View { buffer: units[unit].buffer, offset: units[unit].offset + moved, ..value }
            };
            let params = memory.params.iter().map(|p| elsewhere(p.value)).collect();
            versions.push(Version { units, params });
        }
        Ok(WeightVersions { versions, reading: None })
    }

    /// Versions that can be kept at a time.
    pub(crate) fn count(&self) -> usize {
        self.versions.len()
    }

    /// Copies the weights to memory `at`.
    pub(crate) fn keep(
        &self,
        backend: &mut dyn Backend,
        memory: &ParamMemory,
        at: usize,
    ) -> Result<(), TensorError> {
        for (unit, stretch) in self.versions[at].units.iter().zip(&memory.values) {
            backend.launch(Stream::Compute, &Op::from(Copy { src: stretch.whole, dst: *unit }))?;
        }
        Ok(())
    }

    /// Passes read the version at a place, or the weights, from now on.
    pub(crate) fn read(&mut self, decoder: &mut Decoder, at: Option<usize>) -> Result<(), ModelError> {
        if self.reading == at {
            return Ok(());
        }
        decoder.stage_values(at.map(|at| self.versions[at].params.as_slice()))?;
        self.reading = at;
        Ok(())
    }
}
