//! `bessemer eval`.

use super::RunArgs;
use clap::Args;
use std::path::PathBuf;

/// `bessemer eval`
#[derive(Debug, Args)]
pub(crate) struct EvalArgs {
    #[command(flatten)]
    pub(crate) run: RunArgs,
    /// Split to score.
    #[arg(long, default_value = "validation", conflicts_with_all = ["text", "tasks"])]
    pub(crate) split: String,
    /// Score at most this many tokens of the split, spread evenly; 0 scores all.
    #[arg(long, default_value_t = 0, conflicts_with_all = ["text", "tasks"])]
    pub(crate) max_tokens: u64,
    /// Score a text file instead, in rolling windows; of a .jsonl file each line is a document.
    #[arg(long, value_name = "FILE", conflicts_with = "tasks")]
    pub(crate) text: Option<PathBuf>,
    /// Key of the text in the lines of a .jsonl file.
    #[arg(long, value_name = "KEY", default_value = "text", requires = "text")]
    pub(crate) text_key: String,
    /// Tokens of history that every token of the text has after the first window; more is dearer.
    #[arg(long, value_name = "N", default_value_t = 1, requires = "text", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) context: u64,
    /// Answer tasks instead: families, FORMAT:FILE, task files of the lm-evaluation-harness, or names in --task-dir.
    #[arg(long, value_name = "NAME,…", value_delimiter = ',')]
    pub(crate) tasks: Vec<String>,
    /// Folder of task files in which names are found; may be given several times.
    #[arg(long, value_name = "DIR", requires = "tasks")]
    pub(crate) task_dir: Vec<PathBuf>,
    /// Folder of data sets for tasks that name one: DIR/dataset_path/dataset_name/test.jsonl and so on.
    #[arg(long, value_name = "DIR", requires = "tasks")]
    pub(crate) task_data: Option<PathBuf>,
    /// Examples before each question; left out, what the task says.
    #[arg(long, value_name = "N", requires = "tasks")]
    pub(crate) fewshot: Option<usize>,
    /// Ask only about the first documents of each task.
    #[arg(long, value_name = "N", requires = "tasks")]
    pub(crate) limit: Option<usize>,
    /// Write every document with requests, answers and scores, as JSON lines.
    #[arg(long, value_name = "FILE", requires = "tasks")]
    pub(crate) samples: Option<PathBuf>,
    /// Also print how far the probabilities of the answers are to be believed: calibration errors, Brier's score, selective accuracy (in --json always).
    #[arg(long, requires = "tasks")]
    pub(crate) calibration: bool,
    /// Samples of standard errors that have no closed form.
    #[arg(long, value_name = "N", default_value_t = 100_000, requires = "tasks", value_parser = clap::value_parser!(u64).range(..=10_000_000))]
    pub(crate) bootstrap: u64,
    /// Ask again with perturbed questions: names or NAME:RATE (docs/evaluation.md), all, robustness, fairness or cipher.
    #[arg(long, value_name = "NAME,…", value_delimiter = ',', requires = "tasks")]
    pub(crate) perturb: Vec<String>,
    /// Columns to perturb; left out, those that the question is made of and neither the choices nor the answer.
    #[arg(long, value_name = "COLUMN,…", value_delimiter = ',', requires = "perturb")]
    pub(crate) perturb_fields: Vec<String>,
    /// Seed of the perturbations.
    #[arg(long, value_name = "N", default_value_t = 0, requires = "perturb")]
    pub(crate) perturb_seed: u64,
    /// Longest input in tokens of --text and --tasks; left out, the sequence length that the model was trained with.
    #[arg(long, value_name = "N", conflicts_with_all = ["split", "max_tokens"])]
    pub(crate) window: Option<usize>,
    /// Tokens that go through the model at once. The results do not depend on it.
    #[arg(long, value_name = "N", default_value_t = 4096, value_parser = batch_tokens)]
    pub(crate) batch_tokens: usize,
    /// Threads; 0 takes all cores.
    #[arg(long, default_value_t = 0, value_parser = super::threads)]
    pub(crate) threads: usize,
}

fn batch_tokens(text: &str) -> Result<usize, String> {
    super::whole(text, 1..=1 << 24, "e.g. 4096")
}
