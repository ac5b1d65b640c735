//! Errors of chats.

/// Error of this crate.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ChatError {
    /// A row that is not a chat.
    #[error("line {line}: {problem}")]
    Row {
        /// Line, counted from 1; in a JSON array the number of the element, in a Parquet file that of the row.
        line: u64,
        /// Wanted and found.
        problem: String,
    },
    /// A file that cannot be read on.
    #[error("line {line}: cannot read: {source}")]
    Read {
        /// Line at which reading ended, counted from 1.
        line: u64,
        /// The system's error.
        source: std::io::Error,
    },
    /// A chat whose turns cannot be trained on.
    #[error("{0}")]
    Chat(String),
    /// A template that cannot be read, that rejects a chat, or in which answers cannot be found.
    #[error("chat template {template}: {problem}")]
    Template {
        /// Its name.
        template: String,
        /// Wanted and found.
        problem: String,
    },
    /// Special tokens that a template prints and the tokenizer lacks.
    #[error(
        "chat template {template}: wanted a tokenizer with the special tokens {}, found none named {}; take another template, or train the tokenizer with tokenizer.special_tokens",
        wanted.join(" "),
        missing.join(" ")
    )]
    Tokens {
        /// Name of the template.
        template: String,
        /// Special tokens of the template.
        wanted: Vec<String>,
        /// Special tokens that the tokenizer lacks.
        missing: Vec<String>,
    },
    /// A question with its answer that is longer than the context.
    #[error(
        "the last question with its answer has {tokens} tokens, wanted at most {context}; an answer is never cut: leave the chat out, or raise the context"
    )]
    TooLong {
        /// Tokens of system message, last question and answer.
        tokens: usize,
        /// Most tokens.
        context: usize,
    },
    /// Text that the tokenizer cannot encode.
    #[error(transparent)]
    Tokenizer(#[from] bessemer_tokenizer::TokenizerError),
}

/// Result with [`ChatError`].
pub type Result<T> = std::result::Result<T, ChatError>;
