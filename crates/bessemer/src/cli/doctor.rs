//! `bessemer doctor`.

use super::HostArgs;
use clap::{Args, ValueEnum};
use std::path::PathBuf;

/// `bessemer doctor`
#[derive(Debug, Args)]
pub(crate) struct DoctorArgs {
    /// Measure for a minute and write a machine file (TOML) for `plan --machine`.
    ///
    /// The devices of this machine are ranks of one process.
    #[arg(long, value_name = "FILE")]
    pub(crate) machine: Option<PathBuf>,
    /// Ranks that share the machine [default: number of cores].
    #[arg(long, value_name = "N", requires = "machine", value_parser = clap::value_parser!(u64).range(1..=64))]
    pub(crate) ranks: Option<u64>,
    /// Precision of matrix products.
    #[arg(long, value_name = "PRECISION", requires = "machine", default_value = "highest")]
    pub(crate) matmul: Matmul,
    /// Machines of many cores.
    #[command(flatten)]
    pub(crate) host: HostArgs,
}

/// Accuracy of matrix products; see `train.matmul_precision`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Matmul {
    /// f32.
    Highest,
    /// About 16 bits of every operand.
    High,
    /// About 8 bits of every operand.
    Medium,
}

impl From<Matmul> for bessemer_units::MatmulPrecision {
    fn from(m: Matmul) -> Self {
        match m {
            Matmul::Highest => Self::Highest,
            Matmul::High => Self::High,
            Matmul::Medium => Self::Medium,
        }
    }
}
