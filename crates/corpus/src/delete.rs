//! Deletes documents of a finished corpus by id.
//!
//! First the list of tombstones is written, then the corpus is written anew without these documents' texts, and put in
//! place whole. Whatever happens between the two, the next build sees that the corpus does not answer to the list and
//! makes it again. The result is the corpus that a build with the same list makes, apart from its counts of edits.

use crate::build::publish;
use crate::cut::whole_id;
use crate::error::{Error, Result};
use crate::output::documents::Documents;
use crate::output::durable::{OutputDir, PartialDir};
use crate::output::parquet_file::Encoders;
use crate::output::series::own_fields;
use crate::output::summary::{CorpusSummary, DROPPED_FILE};
use crate::parts::Parts;
use crate::read::{Batches, CorpusReader};
use crate::source::SourceInfo;
use crate::tombstone::{DELETED, Tombstones};
use arrow_array::{ArrayRef, RecordBatch, StringArray, UInt8Array, UInt32Array, UInt64Array, new_null_array};
use arrow_schema::{DataType, Field};
use bessemer_dataflow::{BatchMap, Sink, column, with_columns};
use bessemer_documents::{COMPONENT, EDITS, EMBEDDING, METADATA, Split, Verdict, edit_all, text_schema};
use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Result of a deletion.
#[derive(Debug, Clone, PartialEq, serde::Serialize)]
pub struct Deletion {
    /// Ids that were not on the list before.
    pub listed: usize,
    /// Documents of the corpus that have a tombstone now, kept or dropped before.
    pub deleted: u64,
    /// Ids of the list that name no document of the corpus; later builds leave them out too.
    pub unknown: Vec<String>,
    /// The corpus was written anew.
    pub rewritten: bool,
    /// Summary of the corpus afterwards.
    #[serde(skip)]
    pub summary: CorpusSummary,
}

/// Puts `ids` on the list of the corpus in `folder` and removes these documents from it.
///
/// # Errors
/// No corpus there, no id, a list that would leave no document, another process at work, the stop flag, or the disk's
/// refusal. The list is kept when the rewriting fails: give the same command again.
pub fn delete(folder: &Path, ids: &[String], reason: &str, stop: &AtomicBool) -> Result<Deletion> {
    let reader = CorpusReader::open(folder)?;
    let mut tombstones = Tombstones::read(folder)?;
    let listed = ids.iter().filter(|id| tombstones.add(id, reason)).count();
    if tombstones.is_empty() {
        return Err(Error::Config("no document to delete: expected at least one id".into()));
    }
    tombstones.write(folder)?;
    let mut seen = BTreeSet::new();
    let rewritten = reader.summary().tombstones != tombstones.digest();
    let summary = if rewritten {
        rewrite(&reader, &tombstones, &mut seen, stop)?
    } else {
        each_batch(&reader, stop, &mut |batch| note(&batch, &tombstones, &mut seen))?;
        reader.summary().clone()
    };
    let all = ids.iter().filter(|id| !seen.contains(id.as_str()));
    let unknown = all.cloned().collect::<BTreeSet<String>>().into_iter().collect();
    let deleted = summary.dropped_by_reason.get(DELETED).map_or(0, |count| count.documents);
    Ok(Deletion { listed, deleted, unknown, rewritten, summary })
}

/// Notes the ids of the list that a batch holds.
fn note(batch: &RecordBatch, tombstones: &Tombstones, seen: &mut BTreeSet<String>) -> Result<()> {
    let found = listed(batch, tombstones)?;
    seen.extend(found.into_iter().flatten().map(|(id, _)| id.to_string()));
    Ok(())
}

/// For each row of a batch the id on the list that names it, with the reason: its own id, or that of the text that it is a part
/// of.
fn listed<'a>(batch: &'a RecordBatch, tombstones: &'a Tombstones) -> Result<Vec<Option<(&'a str, &'a str)>>> {
    let ids: &StringArray = column(DELETED, batch, "id")?;
    let rows: &UInt64Array = column(DELETED, batch, "row")?;
    let of = |row: usize| {
        let id = ids.value(row);
        let names = [id, whole_id(id, rows.value(row))];
        names.into_iter().find_map(|name| Some((name, tombstones.reason(name)?)))
    };
    Ok((0..batch.num_rows()).map(of).collect())
}

/// Writes the corpus anew.
fn rewrite(
    reader: &CorpusReader,
    tombstones: &Tombstones,
    seen: &mut BTreeSet<String>,
    stop: &AtomicBool,
) -> Result<CorpusSummary> {
    let old = reader.summary();
    let source = |source: &crate::SourceSummary| SourceInfo {
        name: source.name.clone(),
        version: source.version.clone(),
        licence: source.licence.clone(),
    };
    let sources: Vec<SourceInfo> = old.sources.iter().map(source).collect();
    let corpus = OutputDir::open(reader.folder())?;
    let folder = PartialDir::begin(&corpus)?;
    let components: Vec<String> = old.components.iter().map(|component| component.name.clone()).collect();
    let mut sink =
        Documents::create(folder.dir(), &sources, &components, &extras(reader)?, &Encoders::new(1))?;
    let map = ApplyDeletions(tombstones.clone());
    each_batch(reader, stop, &mut |batch| {
        note(&batch, tombstones, seen)?;
        Ok(sink.write(&map.apply(batch)?)?)
    })?;
    let (mut made, samples) = sink.finish()?;
    // What was read is not read again.
    for (made, old) in made.sources.iter_mut().zip(&old.sources) {
        made.read = old.read;
    }
    let summary = CorpusSummary {
        kept: made.kept,
        dropped: made.dropped,
        dropped_by_reason: made.dropped_by_reason,
        splits: made.splits,
        components: made.components,
        sources: made.sources,
        files: made.files,
        fingerprint: made.fingerprint,
        lengths: made.lengths,
        scores: made.scores,
        tombstones: tombstones.digest(),
        ..old.clone()
    };
    if summary.kept.documents == 0 {
        return Err(Error::Config(format!(
            "{}: no document would be left; take an id off the list, or remove the corpus",
            reader.folder().display()
        )));
    }
    // Parts that a killed build left hold the texts as well.
    Parts::clear(&corpus)?;
    publish(folder, summary, samples)
}

/// Columns of the corpus' documents that not all corpora have.
fn extras(reader: &CorpusReader) -> Result<Vec<Field>> {
    let own = own_fields();
    let Some(schema) = reader.document_schema()? else { return Ok(Vec::new()) };
    let extra = |field: &&Arc<Field>| own.iter().all(|own| own.name() != field.name());
    Ok(schema.fields().iter().filter(extra).map(|field| field.as_ref().clone()).collect())
}

/// Marks rows that have a tombstone as dropped and takes their text away. Comes behind every other stage, so that a
/// deleted document still stands before its duplicates: they stay out as well.
pub(crate) struct ApplyDeletions(pub(crate) Tombstones);

impl BatchMap for ApplyDeletions {
    fn name(&self) -> &str {
        "tombstones"
    }

    fn apply(&self, batch: RecordBatch) -> bessemer_dataflow::Result<RecordBatch> {
        let found = listed(&batch, &self.0)?;
        if found.iter().all(Option::is_none) {
            return Ok(batch);
        }
        edit_all(self.name(), &batch, |document| {
            Ok(match found[document.index()] {
                Some((_, why)) => {
                    document.set_text("");
                    let detail = Some(why.to_string()).filter(|why| !why.is_empty());
                    Verdict::Drop { reason: DELETED.into(), detail }
                }
                None => Verdict::Keep,
            })
        })
    }
}

/// Kept and dropped rows as one stream in the order of the sources.
fn each_batch(
    reader: &CorpusReader,
    stop: &AtomicBool,
    take: &mut dyn FnMut(RecordBatch) -> Result<()>,
) -> Result<()> {
    let components = &reader.summary().components;
    let mut streams = vec![Stream::new(reader.batches(DROPPED_FILE), None)];
    for split in Split::ALL {
        let each = components.iter().map(|component| Some(component.name.as_str()));
        for component in each.chain(components.is_empty().then_some(None)) {
            streams.push(Stream::new(reader.series_batches(split, component), Some(split)));
        }
    }
    loop {
        if stop.load(Ordering::Relaxed) {
            return Err(Error::Stopped);
        }
        let mut heads = Vec::with_capacity(streams.len());
        for (index, stream) in streams.iter_mut().enumerate() {
            heads.extend(stream.head()?.map(|place| (place, index)));
        }
        heads.sort_unstable();
        let Some(&(_, first)) = heads.first() else { return Ok(()) };
        let border = heads.get(1).map(|&(place, _)| place);
        take(streams[first].run(border)?)?;
    }
}

/// Batches of one series of files as rows of a plan.
struct Stream {
    batches: Batches,
    split: Option<Split>,
    current: Option<(RecordBatch, usize)>,
}

impl Stream {
    fn new(batches: Batches, split: Option<Split>) -> Stream {
        Stream { batches, split, current: None }
    }

    /// (file, row) of the next row.
    fn head(&mut self) -> Result<Option<(u32, u64)>> {
        loop {
            if let Some((batch, at)) = &self.current
                && *at < batch.num_rows()
            {
                return Ok(Some(place(batch, *at)?));
            }
            match self.batches.next().transpose()? {
                Some(batch) => self.current = Some((rows(&batch, self.split)?, 0)),
                None => return Ok(None),
            }
        }
    }

    /// The rows of the current batch that stand before `border`, at least one.
    fn run(&mut self, border: Option<(u32, u64)>) -> Result<RecordBatch> {
        let missing = || Error::plan(DELETED, "no batch to write");
        let (batch, at) = self.current.as_mut().ok_or_else(missing)?;
        let from = *at;
        *at += 1;
        while *at < batch.num_rows() {
            let here = place(batch, *at)?;
            if border.is_some_and(|border| here >= border) {
                break;
            }
            *at += 1;
        }
        Ok(batch.slice(from, *at - from))
    }
}

fn place(batch: &RecordBatch, index: usize) -> Result<(u32, u64)> {
    let file: &UInt32Array = column(DELETED, batch, "file")?;
    let row: &UInt64Array = column(DELETED, batch, "row")?;
    Ok((file.value(index), row.value(index)))
}

/// A batch of documents (`split` given) or of dropped rows with the columns that rows have in a plan.
fn rows(batch: &RecordBatch, split: Option<Split>) -> Result<RecordBatch> {
    let count = batch.num_rows();
    let stored = |name: &str| -> Result<ArrayRef> {
        let found = batch.column_by_name(name).cloned();
        found.ok_or_else(|| Error::plan(DELETED, format!("column {name:?} is missing")))
    };
    let nulls = |data_type: &DataType| new_null_array(data_type, count);
    let schema = text_schema();
    let columns = schema.fields().iter().map(|field| match (field.name().as_str(), split) {
        ("bytes", Some(_)) => stored("source_bytes"),
        ("text", None) => stored("head"),
        ("split", Some(split)) => Ok(Arc::new(UInt8Array::from(vec![split.code(); count])) as ArrayRef),
        ("reason" | "detail", Some(_))
        | ("licence" | "split", None)
        | ("url" | "fetched" | METADATA | EMBEDDING | EDITS, _) => Ok(nulls(field.data_type())),
        (name, _) => stored(name),
    });
    let rows = RecordBatch::try_new(schema.clone(), columns.collect::<Result<Vec<ArrayRef>>>()?)?;
    // What only some corpora have; of that, dropped rows have only their component.
    let own = own_fields();
    let batch_schema = batch.schema();
    let is_more =
        |name: &str| name == COMPONENT || split.is_some() && own.iter().all(|own| own.name() != name);
    let more = batch_schema.fields().iter().zip(batch.columns()).filter(|(field, _)| is_more(field.name()));
    let more = more.map(|(field, column)| (field.as_ref().clone(), column.clone())).collect();
    Ok(with_columns(&rows, more)?)
}
