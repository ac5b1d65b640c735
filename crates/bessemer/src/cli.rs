//! The command line, as clap sees it.

mod chat;
mod checkpoint;
mod cluster;
mod corpus;
mod doctor;
mod eval;
mod examples;
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
mod suggest;
mod supervise;
mod waiting;

pub(crate) use chat::{ChatCommand, ChatShowArgs, ScoredAnswers};
pub(crate) use checkpoint::{
    CheckpointCommand, CheckpointExportArgs, CheckpointPlanArgs, ExportFormat, ExportedDType, GenerateArgs,
    PlaceArgs, ReshardArgs, RunArgs,
};
pub(crate) use cluster::ClusterCommand;
pub(crate) use corpus::{
    CorpusCommand, ExplainArgs, ExportArgs, InspectArgs, ReviewApplyArgs, ReviewCommand, ReviewServeArgs,
    TokenizerCommand,
};
pub(crate) use doctor::DoctorArgs;
pub use doctor::Matmul;
pub(crate) use eval::EvalArgs;
pub(crate) use examples::with_examples;
pub use host::HostArgs;
pub(crate) use init::InitArgs;
pub(crate) use judge::{
    JudgeCommand, JudgeCreateArgs, JudgeMethod, JudgeModelArgs, JudgePowerArgs, JudgeReadArgs,
    JudgeResultsArgs, JudgeSheetArgs,
};
pub(crate) use media::{MediaBuildArgs, MediaCommand, MediaDType, MediaNormalisation};
pub(crate) use metric::{BleuSmoothing, BleuTokens, MetricArgs, MetricName};
pub(crate) use network::{
    NetworkCommand, NetworkCompareArgs, NetworkFailuresArgs, NetworkJobArgs, NetworkPlaceArgs,
    NetworkShowArgs, NetworkSwitchArgs, RoutingChoice,
};
pub(crate) use parity::ParityArgs;
pub(crate) use plan::{PlanArgs, PlanCalibrateArgs, PlanCommand, PlanValidateArgs, SearchMethod};
pub(crate) use program::{ProgramCommand, ProgramShowArgs, ProgramSimulateArgs};
pub(crate) use scaling::{
    FitArgs, FittedLaw, PublishedLaw, ScalingAdviseArgs, ScalingCommand, ScalingFitArgs,
};
pub(crate) use schedule::{EnergyArgs, FillArgs, ProgramArgs, ScheduleCommand, ShowArgs};
pub(crate) use serve::{NamedAdapter, ServeArgs};
pub(crate) use study::{
    Size, StudyCommand, StudyCoordCheckArgs, StudyInitArgs, StudyLrArgs, StudyScalingArgs,
};
pub(crate) use suggest::with_suggestion;
pub(crate) use supervise::SuperviseArgs;
pub use waiting::WaitingArgs;

use clap::{Args, Parser, Subcommand};
use std::path::PathBuf;

/// Bessemer turns text into a trained language model.
#[derive(Debug, Parser)]
#[command(name = "bessemer", version, max_term_width = 110)]
pub(crate) struct Cli {
    /// The verb.
    #[command(subcommand)]
    pub(crate) command: Command,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

/// How a command shows its results and its progress.
#[derive(Debug, Args)]
pub struct OutputArgs {
    /// Print results as JSON
    #[arg(long, global = true)]
    pub json: bool,
    /// No progress, errors only
    #[arg(long, short, global = true)]
    quiet: bool,
    /// A line for every training step, and details
    #[arg(long, short, global = true, conflicts_with = "quiet")]
    verbose: bool,
}

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
    /// Errors only.
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
    /// Recipe file (TOML), or the name of a built-in recipe.
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
    /// Ranks of the training, as threads of this process; `[parallel]` in the recipe divides them.
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
    /// Write a recipe for your own text, sized for this machine.
    Init(InitArgs),
    /// Run a recipe: corpus, tokenizer, training, evaluation, report.
    ///
    /// A stage whose result exists and still fits the recipe is skipped, so the same command resumes a run.
    Run(TrainArgs),
    /// List the built-in recipes, or print one.
    #[command(args_conflicts_with_subcommands = true)]
    Recipes {
        #[command(subcommand)]
        command: Option<RecipesCommand>,
    },
    /// Build, inspect, score, export corpora.
    #[command(subcommand)]
    Corpus(CorpusCommand),
    /// Train, inspect and apply tokenizers.
    #[command(subcommand)]
    Tokenizer(TokenizerCommand),
    /// Chats as tokens: templates, and what is scored.
    #[command(subcommand)]
    Chat(ChatCommand),
    /// Train, or resume training, on shards that exist.
    ///
    /// The run directory must contain corpus, tokenizer and shards: `bessemer run` makes them.
    Train(TrainArgs),
    /// Restart a run after a crash, a hang or a lost host.
    Supervise(SuperviseArgs),
    /// Evaluate a model: loss, bits per byte, tasks.
    Eval(EvalArgs),
    /// Score texts against references: BLEU, chrF, ROUGE, METEOR, F1.
    ///
    /// Also TER, exact match, agreement of annotators, bias by counting, toxicity.
    Metric(MetricArgs),
    /// Have people or models compare and rate texts.
    #[command(subcommand)]
    Judge(JudgeCommand),
    /// Generate text from a prompt.
    Generate(GenerateArgs),
    /// Serve a model over HTTP: OpenAI's interface and a chat page.
    Serve(ServeArgs),
    /// List, verify, thin out, export, import checkpoints.
    #[command(subcommand)]
    Checkpoint(CheckpointCommand),
    /// Show the keys of a recipe, their values and origins.
    #[command(subcommand)]
    Config(ConfigCommand),
    /// Write the report.html of a run again.
    Report {
        /// Run directory.
        run: PathBuf,
    },
    /// Compare runs: key figures, curves, recipe differences.
    Compare(CompareArgs),
    /// List runs: status, steps, best loss.
    Runs {
        /// Directory that holds run directories.
        #[arg(default_value = "runs")]
        directory: PathBuf,
    },
    /// Measure this machine: cores, memory, peak, bandwidth.
    Doctor(DoctorArgs),
    /// Check the losses of every parallel layout against one rank.
    Parity(ParityArgs),
    /// Find the fastest layout of a training on given machines.
    Plan(PlanArgs),
    /// Show what a rank executes: operators, shapes, collectives.
    #[command(subcommand)]
    Program(ProgramCommand),
    /// Simulate pipeline schedules: bubbles, memory, energy.
    #[command(subcommand)]
    Schedule(ScheduleCommand),
    /// Model networks: cost, collective times, failures.
    #[command(subcommand)]
    Network(NetworkCommand),
    /// Fit scaling laws; advise sizes for a budget.
    #[command(subcommand)]
    Scaling(ScalingCommand),
    /// Run studies: scaling, learning rate, initialisation, muP.
    #[command(subcommand)]
    Study(StudyCommand),
    /// For the program itself: runs a command in confinement.
    #[command(hide = true)]
    Confined {
        /// Arguments written by `bessemer_sandbox::Confined`.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<std::ffi::OsString>,
    },
    /// Print the completion script of a shell.
    Completions {
        /// The shell.
        shell: clap_complete::Shell,
    },
    /// Write the manual pages.
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

/// `bessemer recipes ...`
#[derive(Debug, Subcommand)]
pub(crate) enum RecipesCommand {
    /// Print a built-in recipe.
    Show {
        /// Its name, as `bessemer recipes` lists it.
        name: String,
    },
}
