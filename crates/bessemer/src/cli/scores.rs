//! `bessemer corpus train-classifier`, `train-lm`, `train-dsir` and `score`.

use bessemer_corpus_config::scores::ScoreKind;
use bessemer_score::fasttext::Loss;
use bessemer_units::did_you_mean;
use clap::{Args, ValueEnum};
use std::path::PathBuf;

/// Format of documents.
#[derive(Debug, Args)]
pub(crate) struct TextArgs {
    /// Field of the text in JSON lines.
    #[arg(long, default_value = "text")]
    pub(crate) field: String,
}

/// `bessemer corpus train-classifier`
#[derive(Debug, Args)]
pub(crate) struct TrainClassifierArgs {
    /// Wanted documents: .jsonl, or text with one per line (also .gz, .zst).
    #[arg(long)]
    pub(crate) positive: PathBuf,
    /// Unwanted documents, in the same formats.
    #[arg(long)]
    pub(crate) negative: PathBuf,
    /// Model to write, a fastText .bin file.
    #[arg(long)]
    pub(crate) out: PathBuf,
    /// Share of documents held out for evaluation.
    #[arg(long, default_value_t = 0.1)]
    pub(crate) held_out: f64,
    /// Initial learning rate.
    #[arg(long, default_value_t = 0.1)]
    pub(crate) lr: f64,
    /// Number of epochs.
    #[arg(long, default_value_t = 5)]
    pub(crate) epoch: u32,
    /// Dimension of the vectors.
    #[arg(long, default_value_t = 64)]
    pub(crate) dim: u32,
    /// Longest word n-grams.
    #[arg(long, default_value_t = 2)]
    pub(crate) word_ngrams: u32,
    /// Buckets of hashed n-grams.
    #[arg(long, default_value_t = 200_000)]
    pub(crate) bucket: u32,
    /// Shortest character n-grams.
    #[arg(long, default_value_t = 0)]
    pub(crate) minn: u32,
    /// Longest character n-grams; 0 for none.
    #[arg(long, default_value_t = 0)]
    pub(crate) maxn: u32,
    /// Fewest occurrences of a word.
    #[arg(long, default_value_t = 1)]
    pub(crate) min_count: u32,
    /// Loss function.
    #[arg(long, value_enum, default_value_t = LossName::Softmax)]
    pub(crate) loss: LossName,
    /// Seed of weights, draws and split.
    #[arg(long, default_value_t = 0)]
    pub(crate) seed: u32,
    /// Threads. The model does not depend on their number.
    #[arg(long, default_value_t = 1)]
    pub(crate) threads: u32,
    #[command(flatten)]
    pub(crate) text: TextArgs,
}

/// A loss of fastText.
#[derive(Debug, Clone, Copy, ValueEnum)]
pub(crate) enum LossName {
    /// Softmax over all labels.
    Softmax,
    /// Hierarchical softmax.
    Hs,
    /// Negative sampling.
    Ns,
    /// One-versus-all: one classifier per label.
    Ova,
}

impl From<LossName> for Loss {
    fn from(name: LossName) -> Loss {
        match name {
            LossName::Softmax => Loss::Softmax,
            LossName::Hs => Loss::Hs,
            LossName::Ns => Loss::Ns,
            LossName::Ova => Loss::Ova,
        }
    }
}

/// `bessemer corpus train-lm`
#[derive(Debug, Args)]
pub(crate) struct TrainLmArgs {
    /// Sentences: lines of a text, or of the texts of .jsonl (also .gz, .zst).
    pub(crate) input: PathBuf,
    /// Order of the model, 2 to 8.
    #[arg(long, default_value_t = 5)]
    pub(crate) order: usize,
    /// Model to write: .arpa is text, other names are KenLM probing binaries.
    #[arg(long)]
    pub(crate) out: PathBuf,
    /// Memory for sorting, e.g. 2GiB.
    ///
    /// A binary model is built in memory besides.
    #[arg(long, default_value = "1GiB", value_parser = bytes_named)]
    pub(crate) memory: u64,
    /// Folder for temporary files [default: that of the model].
    #[arg(long)]
    pub(crate) temporary: Option<PathBuf>,
    /// Normalise lines as cc_net does, and as scores of kind `perplexity`.
    #[arg(long)]
    pub(crate) normalize: bool,
    /// SentencePiece model (unigram) that cuts lines into the words of the model.
    #[arg(long, value_name = "MODEL")]
    pub(crate) pieces: Option<PathBuf>,
    /// Fail if discounts cannot be estimated, instead of using 0.5, 1 and 1.5.
    #[arg(long)]
    pub(crate) no_fallback: bool,
    #[command(flatten)]
    pub(crate) text: TextArgs,
}

/// `bessemer corpus train-dsir`
#[derive(Debug, Args)]
pub(crate) struct TrainDsirArgs {
    /// Target documents: .jsonl, or text with one per line (also .gz, .zst).
    #[arg(long)]
    pub(crate) target: PathBuf,
    /// Source documents to choose from, or a sample of them.
    #[arg(long)]
    pub(crate) source: PathBuf,
    /// Model to write.
    #[arg(long)]
    pub(crate) out: PathBuf,
    #[command(flatten)]
    pub(crate) text: TextArgs,
}

/// `bessemer corpus score`
#[derive(Debug, Args)]
pub(crate) struct ScoreArgs {
    /// Documents: .jsonl, or text with one per line (also .gz, .zst).
    ///
    /// The kinds `domain` and `date` read the fields `url` and `date` of JSON lines.
    pub(crate) input: PathBuf,
    /// Score: language, fasttext, perplexity, log-probability, importance, unigram, domain or date.
    #[arg(long, value_parser = kind_named)]
    pub(crate) kind: ScoreKind,
    /// Model file, for kinds that need one.
    #[arg(long, default_value = "")]
    pub(crate) model: String,
    /// Label whose probability is the score (fasttext).
    #[arg(long, default_value = "__label__positive")]
    pub(crate) label: String,
    /// SentencePiece model (unigram) of the language model (perplexity).
    #[arg(long, value_name = "MODEL", default_value = "")]
    pub(crate) pieces: String,
    /// Most documents to score.
    #[arg(long)]
    pub(crate) limit: Option<usize>,
    #[command(flatten)]
    pub(crate) text: TextArgs,
}

fn kind_named(name: &str) -> Result<ScoreKind, String> {
    serde_json::from_value(name.into()).map_err(|e| {
        let known = [
            "language",
            "fasttext",
            "perplexity",
            "log-probability",
            "importance",
            "unigram",
            "domain",
            "date",
        ];
        format!("{e}{}", did_you_mean(name, known))
    })
}

/// `1GiB`, `512 MiB`, `100kB` or a number of bytes.
fn bytes_named(text: &str) -> Result<u64, String> {
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let unit: u64 = match text[digits..].trim() {
        "" | "B" => 1,
        "kB" => 1000,
        "MB" => 1_000_000,
        "GB" => 1_000_000_000,
        "KiB" => 1 << 10,
        "MiB" => 1 << 20,
        "GiB" => 1 << 30,
        "TiB" => 1 << 40,
        other => return Err(format!("{other:?} is not a unit of bytes; wanted for example 512MiB or 2GiB")),
    };
    let count: u64 =
        text[..digits].parse().map_err(|_| format!("{text:?}: wanted for example 512MiB or 2GiB"))?;
    count.checked_mul(unit).ok_or_else(|| format!("{text:?} exceeds 64 bits"))
}
