//! `bessemer-bench scaling`: a step on one core, on more, and beside both what the model of many cores says.

use crate::cli::BenchScalingArgs;
use crate::job;
use bessemer::{Console, Failure, print};
use bessemer_measure::many_cores::{Model, counts, profile, shown, this_machine};
use bessemer_measure::{Steps, machine};

pub(super) fn run(args: &BenchScalingArgs, as_json: bool, console: &mut Console) -> Result<(), Failure> {
    if args.step.steps == 0 {
        return Err(Failure::usage("--steps 0: wanted at least 1"));
    }
    if args.step.profile || args.step.dump.is_some() {
        return Err(Failure::usage(
            "--profile and --dump show one step: use them with `bessemer-bench step`",
        ));
    }
    let job = job::of_args(&args.step)?;
    let steps = Steps { warmup: args.step.warmup, timed: args.step.steps, dump: None };
    let named = args.step.engine.as_deref();
    let (here, mut measured) = (this_machine()?, Vec::new());
    let mut work = None;
    for threads in counts(machine::threads(args.step.threads as u64)) {
        console.say(&format!("{threads} threads"));
        let (seconds, found) = profile(&job, &steps, threads, named, &mut |line| console.say(line))?;
        measured.push((threads, seconds));
        work.get_or_insert(found);
    }
    let Some(work) = work else { return Ok(()) };
    let hosts = args.host.machines(&here);
    let model = Model { work, here, measured, hosts };
    Ok(print(&shown(&job, &model, as_json))?)
}
