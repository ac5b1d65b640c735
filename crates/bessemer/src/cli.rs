//! The command line, as clap sees it.

mod bench;
mod bench_pipeline;
mod bench_ranks;
mod checkpoint;
mod cluster;
mod corpus;
mod media;
mod parity;
mod schedule;
pub(crate) mod scores;
mod study;
mod waiting;

pub(crate) use bench::{BenchCommand, BenchOpArgs, BenchStepArgs};
pub(crate) use bench_pipeline::BenchPipelineArgs;
pub(crate) use bench_ranks::BenchRanksArgs;
pub(crate) use checkpoint::{CheckpointCommand, EvalArgs, GenerateArgs, RunArgs};
pub(crate) use cluster::ClusterCommand;
pub(crate) use corpus::{CorpusCommand, ExplainArgs, TokenizerCommand};
pub(crate) use media::{MediaBuildArgs, MediaCommand, MediaDType, MediaNormalisation};
pub(crate) use parity::ParityArgs;
pub(crate) use schedule::{EnergyArgs, FillArgs, ProgramArgs, ScheduleCommand, ShowArgs};
pub(crate) use study::{StudyCommand, StudyCoordCheckArgs, StudyInitArgs};
pub(crate) use waiting::WaitingArgs;

use clap::{Args, Parser, Subcommand};
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
    /// Memory of the stages before training, e.g. 2GiB: the key corpus.memory.
    #[arg(long, value_name = "SIZE")]
    pub(crate) memory: Option<String>,
}

impl RecipeArgs {
    /// The overrides of the command line.
    pub(crate) fn overrides(&self) -> Vec<String> {
        let memory = self.memory.iter().map(|size| format!("corpus.memory={size:?}"));
        self.sets.iter().cloned().chain(memory).collect()
    }
}

/// A recipe to train.
#[derive(Debug, Clone, Args)]
pub(crate) struct TrainArgs {
    #[command(flatten)]
    pub(crate) recipe: RecipeArgs,
    /// Ranks that share the training, as threads of this process; the recipe's parallel section says how.
    #[arg(long, value_name = "N")]
    pub(crate) ranks: Option<std::num::NonZeroUsize>,
    #[command(flatten)]
    pub(crate) waiting: WaitingArgs,
}

/// Runs to compare.
#[derive(Debug, Args)]
pub(crate) struct CompareArgs {
    /// Run directories, two or more.
    #[arg(required = true, num_args = 2..)]
    pub(crate) runs: Vec<PathBuf>,
    /// Write the comparison with its curves as one HTML page that needs no network.
    #[arg(long, value_name = "FILE")]
    pub(crate) out: Option<PathBuf>,
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
    /// Compare runs: key figures, curves, recipe differences.
    Compare(CompareArgs),
    /// List the runs of a directory: status, steps, best loss, when and where.
    Runs {
        /// Directory that holds run directories.
        #[arg(default_value = "runs")]
        directory: PathBuf,
    },
    /// Measure this machine: cores, memory, arithmetic peak, bandwidth.
    Doctor,
    /// Measure speed.
    #[command(subcommand)]
    Bench(BenchCommand),
    /// Train small models under every layout and hold the losses against those of one rank.
    Parity(ParityArgs),
    /// Look at pipeline schedules: timelines, bubbles, memory, energy.
    #[command(subcommand)]
    Schedule(ScheduleCommand),
    /// Run an experiment and report it: table, curves, verdict.
    #[command(subcommand)]
    Study(StudyCommand),
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
