//! Joins what a side plan says to the rows that it speaks of. Both sides are ordered by (file, row), so the join is a merge that
//! holds one batch of each.

use crate::batch::{column, with_columns};
use crate::error::{Error, Result};
use crate::source::{Morsel, Scan};
use arrow_array::{RecordBatch, UInt32Array, UInt64Array, new_null_array};
use arrow_schema::{Field, SchemaRef};
use arrow_select::interleave::interleave;

/// Rows with the columns `adds` of the notes that have their (file, row), null where there is none. Both come ordered by
/// (file, row). `name` is the annotation's, for errors.
///
/// # Errors
/// While reading: a note without a row, or a second one for the same row.
pub fn join(name: &str, rows: Box<dyn Scan>, notes: Box<dyn Scan>, adds: &SchemaRef) -> Box<dyn Scan> {
    Box::new(Joined { name: name.to_string(), rows, notes, current: None, adds: adds.clone() })
}

/// A merge join.
struct Joined {
    name: String,
    rows: Box<dyn Scan>,
    notes: Box<dyn Scan>,
    /// The batch of notes being read and the next note in it.
    current: Option<(RecordBatch, usize)>,
    adds: SchemaRef,
}

fn next_batch(scan: &mut dyn Scan) -> Result<Option<RecordBatch>> {
    scan.next()?.map(|morsel| morsel()).transpose()
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
                _ => match next_batch(&mut *self.notes)? {
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
        let Some(batch) = next_batch(&mut *self.rows)? else {
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
        Ok(Some(Box::new(move || append(&batch, &batches, &places, &adds))))
    }
}

/// Appends the columns of the notes, null where there is no note.
fn append(
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
