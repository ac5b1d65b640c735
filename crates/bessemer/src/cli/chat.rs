//! `bessemer chat`

use clap::{Args, Subcommand, ValueEnum};
use std::path::PathBuf;

/// `bessemer chat ...`
#[derive(Debug, Subcommand)]
pub(crate) enum ChatCommand {
    /// Show chats as tokens, with the tokens that are scored.
    ///
    /// Scored tokens are green on a terminal, and between « and » elsewhere; · separates tokens.
    Show(ChatShowArgs),
}

/// Chats to show.
#[derive(Debug, Args)]
pub(crate) struct ChatShowArgs {
    /// JSON lines, a JSON array or a table, plain or compressed, or Parquet.
    ///
    /// Rows of OpenAI (messages), ShareGPT (conversations), Alpaca (instruction, input, output), or prompt and completion.
    pub(crate) file: PathBuf,
    /// Template: a name, a Jinja file, a tokenizer_config.json, or a model or run directory.
    ///
    /// Names: chatml, gemma, llama-2, llama-3, mistral, phi, qwen [default: that of the directory of --tokenizer].
    #[arg(long, value_name = "TEMPLATE")]
    pub(crate) template: Option<PathBuf>,
    /// A tokenizer.json, or a directory with one [default: that of the directory of --template].
    #[arg(long, value_name = "PATH")]
    pub(crate) tokenizer: Option<PathBuf>,
    /// Answers that are scored.
    #[arg(long, value_enum, default_value_t = ScoredAnswers::All)]
    pub(crate) answers: ScoredAnswers,
    /// Most tokens of a chat; its oldest turns are left out, an answer never.
    #[arg(long, value_name = "TOKENS")]
    pub(crate) context: Option<usize>,
    /// Chats to show.
    #[arg(long, value_name = "N", default_value_t = 3)]
    pub(crate) chats: usize,
    /// Read the whole file and count tokens; rows that are wrong are counted too.
    #[arg(long)]
    pub(crate) count: bool,
}

/// Answers that are scored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum ScoredAnswers {
    /// All answers.
    All,
    /// The last answer of a chat.
    Last,
}
