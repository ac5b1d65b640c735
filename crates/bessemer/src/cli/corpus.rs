//! `bessemer corpus` and `bessemer tokenizer`.

use super::RecipeArgs;
use super::scores::{ScoreArgs, TrainClassifierArgs, TrainDsirArgs, TrainLmArgs};
use clap::{Args, Subcommand};
use std::path::PathBuf;

/// `bessemer corpus ...`
#[derive(Debug, Subcommand)]
pub(crate) enum CorpusCommand {
    /// Build the corpus of a recipe.
    ///
    /// Collects, cleans and splits the documents of its sources.
    Build {
        #[command(flatten)]
        recipe: RecipeArgs,
        /// Build on the cluster of this scheduler (docs/cluster.md).
        #[arg(long, value_name = "HOST:PORT")]
        cluster: Option<String>,
    },
    /// Run a cluster that builds corpora (docs/cluster.md).
    #[command(subcommand)]
    Cluster(super::ClusterCommand),
    /// Show documents that were dropped, with the reason, or kept.
    Inspect(InspectArgs),
    /// Export the kept documents as JSON lines.
    ///
    /// Keys: id, source, version, licence, path, split, text.
    Export(ExportArgs),
    /// Verify the files of a corpus; exit code 1 if one is damaged.
    ///
    /// Reads every file and compares it with the checksum that the build wrote.
    Verify {
        /// Run directory or corpus directory.
        path: PathBuf,
    },
    /// Delete documents by id from a corpus and its token shards.
    ///
    /// Later builds leave them out too.
    Delete {
        /// Run directory or corpus directory.
        path: PathBuf,
        /// Id of a document, from `corpus inspect --kept` (may be repeated).
        #[arg(long = "id", value_name = "ID")]
        ids: Vec<String>,
        /// File with one id per line.
        #[arg(long = "ids", value_name = "FILE")]
        file: Option<PathBuf>,
        /// Reason, for the list of deletions.
        #[arg(long, default_value = "")]
        reason: String,
    },
    /// Extract the main text of web pages.
    ///
    /// Reads each page of WARC and WET files (.gz, .zst), and HTML files.
    Extract {
        /// Web archives (.warc, .warc.gz, .warc.zst, .wet.gz) or HTML files.
        #[arg(required = true)]
        files: Vec<PathBuf>,
        /// Extract all visible text outside of navigation, not only the main text.
        #[arg(long)]
        plain: bool,
        /// Repair UTF-8 that was decoded as windows-1252 (`cafÃ©`).
        #[arg(long)]
        repair_mojibake: bool,
        /// Show only pages with text.
        #[arg(long)]
        ok: bool,
        /// Most pages to show.
        #[arg(long)]
        limit: Option<u64>,
    },
    /// Count documents and bytes by split, reason and source.
    Stats {
        /// Run directory or corpus directory.
        path: PathBuf,
        /// Recipe whose mixture is shown [default: that of the run directory].
        ///
        /// For a corpus of several sources: weights, and passes over each source.
        #[arg(long, value_name = "FILE")]
        recipe: Option<PathBuf>,
    },
    /// Write the data card of a corpus: one HTML page.
    ///
    /// The page shows how much each rule removed from each source, with samples.
    Card {
        /// Run directory or corpus directory.
        path: PathBuf,
        /// HTML file to write.
        #[arg(long, default_value = "card.html")]
        out: PathBuf,
    },
    /// Explain the verdict of every rule on the documents of a file.
    ///
    /// Prints value, limits and verdict of each rule of a profile.
    Explain(ExplainArgs),
    /// List the built-in profiles of rules, or the rules of one.
    Profiles {
        /// Name of a profile, or path of a profile file.
        name: Option<String>,
    },
    /// Train a fastText classifier of wanted and unwanted documents.
    ///
    /// The classifier is evaluated on held-out documents.
    TrainClassifier(TrainClassifierArgs),
    /// Train an n-gram language model in the formats of KenLM.
    ///
    /// Smoothing is interpolated modified Kneser-Ney.
    TrainLm(TrainLmArgs),
    /// Train importance weights (DSIR) for the choice of documents.
    ///
    /// The weights come from documents of a target and of a source.
    TrainDsir(TrainDsirArgs),
    /// Score every document of a file.
    Score(ScoreArgs),
    /// Review a sample of documents, and change rules by the verdicts.
    #[command(subcommand)]
    Review(ReviewCommand),
    /// Inspect images, audio and video, and build shards of them.
    #[command(subcommand)]
    Media(super::MediaCommand),
}

/// `bessemer corpus inspect ...`
#[derive(Debug, Clone, Args)]
pub(crate) struct InspectArgs {
    /// Run directory or corpus directory.
    pub(crate) path: PathBuf,
    /// Show only the document with this id, kept or dropped.
    #[arg(long)]
    pub(crate) id: Option<String>,
    /// Show only documents dropped for this reason.
    #[arg(long)]
    pub(crate) reason: Option<String>,
    /// Limit to documents of this source.
    #[arg(long)]
    pub(crate) source: Option<String>,
    /// Show kept documents of this split: train or validation.
    #[arg(long, value_name = "SPLIT")]
    pub(crate) kept: Option<String>,
    /// Print whole texts of kept documents, not only their beginning.
    #[arg(long)]
    pub(crate) full: bool,
    /// Most documents to show.
    #[arg(long, default_value_t = 20)]
    pub(crate) limit: usize,
}

/// `bessemer corpus review ...`
#[derive(Debug, Subcommand)]
pub(crate) enum ReviewCommand {
    /// Serve the page on which people review a sample of kept and dropped documents.
    ///
    /// Draws the sample if the file does not exist yet. Verdicts are appended to it.
    Serve(ReviewServeArgs),
    /// Print the changes of rules and thresholds that follow from the verdicts.
    ///
    /// With precision and recall of the filters before and after.
    Apply(ReviewApplyArgs),
}

/// `bessemer corpus review serve`
#[derive(Debug, Args)]
pub(crate) struct ReviewServeArgs {
    /// Run directory or corpus directory.
    pub(crate) path: PathBuf,
    /// File of the review (JSON lines) [default: corpus.review.jsonl beside the corpus].
    #[arg(long, value_name = "FILE")]
    pub(crate) file: Option<PathBuf>,
    /// Documents to review.
    #[arg(long, value_name = "N", default_value_t = 200, value_parser = clap::value_parser!(u32).range(20..=100_000))]
    pub(crate) documents: u32,
    /// Profile whose measures find unusual documents (may be repeated).
    #[arg(long, value_name = "NAME", default_value = "ziya2")]
    pub(crate) profile: Vec<String>,
    /// Verdicts on each document, by different reviewers.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=100))]
    pub(crate) verdicts: u32,
    /// Seed of the sample and of the order.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(crate) seed: u64,
    /// Address to listen on.
    ///
    /// Anyone who reaches it can review. Beyond this machine, put a proxy with a password in front of it.
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:8090")]
    pub(crate) listen: String,
    #[command(flatten)]
    pub(crate) hosts: super::serve::HostArgs,
}

/// `bessemer corpus review apply`
#[derive(Debug, Args)]
pub(crate) struct ReviewApplyArgs {
    /// Run directory or corpus directory.
    pub(crate) path: PathBuf,
    /// File of the review (JSON lines) [default: corpus.review.jsonl beside the corpus].
    #[arg(long, value_name = "FILE")]
    pub(crate) file: Option<PathBuf>,
    /// Recipe that the corpus was built from [default: that of the run directory].
    #[arg(long, value_name = "FILE")]
    pub(crate) recipe: Option<PathBuf>,
    /// Fewest verdicts that a change needs.
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(crate) least: u32,
    /// Share of the documents moved by a change for which the reviewers agree with it.
    #[arg(long, value_name = "SHARE", default_value_t = 0.9, value_parser = super::judge::share)]
    pub(crate) agreement: f64,
    /// Recipe to write, with profile files beside it; none of them may exist.
    ///
    /// Its base is the recipe of the corpus.
    #[arg(long, value_name = "FILE")]
    pub(crate) out: Option<PathBuf>,
}

/// `bessemer corpus export ...`
#[derive(Debug, Clone, Args)]
pub(crate) struct ExportArgs {
    /// Run directory or corpus directory.
    pub(crate) path: PathBuf,
    /// Export only this split: train or validation.
    #[arg(long, value_name = "SPLIT")]
    pub(crate) split: Option<String>,
    /// Limit to documents of this source.
    #[arg(long)]
    pub(crate) source: Option<String>,
    /// File to write [default: standard output].
    #[arg(long, value_name = "FILE")]
    pub(crate) out: Option<PathBuf>,
}

/// `bessemer corpus explain ...`
#[derive(Debug, Clone, Args)]
pub(crate) struct ExplainArgs {
    /// Documents: text, JSON lines (also .gz, .zst), Parquet, HTML or a web archive.
    pub(crate) file: Option<PathBuf>,
    /// Profile: a built-in name, a .toml file, or `list` (may be repeated).
    ///
    /// `bessemer corpus profiles` lists the names.
    #[arg(long, value_name = "NAME")]
    pub(crate) profile: Vec<String>,
    /// Predicate over columns, e.g. 'lang == "en" && quality > 0.3' (may be repeated).
    #[arg(long, value_name = "PREDICATE")]
    pub(crate) keep: Vec<String>,
    /// Field or column of the text.
    #[arg(long, value_name = "NAME", default_value = "text")]
    pub(crate) text: String,
    /// Most documents to show.
    #[arg(long, value_name = "N")]
    pub(crate) limit: Option<u64>,
}

/// `bessemer tokenizer ...`
#[derive(Debug, Subcommand)]
pub(crate) enum TokenizerCommand {
    /// Train the tokenizer of a recipe on its corpus.
    Train(RecipeArgs),
    /// Encode text as token ids.
    Encode {
        /// File tokenizer.json or run directory.
        tokenizer: PathBuf,
        /// Text file [default: standard input].
        file: Option<PathBuf>,
    },
    /// Decode token ids to text.
    ///
    /// Ids are separated by white space.
    Decode {
        /// File tokenizer.json or run directory.
        tokenizer: PathBuf,
        /// File with token ids [default: standard input].
        file: Option<PathBuf>,
    },
    /// Show the size, special tokens and longest tokens.
    Inspect {
        /// File tokenizer.json or run directory.
        tokenizer: PathBuf,
    },
}
