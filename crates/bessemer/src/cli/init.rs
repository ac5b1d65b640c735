//! `bessemer init`.

use clap::Args;
use std::path::PathBuf;

/// `bessemer init`
#[derive(Debug, Args)]
pub(crate) struct InitArgs {
    /// The text: a folder, or one file: text, .jsonl, .json, .csv, .parquet, .warc, .html (rows and WARC also .gz and .zst).
    pub(crate) texts: PathBuf,
    /// The recipe; its name is that of the run. Never replaces a file.
    #[arg(long, short, value_name = "FILE", default_value = "my.toml")]
    pub(crate) out: PathBuf,
    /// Hours that the training may take on this machine.
    #[arg(long, value_name = "H", default_value_t = 1.0, allow_negative_numbers = true, value_parser = hours)]
    pub(crate) hours: f64,
}

fn hours(text: &str) -> Result<f64, String> {
    super::number(text, 0.01..=100_000.0, "for example 0.5 or 12")
}
