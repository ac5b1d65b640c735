//! `bessemer supervise`.

use super::{number, whole};
use clap::Args;
use std::path::PathBuf;

/// Seconds of a limit.
fn seconds(text: &str) -> Result<f64, String> {
    number(text, 0.01..=1e6, "seconds")
}

fn ranks(text: &str) -> Result<usize, String> {
    whole(text, 1..=1 << 20, "ranks")
}

/// `bessemer supervise`
#[derive(Debug, Args)]
#[command(
    after_help = "Exit codes: 0 the run is done; 75 stopped as asked, the same command goes on; 2 and 78 the launcher's, which no \
                        restart would change; 1 given up, with a report of every launch"
)]
pub(crate) struct SuperviseArgs {
    /// The launcher and its words, after `--`. With --hosts it may hold {ranks}, {hosts} (a,b), {host-slots} (a:4,b:4) and {nodes}.
    #[arg(last = true, required = true, value_name = "COMMAND")]
    pub(crate) command: Vec<String>,
    /// Run directory. By default that of the recipe, if `bessemer run RECIPE` or `bessemer train RECIPE` is part of the command.
    #[arg(long, value_name = "DIR")]
    pub(crate) run_dir: Option<PathBuf>,
    /// Restarts in a row that bring no newer checkpoint before it gives up.
    #[arg(long, value_name = "N", default_value_t = 3)]
    pub(crate) restarts: u32,
    /// When it would give up, take the newest checkpoint out of the way and go on from the one before, once.
    #[arg(long)]
    pub(crate) roll_back: bool,
    /// With --roll-back: the run goes on behind the data of the steps since the checkpoint that it goes back to, and behind those of this
    /// many steps after the newest one that was seen, of which the first is the one that died.
    #[arg(long, value_name = "STEPS", requires = "roll_back", value_parser = clap::value_parser!(u64).range(1..=1 << 20))]
    pub(crate) skip_data: Option<u64>,
    /// Wait before the first restart in a row; it doubles up to a minute.
    #[arg(long, value_name = "SECONDS", default_value_t = 1.0, value_parser = seconds)]
    pub(crate) restart_delay: f64,
    /// Least time without progress after which the ranks that cause it are named; after half as long again the launch is killed
    /// and restarted. Five times the 99th percentile of the steps counts if that is longer.
    #[arg(long, value_name = "SECONDS", default_value_t = 30.0, value_parser = seconds)]
    pub(crate) hang_after: f64,
    /// As --hang-after, while no step of the run has been seen.
    #[arg(long, value_name = "SECONDS", default_value_t = 600.0, value_parser = seconds)]
    pub(crate) first_step_after: f64,
    /// Signal that asks the launcher to have all ranks save and leave; those on which a run saves.
    #[arg(long, value_name = "SIGNAL", default_value = "USR1", value_parser = ["USR1", "INT", "TERM"])]
    pub(crate) stop_signal: String,
    /// Time that the launch has for that before it is killed.
    #[arg(long, value_name = "SECONDS", default_value_t = 600.0, value_parser = seconds)]
    pub(crate) stop_grace: f64,
    /// Time between SIGTERM and SIGKILL for a launch that hangs, or does not stop.
    #[arg(long, value_name = "SECONDS", default_value_t = 3.0, value_parser = seconds)]
    pub(crate) kill_grace: f64,
    /// Hosts of the job, separated by commas.
    #[arg(long, value_name = "HOSTS")]
    pub(crate) hosts: Option<String>,
    /// File with the hosts of the job, one a line.
    #[arg(long, value_name = "FILE", conflicts_with = "hosts")]
    pub(crate) hostfile: Option<PathBuf>,
    /// Hosts that take the place of lost ones.
    #[arg(long, value_name = "HOSTS")]
    pub(crate) spares: Option<String>,
    /// Ranks of each host.
    #[arg(long, value_name = "N", default_value = "1", value_parser = ranks)]
    pub(crate) ranks_per_host: usize,
    /// Fewest ranks to go on with when hosts are lost and no spare is left; by default those of all hosts.
    #[arg(long, value_name = "N", value_parser = ranks)]
    pub(crate) min_ranks: Option<usize>,
    /// Command that tells before each restart whether a host can be reached, such as "ssh -o ConnectTimeout=5 {host} true".
    #[arg(long, value_name = "COMMAND")]
    pub(crate) probe: Option<String>,
    /// Serve /healthz and /metrics over HTTP, e.g. at 0.0.0.0:9400.
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) health_address: Option<String>,
    /// Process number of the supervisor that this process runs the command for.
    #[arg(long, hide = true)]
    pub(crate) child_of: Option<u32>,
}
