//! Validation text for small corpora.
//!
//! The split by a hash of names leaves some corpora without a validation document: those of a few documents, and those
//! whose held-out sources the rules drop. Such a corpus is built a second time, with one document held out: of those that
//! are no larger than the split may hold, the one whose name hashes lowest, which is the first that a larger fraction would
//! take. If all are larger, the tail of the largest document is held out. Both are functions of the kept documents alone.

use crate::cut::{document_number, whole_id};
use crate::output::summary::Count;
use crate::split::{Assign, most_share, position};
use arrow_array::{ArrayRef, RecordBatch, StringArray, UInt8Array, UInt32Array, UInt64Array, new_null_array};
use arrow_schema::{DataType, Field};
use bessemer_corpus_config::SplitConfig;
use bessemer_dataflow::{Sink, optional, with_columns};
use bessemer_documents::{EDITS, Rows, TRAIN, VALIDATION};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Documents with the lowest hashes that are remembered; one of them fits unless all documents are large.
const CANDIDATES: usize = 64;
/// Faults of files that are remembered as examples.
const EXAMPLES: usize = 3;
/// Reasons that stand for text that could not be read, not for text that is unwanted.
const FAULTS: [&str; 3] = ["unreadable", "truncated-input", "decompression-bomb"];

/// A kept document, with all of its parts if it was cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Candidate {
    file: u32,
    /// Number of the document in the file.
    number: u64,
    /// Bytes of its text.
    bytes: u64,
    /// Hash of its name.
    position: u64,
}

/// What is held out, beyond what the hash of names holds out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Choice {
    /// A whole document.
    Document { file: u32, number: u64 },
    /// The end of a document: what follows its first `start` bytes, about; at most `most`.
    Tail { file: u32, number: u64, start: u64, most: u64 },
}

/// Counts of the rows on their way to the sink.
#[derive(Debug, Default)]
pub(crate) struct Seen {
    kept: Count,
    validation: u64,
    /// By the position of the hash.
    lowest: BTreeMap<(u64, u32, u64), Candidate>,
    largest: Option<Candidate>,
    /// The document whose last part may be still to come.
    open: Option<Candidate>,
    /// Inputs that could not be read whole.
    pub(crate) faults: u64,
    /// The first of them, with what is wrong.
    pub(crate) fault_examples: Vec<String>,
}

/// A sink that watches kept documents pass, and moves the chosen one to validation.
pub(crate) struct HoldOut<'a> {
    sink: &'a mut dyn Sink,
    assign: &'a Assign,
    choice: Option<Choice>,
    /// Bytes of the chosen document that have passed.
    passed: u64,
    pub(crate) seen: Seen,
}

impl<'a> HoldOut<'a> {
    pub(crate) fn new(sink: &'a mut dyn Sink, assign: &'a Assign, choice: Option<Choice>) -> HoldOut<'a> {
        HoldOut { sink, assign, choice, passed: 0, seen: Seen::default() }
    }
}

impl Seen {
    fn keep(&mut self, rows: &Rows<'_>, index: usize, assign: &Assign) {
        let (row, bytes) = (rows.row.value(index), rows.text.value(index).len() as u64);
        self.kept.add(bytes);
        if rows.split.value(index) != TRAIN {
            self.validation += 1;
            return;
        }
        if self.validation > 0 || assign.is_fixed(rows.source.value(index)) {
            return;
        }
        let (file, number) = (rows.file.value(index), document_number(row));
        match &mut self.open {
            Some(open) if (open.file, open.number) == (file, number) => open.bytes += bytes,
            _ => {
                let position = position(whole_id(rows.id.value(index), row), assign.seed());
                let before = self.open.replace(Candidate { file, number, bytes, position });
                self.add(before);
            }
        }
    }

    fn add(&mut self, candidate: Option<Candidate>) {
        let Some(candidate) = candidate else { return };
        if self.largest.is_none_or(|largest| candidate.bytes > largest.bytes) {
            self.largest = Some(candidate);
        }
        self.lowest.insert((candidate.position, candidate.file, candidate.number), candidate);
        if self.lowest.len() > CANDIDATES {
            self.lowest.pop_last();
        }
    }

    fn fault(&mut self, rows: &Rows<'_>, index: usize) {
        self.faults += 1;
        if self.fault_examples.len() < EXAMPLES {
            let detail = optional(rows.detail, index).unwrap_or_default();
            let path = rows.path.value(index);
            // Some details begin with the path and the place in the file.
            let begins = detail.strip_prefix(path).is_some_and(|rest| rest.starts_with([':', ' ']));
            self.fault_examples.push(if begins { detail.to_string() } else { format!("{path}: {detail}") });
        }
    }

    /// What to hold out so that validation is not empty; nothing if it is not, or if nothing can be spared.
    pub(crate) fn choose(&mut self, config: &SplitConfig) -> Option<Choice> {
        let last = self.open.take();
        self.add(last);
        let fraction = config.validation_fraction;
        if fraction <= 0.0 || self.validation > 0 {
            return None;
        }
        let most = most_share(fraction) * self.kept.bytes as f64;
        let fits = |candidate: &&Candidate| candidate.bytes as f64 <= most;
        if let Some(found) = self.lowest.values().find(fits) {
            return Some(Choice::Document { file: found.file, number: found.number });
        }
        let largest = self.largest?;
        let bytes = ((self.kept.bytes as f64 * fraction) as u64).max(1);
        // A text of one byte is not cut.
        (largest.bytes > bytes).then_some(Choice::Tail {
            file: largest.file,
            number: largest.number,
            start: largest.bytes - bytes,
            most: most as u64,
        })
    }
}

impl Choice {
    /// In words, for the user.
    pub(crate) fn in_words(self) -> &'static str {
        match self {
            Choice::Document { .. } => {
                "none of the documents that the hash of names holds out was kept, so the one whose name hashes lowest is held out \
                 for validation"
            }
            Choice::Tail { .. } => {
                "there are too few documents to hold one out, so the end of the largest is held out for validation"
            }
        }
    }

    fn place(self) -> (u32, u64) {
        match self {
            Choice::Document { file, number } | Choice::Tail { file, number, .. } => (file, number),
        }
    }

    /// The batch with the row at `index` on the side of validation, or cut in two; `passed` bytes of the document stand before it.
    fn apply(self, batch: &RecordBatch, index: usize, passed: u64) -> bessemer_dataflow::Result<RecordBatch> {
        let rows = Rows::of("hold-out", batch)?;
        let text = rows.text.value(index);
        let (bytes, most) = match self {
            Choice::Tail { start, .. } if passed + text.len() as u64 <= start => return Ok(batch.clone()),
            Choice::Tail { start, most, .. } if passed < start => (passed + text.len() as u64 - start, most),
            _ => return with_columns(batch, vec![sides(rows.split, index)]),
        };
        let at = cut(text, bytes as usize, most as usize);
        if at >= text.len() {
            // One character, which is not cut.
            return Ok(batch.clone());
        }
        // The row twice, the second time as the tail. Both parts keep the document's id: a deletion removes both.
        let tail = index + 1;
        let twice: UInt32Array =
            (0..batch.num_rows() as u32 + 1).map(|row| row - u32::from(row as usize >= tail)).collect();
        let columns = batch.columns().iter().map(|column| arrow_select::take::take(column, &twice, None));
        let batch = RecordBatch::try_new(batch.schema(), columns.collect::<Result<_, _>>()?)?;
        let rows = Rows::of("hold-out", &batch)?;
        let tail_bytes = (text.len() - at) as u64;
        let texts: StringArray = (0..batch.num_rows())
            .map(|row| match row {
                row if row == index => Some(&text[..at]),
                row if row == tail => Some(&text[at..]),
                row => Some(rows.text.value(row)),
            })
            .collect();
        let stored: UInt64Array = (0..batch.num_rows())
            .map(|row| match row {
                row if row == index => Some(rows.bytes.value(row).saturating_sub(tail_bytes)),
                row if row == tail => Some(tail_bytes),
                row => Some(rows.bytes.value(row)),
            })
            .collect();
        // What was replaced and removed in the document counts once.
        let edits = batch.schema().index_of(EDITS).map(|column| batch.column(column).clone());
        let mut changed: Vec<(Field, ArrayRef)> = vec![
            sides(rows.split, tail),
            (Field::new("bytes", DataType::UInt64, false), Arc::new(stored)),
            (Field::new("text", DataType::Utf8, false), Arc::new(texts)),
        ];
        if let Ok(edits) = edits {
            let none = new_null_array(edits.data_type(), 1);
            let places: Vec<(usize, usize)> =
                (0..batch.num_rows()).map(|row| if row == tail { (1, 0) } else { (0, row) }).collect();
            let edits = arrow_select::interleave::interleave(&[edits.as_ref(), none.as_ref()], &places)?;
            changed.push((batch.schema().field_with_name(EDITS)?.clone(), edits));
        }
        with_columns(&batch, changed)
    }
}

/// The column of sides with one row changed to validation.
fn sides(split: &UInt8Array, changed: usize) -> (Field, ArrayRef) {
    let side = |(row, side)| if row == changed { Some(VALIDATION) } else { side };
    let sides: UInt8Array = split.iter().enumerate().map(side).collect();
    (Field::new("split", DataType::UInt8, true), Arc::new(sides))
}

/// Where a text is cut so that about `bytes` of it lie behind: at the beginning of the line if no more than `most` bytes
/// follow it, else of the next line, else of a character. Both sides have text.
fn cut(text: &str, bytes: usize, most: usize) -> usize {
    let wanted = text.floor_char_boundary(text.len().saturating_sub(bytes));
    let line = text[..wanted].rfind('\n').map(|end| end + 1).filter(|line| text.len() - line <= most);
    let next = || text[wanted..].find('\n').map(|end| wanted + end + 1).filter(|line| *line < text.len());
    line.or_else(next).unwrap_or_else(|| text.ceil_char_boundary(wanted.max(1)))
}

impl Sink for HoldOut<'_> {
    fn write(&mut self, batch: &RecordBatch) -> bessemer_dataflow::Result<()> {
        let rows = Rows::of("hold-out", batch)?;
        let mut chosen = Vec::new();
        for index in 0..batch.num_rows() {
            let place = (rows.file.value(index), document_number(rows.row.value(index)));
            match optional(rows.reason, index) {
                None => {
                    self.seen.keep(&rows, index, self.assign);
                    if self.choice.is_some_and(|choice| choice.place() == place) {
                        chosen.push((index, self.passed));
                        self.passed += rows.text.value(index).len() as u64;
                    }
                }
                Some(reason) if FAULTS.contains(&reason) => self.seen.fault(&rows, index),
                Some(_) => {}
            }
        }
        let Some(choice) = self.choice.filter(|_| !chosen.is_empty()) else { return self.sink.write(batch) };
        let mut batch = batch.clone();
        // From the last on: a row that is cut moves those behind it.
        for (index, passed) in chosen.into_iter().rev() {
            batch = choice.apply(&batch, index, passed)?;
        }
        self.sink.write(&batch)
    }
}

/// Says how much of the kept text validation holds, if that is far more than was asked for.
pub(crate) fn far_too_much(config: &SplitConfig, validation: u64, kept: u64) -> Option<String> {
    // Sources named by the user are held out whatever they hold.
    if !config.validation.is_empty() || config.validation_fraction <= 0.0 || kept == 0 {
        return None;
    }
    let share = validation as f64 / kept as f64;
    (share > most_share(config.validation_fraction)).then(|| {
        format!(
            "validation holds {:.0} % of the kept text, {:.0} % were asked for; set corpus.split.by = \"document\", another \
             corpus.split.seed, or corpus.split.validation",
            100.0 * share,
            100.0 * config.validation_fraction
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tail_begins_at_a_line_where_that_is_near_and_never_inside_a_character() {
        let text = "first line\nsecond line\nthird line\n";
        assert_eq!(&text[cut(text, 12, 20)..], "third line\n");
        assert_eq!(&text[cut(text, 3, 3)..], "ne\n", "the line would be more than the split may hold");
        assert_eq!(cut("éé", 1, 1), 2);
        assert_eq!(cut("ab", 1, 1), 1);
        let shown = |text: &str, at: usize| text.is_char_boundary(at) && at > 0 && at < text.len();
        assert!((1..=3).all(|bytes| shown("ééé", cut("ééé", bytes, bytes))));
    }
}
