//! The command line, as clap sees it.

mod bench_ranks;
mod parity;

pub(crate) use bench_ranks::BenchRanksArgs;
pub(crate) use parity::ParityArgs;

use clap::{Args, Parser, Subcommand, ValueEnum};
use std::path::PathBuf;

/// Bessemer: raw text in, trained and evaluated language model out.
#[derive(Debug, Parser)]
#[command(name = "bessemer", version, about, max_term_width = 110)]
pub(crate) struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub(crate) command: Command,
    /// Print results as JSON on standard output.
    #[arg(long, global = true)]
    pub(crate) json: bool,
    /// No progress on standard error.
    #[arg(long, short, global = true)]
    pub(crate) quiet: bool,
}

/// A recipe with its overrides.
#[derive(Debug, Clone, Args)]
pub(crate) struct RecipeArgs {
    /// Recipe file (TOML).
    pub(crate) recipe: PathBuf,
    /// Override a key, e.g. --set train.steps=100 (may be repeated).
    #[arg(long = "set", value_name = "KEY=VALUE")]
    pub(crate) sets: Vec<String>,
}

/// A recipe to train.
#[derive(Debug, Clone, Args)]
pub(crate) struct TrainArgs {
    #[command(flatten)]
    pub(crate) recipe: RecipeArgs,
    /// Ranks that share the training, as threads of this process; the recipe's parallel section says how.
    #[arg(long, value_name = "N")]
    pub(crate) ranks: Option<std::num::NonZeroUsize>,
}

/// Which checkpoint of a run.
#[derive(Debug, Clone, Args)]
pub(crate) struct RunArgs {
    /// Run directory, e.g. runs/quickstart.
    pub(crate) run: PathBuf,
    /// Step of the checkpoint; the newest intact one if left out.
    #[arg(long)]
    pub(crate) step: Option<u64>,
}

/// The verbs.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Every stage of a recipe: corpus, tokenizer, shards, training, evaluation, report; finished stages are skipped.
    Run(TrainArgs),
    /// Build a corpus, or look into one.
    #[command(subcommand)]
    Corpus(CorpusCommand),
    /// Train a tokenizer, or use one.
    #[command(subcommand)]
    Tokenizer(TokenizerCommand),
    /// Train, or go on training where the run directory stopped. Needs the corpus, tokenizer and shards of the run.
    Train(TrainArgs),
    /// Loss, perplexity and bits per byte on the validation split.
    Eval(EvalArgs),
    /// Generate text from a prompt.
    Generate(GenerateArgs),
    /// List, check, thin out, export or import checkpoints.
    #[command(subcommand)]
    Checkpoint(CheckpointCommand),
    /// Show what a recipe means and where each value comes from.
    #[command(subcommand)]
    Config(ConfigCommand),
    /// Write report.html of a run again.
    Report {
        /// Run directory.
        run: PathBuf,
    },
    /// Measure this machine: cores, memory, arithmetic peak, bandwidth.
    Doctor,
    /// Measure speed.
    #[command(subcommand)]
    Bench(BenchCommand),
    /// Train small models under every layout and hold the losses against those of one rank.
    Parity(ParityArgs),
    /// Run an experiment and report it: table, curves, verdict.
    #[command(subcommand)]
    Study(StudyCommand),
}

/// `bessemer corpus ...`
#[derive(Debug, Subcommand)]
pub(crate) enum CorpusCommand {
    /// Collect, clean and split the corpus of a recipe.
    Build(RecipeArgs),
    /// Show documents that were dropped (with the reason) or kept.
    Inspect {
        /// Run directory or corpus directory.
        path: PathBuf,
        /// Only documents dropped for this reason.
        #[arg(long)]
        reason: Option<String>,
        /// Only documents of this source.
        #[arg(long)]
        source: Option<String>,
        /// Show kept documents of a split (train or validation) instead of dropped ones.
        #[arg(long, value_name = "SPLIT")]
        kept: Option<String>,
        /// At most this many.
        #[arg(long, default_value_t = 20)]
        limit: usize,
    },
    /// Counts by split, reason and source.
    Stats {
        /// Run directory or corpus directory.
        path: PathBuf,
    },
}

/// `bessemer tokenizer ...`
#[derive(Debug, Subcommand)]
pub(crate) enum TokenizerCommand {
    /// Train the tokenizer of a recipe on its corpus.
    Train(RecipeArgs),
    /// Token ids of a text file (or standard input).
    Encode {
        /// tokenizer.json or a run directory.
        tokenizer: PathBuf,
        /// Text file; standard input if left out.
        file: Option<PathBuf>,
    },
    /// Text of token ids (white-space separated, from a file or standard input).
    Decode {
        /// tokenizer.json or a run directory.
        tokenizer: PathBuf,
        /// File with ids; standard input if left out.
        file: Option<PathBuf>,
    },
    /// Size, special tokens, longest tokens.
    Inspect {
        /// tokenizer.json or a run directory.
        tokenizer: PathBuf,
    },
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

/// `bessemer config ...`
#[derive(Debug, Subcommand)]
pub(crate) enum ConfigCommand {
    /// The complete recipe.
    Show {
        #[command(flatten)]
        recipe: RecipeArgs,
        /// Say for every key where its value comes from.
        #[arg(long)]
        origin: bool,
    },
    /// JSON Schema of recipes.
    Schema,
    /// Keys in which two recipes differ.
    Diff {
        /// First recipe.
        a: PathBuf,
        /// Second recipe.
        b: PathBuf,
        /// Override a key in both, e.g. --set corpus.path=texts (may be repeated).
        #[arg(long = "set", value_name = "KEY=VALUE")]
        sets: Vec<String>,
    },
}

/// `bessemer bench ...`
#[derive(Debug, Subcommand)]
pub(crate) enum BenchCommand {
    /// A training step on random tokens: forward, backward, AdamW.
    Step(Box<BenchStepArgs>),
    /// Several ranks of this process against one rank with all threads: the same step, in pairs.
    Ranks(Box<BenchRanksArgs>),
    /// Operators at the shapes of a training step: time, GFLOP/s, GB/s, share of the peak.
    Op(BenchOpArgs),
    /// Each rung of the kernel ladder, and each way to multiply, on a few operators, under the roofline.
    Ladder(BenchOpArgs),
    /// The arithmetic peak alone, for scripts that want to know whether the machine was disturbed.
    Peak {
        /// Threads; 0 takes all cores.
        #[arg(long, default_value_t = 0)]
        threads: usize,
        /// Seconds of multiply-adds.
        #[arg(long, default_value_t = 0.5)]
        seconds: f64,
    },
}

/// `bessemer bench step`
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
    #[arg(long, default_value_t = 0)]
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

/// `bessemer bench op` and `bessemer bench ladder`
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
    #[arg(long, default_value_t = 0)]
    pub(crate) threads: usize,
    /// Type of activations.
    #[arg(long, value_name = "TYPE", default_value = "f32")]
    pub(crate) dtype: Activations,
    /// How exact matrix products must be (the ladder shows all).
    #[arg(long, value_name = "PRECISION", default_value = "highest")]
    pub(crate) matmul: Matmul,
    /// Engine of matrix products instead of the fastest one that is exact enough, as in bench step.
    #[arg(long, value_name = "NAME", conflicts_with = "matmul")]
    pub(crate) engine: Option<String>,
    /// Kernels: reference, portable, avx2, avx512; the fastest ones if left out (the ladder shows all).
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

/// Accuracy of matrix products; see `train.matmul_precision`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Matmul {
    /// f32.
    Highest,
    /// About 16 bits of every operand.
    High,
    /// About 8 bits of every operand.
    Medium,
}

impl From<Matmul> for bessemer_units::MatmulPrecision {
    fn from(m: Matmul) -> Self {
        match m {
            Matmul::Highest => Self::Highest,
            Matmul::High => Self::High,
            Matmul::Medium => Self::Medium,
        }
    }
}

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
    #[arg(long, default_value_t = 0)]
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
    #[arg(long, default_value_t = 0)]
    pub(crate) threads: usize,
}
