//! `bessemer study`.

use super::{FitArgs, RecipeArgs};
use clap::{Args, Subcommand};
use std::path::PathBuf;
use std::str::FromStr;

/// `bessemer study ...`
#[derive(Debug, Subcommand)]
pub(crate) enum StudyCommand {
    /// Which deep networks of characters learn without warm-up: placements of normalisation and initialisations compared.
    Init(StudyInitArgs),
    /// muP's coordinate check: do updates have the same size at every width? muP and the standard parametrisation compared.
    CoordCheck(StudyCoordCheckArgs),
    /// A scaling law from small runs of a recipe: trains models of several sizes on several lengths of its text, fits the law, and
    /// predicts a larger run before it trains it.
    Scaling(StudyScalingArgs),
    /// The best learning rate, and what the batch is worth: trains a small model of a recipe with each of them.
    Lr(StudyLrArgs),
}

/// A size of a decoder, as WIDTHxLAYERS.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Size {
    /// Width of the residual stream.
    pub(crate) width: u64,
    /// Layers.
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
    /// Sizes of the models, WIDTHxLAYERS, separated by commas; heads are as wide as those of the recipe's model. At least three.
    #[arg(long, value_delimiter = ',', default_value = "64x2,96x3,128x3,192x4")]
    pub(crate) sizes: Vec<Size>,
    /// Lengths of the text, in tokens for each parameter of the model, separated by commas. At least three.
    #[arg(long, value_name = "RATIOS", value_delimiter = ',', default_value = "2,5,10", value_parser = ratio)]
    pub(crate) tokens_per_parameter: Vec<f64>,
    /// A larger run, WIDTHxLAYERS, that is predicted by the law of the others and then trained.
    #[arg(long, value_name = "SIZE")]
    pub(crate) predict: Option<Size>,
    /// Length of that run's text, tokens for each parameter.
    #[arg(long, value_name = "RATIO", default_value_t = 10.0, value_parser = ratio)]
    pub(crate) predict_tokens_per_parameter: f64,
    #[command(flatten)]
    pub(crate) fit: FitArgs,
    /// Directory of the runs, of scaling.json and report.html; finished runs in it are kept.
    #[arg(long, short, default_value = "runs/study-scaling")]
    pub(crate) out: PathBuf,
}

/// `bessemer study lr`
#[derive(Debug, Args)]
pub(crate) struct StudyLrArgs {
    #[command(flatten)]
    pub(crate) recipe: RecipeArgs,
    /// Sizes of the models, WIDTHxLAYERS, separated by commas; the recipe's own if left out. Several show whether the best learning
    /// rate moves with the width.
    #[arg(long, value_delimiter = ',')]
    pub(crate) sizes: Vec<Size>,
    /// Peak learning rates, separated by commas; half, once, twice and four times the recipe's if left out.
    #[arg(long, value_delimiter = ',', value_parser = learning_rate)]
    pub(crate) lrs: Vec<f64>,
    /// Tokens of a step, separated by commas; the recipe's if left out.
    #[arg(long, value_delimiter = ',', value_parser = clap::value_parser!(u64).range(1..=1 << 32))]
    pub(crate) batches: Vec<u64>,
    /// Tokens of a run; the recipe's if left out.
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..=1 << 50))]
    pub(crate) tokens: Option<u64>,
    /// Directory of the runs, of lr.json and report.html; finished runs in it are kept.
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
