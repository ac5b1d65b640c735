//! `bessemer schedule`.

use clap::{Args, Subcommand};
use std::path::PathBuf;

/// `bessemer schedule ...`
#[derive(Debug, Subcommand)]
pub(crate) enum ScheduleCommand {
    /// Simulate a schedule and draw it: in the terminal, as SVG, as JSON; above a measured run with --trace.
    Show(Box<ShowArgs>),
    /// Put other work into a schedule's bubbles (K-FAC's, evaluation, copies), simulate it and draw it.
    Fill(Box<FillArgs>),
    /// Plan clocks for a schedule: work that nothing waits for may run slower. Predicts time and energy.
    Energy(Box<EnergyArgs>),
}

/// Which schedule, and how long its passes take.
#[derive(Debug, Args)]
pub(crate) struct ProgramArgs {
    /// gpipe, 1f1b, pipedream, pipedream-2bw, interleaved, chimera, zb-h1, zb-h2, zb-v, dualpipe, dualpipev, zb-auto, or a
    /// schedule file.
    pub(crate) kind: String,
    /// P, pipeline ranks. Not for files.
    #[arg(long, value_name = "P")]
    pub(crate) stages: Option<usize>,
    /// M, micro-batches of the whole program. Not for files.
    #[arg(long, value_name = "M")]
    pub(crate) micro_batches: Option<usize>,
    /// Chunks of a rank, for schedules that take any number; 2 if left out.
    #[arg(long, value_name = "V")]
    pub(crate) chunks: Option<usize>,
    /// Times of one micro-batch on one rank: forward, input part of the backward, weight part.
    #[arg(long, value_name = "F,B,W", default_value = "1,1,1", value_parser = times)]
    pub(crate) times: [f64; 3],
    /// Time of a forward and the full backward of another micro-batch run together; F + B + W if left out.
    #[arg(long, value_name = "FB", value_parser = number)]
    pub(crate) together: Option<f64>,
    /// Share of a micro-batch's activations that stays from the input part of its backward to the weight part.
    #[arg(long, value_name = "X", default_value_t = 0.5, value_parser = share)]
    pub(crate) pending_share: f64,
    /// Time from the end of a message's transfer to its arrival.
    #[arg(long, value_name = "T", default_value_t = 0.0, value_parser = number)]
    pub(crate) latency: f64,
    /// Time that a message keeps its link busy.
    #[arg(long, value_name = "T", default_value_t = 0.0, value_parser = number)]
    pub(crate) transfer: f64,
    /// Vary each time by up to this share, up or down.
    #[arg(long, value_name = "X", default_value_t = 0.0, value_parser = share)]
    pub(crate) jitter: f64,
    /// Seed of the jitter.
    #[arg(long, default_value_t = 0)]
    pub(crate) seed: u64,
    /// Micro-batches of one update in an asynchronous schedule.
    #[arg(long, value_name = "N")]
    pub(crate) update_every: Option<usize>,
    /// zb-auto: most live activations of a rank, in those of one micro-batch; 2P if left out.
    #[arg(long, value_name = "X", value_parser = number)]
    pub(crate) memory_limit: Option<f64>,
}

/// `bessemer schedule show`
#[derive(Debug, Args)]
pub(crate) struct ShowArgs {
    #[command(flatten)]
    pub(crate) program: ProgramArgs,
    /// Write the picture here.
    #[arg(long, value_name = "FILE")]
    pub(crate) svg: Option<PathBuf>,
    /// A run's measured timeline below the simulated one, from its trace.json (or the run's directory). Times of passes
    /// are then the measured ones, in milliseconds (those of messages too), and --times is passed over.
    #[arg(long, value_name = "RUN")]
    pub(crate) trace: Option<PathBuf>,
    /// Which step of the trace; its last whole one if left out.
    #[arg(long, value_name = "N", requires = "trace")]
    pub(crate) step: Option<u64>,
    /// Columns of the picture in the terminal; its width if left out.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(20..=1000))]
    pub(crate) width: Option<u16>,
}

/// `bessemer schedule energy`
#[derive(Debug, Args)]
pub(crate) struct EnergyArgs {
    #[command(flatten)]
    pub(crate) program: ProgramArgs,
    /// JSON file with what clocks cost: {"idle_watts": 90, "clocks": [{"mhz": 1410, "forward": {"time": 1, "watts": 300},
    /// "backward": ...}, ...]}, the first clock the highest. A model of a processor if left out.
    #[arg(long, value_name = "FILE")]
    pub(crate) profile: Option<PathBuf>,
    /// Most that the step may take longer.
    #[arg(long, value_name = "X", default_value_t = 0.0, value_parser = share)]
    pub(crate) slowdown: f64,
    /// Leave the order of the instructions as it is.
    #[arg(long)]
    pub(crate) keep_order: bool,
    /// Dry run of the plan on this NVIDIA device (nvidia-smi -L counts them): sets the clocks of one step of the rank with the
    /// most changes, says how long a change takes, and gives the clock back. Needs the NVIDIA driver, and root.
    #[arg(long, value_name = "DEVICE")]
    pub(crate) apply: Option<u32>,
    /// Write the picture of the plan here, before above after.
    #[arg(long, value_name = "FILE")]
    pub(crate) svg: Option<PathBuf>,
}

/// `bessemer schedule fill`
#[derive(Debug, Args)]
pub(crate) struct FillArgs {
    #[command(flatten)]
    pub(crate) program: ProgramArgs,
    /// Transformer layers of a stage: their K-FAC work is what bubbles are filled with, its times in proportion to
    /// floating-point operations, where a forward pass through them takes F.
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = count)]
    pub(crate) layers: usize,
    /// Width of the layers.
    #[arg(long, value_name = "D", default_value_t = 768, value_parser = count)]
    pub(crate) model_width: usize,
    /// Tokens of a micro-batch.
    #[arg(long, value_name = "T", default_value_t = 4096, value_parser = count)]
    pub(crate) tokens: usize,
    /// A micro-batch's curvature can be made after its backward pass only: inputs of layers are not kept for it before.
    #[arg(long)]
    pub(crate) after_backward: bool,
    /// No work of K-FAC.
    #[arg(long)]
    pub(crate) no_kfac: bool,
    /// Evaluation micro-batches to pass through all stages; a pass takes F.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(crate) evaluations: usize,
    /// Parts of a checkpoint that each rank copies.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(crate) copies: usize,
    /// Time of one of them.
    #[arg(long, value_name = "T", default_value_t = 0.25, value_parser = number)]
    pub(crate) copy_time: f64,
    /// Share of a unit's time that must be free in its bubble besides.
    #[arg(long, value_name = "X", default_value_t = 0.05, value_parser = share)]
    pub(crate) margin: f64,
    /// Steps that are drawn, of those of the refresh interval.
    #[arg(long, value_name = "N", default_value_t = 3)]
    pub(crate) panels: usize,
    /// Write the picture here.
    #[arg(long, value_name = "FILE")]
    pub(crate) svg: Option<PathBuf>,
    /// Columns of the picture in the terminal; its width if left out.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(20..=1000))]
    pub(crate) columns: Option<u16>,
}

fn count(text: &str) -> Result<usize, String> {
    match text.trim().parse() {
        Ok(value) if (1..=1 << 20).contains(&value) => Ok(value),
        _ => Err(format!("wanted a whole number from 1 to {}, found {text:?}", 1 << 20)),
    }
}

fn number(text: &str) -> Result<f64, String> {
    let value: f64 = text.trim().parse().map_err(|_| format!("{text:?} is no number"))?;
    match (0.0..=1e12).contains(&value) {
        true => Ok(value),
        false => Err("wanted a number from 0 to 1e12".into()),
    }
}

fn share(text: &str) -> Result<f64, String> {
    match number(text)? {
        value if value <= 1.0 => Ok(value),
        _ => Err("wanted a share, from 0 to 1".into()),
    }
}

fn times(text: &str) -> Result<[f64; 3], String> {
    let all = text.split(',').map(number).collect::<Result<Vec<_>, _>>()?;
    let times: [f64; 3] =
        all.try_into().map_err(|all: Vec<f64>| format!("wanted three times, F,B,W, found {}", all.len()))?;
    match times.iter().sum::<f64>() > 0.0 {
        true => Ok(times),
        false => Err("wanted at least one time above 0".into()),
    }
}
