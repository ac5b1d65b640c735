//! Runs `mpirun` with a limit, and reads what the ranks said.

use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// What came of a job.
#[derive(Debug)]
pub(crate) struct Job {
    /// Exit code of the launcher; `None` if it had to be ended.
    pub(crate) code: Option<i32>,
    /// What ranks and launcher said.
    pub(crate) said: String,
    pub(crate) took: Duration,
}

pub(crate) fn mpirun() -> String {
    std::env::var("BESSEMER_MPIRUN").unwrap_or_else(|_| env!("BESSEMER_MPIRUN").to_owned())
}

/// Open MPI's launcher has options that others refuse.
pub(crate) fn is_open_mpi() -> bool {
    let out = Command::new(mpirun()).arg("--version").output();
    // Called mpirun.openmpi it says OpenRTE, the name of its run-time environment.
    out.is_ok_and(|o| ["Open MPI", "OpenRTE"].iter().any(|n| String::from_utf8_lossy(&o.stdout).contains(n)))
}

/// This program.
pub(crate) fn own() -> PathBuf {
    std::env::current_exe().expect("a running program has a path")
}

/// A launcher for ranks on this machine.
pub(crate) fn local(ranks: usize) -> Command {
    let mut command = Command::new(mpirun());
    if is_open_mpi() {
        command.args(["--oversubscribe", "--allow-run-as-root"]);
    }
    command.args(["-n", &ranks.to_string()]);
    command
}

/// Runs to the end, or until `limit`, or (with `until`) until it has nothing more to say.
pub(crate) fn run(command: &mut Command, limit: Duration) -> Result<Job, String> {
    let log = std::env::temp_dir().join(format!("bessemer-mpi-{}-{}", std::process::id(), unique()));
    let file = std::fs::File::create(&log).map_err(|e| e.to_string())?;
    let errors = file.try_clone().map_err(|e| e.to_string())?;
    let began = Instant::now();
    let mut child = command
        .stdin(Stdio::null())
        .stdout(file)
        .stderr(errors)
        .spawn()
        .map_err(|e| format!("{command:?}: {e}"))?;
    let mut code = None;
    while began.elapsed() < limit {
        if let Some(status) = child.try_wait().map_err(|e| e.to_string())? {
            code = status.code();
            break;
        }
        // A launcher may wait for a host that is cut off long after its ranks have ended.
        let said = std::fs::read_to_string(&log).unwrap_or_default();
        if began.elapsed() > Duration::from_secs(5)
            && !pids(&said).is_empty()
            && pids(&said).iter().all(|p| !lives(*p))
        {
            std::thread::sleep(Duration::from_secs(2));
            code = child.try_wait().map_err(|e| e.to_string())?.and_then(|s| s.code());
            break;
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    let took = began.elapsed();
    if child.try_wait().map_err(|e| e.to_string())?.is_none() {
        child.kill().map_err(|e| e.to_string())?;
        child.wait().map_err(|e| e.to_string())?;
    }
    let said = String::from_utf8_lossy(&std::fs::read(&log).map_err(|e| e.to_string())?).into_owned();
    // Gone or not, it is only a log in the folder for such.
    let _ = std::fs::remove_file(&log);
    Ok(Job { code, said, took })
}

/// As [`run`], with a file as the last argument, into which ranks write what must not get lost: a launcher whose ranks end
/// without a word drops some of what they say on their way out.
pub(crate) fn run_with_witness(command: &mut Command, limit: Duration) -> Result<Job, String> {
    let witness = std::env::temp_dir().join(format!("bessemer-mpi-{}-{}", std::process::id(), unique()));
    std::fs::File::create(&witness).map_err(|e| e.to_string())?;
    let job = run(command.arg(&witness), limit);
    let told = std::fs::read(&witness).map_err(|e| e.to_string())?;
    // It is only a log in the folder for such.
    let _ = std::fs::remove_file(&witness);
    let mut job = job?;
    job.said.push('\n');
    job.said.push_str(&String::from_utf8_lossy(&told));
    Ok(job)
}

fn unique() -> u128 {
    std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(0, |t| t.as_nanos())
}

/// Processes of the ranks, from what they said at the start.
pub(crate) fn pids(said: &str) -> Vec<u32> {
    said.lines().filter_map(|line| line.split(" is pid ").nth(1)?.split(';').next()?.parse().ok()).collect()
}

/// True if the process is there and no zombie.
pub(crate) fn lives(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit(')').next().and_then(|rest| rest.split_whitespace().next()).is_some_and(|s| !"ZX".contains(s))
}

/// Milliseconds in a line "t=17 ...".
pub(crate) fn stamp(line: &str) -> Option<u64> {
    line.split("t=").nth(1)?.split(' ').next()?.parse().ok()
}
