//! Errors of evaluation and generation.

use crate::kneser_ney::NgramError;
use bessemer_loader::LoadError;
use bessemer_runtime::ModelError;
use bessemer_shards::ShardError;
use bessemer_tokenizer::TokenizerError;

/// What can go wrong while a model is evaluated or generates text.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EvalError {
    /// A request to stop came before the evaluation was over.
    #[error("the evaluation was stopped on request")]
    Stopped,
    /// The model or its device refused.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// The validation windows could not be read.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// A shard could not be read.
    #[error(transparent)]
    Shard(#[from] ShardError),
    /// The tokenizer cannot encode a prompt, or does not know a token.
    #[error(transparent)]
    Tokenizer(#[from] TokenizerError),
    /// The n-gram baseline could not be trained.
    #[error(transparent)]
    Ngram(#[from] NgramError),
    /// The model's batches have another sequence length than the windows.
    #[error(
        "the windows have {windows} tokens, the model's batches {model}; make both with the same sequence length"
    )]
    SequenceLength {
        /// Of the windows.
        windows: usize,
        /// Of the model.
        model: usize,
    },
    /// No target is scored in the windows that an evaluation takes.
    #[error(
        "split {split:?}: the mask scores no target in the {windows} of {all} windows that are evaluated; wanted at least one: raise \
         eval.max_tokens, or hold out documents with answers"
    )]
    NothingScored {
        /// The split.
        split: String,
        /// Windows that are evaluated.
        windows: u64,
        /// Windows of the split.
        all: u64,
    },
    /// There is no byte length for a token of the data.
    #[error(
        "token {token} has no byte length: the tokenizer has {known} tokens; rebuild the shards with this \
         tokenizer"
    )]
    ByteLength {
        /// The token.
        token: u32,
        /// Tokens of the table.
        known: usize,
    },
    /// The shards hold a token that the tokenizer does not know.
    #[error(
        "token {token} at {at} of split {split:?} is not in the tokenizer's vocabulary; rebuild the shards \
         with this tokenizer"
    )]
    UnknownToken {
        /// The token.
        token: u32,
        /// Its offset in the split.
        at: u64,
        /// The split.
        split: String,
    },
    /// A range of tokens that the split does not have.
    #[error("split {split:?} holds {tokens} tokens, wanted those from {start} to {end}")]
    Range {
        /// First token asked for.
        start: u64,
        /// One past the last.
        end: u64,
        /// Tokens of the split.
        tokens: u64,
        /// The split.
        split: String,
    },
    /// A task cannot be read, or its answers do not belong to it.
    #[error(transparent)]
    Task(#[from] bessemer_tasks::TaskError),
    /// A request that this model cannot answer.
    #[error("{0}")]
    Request(String),
    /// Arguments that make no windows.
    #[error("{0}")]
    Windows(String),
    /// A sampling setting out of range.
    #[error("{0}")]
    Setting(String),
    /// A model gave a logit that is no number, or infinity.
    #[error(
        "the logit of token {token} is {value}: weights or activations are not finite; use a checkpoint from \
         before the loss became NaN"
    )]
    Logit {
        /// The token.
        token: usize,
        /// The logit.
        value: f32,
    },
    /// No token can follow.
    #[error("cannot sample a token: {0}")]
    NoCandidate(&'static str),
    /// Generation needs something to go on.
    #[error("the prompt is empty; begin with the end-of-text token, as every training document does")]
    EmptyPrompt,
    /// The prompt does not fit.
    #[error(
        "the prompt holds {prompt} tokens, the model's cache {capacity}; shorten the prompt or let the context slide \
         (context_limit = \"slide\")"
    )]
    PromptTooLong {
        /// Tokens of the prompt.
        prompt: usize,
        /// Positions of the cache.
        capacity: usize,
    },
    /// Generation works on one sequence.
    #[error("generation needs a cache for 1 sequence, found one for {0}")]
    CacheSequences(usize),
}
