//! `bessemer corpus train-classifier`, `train-lm`, `train-dsir` and `score`.

use bessemer_corpus_config::scores::ScoreKind;
use bessemer_score::fasttext::Loss;
use bessemer_units::did_you_mean;
use clap::{Args, ValueEnum};
use std::path::PathBuf;

/// Where documents are read from.
#[derive(Debug, Args)]
pub(crate) struct TextArgs {
    /// Field of JSON lines that holds the text.
    #[arg(long, default_value = "text")]
    pub(crate) field: String,
}

/// `bessemer corpus train-classifier`
#[derive(Debug, Args)]
pub(crate) struct TrainClassifierArgs {
    /// Documents of what is wanted: .jsonl, or text with a document a line; also .gz and .zst.
    #[arg(long)]
    pub(crate) positive: PathBuf,
    /// Documents of what is not.
    #[arg(long)]
    pub(crate) negative: PathBuf,
    /// The model to write, a fastText .bin.
    #[arg(long)]
    pub(crate) out: PathBuf,
    /// Share of the documents that only judge the model.
    #[arg(long, default_value_t = 0.1)]
    pub(crate) held_out: f64,
    /// Learning rate at the beginning.
    #[arg(long, default_value_t = 0.1)]
    pub(crate) lr: f64,
    /// Passes over the documents.
    #[arg(long, default_value_t = 5)]
    pub(crate) epoch: u32,
    /// Size of a vector.
    #[arg(long, default_value_t = 64)]
    pub(crate) dim: u32,
    /// Longest word n-gram.
    #[arg(long, default_value_t = 2)]
    pub(crate) word_ngrams: u32,
    /// Rows that hashed n-grams share.
    #[arg(long, default_value_t = 200_000)]
    pub(crate) bucket: u32,
    /// Shortest piece of a word, in characters.
    #[arg(long, default_value_t = 0)]
    pub(crate) minn: u32,
    /// Longest piece of a word, in characters; 0 for none.
    #[arg(long, default_value_t = 0)]
    pub(crate) maxn: u32,
    /// Words seen less often are left out.
    #[arg(long, default_value_t = 1)]
    pub(crate) min_count: u32,
    /// How labels become probabilities.
    #[arg(long, value_enum, default_value_t = LossName::Softmax)]
    pub(crate) loss: LossName,
    /// Seed of weights, draws and split.
    #[arg(long, default_value_t = 0)]
    pub(crate) seed: u32,
    /// Threads; the model does not depend on them.
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
    /// One classifier a label.
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
    /// Sentences: the lines of a text, or of the text of .jsonl documents; also .gz and .zst.
    pub(crate) input: PathBuf,
    /// Length of the longest n-grams, 2 to 8.
    #[arg(long, default_value_t = 5)]
    pub(crate) order: usize,
    /// The model to write: .arpa for text, else a probing binary of KenLM.
    #[arg(long)]
    pub(crate) out: PathBuf,
    /// Memory for sorting; a binary is put together in memory besides.
    #[arg(long, default_value = "1GiB", value_parser = bytes_named)]
    pub(crate) memory: u64,
    /// Folder for sorted runs; that of the model if left out.
    #[arg(long)]
    pub(crate) temporary: Option<PathBuf>,
    /// Normalise every line as cc_net does; scores of kind `perplexity` normalise likewise.
    #[arg(long)]
    pub(crate) normalize: bool,
    /// SentencePiece model (unigram): every line is cut into its pieces, which are then the words of the model.
    #[arg(long, value_name = "MODEL")]
    pub(crate) pieces: Option<PathBuf>,
    /// Fail where the counts are too few for discounts, instead of taking 0.5, 1 and 1.5.
    #[arg(long)]
    pub(crate) no_fallback: bool,
    #[command(flatten)]
    pub(crate) text: TextArgs,
}

/// `bessemer corpus train-dsir`
#[derive(Debug, Args)]
pub(crate) struct TrainDsirArgs {
    /// Documents like those that are wanted: .jsonl, or text with a document a line; also .gz and .zst.
    #[arg(long)]
    pub(crate) target: PathBuf,
    /// Documents of the corpus to choose from, or a sample of them.
    #[arg(long)]
    pub(crate) source: PathBuf,
    /// The model to write.
    #[arg(long)]
    pub(crate) out: PathBuf,
    #[command(flatten)]
    pub(crate) text: TextArgs,
}

/// `bessemer corpus score`
#[derive(Debug, Args)]
pub(crate) struct ScoreArgs {
    /// Documents: .jsonl (with fields `url` and `date` where there are), or text with a document a line; also .gz and .zst.
    pub(crate) input: PathBuf,
    /// What to compute: language, fasttext, perplexity, log-probability, importance, unigram, domain or date.
    #[arg(long, value_parser = kind_named)]
    pub(crate) kind: ScoreKind,
    /// The model file, for kinds that need one.
    #[arg(long, default_value = "")]
    pub(crate) model: String,
    /// For `fasttext`: the label whose probability is the score.
    #[arg(long, default_value = "__label__positive")]
    pub(crate) label: String,
    /// For `perplexity`: the SentencePiece model (unigram) over whose pieces the model was made, as those of cc_net are.
    #[arg(long, value_name = "MODEL", default_value = "")]
    pub(crate) pieces: String,
    /// At most this many documents.
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
        other => return Err(format!("{other:?} is no unit of bytes; wanted for example 512MiB or 2GiB")),
    };
    let count: u64 =
        text[..digits].parse().map_err(|_| format!("{text:?}: wanted for example 512MiB or 2GiB"))?;
    count.checked_mul(unit).ok_or_else(|| format!("{text:?} exceeds 64 bits"))
}
