//! Joins what a side plan says to the rows that it speaks of. Both sides are ordered by (file, row), so the join is a merge that
//! holds one batch of each.

use crate::batch::{column, with_columns};
use crate::error::{Error, Result};
use crate::source::{Morsel, Scan};
use arrow_array::{RecordBatch, UInt32Array, UInt64Array, new_null_array};
use arrow_schema::{Field, SchemaRef};
use arrow_select::interleave::interleave;

/// Rows with the columns `adds` of the side rows that have their (file, row), null where there is none. Both come ordered by
/// (file, row). `ids` has the columns `file` and `row` of the same rows in the same batches: the rows themselves are made by the
/// threads that run the morsels. `name` is the side join's, for errors.
///
/// # Errors
/// While reading: rows out of order, a side row without a row, or a second one for the same row.
pub fn join(
    name: &str,
    ids: Box<dyn Scan>,
    rows: Box<dyn Scan>,
    side_rows: Box<dyn Scan>,
    adds: &SchemaRef,
) -> Box<dyn Scan> {
    Box::new(Joined {
        name: name.to_string(),
        ids,
        rows,
        side_rows,
        current: None,
        last: None,
        adds: adds.clone(),
    })
}

/// A merge join.
struct Joined {
    name: String,
    ids: Box<dyn Scan>,
    rows: Box<dyn Scan>,
    side_rows: Box<dyn Scan>,
    /// The batch of side rows being read and the next row in it.
    current: Option<(RecordBatch, usize)>,
    /// The last row of all batches so far.
    last: Option<(u32, u64)>,
    adds: SchemaRef,
}

/// Side rows of a batch of rows.
struct Matches {
    batches: Vec<RecordBatch>,
    /// For each row the batch and the row in it, if there is one.
    places: Vec<Option<(usize, usize)>>,
}

fn next_batch(scan: &mut dyn Scan) -> Result<Option<RecordBatch>> {
    scan.next()?.map(|morsel| morsel()).transpose()
}

impl Joined {
    /// The next side row's (file, row).
    fn peek(&mut self) -> Result<Option<(u32, u64)>> {
        loop {
            match &self.current {
                Some((batch, row)) if *row < batch.num_rows() => {
                    let file: &UInt32Array = column(&self.name, batch, "file")?;
                    let id: &UInt64Array = column(&self.name, batch, "row")?;
                    return Ok(Some((file.value(*row), id.value(*row))));
                }
                _ => match next_batch(&mut *self.side_rows)? {
                    Some(batch) => self.current = Some((batch, 0)),
                    None => return Ok(None),
                },
            }
        }
    }

    /// Takes the next side row: its batch's place in `batches`, and its row there.
    fn take(&mut self, batches: &mut Vec<RecordBatch>) -> Option<(usize, usize)> {
        let (batch, row) = self.current.as_mut()?;
        if *row == 0 || batches.is_empty() {
            batches.push(batch.clone());
        }
        let place = (batches.len() - 1, *row);
        *row += 1;
        Some(place)
    }

    /// The side row of each row of a batch.
    fn matches(&mut self, ids: &RecordBatch) -> Result<Matches> {
        let (mut batches, mut places) = (Vec::new(), Vec::with_capacity(ids.num_rows()));
        let name = self.name.clone();
        let file: &UInt32Array = column(&name, ids, "file")?;
        let row: &UInt64Array = column(&name, ids, "row")?;
        for index in 0..ids.num_rows() {
            let id = (file.value(index), row.value(index));
            if self.last.is_some_and(|last| last >= id) {
                let problem =
                    format!("rows must arrive ordered by (file, row); {id:?} follows {:?}", self.last);
                return Err(Error::plan(&name, problem));
            }
            self.last = Some(id);
            places.push(if self.peek()? == Some(id) { self.take(&mut batches) } else { None });
        }
        Ok(Matches { batches, places })
    }
}

impl Scan for Joined {
    fn next(&mut self) -> Result<Option<Morsel>> {
        match (self.rows.next()?, next_batch(&mut *self.ids)?) {
            (Some(rows), Some(ids)) => {
                let matches = self.matches(&ids)?;
                let adds = self.adds.clone();
                Ok(Some(Box::new(move || append(&rows()?, &matches, &adds))))
            }
            _ => match self.peek()? {
                None => Ok(None),
                Some(id) => {
                    let problem = format!(
                        "the side plan refers to row {id:?}, which does not exist or was named before"
                    );
                    Err(Error::plan(&self.name, problem))
                }
            },
        }
    }
}

/// Appends the columns of the side rows, null where there is none.
fn append(batch: &RecordBatch, matches: &Matches, adds: &SchemaRef) -> Result<RecordBatch> {
    let mut new = Vec::with_capacity(adds.fields().len());
    for field in adds.fields() {
        let null = new_null_array(field.data_type(), 1);
        let mut arrays: Vec<&dyn arrow_array::Array> = vec![&null];
        for batch in &matches.batches {
            let index = batch.schema().index_of(field.name())?;
            arrays.push(batch.column(index).as_ref());
        }
        let indices: Vec<(usize, usize)> = matches
            .places
            .iter()
            .map(|place| place.map_or((0, 0), |(batch, row)| (batch + 1, row)))
            .collect();
        new.push((Field::new(field.name(), field.data_type().clone(), true), interleave(&arrays, &indices)?));
    }
    with_columns(batch, new)
}
