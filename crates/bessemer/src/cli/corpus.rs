//! `bessemer corpus` and `bessemer tokenizer`.

use super::RecipeArgs;
use clap::Subcommand;
use std::path::PathBuf;

/// `bessemer corpus ...`
#[derive(Debug, Subcommand)]
pub(crate) enum CorpusCommand {
    /// Collect, clean and split the corpus of a recipe.
    Build(RecipeArgs),
    /// Show documents that were dropped (with the reason) or kept.
    Inspect {
        /// Run directory or corpus directory.
        path: PathBuf,
        /// Only documents dropped for this reason.
        #[arg(long)]
        reason: Option<String>,
        /// Only documents of this source.
        #[arg(long)]
        source: Option<String>,
        /// Show kept documents of a split (train or validation) instead of dropped ones.
        #[arg(long, value_name = "SPLIT")]
        kept: Option<String>,
        /// At most this many.
        #[arg(long, default_value_t = 20)]
        limit: usize,
    },
    /// Counts by split, reason and source.
    Stats {
        /// Run directory or corpus directory.
        path: PathBuf,
    },
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
