//! `bessemer init`.

use clap::Args;
use std::path::PathBuf;

/// `bessemer init`
#[derive(Debug, Args)]
pub(crate) struct InitArgs {
    /// Text: a folder or a file (text, .jsonl, .json, .csv, .parquet, .warc, .html).
    ///
    /// Rows and web archives may be compressed (.gz, .zst).
    pub(crate) texts: PathBuf,
    /// Recipe to write; must not exist. Its name is that of the run.
    #[arg(long, short, value_name = "FILE", default_value = "my.toml")]
    pub(crate) out: PathBuf,
    /// Hours of training to plan for, on this machine.
    #[arg(long, value_name = "H", default_value_t = 1.0, allow_negative_numbers = true, value_parser = hours)]
    pub(crate) hours: f64,
}

fn hours(text: &str) -> Result<f64, String> {
    super::number(text, 0.01..=100_000.0, "for example 0.5 or 12")
}
