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
    /// Most tokens to score, spread evenly over the split; 0 for all.
    #[arg(long, default_value_t = 0, conflicts_with_all = ["text", "tasks"])]
    pub(crate) max_tokens: u64,
    /// Score a text file instead of a split.
    ///
    /// Long texts are scored in rolling windows. Each line of a .jsonl file is a document.
    #[arg(long, value_name = "FILE", conflicts_with = "tasks")]
    pub(crate) text: Option<PathBuf>,
    /// Key of the text in a .jsonl file.
    #[arg(long, value_name = "KEY", default_value = "text", requires = "text")]
    pub(crate) text_key: String,
    /// Context of every token after the first window, in tokens.
    ///
    /// More context takes more time.
    #[arg(long, value_name = "N", default_value_t = 1, requires = "text", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) context: u64,
    /// Evaluate tasks: families, FORMAT:FILE, task files, or names in --task-dir.
    ///
    /// Task files are those of the lm-evaluation-harness (.yaml). `families` are the generated tasks of the program,
    /// `kola-small` those by the levels of KoLA, with all task files in --task-dir that have a level.
    #[arg(long, value_name = "NAME,…", value_delimiter = ',')]
    pub(crate) tasks: Vec<String>,
    /// Folder in which task files are found by name (may be repeated).
    #[arg(long, value_name = "DIR", requires = "tasks")]
    pub(crate) task_dir: Vec<PathBuf>,
    /// Folder of data sets: DIR/dataset_path/dataset_name/test.jsonl etc.
    #[arg(long, value_name = "DIR", requires = "tasks")]
    pub(crate) task_data: Option<PathBuf>,
    /// Few-shot examples before each question [default: as in the task].
    #[arg(long, value_name = "N", requires = "tasks")]
    pub(crate) fewshot: Option<usize>,
    /// Evaluate only the first N documents of each task.
    #[arg(long, value_name = "N", requires = "tasks")]
    pub(crate) limit: Option<usize>,
    /// Write documents with requests, answers and scores (JSON lines).
    #[arg(long, value_name = "FILE", requires = "tasks")]
    pub(crate) samples: Option<PathBuf>,
    /// Table of KoLA scores (.jsonl): adds or replaces the column of this model.
    ///
    /// Prints the standardised scores of all models in it. Tasks without a level are left out.
    #[arg(long, value_name = "FILE", requires = "tasks")]
    pub(crate) kola: Option<PathBuf>,
    /// Name of the column in --kola [default: run directory and step].
    #[arg(long, value_name = "NAME", requires = "kola")]
    pub(crate) kola_name: Option<String>,
    /// Write the texts whose facts the generated tasks of kola-small ask about (JSON lines).
    ///
    /// A model that is trained on them can know the answers.
    #[arg(long, value_name = "FILE", requires = "tasks")]
    pub(crate) facts: Option<PathBuf>,
    /// Print calibration errors, Brier score and selective accuracy.
    ///
    /// The output of --json always has them.
    #[arg(long, requires = "tasks")]
    pub(crate) calibration: bool,
    /// Bootstrap samples for standard errors without a closed form.
    #[arg(long, value_name = "N", default_value_t = 100_000, requires = "tasks", value_parser = clap::value_parser!(u64).range(..=10_000_000))]
    pub(crate) bootstrap: u64,
    /// Repeat tasks with perturbed questions: NAME or NAME:RATE.
    ///
    /// Also all, robustness, fairness or cipher. Names: docs/evaluation.md.
    #[arg(long, value_name = "NAME,…", value_delimiter = ',', requires = "tasks")]
    pub(crate) perturb: Vec<String>,
    /// Columns to perturb [default: those of the question].
    ///
    /// The default leaves out columns of the choices and of the answer.
    #[arg(long, value_name = "COLUMN,…", value_delimiter = ',', requires = "perturb")]
    pub(crate) perturb_fields: Vec<String>,
    /// Seed of the perturbations.
    #[arg(long, value_name = "N", default_value_t = 0, requires = "perturb")]
    pub(crate) perturb_seed: u64,
    /// Longest input of --text and --tasks, in tokens [default: training length].
    #[arg(long, value_name = "N", conflicts_with_all = ["split", "max_tokens"])]
    pub(crate) window: Option<usize>,
    /// Tokens per forward pass. The results do not depend on it.
    #[arg(long, value_name = "N", default_value_t = 4096, value_parser = batch_tokens)]
    pub(crate) batch_tokens: usize,
    /// Ranks that share the experts of each layer, as threads.
    ///
    /// The first has everything else. A number that divides the experts of every layer.
    #[arg(long, value_name = "N", default_value = "1")]
    pub(crate) ranks: std::num::NonZeroUsize,
    /// Threads of each rank; 0 shares all cores out.
    #[arg(long, default_value_t = 0, value_parser = super::threads)]
    pub(crate) threads: usize,
}

fn batch_tokens(text: &str) -> Result<usize, String> {
    super::whole(text, 1..=1 << 24, "e.g. 4096")
}
