//! `bessemer judge`.

use clap::{Args, Subcommand, ValueEnum};
use std::path::PathBuf;

/// `bessemer judge ...`
#[derive(Debug, Subcommand)]
pub(crate) enum JudgeCommand {
    /// Create a study from texts of several systems.
    Create(JudgeCreateArgs),
    /// Serve the page on which people judge.
    Serve(JudgeServeArgs),
    /// Judge the texts of a study with a model.
    ///
    /// The model is that of a run directory, or one behind an OpenAI-compatible URL.
    Model(JudgeModelArgs),
    /// Print ratings with intervals, and the agreement of judges.
    ///
    /// Also how constant each judge is, and how far models agree with people.
    Results(JudgeResultsArgs),
    /// Write a CSV sheet of tasks for a judge without the page.
    ///
    /// The sheet does not contain the names of the systems.
    Sheet(JudgeSheetArgs),
    /// Read a sheet that a judge has filled in.
    Read(JudgeReadArgs),
    /// Compute how many judgements a study needs.
    ///
    /// With --judgements, also the smallest difference that they detect.
    Power(JudgePowerArgs),
    /// Migrate a study of an older version (SQLite) to a new file.
    ///
    /// The old file is kept.
    #[cfg(feature = "migrate")]
    Migrate(JudgeMigrateArgs),
}

/// `bessemer judge migrate`
#[cfg(feature = "migrate")]
#[derive(Debug, Args)]
pub(crate) struct JudgeMigrateArgs {
    /// Study file of the older version.
    pub(crate) old: PathBuf,
    /// Study file to create (JSON lines).
    pub(crate) new: PathBuf,
}

/// `bessemer judge create`
#[derive(Debug, Args)]
pub(crate) struct JudgeCreateArgs {
    /// Study file to create (JSON lines).
    pub(crate) study: PathBuf,
    /// Texts, one JSON line per prompt: {"prompt": …, "texts": {"SYSTEM": "text", …}}.
    ///
    /// A text may also be {"text": …, "log_probability": …}, the logarithm of the model's probability for each token,
    /// which HUSE needs. In dialogues the prompt and each text are lists of turns. "reference" may hold the right
    /// answer.
    #[arg(long, value_name = "FILE")]
    pub(crate) texts: PathBuf,
    /// Labels of a rating scale, lowest first.
    ///
    /// Each text is rated alone. Without a scale, two texts are compared.
    #[arg(long, value_name = "LABELS", value_delimiter = ',')]
    pub(crate) scale: Vec<String>,
    /// Question to the judges [default: one that fits the kind of study].
    #[arg(long, value_name = "TEXT")]
    pub(crate) question: Option<String>,
    /// Judgements per task, by different judges.
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(crate) judgements: u32,
    /// Seed of the order of tasks and sides.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(crate) seed: u64,
    /// Run directory of the model that HUSE measures.
    ///
    /// The model computes the log_probability of every text, also of those that people wrote.
    #[arg(long, value_name = "RUN", requires = "scale")]
    pub(crate) probabilities_of: Option<PathBuf>,
    /// Separator of prompt and text for --probabilities-of.
    #[arg(long, value_name = "TEXT", default_value = "\n", requires = "probabilities_of")]
    pub(crate) between: String,
    /// Threads for --probabilities-of; 0 for all cores.
    #[arg(long, default_value_t = 0, value_parser = super::threads)]
    pub(crate) threads: usize,
}

/// `bessemer judge model`
#[derive(Debug, Args)]
#[command(group(clap::ArgGroup::new("who").required(true).args(["run", "at"])))]
pub(crate) struct JudgeModelArgs {
    /// Study file.
    pub(crate) study: PathBuf,
    /// Run directory of the model, trained or imported.
    pub(crate) run: Option<PathBuf>,
    /// Step of the checkpoint [default: the newest intact one].
    #[arg(long, requires = "run")]
    pub(crate) step: Option<u64>,
    /// Base URL of an OpenAI-compatible server, e.g. http://127.0.0.1:8080/v1.
    #[arg(long, value_name = "URL")]
    pub(crate) at: Option<String>,
    /// Model at the URL [default: the first in its list].
    #[arg(long, value_name = "NAME", requires = "at")]
    pub(crate) model: Option<String>,
    /// Send prompts as chat messages, for instruction-tuned models.
    ///
    /// Only with --method generate.
    #[arg(long, requires = "at")]
    pub(crate) chat: bool,
    /// File whose first line is the API key, which is sent unencrypted.
    #[arg(long, value_name = "FILE", requires = "at")]
    pub(crate) key_file: Option<PathBuf>,
    /// Concurrent requests to the URL.
    #[arg(long, value_name = "N", default_value_t = 4, requires = "at", value_parser = requests)]
    pub(crate) parallel: usize,
    /// Source of the verdict: likelihoods or generated text.
    #[arg(long, value_enum, default_value_t = JudgeMethod::Likelihood)]
    pub(crate) method: JudgeMethod,
    /// Template: pair, pair-brief, scale, scale-brief, or a .toml file.
    ///
    /// The default is pair-brief or scale-brief for likelihoods, else pair or scale.
    #[arg(long, value_name = "NAME|FILE")]
    pub(crate) template: Option<String>,
    /// Name of the judge in results [default: model, template and method].
    #[arg(long, value_name = "NAME")]
    pub(crate) judge: Option<String>,
    /// Most tasks to judge, those with human judgements first.
    #[arg(long, value_name = "N")]
    pub(crate) limit: Option<usize>,
    /// Threads; 0 for all cores.
    #[arg(long, default_value_t = 0, value_parser = super::threads)]
    pub(crate) threads: usize,
}

/// How the verdict of a model is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum JudgeMethod {
    /// Most likely of the continuations that stand for a verdict.
    Likelihood,
    /// Pattern in the text that the model generates.
    Generate,
}

fn requests(text: &str) -> Result<usize, String> {
    super::whole(text, 1..=256, "each is a connection")
}

/// `bessemer judge power`
#[derive(Debug, Args)]
pub(crate) struct JudgePowerArgs {
    /// Share of decided comparisons that the better system wins.
    ///
    /// With --against, the share of the first group.
    #[arg(long, value_name = "SHARE", value_parser = share)]
    pub(crate) win: f64,
    /// Share of a second group: compares two proportions, not one with a half.
    #[arg(long, value_name = "SHARE", value_parser = share, conflicts_with = "ties")]
    pub(crate) against: Option<f64>,
    /// Share of comparisons that end in a tie.
    ///
    /// Ties carry no information about the better system.
    #[arg(long, value_name = "SHARE", default_value_t = 0.0, value_parser = share)]
    pub(crate) ties: f64,
    /// Available judgements; prints their power and the smallest share they detect.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=100_000))]
    pub(crate) judgements: Option<u64>,
    /// Power: probability of detecting the difference.
    #[arg(long, value_name = "SHARE", default_value_t = 0.8, value_parser = inner_share)]
    pub(crate) power: f64,
    /// Significance level, two-sided.
    #[arg(long, value_name = "SHARE", default_value_t = 0.05, value_parser = inner_share)]
    pub(crate) alpha: f64,
    /// Judgements per task, by different judges.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(crate) per_task: u32,
    /// Correlation of judgements of the same task; 0 if independent.
    #[arg(long, value_name = "R", default_value_t = 0.0, value_parser = share)]
    pub(crate) correlation: f64,
}

pub(super) fn share(text: &str) -> Result<f64, String> {
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
    /// Study file.
    pub(crate) study: PathBuf,
    /// Address to listen on.
    ///
    /// Anyone who reaches it can judge. Beyond this machine, put a proxy with a password in front of it.
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:8090")]
    pub(crate) listen: String,
    #[command(flatten)]
    pub(crate) hosts: super::serve::HostArgs,
}

/// `bessemer judge results`
#[derive(Debug, Args)]
pub(crate) struct JudgeResultsArgs {
    /// Study file.
    pub(crate) study: PathBuf,
    /// System whose texts people wrote, for HUSE of the others.
    ///
    /// Needs a study with a scale and probabilities.
    #[arg(long, value_name = "SYSTEM")]
    pub(crate) human: Option<String>,
    /// Bootstrap samples of the items, for intervals.
    #[arg(long, value_name = "N", default_value_t = 1000, value_parser = clap::value_parser!(u32).range(0..=100_000))]
    pub(crate) samples: u32,
    /// Seed of the samples.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(crate) seed: u64,
}

/// `bessemer judge sheet`
#[derive(Debug, Args)]
pub(crate) struct JudgeSheetArgs {
    /// Study file.
    pub(crate) study: PathBuf,
    /// Name of the judge.
    #[arg(long)]
    pub(crate) judge: String,
    /// Most tasks.
    #[arg(long, value_name = "N", default_value_t = 50)]
    pub(crate) tasks: usize,
    /// File to write; must not exist.
    #[arg(long, short, value_name = "FILE")]
    pub(crate) out: PathBuf,
}

/// `bessemer judge read`
#[derive(Debug, Args)]
pub(crate) struct JudgeReadArgs {
    /// Study file.
    pub(crate) study: PathBuf,
    /// Sheet with the column `choice` filled in: left, right, equal, or a point from 1.
    pub(crate) sheet: PathBuf,
    /// Name of the judge.
    #[arg(long)]
    pub(crate) judge: String,
}
