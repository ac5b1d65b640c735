//! `bessemer schedule energy`.

use super::picture::{keys, lanes, tidy};
use super::{dry_run, program, show};
use crate::cli::EnergyArgs;
use crate::console::{Console, print};
use crate::failure::Failure;
use bessemer_report::plot::{Lane, Lanes, Panel};
use bessemer_report::signed_percent;
use bessemer_schedule::Program;
use bessemer_sim::energy::{Clock, Effect, Options, Plan, Prediction, Profile, plan};
use bessemer_sim::simulate;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::Path;

/// Share of the time that does not depend on the clock, in the model used without a measured profile.
const FIXED: f64 = 0.2;
/// Most instructions: the search looks at the program many times.
const MOST_INSTRUCTIONS: usize = 200_000;

pub(crate) fn run(args: &EnergyArgs, as_json: bool, console: &mut Console) -> Result<(), Failure> {
    let program = program::program(&args.program)?;
    let instructions: usize = program.lists.iter().map(Vec::len).sum();
    if instructions > MOST_INSTRUCTIONS {
        return Err(Failure::usage(format!(
            "the program has {instructions} instructions, wanted at most {MOST_INSTRUCTIONS}; take fewer micro-batches"
        )));
    }
    let costs = program::costs(&program, &args.program);
    let profile = match &args.profile {
        Some(path) => profile(path)?,
        None => Profile::model(FIXED),
    };
    let options = Options {
        slowdown: args.slowdown,
        reorder: !args.keep_order,
        pending_share: args.program.pending_share,
    };
    let plan = plan(&program, &costs, &profile, &options).map_err(Failure::usage)?;
    let dry_run = args.apply.map(|device| dry_run::run(&plan, &profile, device)).transpose()?;
    if let Some(path) = &args.svg {
        let before = simulate(&program, &costs).map_err(Failure::usage)?;
        let before = lanes(&program, &before, |_| String::new());
        show::write_svg(path, &picture(&program, &plan, &profile, before))?;
        console.say(&format!("wrote {}", path.display()));
    }
    match as_json {
        true => {
            let mut value = as_value(&plan, &profile);
            if let Some(dry_run) = &dry_run {
                value["dry_run"] = dry_run.as_value();
            }
            Ok(print(&serde_json::to_string(&value)?)?)
        }
        false => {
            let dry_run = dry_run.map(|r| r.text()).unwrap_or_default();
            Ok(print(&(text(&plan, &profile, args) + &dry_run))?)
        }
    }
}

/// Units of work at each clock, by index.
fn at_clocks(plan: &Plan) -> BTreeMap<usize, usize> {
    let mut counts = BTreeMap::new();
    for rank in 0..plan.program.ranks() {
        for (index, ..) in plan.timeline.work(&plan.program, rank) {
            *counts.entry(plan.clocks[rank][index]).or_default() += 1;
        }
    }
    counts
}

fn text(plan: &Plan, profile: &Profile, args: &EnergyArgs) -> String {
    let mut text = format!(
        "{}: {} ranks, {} micro-batches\n{:<8} {:>12} {:>14} {:>14}\n",
        plan.program.name,
        plan.program.ranks(),
        plan.program.micro_batches(),
        "",
        "makespan",
        "energy (W x t)",
        "of it waiting"
    );
    for (name, p) in [("before", plan.before), ("plan", plan.after)] {
        let (time, energy, idle) = (tidy(p.makespan), p.energy, p.idle_energy);
        let _ = writeln!(text, "{name:<8} {time:>12} {energy:>14.1} {idle:>14.1}");
    }
    let _ = writeln!(
        text,
        "attainable saving {:.1} % of the energy, step {}, {} instructions moved",
        100.0 * plan.saving(),
        signed_percent(plan.after.makespan / plan.before.makespan - 1.0),
        plan.moves
    );
    for (clock, units) in at_clocks(plan) {
        let _ = writeln!(text, "{:>8} MHz {units:>8} units", tidy(profile.clocks[clock].mhz));
    }
    if args.profile.is_none() {
        text += "The profile is a model, not a measurement: give --profile FILE for a device's own.\n";
    }
    text
}

fn as_value(plan: &Plan, profile: &Profile) -> Value {
    let prediction =
        |p: &Prediction| json!({ "makespan": p.makespan, "energy": p.energy, "idle_energy": p.idle_energy });
    let list = |rank: usize| -> Vec<Value> {
        let work = plan.timeline.work(&plan.program, rank);
        work.map(|(index, i, t)| {
            let mhz = profile.clocks[plan.clocks[rank][index]].mhz;
            json!({ "instruction": i.to_string(), "mhz": mhz, "start": t.start, "end": t.end })
        })
        .collect()
    };
    json!({
        "schedule": plan.program.name,
        "before": prediction(&plan.before),
        "after": prediction(&plan.after),
        "saving": plan.saving(),
        "moves": plan.moves,
        "work": (0..plan.program.ranks()).map(list).collect::<Vec<_>>(),
    })
}

fn picture(program: &Program, plan: &Plan, profile: &Profile, before: Vec<Lane>) -> Lanes {
    let mean = |rank: usize| {
        let work = plan.timeline.work(&plan.program, rank);
        let (time, clocks) = work.fold((0.0, 0.0), |(time, clocks), (index, _, t)| {
            (time + t.length(), clocks + t.length() * profile.clocks[plan.clocks[rank][index]].mhz)
        });
        if time > 0.0 { format!("{:.0} MHz", clocks / time) } else { String::new() }
    };
    let after = lanes(&plan.program, &plan.timeline, mean);
    let panels = vec![
        Panel { title: format!("full clocks: {}", tidy(plan.before.makespan)), lanes: before },
        Panel { title: format!("planned clocks: {}", tidy(plan.after.makespan)), lanes: after },
    ];
    let keys = keys(panels.iter().flat_map(|p| &p.lanes).flat_map(|l| &l.cells));
    Lanes {
        title: format!("{}: {:.1} % less energy", program.name, 100.0 * plan.saving()),
        x_label: "time".into(),
        panels,
        keys,
    }
}

/// Reads a profile.
fn profile(path: &Path) -> Result<Profile, Failure> {
    let named = |what: String| Failure::usage(format!("{}: {what}", path.display()));
    let text = bessemer_durable::read_input_to_string(path).map_err(|e| Failure::usage(e.to_string()))?;
    let value: Value = serde_json::from_str(&text).map_err(|e| named(format!("not JSON: {e}")))?;
    let number = |value: &Value, place: &str| {
        value.as_f64().ok_or_else(|| named(format!("{place}: wanted a number, found {value}")))
    };
    let clocks = value["clocks"].as_array().ok_or_else(|| {
        named("wanted {\"idle_watts\": W, \"clocks\": [{\"mhz\": M, \"forward\": {\"time\": T, \"watts\": W}, ...}, ...]}".into())
    })?;
    let mut read = Vec::new();
    for (at, clock) in clocks.iter().enumerate() {
        let effect = |kinds: &[&str]| {
            let found = kinds.iter().find(|k| clock[**k].is_object());
            let kind = found.ok_or_else(|| named(format!("clocks[{at}]: wanted {}", kinds.join(" or "))))?;
            let place = |key: &str| format!("clocks[{at}].{kind}.{key}");
            Ok::<_, Failure>(Effect {
                time: number(&clock[*kind]["time"], &place("time"))?,
                watts: number(&clock[*kind]["watts"], &place("watts"))?,
            })
        };
        // What was not measured apart is like what it is part of.
        read.push(Clock {
            mhz: number(&clock["mhz"], &format!("clocks[{at}].mhz"))?,
            forward: effect(&["forward"])?,
            backward: effect(&["backward", "forward"])?,
            backward_input: effect(&["backward_input", "backward", "forward"])?,
            backward_weight: effect(&["backward_weight", "backward", "forward"])?,
            together: effect(&["together", "backward", "forward"])?,
        });
    }
    Profile::new(number(&value["idle_watts"], "idle_watts")?, read).map_err(|e| named(e.to_string()))
}
