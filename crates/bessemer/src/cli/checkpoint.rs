//! `bessemer checkpoint`, and `generate`, which reads one.

use super::RecipeArgs;
use clap::{Args, Subcommand, ValueEnum};
use std::path::PathBuf;

/// A checkpoint of a run.
#[derive(Debug, Clone, Args)]
pub(crate) struct RunArgs {
    /// Run directory, e.g. runs/quickstart.
    pub(crate) run: PathBuf,
    /// Step of the checkpoint; the newest intact one if left out.
    #[arg(long)]
    pub(crate) step: Option<u64>,
}

/// A checkpoint of a run or an object store.
#[derive(Debug, Clone, Args)]
pub(crate) struct PlaceArgs {
    /// Run directory, directory of checkpoints, one checkpoint, or address, e.g. s3://bucket/prefix.
    pub(crate) run: PathBuf,
    /// Step of the checkpoint; the newest intact one if left out.
    #[arg(long)]
    pub(crate) step: Option<u64>,
}

/// `bessemer checkpoint reshard`
#[derive(Debug, Args)]
pub(crate) struct ReshardArgs {
    /// A checkpoint, or a run or object store, of which the newest is taken.
    pub(crate) from: PathBuf,
    /// Directory that gets step-N, e.g. runs/other/checkpoints.
    pub(crate) out: PathBuf,
    /// Step of the checkpoint.
    #[arg(long)]
    pub(crate) step: Option<u64>,
    /// Keys of the recipe's parallel section, e.g. tensor=2,pipeline=2; the others have their defaults. Each rank of this layout then
    /// finds what it loads in few files. Without it the tensors are cut evenly along their first dim.
    #[arg(long, value_name = "KEY=VALUE,…")]
    pub(crate) layout: Option<String>,
    /// Ranks, each with files of its own.
    #[arg(long, value_name = "N", default_value = "1")]
    pub(crate) ranks: std::num::NonZeroUsize,
    /// Largest file in MiB.
    #[arg(long, value_name = "MIB", default_value_t = 4096, value_parser = clap::value_parser!(u64).range(1..=1 << 24))]
    pub(crate) max_file_mib: u64,
}

/// `bessemer checkpoint plan`
#[derive(Debug, Args)]
pub(crate) struct CheckpointPlanArgs {
    #[command(flatten)]
    pub(crate) recipe: RecipeArgs,
    /// Ranks of the job.
    #[arg(long, value_name = "N", default_value = "1")]
    pub(crate) ranks: std::num::NonZeroUsize,
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
    /// File of prompts, each continued --samples times: a line each, or JSON lines (.jsonl): strings, or objects with the key text.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["prompt", "prompt_file"])]
    pub(crate) prompts: Option<PathBuf>,
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
    /// Checkpoints of a run or an object store.
    Ls {
        /// Run directory, directory of checkpoints, or address, e.g. s3://bucket/prefix.
        run: PathBuf,
    },
    /// Tensors and state of a checkpoint.
    Inspect(PlaceArgs),
    /// Check every byte of a checkpoint (all of a run or an object store if no step is given).
    Verify(PlaceArgs),
    /// Delete checkpoints that the run's retention rule does not keep.
    Gc {
        /// Run directory, or address of an object store.
        run: PathBuf,
        /// Keep this many of the newest and nothing else, instead of what the run's recipe says in its save section.
        #[arg(long)]
        keep_last: Option<u64>,
    },
    /// Say what differs between two checkpoints; ends with code 1 if anything does.
    Diff {
        /// The first: a checkpoint, or a run or object store, of which the newest is taken.
        a: PathBuf,
        /// The second.
        b: PathBuf,
        /// Compare tensors and nothing else.
        #[arg(long)]
        tensors: bool,
    },
    /// Say how many bytes each rank of a recipe's layout writes of a checkpoint, and needs of one; nothing is run or written.
    Plan(CheckpointPlanArgs),
    /// Write a checkpoint anew in the files of another layout, or in another number of files, bit for bit.
    Reshard(ReshardArgs),
    /// Copy a checkpoint, byte for byte and verified, to a directory of checkpoints or into an object store.
    Copy {
        /// A checkpoint, or a run or object store, of which the newest is taken.
        from: PathBuf,
        /// Directory that gets step-N, e.g. runs/other/checkpoints, or address, e.g. s3://bucket/prefix.
        to: PathBuf,
        /// Step of the checkpoint.
        #[arg(long)]
        step: Option<u64>,
    },
    /// Make the object store of a run hold its newest checkpoint and what its save section keeps.
    Upload {
        /// Run directory.
        run: PathBuf,
        /// Address, instead of the recipe's save.upload.
        #[arg(long, value_name = "URL")]
        to: Option<String>,
        /// Upload although another run, or a job of this run elsewhere, has uploaded there; that one is refused from then on.
        #[arg(long)]
        take_over: bool,
    },
    /// Write a model that other tools read.
    Export(CheckpointExportArgs),
    /// Make a run directory from a Hugging Face model directory.
    Import {
        /// Directory with config.json and model.safetensors.
        from: PathBuf,
        /// New run directory.
        #[arg(long, short)]
        out: PathBuf,
    },
}

/// `bessemer checkpoint export`
#[derive(Debug, Args)]
pub(crate) struct CheckpointExportArgs {
    #[command(flatten)]
    pub(crate) run: RunArgs,
    /// What is written.
    #[arg(long, value_enum, default_value = "hf")]
    pub(crate) to: ExportFormat,
    /// New directory, or new file for gguf.
    #[arg(long, short)]
    pub(crate) out: PathBuf,
    /// Type of the weights in the file (rounded to nearest).
    #[arg(long, value_enum, default_value = "f32")]
    pub(crate) dtype: ExportedDType,
    /// Replace an earlier export there.
    #[arg(long)]
    pub(crate) overwrite: bool,
}

/// Layout of an export.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum ExportFormat {
    /// Directory of Hugging Face: config.json, model.safetensors, tokenizer.json.
    Hf,
    /// File of llama.cpp, tokenizer included.
    Gguf,
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
    /// gguf only: whole numbers of 8 bits with a scale for 32 of them.
    #[value(name = "q8_0")]
    Q8,
}
