//! A plan on a cluster: one job for the rows of each generation, one for each side plan.
//!
//! ```text
//! rows 0:  source parts ─► maps ─► rows-0/                      (a job: no shuffle)
//! side 1:  rows-0/, projected ─► stages ═shuffle═► stages … ═by part═► notes-1/     (a job: one shuffle more than the side plan has)
//! rows 1:  rows-0/ + notes-1/ ─► maps ─► rows-1/
//! …
//! sink:    rows-G/, part after part, read here
//! ```
//! A job's tasks are Ballista's: an executor that dies in the middle has its tasks, and those whose results it held, done again by
//! others. Parts that are finished already are not done again, after a restart of the client neither.

use crate::Error;
use crate::contract::ClusterRun;
use crate::envelope;
use crate::node::Workshop;
use crate::parts::{PartSummary, Place, Spans};
use crate::process::{Client, JobStep, absolute, await_executor, reachable};
use crate::step::{Description, PlanWorkshop, Work, cut, side, spans_path};
use arrow_array::RecordBatch;
use bessemer_dataflow::{Sink, Stage};
use std::sync::Arc;
use std::time::Duration;

/// Times that a job is begun whose executors go away with their results. Parts that are finished are not done again.
const TRIES: usize = 4;
/// For how long an executor may be missing when a build begins.
const EXECUTOR_PATIENCE: Duration = Duration::from_secs(60);
/// Most tasks of a job's first step.
const MOST_SLICES: usize = 256;

/// Runs the plan; the sink gets every row, in the plan's order, on the calling thread.
///
/// # Errors
/// An unreachable scheduler, a plan that moves rows outside of annotations, an error of a step on an executor.
pub(crate) fn run(options: &ClusterRun<'_>, sink: &mut dyn Sink) -> Result<(), Error> {
    reachable(options.scheduler, Duration::from_secs(5))?;
    await_executor(options.scheduler, EXECUTOR_PATIENCE, options.stop)?;
    let folder = absolute(options.folder)?;
    let parts = options.planner.plan(options.plan)?;
    let cut = cut(parts.stages())?;
    let workshop: Arc<dyn Workshop> = Arc::new(PlanWorkshop::new(options.planner.clone(), &folder));
    let client = Client::connect(options.scheduler, &workshop)?;
    let count = parts.count();
    let seeds =
        (0..count).map(|part| envelope::stamp(0, part as u64, 0, b"")).collect::<Result<Vec<_>, _>>()?;
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
        (options.progress)(name, 2 * cut.annotations.len() + 1);
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
                    // Without a scheduler nothing else is worth saying.
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
    for generation in 0..=cut.annotations.len() {
        if generation > 0 {
            let Stage::SideJoin { name, side: stages, .. } = cut.annotations[generation - 1] else {
                continue;
            };
            let mut steps =
                vec![JobStep { shuffle: None, description: describe(Work::Side { generation })? }];
            for (from, shuffle) in side(stages)?.shuffles.iter().enumerate() {
                let description = describe(Work::Between { generation, from })?;
                steps.push(JobStep { shuffle: Some(shuffle.partitions), description });
            }
            let description = describe(Work::Notes { generation })?;
            steps.push(JobStep { shuffle: Some(count.min(MOST_SLICES)), description });
            job(name, &steps)?;
        }
        let steps = [JobStep { shuffle: None, description: describe(Work::Rows { generation })? }];
        let summaries = job(&format!("rows {generation}"), &steps)?;
        check(&summaries, count)?;
        // Read by the steps of the next side plan; checked here, where an error names no executor.
        Spans::of(&summaries)?;
        let text = serde_json::to_string(&summaries).map_err(|cause| Error::Cluster {
            action: "write the spans of parts",
            cause: cause.to_string(),
        })?;
        let path = spans_path(&folder, generation + 1);
        bessemer_durable::write(&path, text.as_bytes()).map_err(|cause| Error::Cluster {
            action: "write the spans of parts",
            cause: cause.to_string(),
        })?;
    }
    for part in 0..count {
        let mut reader = Place::rows(&folder, cut.annotations.len(), part).read(&[])?;
        while let Some(batch) = reader.next_batch()? {
            sink.write(&batch)?;
        }
    }
    Ok(())
}

/// Every part exactly once.
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
            let (_, _, _, text) = envelope::read(batch, row)?;
            serde_json::from_slice(text).map_err(|cause| Error::Cluster {
                action: "read what a step reported",
                cause: cause.to_string(),
            })
        })
        .collect()
}
