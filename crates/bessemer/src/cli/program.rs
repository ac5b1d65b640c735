//! `bessemer program`.

use super::RecipeArgs;
use clap::{Args, Subcommand, ValueEnum};

/// `bessemer program ...`
#[derive(Debug, Subcommand)]
pub(crate) enum ProgramCommand {
    /// Print the programs of one rank of a recipe: one line for each operator and collective.
    Show(ProgramShowArgs),
}

/// Arguments of `program show`.
#[derive(Debug, Args)]
pub(crate) struct ProgramShowArgs {
    #[command(flatten)]
    pub(crate) recipe: RecipeArgs,
    /// Ranks of the job.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) ranks: u64,
    /// Rank whose programs are shown.
    #[arg(long, value_name = "R", default_value_t = 0)]
    pub(crate) rank: u64,
    /// Which unit, of layers the rank's first; or the whole step, which runs units, gathers, reductions, messages and updates.
    #[arg(long, value_enum)]
    pub(crate) unit: Option<UnitChoice>,
    /// The pass after which they are shown; what runs, if left out.
    #[arg(long, value_name = "PASS", value_enum)]
    pub(crate) after: Option<PassChoice>,
}

/// A unit of a model.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum UnitChoice {
    Embedding,
    Layer,
    Head,
    Step,
}

/// A pass that rewrites programs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum PassChoice {
    Record,
    Recompute,
    Partition,
    Fuse,
    Split,
    Overlap,
    Compress,
    Offload,
}
