//! `bessemer plan`.

use clap::{Args, Subcommand};
use std::path::PathBuf;

/// `bessemer plan ...`
#[derive(Debug, Subcommand)]
pub(crate) enum PlanCommand {
    /// Predict every step of a table of measured ones, and say how wrong the predictions are.
    Validate(PlanValidateArgs),
}

/// `bessemer plan validate`
#[derive(Debug, Args)]
pub(crate) struct PlanValidateArgs {
    /// Table of measured steps (CSV; docs/planner.md lists its columns).
    pub(crate) table: PathBuf,
    /// Table to fit the constants of the cost model to; at most 16 of its rows are used, and these are not predicted. It may be the
    /// same table. Left out: constants that were fitted to nothing.
    #[arg(long, value_name = "TABLE")]
    pub(crate) fit: Option<PathBuf>,
    /// Machine of rows that name none, from the catalogue or a TOML file; of a table that names machines only its rows are read.
    #[arg(long, value_name = "NAME|FILE")]
    pub(crate) machine: Option<String>,
    /// Write a picture of predicted against measured times.
    #[arg(long, value_name = "FILE")]
    pub(crate) svg: Option<PathBuf>,
}
