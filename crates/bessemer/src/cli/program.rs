//! `bessemer program`.

use super::RecipeArgs;
use clap::{Args, Subcommand, ValueEnum};

/// `bessemer program ...`
#[derive(Debug, Subcommand)]
pub(crate) enum ProgramCommand {
    /// Print the programs of one rank: operators and collectives.
    ///
    /// One line for each operator and collective, with shapes, layouts and bytes.
    Show(ProgramShowArgs),
}

/// Arguments of `program show`.
#[derive(Debug, Args)]
pub(crate) struct ProgramShowArgs {
    #[command(flatten)]
    pub(crate) recipe: RecipeArgs,
    /// Number of ranks of the job.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) ranks: u64,
    /// Rank to show.
    #[arg(long, value_name = "R", default_value_t = 0)]
    pub(crate) rank: u64,
    /// Unit to show [default: all units].
    ///
    /// `layer` is the first layer of the rank. `step` is the whole step: it runs units, gathers, reductions, messages
    /// and updates.
    #[arg(long, value_enum)]
    pub(crate) unit: Option<UnitChoice>,
    /// Pass after which to show the programs [default: the last one].
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
    Freeze,
    Recompute,
    Partition,
    Fuse,
    Split,
    Overlap,
    Compress,
    Offload,
}
