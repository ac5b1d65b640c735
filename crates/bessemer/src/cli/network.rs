//! `bessemer network`.

use clap::{Args, Subcommand, ValueEnum};
use std::net::SocketAddr;
use std::path::PathBuf;

/// `bessemer network ...`
#[derive(Debug, Subcommand)]
pub(crate) enum NetworkCommand {
    /// Size, cost, collective times and single failures of a network.
    Show(NetworkShowArgs),
    /// Several networks side by side, with a job.
    Compare(NetworkCompareArgs),
    /// Orders of the axes of a job on a network, the fastest first.
    Place(NetworkPlaceArgs),
    /// What failures of machines cost a long run: interval of saves, share of time that trains, expected days.
    Failures(NetworkFailuresArgs),
    /// Sum among processes through a software switch with slots, beside the model of one.
    Switch(NetworkSwitchArgs),
}

/// A job on a network.
#[derive(Debug, Args)]
pub(crate) struct NetworkJobArgs {
    /// TOML file with what the job exchanges on each axis of its mesh (docs/network.md).
    #[arg(long, value_name = "FILE", conflicts_with_all = ["axis", "bytes"])]
    pub(crate) job: Option<PathBuf>,
    /// An axis of the job, the fastest first: `AXIS=RANKS` or `AXIS=RANKS:COLLECTIVE:BYTES[:ALGORITHM]`, e.g.
    /// tensor=8:all-reduce:64MiB (may be repeated).
    #[arg(long, value_name = "SPEC", conflicts_with = "bytes")]
    pub(crate) axis: Vec<String>,
    /// Buffer of an all-reduce and an all-to-all among all devices, if there is no job.
    #[arg(long, value_name = "SIZE", default_value = "64MiB")]
    pub(crate) bytes: bessemer_units::Bytes,
    /// Policy by which a message finds its path.
    #[arg(long, value_enum, default_value = "static")]
    pub(crate) routing: RoutingChoice,
    /// Seed of the hashes of ecmp, valiant and ugal.
    #[arg(long, default_value_t = 0)]
    pub(crate) seed: u64,
    /// A dead part: switch:N, node-switch:N, or a cable as device:N/switch:N (may be repeated).
    #[arg(long, value_name = "PART")]
    pub(crate) fail: Vec<String>,
    /// Leave out what happens when single parts die.
    #[arg(long)]
    pub(crate) no_failures: bool,
}

/// `bessemer network show`
#[derive(Debug, Args)]
pub(crate) struct NetworkShowArgs {
    /// A description (TOML file), or the name of an example: node-8, nvlink-256, cxl-rack, switch-16, pcie-64, fat-tree-1024,
    /// fat-tree-16384, dragonfly-1056, torus-32x32, torus-8x8x16, rail-only-1024, rail-optimised-1024.
    pub(crate) network: String,
    #[command(flatten)]
    pub(crate) job: NetworkJobArgs,
    /// Write a picture of the network with the loads of its cables.
    #[arg(long, value_name = "FILE")]
    pub(crate) svg: Option<PathBuf>,
}

/// `bessemer network compare`
#[derive(Debug, Args)]
pub(crate) struct NetworkCompareArgs {
    /// Descriptions (TOML files) or names of examples, two or more.
    #[arg(required = true, num_args = 2..)]
    pub(crate) networks: Vec<String>,
    #[command(flatten)]
    pub(crate) job: NetworkJobArgs,
}

/// `bessemer network place`
#[derive(Debug, Args)]
pub(crate) struct NetworkPlaceArgs {
    /// A description (TOML file), or the name of an example as in `network show`.
    pub(crate) network: String,
    /// TOML file with what the job exchanges on each axis of its mesh (docs/network.md).
    #[arg(long, value_name = "FILE", conflicts_with = "axis")]
    pub(crate) job: Option<PathBuf>,
    /// An axis of the job: `AXIS=RANKS` or `AXIS=RANKS:COLLECTIVE:BYTES` (may be repeated).
    #[arg(long, value_name = "SPEC", required_unless_present = "job")]
    pub(crate) axis: Vec<String>,
    /// Policy by which a message finds its path.
    #[arg(long, value_enum, default_value = "static")]
    pub(crate) routing: RoutingChoice,
    /// Seed of the hashes of ecmp, valiant and ugal.
    #[arg(long, default_value_t = 0)]
    pub(crate) seed: u64,
}

/// `bessemer network failures`
#[derive(Debug, Args)]
pub(crate) struct NetworkFailuresArgs {
    /// Nodes of the run, one or several numbers.
    #[arg(long, value_delimiter = ',', default_value = "4,16,128,1024,2048", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) nodes: Vec<u32>,
    /// Failures in 1,000 days of a node, one or several numbers; published are 2.3 to 24.
    #[arg(long, value_delimiter = ',', default_value = "2.3,6.5,24", value_parser = figure)]
    pub(crate) rates: Vec<f64>,
    /// Seconds for which a save blocks training.
    #[arg(long, value_name = "SECONDS", default_value_t = 10.0, value_parser = figure)]
    pub(crate) save: f64,
    /// Seconds from a failure to the first step after it.
    #[arg(long, value_name = "SECONDS", default_value_t = 300.0, value_parser = figure)]
    pub(crate) restart: f64,
    /// Days of work if nothing fails and nothing is saved.
    #[arg(long, default_value_t = 30.0, value_parser = figure)]
    pub(crate) days: f64,
    /// Seconds of work between two saves; the best if left out.
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
    /// Serve at this UDP address until the process is asked to stop.
    #[arg(long, value_name = "ADDRESS", conflicts_with = "join")]
    pub(crate) serve: Option<SocketAddr>,
    /// Be one worker of the switch at this address, and print what happened.
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) join: Option<SocketAddr>,
    /// Number of the job that a worker joins.
    #[arg(long, default_value_t = 0, requires = "join")]
    pub(crate) job: u64,
    /// Number of the worker in its job, from 0.
    #[arg(long, default_value_t = 0, requires = "join")]
    pub(crate) worker: u16,
    /// Workers of a job.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub(crate) workers: u32,
    /// Jobs that use the switch at once.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=64), conflicts_with_all = ["serve", "join"])]
    pub(crate) jobs: u32,
    /// Values of a worker.
    #[arg(long, value_name = "SIZE", default_value = "256KiB")]
    pub(crate) bytes: bessemer_units::Bytes,
    /// Slots of a job, one or several numbers.
    #[arg(long, value_delimiter = ',', default_value = "1,2,4,8,16", value_parser = clap::value_parser!(u32).range(1..=65536))]
    pub(crate) slots: Vec<u32>,
    /// Bytes of integers in a slot and a packet, a multiple of 4.
    #[arg(long, default_value_t = 1024, value_parser = slot_bytes)]
    pub(crate) slot_bytes: u32,
    /// Milliseconds by which the switch answers later than it could.
    #[arg(long, value_name = "MS", default_value_t = 4.0, value_parser = round_trip)]
    pub(crate) round_trip_ms: f64,
    /// Share of packets that are lost in each direction, and of those that arrive twice.
    #[arg(long, value_name = "SHARE", default_value_t = 0.0, value_parser = share)]
    pub(crate) loss: f64,
    /// Seed of the choice of lost packets.
    #[arg(long, default_value_t = 0)]
    pub(crate) seed: u64,
    /// All-reduces of which the median time is taken.
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
    /// By the destination's number (D-mod-K).
    Static,
    /// By a hash of sender and receiver.
    Ecmp,
    /// The link with fewest flows.
    Adaptive,
    /// In a dragonfly through a third group that a hash chooses.
    Valiant,
    /// In a dragonfly the minimal path or one through a third group, by the flows on their links.
    Ugal,
}
