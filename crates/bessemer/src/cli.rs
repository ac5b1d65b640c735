//! The command line, as clap sees it.

mod checkpoint;
mod cluster;
mod corpus;
mod doctor;
mod eval;
mod host;
mod init;
mod judge;
mod media;
mod metric;
mod network;
mod parity;
mod plan;
pub(crate) mod program;
mod scaling;
mod schedule;
pub(crate) mod scores;
mod serve;
mod study;
mod supervise;
mod waiting;

pub(crate) use checkpoint::{
    CheckpointCommand, CheckpointExportArgs, CheckpointPlanArgs, ExportFormat, ExportedDType, GenerateArgs,
    PlaceArgs, ReshardArgs, RunArgs,
};
pub(crate) use cluster::ClusterCommand;
pub(crate) use corpus::{CorpusCommand, ExplainArgs, ExportArgs, InspectArgs, TokenizerCommand};
pub(crate) use doctor::DoctorArgs;
pub use doctor::Matmul;
pub(crate) use eval::EvalArgs;
pub use host::HostArgs;
pub(crate) use init::InitArgs;
pub(crate) use judge::{
    JudgeCommand, JudgeCreateArgs, JudgeMethod, JudgeModelArgs, JudgePowerArgs, JudgeReadArgs,
    JudgeResultsArgs, JudgeServeArgs, JudgeSheetArgs,
};
pub(crate) use media::{MediaBuildArgs, MediaCommand, MediaDType, MediaNormalisation};
pub(crate) use metric::{BleuSmoothing, BleuTokens, MetricArgs, MetricName};
pub(crate) use network::{
    NetworkCommand, NetworkCompareArgs, NetworkFailuresArgs, NetworkJobArgs, NetworkPlaceArgs,
    NetworkShowArgs, NetworkSwitchArgs, RoutingChoice,
};
pub(crate) use parity::ParityArgs;
pub(crate) use plan::{PlanArgs, PlanCalibrateArgs, PlanCommand, PlanValidateArgs, SearchMethod};
pub(crate) use program::{ProgramCommand, ProgramShowArgs};
pub(crate) use scaling::{FitArgs, PublishedLaw, ScalingAdviseArgs, ScalingCommand, ScalingFitArgs};
pub(crate) use schedule::{EnergyArgs, FillArgs, ProgramArgs, ScheduleCommand, ShowArgs};
pub(crate) use serve::ServeArgs;
pub(crate) use study::{
    Size, StudyCommand, StudyCoordCheckArgs, StudyInitArgs, StudyLrArgs, StudyScalingArgs,
};
pub(crate) use supervise::SuperviseArgs;
pub use waiting::WaitingArgs;

use clap::{Args, Parser, Subcommand};
use std::path::PathBuf;

/// Bessemer: raw text in, trained and evaluated language model out.
#[derive(Debug, Parser)]
#[command(name = "bessemer", version, about, max_term_width = 110, after_help = EXIT_CODES)]
pub(crate) struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub(crate) command: Command,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

/// How a command shows its results and its progress.
#[derive(Debug, Args)]
pub struct OutputArgs {
    /// Print results as JSON on standard output.
    #[arg(long, global = true)]
    pub json: bool,
    /// No progress on standard error.
    #[arg(long, short, global = true)]
    quiet: bool,
    /// More on standard error: every step of a training, and what the program works with.
    #[arg(long, short, global = true, conflicts_with = "quiet")]
    verbose: bool,
}

/// The exit codes, as `--help` lists them.
const EXIT_CODES: &str = "Exit codes: 0 done; 1 failed; 2 the command line is wrong; 70 a defect of the program; 75 \
                          stopped as asked, the same command goes on; 76 a device of this host fails; 77 numbers are to be confirmed on other hosts; 78 the recipe is wrong or does not fit into memory";

impl OutputArgs {
    /// How much the user wants to read.
    pub fn verbosity(&self) -> Verbosity {
        match (self.quiet, self.verbose) {
            (true, _) => Verbosity::Quiet,
            (false, true) => Verbosity::Verbose,
            (false, false) => Verbosity::Normal,
        }
    }
}

/// How much a command writes to standard error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verbosity {
    /// Nothing but errors.
    Quiet,
    /// Progress, a line for each `train.log_every` steps.
    Normal,
    /// A line for each step, and details.
    Verbose,
}

/// Checks a size as the key corpus.memory takes it.
fn memory(text: &str) -> Result<String, String> {
    let config = bessemer_corpus_config::CorpusConfig { memory: text.into(), ..Default::default() };
    config.memory_bytes().map(|_| text.to_owned())
}

/// Parses the value of a `--threads` flag.
///
/// # Errors
/// A sentence with the allowed range.
pub fn threads(text: &str) -> Result<usize, String> {
    whole(text, 0..=MOST_THREADS, "0 takes all cores")
}

/// Most threads that a command starts.
const MOST_THREADS: usize = 1024;

/// Parses a whole number of a range.
pub(crate) fn whole(text: &str, range: std::ops::RangeInclusive<usize>, hint: &str) -> Result<usize, String> {
    match text.trim().parse() {
        Ok(value) if range.contains(&value) => Ok(value),
        _ => Err(format!("wanted a whole number from {} to {}; {hint}", range.start(), range.end())),
    }
}

/// Parses a number of a range.
pub(crate) fn number(text: &str, range: std::ops::RangeInclusive<f64>, hint: &str) -> Result<f64, String> {
    match text.trim().parse() {
        Ok(value) if range.contains(&value) => Ok(value),
        _ => Err(format!("wanted a number from {} to {}; {hint}", range.start(), range.end())),
    }
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
    #[arg(long, value_name = "SIZE", value_parser = memory)]
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
    /// Write a recipe for a text of your own: commented, sized for this machine.
    Init(InitArgs),
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
    /// Start a run and start it again after a crash, a hang or a lost host: `bessemer supervise -- mpirun -n 4 bessemer run recipe.toml`.
    Supervise(SuperviseArgs),
    /// How good a model is: loss on the validation split (or any text), tasks.
    Eval(EvalArgs),
    /// Score texts against references: BLEU, chrF, TER, ROUGE, METEOR, exact match, F1.
    Metric(MetricArgs),
    /// Have people compare or rate texts on a local page, and rate the systems that wrote them.
    #[command(subcommand)]
    Judge(JudgeCommand),
    /// Generate text from a prompt.
    Generate(GenerateArgs),
    /// Serve a model over HTTP: an interface that OpenAI's clients speak, and a chat page.
    Serve(ServeArgs),
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
    /// Measure this machine: cores, memory, arithmetic peak, bandwidth; or write it as a machine of the planner.
    Doctor(DoctorArgs),
    /// Train small models under every layout and hold the losses against those of one rank.
    Parity(ParityArgs),
    /// Find the fastest layouts of a training on machines that are not here; hold such predictions against measurements.
    Plan(PlanArgs),
    /// Look at what one rank runs: operators, shapes, layouts, collectives, bytes.
    #[command(subcommand)]
    Program(ProgramCommand),
    /// Look at pipeline schedules: timelines, bubbles, memory, energy.
    #[command(subcommand)]
    Schedule(ScheduleCommand),
    /// Look at networks of devices: size, cost, collective times, failures.
    #[command(subcommand)]
    Network(NetworkCommand),
    /// Scaling laws: loss by size and compute, fitted to runs or as published, and the sizes that they advise.
    #[command(subcommand)]
    Scaling(ScalingCommand),
    /// Run an experiment and report it: table, curves, verdict.
    #[command(subcommand)]
    Study(StudyCommand),
    /// For the program itself: runs a command in confinement.
    #[command(hide = true)]
    Confined {
        /// What `bessemer_sandbox::Confined` writes.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<std::ffi::OsString>,
    },
    /// Print a script that completes the program's verbs and flags in a shell.
    Completions {
        /// The shell.
        shell: clap_complete::Shell,
    },
    /// Write the manual pages: bessemer.1 and one for each verb.
    Man {
        /// Folder for the pages, created if it is not there.
        #[arg(long, value_name = "DIR")]
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
        /// Ranks of this machine that `parallel.layout = "auto"` is planned for.
        #[arg(long, value_name = "N")]
        ranks: Option<std::num::NonZeroUsize>,
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
