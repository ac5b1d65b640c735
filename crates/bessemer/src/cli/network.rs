//! `bessemer network`.

use clap::{Args, Subcommand, ValueEnum};
use std::net::SocketAddr;
use std::path::PathBuf;

/// `bessemer network ...`
#[derive(Debug, Subcommand)]
pub(crate) enum NetworkCommand {
    /// Show size, cost, collective times and failures of a network.
    Show(NetworkShowArgs),
    /// Compare networks side by side, with a job.
    Compare(NetworkCompareArgs),
    /// Rank the axis orders of a job on a network, fastest first.
    Place(NetworkPlaceArgs),
    /// Predict the cost of node failures in a long run.
    ///
    /// Prints the save interval, the share of time spent training, and the expected days.
    Failures(NetworkFailuresArgs),
    /// Run an all-reduce through a software switch over UDP.
    ///
    /// Compares measured times with the model of a switch with slots.
    Switch(NetworkSwitchArgs),
}

/// A job on a network.
#[derive(Debug, Args)]
pub(crate) struct NetworkJobArgs {
    /// Job file (TOML): traffic on each axis of the mesh (docs/network.md).
    #[arg(long, value_name = "FILE", conflicts_with_all = ["axis", "bytes"])]
    pub(crate) job: Option<PathBuf>,
    /// Axis of a job, fastest first, e.g. tensor=8:all-reduce:64MiB (may be repeated).
    ///
    /// Forms: AXIS=RANKS or AXIS=RANKS:COLLECTIVE:BYTES[:ALGORITHM].
    #[arg(long, value_name = "SPEC", conflicts_with = "bytes")]
    pub(crate) axis: Vec<String>,
    /// Bytes of the all-reduce and all-to-all that are timed without a job.
    #[arg(long, value_name = "SIZE", default_value = "64MiB")]
    pub(crate) bytes: bessemer_units::Bytes,
    /// Routing policy.
    #[arg(long, value_enum, default_value = "static")]
    pub(crate) routing: RoutingChoice,
    /// Seed of the hashes of ecmp, valiant and ugal.
    #[arg(long, default_value_t = 0)]
    pub(crate) seed: u64,
    /// Failed part: switch:N, node-switch:N or device:N/switch:N (may be repeated).
    #[arg(long, value_name = "PART")]
    pub(crate) fail: Vec<String>,
    /// Skip the failures of single parts.
    #[arg(long)]
    pub(crate) no_failures: bool,
}

/// `bessemer network show`
#[derive(Debug, Args)]
pub(crate) struct NetworkShowArgs {
    /// Network: a TOML file or a built-in name.
    ///
    /// Built in: node-8, nvlink-256, cxl-rack, switch-16, pcie-64, fat-tree-1024, fat-tree-16384, dragonfly-1056,
    /// torus-32x32, torus-8x8x16, rail-only-1024, rail-optimised-1024.
    pub(crate) network: String,
    #[command(flatten)]
    pub(crate) job: NetworkJobArgs,
    /// Write an SVG of the network with the load of each cable.
    #[arg(long, value_name = "FILE")]
    pub(crate) svg: Option<PathBuf>,
}

/// `bessemer network compare`
#[derive(Debug, Args)]
pub(crate) struct NetworkCompareArgs {
    /// Networks, two or more: TOML files or built-in names.
    #[arg(required = true, num_args = 2..)]
    pub(crate) networks: Vec<String>,
    #[command(flatten)]
    pub(crate) job: NetworkJobArgs,
}

/// `bessemer network place`
#[derive(Debug, Args)]
pub(crate) struct NetworkPlaceArgs {
    /// Network: a TOML file or a built-in name, as in `network show`.
    pub(crate) network: String,
    /// Job file (TOML): traffic on each axis of the mesh (docs/network.md).
    #[arg(long, value_name = "FILE", conflicts_with = "axis")]
    pub(crate) job: Option<PathBuf>,
    /// Axis of the job, e.g. tensor=8:all-reduce:64MiB (may be repeated).
    ///
    /// Forms: AXIS=RANKS or AXIS=RANKS:COLLECTIVE:BYTES.
    #[arg(long, value_name = "SPEC", required_unless_present = "job")]
    pub(crate) axis: Vec<String>,
    /// Routing policy.
    #[arg(long, value_enum, default_value = "static")]
    pub(crate) routing: RoutingChoice,
    /// Seed of the hashes of ecmp, valiant and ugal.
    #[arg(long, default_value_t = 0)]
    pub(crate) seed: u64,
}

/// `bessemer network failures`
#[derive(Debug, Args)]
pub(crate) struct NetworkFailuresArgs {
    /// Numbers of nodes, comma-separated.
    #[arg(long, value_delimiter = ',', default_value = "4,16,128,1024,2048", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) nodes: Vec<u32>,
    /// Failures per 1,000 node-days, comma-separated; published rates are 2.3 to 24.
    #[arg(long, value_delimiter = ',', default_value = "2.3,6.5,24", value_parser = figure)]
    pub(crate) rates: Vec<f64>,
    /// Seconds that a save blocks training.
    #[arg(long, value_name = "SECONDS", default_value_t = 10.0, value_parser = figure)]
    pub(crate) save: f64,
    /// Seconds from a failure to the first step after it.
    #[arg(long, value_name = "SECONDS", default_value_t = 300.0, value_parser = figure)]
    pub(crate) restart: f64,
    /// Days of training without failures and saves.
    #[arg(long, default_value_t = 30.0, value_parser = figure)]
    pub(crate) days: f64,
    /// Seconds of training between saves [default: the optimum].
    #[arg(long, value_name = "SECONDS", value_parser = figure)]
    pub(crate) interval: Option<f64>,
}

/// Parses a figure that is not negative.
///
/// # Errors
/// A sentence with the allowed range.
pub(super) fn figure(text: &str) -> Result<f64, String> {
    text.parse()
        .ok()
        .filter(|x| (0.0..=1e9).contains(x))
        .ok_or_else(|| "wanted a number from 0 to 1e9".into())
}

/// `bessemer network switch`
#[derive(Debug, Args)]
pub(crate) struct NetworkSwitchArgs {
    /// Serve as the switch at this UDP address until stopped.
    #[arg(long, value_name = "ADDRESS", conflicts_with = "join")]
    pub(crate) serve: Option<SocketAddr>,
    /// Join the switch at this UDP address as one worker.
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) join: Option<SocketAddr>,
    /// Job number of the worker.
    #[arg(long, default_value_t = 0, requires = "join")]
    pub(crate) job: u64,
    /// Worker number in the job, from 0.
    #[arg(long, default_value_t = 0, requires = "join")]
    pub(crate) worker: u16,
    /// Workers per job.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub(crate) workers: u32,
    /// Concurrent jobs.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=64), conflicts_with_all = ["serve", "join"])]
    pub(crate) jobs: u32,
    /// Bytes that each worker contributes.
    #[arg(long, value_name = "SIZE", default_value = "256KiB")]
    pub(crate) bytes: bessemer_units::Bytes,
    /// Slots per job, comma-separated.
    #[arg(long, value_delimiter = ',', default_value = "1,2,4,8,16", value_parser = clap::value_parser!(u32).range(1..=65536))]
    pub(crate) slots: Vec<u32>,
    /// Bytes per slot and packet, a multiple of 4.
    #[arg(long, default_value_t = 1024, value_parser = slot_bytes)]
    pub(crate) slot_bytes: u32,
    /// Delay of the answers of the switch, in milliseconds.
    #[arg(long, value_name = "MS", default_value_t = 4.0, value_parser = round_trip)]
    pub(crate) round_trip_ms: f64,
    /// Share of packets lost in each direction, and of those duplicated.
    #[arg(long, value_name = "SHARE", default_value_t = 0.0, value_parser = share)]
    pub(crate) loss: f64,
    /// Seed of the packet loss.
    #[arg(long, default_value_t = 0)]
    pub(crate) seed: u64,
    /// All-reduces per measurement; the median time is printed.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(crate) repeats: u32,
}

fn slot_bytes(text: &str) -> Result<u32, String> {
    let most = 4 * bessemer_collectives::switch::MOST_VALUES as u32;
    let wanted = || format!("wanted a multiple of 4 from 4 to {most}");
    text.parse().ok().filter(|b: &u32| (4..=most).contains(b) && b.is_multiple_of(4)).ok_or_else(wanted)
}

fn round_trip(text: &str) -> Result<f64, String> {
    text.parse()
        .ok()
        .filter(|ms| (0.0..=1000.0).contains(ms))
        .ok_or_else(|| "wanted 0 to 1000 milliseconds".into())
}

fn share(text: &str) -> Result<f64, String> {
    text.parse()
        .ok()
        .filter(|share| (0.0..=0.5).contains(share))
        .ok_or_else(|| "wanted a share from 0 to 0.5".into())
}

/// A routing policy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum RoutingChoice {
    /// Destination's number (D-mod-K).
    Static,
    /// Hash of sender and receiver.
    Ecmp,
    /// Link with the fewest flows.
    Adaptive,
    /// Dragonfly: through a third group, chosen by a hash.
    Valiant,
    /// Dragonfly: minimal path or through a third group, by the flows on their links.
    Ugal,
}
