//! Why samples cannot be served.

use bessemer_shards::{ShardError, ShardSet};
use std::ops::Range;
use std::path::PathBuf;

/// Why a loader cannot be made or cannot fill a batch.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// A shard file is damaged or cannot be read.
    #[error(transparent)]
    Shard(#[from] ShardError),
    /// The split is smaller than one sample.
    #[error(
        "{}: split {split:?} holds {tokens} tokens, one sample needs {wanted} (sequence length {seq_len}); use more \
         text, or lower train.seq_len", path.display()
    )]
    TooFewTokens {
        /// Folder of the split.
        path: PathBuf,
        /// Name of the split.
        split: String,
        /// Tokens that it holds.
        tokens: u64,
        /// Tokens that one sample needs.
        wanted: u64,
        /// The sequence length.
        seq_len: usize,
    },
    /// No target of the split is scored.
    #[error(
        "{}: split {split:?} has {tokens} tokens and none of its targets is scored; wanted at least one: use documents with answers, or \
         shards without a mask", path.display()
    )]
    NothingScored {
        /// Folder of the split.
        path: PathBuf,
        /// Name of the split.
        split: String,
        /// Tokens that it holds.
        tokens: u64,
    },
    /// The split has no micro-batch of documents.
    #[error(
        "{}: split {split:?} of {documents} documents gives {samples} samples, a micro-batch needs {wanted}; \
         use more text, a smaller micro-batch, or windows (train.lengths = \"packed\")", path.display()
    )]
    TooFewDocuments {
        /// Folder of the split.
        path: PathBuf,
        /// Name of the split.
        split: String,
        /// Documents that it holds.
        documents: u64,
        /// Samples that they are.
        samples: u64,
        /// Samples of a micro-batch.
        wanted: u64,
    },
    /// Documents that are no pairs of whole samples.
    #[error(
        "{}: split {split:?} has {documents} documents that give {samples} samples in micro-batches of {micro_batch}; wanted pairs of \
         documents, each a sample, in micro-batches of an even number without buckets: make the shards again with corpus.chats.pairs = true", path.display()
    )]
    NoPairs {
        /// Folder of the split.
        path: PathBuf,
        /// Name of the split.
        split: String,
        /// Documents that it holds.
        documents: u64,
        /// Samples that they are.
        samples: u64,
        /// Samples of a micro-batch.
        micro_batch: usize,
    },
    /// The sequence length is not usable.
    #[error("sequence length: wanted 1 to {largest}, found {found}")]
    SequenceLength {
        /// Largest sequence length.
        largest: usize,
        /// The sequence length given.
        found: usize,
    },
    /// Weights, sizes or epochs that make no mixture.
    #[error("{0}")]
    Mixture(String),
    /// The context token of an evaluation is not in the vocabulary.
    #[error("context token: wanted a token below the vocabulary of {vocab_size}, found {found}")]
    ContextToken {
        /// The vocabulary.
        vocab_size: u32,
        /// The token given.
        found: u32,
    },
    /// A batch has more tokens than the machine can address.
    #[error("a batch of {sequences} sequences of {seq_len} tokens is too large to address")]
    BatchTooLarge {
        /// Sequences asked for.
        sequences: usize,
        /// The sequence length.
        seq_len: usize,
    },
    /// The system starts no thread that prepares batches.
    #[error(
        "cannot start a thread that prepares batches: {cause}; wanted one of loader.threads: raise the limit of processes \
         (ulimit -u), or set loader.prefetch = \"0\" to read batches in the step"
    )]
    Thread {
        /// The system's answer.
        cause: std::io::Error,
    },
    /// More samples were asked for than a counter of 64 bits can name.
    #[error("samples {first}.. {count} of them: the sample counter overflows")]
    CounterOverflow {
        /// First sample asked for.
        first: u64,
        /// Samples asked for.
        count: usize,
    },
}

/// Tokens whose mask is read at a time.
const CHUNK: u64 = 1 << 16;

/// Whether any of these tokens is scored. Reads the mask up to the first that is.
pub(crate) fn any_scored(set: &ShardSet, tokens: Range<u64>) -> Result<bool, ShardError> {
    for start in tokens.clone().step_by(CHUNK as usize) {
        if set.count_scored(start..tokens.end.min(start + CHUNK))? > 0 {
            return Ok(true);
        }
    }
    Ok(false)
}

impl LoadError {
    /// Refuses a split none of whose targets is scored. Targets are the tokens from `first_target` on.
    pub(crate) fn unless_scored(set: &ShardSet, first_target: u64) -> Result<(), LoadError> {
        let tokens = set.token_count();
        match any_scored(set, first_target..tokens)? {
            true => Ok(()),
            false => {
                let (path, split) = (set.path().to_owned(), set.split().into());
                Err(LoadError::NothingScored { path, split, tokens })
            }
        }
    }
}
