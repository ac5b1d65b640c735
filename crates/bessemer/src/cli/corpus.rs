//! `bessemer corpus` and `bessemer tokenizer`.

use super::RecipeArgs;
use super::scores::{ScoreArgs, TrainClassifierArgs, TrainDsirArgs, TrainLmArgs};
use clap::{Args, Subcommand};
use std::path::PathBuf;

/// `bessemer corpus ...`
#[derive(Debug, Subcommand)]
pub(crate) enum CorpusCommand {
    /// Collect, clean and split the corpus of a recipe.
    Build {
        #[command(flatten)]
        recipe: RecipeArgs,
        /// Build it on the cluster of this scheduler (docs/cluster.md).
        #[arg(long, value_name = "HOST:PORT")]
        cluster: Option<String>,
    },
    /// Scheduler and executors of a cluster for corpora (docs/cluster.md).
    #[command(subcommand)]
    Cluster(super::ClusterCommand),
    /// Show documents that were dropped (with the reason) or kept.
    Inspect(InspectArgs),
    /// Write kept documents as JSON lines: id, source, version, licence, path, split, text.
    Export(ExportArgs),
    /// Read every file of a corpus and compare it with what its build wrote; exit code 1 if one is damaged.
    Verify {
        /// Run directory or corpus directory.
        path: PathBuf,
    },
    /// Delete documents by id: from the corpus, its token shards, and every later build.
    Delete {
        /// Run directory or corpus directory.
        path: PathBuf,
        /// Id of a document, as `corpus inspect --kept` prints it; may be given several times.
        #[arg(long = "id", value_name = "ID")]
        ids: Vec<String>,
        /// File with an id on each line.
        #[arg(long = "ids", value_name = "FILE")]
        file: Option<PathBuf>,
        /// Why, for the list of deletions.
        #[arg(long, default_value = "")]
        reason: String,
    },
    /// Show the main text of web pages: of each page of a WARC or WET file (.gz, .zst), or of HTML files.
    Extract {
        /// .warc, .warc.gz, .warc.zst, .wet.gz or .html files.
        #[arg(required = true)]
        files: Vec<PathBuf>,
        /// All visible text outside of navigation instead of the main text.
        #[arg(long)]
        plain: bool,
        /// Repair text that was UTF-8 and was read as windows-1252 (`cafÃ©`).
        #[arg(long)]
        repair_mojibake: bool,
        /// Only pages with text.
        #[arg(long)]
        ok: bool,
        /// At most this many pages.
        #[arg(long)]
        limit: Option<u64>,
    },
    /// Counts by split, reason and source.
    Stats {
        /// Run directory or corpus directory.
        path: PathBuf,
        /// Recipe whose training is shown for a corpus of several sources: weights, and passes over each; by default
        /// that of the run directory.
        #[arg(long, value_name = "FILE")]
        recipe: Option<PathBuf>,
    },
    /// Write the data card of a corpus: one HTML page with what was removed by which rule from which source, and samples.
    Card {
        /// Run directory or corpus directory.
        path: PathBuf,
        /// The page.
        #[arg(long, default_value = "card.html")]
        out: PathBuf,
    },
    /// Show what every rule of a profile says about each document of a file: value, limits, verdict.
    Explain(ExplainArgs),
    /// List the profiles of rules that the program carries, or the rules of one.
    Profiles {
        /// A profile's name, or the path of a profile file.
        name: Option<String>,
    },
    /// Train a fastText classifier from two piles of documents and judge it on held-out ones.
    TrainClassifier(TrainClassifierArgs),
    /// Estimate an n-gram language model (interpolated modified Kneser-Ney) that KenLM reads.
    TrainLm(TrainLmArgs),
    /// Make a model of importance weights (DSIR) from documents of a target and of a source.
    TrainDsir(TrainDsirArgs),
    /// Print a score of every document of a file.
    Score(ScoreArgs),
    /// Images, audio and video beside text.
    #[command(subcommand)]
    Media(super::MediaCommand),
}

/// `bessemer corpus inspect ...`
#[derive(Debug, Clone, Args)]
pub(crate) struct InspectArgs {
    /// Run directory or corpus directory.
    pub(crate) path: PathBuf,
    /// Only the document with this id, kept or dropped.
    #[arg(long)]
    pub(crate) id: Option<String>,
    /// Only documents dropped for this reason.
    #[arg(long)]
    pub(crate) reason: Option<String>,
    /// Only documents of this source.
    #[arg(long)]
    pub(crate) source: Option<String>,
    /// Show kept documents of a split (train or validation) instead of dropped ones.
    #[arg(long, value_name = "SPLIT")]
    pub(crate) kept: Option<String>,
    /// Whole texts of kept documents instead of their first characters.
    #[arg(long)]
    pub(crate) full: bool,
    /// At most this many.
    #[arg(long, default_value_t = 20)]
    pub(crate) limit: usize,
}

/// `bessemer corpus export ...`
#[derive(Debug, Clone, Args)]
pub(crate) struct ExportArgs {
    /// Run directory or corpus directory.
    pub(crate) path: PathBuf,
    /// Only documents of this split (train or validation).
    #[arg(long, value_name = "SPLIT")]
    pub(crate) split: Option<String>,
    /// Only documents of this source.
    #[arg(long)]
    pub(crate) source: Option<String>,
    /// The file; standard output if left out.
    #[arg(long, value_name = "FILE")]
    pub(crate) out: Option<PathBuf>,
}

/// `bessemer corpus explain ...`
#[derive(Debug, Clone, Args)]
pub(crate) struct ExplainArgs {
    /// Documents: a text file, JSON lines (.jsonl, also .gz and .zst), Parquet, a saved page or a web archive.
    pub(crate) file: Option<PathBuf>,
    /// Profile: a name that `bessemer corpus profiles` lists, a .toml file, or `list` (may be repeated).
    #[arg(long, value_name = "NAME")]
    pub(crate) profile: Vec<String>,
    /// A predicate over the columns, e.g. 'lang == "en" && quality > 0.3' (may be repeated).
    #[arg(long, value_name = "PREDICATE")]
    pub(crate) keep: Vec<String>,
    /// Field or column that holds the text.
    #[arg(long, value_name = "NAME", default_value = "text")]
    pub(crate) text: String,
    /// At most this many documents.
    #[arg(long, value_name = "N")]
    pub(crate) limit: Option<u64>,
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
