//! `bessemer program`.

use super::RecipeArgs;
use clap::{Args, Subcommand, ValueEnum};
use std::path::PathBuf;
use std::str::FromStr;

/// `bessemer program ...`
#[derive(Debug, Subcommand)]
pub(crate) enum ProgramCommand {
    /// Print the programs of one rank: operators and collectives.
    ///
    /// One line for each operator and collective, with shapes, layouts and bytes.
    Show(ProgramShowArgs),
    /// Simulate a step of the recipe's layout on a machine, with balanced or skewed loads of experts.
    ///
    /// One line for each routing and number of shadows: seconds of the step, of its operators and of what its exchanges show, and the shadows
    /// that the cost model chooses.
    Simulate(ProgramSimulateArgs),
}

/// Arguments of `program simulate`.
#[derive(Debug, Args)]
pub(crate) struct ProgramSimulateArgs {
    #[command(flatten)]
    pub(crate) recipe: RecipeArgs,
    /// Number of ranks of the job.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=1 << 17))]
    pub(crate) ranks: u64,
    /// Machine of the ranks: a built-in name or a TOML file.
    #[arg(long, value_name = "NAME|FILE", default_value = "a100-80gb")]
    pub(crate) machine: String,
    /// Loads of the experts, comma-separated: balanced, zipf=EXPONENT, or a run directory with a step or a range of steps, such as
    /// runs/moe:100-200 [default: all its steps].
    #[arg(long, value_name = "LOADS", value_delimiter = ',', default_value = "balanced")]
    pub(crate) routing: Vec<Routing>,
    /// Most experts of a layer that every rank computes for its own tokens (FasterMoE's shadows), comma-separated.
    #[arg(long, value_name = "COUNTS", value_delimiter = ',', default_value = "0")]
    pub(crate) shadows: Vec<u64>,
}

/// Loads of the experts, as `--routing` names them.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Routing {
    /// As many tokens for every expert.
    Balanced,
    /// Shares that fall with the number of the expert.
    Zipf(f64),
    /// Those of some steps of a run; without steps, of all.
    Run { directory: PathBuf, steps: [u64; 2] },
}

impl FromStr for Routing {
    type Err = String;

    fn from_str(text: &str) -> Result<Routing, String> {
        if text == "balanced" {
            return Ok(Routing::Balanced);
        }
        if let Some(exponent) = text.strip_prefix("zipf=") {
            let right = |s: &f64| s.is_finite() && *s >= 0.0;
            let exponent = exponent.parse().ok().filter(right);
            return exponent
                .map(Routing::Zipf)
                .ok_or_else(|| "wanted an exponent of at least 0, such as zipf=1.2".into());
        }
        let range = |steps: &str| {
            let (first, last) = steps.split_once('-').unwrap_or((steps, steps));
            Some([first.parse().ok()?, last.parse().ok()?])
        };
        let with_steps =
            text.rsplit_once(':').and_then(|(directory, steps)| Some((directory, range(steps)?)));
        let (directory, steps) = with_steps.unwrap_or((text, [1, u64::MAX]));
        match directory.is_empty() || steps[0] > steps[1] {
            true => Err("wanted balanced, zipf=EXPONENT, or RUN:FIRST-LAST with a first step that is not after the last".into()),
            false => Ok(Routing::Run { directory: directory.into(), steps }),
        }
    }
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
