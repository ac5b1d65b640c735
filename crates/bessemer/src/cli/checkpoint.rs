//! `bessemer checkpoint` and what reads one: `eval`, `generate`.

use clap::{Args, Subcommand, ValueEnum};
use std::path::PathBuf;

/// Which checkpoint of a run.
#[derive(Debug, Clone, Args)]
pub(crate) struct RunArgs {
    /// Run directory, e.g. runs/quickstart.
    pub(crate) run: PathBuf,
    /// Step of the checkpoint; the newest intact one if left out.
    #[arg(long)]
    pub(crate) step: Option<u64>,
}

/// `bessemer eval`
#[derive(Debug, Args)]
pub(crate) struct EvalArgs {
    #[command(flatten)]
    pub(crate) run: RunArgs,
    /// Split to score.
    #[arg(long, default_value = "validation")]
    pub(crate) split: String,
    /// Score at most this many tokens, spread evenly; 0 scores all.
    #[arg(long, default_value_t = 0)]
    pub(crate) max_tokens: u64,
    /// Threads; 0 takes all cores.
    #[arg(long, default_value_t = 0, value_parser = super::threads)]
    pub(crate) threads: usize,
}

/// `bessemer generate`
#[derive(Debug, Args)]
pub(crate) struct GenerateArgs {
    #[command(flatten)]
    pub(crate) run: RunArgs,
    /// Text to continue; `-` reads it from standard input.
    #[arg(long, short, default_value = "")]
    pub(crate) prompt: String,
    /// File with the text to continue, taken byte for byte; `-` is standard input.
    #[arg(long, value_name = "FILE", conflicts_with = "prompt")]
    pub(crate) prompt_file: Option<PathBuf>,
    /// End the text before this string; may be given several times. The string is not printed.
    #[arg(long, value_name = "STRING", value_parser = stop)]
    pub(crate) stop: Vec<String>,
    /// New tokens at most.
    #[arg(long, value_name = "N", default_value_t = 200, value_parser = max_tokens)]
    pub(crate) max_tokens: usize,
    /// Divides the logits; 0 takes the most likely token each time.
    #[arg(long, value_name = "T", default_value_t = 0.8, allow_negative_numbers = true, value_parser = temperature)]
    pub(crate) temperature: f64,
    /// Only the k most likely tokens; 0 for all.
    #[arg(long, value_name = "K", default_value_t = 0)]
    pub(crate) top_k: u64,
    /// Only the most likely tokens that together have this probability.
    #[arg(long, value_name = "P", default_value_t = 0.95, allow_negative_numbers = true, value_parser = top_p)]
    pub(crate) top_p: f64,
    /// Seed of the sampling.
    #[arg(long, default_value_t = 0, value_parser = clap::value_parser!(u64).range(..=i64::MAX as u64))]
    pub(crate) seed: u64,
    /// Texts to generate. A line with the number stands before each if there are several.
    #[arg(long, short = 'n', value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    pub(crate) samples: u64,
    /// Threads; 0 takes all cores.
    #[arg(long, default_value_t = 0, value_parser = super::threads)]
    pub(crate) threads: usize,
}

fn stop(text: &str) -> Result<String, String> {
    if text.is_empty() { Err("wanted at least one character".into()) } else { Ok(text.into()) }
}

fn max_tokens(text: &str) -> Result<usize, String> {
    super::whole(text, 0..=1 << 32, "generation also ends where the model ends its text")
}

fn temperature(text: &str) -> Result<f64, String> {
    super::number(text, 0.0..=100.0, "0 takes the most likely token each time")
}

fn top_p(text: &str) -> Result<f64, String> {
    super::number(text, f64::MIN_POSITIVE..=1.0, "1 takes all tokens")
        .map_err(|_| "wanted a number above 0 and at most 1; 1 takes all tokens".into())
}

/// `bessemer checkpoint ...`
#[derive(Debug, Subcommand)]
pub(crate) enum CheckpointCommand {
    /// Checkpoints of a run.
    Ls {
        /// Run directory.
        run: PathBuf,
    },
    /// Tensors and state of a checkpoint.
    Inspect(RunArgs),
    /// Check every byte of a checkpoint (all of a run if no step is given).
    Verify(RunArgs),
    /// Delete checkpoints that the run's retention rule does not keep.
    Gc {
        /// Run directory.
        run: PathBuf,
        /// Keep this many of the newest and nothing else, instead of what the run's recipe says in its save section.
        #[arg(long)]
        keep_last: Option<u64>,
    },
    /// Write a model directory that other tools read.
    Export {
        #[command(flatten)]
        run: RunArgs,
        /// Format; hf = Hugging Face config.json, model.safetensors, tokenizer.json.
        #[arg(long, default_value = "hf")]
        to: String,
        /// New directory.
        #[arg(long, short)]
        out: PathBuf,
        /// Type of the weights in the file: f32, bf16 or f16 (rounded to nearest).
        #[arg(long, value_enum, default_value = "f32")]
        dtype: ExportedDType,
        /// Replace an earlier export there.
        #[arg(long)]
        overwrite: bool,
    },
    /// Make a run directory from a Hugging Face model directory.
    Import {
        /// Directory with config.json and model.safetensors.
        from: PathBuf,
        /// New run directory.
        #[arg(long, short)]
        out: PathBuf,
    },
}

/// Type of exported weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum ExportedDType {
    /// 4 bytes.
    F32,
    /// 2 bytes, the range of f32.
    Bf16,
    /// 2 bytes, up to 65504.
    F16,
}

impl From<ExportedDType> for bessemer_units::DType {
    fn from(d: ExportedDType) -> Self {
        match d {
            ExportedDType::F32 => Self::F32,
            ExportedDType::Bf16 => Self::Bf16,
            ExportedDType::F16 => Self::F16,
        }
    }
}
