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
    #[arg(long, default_value_t = 0)]
    pub(crate) threads: usize,
}

/// `bessemer generate`
#[derive(Debug, Args)]
pub(crate) struct GenerateArgs {
    #[command(flatten)]
    pub(crate) run: RunArgs,
    /// Text to continue.
    #[arg(long, short, default_value = "")]
    pub(crate) prompt: String,
    /// New tokens at most.
    #[arg(long, default_value_t = 200)]
    pub(crate) max_tokens: usize,
    /// 0 takes the most likely token each time.
    #[arg(long, default_value_t = 0.8)]
    pub(crate) temperature: f32,
    /// Only the k most likely tokens; 0 for all.
    #[arg(long, default_value_t = 0)]
    pub(crate) top_k: usize,
    /// Only the most likely tokens that together have this probability.
    #[arg(long, default_value_t = 0.95)]
    pub(crate) top_p: f32,
    /// Seed of the sampling.
    #[arg(long, default_value_t = 0)]
    pub(crate) seed: u64,
    /// Texts to generate.
    #[arg(long, short = 'n', default_value_t = 1)]
    pub(crate) samples: u64,
    /// Threads; 0 takes all cores.
    #[arg(long, default_value_t = 0)]
    pub(crate) threads: usize,
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
