//! `bessemer bench layouts`: the measured time of a step of several layouts, on ranks of this process, beside the time that
//! the simulator gives for the same step.
//!
//! The simulator replays the programs that the ranks run. What their operators, copies, collectives and messages cost is
//! measured before, one by one, on ranks that do nothing else ([`costs`]); nothing is taken from the steps that it is compared
//! with. Slow links are made by [`Delayed`], so that communication dominates.

mod cases;
mod costs;
mod paced;

use super::job::Job;
use super::median;
use super::text::{RandomText, SEED};
use crate::cli::BenchLayoutsArgs;
use crate::commands::ranks::recorded_threads;
use crate::console::{Console, print};
use crate::failure::Failure;
use crate::machine;
use bessemer_collectives::{Communicator, Delayed};
use bessemer_kernels_cpu::{CpuBackend, CpuConfig};
use bessemer_model::Shape;
use bessemer_parallel::{MemoryPlan, ParallelError, Plan};
use bessemer_schedule::Program;
use bessemer_sim::Link;
use bessemer_sim::replay::{CostTable, LinearSeconds};
use bessemer_tensor::Backend;
use bessemer_train::{
    Runner, SimulatedRanks, SimulatedStep, TrainError, give_second_memory, on_threads, simulate,
};
use bessemer_units::ParamStorage;
use cases::LayoutCase;
use paced::Paced;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

/// A layout of a step.
struct Setup<'a> {
    job: &'a Job,
    plan: Plan,
    program: Program,
    /// Of one rank.
    threads: usize,
    micro_batches: usize,
    timeout: Duration,
    /// Rate of devices that only take time, in floating-point operations a second.
    paced: Option<f64>,
}

/// Seconds of a step of one layout.
struct Row {
    name: String,
    /// The median step.
    measured: f64,
    /// Shortest and longest step.
    range: [f64; 2],
    simulated: f64,
    /// Time that the first rank spends waiting for collectives and messages, as simulated.
    exposed: BTreeMap<String, f64>,
    events: usize,
    /// Copies, sends and receives, as measured before the steps.
    costs: [(&'static str, LinearSeconds); 3],
}

pub(super) fn run(args: &BenchLayoutsArgs, as_json: bool, console: &mut Console) -> Result<(), Failure> {
    let job = Job::new(&args.step)?;
    if args.step.steps == 0 {
        return Err(Failure::usage("--steps 0: wanted at least 1"));
    }
    let (bandwidth, latency) = (1e6 * args.bandwidth, 1e-3 * args.latency);
    if !(bandwidth > 0.0 && bandwidth.is_finite() && (0.0..=1.0).contains(&latency)) {
        return Err(Failure::usage(format!(
            "--bandwidth {} --latency {}: wanted a bandwidth above 0 and a latency of at most 1000 ms",
            args.bandwidth, args.latency
        )));
    }
    if args.paced.is_some_and(|rate| !(rate > 0.0 && rate.is_finite())) {
        return Err(Failure::usage("--paced: wanted GFLOP/s above 0"));
    }
    let link = Link { latency, bandwidth };
    let threads = machine::threads(args.step.threads as u64);
    let mut rows = Vec::new();
    for case in cases::chosen(&args.layouts, args.ranks)? {
        let setup = Setup::new(&job, &case, threads, args)?;
        let table = costs::measure(&setup, args.repeats as usize)?;
        let link = case.slow.then_some(link);
        let costs = [("copy", table.copy), ("send", table.send), ("receive", table.receive)];
        let mut table = CostTable { link, ..table };
        let SimulatedStep { events: step, replay: replayed } =
            simulate(&setup.described(), SimulatedRanks::All, &mut table)?;
        let mut measured = setup.steps(args, link)?;
        let exposed = replayed.exposed(&step, 0).into_iter().map(|(label, time)| (label.to_owned(), time));
        let row = Row {
            name: case.name,
            measured: median(&mut measured),
            range: [measured[0], measured[measured.len() - 1]],
            simulated: replayed.seconds(),
            exposed: exposed.filter(|(_, time)| *time > 0.0).collect(),
            events: step.lists.iter().map(Vec::len).sum(),
            costs,
        };
        console
            .say(&format!("{}: {:.3} s measured, {:.3} s simulated", row.name, row.measured, row.simulated));
        rows.push(row);
    }
    let within = rows.iter().filter(|row| (row.ratio() - 1.0).abs() <= 0.1).count();
    Ok(print(&match as_json {
        true => serde_json::to_string_pretty(&json!({
            "model": job.model.summary(),
            "ranks": args.ranks,
            "paced_gflops": args.paced,
            "threads": threads,
            "micro_batches": args.micro_batches,
            "slow_link": { "bytes_per_second": bandwidth, "latency_seconds": latency },
            "layouts": rows.iter().map(Row::value).collect::<Vec<Value>>(),
            "within_a_tenth": within,
        }))?,
        false => table(&rows, within),
    })?)
}

impl<'a> Setup<'a> {
    fn new(
        job: &'a Job,
        case: &LayoutCase,
        threads: usize,
        args: &BenchLayoutsArgs,
    ) -> Result<Setup<'a>, Failure> {
        let ranks = args.ranks as usize;
        let plan = Plan::new(&case.config, ranks, &job.model, job.optim.optimizer);
        let plan = plan.map_err(Failure::usage)?;
        let micro_batches = args.micro_batches as usize;
        let program = plan.program(micro_batches, 1, None).map_err(Failure::usage)?;
        let threads = (threads / ranks).max(1);
        let (timeout, paced) = (args.waiting.timeout(), args.paced.map(|rate| 1e9 * rate));
        let setup = Setup { job, plan, program, threads, micro_batches, timeout, paced };
        if paced.is_none() {
            MemoryPlan::of_rank(&setup.described(), None, None)?.fits(ranks, machine::available_memory())?;
        }
        Ok(setup)
    }

    /// What the ranks are made for.
    fn described(&self) -> bessemer_parallel::Job<'_> {
        bessemer_parallel::Job {
            model: &self.job.model,
            shape: self.job.shape,
            activations: self.job.activations.clone(),
            types: ParamStorage::default(),
            optim: &self.job.optim,
            z_loss: 0.0,
            plan: &self.plan,
            program: &self.program,
        }
    }

    fn backend(&self) -> Result<Box<dyn Backend>, TrainError> {
        if let Some(rate) = self.paced {
            return Ok(Box::new(Paced::new(rate)));
        }
        let config = CpuConfig { threads: self.threads, matmul: self.job.matmul, ..CpuConfig::default() };
        let backend = CpuBackend::new(config).map_err(|e| TrainError::Recipe(e.to_string()))?;
        Ok(Box::new(backend))
    }

    /// Gives a rank its initial weights, if it computes with them.
    fn init(&self, runner: &mut Runner, backend: &mut dyn Backend) -> Result<(), TrainError> {
        match self.paced {
            Some(_) => Ok(()),
            None => Ok(runner.worker.init(backend, SEED)?),
        }
    }

    /// Whether a progress thread has a core for itself.
    fn spare_cores(&self) -> bool {
        self.paced.is_some() || 2 * self.plan.ranks() * self.threads <= machine::threads(0)
    }

    /// A rank without initial weights, and its tokens.
    fn rank(
        &self,
        backend: &mut dyn Backend,
        world: Box<dyn Communicator>,
    ) -> Result<(Runner, RandomText), TrainError> {
        let mut runner = Runner::new(backend, &self.described(), world)?;
        give_second_memory(&mut runner.worker, &self.job.offload_dir, Path::new("."))?;
        let shape: Shape = self.job.shape;
        let sequences = self.micro_batches * shape.sequences;
        let first = self.plan.data_index(runner.worker.coord()) * sequences;
        let tokens = self.job.tokens() * self.micro_batches * self.plan.data_ranks();
        Ok((runner, RandomText::new(self.job, tokens, shape, first)))
    }

    /// The communicators of all ranks.
    fn worlds(&self) -> Vec<Box<dyn Communicator>> {
        recorded_threads(self.plan.ranks(), self.timeout).1
    }

    /// Seconds of the steps after the warm-up.
    fn steps(&self, args: &BenchLayoutsArgs, link: Option<Link>) -> Result<Vec<f64>, Failure> {
        let slow = |world: Box<dyn Communicator>| match link {
            Some(Link { latency, bandwidth }) => {
                Delayed { latency: Duration::from_secs_f64(latency), bandwidth }.wrap(world)
            }
            None => world,
        };
        let worlds = self.worlds().into_iter().map(slow).collect();
        let skip = args.step.warmup as usize;
        let ranks = on_threads(worlds, |world| {
            let mut backend = self.backend()?;
            let (mut runner, mut text) = self.rank(&mut *backend, world)?;
            self.init(&mut runner, &mut *backend)?;
            let mut seconds = Vec::new();
            for step in 0..args.step.warmup + args.step.steps {
                text.step = step;
                runner.worker.world().barrier("step").map_err(ParallelError::from)?;
                let begun = Instant::now();
                runner.step(&mut *backend, &mut text, step + 1, self.job.optim.lr)?;
                seconds.push(begun.elapsed().as_secs_f64());
            }
            Ok(seconds)
        })?;
        // A step is over when the last rank is.
        let last = |step: usize| ranks.iter().map(|rank| rank[step]).fold(0.0, f64::max);
        Ok((skip..skip + args.step.steps as usize).map(last).collect())
    }
}

impl Row {
    fn ratio(&self) -> f64 {
        self.simulated / self.measured
    }

    fn value(&self) -> Value {
        json!({
            "layout": self.name,
            "measured_seconds": self.measured,
            "measured_range_seconds": self.range,
            "simulated_seconds": self.simulated,
            "simulated_over_measured": self.ratio(),
            "exposed_seconds": self.exposed,
            "events": self.events,
            "costs": self.costs.map(|(name, LinearSeconds { fixed, per_byte })| {
                json!({ "name": name, "seconds": fixed, "seconds_per_byte": per_byte })
            }),
        })
    }
}

fn table(rows: &[Row], within: usize) -> String {
    let mut text = format!(
        "{:<22} {:>10} {:>22} {:>10} {:>6}  waiting of rank 0, simulated\n",
        "layout", "measured", "steps from .. to", "simulated", "ratio"
    );
    for row in rows {
        let exposed: Vec<String> =
            row.exposed.iter().map(|(label, time)| format!("{label} {:.0} ms", 1e3 * time)).collect();
        text += &format!(
            "{:<22} {:>8.3} s {:>9.3} .. {:>6.3} s {:>8.3} s {:>6.3}  {}\n",
            row.name,
            row.measured,
            row.range[0],
            row.range[1],
            row.simulated,
            row.ratio(),
            exposed.join(", ")
        );
    }
    text + &format!("{within} of {} within 10 %", rows.len())
}
