//! `bessemer plan validate`.

use super::{machine, text_of};
use crate::cli::PlanValidateArgs;
use crate::console::{Console, print};
use crate::failure::Failure;
use bessemer_plan::{
    Calibration, Errors, Measurement, Table, Validation, choose, errors, read_table, validate,
};
use bessemer_report::plot::{LineChart, Mark, Scale, Series, standalone};
use serde_json::json;
use std::fmt::Write;
use std::path::Path;

/// Machine of a table that names none.
const MACHINE: &str = "a100-80gb";
/// Most groups of layouts that are listed one by one.
const MOST_GROUPS: usize = 12;

pub(super) fn run(args: &PlanValidateArgs, as_json: bool, console: &mut Console) -> Result<(), Failure> {
    let machine = machine(args.machine.as_deref().unwrap_or(MACHINE))?;
    let read = |path: &Path| -> Result<Table, Failure> {
        let table = read_table(&text_of(path)?, &machine, args.machine.is_some());
        table.map_err(|cause| Failure::new(format!("{}: {cause}", path.display())))
    };
    let table = read(&args.table)?;
    let fitted: Vec<Measurement> = match &args.fit {
        Some(path) => choose(&read(path)?.steps),
        None => Vec::new(),
    };
    let calibration = if fitted.is_empty() { Calibration::none() } else { Calibration::of(&fitted) };
    let validation = validate(&table.steps, &fitted, &calibration)
        .map_err(|cause| Failure::new(format!("{}: {cause}", args.table.display())))?;
    let left_out = Calibration::leave_one_out(&fitted);
    let expected = errors(&left_out.iter().map(|error| 1.0 + error).collect::<Vec<_>>());
    if let Some(path) = &args.svg {
        bessemer_durable::write(path, standalone(&picture(&validation).svg()).as_bytes())
            .map_err(|cause| Failure::new(format!("--svg {}: {cause}", path.display())))?;
        console.say(&format!("wrote {}", path.display()));
    }
    if as_json {
        let value = json!({
            "calibration": calibration,
            "leave_one_out": expected,
            "left_out": table.left_out,
            "validation": validation,
        });
        return Ok(print(&serde_json::to_string(&value)?)?);
    }
    Ok(print(&text(&table, &calibration, expected, &validation))?)
}

fn text(
    table: &Table,
    calibration: &Calibration,
    expected: Option<Errors>,
    validation: &Validation,
) -> String {
    let percent = |share: f64| format!("{:.2} %", 100.0 * share);
    let mut text = String::new();
    let rows = validation.rows.len();
    let _ = match calibration.fitted.len() {
        0 => {
            writeln!(text, "{rows} rows predicted, with constants that were fitted to nothing (--fit TABLE)")
        }
        fitted => writeln!(text, "{rows} rows predicted, {fitted} others fitted: {:?}", calibration.fitted),
    };
    if table.left_out > 0 {
        let _ = writeln!(text, "{} rows left out: products of another type than bf16", table.left_out);
    }
    let Errors { mean, median, p90, max, bias, shape } = validation.errors;
    for (name, value, meaning) in [
        ("mean", percent(mean), "of |predicted / measured - 1|"),
        ("median", percent(median), ""),
        ("p90", percent(p90), ""),
        ("max", percent(max), ""),
        ("bias", format!("{:+.2} %", 100.0 * bias), "mean of predicted / measured - 1"),
        ("shape", percent(shape), "mean after the best constant factor"),
        ("null", percent(validation.null), "mean of the best single rate of operations for all rows"),
    ] {
        let _ = writeln!(text, "{name:<7} {value:>9}  {meaning}");
    }
    if let Some(expected) = expected {
        let _ = writeln!(
            text,
            "fitted rows, each predicted from the others: mean {}, p90 {}",
            percent(expected.mean),
            percent(expected.p90)
        );
    }
    if !validation.groups.is_empty() {
        let count = validation.groups.len() as f64;
        let mean = |value: fn(&bessemer_plan::Group) -> f64| {
            validation.groups.iter().map(value).sum::<f64>() / count
        };
        let _ = writeln!(
            text,
            "{count} jobs with several layouts: regret {}, Kendall's tau {:.2} in the mean",
            percent(mean(|group| group.regret)),
            mean(|group| group.tau)
        );
        for group in validation.groups.iter().take(MOST_GROUPS) {
            let _ = writeln!(
                text,
                "  width {:>6} x {:>3} layers on {:>5} devices: {:>3} layouts, regret {:>7}, tau {:.2}",
                group.width,
                group.layers,
                group.devices,
                group.layouts,
                percent(group.regret),
                group.tau
            );
        }
        if validation.groups.len() > MOST_GROUPS {
            let _ =
                writeln!(text, "  and {} more (--json lists them)", validation.groups.len() - MOST_GROUPS);
        }
    }
    text
}

/// Predicted against measured seconds, and the diagonal.
fn picture(validation: &Validation) -> LineChart {
    // A point without a place keeps dots from being joined.
    let gap = [f64::NAN, f64::NAN];
    let dots = validation.rows.iter().flat_map(|row| [[row.measured, row.predicted.total], gap]).collect();
    let times = || validation.rows.iter().map(|row| row.measured);
    let ends = [times().fold(f64::INFINITY, f64::min), times().fold(0.0, f64::max)];
    LineChart {
        title: "predicted and measured times of a step".into(),
        x_label: "measured, seconds".into(),
        y_label: "predicted, seconds".into(),
        x_scale: Scale::Log,
        y_scale: Scale::Log,
        series: vec![
            Series {
                name: "equal".into(),
                color: 1,
                mark: Mark::Faint,
                points: ends.map(|end| [end, end]).to_vec(),
            },
            Series { name: "steps".into(), color: 0, mark: Mark::Dots, points: dots },
        ],
        ..LineChart::default()
    }
}
