//! A plan on a cluster: one job for the rows of each generation, one for each side plan.
//!
//! ```text
//! rows 0:  source parts ─► maps ─► rows-0/                      (a job: no shuffle)
//! side 1:  rows-0/, projected ─► stages ═shuffle═► stages … ═by part═► side-1/     (a job: one shuffle more than the side plan has)
//! rows 1:  rows-0/ + side-1/ ─► maps ─► rows-1/
//! …
//! sink:    rows-G/, part after part, read by the client
//! ```
//! Ballista repeats the tasks of an executor that dies, and those whose results it held, on other executors. Finished parts are
//! not made again, even after a restart of the client.

use crate::Error;
use crate::contract::ClusterRun;
use crate::node::TaskRunner;
use crate::parts::{PartPath, PartRanges, PartSummary, open_folder};
use crate::process::{Client, JobStep, absolute, await_executor, reachable};
use crate::shuffle_block::{self, ShuffleBlock};
use crate::step::{Description, PlanRunner, SideJoin, Work, ranges_name, split, split_side};
use arrow_array::RecordBatch;
use bessemer_dataflow::Sink;
use std::sync::Arc;
use std::time::Duration;

/// Most attempts of a job whose executors are lost with their results. Finished parts are not made again.
const TRIES: usize = 4;
/// Time within which an executor must be there when a build begins.
const EXECUTOR_PATIENCE: Duration = Duration::from_secs(60);
/// Most tasks of a job's first step.
const MOST_SLICES: usize = 256;

/// Runs the plan. The sink receives every row, in the plan's order, on the calling thread.
///
/// # Errors
/// An unreachable scheduler, a plan that moves rows outside of side joins, an error of a step on an executor.
pub(crate) fn run(options: &ClusterRun<'_>, sink: &mut dyn Sink) -> Result<(), Error> {
    reachable(options.scheduler, Duration::from_secs(5))?;
    await_executor(options.scheduler, EXECUTOR_PATIENCE, options.stop)?;
    let folder = absolute(options.folder)?;
    let opened = open_folder(&folder)?;
    let parts = options.planner.plan(options.plan)?;
    let segments = split(parts.stages())?;
    let runner: Arc<dyn TaskRunner> = Arc::new(PlanRunner::new(options.planner.clone(), &folder));
    let client = Client::connect(options.scheduler, &runner)?;
    let count = parts.count();
    let seeds = (0..count)
        .map(|part| shuffle_block::encode_payload(0, part as u64, 0, b""))
        .collect::<Result<Vec<_>, _>>()?;
    let describe = |work: Work| -> Result<Vec<u8>, Error> {
        let description = Description {
            plan: options.plan.to_string(),
            folder: folder.clone(),
            memory: options.memory,
            work,
        };
        serde_json::to_vec(&description)
            .map_err(|cause| Error::Cluster { action: "describe a step", cause: cause.to_string() })
    };
    let job = |name: &str, steps: &[JobStep]| -> Result<Vec<PartSummary>, Error> {
        (options.progress)(name, 2 * segments.side_joins.len() + 1);
        let mut tries = 0;
        loop {
            tries += 1;
            let mut summaries = Vec::new();
            let ended = client.run(&seeds, count.min(MOST_SLICES), steps, options.stop, &mut |batch| {
                summaries.extend(summaries_in(batch)?);
                Ok(())
            });
            match ended {
                Err(Error::Plan(error)) => return Err(Error::Plan(error)),
                Err(error) => {
                    // An absent scheduler explains every other error.
                    reachable(options.scheduler, Duration::from_secs(5))?;
                    if tries == TRIES || !matches!(error, Error::Lost { .. }) {
                        return Err(error);
                    }
                    continue;
                }
                Ok(()) => {}
            }
            summaries.sort_by_key(|summary: &PartSummary| summary.part);
            return Ok(summaries);
        }
    };
    for generation in 0..=segments.side_joins.len() {
        if generation > 0 {
            let SideJoin { name, stages, .. } = &segments.side_joins[generation - 1];
            let mut steps =
                vec![JobStep { shuffle: None, description: describe(Work::Side { generation })? }];
            for (from, shuffle) in split_side(stages)?.shuffles.iter().enumerate() {
                let description = describe(Work::Between { generation, from })?;
                steps.push(JobStep { shuffle: Some(shuffle.partitions), description });
            }
            let description = describe(Work::SideRows { generation })?;
            steps.push(JobStep { shuffle: Some(count.min(MOST_SLICES)), description });
            job(name, &steps)?;
        }
        let steps = [JobStep { shuffle: None, description: describe(Work::Rows { generation })? }];
        let summaries = job(&format!("rows {generation}"), &steps)?;
        check(&summaries, count)?;
        // Read by the steps of the next side plan; checked here already, where an error is the client's.
        PartRanges::of(&summaries)?;
        let text = serde_json::to_string(&summaries).map_err(|cause| Error::Cluster {
            action: "write the ranges of parts",
            cause: cause.to_string(),
        })?;
        opened.write(ranges_name(generation + 1), text.as_bytes()).map_err(|cause| Error::Cluster {
            action: "write the ranges of parts",
            cause: cause.to_string(),
        })?;
    }
    for part in 0..count {
        let mut reader = PartPath::rows(&opened, segments.side_joins.len(), part).read(&[])?;
        while let Some(batch) = reader.next_batch()? {
            sink.write(&batch)?;
        }
    }
    Ok(())
}

/// Checks that every part was reported exactly once.
fn check(summaries: &[PartSummary], count: usize) -> Result<(), Error> {
    let whole =
        summaries.len() == count && summaries.iter().enumerate().all(|(part, summary)| summary.part == part);
    if whole {
        return Ok(());
    }
    let cause = format!("{} parts were reported where {count} were wanted, each once", summaries.len());
    Err(Error::Cluster { action: "finish all parts", cause })
}

fn summaries_in(batch: &RecordBatch) -> Result<Vec<PartSummary>, Error> {
    (0..batch.num_rows())
        .map(|row| {
            let report = ShuffleBlock::at(batch, row)?.payload;
            serde_json::from_slice(report).map_err(|cause| Error::Cluster {
                action: "read the report of a step",
                cause: cause.to_string(),
            })
        })
        .collect()
}
