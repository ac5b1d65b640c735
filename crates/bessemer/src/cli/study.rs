//! `bessemer study`.

use super::{FitArgs, RecipeArgs};
use clap::{Args, Subcommand};
use std::path::PathBuf;
use std::str::FromStr;

/// `bessemer study ...`
#[derive(Debug, Subcommand)]
pub(crate) enum StudyCommand {
    /// Compare initialisations of deep networks without warm-up.
    ///
    /// Placements of normalisation and initialisations, on a text of characters.
    Init(StudyInitArgs),
    /// Check that update sizes do not depend on width (muP).
    ///
    /// The coordinate check, for muP and the standard parametrisation.
    CoordCheck(StudyCoordCheckArgs),
    /// Measure a scaling law with small runs of a recipe.
    ///
    /// Trains models of several sizes on several lengths of its text, fits the law, and predicts a larger run before
    /// training it.
    Scaling(StudyScalingArgs),
    /// Find the best learning rate and batch size of a recipe.
    ///
    /// Trains a small model with each of them.
    Lr(StudyLrArgs),
}

/// A size of a decoder, as WIDTHxLAYERS.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Size {
    /// Width of the residual stream.
    pub(crate) width: u64,
    /// Number of layers.
    pub(crate) layers: u64,
}

impl FromStr for Size {
    type Err = String;

    fn from_str(text: &str) -> Result<Size, String> {
        let parts = text.trim().split_once('x').map(|(width, layers)| (width.parse(), layers.parse()));
        match parts {
            Some((Ok(width @ 1..=65_536), Ok(layers @ 1..=1024))) => Ok(Size { width, layers }),
            _ => Err("wanted WIDTHxLAYERS, e.g. 256x4".into()),
        }
    }
}

/// `bessemer study scaling`
#[derive(Debug, Args)]
pub(crate) struct StudyScalingArgs {
    #[command(flatten)]
    pub(crate) recipe: RecipeArgs,
    /// Model sizes, WIDTHxLAYERS, comma-separated; at least three.
    ///
    /// Heads are as wide as those of the recipe's model.
    #[arg(long, value_delimiter = ',', default_value = "64x2,96x3,128x3,192x4")]
    pub(crate) sizes: Vec<Size>,
    /// Training lengths in tokens per parameter, comma-separated; at least three.
    #[arg(long, value_name = "RATIOS", value_delimiter = ',', default_value = "2,5,10", value_parser = ratio)]
    pub(crate) tokens_per_parameter: Vec<f64>,
    /// Size of a larger run to predict with the law and then train.
    #[arg(long, value_name = "SIZE")]
    pub(crate) predict: Option<Size>,
    /// Training length of --predict, in tokens per parameter.
    #[arg(long, value_name = "RATIO", default_value_t = 10.0, value_parser = ratio)]
    pub(crate) predict_tokens_per_parameter: f64,
    #[command(flatten)]
    pub(crate) fit: FitArgs,
    /// Directory of the runs, scaling.json and report.html; finished runs are kept.
    #[arg(long, short, default_value = "runs/study-scaling")]
    pub(crate) out: PathBuf,
}

/// `bessemer study lr`
#[derive(Debug, Args)]
pub(crate) struct StudyLrArgs {
    #[command(flatten)]
    pub(crate) recipe: RecipeArgs,
    /// Model sizes, WIDTHxLAYERS, comma-separated [default: that of the recipe].
    ///
    /// Several sizes show whether the best learning rate changes with the width.
    #[arg(long, value_delimiter = ',')]
    pub(crate) sizes: Vec<Size>,
    /// Peak learning rates, comma-separated [default: 0.5, 1, 2 and 4 times the recipe's].
    #[arg(long, value_delimiter = ',', value_parser = learning_rate)]
    pub(crate) lrs: Vec<f64>,
    /// Batch sizes in tokens, comma-separated [default: that of the recipe].
    #[arg(long, value_delimiter = ',', value_parser = clap::value_parser!(u64).range(1..=1 << 32))]
    pub(crate) batches: Vec<u64>,
    /// Training tokens per run [default: those of the recipe].
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..=1 << 50))]
    pub(crate) tokens: Option<u64>,
    /// Directory of the runs, lr.json and report.html; finished runs are kept.
    #[arg(long, short, default_value = "runs/study-lr")]
    pub(crate) out: PathBuf,
}

fn ratio(text: &str) -> Result<f64, String> {
    super::number(text, 1e-3..=1e6, "e.g. 20")
}

fn learning_rate(text: &str) -> Result<f64, String> {
    super::number(text, 1e-12..=100.0, "e.g. 3e-3")
}

/// `bessemer study coord-check`
#[derive(Debug, Args)]
pub(crate) struct StudyCoordCheckArgs {
    /// Text to learn by characters [default: the beginning of the quickstart's corpus].
    #[arg(long, value_name = "FILE")]
    pub(crate) text: Option<PathBuf>,
    /// Widths of the residual stream, comma-separated multiples of the head width.
    #[arg(long, value_delimiter = ',', default_value = "64,128,256,512,1024")]
    pub(crate) widths: Vec<u64>,
    /// Width at which muP and standard agree [default: the smallest].
    #[arg(long)]
    pub(crate) base_width: Option<u64>,
    /// Head width; wider models have more heads.
    #[arg(long, default_value_t = 16)]
    pub(crate) head_dim: u64,
    /// Number of layers.
    #[arg(long, default_value_t = 4)]
    pub(crate) layers: u64,
    /// Sequence length in characters.
    #[arg(long, default_value_t = 64)]
    pub(crate) context: u64,
    /// Sequences per batch; every step uses the same batch.
    #[arg(long, default_value_t = 4)]
    pub(crate) batch: u64,
    /// Optimizer steps per run.
    #[arg(long, default_value_t = 4)]
    pub(crate) steps: u64,
    /// Learning rate of Adam, constant.
    #[arg(long, default_value_t = 1e-3)]
    pub(crate) lr: f64,
    /// Largest slope of log size over log width that counts as flat.
    #[arg(long, default_value_t = 0.2)]
    pub(crate) bound: f64,
    /// Seeds per width.
    #[arg(long, default_value_t = 3)]
    pub(crate) seeds: u64,
    /// First seed.
    #[arg(long, default_value_t = 1)]
    pub(crate) seed: u64,
    /// Directory of coord-check.json and report.html.
    #[arg(long, short, default_value = "runs/coord-check")]
    pub(crate) out: PathBuf,
    /// Threads; 0 for all cores. The result does not depend on it.
    #[arg(long, default_value_t = 0, value_parser = super::threads)]
    pub(crate) threads: usize,
}

/// `bessemer study init`
#[derive(Debug, Args)]
pub(crate) struct StudyInitArgs {
    /// Text to learn by characters [default: the beginning of the quickstart's corpus].
    #[arg(long, value_name = "FILE")]
    pub(crate) text: Option<PathBuf>,
    /// Methods, comma-separated [default: all].
    ///
    /// Methods: post-ln, post-ln-gpt2, pre-ln, ds-init, lri, t-fixup, deepnorm.
    #[arg(long, value_delimiter = ',')]
    pub(crate) methods: Vec<String>,
    /// Number of layers.
    #[arg(long, default_value_t = 24)]
    pub(crate) layers: u64,
    /// Width of the residual stream.
    #[arg(long, default_value_t = 64)]
    pub(crate) width: u64,
    /// Number of attention heads.
    #[arg(long, default_value_t = 4)]
    pub(crate) heads: u64,
    /// Sequence length in characters.
    #[arg(long, default_value_t = 64)]
    pub(crate) context: u64,
    /// Sequences per step.
    #[arg(long, default_value_t = 12)]
    pub(crate) batch: u64,
    /// Steps per run.
    #[arg(long, default_value_t = 400)]
    pub(crate) steps: u64,
    /// Learning rate of Adam, without warm-up.
    #[arg(long, default_value_t = 1e-3)]
    pub(crate) lr: f64,
    /// Seeds per method.
    #[arg(long, default_value_t = 3)]
    pub(crate) seeds: u64,
    /// First seed.
    #[arg(long, default_value_t = 1)]
    pub(crate) seed: u64,
    /// Directory of study.json and report.html; finished runs are kept.
    #[arg(long, short, default_value = "runs/study-init")]
    pub(crate) out: PathBuf,
    /// Threads; 0 for all cores. The result does not depend on it.
    #[arg(long, default_value_t = 0, value_parser = super::threads)]
    pub(crate) threads: usize,
}
