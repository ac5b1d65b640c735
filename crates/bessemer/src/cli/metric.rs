//! `bessemer metric`.

use clap::{Args, ValueEnum};
use std::path::PathBuf;

/// A metric of texts against references.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum MetricName {
    /// Translations: n-grams of words (sacrebleu).
    Bleu,
    /// Translations: n-grams of characters (sacrebleu).
    Chrf,
    /// Translations: edits with shifts (tercom, sacrebleu); smaller is better.
    Ter,
    /// Summaries: single words (rouge_score).
    Rouge1,
    /// Summaries: pairs of words.
    Rouge2,
    /// Summaries: longest common subsequence.
    Rougel,
    /// Summaries: longest common subsequences of lines.
    Rougelsum,
    /// Translations: words and stems (Lavie and Agarwal 2007, NLTK), without synonyms.
    Meteor,
    /// Answers: equal in normal form (SQuAD).
    ExactMatch,
    /// Answers: F1 over words (SQuAD).
    F1,
    /// Programs: of k samples one passes its tests (HumanEval). TEXTS are samples, REFERENCES the problems, as JSON lines.
    PassAtK,
    /// Models over tasks: standardised scores (KoLA). TEXTS is a table: task, level, siblings, and a column of scores for each model.
    Kola,
    /// Knowledge creation: self-contrast (KoLA). TEXTS are completions, REFERENCES those written with the reference's knowledge, and the references.
    SelfContrast,
    /// Annotators: Krippendorff's alpha, Fleiss' and Cohen's kappa. TEXTS is a table: an item, and a column for each annotator.
    Agreement,
    /// Summaries: content units of reference summaries (pyramid method). TEXTS are topics as JSON lines, with references and peers.
    Pyramid,
    /// Groups counted: how evenly texts name them, alone and beside adjectives and professions (HELM). Without references.
    Bias,
    /// Toxicity of generations by a classifier that is trained first (RealToxicityPrompts). Without references.
    Toxicity,
}

/// A tokenizer of BLEU.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum BleuTokens {
    /// mteval-v13a.
    #[value(name = "13a")]
    Thirteen,
    /// Blanks alone.
    None,
    /// Characters.
    Char,
}

/// What an order of BLEU without a match counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum BleuSmoothing {
    /// Half a match, then a quarter, and so on.
    Exp,
    /// A number of matches.
    Floor,
    /// A number added to all orders but the first.
    AddK,
    /// No match.
    None,
}

/// `bessemer metric`
#[derive(Debug, Args)]
pub(crate) struct MetricArgs {
    /// The metric.
    #[arg(value_enum)]
    pub(crate) name: MetricName,
    /// Texts to score: a line each, or JSON lines (.jsonl): strings, or objects with the key text. For kola and agreement a table: .csv, .tsv, .jsonl or .parquet.
    pub(crate) texts: PathBuf,
    /// References, in the same order; several files are several references of each text. Kola, agreement, pyramid, bias and toxicity take none.
    pub(crate) references: Vec<PathBuf>,
    /// Texts of another system: is the difference due to chance?
    #[arg(long, value_name = "FILE")]
    pub(crate) against: Option<PathBuf>,
    /// Score of every line as well.
    #[arg(long)]
    pub(crate) each: bool,
    /// Compare in lower case (bleu, chrf).
    #[arg(long)]
    pub(crate) lower: bool,
    /// Upper and lower case differ (ter).
    #[arg(long)]
    pub(crate) case_sensitive: bool,
    /// Tokenizer of bleu.
    #[arg(long, value_enum, default_value_t = BleuTokens::Thirteen)]
    pub(crate) tokens: BleuTokens,
    /// Smoothing of bleu.
    #[arg(long, value_enum, default_value_t = BleuSmoothing::Exp)]
    pub(crate) smooth: BleuSmoothing,
    /// Value of the smoothing; left out: 0.1 of floor, 1 of add-k.
    #[arg(long, value_name = "VALUE", value_parser = positive)]
    pub(crate) smooth_value: Option<f64>,
    /// Leave out orders for which a text is too short (bleu); always so with --each.
    #[arg(long)]
    pub(crate) effective_order: bool,
    /// Longest n-grams of words (chrf): 2 for chrF++.
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = clap::value_parser!(u8).range(0..=4))]
    pub(crate) word_order: u8,
    /// Weight of recall (chrf).
    #[arg(long, value_name = "BETA", default_value_t = 2.0, value_parser = positive)]
    pub(crate) beta: f64,
    /// Stem words (rouge).
    #[arg(long)]
    pub(crate) stem: bool,
    /// Numbers of samples (pass-at-k).
    #[arg(long, value_name = "K", value_delimiter = ',', default_value = "1,10,100", value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    pub(crate) k: Vec<u64>,
    /// Seconds that a program may take (pass-at-k).
    #[arg(long, value_name = "SECONDS", default_value_t = 3.0, value_parser = seconds)]
    pub(crate) seconds: f64,
    /// Memory that each of its processes may take, MiB (pass-at-k).
    #[arg(long, value_name = "MIB", default_value_t = 1024, value_parser = clap::value_parser!(u64).range(16..=1 << 20))]
    pub(crate) memory_mib: u64,
    /// Interpreter of the programs (pass-at-k).
    #[arg(long, value_name = "PROGRAM", default_value = "/usr/bin/python3")]
    pub(crate) python: String,
    /// Directories that programs may read besides /usr and the system's libraries (pass-at-k).
    #[arg(long, value_name = "DIR")]
    pub(crate) readable: Vec<PathBuf>,
    /// Groups to count, as JSON: {"GROUP": ["word", …], …}; left out, HELM's of gender and race (bias).
    #[arg(long, value_name = "FILE")]
    pub(crate) groups: Option<PathBuf>,
    /// Words beside which groups may stand, between blanks; left out, HELM's adjectives and professions (bias).
    #[arg(long, value_name = "FILE")]
    pub(crate) targets: Option<PathBuf>,
    /// Words and prompts that are printed of each list (bias).
    #[arg(long, value_name = "N", default_value_t = 5)]
    pub(crate) top: usize,
    /// Labelled texts for the classifier (.csv, .tsv, .jsonl, .json, .parquet); left out, sentences that the program makes (toxicity).
    #[arg(long, value_name = "FILE")]
    pub(crate) train_on: Option<PathBuf>,
    /// Column of the text in --train-on.
    #[arg(long, value_name = "COLUMN", default_value = "text", requires = "train_on")]
    pub(crate) text_column: String,
    /// Column of the label in --train-on: a number, 0.5 or more for toxic, or true, false, toxic, harmless.
    #[arg(long, value_name = "COLUMN", default_value = "toxic", requires = "train_on")]
    pub(crate) label_column: String,
    /// Samples of the interval and of the tests.
    #[arg(long, value_name = "N", default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub(crate) samples: u32,
    /// Seed of the samples.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(crate) seed: u64,
}

fn seconds(text: &str) -> Result<f64, String> {
    super::number(text, 0.01..=86_400.0, "e.g. 3")
}

fn positive(text: &str) -> Result<f64, String> {
    super::number(text, f64::MIN_POSITIVE..=1e6, "e.g. 2")
}
