//! A Chrome trace of a step of a benchmark: the passes, messages and collectives of each rank.

use bessemer::Failure;
use bessemer_collectives::CollectiveKind;
use bessemer_parallel::Notes;
use bessemer_runlog::{LaneSpan, TraceLanes};
use serde_json::json;
use std::path::Path;
use std::time::Instant;

/// Writes what each rank noted, from the first start on.
pub(crate) fn write(path: &Path, ranks: &[&Notes]) -> Result<(), Failure> {
    let starts = |n: &&Notes| n.orders.iter().map(|o| o.start).chain(n.calls.iter().map(|c| c.start)).min();
    let Some(origin) = ranks.iter().filter_map(starts).min() else { return Ok(()) };
    let micros = |at: Instant| at.saturating_duration_since(origin).as_secs_f64() * 1e6;
    let mut lanes = TraceLanes::create(path, &["passes", "messages"])?;
    for (rank, notes) in ranks.iter().enumerate() {
        let rank = rank as u64;
        lanes.name(rank, &format!("rank {rank}"))?;
        let orders = notes.orders.iter().map(|o| {
            let talks = o.name.starts_with("R ") || o.name.starts_with("S ");
            let (lane, category) = if talks { ("messages", "message") } else { ("passes", "compute") };
            (lane.to_owned(), category, o.name.clone(), (o.start, o.end), None)
        });
        let calls = notes
            .calls
            .iter()
            .filter(|c| !matches!(c.kind, CollectiveKind::Send | CollectiveKind::Receive))
            .map(|c| {
                let (lane, name) =
                    (format!("collectives, {}", c.group), format!("{} {}", c.kind.name(), c.name));
                (lane, "collective", name, (c.start, c.end), Some(c.bytes))
            });
        let mut all: Vec<_> = orders.chain(calls).collect();
        all.sort_by_key(|(.., (start, end), _)| (*start, std::cmp::Reverse(*end)));
        for (lane, category, name, (start, end), bytes) in all {
            let args = bytes.map(|bytes| json!({ "bytes": bytes }));
            lanes.span(LaneSpan {
                rank,
                lane: &lane,
                nested: category == "compute",
                category,
                name: &name,
                start_us: micros(start),
                end_us: micros(end),
                args: args.and_then(|a| a.as_object().cloned()).unwrap_or_default(),
            })?;
        }
    }
    Ok(lanes.finish()?)
}
