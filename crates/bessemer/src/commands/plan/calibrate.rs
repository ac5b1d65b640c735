//! `bessemer plan calibrate`: a few layouts of a recipe run on this machine, and the constants of the cost model are fitted to them.

use crate::cli::PlanCalibrateArgs;
use crate::console::{Console, print};
use crate::failure::Failure;
use crate::recipes::{home, source};
use bessemer_plan::{Calibration, Job, Measurement, errors};
use bessemer_planner::{
    calibration_layouts, calibration_table, layout_name as name, machine, measured_seconds,
};
use serde_json::json;
use std::fmt::Write;

pub(super) fn run(args: &PlanCalibrateArgs, as_json: bool, console: &mut Console) -> Result<(), Failure> {
    let machine = machine(&args.machine)?;
    let home = home();
    let training = source(&args.recipe, &args.sets, &home).training()?;
    let chosen = calibration_layouts(&training, &machine, args.runs as usize)?;
    let mut measured: Vec<Measurement> = Vec::new();
    for (number, step) in chosen.iter().enumerate() {
        let layout = &step.job.layout;
        let prefix = format!("{}/{}: {}", number + 1, chosen.len(), name(layout));
        match measured_seconds(&training, &machine, layout, args.steps, args.waiting.timeout()) {
            Ok(seconds) => {
                console.say(&format!("{prefix}: {seconds:.4} s"));
                measured.push(Measurement { seconds, ..step.clone() });
            }
            // A layout that the recipe or the model refuses.
            Err(refused) => console.say(&format!("{prefix}: left out, {refused}")),
        }
    }
    if measured.len() < 2 {
        return Err(Failure::new(format!(
            "{} of {} layouts of {} ranks ran; wanted at least two to fit constants to: -v prints why the \
             others failed",
            measured.len(),
            chosen.len(),
            machine.node
        )));
    }
    let jobs: Vec<(&Job, f64)> = measured.iter().map(|step| (&step.job, step.seconds)).collect();
    bessemer_durable::write(&args.out, calibration_table(&jobs).as_bytes())
        .map_err(|cause| Failure::new(format!("--out {}: {cause}", args.out.display())))?;
    let calibration = Calibration::of(&measured);
    let left_out = Calibration::leave_one_out(&measured);
    let expected = errors(&left_out.iter().map(|error| 1.0 + error).collect::<Vec<f64>>());
    if as_json {
        let value = json!({ "calibration": calibration, "leave_one_out": left_out, "expected": expected });
        return Ok(print(&serde_json::to_string(&value)?)?);
    }
    let mut text = format!("{}: {} steps of {} ranks\n", args.out.display(), measured.len(), machine.node);
    let _ = writeln!(text, "{:>10} {:>10} {:>10}  layout", "measured", "fitted", "left out");
    for (step, error) in measured.iter().zip(&left_out) {
        let fitted = calibration.predict(&step.job, &step.machine).total;
        let layout = name(&step.job.layout);
        let _ = writeln!(
            text,
            "{:>8.4} s {:>8.4} s {:>8.4} s  {layout}",
            step.seconds,
            fitted,
            (1.0 + error) * step.seconds
        );
    }
    if let Some(expected) = expected {
        let _ = writeln!(
            text,
            "each step predicted from the others: mean error {:.1} %, median {:.1} %, p90 {:.1} %",
            100.0 * expected.mean,
            100.0 * expected.median,
            100.0 * expected.p90
        );
    }
    let band = calibration.band;
    let of = if band.steps > 0 { "these steps" } else { "published tables, because these steps are too few" };
    let _ = writeln!(
        text,
        "eight of ten measured times are expected between {:.2} and {:.2} times the predicted one, from {of}",
        band.low, band.high
    );
    Ok(print(&text)?)
}
