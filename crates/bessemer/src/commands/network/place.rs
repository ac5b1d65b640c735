//! `bessemer network place`: the order of a job's axes on a network.

use super::study::{job, routing};
use super::table::time;
use crate::cli::NetworkPlaceArgs;
use crate::console::print;
use crate::failure::Failure;
use bessemer_cluster::{AxisDemand, PlacedAxes, Placement, TrafficJob};
use bessemer_report::terminal;
use serde_json::{Value, json};

/// Most axes of which all orders are listed.
const MOST_LISTED: usize = 5;
/// Most lines of the list.
const MOST_LINES: usize = 10;

pub(super) fn run(args: &NetworkPlaceArgs, as_json: bool) -> Result<(), Failure> {
    let network = super::describe(&args.network)?.network;
    let job = match &args.job {
        Some(path) => job(path)?,
        None => TrafficJob::from_specs(&args.axis)?,
    };
    let axes = job.demands()?;
    let mut placement = Placement::new(&network, routing(args.routing, args.seed), job.overhead);
    let given = placement.place(&axes, &(0..axes.len()).collect::<Vec<_>>())?;
    let best = placement.best_order(&axes, 0)?;
    let mut listed = vec![best.clone()];
    if axes.len() <= MOST_LISTED {
        for order in orders(axes.len()) {
            listed.push(placement.place(&axes, &order)?);
        }
        listed.sort_by(|a, b| a.seconds.total_cmp(&b.seconds));
        listed.dedup_by(|a, b| a.order == b.order);
    }
    if as_json {
        let value = json!({
            "network": network.name(), "devices": network.devices(), "ranks": job.ranks(),
            "axes": axes.iter().map(|a| json!({ "axis": a.name, "ranks": a.ranks })).collect::<Vec<Value>>(),
            "best": document(&axes, &best), "given": document(&axes, &given),
            "orders": listed.iter().map(|placed| document(&axes, placed)).collect::<Vec<Value>>(),
        });
        print(&serde_json::to_string(&value)?)?;
        return Ok(());
    }
    print(text(&axes, network.name(), &listed, &given).trim_end())?;
    Ok(())
}

/// All orders of n axes.
fn orders(n: usize) -> Vec<Vec<usize>> {
    let mut all = vec![Vec::new()];
    for axis in 0..n {
        let insert = |order: &Vec<usize>, at: usize| [&order[..at], &[axis], &order[at..]].concat();
        all = all.iter().flat_map(|order| (0..=axis).map(move |at| insert(order, at))).collect();
    }
    all
}

fn document(axes: &[AxisDemand], placed: &PlacedAxes) -> Value {
    let names: Vec<&str> = placed.order.iter().map(|axis| axes[*axis].name.as_str()).collect();
    json!({ "order": names, "seconds": placed.seconds, "axis_seconds": placed.axis_seconds })
}

fn text(axes: &[AxisDemand], network: &str, listed: &[PlacedAxes], given: &PlacedAxes) -> String {
    let mut head = vec!["axes, neighbours first".to_string(), "communication".into()];
    head.extend(axes.iter().map(|axis| format!("{} {}", axis.name, axis.ranks)));
    head.push(String::new());
    let row = |placed: &PlacedAxes| {
        let names: Vec<&str> = placed.order.iter().map(|axis| axes[*axis].name.as_str()).collect();
        let mut cells = vec![names.join(", "), time(placed.seconds)];
        cells.extend(placed.axis_seconds.iter().map(|seconds| time(*seconds)));
        cells.push(if placed.order == given.order { "as given".into() } else { String::new() });
        cells
    };
    let mut rows: Vec<Vec<String>> = listed.iter().take(MOST_LINES).map(row).collect();
    if !listed.iter().take(MOST_LINES).any(|placed| placed.order == given.order) {
        rows.push(row(given));
    }
    format!("{network}: communication of a step, axis by axis\n{}", terminal::listing(&head, &rows))
}
