//! Rows that can be read again, and side joins, which read them so: once, narrow, for the side plan, and once more for what
//! follows.
//!
//! Between two side joins stand maps. Those that state their columns ([`BatchMap::reads`](crate::BatchMap::reads)) are applied at each scan; behind any
//! other the rows are kept anew.

use super::join::join;
use super::spool::Spool;
use super::{Executor, Mapped, Stream};
use crate::batch::select;
use crate::error::Result;
use crate::plan::{BatchMap, Stage};
use crate::source::{KeptRows, Scan};
use arrow_array::RecordBatch;
use arrow_schema::SchemaRef;
use std::sync::Arc;

/// Rows between two stages.
pub(super) enum Rows<'a> {
    /// Rows that are read once.
    Once(Stream<'a>),
    /// Rows that can be read again.
    Again(Steps),
}

impl<'a> Rows<'a> {
    pub(super) fn map(self, map: &Arc<dyn BatchMap>) -> Rows<'a> {
        match self {
            Rows::Once(stream) => Rows::Once(
                stream
                    .into_iter()
                    .map(|input| Box::new(Mapped { input, map: map.clone() }) as Box<dyn Scan + 'a>)
                    .collect(),
            ),
            Rows::Again(mut steps) => {
                steps.steps.push(Step::Map(map.clone()));
                Rows::Again(steps)
            }
        }
    }

    /// The rows, to be read once.
    pub(super) fn once(self) -> Result<Stream<'a>> {
        match self {
            Rows::Once(stream) => Ok(stream),
            Rows::Again(steps) => Ok(vec![steps.scan(None)?]),
        }
    }
}

/// Kept rows and what is done to them at each scan.
pub(super) struct Steps {
    kept: Arc<dyn KeptRows>,
    steps: Vec<Step>,
}

/// A step that no row leaves or joins.
enum Step {
    Map(Arc<dyn BatchMap>),
    Join { name: String, side_rows: Arc<dyn KeptRows>, adds: SchemaRef },
}

impl Steps {
    pub(super) fn of(kept: Arc<dyn KeptRows>) -> Steps {
        Steps { kept, steps: Vec::new() }
    }

    /// Whether another scan repeats nothing but cheap steps.
    fn is_cheap(&self) -> bool {
        self.steps.iter().all(|step| !matches!(step, Step::Map(map) if map.reads().is_none()))
    }

    /// Starts reading: of `columns` those that the rows have, all by default.
    fn scan(&self, columns: Option<&[String]>) -> Result<Box<dyn Scan>> {
        // What is read of the kept rows: what is wanted, and what the steps need.
        let mut read = columns.map(<[String]>::to_vec);
        for step in &self.steps {
            let needed = match step {
                Step::Map(map) => map.reads(),
                Step::Join { .. } => Some(&["file", "row"][..]),
            };
            read = read.zip(needed).map(|(read, needed)| {
                let more = needed.iter().map(|name| (*name).to_string());
                read.into_iter().chain(more).collect()
            });
        }
        let mut scan = self.kept.scan(read.as_deref())?;
        for step in &self.steps {
            scan = match step {
                Step::Map(map) => Box::new(Mapped { input: scan, map: map.clone() }),
                Step::Join { name, side_rows, adds } => {
                    let ids = self.kept.scan(Some(&["file".into(), "row".into()]))?;
                    join(name, ids, scan, side_rows.scan(None)?, adds)
                }
            };
        }
        Ok(match columns {
            Some(columns) => Box::new(Mapped { input: scan, map: Arc::new(Select(columns.to_vec())) }),
            None => scan,
        })
    }
}

/// Keeps these columns, where the batch has them.
struct Select(Vec<String>);

impl BatchMap for Select {
    fn name(&self) -> &str {
        "select"
    }

    fn apply(&self, batch: RecordBatch) -> Result<RecordBatch> {
        select(&batch, &self.0)
    }
}

impl<'a> Executor<'a> {
    /// The rows with what a side plan says of them: see [`Stage::SideJoin`].
    pub(super) fn side_join(
        &self,
        mut rows: Steps,
        name: &str,
        project: &[String],
        side: &[Stage],
        adds: &SchemaRef,
    ) -> Result<Steps> {
        let mut stages = side.to_vec();
        stages.push(Stage::Shuffle { key: Vec::new(), partitions: 1 });
        stages.push(Stage::Sort { by: vec!["file".into(), "row".into()] });
        let found = self.stages(Rows::Once(vec![rows.scan(Some(project))?]), &stages)?.once()?;
        let mut side_rows = Spool::new(self);
        self.drive(found, &Ok, &mut |batch| side_rows.push(batch))?;
        let side_rows = side_rows.keep()?;
        rows.steps.push(Step::Join { name: name.into(), side_rows, adds: adds.clone() });
        Ok(rows)
    }

    /// Rows that can be read again. `next` are the stages that follow.
    pub(super) fn keep(&self, rows: Rows<'a>, next: &[Stage]) -> Result<Steps> {
        let stream = match rows {
            Rows::Again(steps) if steps.is_cheap() => return Ok(steps),
            rows => rows.once()?,
        };
        let mut rows = Spool::new(self);
        self.drive(stream, &Ok, &mut |batch| rows.push(batch))?;
        if has_breaker(next) && rows.memory_bytes() > self.budget.limit() / 2 {
            // A pipeline breaker is granted what is free: the waiting rows make room for it.
            rows.spill()?;
        }
        Ok(Steps::of(rows.keep()?))
    }
}

/// Whether a pipeline breaker runs among the stages.
fn has_breaker(stages: &[Stage]) -> bool {
    stages.iter().any(|stage| match stage {
        Stage::PipelineBreaker(_) | Stage::PerPartition(_) => true,
        Stage::SideJoin { side, .. } => has_breaker(side),
        _ => false,
    })
}
