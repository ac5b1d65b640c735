//! Training samples: shuffled windows, addressed by a counter.

use crate::order::ORDER_VERSION;
use crate::{Batch, LoadError, LoaderState, Permutation, Sample};
use bessemer_shards::ShardSet;
use std::sync::Arc;

/// Largest sequence length: positions are 32-bit and a window has one token more.
pub(crate) const LONGEST_SEQUENCE: usize = (u32::MAX >> 1) as usize;

/// Serves the windows of a split in the order of (seed, sample counter). Holds no position: any thread or rank
/// may ask for any samples.
///
/// An epoch has N = (T − 1) div S samples for T tokens and sequence length S. The windows of an epoch begin at a
/// shift drawn from [0, (T − 1) mod S], the tokens that do not fill a window, so that these are not the same
/// ones in every epoch. Without shuffling, the shift is 0 and windows come from front to back.
#[derive(Debug, Clone)]
pub struct Loader {
    set: Arc<ShardSet>,
    seq_len: usize,
    seed: u64,
    shuffle: bool,
    samples_per_epoch: u64,
    /// Tokens that do not fill a window, (T − 1) mod S.
    remainder: u64,
}

impl Loader {
    /// A loader of windows with `seq_len` inputs.
    ///
    /// # Errors
    /// [`LoadError::TooFewTokens`] if the split is smaller than one window, [`LoadError::SequenceLength`].
    pub fn new(set: Arc<ShardSet>, seq_len: usize, seed: u64, shuffle: bool) -> Result<Loader, LoadError> {
        check_sequence_length(seq_len)?;
        let (tokens, s) = (set.token_count(), seq_len as u64);
        if tokens < s + 1 {
            return Err(LoadError::TooFewTokens {
                path: set.path().to_owned(),
                split: set.split().into(),
                tokens,
                wanted: s + 1,
                seq_len,
            });
        }
        let (samples_per_epoch, remainder) = ((tokens - 1) / s, (tokens - 1) % s);
        Ok(Loader { set, seq_len, seed, shuffle, samples_per_epoch, remainder })
    }

    /// The split that samples come from.
    pub fn shards(&self) -> &Arc<ShardSet> {
        &self.set
    }

    /// Inputs in a sample.
    pub fn seq_len(&self) -> usize {
        self.seq_len
    }

    /// Samples in an epoch, N.
    pub fn samples_per_epoch(&self) -> u64 {
        self.samples_per_epoch
    }

    /// Target tokens in an epoch, N · S.
    pub fn tokens_per_epoch(&self) -> u64 {
        self.samples_per_epoch * self.seq_len as u64
    }

    /// Epochs that `samples` samples are, as a fraction.
    pub fn epochs(&self, samples: u64) -> f64 {
        samples as f64 / self.samples_per_epoch as f64
    }

    /// Where sample `counter` lies.
    pub fn sample(&self, counter: u64) -> Sample {
        self.locate(counter, &self.permutation(counter / self.samples_per_epoch))
    }

    fn permutation(&self, epoch: u64) -> Permutation {
        Permutation::new(self.samples_per_epoch, self.seed, epoch)
    }

    /// As [`Loader::sample`], given the permutation of the sample's epoch.
    fn locate(&self, counter: u64, permutation: &Permutation) -> Sample {
        let (epoch, place) = (counter / self.samples_per_epoch, counter % self.samples_per_epoch);
        let (window, shift) = if self.shuffle {
            (permutation.apply(place), permutation.epoch_value(self.remainder + 1))
        } else {
            (place, 0)
        };
        Sample { counter, epoch, token: window * self.seq_len as u64 + shift }
    }

    /// Fills `out` with samples `first_sample .. first_sample + n`: a pure function of the shards, the sequence
    /// length, the seed and the counter. Allocates nothing once `out` has had this shape.
    ///
    /// # Errors
    /// [`LoadError::Shard`] naming the damaged file and block; the content of `out` is unspecified then.
    pub fn batch(&self, first_sample: u64, n: usize, out: &mut Batch) -> Result<(), LoadError> {
        if first_sample.checked_add(n as u64).is_none() {
            return Err(LoadError::CounterOverflow { first: first_sample, count: n });
        }
        out.shape(n, self.seq_len)?;
        let mut epoch = first_sample / self.samples_per_epoch;
        let mut permutation = self.permutation(epoch);
        for i in 0..n {
            let counter = first_sample + i as u64;
            if counter / self.samples_per_epoch != epoch {
                epoch = counter / self.samples_per_epoch;
                permutation = self.permutation(epoch);
            }
            let sample = self.locate(counter, &permutation);
            let mut row = out.row(i);
            let last = self.seq_len - 1;
            self.set.read(sample.token, row.inputs)?;
            row.targets[..last].copy_from_slice(&row.inputs[1..]);
            self.set.read(sample.token + self.seq_len as u64, &mut row.targets[last..])?;
            row.mark_documents(&self.set, 0, self.seq_len, sample.token, 0);
            out.samples.push(sample);
        }
        out.scored = (n * self.seq_len) as u64;
        Ok(())
    }

    /// What a checkpoint keeps after `samples` samples: enough to go on and to refuse other data.
    pub fn state(&self, samples: u64) -> LoaderState {
        LoaderState {
            order_version: ORDER_VERSION,
            samples,
            epoch: samples / self.samples_per_epoch,
            seed: self.seed,
            shuffle: self.shuffle,
            seq_len: self.seq_len as u64,
            tokens: self.set.token_count(),
            data_checksum: format!("{:016x}", self.set.checksum()),
        }
    }

    /// The sample counter to go on with, if `state` was saved with the same samples in the same order.
    ///
    /// # Errors
    /// [`LoadError::OtherOrder`] naming the first difference.
    pub fn resume(&self, state: &LoaderState) -> Result<u64, LoadError> {
        let now = self.state(state.samples);
        let same = |what, wanted: String, found: String| {
            let path = self.set.path().to_owned();
            if wanted == found { Ok(()) } else { Err(LoadError::OtherOrder { path, what, wanted, found }) }
        };
        same(
            "the version of the sample order",
            state.order_version.to_string(),
            now.order_version.to_string(),
        )?;
        same("the number of tokens", state.tokens.to_string(), now.tokens.to_string())?;
        same("the checksum of the shards", state.data_checksum.clone(), now.data_checksum)?;
        same("the sequence length", state.seq_len.to_string(), now.seq_len.to_string())?;
        same("the seed", state.seed.to_string(), now.seed.to_string())?;
        same("shuffle", state.shuffle.to_string(), now.shuffle.to_string())?;
        same("the epoch", state.epoch.to_string(), now.epoch.to_string())?;
        Ok(state.samples)
    }
}

pub(crate) fn check_sequence_length(seq_len: usize) -> Result<(), LoadError> {
    if (1..=LONGEST_SEQUENCE).contains(&seq_len) {
        return Ok(());
    }
    Err(LoadError::SequenceLength { largest: LONGEST_SEQUENCE, found: seq_len })
}
