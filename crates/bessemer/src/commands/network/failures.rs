//! `bessemer network failures`: what failures of machines cost a long run.

use crate::cli::NetworkFailuresArgs;
use crate::console::print;
use crate::failure::Failure;
use bessemer_cluster::{
    ClusterError, Expectation, FailingRun, PUBLISHED_RATES, daly_interval, young_interval,
};
use bessemer_report::terminal;
use serde_json::{Value, json};

const DAY: f64 = 86_400.0;

/// A run and what it can expect, or why it would not end.
struct Row {
    run: FailingRun,
    /// Failures of 1,000 node-days.
    rate: f64,
    expected: Result<Expectation, ClusterError>,
}

pub(super) fn run(args: &NetworkFailuresArgs, as_json: bool) -> Result<(), Failure> {
    let mut rows: Vec<Row> = Vec::new();
    for &nodes in &args.nodes {
        for &rate in &args.rates {
            let run = FailingRun {
                nodes: nodes.into(),
                failures_per_node_day: rate / 1000.0,
                save: args.save,
                restart: args.restart,
                work: args.days * DAY,
            };
            let expected = args.interval.map_or_else(|| run.expect(), |interval| run.expect_with(interval));
            rows.push(Row { run, rate, expected });
        }
    }
    if rows.iter().all(|row| row.expected.is_err())
        && let Some(Row { expected: Err(e), .. }) = rows.pop()
    {
        return Err(e.into());
    }
    match as_json {
        true => print(&serde_json::to_string(&document(args, &rows))?)?,
        false => print(text(args, &rows).trim_end())?,
    }
    Ok(())
}

fn document(args: &NetworkFailuresArgs, rows: &[Row]) -> Value {
    let row = |Row { run, rate, expected }: &Row| match expected {
        Ok(e) => json!({
            "nodes": run.nodes, "failures_per_thousand_node_days": rate, "mean_time_to_failure": e.mean_time_to_failure,
            "interval": e.interval, "young": young_interval(run.save, e.mean_time_to_failure),
            "daly": daly_interval(run.save, e.mean_time_to_failure), "ettr": e.ettr(), "days": e.days(),
            "failures": e.failures, "saving": e.saving, "redone": e.redone, "restarting": e.restarting, "error": null,
        }),
        Err(error) => json!({
            "nodes": run.nodes, "failures_per_thousand_node_days": rate, "error": error.to_string(),
        }),
    };
    let published = |r: &bessemer_cluster::PublishedRate| json!({ "name": r.name, "failures_per_thousand_node_days": r.per_thousand_node_days, "source": r.source });
    json!({
        "save": args.save, "restart": args.restart, "days": args.days,
        "rows": rows.iter().map(row).collect::<Vec<Value>>(),
        "published_rates": PUBLISHED_RATES.iter().map(published).collect::<Vec<Value>>(),
    })
}

fn text(args: &NetworkFailuresArgs, rows: &[Row]) -> String {
    let head = [
        "nodes",
        "rate",
        "between failures",
        "save every",
        "trains",
        "days",
        "failures",
        "saving",
        "redone",
        "restarting",
    ];
    let cells: Vec<Vec<String>> = rows
        .iter()
        .map(|Row { run, rate, expected }| {
            let mut cells = vec![run.nodes.to_string(), rate.to_string()];
            match expected {
                Ok(e) => {
                    let share = |seconds: f64| format!("{:.2} %", 100.0 * seconds / e.total);
                    cells.extend([
                        duration(e.mean_time_to_failure),
                        duration(e.interval),
                        format!("{:.2} %", 100.0 * e.ettr()),
                        format!("{:.2}", e.days()),
                        format!("{:.1}", e.failures),
                        share(e.saving),
                        share(e.redone),
                        share(e.restarting),
                    ]);
                }
                Err(_) => cells.extend([duration(1.0 / run.failure_rate()), "never ends".into()]),
            }
            cells.resize(head.len(), String::new());
            cells
        })
        .collect();
    format!(
        "{} days of work; a save blocks for {}, a restart takes {}; rate: failures in 1,000 days of a node\n{}",
        args.days,
        duration(args.save),
        duration(args.restart),
        terminal::listing(&head.map(str::to_string), &cells)
    )
}

/// Three digits with a unit that fits.
fn duration(seconds: f64) -> String {
    match seconds {
        s if s.is_infinite() => "never".into(),
        s if s < 120.0 => format!("{s:.1} s"),
        s if s < 7200.0 => format!("{:.1} min", s / 60.0),
        s if s < 2.0 * DAY => format!("{:.1} h", s / 3600.0),
        s => format!("{:.1} days", s / DAY),
    }
}
