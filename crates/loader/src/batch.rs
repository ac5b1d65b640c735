//! A batch: inputs, targets and where documents begin.
//!
//! Legend: n sequences, s tokens a sequence. All `_ns` arrays are row-major [n, s].

use crate::LoadError;
use bessemer_shards::{ShardError, ShardSet};

/// A target that is not scored.
pub const IGNORED: u32 = u32::MAX;

/// Origin of a sequence of a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sample {
    /// Sample counter of the run, or number of the window in an evaluation.
    pub counter: u64,
    /// Component of the mixture that gives it; 0 without a mixture.
    pub component: usize,
    /// Epoch, from 0; of a mixture, that of the component.
    pub epoch: u64,
    /// Offset in the split of the first input token. (The context token of an evaluation has none: 0.)
    pub token: u64,
}

/// Sequences for one forward pass. Reused: filling it again with the same shape allocates nothing.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Batch {
    /// Number of sequences, n.
    pub sequences: usize,
    /// Tokens in a sequence, s.
    pub seq_len: usize,
    /// Input tokens, [n, s].
    pub inputs: Vec<u32>,
    /// The token that follows each input, [n, s]; [`IGNORED`] where there is none to be scored.
    pub targets: Vec<u32>,
    /// Number of the document within its sequence that an input belongs to, [n, s]: 0, 0, …, 1, 1, … Attention
    /// between different segments of a sequence crosses documents.
    pub segments: Vec<u32>,
    /// Distance of an input from the beginning of its segment, [n, s].
    pub positions: Vec<u32>,
    /// Where each sequence came from, n of them (the existing ones in an evaluation).
    pub samples: Vec<Sample>,
    /// Number of targets that are not [`IGNORED`].
    pub scored: u64,
}

/// One sequence of a batch, to be filled.
pub(crate) struct Row<'a> {
    pub(crate) inputs: &'a mut [u32],
    pub(crate) targets: &'a mut [u32],
    pub(crate) segments: &'a mut [u32],
    pub(crate) positions: &'a mut [u32],
}

impl Batch {
    /// An empty batch; memory comes with the first filling.
    pub fn new() -> Batch {
        Batch::default()
    }

    /// Makes space for n sequences of s tokens. Former contents of the arrays stay.
    pub(crate) fn shape(&mut self, sequences: usize, seq_len: usize) -> Result<(), LoadError> {
        let tokens = sequences
            .checked_mul(seq_len)
            .filter(|&tokens| tokens <= isize::MAX as usize / size_of::<u32>())
            .ok_or(LoadError::BatchTooLarge { sequences, seq_len })?;
        (self.sequences, self.seq_len, self.scored) = (sequences, seq_len, 0);
        self.inputs.resize(tokens, 0);
        self.targets.resize(tokens, 0);
        self.segments.resize(tokens, 0);
        self.positions.resize(tokens, 0);
        self.samples.clear();
        self.samples.reserve(sequences);
        Ok(())
    }

    /// Makes space for n sequences of up to s tokens, so that shorter ones before do not make a longer one allocate.
    pub(crate) fn reserve(&mut self, sequences: usize, seq_len: usize) -> Result<(), LoadError> {
        let tokens = sequences
            .checked_mul(seq_len)
            .filter(|&tokens| tokens <= isize::MAX as usize / size_of::<u32>())
            .ok_or(LoadError::BatchTooLarge { sequences, seq_len })?;
        for array in [&mut self.inputs, &mut self.targets, &mut self.segments, &mut self.positions] {
            array.reserve(tokens.saturating_sub(array.len()));
        }
        Ok(())
    }

    /// Sequence `i`, to be filled.
    pub(crate) fn row(&mut self, i: usize) -> Row<'_> {
        let range = i * self.seq_len..(i + 1) * self.seq_len;
        Row {
            inputs: &mut self.inputs[range.clone()],
            targets: &mut self.targets[range.clone()],
            segments: &mut self.segments[range.clone()],
            positions: &mut self.positions[range],
        }
    }
}

impl Row<'_> {
    /// Fills segments and positions of the inputs `at..until`, which are the tokens from `token` on; the first of
    /// them begins segment `first_segment`. Returns the segment after the last.
    pub(crate) fn mark_documents(
        &mut self,
        set: &ShardSet,
        at: usize,
        until: usize,
        token: u64,
        first_segment: u32,
    ) -> Result<u32, ShardError> {
        let (mut at, mut token, mut segment) = (at, token, first_segment);
        // Past the last document there is nothing; the callers stay inside the split.
        let Some(mut number) = set.document_at(token)? else { return Ok(segment) };
        while at < until {
            let Some(tokens) = set.document_tokens(number)? else { break };
            number += 1;
            let here = (until - at).min(tokens.end.saturating_sub(token) as usize);
            if here == 0 {
                continue;
            }
            self.segments[at..at + here].fill(segment);
            for (position, out) in self.positions[at..at + here].iter_mut().enumerate() {
                *out = position as u32;
            }
            (at, token, segment) = (at + here, token + here as u64, segment + 1);
        }
        Ok(segment)
    }
}
