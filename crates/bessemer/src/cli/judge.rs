//! `bessemer judge`.

use clap::{Args, Subcommand};
use std::path::PathBuf;

/// `bessemer judge ...`
#[derive(Debug, Subcommand)]
pub(crate) enum JudgeCommand {
    /// Make the file of a study from texts of several systems.
    Create(JudgeCreateArgs),
    /// Serve the page on which people judge.
    Serve(JudgeServeArgs),
    /// Ratings or means with intervals, agreement, and how constant the judges are.
    Results(JudgeResultsArgs),
    /// Write a sheet (CSV) with tasks for a judge without the page; it does not say which system wrote what.
    Sheet(JudgeSheetArgs),
    /// Read a sheet that a judge has filled in.
    Read(JudgeReadArgs),
}

/// `bessemer judge create`
#[derive(Debug, Args)]
pub(crate) struct JudgeCreateArgs {
    /// File to make, a SQLite database.
    pub(crate) study: PathBuf,
    /// Texts, a line of JSON for each prompt: {"prompt": …, "texts": {"system": "text", …}}; a text may also be {"text": …,
    /// "log_probability": …}, the logarithm of the model's probability for each token, which HUSE needs.
    #[arg(long, value_name = "FILE")]
    pub(crate) texts: PathBuf,
    /// Points of a scale, the lowest first, separated by commas: each text is rated alone. Without it two texts are compared.
    #[arg(long, value_name = "LABELS", value_delimiter = ',')]
    pub(crate) scale: Vec<String>,
    /// The question; one that fits the kind of study if left out.
    #[arg(long, value_name = "TEXT")]
    pub(crate) question: Option<String>,
    /// Judgements of each task, by different judges.
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(crate) judgements: u32,
    /// Seed of the order of tasks and of sides.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(crate) seed: u64,
}

/// `bessemer judge serve`
#[derive(Debug, Args)]
pub(crate) struct JudgeServeArgs {
    /// File of the study.
    pub(crate) study: PathBuf,
    /// Address to listen at. Whoever reaches it can judge: beyond this machine, put a proxy with a password before it.
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:8090")]
    pub(crate) listen: String,
}

/// `bessemer judge results`
#[derive(Debug, Args)]
pub(crate) struct JudgeResultsArgs {
    /// File of the study.
    pub(crate) study: PathBuf,
    /// The system whose texts people wrote: HUSE of the others is given, where the study has a scale and probabilities.
    #[arg(long, value_name = "SYSTEM")]
    pub(crate) human: Option<String>,
    /// Samples of the items that intervals come from.
    #[arg(long, value_name = "N", default_value_t = 1000, value_parser = clap::value_parser!(u32).range(0..=100_000))]
    pub(crate) samples: u32,
    /// Seed of the samples.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(crate) seed: u64,
}

/// `bessemer judge sheet`
#[derive(Debug, Args)]
pub(crate) struct JudgeSheetArgs {
    /// File of the study.
    pub(crate) study: PathBuf,
    /// Name of the judge.
    #[arg(long)]
    pub(crate) judge: String,
    /// Tasks at most.
    #[arg(long, value_name = "N", default_value_t = 50)]
    pub(crate) tasks: usize,
    /// File to write.
    #[arg(long, short, value_name = "FILE")]
    pub(crate) out: PathBuf,
}

/// `bessemer judge read`
#[derive(Debug, Args)]
pub(crate) struct JudgeReadArgs {
    /// File of the study.
    pub(crate) study: PathBuf,
    /// The sheet, its column `choice` filled in: left, right or equal; or a point of the scale, from 1.
    pub(crate) sheet: PathBuf,
    /// Name of the judge.
    #[arg(long)]
    pub(crate) judge: String,
}
