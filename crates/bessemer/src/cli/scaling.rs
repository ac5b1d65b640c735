//! `bessemer scaling`.

use clap::{Args, Subcommand, ValueEnum};
use std::path::PathBuf;

/// `bessemer scaling ...`
#[derive(Debug, Subcommand)]
pub(crate) enum ScalingCommand {
    /// Fit a scaling law to finished runs.
    ///
    /// Fits loss by parameters and tokens, with intervals, and prints the best sizes by compute.
    Fit(ScalingFitArgs),
    /// Recommend model size and tokens for a compute budget.
    ///
    /// Also for a time, a text or a model; with loss, batch, learning rate and price.
    Advise(ScalingAdviseArgs),
}

/// The runs that a law is fitted to, and how.
#[derive(Debug, Clone, Args)]
pub(crate) struct FitArgs {
    /// Fit one exponent for parameters and tokens, for few runs.
    #[arg(long)]
    pub(crate) one_exponent: bool,
    /// Bootstrap samples of the runs, for intervals.
    #[arg(long, value_name = "N", default_value_t = 1000, value_parser = clap::value_parser!(u64).range(1..=100_000))]
    pub(crate) samples: u64,
    /// Seed of the samples.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(crate) seed: u64,
}

/// `bessemer scaling fit`
#[derive(Debug, Args)]
pub(crate) struct ScalingFitArgs {
    /// Run directories, or CSV tables with columns parameters, tokens and loss.
    #[arg(required = true, value_name = "RUN|TABLE")]
    pub(crate) runs: Vec<PathBuf>,
    #[command(flatten)]
    pub(crate) fit: FitArgs,
    /// Law that is fitted; kaplan also compares both.
    #[arg(long, value_enum, default_value_t = FittedLaw::Chinchilla)]
    pub(crate) law: FittedLaw,
    /// Hold out the N runs of most compute, and predict them.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(crate) hold_out: usize,
    /// Write an HTML page with the fit, the runs and the best sizes.
    #[arg(long, short, value_name = "FILE")]
    pub(crate) out: Option<PathBuf>,
}

/// A law that is fitted to runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum FittedLaw {
    /// Hoffmann et al. 2022: three terms, parameters with embeddings.
    Chinchilla,
    /// Kaplan et al. 2020: two terms, parameters without embeddings.
    Kaplan,
}

/// A published law.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum PublishedLaw {
    /// Besiroglu et al. 2024: the points of Hoffmann et al. 2022, fitted again.
    Besiroglu,
    /// Hoffmann et al. 2022 (Chinchilla), constants before rounding; its optimiser had stopped too early.
    Hoffmann,
    /// Muennighoff et al. 2023, one exponent for both.
    Muennighoff,
    /// Kaplan et al. 2020, parameters without embeddings.
    Kaplan,
}

/// `bessemer scaling advise`
#[derive(Debug, Args)]
pub(crate) struct ScalingAdviseArgs {
    /// Compute budget in FLOPs, e.g. 1e21.
    #[arg(long, value_name = "FLOPS", value_parser = figure, required_unless_present_any = ["tokens", "parameters", "days"], conflicts_with = "days")]
    pub(crate) compute: Option<f64>,
    /// Training tokens; repeated ones count each time.
    #[arg(long, value_name = "N", value_parser = figure)]
    pub(crate) tokens: Option<f64>,
    /// Parameters of the model, with embeddings (--law kaplan: without).
    #[arg(long, value_name = "N", value_parser = figure)]
    pub(crate) parameters: Option<f64>,
    /// Days of training on --devices of --machine.
    #[arg(long, value_name = "DAYS", value_parser = figure, requires = "devices")]
    pub(crate) days: Option<f64>,
    /// Number of devices.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=10_000_000))]
    pub(crate) devices: Option<u64>,
    /// Machine of the devices: a built-in name of the planner or a TOML file.
    #[arg(long, value_name = "NAME|FILE", default_value = "h100-80gb")]
    pub(crate) machine: String,
    /// Model FLOPs utilisation (MFU) of the training; `bessemer plan` predicts it.
    #[arg(long, value_name = "SHARE", default_value_t = 0.4, value_parser = share)]
    pub(crate) mfu: f64,
    /// Published scaling law.
    #[arg(long, value_enum, default_value_t = PublishedLaw::Besiroglu, conflicts_with = "runs")]
    pub(crate) law: PublishedLaw,
    /// Fit the law to these runs instead, as `bessemer scaling fit` does.
    #[arg(long, value_name = "RUN|TABLE", num_args = 1..)]
    pub(crate) runs: Vec<PathBuf>,
    #[command(flatten)]
    pub(crate) fit: FitArgs,
    /// Number of unique tokens; more are read by repeating them.
    ///
    /// Repeated tokens count less (Muennighoff et al. 2023).
    #[arg(long, value_name = "N", value_parser = figure)]
    pub(crate) unique: Option<f64>,
    /// Tokens that the finished model will process (inference).
    ///
    /// A smaller model is then worth a longer training.
    #[arg(long, value_name = "N", value_parser = figure)]
    pub(crate) used: Option<f64>,
    /// Vocabulary size, for the shape of the model.
    #[arg(long, value_name = "N", default_value_t = 32_000, value_parser = clap::value_parser!(u64).range(2..=1 << 24))]
    pub(crate) vocabulary: u64,
}

fn figure(text: &str) -> Result<f64, String> {
    super::number(text, f64::MIN_POSITIVE..=1e40, "e.g. 7e9")
}

fn share(text: &str) -> Result<f64, String> {
    super::number(text, 1e-4..=1.0, "e.g. 0.4")
}
