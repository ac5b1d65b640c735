//! Runs a side plan on some columns of the rows and joins its result back by (file, row).
//!
//! The rows wait in a spool while the side plan runs on its projection of them. Both sides are ordered by
//! (file, row), so the join is a merge that holds one batch of each.

use super::Executor;
use super::spool::{Spool, SpoolReader};
use crate::batch::{column, with_columns};
use crate::error::{Error, Result};
use crate::plan::Stage;
use crate::source::{Morsel, Scan};
use arrow_array::{RecordBatch, UInt32Array, UInt64Array, new_null_array};
use arrow_schema::{Field, SchemaRef};
use arrow_select::interleave::interleave;

impl Executor<'_> {
    pub(super) fn annotate(
        &self,
        stream: Vec<Box<dyn Scan>>,
        name: &str,
        project: &[String],
        side: &[Stage],
        adds: &SchemaRef,
    ) -> Result<Vec<Box<dyn Scan>>> {
        let mut rows = Spool::new(self);
        let mut keys = Spool::new(self);
        let mut last: Option<(u32, u64)> = None;
        self.drive(stream, &mut |batch| {
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
        if has_operator(side) && rows.memory_bytes() > self.budget.limit() / 2 {
            // An operator is granted what is free: the waiting rows make room for it.
            rows.spill()?;
        }
        let mut stages = side.to_vec();
        stages.push(Stage::Shuffle { key: Vec::new(), partitions: 1 });
        stages.push(Stage::Sort { by: vec!["file".into(), "row".into()] });
        let side = self.stages(vec![keys.scan()?], &stages)?;
        // Drained into a spool first: otherwise its sort would run under the lock of the join.
        let mut notes = Spool::new(self);
        self.drive(side, &mut |batch| notes.push(batch))?;
        Ok(vec![Box::new(Joined {
            name: name.to_string(),
            rows: rows.reader()?,
            notes: notes.reader()?,
            current: None,
            adds: adds.clone(),
        })])
    }
}

/// Whether an operator runs among the stages.
fn has_operator(stages: &[Stage]) -> bool {
    stages.iter().any(|stage| match stage {
        Stage::Whole(_) => true,
        Stage::Annotate { side, .. } => has_operator(side),
        _ => false,
    })
}

/// A merge join.
struct Joined {
    name: String,
    rows: SpoolReader,
    notes: SpoolReader,
    /// The batch of notes being read and the next note in it.
    current: Option<(RecordBatch, usize)>,
    adds: SchemaRef,
}

impl Joined {
    /// The next note's (file, row).
    fn peek(&mut self) -> Result<Option<(u32, u64)>> {
        loop {
            match &self.current {
                Some((batch, row)) if *row < batch.num_rows() => {
                    let file: &UInt32Array = column(&self.name, batch, "file")?;
                    let id: &UInt64Array = column(&self.name, batch, "row")?;
                    return Ok(Some((file.value(*row), id.value(*row))));
                }
                _ => match self.notes.next_batch()? {
                    Some(batch) => self.current = Some((batch, 0)),
                    None => return Ok(None),
                },
            }
        }
    }

    /// Takes the next note.
    fn take(&mut self, batches: &mut Vec<RecordBatch>) -> Option<(usize, usize)> {
        let (batch, row) = self.current.as_mut()?;
        let place = (batches.len(), *row);
        batches.push(batch.slice(0, batch.num_rows()));
        *row += 1;
        Some(place)
    }
}

impl Scan for Joined {
    fn next(&mut self) -> Result<Option<Morsel>> {
        let Some(batch) = self.rows.next_batch()? else {
            return match self.peek()? {
                None => Ok(None),
                Some(id) => {
                    let problem =
                        format!("the side plan speaks of row {id:?}, which does not exist or twice");
                    Err(Error::plan(&self.name, problem))
                }
            };
        };
        let mut batches = Vec::new();
        let mut places = Vec::with_capacity(batch.num_rows());
        {
            let file: &UInt32Array = column(&self.name, &batch, "file")?;
            let row: &UInt64Array = column(&self.name, &batch, "row")?;
            for index in 0..batch.num_rows() {
                let matches = self.peek()? == Some((file.value(index), row.value(index)));
                places.push(if matches { self.take(&mut batches) } else { None });
            }
        }
        let adds = self.adds.clone();
        Ok(Some(Box::new(move || join(&batch, &batches, &places, &adds))))
    }
}

/// Appends the columns of the notes, null where there is no note.
fn join(
    batch: &RecordBatch,
    notes: &[RecordBatch],
    places: &[Option<(usize, usize)>],
    adds: &SchemaRef,
) -> Result<RecordBatch> {
    let mut new = Vec::with_capacity(adds.fields().len());
    for field in adds.fields() {
        let null = new_null_array(field.data_type(), 1);
        let mut arrays: Vec<&dyn arrow_array::Array> = vec![&null];
        for note in notes {
            let index = note.schema().index_of(field.name())?;
            arrays.push(note.column(index).as_ref());
        }
        let indices: Vec<(usize, usize)> =
            places.iter().map(|place| place.map_or((0, 0), |(note, row)| (note + 1, row))).collect();
        new.push((Field::new(field.name(), field.data_type().clone(), true), interleave(&arrays, &indices)?));
    }
    with_columns(batch, new)
}
