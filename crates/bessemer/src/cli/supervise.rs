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
    after_help = "Exit codes: 0 finished; 1 given up, with a report of every launch; 2 and 78 passed on from the launcher, because no \
                  restart would help; 75 stopped by a signal, the same command continues"
)]
pub(crate) struct SuperviseArgs {
    /// Launcher and its arguments, after `--`.
    ///
    /// With --hosts they may contain {ranks}, {hosts} (a,b), {host-slots} (a:4,b:4) and {nodes}.
    #[arg(last = true, required = true, value_name = "COMMAND")]
    pub(crate) command: Vec<String>,
    /// Run directory [default: that of the recipe in the command].
    ///
    /// The recipe is found if `bessemer run RECIPE` or `bessemer train RECIPE` is part of the command.
    #[arg(long, value_name = "DIR")]
    pub(crate) run_dir: Option<PathBuf>,
    /// Most restarts in a row without a newer checkpoint.
    #[arg(long, value_name = "N", default_value_t = 3)]
    pub(crate) restarts: u32,
    /// Before giving up, continue once from the checkpoint before the newest.
    ///
    /// The newest one is moved aside.
    #[arg(long)]
    pub(crate) roll_back: bool,
    /// Skip the data of the failing steps, and of this many after them (--roll-back).
    ///
    /// The run continues after the data of the steps since the checkpoint that it returns to, and of this many steps
    /// after the newest one seen; the first of these is the one that failed.
    #[arg(long, value_name = "STEPS", requires = "roll_back", value_parser = clap::value_parser!(u64).range(1..=1 << 20))]
    pub(crate) skip_data: Option<u64>,
    /// Seconds before the first restart in a row; doubles up to a minute.
    #[arg(long, value_name = "SECONDS", default_value_t = 1.0, value_parser = seconds)]
    pub(crate) restart_delay: f64,
    /// Seconds without progress after which the job counts as hanging.
    ///
    /// The ranks that cause it are reported. After half as long again the launch is killed and restarted. Five times
    /// the 99th percentile of the steps counts if that is longer.
    #[arg(long, value_name = "SECONDS", default_value_t = 30.0, value_parser = seconds)]
    pub(crate) hang_after: f64,
    /// Seconds as in --hang-after, before the first step of the run.
    #[arg(long, value_name = "SECONDS", default_value_t = 600.0, value_parser = seconds)]
    pub(crate) first_step_after: f64,
    /// Signal on which all ranks save and exit.
    #[arg(long, value_name = "SIGNAL", default_value = "USR1", value_parser = ["USR1", "INT", "TERM"])]
    pub(crate) stop_signal: String,
    /// Seconds after the stop signal before the launch is killed.
    #[arg(long, value_name = "SECONDS", default_value_t = 600.0, value_parser = seconds)]
    pub(crate) stop_grace: f64,
    /// Seconds from SIGTERM to SIGKILL for a launch that hangs or does not stop.
    #[arg(long, value_name = "SECONDS", default_value_t = 3.0, value_parser = seconds)]
    pub(crate) kill_grace: f64,
    /// Hosts of the job, comma-separated.
    #[arg(long, value_name = "HOSTS")]
    pub(crate) hosts: Option<String>,
    /// File with the hosts of the job, one per line.
    #[arg(long, value_name = "FILE", conflicts_with = "hosts")]
    pub(crate) hostfile: Option<PathBuf>,
    /// Spare hosts, which replace lost ones; comma-separated.
    #[arg(long, value_name = "HOSTS")]
    pub(crate) spares: Option<String>,
    /// Ranks per host.
    #[arg(long, value_name = "N", default_value = "1", value_parser = ranks)]
    pub(crate) ranks_per_host: usize,
    /// Fewest ranks to continue with when no spare is left [default: all].
    #[arg(long, value_name = "N", value_parser = ranks)]
    pub(crate) min_ranks: Option<usize>,
    /// Command that tests a host before each restart.
    ///
    /// For example "ssh -o ConnectTimeout=5 {host} true".
    #[arg(long, value_name = "COMMAND")]
    pub(crate) probe: Option<String>,
    /// Serve /healthz and /metrics over HTTP, e.g. on 0.0.0.0:9400.
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) health_address: Option<String>,
    /// Process number of the supervisor that this process runs the command for.
    #[arg(long, hide = true)]
    pub(crate) child_of: Option<u32>,
}
