//! Progress of one micro-batch in one chunk, for the verifier of a step.

use crate::step::{StepChunk, Stream};
use crate::unit::Phase;

/// Progress of a micro-batch in a chunk.
#[derive(Debug, Default)]
pub(crate) struct Progress {
    /// Units that have gone forward, or scored.
    forward: usize,
    scores: bool,
    /// Units that have gone backward (or the input part).
    backward: usize,
    split: bool,
    /// Units whose weight part is done.
    weight: usize,
    /// The residual stream and its gradient have arrived.
    came: [bool; 2],
    /// The residual stream and its gradient have been handed on.
    left: [bool; 2],
}

impl Progress {
    /// A unit runs its list of a phase; why it must not.
    pub(crate) fn advance(
        &mut self,
        chunk: &StepChunk,
        unit: usize,
        phase: Phase,
    ) -> Result<(), &'static str> {
        let units = chunk.units();
        let forwards = units - usize::from(chunk.head);
        let (next, ready) = match phase {
            Phase::Forward => (self.forward, self.forward < forwards && !self.scores),
            Phase::Score => (self.forward, self.forward < units),
            Phase::Backward | Phase::BackwardInput => {
                let same = self.backward == 0 || self.split == (phase == Phase::BackwardInput);
                let ready = self.forward == forwards && !self.scores && self.backward < units && same;
                (units.wrapping_sub(self.backward + 1), ready)
            }
            Phase::BackwardWeight => {
                let ready = self.split && self.backward == units && self.weight < units;
                (units.wrapping_sub(self.weight + 1), ready)
            }
        };
        if !ready || next != unit {
            return Err("is not the next unit of the micro-batch");
        }
        let (first, given, stream) = match phase {
            Phase::Forward | Phase::Score => (self.forward == 0, chunk.embedding, Stream::Values),
            Phase::Backward | Phase::BackwardInput => (self.backward == 0, chunk.head, Stream::Gradient),
            Phase::BackwardWeight => (false, true, Stream::Gradient),
        };
        // The gradient of the chunk's output is written to the memory of its values.
        if first && !given && stream == Stream::Gradient && !self.left[Stream::Values as usize] {
            return Err("runs before the values of its stream are sent");
        }
        if first && !given && !self.came[stream as usize] {
            return Err("runs before its input is ready");
        }
        match phase {
            Phase::Forward => self.forward += 1,
            Phase::Score => (self.forward, self.scores) = (self.forward + 1, true),
            Phase::Backward => self.backward += 1,
            Phase::BackwardInput => (self.backward, self.split) = (self.backward + 1, true),
            Phase::BackwardWeight => self.weight += 1,
        }
        Ok(())
    }

    /// Called when the stream or its gradient arrives.
    pub(crate) fn comes(&mut self, stream: Stream) -> Result<(), &'static str> {
        match std::mem::replace(&mut self.came[stream as usize], true) {
            true => Err("comes twice"),
            false => Ok(()),
        }
    }

    /// The stream or its gradient is handed on.
    pub(crate) fn leaves(&mut self, chunk: &StepChunk, stream: Stream) -> Result<(), &'static str> {
        let made = match stream {
            Stream::Values => !chunk.head && self.forward == chunk.units(),
            Stream::Gradient => !chunk.embedding && self.backward == chunk.units(),
        };
        match std::mem::replace(&mut self.left[stream as usize], true) {
            true => Err("leaves twice"),
            false if !made => Err("is sent before it is computed"),
            false => Ok(()),
        }
    }

    /// The micro-batch is evaluated.
    pub(crate) fn scores(&self) -> bool {
        self.scores
    }

    /// All units have run their lists of a phase.
    pub(crate) fn ended(&self, chunk: &StepChunk, phase: Phase) -> bool {
        let units = chunk.units();
        match phase {
            Phase::Forward => self.forward == units - usize::from(chunk.head),
            Phase::Score => self.forward == units,
            Phase::Backward | Phase::BackwardInput => self.backward == units,
            Phase::BackwardWeight => self.weight == units,
        }
    }

    /// Returns a description of the missing part at the end of the step.
    pub(crate) fn unfinished(&self, chunk: &StepChunk) -> Option<&'static str> {
        let missing = [!chunk.head, !chunk.embedding && !self.scores];
        if (0..2).any(|stream| missing[stream] && !self.left[stream]) {
            return Some("is left with a stream that never leaves the chunk");
        }
        if self.scores && self.forward < chunk.units() {
            return Some("is left in the middle of an evaluation");
        }
        (self.split && self.weight < chunk.units()).then_some("is left without its weight part")
    }
}
