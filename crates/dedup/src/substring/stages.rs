//! Substring deduplication as stages of a plan.

use super::finder::{Finder, Limits};
use crate::keys::{check, names};
use crate::verdict;
use arrow_array::builder::BinaryBuilder;
use arrow_array::{Array, ArrayRef, BinaryArray, RecordBatch, StringArray, UInt32Array, UInt64Array};
use arrow_schema::{DataType, Field, Schema, SchemaRef};
use bessemer_corpus_config::dedup::SubstringConfig;
use bessemer_dataflow::{
    BatchMap, BreakerContext, Error, Input, Output, PipelineBreaker, Result, Stage, column, side_rows,
};
use bessemer_documents::{Verdict, edit};
use std::ops::Range;
use std::sync::Arc;

const NAME: &str = "substrings";
/// Column of the ranges that go: pairs of little-endian u64, first byte and one past the last.
const COLUMN: &str = "repeated_substrings";
/// Rows of a result batch.
const RESULT_ROWS: usize = 1024;

/// The stages: texts of documents that are kept go through [`Finder`] in the order (split, file, row), so that nothing of
/// validation stays in it that is trained on; then ranges are cut out. Rows carry `file`, `row`, `split`, `text`,
/// `reason`, `detail`.
pub fn stages(config: &SubstringConfig) -> Vec<Stage> {
    vec![
        Stage::SideJoin {
            name: NAME.into(),
            project: names(&["file", "row", "split", "reason", "text"]),
            side: vec![
                Stage::Shuffle { key: Vec::new(), partitions: 1 },
                Stage::Sort { by: names(&["split", "file", "row"]) },
                Stage::PipelineBreaker(Arc::new(FindRepeats { length: config.length as usize })),
            ],
            adds: adds(),
        },
        Stage::Map(Arc::new(CutRepeats { min_bytes_left: config.min_bytes_left })),
    ]
}

/// Names the ranges of each document that repeat earlier text.
struct FindRepeats {
    length: usize,
}

fn adds() -> SchemaRef {
    Arc::new(Schema::new(vec![Field::new(COLUMN, DataType::Binary, true)]))
}

impl PipelineBreaker for FindRepeats {
    fn name(&self) -> &str {
        "find-repeated-substrings"
    }

    fn run(
        &self,
        input: &mut Input<'_>,
        context: &BreakerContext<'_>,
        output: &mut Output<'_>,
    ) -> Result<()> {
        let limits =
            Limits { threads: context.threads, memory: context.memory, spill: context.spill.clone() };
        let mut finder = Finder::new(self.length, limits)?;
        let mut places = Vec::new();
        while let Some(batch) = input()? {
            check(context.stop)?;
            let texts: &StringArray = column(NAME, &batch, "text")?;
            let reasons: &StringArray = column(NAME, &batch, "reason")?;
            let files: &UInt32Array = column(NAME, &batch, "file")?;
            let rows: &UInt64Array = column(NAME, &batch, "row")?;
            for index in (0..batch.num_rows()).filter(|&index| reasons.is_null(index)) {
                finder.push(texts.value(index).as_bytes())?;
                places.push((files.value(index), rows.value(index)));
            }
        }
        check(context.stop)?;
        let found = finder.finish(context.stop)?;
        for chunk in found.documents().chunks(RESULT_ROWS) {
            check(context.stop)?;
            let mut ranges = BinaryBuilder::new();
            for (_, removed) in chunk {
                let bytes = removed.iter().flat_map(|range| [range.start, range.end]);
                ranges.append_value(bytes.flat_map(u64::to_le_bytes).collect::<Vec<u8>>());
            }
            let ids = chunk.iter().map(|(ordinal, _)| places[*ordinal as usize]);
            output(side_rows(ids, &adds(), [Arc::new(ranges.finish()) as ArrayRef])?)?;
        }
        Ok(())
    }
}

/// Cuts the ranges out; drops what becomes too short.
struct CutRepeats {
    min_bytes_left: u64,
}

/// The ranges of a value of the column.
fn decode(bytes: &[u8]) -> Vec<Range<usize>> {
    let numbers = bytes.as_chunks::<8>().0.iter().map(|bytes| u64::from_le_bytes(*bytes) as usize);
    let numbers: Vec<usize> = numbers.collect();
    numbers.chunks_exact(2).map(|pair| pair[0]..pair[1]).collect()
}

/// The text without ranges, or none if a range is not within the text.
fn without(text: &str, ranges: &[Range<usize>]) -> Option<String> {
    let mut left = String::with_capacity(text.len());
    let mut done = 0;
    for range in ranges {
        left.push_str(text.get(done..range.start)?);
        done = range.end;
    }
    left.push_str(text.get(done..)?);
    Some(left)
}

impl BatchMap for CutRepeats {
    fn name(&self) -> &str {
        "cut-repeated-substrings"
    }

    fn apply(&self, batch: RecordBatch) -> Result<RecordBatch> {
        let found: &BinaryArray = column(self.name(), &batch, COLUMN)?;
        if found.null_count() == found.len() {
            return verdict::without(&batch, &[COLUMN]);
        }
        let batch = edit(self.name(), &batch, |document| {
            let (row, text) = (document.index(), document.text());
            if found.is_null(row) {
                return Ok(Verdict::Keep);
            }
            let left = without(text, &decode(found.value(row))).ok_or_else(|| {
                Error::plan(self.name(), format!("row {row}: ranges that are not within the text"))
            })?;
            if (left.len() as u64) < self.min_bytes_left || left.trim().is_empty() {
                let detail = format!("{} of {} bytes are left", left.len(), text.len());
                return Ok(Verdict::drop("repeated-substrings", detail));
            }
            document.set_text(left);
            Ok(Verdict::Keep)
        })?;
        verdict::without(&batch, &[COLUMN])
    }
}
