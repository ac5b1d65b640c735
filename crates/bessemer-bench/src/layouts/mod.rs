//! `bessemer-bench layouts`: the measured time of a step of several layouts, on ranks of this process, beside the time that
//! the simulator gives for the same step.
//!
//! The simulator replays the programs that the ranks run. What their operators, copies, collectives and messages cost is
//! measured before, one by one, on ranks that do nothing else ([`layout_costs`]); nothing is taken from the steps that it is compared
//! with. Slow links are made by [`bessemer_collectives::Delayed`], so that communication dominates.

mod agreement;
mod tally;

use crate::cli::BenchLayoutsArgs;
use crate::job;
use agreement::Agreement;
use bessemer::{Console, Failure, print};
use bessemer_measure::{Bench, LayoutCase, Setup, StepSize, layout_cases, layout_costs, machine};
use bessemer_plan::{Efficiency, Machine, MachineCosts};
use bessemer_sim::Link;
use bessemer_sim::replay::{CostTable, LinearSeconds, Loads, RoutingProfile};
use bessemer_train::{SimulatedRanks, SimulatedStep, simulate};
use bessemer_units::ParamStorage;
use bessemer_units::stats::upper_median;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use tally::{Charges, Tally};

/// Seconds of a step of one layout.
struct Row {
    name: String,
    /// The median step.
    measured: f64,
    /// Shortest and longest step.
    range: [f64; 2],
    simulated: f64,
    /// Simulated with the costs of a machine's file, of which none was measured for this layout.
    planned: Option<f64>,
    /// Choices of the experts of each layer in the first step, where they are on several ranks.
    loads: Vec<Vec<u64>>,
    /// Simulated with equal loads of these.
    equal_loads: Option<f64>,
    /// Time that the first rank spends waiting for collectives and messages, as simulated.
    exposed: BTreeMap<String, f64>,
    events: usize,
    /// What the step is charged for, by kind of node: as measured, and by a machine's file.
    charges: [BTreeMap<String, Charges>; 2],
}

/// A figure of a layout's row.
type OfRow<T> = fn(&Row) -> T;

pub(crate) fn run(args: &BenchLayoutsArgs, as_json: bool, console: &mut Console) -> Result<(), Failure> {
    let job = job::of_args(&args.step)?;
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
    if !(args.router_skew.is_finite() && args.router_skew >= 0.0) {
        return Err(Failure::usage(format!(
            "--router-skew {}: wanted a number of at least 0",
            args.router_skew
        )));
    }
    let link = Link { latency, bandwidth };
    let threads = machine::threads(args.step.threads as u64);
    let bench = Bench {
        job: &job,
        types: ParamStorage::default(),
        ranks: args.ranks as usize,
        threads,
        size: match args.sequences {
            Some(sequences) => StepSize::Sequences(sequences as usize),
            None => StepSize::MicroBatches(args.micro_batches as usize),
        },
        timeout: args.waiting.timeout(),
        paced: args.paced.map(|rate| 1e9 * rate),
        router_skew: args.router_skew,
    };
    let machine = args.machine.as_deref().map(bessemer_planner::machine).transpose()?;
    let mut cases = layout_cases(&args.layouts, args.ranks)?;
    for case in cases.iter_mut().filter(|case| case.slow && case.config.shadows > 0) {
        case.config.shadow_bandwidth = bandwidth;
    }
    let setups: Vec<Setup<'_>> =
        cases.iter().map(|case| Setup::new(&bench, case)).collect::<Result<_, _>>()?;
    let over_ranks = |setup: &&Setup<'_>| setup.plan.experts() > 1;
    if args.paced.is_some() && setups.iter().any(|setup| over_ranks(&setup)) {
        return Err(Failure::usage(
            "--paced: devices that compute nothing route no token to an expert; leave it out",
        ));
    }
    let costs = layout_costs(&setups.iter().collect::<Vec<_>>(), args.repeats as usize)?;
    console.say("operators and transport measured");
    let links: Vec<Option<Link>> = cases.iter().map(|case| case.slow.then_some(link)).collect();
    let mut rows = Vec::new();
    for ((setup, case), link) in setups.iter().zip(&cases).zip(&links) {
        rows.push(predict(setup, case, &CostTable { link: *link, ..costs.clone() }, machine.as_ref())?);
        console.say(&format!("{}: {:.3} s simulated", case.name, rows[rows.len() - 1].simulated));
    }
    // All layouts in each round, so that a busy minute of this machine is not that of one layout.
    let mut measured: Vec<Vec<f64>> = vec![Vec::new(); setups.len()];
    for round in 0..args.rounds {
        for ((setup, link), times) in setups.iter().zip(&links).zip(&mut measured) {
            times.extend(setup.steps(args.step.warmup, args.step.steps, *link)?);
        }
        console.say(&format!("round {} of {} measured", round + 1, args.rounds));
    }
    for (row, times) in rows.iter_mut().zip(&mut measured) {
        row.measured = upper_median(times);
        row.range = [times[0], times[times.len() - 1]];
    }
    let within = rows.iter().filter(|row| (row.ratio() - 1.0).abs() <= 0.1).count();
    // On a machine that other programs share the fastest steps are those that nothing disturbed.
    let pairs = |predicted: OfRow<Option<f64>>, measured: OfRow<f64>| -> Vec<(f64, f64)> {
        rows.iter().filter_map(|row| Some((predicted(row)?, measured(row)))).collect()
    };
    let (simulated, planned): (OfRow<_>, OfRow<_>) = (|row| Some(row.simulated), |row| row.planned);
    let (middle, fastest): (OfRow<f64>, OfRow<f64>) = (|row| row.measured, |row| row.range[0]);
    let agreements = [
        ("simulated", Agreement::of(&pairs(simulated, middle))),
        ("simulated, fastest steps", Agreement::of(&pairs(simulated, fastest))),
        ("from the machine's file", Agreement::of(&pairs(planned, middle))),
        ("from the machine's file, fastest steps", Agreement::of(&pairs(planned, fastest))),
    ];
    let agreements: Vec<(&str, Agreement)> =
        agreements.into_iter().filter_map(|(what, agreement)| Some((what, agreement?))).collect();
    let lines = [("copy", costs.copy), ("send", costs.send), ("receive", costs.receive)];
    let transport = lines.map(|(name, LinearSeconds { fixed, per_byte })| {
        json!({ "name": name, "seconds": fixed, "seconds_per_byte": per_byte })
    });
    Ok(print(&match as_json {
        true => serde_json::to_string(&json!({
            "model": job.model.summary(),
            "ranks": args.ranks,
            "paced_gflops": args.paced,
            "router_skew": args.router_skew,
            "threads": threads,
            "micro_batches": args.micro_batches,
            "sequences": args.sequences,
            "costs": transport,
            "slow_link": { "bytes_per_second": bandwidth, "latency_seconds": latency },
            "layouts": rows.iter().map(Row::value).collect::<Vec<Value>>(),
            "within_a_tenth": within,
            "agreement": agreements.iter().map(|(what, of)| (*what, of.value())).collect::<BTreeMap<_, _>>(),
        }))?,
        false => {
            let lines: Vec<String> = agreements.iter().map(|(what, of)| of.text(what)).collect();
            format!("{}\n{}", table(&rows, within), lines.join("\n"))
        }
    })?)
}

/// Simulates the step of a layout.
fn predict(
    setup: &Setup<'_>,
    case: &LayoutCase,
    table: &CostTable,
    machine: Option<&Machine>,
) -> Result<Row, Failure> {
    let (job, all) = (setup.described(), SimulatedRanks::All);
    let (mut routing, mut loads, mut equal_loads) = (RoutingProfile::default(), Vec::new(), None);
    if setup.plan.experts() > 1 {
        equal_loads = Some(simulate(&job, all, &routing, &mut table.clone())?.seconds());
        loads = setup.loads()?;
        routing.loads = Loads::Recorded(loads.clone());
    }
    let mut measured = Tally::new(table.clone());
    let SimulatedStep { events, replay, .. } = simulate(&job, all, &routing, &mut measured)?;
    let exposed = replay.exposed(&events, 0).into_iter().map(|(label, time)| (label.to_owned(), time));
    let (planned, charged) = match machine {
        // A machine's file says nothing of links that are made slow.
        Some(machine) if table.link.is_none() => {
            let costs = MachineCosts::new(machine, Efficiency::default(), setup.plan.ranks());
            let mut costs = Tally::new(costs);
            (Some(simulate(&job, all, &routing, &mut costs)?.seconds()), costs.into_charges())
        }
        _ => (None, BTreeMap::new()),
    };
    Ok(Row {
        name: case.name.clone(),
        measured: f64::NAN,
        range: [f64::NAN; 2],
        simulated: replay.seconds(),
        planned,
        loads,
        equal_loads,
        exposed: exposed.filter(|(_, time)| *time > 0.0).collect(),
        events: events.lists.iter().map(Vec::len).sum(),
        charges: [measured.into_charges(), charged],
    })
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
            "planned_seconds": self.planned,
            "loads": self.loads,
            "simulated_seconds_of_equal_loads": self.equal_loads,
            "exposed_seconds": self.exposed,
            "events": self.events,
            "charges": { "measured": Charges::value(&self.charges[0]), "machine": Charges::value(&self.charges[1]) },
        })
    }
}

fn table(rows: &[Row], within: usize) -> String {
    let mut text = format!(
        "{:<22} {:>10} {:>22} {:>10} {:>6} {:>10}  waiting of rank 0, simulated\n",
        "layout", "measured", "steps from .. to", "simulated", "ratio", "from file"
    );
    for row in rows {
        let mut exposed: Vec<String> =
            row.exposed.iter().map(|(label, time)| format!("{label} {:.0} ms", 1e3 * time)).collect();
        exposed.extend(row.equal_loads.map(|seconds| format!("step with equal loads {seconds:.3} s")));
        text += &format!(
            "{:<22} {:>8.3} s {:>9.3} .. {:>6.3} s {:>8.3} s {:>6.3} {:>10}  {}\n",
            row.name,
            row.measured,
            row.range[0],
            row.range[1],
            row.simulated,
            row.ratio(),
            row.planned.map_or(String::new(), |seconds| format!("{seconds:.3} s")),
            exposed.join(", ")
        );
    }
    text + &format!("{within} of {} within 10 %", rows.len())
}
