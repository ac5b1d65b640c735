//! `bessemer schedule`.

use clap::{Args, Subcommand};
use std::path::PathBuf;

/// `bessemer schedule ...`
#[derive(Debug, Subcommand)]
pub(crate) enum ScheduleCommand {
    /// Simulate a pipeline schedule and draw its timeline.
    ///
    /// Draws in the terminal, as SVG or as JSON; with --trace, above a measured run.
    Show(Box<ShowArgs>),
    /// Fill the bubbles of a schedule with other work.
    ///
    /// Work of K-FAC, evaluations and copies of checkpoints is planned, simulated and drawn.
    Fill(Box<FillArgs>),
    /// Plan device clocks that save energy in a schedule.
    ///
    /// Work that is not on the critical path may run slower. Predicts time and energy.
    Energy(Box<EnergyArgs>),
}

/// A schedule and the times of its passes.
#[derive(Debug, Args)]
pub(crate) struct ProgramArgs {
    /// Schedule: a built-in name or a schedule file.
    ///
    /// Built in: gpipe, 1f1b, pipedream, pipedream-2bw, interleaved, breadth-first, chimera, zb-h1, zb-h2, zb-v,
    /// dualpipe, dualpipev, v-half, v-min, zb-auto.
    pub(crate) kind: String,
    /// Number of pipeline ranks, P. Not for files.
    #[arg(long, value_name = "P")]
    pub(crate) stages: Option<usize>,
    /// Number of micro-batches, M. Not for files.
    #[arg(long, value_name = "M")]
    pub(crate) micro_batches: Option<usize>,
    /// Chunks per rank, for schedules that take any number [default: 2].
    #[arg(long, value_name = "V")]
    pub(crate) chunks: Option<usize>,
    /// Times of a micro-batch: forward, backward of inputs, backward of weights.
    #[arg(long, value_name = "F,B,W", default_value = "1,1,1", value_parser = times)]
    pub(crate) times: [f64; 3],
    /// Time of a forward overlapped with a full backward pass [default: F + B + W].
    #[arg(long, value_name = "FB", value_parser = number)]
    pub(crate) together: Option<f64>,
    /// Share of activations kept between the backward passes of inputs and weights.
    #[arg(long, value_name = "X", default_value_t = 0.5, value_parser = share)]
    pub(crate) pending_share: f64,
    /// Latency of a message, after its transfer.
    #[arg(long, value_name = "T", default_value_t = 0.0, value_parser = number)]
    pub(crate) latency: f64,
    /// Transfer time of a message, during which its link is busy.
    #[arg(long, value_name = "T", default_value_t = 0.0, value_parser = number)]
    pub(crate) transfer: f64,
    /// Random variation of each time, up or down, as a share.
    #[arg(long, value_name = "X", default_value_t = 0.0, value_parser = share)]
    pub(crate) jitter: f64,
    /// Seed of the jitter.
    #[arg(long, default_value_t = 0)]
    pub(crate) seed: u64,
    /// Micro-batches per update in an asynchronous schedule.
    #[arg(long, value_name = "N")]
    pub(crate) update_every: Option<usize>,
    /// zb-auto: memory limit of a rank in activations of a micro-batch [default: 2P].
    #[arg(long, value_name = "X", value_parser = number)]
    pub(crate) memory_limit: Option<f64>,
}

/// `bessemer schedule show`
#[derive(Debug, Args)]
pub(crate) struct ShowArgs {
    #[command(flatten)]
    pub(crate) program: ProgramArgs,
    /// Write the timeline as SVG.
    #[arg(long, value_name = "FILE")]
    pub(crate) svg: Option<PathBuf>,
    /// Draw the measured timeline of a run below: its trace.json or directory.
    ///
    /// Times of passes and messages are then the measured ones, in milliseconds, and --times is ignored.
    #[arg(long, value_name = "RUN")]
    pub(crate) trace: Option<PathBuf>,
    /// Step of the trace [default: the last complete one].
    #[arg(long, value_name = "N", requires = "trace")]
    pub(crate) step: Option<u64>,
    /// Columns of the terminal picture [default: width of the terminal].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(20..=1000))]
    pub(crate) width: Option<u16>,
}

/// `bessemer schedule energy`
#[derive(Debug, Args)]
pub(crate) struct EnergyArgs {
    #[command(flatten)]
    pub(crate) program: ProgramArgs,
    /// JSON file with time and power by clock [default: a model of a processor].
    ///
    /// {"idle_watts": 90, "clocks": [{"mhz": 1410, "forward": {"time": 1, "watts": 300}, "backward": ...}, ...]}, the
    /// highest clock first.
    #[arg(long, value_name = "FILE")]
    pub(crate) profile: Option<PathBuf>,
    /// Largest slowdown of the step, as a share.
    #[arg(long, value_name = "X", default_value_t = 0.0, value_parser = share)]
    pub(crate) slowdown: f64,
    /// Keep the order of the instructions.
    #[arg(long)]
    pub(crate) keep_order: bool,
    /// Apply one step of the plan to this NVIDIA device as a dry run.
    ///
    /// Sets the clocks of the rank with the most changes, prints how long a change takes, and resets the clock. Needs
    /// the NVIDIA driver and root. Devices are numbered as by nvidia-smi -L.
    #[arg(long, value_name = "DEVICE")]
    pub(crate) apply: Option<u32>,
    /// Write the plan as SVG, before above after.
    #[arg(long, value_name = "FILE")]
    pub(crate) svg: Option<PathBuf>,
}

/// `bessemer schedule fill`
#[derive(Debug, Args)]
pub(crate) struct FillArgs {
    #[command(flatten)]
    pub(crate) program: ProgramArgs,
    /// Transformer layers per stage, for K-FAC work.
    ///
    /// A forward pass through them takes F; times of K-FAC are in proportion to their FLOPs.
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = count)]
    pub(crate) layers: usize,
    /// Model width of the layers.
    #[arg(long, value_name = "D", default_value_t = 768, value_parser = count)]
    pub(crate) model_width: usize,
    /// Tokens per micro-batch.
    #[arg(long, value_name = "T", default_value_t = 4096, value_parser = count)]
    pub(crate) tokens: usize,
    /// Compute curvature only after the backward pass.
    ///
    /// Inputs of layers are then not kept for it before.
    #[arg(long)]
    pub(crate) after_backward: bool,
    /// Leave out the work of K-FAC.
    #[arg(long)]
    pub(crate) no_kfac: bool,
    /// Evaluation micro-batches through all stages; a pass takes F.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(crate) evaluations: usize,
    /// Checkpoint parts that each rank copies.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(crate) copies: usize,
    /// Time to copy one part.
    #[arg(long, value_name = "T", default_value_t = 0.25, value_parser = number)]
    pub(crate) copy_time: f64,
    /// Free time that a bubble must have besides, as a share of the work's time.
    #[arg(long, value_name = "X", default_value_t = 0.05, value_parser = share)]
    pub(crate) margin: f64,
    /// Steps of the refresh interval to draw.
    #[arg(long, value_name = "N", default_value_t = 3)]
    pub(crate) panels: usize,
    /// Write the timeline as SVG.
    #[arg(long, value_name = "FILE")]
    pub(crate) svg: Option<PathBuf>,
    /// Columns of the terminal picture [default: width of the terminal].
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
    let value: f64 = text.trim().parse().map_err(|_| format!("{text:?} is not a number"))?;
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
