//! `bessemer judge`.

use clap::{Args, Subcommand, ValueEnum};
use std::path::PathBuf;

/// `bessemer judge ...`
#[derive(Debug, Subcommand)]
pub(crate) enum JudgeCommand {
    /// Make the file of a study from texts of several systems.
    Create(JudgeCreateArgs),
    /// Serve the page on which people judge.
    Serve(JudgeServeArgs),
    /// Let a model judge: that of a run directory, or one at an address that OpenAI's clients speak to.
    Model(JudgeModelArgs),
    /// Ratings or means with intervals, agreement, how constant the judges are, and how far models agree with people.
    Results(JudgeResultsArgs),
    /// Write a sheet (CSV) with tasks for a judge without the page; it does not say which system wrote what.
    Sheet(JudgeSheetArgs),
    /// Read a sheet that a judge has filled in.
    Read(JudgeReadArgs),
    /// How many judgements a study needs to tell two systems apart, or what a number of them can tell.
    Power(JudgePowerArgs),
    /// Write the study of an older program, a SQLite database, into a new file. The old one stays.
    #[cfg(feature = "migrate")]
    Migrate(JudgeMigrateArgs),
}

/// `bessemer judge migrate`
#[cfg(feature = "migrate")]
#[derive(Debug, Args)]
pub(crate) struct JudgeMigrateArgs {
    /// File of the older study.
    pub(crate) old: PathBuf,
    /// File to make, JSON lines.
    pub(crate) new: PathBuf,
}

/// `bessemer judge create`
#[derive(Debug, Args)]
pub(crate) struct JudgeCreateArgs {
    /// File to make, JSON lines.
    pub(crate) study: PathBuf,
    /// Texts, a line of JSON for each prompt: {"prompt": …, "texts": {"system": "text", …}}; a text may also be {"text": …,
    /// "log_probability": …}, the logarithm of the model's probability for each token, which HUSE needs. In dialogues the prompt and each text are
    /// lists of turns; "reference" may hold the right answer.
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
    /// Run directory of the system that HUSE will measure: its model gives every text, also those of people, its log_probability.
    #[arg(long, value_name = "RUN", requires = "scale")]
    pub(crate) probabilities_of: Option<PathBuf>,
    /// What stands between prompt and text for --probabilities-of.
    #[arg(long, value_name = "TEXT", default_value = "\n", requires = "probabilities_of")]
    pub(crate) between: String,
    /// Threads for --probabilities-of; 0 takes all cores.
    #[arg(long, default_value_t = 0, value_parser = super::threads)]
    pub(crate) threads: usize,
}

/// `bessemer judge model`
#[derive(Debug, Args)]
#[command(group(clap::ArgGroup::new("who").required(true).args(["run", "at"])))]
pub(crate) struct JudgeModelArgs {
    /// File of the study.
    pub(crate) study: PathBuf,
    /// Run directory of the model, trained or imported.
    pub(crate) run: Option<PathBuf>,
    /// Step of the checkpoint; the newest intact one if left out.
    #[arg(long, requires = "run")]
    pub(crate) step: Option<u64>,
    /// Address of a model instead, as OpenAI's clients name it: http://127.0.0.1:8080/v1.
    #[arg(long, value_name = "URL")]
    pub(crate) at: Option<String>,
    /// Name of the model at the address; the first that it lists if left out.
    #[arg(long, value_name = "NAME", requires = "at")]
    pub(crate) model: Option<String>,
    /// Send prompts as a message of a chat, for a model that follows instructions (with --method generate).
    #[arg(long, requires = "at")]
    pub(crate) chat: bool,
    /// File whose first line is the key that the address wants. It travels without encryption.
    #[arg(long, value_name = "FILE", requires = "at")]
    pub(crate) key_file: Option<PathBuf>,
    /// Requests in flight to the address at a time.
    #[arg(long, value_name = "N", default_value_t = 4, requires = "at", value_parser = requests)]
    pub(crate) parallel: usize,
    /// How verdicts are read: from the text that the model writes, or from which verdict is the most probable one.
    #[arg(long, value_enum, default_value_t = JudgeMethod::Likelihood)]
    pub(crate) method: JudgeMethod,
    /// Template: pair, pair-brief, scale, scale-brief, or a file (.toml); left out, pair-brief or scale-brief for likelihoods, else pair or scale.
    #[arg(long, value_name = "NAME|FILE")]
    pub(crate) template: Option<String>,
    /// Name of the judge in the results; made of model, template and method if left out.
    #[arg(long, value_name = "NAME")]
    pub(crate) judge: Option<String>,
    /// Tasks to judge at most, those first that people have judged.
    #[arg(long, value_name = "N")]
    pub(crate) limit: Option<usize>,
    /// Threads; 0 takes all cores.
    #[arg(long, default_value_t = 0, value_parser = super::threads)]
    pub(crate) threads: usize,
}

/// How the verdict of a model is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum JudgeMethod {
    /// The most probable of the continuations that stand for a verdict.
    Likelihood,
    /// A pattern in the text that the model writes.
    Generate,
}

fn requests(text: &str) -> Result<usize, String> {
    super::whole(text, 1..=256, "each is a connection")
}

/// `bessemer judge power`
#[derive(Debug, Args)]
pub(crate) struct JudgePowerArgs {
    /// Share of the comparisons with a winner that the better system wins; with --against, share of the first group.
    #[arg(long, value_name = "SHARE", value_parser = share)]
    pub(crate) win: f64,
    /// Share of a second group, judged by itself: two proportions are compared, not one with a half.
    #[arg(long, value_name = "SHARE", value_parser = share, conflicts_with = "ties")]
    pub(crate) against: Option<f64>,
    /// Share of comparisons that end in a tie. They tell nothing about who is better.
    #[arg(long, value_name = "SHARE", default_value_t = 0.0, value_parser = share)]
    pub(crate) ties: f64,
    /// Judgements that can be had: the power and the smallest share that they detect, too.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=100_000))]
    pub(crate) judgements: Option<u64>,
    /// Probability of finding the difference.
    #[arg(long, value_name = "SHARE", default_value_t = 0.8, value_parser = inner_share)]
    pub(crate) power: f64,
    /// Probability of finding one that is not there, on both sides together.
    #[arg(long, value_name = "SHARE", default_value_t = 0.05, value_parser = inner_share)]
    pub(crate) alpha: f64,
    /// Judgements of the same task by different judges.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(crate) per_task: u32,
    /// Correlation of the judgements of one task (0: each tells as much as one of another task).
    #[arg(long, value_name = "R", default_value_t = 0.0, value_parser = share)]
    pub(crate) correlation: f64,
}

fn share(text: &str) -> Result<f64, String> {
    let number: f64 = text.parse().map_err(|_| format!("wanted a number from 0 to 1, found {text:?}"))?;
    match (0.0..=1.0).contains(&number) {
        true => Ok(number),
        false => Err(format!("wanted a number from 0 to 1, found {text}")),
    }
}

fn inner_share(text: &str) -> Result<f64, String> {
    share(text).and_then(|number| match number > 0.0 && number < 1.0 {
        true => Ok(number),
        false => Err(format!("wanted a number between 0 and 1, found {text}")),
    })
}

/// `bessemer judge serve`
#[derive(Debug, Args)]
pub(crate) struct JudgeServeArgs {
    /// File of the study.
    pub(crate) study: PathBuf,
    /// Address to listen at. Whoever reaches it can judge: beyond this machine, put a proxy with a password before it.
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:8090")]
    pub(crate) listen: String,
    #[command(flatten)]
    pub(crate) hosts: super::serve::HostArgs,
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
    /// File to write; one that exists stays.
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
