//! Runs a side plan on some columns of the rows and joins its result back by (file, row).
//!
//! The rows wait in a spool while the side plan runs on its projection of them.

use super::join::join;
use super::spool::Spool;
use super::{Executor, Stream};
use crate::batch::column;
use crate::error::{Error, Result};
use crate::plan::Stage;
use arrow_array::{UInt32Array, UInt64Array};
use arrow_schema::SchemaRef;

impl<'a> Executor<'a> {
    pub(super) fn side_join(
        &self,
        stream: Stream<'a>,
        name: &str,
        project: &[String],
        side: &[Stage],
        adds: &SchemaRef,
    ) -> Result<Stream<'a>> {
        let mut rows = Spool::new(self);
        let mut keys = Spool::new(self);
        let mut last: Option<(u32, u64)> = None;
        self.drive(stream, &Ok, &mut |batch| {
            let indices = project
                .iter()
                .map(|column| batch.schema().index_of(column))
                .collect::<std::result::Result<Vec<usize>, _>>()?;
            let (file, row): (&UInt32Array, &UInt64Array) =
                (column(name, &batch, "file")?, column(name, &batch, "row")?);
            for index in 0..batch.num_rows() {
                let id = (file.value(index), row.value(index));
                if last.is_some_and(|last| last >= id) {
                    let problem = format!("rows must arrive ordered by (file, row); {id:?} follows {last:?}");
                    return Err(Error::plan(name, problem));
                }
                last = Some(id);
            }
            // Rows are wide and wait longest, so they go to disk before keys do.
            let over = !keys.hold(batch.project(&indices)?) | !rows.hold(batch);
            if over {
                rows.spill()?;
                if self.budget.over() {
                    keys.spill()?;
                }
            }
            Ok(())
        })?;
        if has_breaker(side) && rows.memory_bytes() > self.budget.limit() / 2 {
            // A pipeline breaker is granted what is free: the waiting rows make room for it.
            rows.spill()?;
        }
        let mut stages = side.to_vec();
        stages.push(Stage::Shuffle { key: Vec::new(), partitions: 1 });
        stages.push(Stage::Sort { by: vec!["file".into(), "row".into()] });
        let side = self.stages(vec![keys.scan()?], &stages)?;
        // Drained into a spool first: otherwise its sort would run under the lock of the join.
        let mut notes = Spool::new(self);
        self.drive(side, &Ok, &mut |batch| notes.push(batch))?;
        Ok(vec![join(name, rows.scan()?, notes.scan()?, adds)])
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
