//! Evaluation: a split in reading order, every token a target exactly once.

use crate::training::check_sequence_length;
use crate::{Batch, BatchRequest, IGNORED, LoadError, PrefetchConfig, PrefetchShape, Prefetcher, Sample};
use bessemer_shards::ShardSet;
use std::sync::Arc;

/// The windows of a split from front to back, for evaluation.
///
/// Windows do not overlap in targets. The last one is filled up with ignored targets ([`crate::IGNORED`]). Without a
/// context token the first token of the split has nothing to be predicted from: T − 1 tokens are targets. With
/// one (the separator of documents) it is the first input, all T tokens are targets, and together they encode
/// exactly [`ShardSet::text_bytes`] bytes of text, which makes bits per byte exact. Targets that the split's mask does not score are ignored
/// too.
#[derive(Debug, Clone)]
pub struct EvaluationWindows {
    set: Arc<ShardSet>,
    seq_len: usize,
    context: Option<u32>,
    prefetch: PrefetchConfig,
}

impl EvaluationWindows {
    /// Windows with `seq_len` inputs; `context` is put before the first token of the split.
    ///
    /// # Errors
    /// [`LoadError::TooFewTokens`] if no token is a target, [`LoadError::NothingScored`], [`LoadError::SequenceLength`],
    /// [`LoadError::ContextToken`].
    pub fn new(set: Arc<ShardSet>, seq_len: usize, context: Option<u32>) -> Result<Self, LoadError> {
        check_sequence_length(seq_len)?;
        if let Some(found) = context.filter(|&token| token >= set.vocab_size()) {
            return Err(LoadError::ContextToken { vocab_size: set.vocab_size(), found });
        }
        let windows = EvaluationWindows { set, seq_len, context, prefetch: PrefetchConfig::default() };
        if windows.target_tokens() == 0 {
            return Err(LoadError::TooFewTokens {
                path: windows.set.path().to_owned(),
                split: windows.set.split().into(),
                tokens: windows.set.token_count(),
                wanted: windows.first_target() + 1,
                seq_len,
            });
        }
        LoadError::unless_scored(&windows.set, windows.first_target())?;
        Ok(windows)
    }

    /// With windows that are prepared ahead when they are read by [`EvaluationWindows::prefetcher`].
    pub fn prefetching(self, prefetch: PrefetchConfig) -> EvaluationWindows {
        EvaluationWindows { prefetch, ..self }
    }

    /// Serves the windows with these numbers one by one, in this order, and prepares them ahead if so configured.
    ///
    /// # Errors
    /// As [`Prefetcher::new`].
    pub fn prefetcher(
        &self,
        numbers: impl Iterator<Item = u64> + Clone + Send + 'static,
    ) -> Result<Prefetcher, LoadError> {
        let shape = PrefetchShape { sequences: 1, seq_len: self.seq_len, kept: 1 };
        let mut prefetcher = Prefetcher::new(Arc::new(self.clone()), self.prefetch, shape)?;
        let requests = numbers.map(|first| BatchRequest { first, sequences: 1 });
        if let Some(first) = requests.clone().next() {
            prefetcher.begin(first, || Box::new(requests));
        }
        Ok(prefetcher)
    }

    /// Bytes of the windows that [`EvaluationWindows::prefetcher`] holds.
    pub fn prefetch_memory(seq_len: usize, prefetch: PrefetchConfig) -> u64 {
        prefetch.memory(PrefetchShape { sequences: 1, seq_len, kept: 1 })
    }

    /// The split that is evaluated.
    pub fn shards(&self) -> &Arc<ShardSet> {
        &self.set
    }

    /// Inputs in a window.
    pub fn seq_len(&self) -> usize {
        self.seq_len
    }

    /// Tokens that are targets, scored or not: T with a context token, T − 1 without.
    pub fn target_tokens(&self) -> u64 {
        self.set.token_count().saturating_sub(self.first_target())
    }

    /// Number of windows.
    pub fn windows(&self) -> u64 {
        self.target_tokens().div_ceil(self.seq_len as u64)
    }

    /// Number of scored targets of a window; 0 past the last.
    ///
    /// # Errors
    /// If a file can no longer be read or its mask is damaged.
    pub fn count_scored(&self, window: u64) -> Result<u64, LoadError> {
        let total = self.set.token_count();
        let (start, end) = (self.target_of(window).min(total), self.target_of(window + 1).min(total));
        Ok(self.set.count_scored(start..end)?)
    }

    /// Offset in the split of the first target of a window.
    pub fn target_of(&self, window: u64) -> u64 {
        self.first_target() + window * self.seq_len as u64
    }

    /// Offset of the first token that is a target.
    fn first_target(&self) -> u64 {
        u64::from(self.context.is_none())
    }

    /// Fills `out` with windows `first_window .. first_window + n` and returns how many of them exist. The batch
    /// always has n sequences, so that its shape stays the same; those past the end have only ignored targets
    /// and token 0 as inputs. Allocates nothing once `out` has had this shape.
    ///
    /// # Errors
    /// [`LoadError::Shard`] naming the damaged file and block; the content of `out` is unspecified then.
    pub fn batch(&self, first_window: u64, n: usize, out: &mut Batch) -> Result<usize, LoadError> {
        out.shape(n, self.seq_len)?;
        let here = self.windows().saturating_sub(first_window).min(n as u64) as usize;
        for i in 0..n {
            let (mut targets, mut scored) = (0, 0);
            let mut row = out.row(i);
            if i < here {
                let window = first_window + i as u64;
                // Targets are the tokens from `target` on, inputs those one before.
                let done = window * self.seq_len as u64;
                let target = self.first_target() + done;
                targets = (self.target_tokens() - done).min(self.seq_len as u64) as usize;
                self.set.read(target, &mut row.targets[..targets])?;
                row.inputs[1..targets].copy_from_slice(&row.targets[..targets - 1]);
                scored = self.set.replace_unscored(target, &mut row.targets[..targets], IGNORED)?;
                match self.context.filter(|_| target == 0) {
                    Some(context) => row.inputs[0] = context,
                    None => self.set.read(target - 1, &mut row.inputs[..1])?,
                }
                let token = target.saturating_sub(1);
                out.samples.push(Sample { counter: window, component: 0, epoch: 0, token });
                row = out.row(i);
            }
            row.pad(targets);
            out.scored += scored;
        }
        Ok(here)
    }
}
