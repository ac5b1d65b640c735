//! `bessemer study`.

use clap::{Args, Subcommand};
use std::path::PathBuf;

/// `bessemer study ...`
#[derive(Debug, Subcommand)]
pub(crate) enum StudyCommand {
    /// Which deep networks of characters learn without warm-up: placements of normalisation and initialisations compared.
    Init(StudyInitArgs),
    /// muP's coordinate check: do updates have the same size at every width? muP and the standard parametrisation compared.
    CoordCheck(StudyCoordCheckArgs),
}

/// `bessemer study coord-check`
#[derive(Debug, Args)]
pub(crate) struct StudyCoordCheckArgs {
    /// Text to learn, read as characters; the beginning of the quickstart's corpus if left out.
    #[arg(long, value_name = "FILE")]
    pub(crate) text: Option<PathBuf>,
    /// Widths of the residual stream, separated by commas; multiples of the head width.
    #[arg(long, value_delimiter = ',', default_value = "64,128,256,512,1024")]
    pub(crate) widths: Vec<u64>,
    /// Width at which muP and the standard parametrisation are the same; the smallest if left out.
    #[arg(long)]
    pub(crate) base_width: Option<u64>,
    /// Width of a head; wider models have more heads.
    #[arg(long, default_value_t = 16)]
    pub(crate) head_dim: u64,
    /// Layers.
    #[arg(long, default_value_t = 4)]
    pub(crate) layers: u64,
    /// Characters of a sequence.
    #[arg(long, default_value_t = 64)]
    pub(crate) context: u64,
    /// Sequences of the batch, which is the same in every step.
    #[arg(long, default_value_t = 4)]
    pub(crate) batch: u64,
    /// Updates of a run.
    #[arg(long, default_value_t = 4)]
    pub(crate) steps: u64,
    /// Learning rate of Adam, constant.
    #[arg(long, default_value_t = 1e-3)]
    pub(crate) lr: f64,
    /// Largest slope of log size over log width, up or down, that counts as flat.
    #[arg(long, default_value_t = 0.2)]
    pub(crate) bound: f64,
    /// Runs of each width.
    #[arg(long, default_value_t = 3)]
    pub(crate) seeds: u64,
    /// The first seed.
    #[arg(long, default_value_t = 1)]
    pub(crate) seed: u64,
    /// Directory of coord-check.json and report.html.
    #[arg(long, short, default_value = "runs/coord-check")]
    pub(crate) out: PathBuf,
    /// Threads; 0 takes all cores. The result does not depend on it.
    #[arg(long, default_value_t = 0, value_parser = super::threads)]
    pub(crate) threads: usize,
}

/// `bessemer study init`
#[derive(Debug, Args)]
pub(crate) struct StudyInitArgs {
    /// Text to learn, read as characters; the beginning of the quickstart's corpus if left out.
    #[arg(long, value_name = "FILE")]
    pub(crate) text: Option<PathBuf>,
    /// Methods, separated by commas; all if left out: post-ln, post-ln-gpt2, pre-ln, ds-init, lri, t-fixup, deepnorm.
    #[arg(long, value_delimiter = ',')]
    pub(crate) methods: Vec<String>,
    /// Layers.
    #[arg(long, default_value_t = 24)]
    pub(crate) layers: u64,
    /// Width of the residual stream.
    #[arg(long, default_value_t = 64)]
    pub(crate) width: u64,
    /// Attention heads.
    #[arg(long, default_value_t = 4)]
    pub(crate) heads: u64,
    /// Characters of a sequence.
    #[arg(long, default_value_t = 64)]
    pub(crate) context: u64,
    /// Sequences of a step.
    #[arg(long, default_value_t = 12)]
    pub(crate) batch: u64,
    /// Steps of a run.
    #[arg(long, default_value_t = 400)]
    pub(crate) steps: u64,
    /// Learning rate of Adam, from the first step on.
    #[arg(long, default_value_t = 1e-3)]
    pub(crate) lr: f64,
    /// Runs of each method.
    #[arg(long, default_value_t = 3)]
    pub(crate) seeds: u64,
    /// The first seed.
    #[arg(long, default_value_t = 1)]
    pub(crate) seed: u64,
    /// Directory of study.json and report.html; finished runs in it are kept.
    #[arg(long, short, default_value = "runs/study-init")]
    pub(crate) out: PathBuf,
    /// Threads; 0 takes all cores. The result does not depend on it.
    #[arg(long, default_value_t = 0, value_parser = super::threads)]
    pub(crate) threads: usize,
}
