//! `bessemer parity`.

use super::WaitingArgs;
use clap::Args;

/// `bessemer parity`
#[derive(Debug, Args)]
pub(crate) struct ParityArgs {
    /// Largest number of ranks of a layout.
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u64).range(1..=64))]
    pub(crate) ranks: u64,
    /// Optimizer steps per layout.
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    pub(crate) steps: u64,
    /// Models, comma-separated: gpt2, llama.
    #[arg(long, value_delimiter = ',', default_value = "gpt2,llama")]
    pub(crate) models: Vec<String>,
    /// Test a covering set of pairs instead of every layout.
    ///
    /// The set holds every pair of a choice of the model (QK-norm, attention window, documents, key/value heads, tied
    /// embeddings, sequence length) and of the layout.
    #[arg(long, conflicts_with_all = ["models", "optimizer"])]
    pub(crate) pairwise: bool,
    /// Test only layouts whose name contains TEXT, e.g. "zero3" or "tensor 2".
    #[arg(long, value_name = "TEXT")]
    pub(crate) only: Option<String>,
    /// Optimizer: adamw, sgd, lion, adafactor, muon or kfac.
    #[arg(long, default_value = "adamw")]
    pub(crate) optimizer: String,
    /// Seed of initial values and dropout.
    #[arg(long, default_value_t = 1)]
    pub(crate) seed: u64,
    #[command(flatten)]
    pub(crate) waiting: WaitingArgs,
}
