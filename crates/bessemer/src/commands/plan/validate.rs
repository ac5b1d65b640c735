//! `bessemer plan validate`.

use crate::cli::PlanValidateArgs;
use crate::console::{Console, print};
use crate::failure::Failure;
use bessemer_plan::{
    Band, Calibration, Errors, Group, LeftOut, LeftOutGroup, Measurement, Regret, Table, TableReader,
    Validation, choose_at_most, errors, leave_groups_out, read_table, validate,
};
use bessemer_planner::{machine, text_of};
use bessemer_report::plot::{LineChart, Mark, Scale, Series, panels, standalone};
use serde_json::json;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::Path;

/// Most groups of layouts that are listed one by one.
const MOST_GROUPS: usize = 12;

/// Most rows of a panel.
const MOST_DOTS: usize = 240;

/// The rows of a table that ran on one machine, predicted.
struct Section {
    name: String,
    table: Table,
    calibration: Calibration,
    /// Errors of the fitted rows, each predicted from the others.
    expected: Option<Errors>,
    validation: Validation,
    /// Whole groups of rows, each predicted from the others.
    groups: Vec<LeftOutGroup>,
}

pub(super) fn run(args: &PlanValidateArgs, as_json: bool, console: &mut Console) -> Result<(), Failure> {
    let machine = args.machine.as_deref().map(machine).transpose()?;
    let given = super::given_columns(&args.columns)?;
    let reader = TableReader { machine: machine.as_ref(), only: machine.is_some(), given: &given };
    let read = |path: &Path| -> Result<Table, Failure> {
        let table = read_table(&text_of(path)?, &reader);
        table.map_err(|cause| Failure::new(format!("{}: {cause}", path.display())))
    };
    let sample = args.fit.as_deref().map(read).transpose()?;
    let mut sections = Vec::new();
    for path in &args.tables {
        for (machine, table) in by_machine(read(path)?) {
            let from: &[Measurement] = match &sample {
                Some(sample) => &sample.steps,
                None if args.fit_each => &table.steps,
                None => &[],
            };
            let fitted = choose_of(from, &machine, args.fit_rows as usize)?;
            let calibration = if fitted.is_empty() { Calibration::none() } else { Calibration::of(&fitted) };
            let validation = validate(&table.steps, &fitted, &calibration)
                .map_err(|cause| Failure::new(format!("{}: {cause}", path.display())))?;
            let left_out = Calibration::leave_one_out(&fitted);
            let expected = errors(&left_out.iter().map(|error| 1.0 + error).collect::<Vec<_>>());
            let file = path.file_stem().unwrap_or_default().to_string_lossy();
            let name = format!("{file}, {machine}");
            let groups = match &sample {
                None if args.fit_each => leave_groups_out(&table.steps, args.fit_rows as usize),
                _ => Vec::new(),
            };
            sections.push(Section { name, table, calibration, expected, validation, groups });
        }
    }
    if let Some(path) = &args.svg {
        bessemer_durable::write(path, standalone(&picture(&sections)).as_bytes())
            .map_err(|cause| Failure::new(format!("--svg {}: {cause}", path.display())))?;
        console.say(&format!("wrote {}", path.display()));
    }
    if as_json {
        let text = match sections.as_slice() {
            [one] => serde_json::to_string(&value(one))?,
            several => serde_json::to_string(&several.iter().map(value).collect::<Vec<_>>())?,
        };
        return Ok(print(&text)?);
    }
    let text = match sections.as_slice() {
        [one] => text(one),
        several => summary(several),
    };
    Ok(print(&text)?)
}

/// Rows to fit: of those of the machine, or of all where it has none.
fn choose_of(from: &[Measurement], machine: &str, most: usize) -> Result<Vec<Measurement>, Failure> {
    let own: Vec<Measurement> = from.iter().filter(|step| step.machine.name == machine).cloned().collect();
    let fitted = choose_at_most(if own.is_empty() { from } else { &own }, most);
    if fitted.is_empty() && !from.is_empty() {
        let rows = from.len();
        return Err(Failure::new(format!(
            "all {rows} rows to fit use more than 95 % of the machine's memory; check that the table names \
             the right machine"
        )));
    }
    Ok(fitted)
}

/// The rows of each machine, in the order of their first rows.
fn by_machine(table: Table) -> Vec<(String, Table)> {
    let Table { steps, left_out, memory } = table;
    let mut parts: Vec<(String, Table)> = Vec::new();
    for step in steps {
        let name = &step.machine.name;
        if parts.last().is_none_or(|(last, _)| last != name) && parts.iter().all(|(other, _)| other != name) {
            let empty = Table { steps: Vec::new(), left_out: Vec::new(), memory: Vec::new() };
            parts.push((name.clone(), empty));
        }
        if let Some((_, part)) = parts.iter_mut().find(|(other, _)| other == name) {
            part.memory.extend(memory.iter().filter(|memory| memory.row == step.row));
            part.steps.push(step);
        }
    }
    // Which machine a row that is not read belongs to is not asked.
    if let Some((_, part)) = parts.first_mut() {
        part.left_out = left_out;
    }
    parts
}

fn value(section: &Section) -> serde_json::Value {
    json!({
        "name": section.name,
        "calibration": section.calibration,
        "leave_one_out": section.expected,
        "left_out": section.table.left_out,
        "memory": section.table.memory,
        "validation": section.validation,
        "left_out_groups": section.groups,
    })
}

fn percent(share: f64) -> String {
    format!("{:.2} %", 100.0 * share)
}

/// A line for each section.
fn summary(sections: &[Section]) -> String {
    let mut text = format!(
        "{:<36} {:>5} {:>6} {:>8} {:>8} {:>8} {:>8} {:>8} {:>8}\n",
        "percent", "rows", "fitted", "null", "mean", "median", "shape", "roomy", "in band"
    );
    for Section { name, calibration, validation, .. } in sections {
        let rows = validation.rows.len();
        let roomy = validation.roomy.map_or("-".into(), |errors| format!("{:.1}", 100.0 * errors.mean));
        let Errors { mean, median, shape, .. } = validation.errors;
        let _ = writeln!(
            text,
            "{name:<36} {rows:>5} {:>6} {:>8.1} {:>8.1} {:>8.1} {:>8.1} {roomy:>8} {:>8.0}",
            calibration.fitted.len(),
            100.0 * validation.null,
            100.0 * mean,
            100.0 * median,
            100.0 * shape,
            100.0 * validation.in_band as f64 / rows as f64
        );
    }
    text
}

/// Rows that are not predicted, by reason.
fn left_out(rows: &[LeftOut]) -> String {
    let mut reasons: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
    for LeftOut { row, reason } in rows {
        reasons.entry(reason).or_default().push(*row);
    }
    let mut text = String::new();
    for (reason, rows) in reasons {
        let _ = writeln!(text, "{} rows left out, {reason}: {rows:?}", rows.len());
    }
    text
}

fn text(Section { table, calibration, expected, validation, groups, .. }: &Section) -> String {
    let mut text = String::new();
    let rows = validation.rows.len();
    let _ = match calibration.fitted.len() {
        0 => {
            writeln!(
                text,
                "{rows} rows predicted, with constants that are not fitted (--fit TABLE fits them)"
            )
        }
        fitted => writeln!(text, "{rows} rows predicted, {fitted} others fitted: {:?}", calibration.fitted),
    };
    text += &left_out(&table.left_out);
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
    let crowded: Vec<usize> = validation.rows.iter().filter(|row| row.crowded).map(|row| row.row).collect();
    if !crowded.is_empty() {
        let others = validation.roomy.map_or("there are no others".into(), |errors| {
            format!("the others: mean {}, median {}", percent(errors.mean), percent(errors.median))
        });
        let _ = writeln!(
            text,
            "{} rows leave less than 5 % of the memory free: {crowded:?}; {others}",
            crowded.len()
        );
    }
    let Band { low, high, steps } = calibration.band;
    let of = if steps == 0 { "other stacks".to_string() } else { format!("the {steps} fitted rows") };
    let _ = writeln!(
        text,
        "band    {:+.1} to {:+.1} % about a prediction, by {of}: {} of {rows} rows lie in it",
        100.0 * (low - 1.0),
        100.0 * (high - 1.0),
        validation.in_band
    );
    if let Some(expected) = expected {
        let _ = writeln!(
            text,
            "fitted rows, each predicted from the others: mean {}, p90 {}",
            percent(expected.mean),
            percent(expected.p90)
        );
    }
    if !table.memory.is_empty() {
        let ratios: Vec<f64> = table.memory.iter().map(|row| row.expected / row.measured).collect();
        if let Some(Errors { mean, max, bias, .. }) = errors(&ratios) {
            let _ = writeln!(
                text,
                "memory of {} rows in closed form: mean {}, max {}, bias {:+.2} %",
                ratios.len(),
                percent(mean),
                percent(max),
                100.0 * bias
            );
        }
    }
    if !validation.groups.is_empty() {
        let count = validation.groups.len() as f64;
        let mean = |value: fn(&Group) -> f64| validation.groups.iter().map(value).sum::<f64>() / count;
        let _ = writeln!(
            text,
            "{count} jobs with several layouts: regret {}, Kendall's tau {:.2} in the mean",
            percent(mean(|group| group.regret)),
            mean(|group| group.tau)
        );
        for group in validation.groups.iter().take(MOST_GROUPS) {
            let _ = writeln!(
                text,
                "  width {:>6} x {:>3} layers on {:>5} devices: {:>3} layouts, regret {:>7} ({}), tau {:.2}",
                group.width,
                group.layers,
                group.devices,
                group.layouts,
                percent(group.regret),
                interval(&group.expected),
                group.tau
            );
        }
        if validation.groups.len() > MOST_GROUPS {
            let _ =
                writeln!(text, "  and {} more (--json lists them)", validation.groups.len() - MOST_GROUPS);
        }
    }
    text += &left_out_groups(groups);
    text
}

/// Expected regret in words.
fn interval(regret: &Regret) -> String {
    format!("expected {:.1} to {:.1} %", 100.0 * regret.low, 100.0 * regret.high)
}

/// Groups of rows that were left out in turn.
fn left_out_groups(groups: &[LeftOutGroup]) -> String {
    let choices: Vec<&Group> = groups.iter().flat_map(|group| &group.jobs).collect();
    if choices.is_empty() {
        return String::new();
    }
    let mut text = "groups left out in turn, each predicted from other rows; regret of the choice among all layouts of each job of \
                    the group, and among its own rows:\n"
        .to_owned();
    let list = |groups: &[Group], value: fn(&Group) -> String| match groups {
        [] => "-".to_owned(),
        some => some.iter().map(value).collect::<Vec<_>>().join(" "),
    };
    let _ = writeln!(
        text,
        "  {:<18} {:>5} {:>7}  {:<20} {:<20} tau",
        "", "rows", "mean", "regret %", "own rows, regret %"
    );
    for group in groups {
        let regret = |group: &Group| format!("{:.1}", 100.0 * group.regret);
        let _ = writeln!(
            text,
            "  {:<18} {:>5} {:>7}  {:<20} {:<20} {}",
            group.by.to_string(),
            group.rows,
            percent(group.errors.mean),
            list(&group.jobs, regret),
            list(&group.own, regret),
            list(&group.jobs, |group| format!("{:.2}", group.tau))
        );
    }
    let count = choices.len() as f64;
    let held = choices.iter().filter(|group| group.regret <= group.expected.high).count();
    let _ = writeln!(
        text,
        "  {} choices: regret {} in the mean, {} at most, tau {:.2}; {held} regrets are within the expected interval",
        choices.len(),
        percent(choices.iter().map(|group| group.regret).sum::<f64>() / count),
        percent(choices.iter().map(|group| group.regret).fold(0.0, f64::max)),
        choices.iter().map(|group| group.tau).sum::<f64>() / count
    );
    text
}

/// A panel for each section.
fn picture(sections: &[Section]) -> String {
    let charts: Vec<(String, LineChart)> = sections
        .iter()
        .map(|section| {
            let title = match sections {
                [_] => String::new(),
                _ => format!("{}: {:.1} %", section.name, 100.0 * section.validation.errors.mean),
            };
            (title, panel(&section.validation))
        })
        .collect();
    panels("predicted and measured times of steps", &charts)
}

/// Predicted against measured seconds, and the diagonal.
fn panel(validation: &Validation) -> LineChart {
    // A point without a place keeps dots from being joined.
    let gap = [f64::NAN, f64::NAN];
    let dots = |crowded: bool| -> Vec<[f64; 2]> {
        // Of a long table every second, third, … row.
        let every = validation.rows.len().div_ceil(MOST_DOTS);
        let rows = validation.rows.iter().step_by(every).filter(|row| row.crowded == crowded);
        rows.flat_map(|row| [[row.measured, row.predicted.total], gap]).collect()
    };
    let times = || validation.rows.iter().map(|row| row.measured);
    let ends = [times().fold(f64::INFINITY, f64::min), times().fold(0.0, f64::max)];
    let mut series = vec![
        Series {
            name: "equal".into(),
            color: 1,
            mark: Mark::Faint,
            points: ends.map(|end| [end, end]).to_vec(),
        },
        Series { name: "steps".into(), color: 0, mark: Mark::Dots, points: dots(false) },
    ];
    if validation.rows.iter().any(|row| row.crowded) {
        let name = "steps near the limit of memory".into();
        series.push(Series { name, color: 3, mark: Mark::Dots, points: dots(true) });
    }
    LineChart {
        title: "predicted and measured times of a step".into(),
        x_label: "measured, seconds".into(),
        y_label: "predicted, seconds".into(),
        x_scale: Scale::Log,
        y_scale: Scale::Log,
        series,
        ..LineChart::default()
    }
}
