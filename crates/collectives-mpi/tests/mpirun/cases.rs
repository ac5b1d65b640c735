//! The cases, and what each of them must show.

use crate::hosts::Hosts;
use crate::launcher::{Job, is_open_mpi, lives, local, mpirun, own, pids, run, run_with_witness, stamp};
use crate::work;
use crate::worker::SILENCE;
use bessemer_collectives::{ThreadCommunicator, ThreadSettings};
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

/// What a case says for itself, or what is wrong.
type Verdict = Result<String, String>;

type Case = (&'static str, fn() -> Verdict);

pub(crate) const CASES: [Case; 13] = [
    ("every_collective_has_the_bits_of_ranks_in_one_process_1", || parity(1)),
    ("every_collective_has_the_bits_of_ranks_in_one_process_2", || parity(2)),
    ("every_collective_has_the_bits_of_ranks_in_one_process_4", || parity(4)),
    ("every_collective_has_the_bits_of_ranks_in_one_process_8", || parity(8)),
    ("warm_steps_ask_for_no_memory", warm),
    ("a_launcher_that_says_otherwise_is_refused", disagreement),
    ("a_rank_that_computes_longer_than_the_silence_is_not_given_up", busy),
    ("a_killed_rank_is_named", || fault("kill", Duration::from_secs(2))),
    ("a_rank_that_exits_is_named", || fault("exit", Duration::from_secs(2))),
    ("a_stopped_rank_is_named", || fault("stop", SILENCE + Duration::from_secs(2))),
    ("a_rank_that_gives_up_is_named_with_its_reason", || fault("give-up", Duration::from_secs(1))),
    ("a_rank_that_panics_is_named", || fault("panic", Duration::from_secs(1))),
    ("a_rank_that_is_cut_off_is_named", cut),
];

const LIMIT: Duration = Duration::from_secs(60);
/// How much longer everything may take on a machine that does other work.
const SLOW: Duration = Duration::from_secs(10);

fn need(job: &Job, holds: bool, what: &str) -> Result<(), String> {
    if holds {
        return Ok(());
    }
    let took = job.took.as_secs_f64();
    Err(format!("{what}\nlauncher's code {:?} after {took:.1} s; the job said:\n{}", job.code, job.said))
}

fn parity(ranks: usize) -> Verdict {
    let world = ThreadCommunicator::world("world", ranks, &ThreadSettings::default());
    let digests: Vec<u64> = std::thread::scope(|scope| {
        let threads: Vec<_> = world
            .into_iter()
            .map(|mut c| scope.spawn(move || work::every_collective(&mut c).expect("threads do not fail")))
            .collect();
        threads.into_iter().map(|t| t.join().expect("threads do not panic")).collect()
    });
    let job = run(local(ranks).arg(own()).args(["worker", "parity"]), LIMIT)?;
    need(&job, job.code == Some(0), "the job failed")?;
    for (rank, digest) in digests.iter().enumerate() {
        let wanted = format!("rank {rank} digest {digest:016x}");
        need(&job, job.said.contains(&wanted), &format!("nobody said {wanted:?}"))?;
    }
    need(&job, job.said.matches(" finished").count() == ranks, "not all ranks finished")?;
    Ok(String::new())
}

fn warm() -> Verdict {
    let job = run(local(2).arg(own()).args(["worker", "warm"]), LIMIT)?;
    need(&job, job.code == Some(0), "the job failed")?;
    let none = job.said.matches("asked for 0 at least").count();
    need(&job, none == 2, "warm steps ask for memory")?;
    Ok(String::new())
}

fn disagreement() -> Verdict {
    let mut command = local(2);
    command.args(["env", "RANK=0", "WORLD_SIZE=7"]).arg(own()).args(["worker", "parity"]);
    let job = run(&mut command, LIMIT)?;
    need(&job, job.code.is_some_and(|c| c != 0), "the job did not fail")?;
    let said = job.said.contains("of 2, but the launcher's variables give rank 0 of 7");
    need(&job, said, "it does not say what differs")?;
    Ok(String::new())
}

fn busy() -> Verdict {
    let job = run_with_witness(local(3).arg(own()).args(["worker", "fault", "busy"]), LIMIT)?;
    need(&job, job.code == Some(0) && job.said.matches(" finished").count() == 3, "the job failed")?;
    Ok(String::new())
}

/// Checks that the job failed, that no rank saw a wrong sum, that no rank lives on, and that what survivors say names the
/// collective, and of at least `least` of them the culprit too. Launchers end the others as soon as one has left: on a busy
/// machine a survivor may see that of another one first, and `within` is then not kept either, but [`SLOW`] is.
fn judge(job: &Job, ranks: usize, within: Duration, least: usize) -> Verdict {
    need(job, job.code != Some(0), "the job did not fail")?;
    need(job, !job.said.contains("WRONG"), "a wrong sum")?;
    need(job, pids(&job.said).len() == ranks, "not all ranks came up")?;
    let began = Instant::now();
    while pids(&job.said).iter().any(|p| lives(*p)) {
        need(job, began.elapsed() < SILENCE + SLOW, "a rank lives on")?;
        std::thread::sleep(Duration::from_millis(50));
    }
    let at = job.said.lines().find(|l| l.contains(" fault ")).and_then(stamp);
    let Some(at) = at else { return need(job, false, "no fault was made").map(|()| String::new()) };
    let culprit = ranks - 1;
    let (mut named, mut longest) = (0, 0);
    for rank in 0..culprit {
        let mark = format!("failed: rank {rank}: ");
        let Some(line) = job.said.lines().find(|l| l.contains(&mark)) else { continue };
        let collective = line.contains("all-reduce of \"gradients\"");
        need(job, collective, &format!("rank {rank} does not name the collective"))?;
        // A rank that panics says so itself, before anyone looks for its process.
        let named_so = [format!("rank {culprit} (host "), format!("rank {culprit} is gone: it panicked")];
        if named_so.iter().any(|n| line.contains(n)) {
            named += 1;
            longest = longest.max(stamp(line).unwrap_or(u64::MAX).saturating_sub(at));
        }
    }
    need(job, named >= least, &format!("{named} survivors name rank {culprit}, not {least}"))?;
    let bound = within + SLOW;
    need(job, u128::from(longest) <= bound.as_millis(), &format!("named only after {longest} ms"))?;
    let late = if u128::from(longest) > within.as_millis() { " (late: is the machine busy?)" } else { "" };
    Ok(format!(
        "named by {named} of {culprit} survivors within {longest} ms{late}; launcher ended with {:?} after {:.1} s",
        job.code,
        job.took.as_secs_f64()
    ))
}

fn fault(fault: &str, within: Duration) -> Verdict {
    let job = run_with_witness(local(4).arg(own()).args(["worker", "fault", fault]), LIMIT)?;
    // Open MPI asks ranks to end and gives them a second; Hydra kills them at once.
    let least = match (fault, is_open_mpi()) {
        ("kill" | "exit" | "panic", false) => 0,
        _ => 1,
    };
    let verdict = judge(&job, 4, within, least)?;
    if fault == "give-up" && verdict.contains("named by 3") {
        need(&job, job.said.matches("the disk is full").count() >= 4, "the reason is not passed on")?;
    }
    Ok(verdict)
}

fn cut() -> Verdict {
    let hosts = match Hosts::up() {
        Ok(hosts) => hosts,
        Err(problem) => return Ok(format!("skipped: no network namespaces here ({problem})")),
    };
    let mut command = hosts.launcher(&mpirun(), is_open_mpi());
    let job = run_with_witness(command.arg(own()).args(["worker", "fault", "cut"]), LIMIT)?;
    judge(&job, 3, SILENCE + Duration::from_secs(2), 1)
}

pub(crate) fn bench() -> ExitCode {
    let mut command: Command = local(2);
    match run(command.arg(own()).args(["worker", "bench", "64000000"]), LIMIT) {
        Ok(job) => {
            print!("{}", job.said);
            ExitCode::SUCCESS
        }
        Err(problem) => {
            println!("{problem}");
            ExitCode::FAILURE
        }
    }
}
