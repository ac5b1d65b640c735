//! The command line, as clap sees it.

mod experts;
mod layouts;
mod ranks;
mod scaling;

pub(crate) use experts::BenchExpertsArgs;
pub(crate) use layouts::BenchLayoutsArgs;
pub(crate) use ranks::BenchRanksArgs;
pub(crate) use scaling::BenchScalingArgs;

use bessemer::{Matmul, OutputArgs, threads};
use clap::{Args, Parser, Subcommand, ValueEnum};
use std::path::PathBuf;

/// Measure speed: training steps, operators, layouts, checkpoints.
#[derive(Debug, Parser)]
#[command(name = "bessemer-bench", version, about, max_term_width = 110)]
pub(crate) struct Cli {
    /// What to measure.
    #[command(subcommand)]
    pub(crate) command: BenchCommand,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

/// The verbs.
#[derive(Debug, Subcommand)]
pub(crate) enum BenchCommand {
    /// A training step on random tokens: forward, backward, AdamW.
    Step(Box<BenchStepArgs>),
    /// Several ranks of this process against one rank with all threads: the same step, in pairs.
    Ranks(Box<BenchRanksArgs>),
    /// Layouts on ranks of this process, some over slow links: the measured time of a step beside the simulated one.
    Layouts(Box<BenchLayoutsArgs>),
    /// The same step on one core, on more and, by a model, on machines of many cores.
    Scaling(Box<BenchScalingArgs>),
    /// A checkpoint: what it costs a training, how fast it is written and loaded, beside plain writing and reading.
    Save(Box<BenchSaveArgs>),
    /// Operators at the shapes of a training step: time, GFLOP/s, GB/s, share of the peak.
    Op(BenchOpArgs),
    /// Each rung of the kernel ladder, and each way to multiply, on a few operators, under the roofline.
    Ladder(BenchOpArgs),
    /// A layer of experts, forward and backward, beside a dense MLP of the same FLOPs and PyTorch's layers of experts.
    Experts(BenchExpertsArgs),
    /// The arithmetic peak alone, for scripts that want to know whether the machine was disturbed.
    Peak {
        /// Threads; 0 takes all cores.
        #[arg(long, default_value_t = 0, value_parser = threads)]
        threads: usize,
        /// Seconds of multiply-adds.
        #[arg(long, default_value_t = 0.5)]
        seconds: f64,
    },
}

/// `bessemer-bench step`
#[derive(Debug, Args)]
pub(crate) struct BenchStepArgs {
    /// Named architecture.
    #[arg(long, default_value = "gpt2-124m", conflicts_with = "recipe")]
    pub(crate) model: String,
    /// Model, micro-batch, precision and optimizer of a recipe instead.
    #[arg(long)]
    pub(crate) recipe: Option<PathBuf>,
    /// Override a key of the recipe (may be repeated).
    #[arg(long = "set", value_name = "KEY=VALUE", requires = "recipe")]
    pub(crate) sets: Vec<String>,
    /// Transformer layers, instead of the architecture's.
    #[arg(long)]
    pub(crate) layers: Option<u64>,
    /// Width, instead of the architecture's.
    #[arg(long)]
    pub(crate) width: Option<u64>,
    /// Heads, instead of the architecture's.
    #[arg(long)]
    pub(crate) heads: Option<u64>,
    /// Vocabulary, instead of the architecture's.
    #[arg(long)]
    pub(crate) vocab: Option<u64>,
    /// Positions, instead of the architecture's.
    #[arg(long)]
    pub(crate) context: Option<u64>,
    /// Sequences; 4 without a recipe.
    #[arg(long)]
    pub(crate) batch: Option<usize>,
    /// Tokens of a sequence; 256 without a recipe.
    #[arg(long)]
    pub(crate) seq: Option<usize>,
    /// Type in which activations are kept: f32 or bf16.
    #[arg(long, value_name = "TYPE")]
    pub(crate) dtype: Option<Activations>,
    /// How exact matrix products must be.
    #[arg(long, value_name = "PRECISION")]
    pub(crate) matmul: Option<Matmul>,
    /// Engine of matrix products instead of the fastest one that is exact enough: fma, fp16, amx, amx3, amx6.
    #[arg(long, value_name = "NAME", conflicts_with = "matmul")]
    pub(crate) engine: Option<String>,
    /// Threads; 0 takes all cores.
    #[arg(long, default_value_t = 0, value_parser = threads)]
    pub(crate) threads: usize,
    /// Timed steps.
    #[arg(long, default_value_t = 5)]
    pub(crate) steps: u64,
    /// Steps before the timed ones.
    #[arg(long, default_value_t = 2)]
    pub(crate) warmup: u64,
    /// Show the time of every operator.
    #[arg(long)]
    pub(crate) profile: bool,
    /// Write the initial weights (as a Hugging Face model) and the token ids into this new directory, for other programs
    /// to do the same steps.
    #[arg(long, value_name = "DIR")]
    pub(crate) dump: Option<PathBuf>,
}

/// `bessemer-bench save`
#[derive(Debug, Args)]
pub(crate) struct BenchSaveArgs {
    /// The training whose state is saved.
    #[command(flatten)]
    pub(crate) step: BenchStepArgs,
    /// Existing directory on the disk to measure. Three files or folders of the size of a checkpoint come and go in it.
    #[arg(long, value_name = "DIR", default_value = ".")]
    pub(crate) dir: PathBuf,
    /// How often everything is measured.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..=100))]
    pub(crate) rounds: u64,
    /// Keep the checkpoints, for other programs to save the same tensors.
    #[arg(long)]
    pub(crate) keep: bool,
}

/// `bessemer-bench op` and `bessemer-bench ladder`
#[derive(Debug, Args)]
pub(crate) struct BenchOpArgs {
    /// Only what has this in its name: linear, input gradient, weight gradient, loss, attention, rope, norm, gated, adamw, ...,
    /// or optimizer: a step of every optimizer over the parameters of gpt2-124m (which wants to be named).
    #[arg(default_value = "")]
    pub(crate) name: String,
    /// Shape instead of the usual ones (may be repeated): rows x inputs x outputs of linear maps (1024x768x3072), rows x
    /// width x vocabulary of the loss, sequences x length x heads x kv heads x head width of attention (4x256x12x12x64).
    #[arg(long = "shape", value_name = "AxBxC")]
    pub(crate) shapes: Vec<String>,
    /// Threads; 0 takes all cores.
    #[arg(long, default_value_t = 0, value_parser = threads)]
    pub(crate) threads: usize,
    /// Type of activations.
    #[arg(long, value_name = "TYPE", default_value = "f32")]
    pub(crate) dtype: Activations,
    /// How exact matrix products must be (the ladder shows all).
    #[arg(long, value_name = "PRECISION", default_value = "highest")]
    pub(crate) matmul: Matmul,
    /// Engine of matrix products instead of the fastest one that is exact enough, as in bessemer-bench step.
    #[arg(long, value_name = "NAME", conflicts_with = "matmul")]
    pub(crate) engine: Option<String>,
    /// Kernels: reference, portable, neon, avx2, avx512; the fastest ones if left out (the ladder shows all).
    #[arg(long, value_name = "RUNG")]
    pub(crate) kernels: Option<String>,
}

/// Type of stored activations.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Activations {
    /// 4 bytes.
    F32,
    /// 2 bytes.
    Bf16,
}

impl From<Activations> for bessemer_units::Storage {
    fn from(a: Activations) -> Self {
        match a {
            Activations::F32 => Self::F32,
            Activations::Bf16 => Self::Bf16,
        }
    }
}
