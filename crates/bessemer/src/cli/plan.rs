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
    /// Recipe (TOML) to find layouts for.
    #[arg(required = true)]
    pub(crate) recipe: Option<PathBuf>,
    /// Override a key, e.g. --set train.seq_len=4096 (may be repeated).
    #[arg(long = "set", value_name = "KEY=VALUE")]
    pub(crate) sets: Vec<String>,
    /// Number of devices.
    #[arg(long, value_name = "N", value_parser = devices, required = true)]
    pub(crate) devices: Option<NonZeroUsize>,
    /// Machine of the devices: a built-in name or a TOML file.
    #[arg(long, value_name = "NAME|FILE", default_value = "a100-80gb")]
    pub(crate) machine: String,
    /// Table of measured steps (CSV) to fit the cost model to.
    #[arg(long, value_name = "TABLE")]
    pub(crate) fit: Option<PathBuf>,
    /// Value of a column that the table does not have, for all its rows: NAME=VALUE, several separated by commas, or `megatron`.
    #[arg(long = "column", value_name = "NAME=VALUE", requires = "fit")]
    pub(crate) columns: Vec<String>,
    /// Search method.
    #[arg(long, value_enum, default_value_t = SearchMethod::Exhaustive)]
    pub(crate) method: SearchMethod,
    /// Compare all search methods, and plain layouts.
    #[arg(long)]
    pub(crate) compare: bool,
    /// Seed of --method mcmc.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(crate) seed: u64,
    /// Number of proposals of --method mcmc.
    #[arg(long, value_name = "N", default_value_t = 4000, value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    pub(crate) proposals: u64,
    /// Number of layouts to show, each planned by a dry run.
    #[arg(long, value_name = "K", default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=100))]
    pub(crate) top: u64,
    /// Failures per 1,000 node-days, comma-separated; published rates are 2.3 to 24.
    #[arg(long, value_name = "RATES", value_delimiter = ',', default_value = "2.3,24", value_parser = super::network::figure)]
    pub(crate) failures: Vec<f64>,
    /// Seconds that a save blocks training.
    #[arg(long, value_name = "SECONDS", default_value_t = 10.0, value_parser = super::network::figure)]
    pub(crate) save: f64,
    /// Seconds from a failure to the first step after it.
    #[arg(long, value_name = "SECONDS", default_value_t = 300.0, value_parser = super::network::figure)]
    pub(crate) restart: f64,
    /// Write an SVG of the time and the memory of these layouts.
    #[arg(long, value_name = "FILE")]
    pub(crate) svg: Option<PathBuf>,
}

/// A way to search for layouts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum SearchMethod {
    /// Every layout with the same choice for all layers.
    Exhaustive,
    /// Dynamic programming over layers with memory (Galvatron): layers and stages may differ.
    Layers,
    /// Markov chain over operator groups with a simulated step (FlexFlow).
    Mcmc,
    /// Layouts that follow from `parallel.annotate` (GShard), with the degrees of the recipe.
    Annotations,
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
    /// Compare predictions with a table of measured steps.
    ///
    /// Predicts every step of the table and prints the errors.
    Validate(PlanValidateArgs),
    /// Fit the cost model to layouts that run on this machine.
    ///
    /// Runs a few layouts of the recipe and writes their times.
    Calibrate(PlanCalibrateArgs),
}

/// `bessemer plan calibrate`
#[derive(Debug, Args)]
pub(crate) struct PlanCalibrateArgs {
    /// Recipe (TOML). No data is read: tokens are random.
    pub(crate) recipe: PathBuf,
    /// Override a key, e.g. --set train.seq_len=4096 (may be repeated).
    #[arg(long = "set", value_name = "KEY=VALUE")]
    pub(crate) sets: Vec<String>,
    /// Machine file of this machine, from `bessemer doctor --machine`.
    ///
    /// Its devices are the ranks that run.
    #[arg(long, value_name = "FILE")]
    pub(crate) machine: String,
    /// Number of layouts to run.
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = clap::value_parser!(u64).range(2..=16))]
    pub(crate) runs: u64,
    /// Timed steps per layout, after one warm-up step.
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=1000))]
    pub(crate) steps: u64,
    /// Table to write (CSV), for `bessemer plan --fit`.
    #[arg(long, value_name = "FILE", default_value = "calibration.csv")]
    pub(crate) out: PathBuf,
    #[command(flatten)]
    pub(crate) waiting: super::WaitingArgs,
}

/// `bessemer plan validate`
#[derive(Debug, Args)]
pub(crate) struct PlanValidateArgs {
    /// Tables of measured steps (CSV; docs/planner.md lists their columns). A table of several machines counts as one for each.
    #[arg(required = true, value_name = "TABLE")]
    pub(crate) tables: Vec<PathBuf>,
    /// Table to fit the constants of the cost model to, by its rows of the same machine where there are any. The rows used are not
    /// predicted. It may be one of the tables. Left out: constants that were fitted to nothing.
    #[arg(long, value_name = "TABLE", conflicts_with = "fit_each")]
    pub(crate) fit: Option<PathBuf>,
    /// Fit the constants to rows of each table itself.
    #[arg(long)]
    pub(crate) fit_each: bool,
    /// Largest number of rows to fit to.
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = clap::value_parser!(u64).range(1..=16))]
    pub(crate) fit_rows: u64,
    /// Value of a column that a table does not have, for all its rows, e.g. --column vocab=51200,recompute=full (may be repeated).
    ///
    /// `--column megatron` gives the values of Megatron-LM's GPT. Cells of a table come first.
    #[arg(long = "column", value_name = "NAME=VALUE")]
    pub(crate) columns: Vec<String>,
    /// Machine of rows that name none: a built-in name or a TOML file.
    ///
    /// From a table that names machines, only the rows of this machine are read.
    #[arg(long, value_name = "NAME|FILE")]
    pub(crate) machine: Option<String>,
    /// Write an SVG of predicted against measured times, one panel per table.
    #[arg(long, value_name = "FILE")]
    pub(crate) svg: Option<PathBuf>,
}
