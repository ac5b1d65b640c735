//! `bessemer-bench experts`.

use super::Activations;
use bessemer::{Matmul, threads};
use clap::Args;
use std::path::PathBuf;

/// `bessemer-bench experts`
#[derive(Debug, Args)]
pub(crate) struct BenchExpertsArgs {
    /// Experts and choices of a token.
    #[arg(long, value_name = "ExK", value_delimiter = ',', default_value = "8x2,16x4,64x8")]
    pub(crate) experts: Vec<String>,
    /// Rows of an expert on average.
    #[arg(long, value_delimiter = ',', default_value = "16,64,256,1024")]
    pub(crate) rows: Vec<usize>,
    /// Width of the model.
    #[arg(long, default_value_t = 512)]
    pub(crate) width: usize,
    /// Width of an expert.
    #[arg(long, default_value_t = 1024)]
    pub(crate) hidden: usize,
    /// Types of activations, weights and gradients.
    #[arg(long, value_name = "TYPE", value_delimiter = ',', default_value = "f32,bf16")]
    pub(crate) dtype: Vec<Activations>,
    /// Threads; 0 takes all cores.
    #[arg(long, default_value_t = 0, value_parser = threads)]
    pub(crate) threads: usize,
    /// Rounds at most. A round measures everything once; its figures are compared with each other.
    #[arg(long, default_value_t = 7)]
    pub(crate) rounds: usize,
    /// Seconds of a line of the table, after which no other round begins.
    #[arg(long, default_value_t = 10.0)]
    pub(crate) seconds: f64,
    /// How exact matrix products must be.
    #[arg(long, value_name = "PRECISION", default_value = "highest")]
    pub(crate) matmul: Matmul,
    /// Engine of matrix products instead of the fastest one that is exact enough, as in bessemer-bench step.
    #[arg(long, value_name = "NAME", conflicts_with = "matmul")]
    pub(crate) engine: Option<String>,
    /// A Python with torch and transformers, to measure their layers too.
    #[arg(long, value_name = "PROGRAM")]
    pub(crate) python: Option<PathBuf>,
}
