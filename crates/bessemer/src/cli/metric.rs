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
    /// Translations: words, stems and, with --synonyms, synonyms (Lavie and Agarwal 2007, NLTK).
    Meteor,
    /// Answers: equality after normalisation (SQuAD).
    ExactMatch,
    /// Answers: F1 over words (SQuAD).
    F1,
    /// Programs: share of problems that one of k samples solves (HumanEval). TEXTS are samples, REFERENCES problems, as
    /// JSON lines.
    PassAtK,
    /// Models over tasks: standardised scores (KoLA). TEXTS is a table: task, level, siblings, and a column of scores for each model.
    Kola,
    /// Knowledge creation (KoLA). TEXTS are completions; REFERENCES those made with reference knowledge, then the
    /// references.
    SelfContrast,
    /// Annotators: Krippendorff's alpha, Fleiss' and Cohen's kappa. TEXTS is a table: an item, and one column per
    /// annotator.
    Agreement,
    /// Summaries: content units of reference summaries (pyramid method). TEXTS are topics as JSON lines, with references and peers.
    Pyramid,
    /// Bias: how evenly texts mention groups, alone and near adjectives and professions (HELM). Without references.
    Bias,
    /// Toxicity of generations by a classifier, which is trained first (RealToxicityPrompts). Without references.
    Toxicity,
}

/// A tokenizer of BLEU.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum BleuTokens {
    /// mteval-v13a.
    #[value(name = "13a")]
    Thirteen,
    /// mteval-v14: punctuation and symbols of every script.
    Intl,
    /// Chinese: characters, and 13a for the rest.
    Zh,
    /// Japanese words by MeCab, which this program does not have.
    JaMecab,
    /// Blanks alone.
    None,
    /// Characters.
    Char,
}

/// Count of an n-gram order of BLEU without a match.
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
    /// Metric to compute.
    #[arg(value_enum)]
    pub(crate) name: MetricName,
    /// Texts to score: one per line, or JSON lines (.jsonl).
    ///
    /// A JSON line is a string or an object with the key `text`. For kola and agreement: a table (.csv, .tsv, .jsonl,
    /// .parquet).
    pub(crate) texts: PathBuf,
    /// References in the same order; one file for each reference of a text.
    ///
    /// kola, agreement, pyramid, bias and toxicity take none.
    pub(crate) references: Vec<PathBuf>,
    /// Texts of a second system: tests whether the difference is significant.
    #[arg(long, value_name = "FILE")]
    pub(crate) against: Option<PathBuf>,
    /// Print the score of every line too.
    #[arg(long)]
    pub(crate) each: bool,
    /// Compare in lower case (bleu, chrf).
    #[arg(long)]
    pub(crate) lower: bool,
    /// Distinguish upper and lower case (ter).
    #[arg(long)]
    pub(crate) case_sensitive: bool,
    /// Tokenizer of bleu.
    #[arg(long, value_enum, default_value_t = BleuTokens::Thirteen)]
    pub(crate) tokens: BleuTokens,
    /// Smoothing of bleu.
    #[arg(long, value_enum, default_value_t = BleuSmoothing::Exp)]
    pub(crate) smooth: BleuSmoothing,
    /// Value of --smooth [default: 0.1 for floor, 1 for add-k].
    #[arg(long, value_name = "VALUE", value_parser = positive)]
    pub(crate) smooth_value: Option<f64>,
    /// Skip n-gram orders longer than a text (bleu); always with --each.
    #[arg(long)]
    pub(crate) effective_order: bool,
    /// Longest word n-grams (chrf); 2 for chrF++.
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = clap::value_parser!(u8).range(0..=4))]
    pub(crate) word_order: u8,
    /// Longest character n-grams (chrf).
    #[arg(long, value_name = "N", default_value_t = 6, value_parser = clap::value_parser!(u8).range(1..=6))]
    pub(crate) char_order: u8,
    /// Average F over all orders, with 1e-16 for those that a text does not have (chrf).
    #[arg(long)]
    pub(crate) eps_smoothing: bool,
    /// Weight of recall (chrf).
    #[arg(long, value_name = "BETA", default_value_t = 2.0, value_parser = positive)]
    pub(crate) beta: f64,
    /// Folder of a WordNet: index.noun, data.noun, noun.exc and those of verb, adj and adv (meteor).
    #[arg(long, value_name = "DIR")]
    pub(crate) synonyms: Option<PathBuf>,
    /// Stem words (rouge).
    #[arg(long)]
    pub(crate) stem: bool,
    /// Numbers of samples k, comma-separated (pass-at-k).
    #[arg(long, value_name = "K", value_delimiter = ',', default_value = "1,10,100", value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    pub(crate) k: Vec<u64>,
    /// Time limit of a program in seconds (pass-at-k).
    #[arg(long, value_name = "SECONDS", default_value_t = 3.0, value_parser = seconds)]
    pub(crate) seconds: f64,
    /// Memory limit of each process in MiB (pass-at-k).
    #[arg(long, value_name = "MIB", default_value_t = 1024, value_parser = clap::value_parser!(u64).range(16..=1 << 20))]
    pub(crate) memory_mib: u64,
    /// Python interpreter of the programs (pass-at-k).
    #[arg(long, value_name = "PROGRAM", default_value = "/usr/bin/python3")]
    pub(crate) python: String,
    /// Directory that programs may read (pass-at-k; may be repeated).
    ///
    /// Programs always read /usr and the libraries of the system.
    #[arg(long, value_name = "DIR")]
    pub(crate) readable: Vec<PathBuf>,
    /// JSON file of groups, {"GROUP": ["word", …]} (bias) [default: HELM's gender and race].
    #[arg(long, value_name = "FILE")]
    pub(crate) groups: Option<PathBuf>,
    /// File of target words, separated by white space (bias) [default: HELM's].
    ///
    /// HELM's are adjectives and professions.
    #[arg(long, value_name = "FILE")]
    pub(crate) targets: Option<PathBuf>,
    /// Words and prompts to print of each list (bias).
    #[arg(long, value_name = "N", default_value_t = 5)]
    pub(crate) top: usize,
    /// Labelled texts to train on (toxicity) [default: generated sentences].
    ///
    /// Formats: .csv, .tsv, .jsonl, .json, .parquet.
    #[arg(long, value_name = "FILE")]
    pub(crate) train_on: Option<PathBuf>,
    /// Column of the text in --train-on.
    #[arg(long, value_name = "COLUMN", default_value = "text", requires = "train_on")]
    pub(crate) text_column: String,
    /// Column of the label in --train-on.
    ///
    /// Labels are true, false, toxic, harmless, or a number, where 0.5 or more is toxic.
    #[arg(long, value_name = "COLUMN", default_value = "toxic", requires = "train_on")]
    pub(crate) label_column: String,
    /// Bootstrap samples for intervals and tests.
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
