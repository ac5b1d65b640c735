//! A batch: inputs and targets.
//!
//! Legend: n sequences, s tokens a sequence. All `_ns` arrays are row-major [n, s].

use crate::LoadError;

/// A target that is not scored.
pub const IGNORED: u32 = u32::MAX;
/// Arrays of a batch with a number for each token: inputs and targets.
const ARRAYS: u64 = 2;

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
    /// Where each sequence came from, n of them (the existing ones in an evaluation).
    pub samples: Vec<Sample>,
    /// Number of targets that are not [`IGNORED`].
    pub scored: u64,
}

/// Numbers of targets of some samples, without padding.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TargetCounts {
    /// Targets, scored or not: the tokens that a model reads for them.
    pub targets: u64,
    /// Targets that are scored.
    pub scored: u64,
    /// Samples without a scored target. They keep their place in the order and add nothing to the loss.
    pub unscored_samples: u64,
}

impl TargetCounts {
    /// Share of the targets that is scored; 1 of none.
    pub fn scored_share(&self) -> f64 {
        if self.targets == 0 { 1.0 } else { self.scored as f64 / self.targets as f64 }
    }

    /// Adds a sample.
    pub(crate) fn add(&mut self, targets: u64, scored: u64) {
        self.targets += targets;
        self.scored += scored;
        self.unscored_samples += u64::from(scored == 0);
    }
}

/// One sequence of a batch, to be filled.
pub(crate) struct Row<'a> {
    pub(crate) inputs: &'a mut [u32],
    pub(crate) targets: &'a mut [u32],
}

impl Batch {
    /// An empty batch; memory comes with the first filling.
    pub fn new() -> Batch {
        Batch::default()
    }

    /// Makes space for n sequences of s tokens. Former contents of the arrays stay.
    pub(crate) fn shape(&mut self, sequences: usize, seq_len: usize) -> Result<(), LoadError> {
        let tokens = tokens_of(sequences, seq_len)?;
        (self.sequences, self.seq_len, self.scored) = (sequences, seq_len, 0);
        self.inputs.resize(tokens, 0);
        self.targets.resize(tokens, 0);
        self.samples.clear();
        self.samples.reserve(sequences);
        Ok(())
    }

    /// Makes space for n sequences of up to s tokens, so that shorter ones before do not make a longer one allocate.
    pub(crate) fn reserve(&mut self, sequences: usize, seq_len: usize) -> Result<(), LoadError> {
        let tokens = tokens_of(sequences, seq_len)?;
        for array in [&mut self.inputs, &mut self.targets] {
            array.reserve(tokens.saturating_sub(array.len()));
        }
        self.samples.reserve(sequences.saturating_sub(self.samples.len()));
        Ok(())
    }

    /// Most bytes of a batch of n sequences of up to s tokens.
    pub(crate) fn most_bytes(sequences: usize, seq_len: usize) -> u64 {
        let tokens = (sequences as u64).saturating_mul(seq_len as u64);
        let samples = (sequences as u64).saturating_mul(size_of::<Sample>() as u64);
        tokens.saturating_mul(ARRAYS * size_of::<u32>() as u64).saturating_add(samples)
    }

    /// Sequence `i`, to be filled.
    pub(crate) fn row(&mut self, i: usize) -> Row<'_> {
        let range = i * self.seq_len..(i + 1) * self.seq_len;
        Row { inputs: &mut self.inputs[range.clone()], targets: &mut self.targets[range] }
    }
}

impl Row<'_> {
    /// Fills what follows `len` tokens with padding, which has no targets.
    pub(crate) fn pad(&mut self, len: usize) {
        self.inputs[len..].fill(0);
        self.targets[len..].fill(IGNORED);
    }
}

/// Tokens of n sequences of s tokens, if they can be addressed.
fn tokens_of(sequences: usize, seq_len: usize) -> Result<usize, LoadError> {
    sequences
        .checked_mul(seq_len)
        .filter(|&tokens| tokens <= isize::MAX as usize / size_of::<u32>())
        .ok_or(LoadError::BatchTooLarge { sequences, seq_len })
}
