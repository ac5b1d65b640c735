//! `bessemer schedule show`.

use super::measured::{self, Measured};
use super::picture::{keys, lanes, tidy};
use super::program;
use crate::cli::ShowArgs;
use crate::console::{Console, print, print_coloured};
use crate::failure::Failure;
use bessemer_report::plot::{Cell, Lanes, Panel, standalone};
use bessemer_report::{signed_percent, terminal};
use bessemer_schedule::{Flow, Instruction, Pass, Program};
use bessemer_sim::{Costs, Interval, Summary, Timeline, simulate};
use bessemer_units::counted;
use serde_json::{Value, json};
use std::fmt::Write;
use std::path::Path;

/// Most pieces of a picture: viewers get slow beyond.
pub(crate) const MOST_CELLS: usize = 100_000;

pub(crate) fn run(args: &ShowArgs, as_json: bool, console: &mut Console) -> Result<(), Failure> {
    let program = program::program(&args.program)?;
    let measured = match &args.trace {
        Some(path) => Some(measured::read(path, &program, args.step)?),
        None => None,
    };
    let costs = match &measured {
        Some(m) => {
            let measured = m.samples.costs(&program).map_err(|e| Failure::new(format!("the trace: {e}")))?;
            Costs { messages: program::costs(&program, &args.program).messages, ..measured }
        }
        None => program::costs(&program, &args.program),
    };
    let timeline = simulate(&program, &costs).map_err(Failure::usage)?;
    let summary = Summary::new(&program, &costs, &timeline, args.program.pending_share);
    let picture = || picture(&program, &timeline, &summary, measured.as_ref());
    if let Some(path) = &args.svg {
        write_svg(path, &picture())?;
        console.say(&format!("wrote {}", path.display()));
    }
    if as_json {
        let mut value = as_value(&program, &costs, &timeline, &summary);
        if let Some(m) = &measured {
            value["measured"] = json!({ "step": m.step, "makespan": m.makespan });
        }
        return Ok(print(&serde_json::to_string(&value)?)?);
    }
    let width = args.width.map_or_else(crate::console::width, usize::from);
    let mut text = terminal::lanes(&picture(), width, crate::console::colours());
    text += &numbers(&program, &summary);
    if let Some(m) = &measured {
        let _ = writeln!(
            text,
            "measured {} ms, simulated with the measured times {} ms: {}",
            tidy(m.makespan),
            tidy(summary.makespan),
            signed_percent(summary.makespan / m.makespan - 1.0)
        );
    }
    Ok(print_coloured(&text)?)
}

/// Writes a picture as a file of its own.
pub(crate) fn write_svg(path: &Path, picture: &Lanes) -> Result<(), Failure> {
    let cells = picture.pieces();
    if cells > MOST_CELLS {
        return Err(Failure::usage(format!(
            "--svg: the picture would have {cells} pieces, wanted at most {MOST_CELLS}; take fewer micro-batches"
        )));
    }
    let text = standalone(&picture.svg());
    bessemer_durable::write(path, text.as_bytes())
        .map_err(|e| Failure::new(format!("--svg {}: {e}", path.display())))
}

/// The simulation, above a measured step if there is one.
pub(crate) fn picture(
    program: &Program,
    timeline: &Timeline,
    s: &Summary,
    measured: Option<&Measured>,
) -> Lanes {
    let note = |rank: usize| format!("peak {}", tidy(s.peak_live[rank]));
    let simulated = lanes(program, timeline, note);
    let mut panels = vec![Panel { title: String::new(), lanes: simulated }];
    if let Some(m) = measured {
        panels[0].title = format!("simulated with the measured times: {} ms", tidy(s.makespan));
        let step = m.step.map_or(String::new(), |step| format!(", step {step}"));
        panels.push(Panel {
            title: format!("measured{step}: {} ms", tidy(m.makespan)),
            lanes: m.lanes.clone(),
        });
    }
    let cells: Vec<Cell> = panels.iter().flat_map(|p| &p.lanes).flat_map(|l| l.cells.clone()).collect();
    Lanes {
        title: format!(
            "{}: {}, {}, bubble {:.1} %",
            program.name,
            counted(program.ranks(), "rank"),
            counted(program.micro_batches(), "micro-batch"),
            100.0 * s.bubble_rate
        ),
        x_label: if measured.is_some() { "ms".into() } else { "time".into() },
        panels,
        keys: keys(cells.iter()),
    }
}

fn numbers(program: &Program, s: &Summary) -> String {
    let mut text = format!(
        "{}: {} ranks, {} stages, {} micro-batches\nmakespan {}, bubble {:.1} %, utilisation {:.1} % (no order of these \
         passes has more than {:.1} %)\n",
        program.name,
        program.ranks(),
        program.stages,
        program.micro_batches(),
        tidy(s.makespan),
        100.0 * s.bubble_rate,
        100.0 * s.utilisation,
        100.0 * s.attainable_utilisation
    );
    let _ = writeln!(
        text,
        "{:>4} {:>10} {:>10} {:>10} {:>10} {:>10} {:>9} {:>7}",
        "rank", "work", "span", "bubble", "in span", "peak live", "versions", "copies"
    );
    for rank in 0..program.ranks() {
        let _ = writeln!(
            text,
            "{rank:>4} {:>10} {:>10} {:>10} {:>10} {:>10} {:>9} {:>7}",
            tidy(s.work[rank]),
            tidy(s.span[rank]),
            tidy(s.bubble[rank]),
            tidy(s.bubble_in_span[rank]),
            tidy(s.peak_live[rank]),
            s.weight_versions[rank],
            tidy(s.weight_copies[rank])
        );
    }
    text
}

/// Sums of thirds and the like carry noise in their last digits; nothing that is shown depends on them.
pub(crate) fn round(value: f64) -> f64 {
    let rounded = (value * 1e9).round() / 1e9;
    if rounded.is_finite() { rounded } else { value }
}

fn rounded(values: &[f64]) -> Vec<f64> {
    values.iter().map(|v| round(*v)).collect()
}

fn as_value(program: &Program, costs: &Costs, timeline: &Timeline, s: &Summary) -> Value {
    let lists: Vec<Vec<Value>> = program
        .lists
        .iter()
        .zip(&timeline.intervals)
        .map(|(list, intervals)| list.iter().zip(intervals).map(|(i, t)| instruction(i, t)).collect())
        .collect();
    let path: Vec<_> = timeline.critical_path(program).iter().map(|s| json!([s.rank, s.index])).collect();
    json!({
        "schedule": program.name,
        "ranks": program.ranks(),
        "stages": program.stages,
        "micro_batches": program.micro_batches(),
        "updates": program.updates,
        "makespan": round(s.makespan),
        "lower_bound": round(bessemer_sim::lower_bound(program, costs, timeline)),
        "work": rounded(&s.work),
        "span": rounded(&s.span),
        "bubble": rounded(&s.bubble),
        "bubble_in_span": rounded(&s.bubble_in_span),
        "bubble_rate": round(s.bubble_rate),
        "utilisation": round(s.utilisation),
        "attainable_utilisation": round(s.attainable_utilisation),
        "peak_live": s.peak_live,
        "weight_versions": s.weight_versions,
        "weight_copies": s.weight_copies,
        "critical_path": path,
        "instructions": lists,
    })
}

pub(crate) fn instruction(i: &Instruction, t: &Interval) -> Value {
    let pass = |p: &Pass| json!({ "micro": p.micro, "chunk": p.chunk, "version": p.version });
    let named = |op: &str, mut value: Value| {
        value["op"] = op.into();
        value
    };
    let update = |op, chunk: &usize, update: &usize| named(op, json!({ "chunk": chunk, "update": update }));
    let flow = |f: &Flow| if *f == Flow::Activation { "activation" } else { "gradient" };
    let mut value = match i {
        Instruction::Forward(p) => named("forward", pass(p)),
        Instruction::Backward(p) => named("backward", pass(p)),
        Instruction::BackwardInput(p) => named("backward-input", pass(p)),
        Instruction::BackwardWeight(p) => named("backward-weight", pass(p)),
        Instruction::Together { forward, backward } => {
            named("together", json!({ "forward": pass(forward), "backward": pass(backward) }))
        }
        Instruction::Send { flow: f, micro, chunk, to } => {
            let to = [to.rank, to.chunk];
            named("send", json!({ "flow": flow(f), "micro": micro, "chunk": chunk, "to": to }))
        }
        Instruction::Receive { flow: f, micro, chunk, from } => {
            let from = [from.rank, from.chunk];
            named("receive", json!({ "flow": flow(f), "micro": micro, "chunk": chunk, "from": from }))
        }
        Instruction::Reduce { chunk, update: u } => update("reduce", chunk, u),
        Instruction::Step { chunk, update: u } => update("step", chunk, u),
        Instruction::Gather { chunk, update: u } => update("gather", chunk, u),
        Instruction::Fill(fill) => {
            let filler = fill.filler.name();
            named("fill", json!({ "filler": filler, "chunk": fill.chunk, "unit": fill.unit }))
        }
    };
    value["start"] = round(t.start).into();
    value["end"] = round(t.end).into();
    value
}
