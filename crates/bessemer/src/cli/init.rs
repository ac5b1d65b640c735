//! `bessemer init`.

use clap::Args;
use std::path::PathBuf;

/// `bessemer init`, for text or for chats.
#[derive(Debug, Args)]
pub(crate) struct InitArgs {
    /// Text: a folder or a file (text, .jsonl, .json, .csv, .parquet, .warc, .html).
    ///
    /// Rows and web archives may be compressed (.gz, .zst).
    #[arg(required_unless_present = "chats", conflicts_with = "chats")]
    pub(crate) texts: Option<PathBuf>,
    /// Recipe to write; must not exist. Its name is that of the run.
    #[arg(long, short, value_name = "FILE", default_value = "my.toml")]
    pub(crate) out: PathBuf,
    /// Chats to tune a model on: JSON lines, a JSON array or a table.
    #[arg(long, value_name = "FILE", requires = "from")]
    pub(crate) chats: Option<PathBuf>,
    /// Model to tune: a run, or a directory with config.json, which is imported into `runs`.
    #[arg(long, value_name = "MODEL", requires = "chats")]
    pub(crate) from: Option<PathBuf>,
    /// Template of the chats: a name, a file or a directory [default: that of the model].
    #[arg(long, value_name = "TEMPLATE", requires = "chats")]
    pub(crate) template: Option<String>,
    /// Hours of training to plan for, on this machine.
    #[arg(long, value_name = "H", default_value_t = 1.0, allow_negative_numbers = true, value_parser = hours)]
    pub(crate) hours: f64,
}

fn hours(text: &str) -> Result<f64, String> {
    super::number(text, 0.01..=100_000.0, "for example 0.5 or 12")
}
