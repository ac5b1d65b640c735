//! `bessemer plan`.

use clap::{Args, Subcommand, ValueEnum};
use std::num::NonZeroUsize;
use std::path::PathBuf;

/// `bessemer plan ...`
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub(crate) struct PlanArgs {
    #[command(subcommand)]
    pub(crate) command: Option<PlanCommand>,
    /// Recipe file (TOML) of the training to find layouts for.
    #[arg(required = true)]
    pub(crate) recipe: Option<PathBuf>,
    /// Override a key, e.g. --set train.seq_len=4096 (may be repeated).
    #[arg(long = "set", value_name = "KEY=VALUE")]
    pub(crate) sets: Vec<String>,
    /// Devices that share the training.
    #[arg(long, value_name = "N", value_parser = devices, required = true)]
    pub(crate) devices: Option<NonZeroUsize>,
    /// Their kind: a machine of the catalogue, or a TOML file.
    #[arg(long, value_name = "NAME|FILE", default_value = "a100-80gb")]
    pub(crate) machine: String,
    /// Table of measured steps of the software that will run (CSV), to fit the constants of the cost model to.
    #[arg(long, value_name = "TABLE")]
    pub(crate) fit: Option<PathBuf>,
    /// How layouts are searched.
    #[arg(long, value_enum, default_value_t = SearchMethod::Exhaustive)]
    pub(crate) method: SearchMethod,
    /// Layouts to show, each planned by a dry run.
    #[arg(long, value_name = "K", default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=100))]
    pub(crate) top: u64,
}

/// A way to search for layouts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum SearchMethod {
    /// Every layout whose layers are alike.
    Exhaustive,
    /// Layouts of each operator by elimination over their graph, stages by dynamic programming (Alpa).
    Alpa,
}

fn devices(text: &str) -> Result<NonZeroUsize, String> {
    let devices = super::whole(text, 1..=MOST_DEVICES, "devices of one training")?;
    NonZeroUsize::new(devices).ok_or_else(|| "wanted at least 1".into())
}

/// Most devices of a plan: a dry run lists the parts of all ranks.
const MOST_DEVICES: usize = 1 << 17;

/// Verbs of `bessemer plan`.
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
