//! Why samples cannot be served.

use bessemer_shards::ShardError;
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
