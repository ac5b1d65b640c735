//! Deduplication of lines and sentences as stages of a plan.

use super::cut::{TextEdit, line_keys, sentence_keys, size, without_lines, without_sentences};
use crate::keys::{PARTITIONS, names};
use crate::verdict::without;
use arrow_array::{
    Array, ArrayRef, BinaryArray, RecordBatch, StringArray, UInt8Array, UInt32Array, UInt64Array,
};
use arrow_schema::{DataType, Field, Schema, SchemaRef};
use bessemer_corpus_config::dedup::{LineUnit, LinesConfig};
use bessemer_dataflow::{BatchMap, FlatMap, Fold, Reducer, Result, Stage, column, side_rows};
use bessemer_documents::{Verdict, edit};
use std::ops::Range;
use std::sync::Arc;

/// Column of the places that go: u32, little-endian.
const PLACES: &str = "repeated_lines";
/// Rows of a result batch.
const RESULT_ROWS: usize = 4096;

/// The stages. Rows carry `file`, `row`, `split`, `text`, `reason`, `detail`.
pub fn stages(config: &LinesConfig) -> Vec<Stage> {
    vec![
        Stage::SideJoin {
            name: "repeated-lines".into(),
            project: names(&["file", "row", "split", "reason", "text"]),
            side: vec![
                Stage::FlatMap(Arc::new(OneByOne(config.clone()))),
                Stage::Shuffle { key: names(&["key"]), partitions: PARTITIONS },
                Stage::Sort { by: names(&["key", "split", "file", "row", "place"]) },
                Stage::Reduce { key: names(&["key"]), reducer: Arc::new(AllButFirst) },
                Stage::Shuffle { key: names(&["file", "row"]), partitions: PARTITIONS },
                Stage::Sort { by: names(&["file", "row", "place"]) },
                Stage::Reduce { key: names(&["file", "row"]), reducer: Arc::new(Collect) },
            ],
            adds: adds(),
        },
        Stage::Map(Arc::new(CutLines(config.clone()))),
    ]
}

/// A row for each line or span of each kept document: `place` in the text and `key`.
struct OneByOne(LinesConfig);

impl FlatMap for OneByOne {
    fn name(&self) -> &str {
        "line-by-line"
    }

    fn apply(&self, batch: RecordBatch) -> Result<RecordBatch> {
        let files: &UInt32Array = column(self.name(), &batch, "file")?;
        let rows: &UInt64Array = column(self.name(), &batch, "row")?;
        let splits: &UInt8Array = column(self.name(), &batch, "split")?;
        let reasons: &StringArray = column(self.name(), &batch, "reason")?;
        let texts: &StringArray = column(self.name(), &batch, "text")?;
        let (mut file, mut row, mut split) = (Vec::new(), Vec::new(), Vec::new());
        let (mut place, mut key) = (Vec::new(), Vec::new());
        for index in (0..batch.num_rows()).filter(|&index| reasons.is_null(index)) {
            let found = match self.0.unit {
                LineUnit::Lines => line_keys(texts.value(index)),
                LineUnit::Sentences => sentence_keys(texts.value(index), self.0.span as usize),
            };
            for (found_place, found_key) in found {
                place.push(found_place);
                key.push(found_key);
                file.push(files.value(index));
                row.push(rows.value(index));
                split.push(if splits.is_null(index) { 0 } else { splits.value(index) });
            }
        }
        let schema = Schema::new(vec![
            Field::new("file", DataType::UInt32, false),
            Field::new("row", DataType::UInt64, false),
            Field::new("split", DataType::UInt8, false),
            Field::new("place", DataType::UInt32, false),
            Field::new("key", DataType::UInt64, false),
        ]);
        let columns: Vec<ArrayRef> = vec![
            Arc::new(UInt32Array::from(file)),
            Arc::new(UInt64Array::from(row)),
            Arc::new(UInt8Array::from(split)),
            Arc::new(UInt32Array::from(place)),
            Arc::new(UInt64Array::from(key)),
        ];
        Ok(RecordBatch::try_new(Arc::new(schema), columns)?)
    }
}

/// Every row of a key but the first.
struct AllButFirst;

impl Reducer for AllButFirst {
    fn name(&self) -> &str {
        "all-but-first"
    }

    fn fold(&self) -> Box<dyn Fold> {
        Box::new(AllButFirstFold)
    }
}

struct AllButFirstFold;

impl Fold for AllButFirstFold {
    fn take(&mut self, batch: &RecordBatch, rows: Range<usize>, first: bool) -> Result<Option<RecordBatch>> {
        let from = rows.start + usize::from(first);
        if from >= rows.end {
            return Ok(None);
        }
        let schema = batch.schema();
        let indices: Vec<usize> = ["file", "row", "place"]
            .iter()
            .map(|name| schema.index_of(name))
            .collect::<std::result::Result<_, _>>()?;
        Ok(Some(batch.slice(from, rows.end - from).project(&indices)?))
    }

    fn finish(&mut self) -> Result<Option<RecordBatch>> {
        Ok(None)
    }
}

/// The places of one document as one value.
struct Collect;

impl Reducer for Collect {
    fn name(&self) -> &str {
        "collect-places"
    }

    fn fold(&self) -> Box<dyn Fold> {
        Box::new(CollectFold::default())
    }
}

#[derive(Default)]
struct CollectFold {
    ids: Vec<(u32, u64)>,
    places: Vec<Vec<u8>>,
}

fn adds() -> SchemaRef {
    Arc::new(Schema::new(vec![Field::new(PLACES, DataType::Binary, true)]))
}

impl CollectFold {
    fn flush(&mut self) -> Result<Option<RecordBatch>> {
        if self.ids.is_empty() {
            return Ok(None);
        }
        let places = BinaryArray::from_iter_values(self.places.drain(..));
        side_rows(self.ids.drain(..), &adds(), [Arc::new(places) as ArrayRef]).map(Some)
    }
}

impl Fold for CollectFold {
    fn take(&mut self, batch: &RecordBatch, rows: Range<usize>, first: bool) -> Result<Option<RecordBatch>> {
        let files: &UInt32Array = column("collect-places", batch, "file")?;
        let ids: &UInt64Array = column("collect-places", batch, "row")?;
        let places: &UInt32Array = column("collect-places", batch, "place")?;
        let full = if first && self.ids.len() >= RESULT_ROWS { self.flush()? } else { None };
        if first {
            self.ids.push((files.value(rows.start), ids.value(rows.start)));
            self.places.push(Vec::new());
        }
        if let Some(list) = self.places.last_mut() {
            rows.for_each(|index| list.extend_from_slice(&places.value(index).to_le_bytes()));
        }
        Ok(full)
    }

    fn finish(&mut self) -> Result<Option<RecordBatch>> {
        self.flush()
    }
}

/// Cuts repeated lines out of the texts; drops what becomes too short.
struct CutLines(LinesConfig);

impl CutLines {
    fn cut(&self, text: &str, places: &[u8]) -> TextEdit {
        let places: Vec<u32> =
            places.as_chunks::<4>().0.iter().map(|bytes| u32::from_le_bytes(*bytes)).collect();
        match self.0.unit {
            LineUnit::Lines => without_lines(text, &places),
            LineUnit::Sentences => without_sentences(text, &places, self.0.span as usize),
        }
    }

    /// Why what is left is too little.
    fn too_short(&self, text: &str) -> Option<String> {
        let (words, sentences) = size(text);
        let (least_words, least) = (self.0.min_words as usize, self.0.min_sentences as usize);
        if words < least_words {
            return Some(format!("{words} words are left, wanted {least_words}"));
        }
        let few = sentences < least || text.trim().is_empty();
        few.then(|| format!("{sentences} sentences are left, wanted {least}"))
    }
}

impl BatchMap for CutLines {
    fn name(&self) -> &str {
        "cut-repeated-lines"
    }

    fn apply(&self, batch: RecordBatch) -> Result<RecordBatch> {
        let found: &BinaryArray = column(self.name(), &batch, PLACES)?;
        if found.null_count() == found.len() {
            return without(&batch, &[PLACES]);
        }
        let batch = edit(self.name(), &batch, |document| {
            if found.is_null(document.index()) {
                return Ok(Verdict::Keep);
            }
            let cut = self.cut(document.text(), found.value(document.index()));
            if let Some(why) = self.too_short(&cut.text) {
                return Ok(Verdict::drop("repeated-lines", format!("{} cut; {why}", cut.removed)));
            }
            document.set_text(cut.text);
            Ok(Verdict::Keep)
        })?;
        without(&batch, &[PLACES])
    }
}
