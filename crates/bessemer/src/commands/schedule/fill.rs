//! `bessemer schedule fill`.

use super::picture::{keys, lanes, tidy};
use super::program;
use super::show::{instruction, round, write_svg};
use crate::cli::FillArgs;
use crate::console::{Console, print, print_coloured};
use crate::failure::Failure;
use bessemer_report::plot::{Cell, Lanes, Panel};
use bessemer_report::terminal;
use bessemer_schedule::{Filler, Program};
use bessemer_sim::fill::{FillOptions, Filled, KfacStage, Need, Operands, Unit, When, fill, kfac_units};
use bessemer_sim::{Timeline, simulate, visits};
use serde_json::{Value, json};
use std::fmt::Write;

pub(crate) fn run(args: &FillArgs, as_json: bool, console: &mut Console) -> Result<(), Failure> {
    let program = program::program(&args.program)?;
    let costs = program::costs(&program, &args.program);
    let units = units(&program, args)?;
    let options = FillOptions { margin: args.margin };
    let filled = fill(&program, &costs, &units, &options).map_err(Failure::usage)?;
    let plain = simulate(&program, &costs).map_err(Failure::usage)?;
    let picture = || picture(&program, &plain, &filled, args.panels);
    if let Some(path) = &args.svg {
        write_svg(path, &picture())?;
        console.say(&format!("wrote {}", path.display()));
    }
    if as_json {
        return Ok(print(&serde_json::to_string(&as_value(&program, &units, &filled))?)?);
    }
    let width = args.columns.map_or_else(crate::console::width, usize::from);
    let mut text = terminal::lanes(&picture(), width, crate::console::colours());
    text += &numbers(&program, &filled);
    Ok(print_coloured(&text)?)
}

/// The units that the command line names.
fn units(program: &Program, args: &FillArgs) -> Result<Vec<Unit>, Failure> {
    let mut units = Vec::new();
    if !args.no_kfac {
        let operands = if args.after_backward { Operands::AfterBackward } else { Operands::AsMade };
        let forward = args.program.times[0];
        let stages: Vec<KfacStage> = (0..program.stages)
            .map(|stage| {
                let visits = program.holders(stage).first().map_or(1, |place| visits(program, *place));
                KfacStage::transformer(args.layers, args.model_width, args.tokens, forward / visits as f64)
            })
            .collect();
        units = kfac_units(program, &stages, operands).map_err(Failure::usage)?;
    }
    for number in 0..args.evaluations {
        for (stage, place) in program.routes[0].iter().enumerate() {
            let after = if stage > 0 { vec![Need::Unit(units.len() - 1)] } else { Vec::new() };
            let time = args.program.times[0] / visits(program, *place) as f64;
            let (places, when) = (vec![*place], When::Spread);
            units.push(Unit { places, filler: Filler::Evaluate, number, time, when, after });
        }
    }
    for number in 0..args.copies {
        for rank in 0..program.ranks() {
            let (places, when) = (vec![bessemer_schedule::Place { rank, chunk: 0 }], When::Spread);
            let time = args.copy_time;
            units.push(Unit { places, filler: Filler::Copy, number, time, when, after: Vec::new() });
        }
    }
    match units.len() {
        0 => Err(Failure::usage("no work for the bubbles: wanted K-FAC, --evaluations or --copies")),
        n if n > MOST_UNITS => Err(Failure::usage(format!(
            "{n} units of work: wanted at most {MOST_UNITS}; take fewer layers, micro-batches, evaluations or copies"
        ))),
        _ => Ok(units),
    }
}

/// Most units that are planned: more takes minutes.
const MOST_UNITS: usize = 200_000;

fn picture(program: &Program, plain: &Timeline, filled: &Filled, panels: usize) -> Lanes {
    let title = format!("unfilled: {:.1} % busy", 100.0 * filled.utilisation_before);
    let mut all = vec![Panel { title, lanes: lanes(program, plain, |_| String::new()) }];
    for (step, (program, timeline)) in filled.programs.iter().zip(&filled.timelines).enumerate().take(panels)
    {
        all.push(Panel {
            title: format!("step {} of {}", step + 1, filled.interval()),
            lanes: lanes(program, timeline, |_| String::new()),
        });
    }
    let cells: Vec<Cell> = all.iter().flat_map(|p| &p.lanes).flat_map(|l| l.cells.clone()).collect();
    Lanes {
        title: format!(
            "{}: {} ranks, {} micro-batches, bubbles filled: {:.1} % busy instead of {:.1} %",
            program.name,
            program.ranks(),
            program.micro_batches(),
            100.0 * filled.utilisation_after,
            100.0 * filled.utilisation_before
        ),
        x_label: "time".into(),
        panels: all,
        keys: keys(cells.iter()),
    }
}

fn numbers(program: &Program, filled: &Filled) -> String {
    let mut text = format!(
        "{}: {} ranks, {} stages, {} micro-batches\nutilisation {:.1} % before, {:.1} % after\nrefresh interval {} \
         step(s): after so many all units are done once\nstep {} without this work, {} with that of every update, {} \
         filled (longest), {} if all of it waited for the end of the step\n",
        program.name,
        program.ranks(),
        program.stages,
        program.micro_batches(),
        100.0 * filled.utilisation_before,
        100.0 * filled.utilisation_after,
        filled.interval(),
        tidy(filled.plain_step),
        tidy(filled.base_step),
        tidy(filled.steps.iter().copied().fold(0.0, f64::max)),
        tidy(filled.serial_step)
    );
    if filled.forced > 0 {
        let _ = writeln!(
            text,
            "units longer than every bubble of their rank: {}; steps with one are up to {:.1} % longer",
            filled.forced,
            100.0 * filled.lengthening()
        );
    }
    text
}

fn as_value(program: &Program, units: &[Unit], filled: &Filled) -> Value {
    let programs: Vec<Vec<Vec<Value>>> = filled
        .programs
        .iter()
        .zip(&filled.timelines)
        .map(|(program, timeline)| {
            let lists = program.lists.iter().zip(&timeline.intervals);
            lists
                .map(|(list, times)| list.iter().zip(times).map(|(i, t)| instruction(i, t)).collect())
                .collect()
        })
        .collect();
    let steps: Vec<f64> = filled.steps.iter().map(|s| round(*s)).collect();
    json!({
        "schedule": program.name,
        "ranks": program.ranks(),
        "stages": program.stages,
        "micro_batches": program.micro_batches(),
        "units": units.len(),
        "interval": filled.interval(),
        "forced": filled.forced,
        "plain_step": round(filled.plain_step),
        "base_step": round(filled.base_step),
        "serial_step": round(filled.serial_step),
        "steps": steps,
        "lengthening": round(filled.lengthening()),
        "utilisation_before": round(filled.utilisation_before),
        "utilisation_after": round(filled.utilisation_after),
        "instructions": programs,
    })
}
