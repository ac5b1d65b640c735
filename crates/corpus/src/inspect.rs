//! Looks at single documents of a finished corpus, kept or dropped.

use crate::error::Result;
use crate::output::summary::DROPPED_FILE;
use crate::read::{Batches, CorpusReader, flatten, owned};
use arrow_array::{RecordBatch, StringArray, UInt32Array, UInt64Array};
use bessemer_dataflow::column;
use bessemer_documents::{Split, head};
use std::collections::BTreeMap;

/// Reasons whose details name the document that is kept instead, as the methods of deduplication write it.
const DUPLICATES: &[&str] = &["duplicate", "near-duplicate", "semantic-duplicate"];

/// Which rows `inspect` shows. An unset field shows all.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct InspectFilter {
    /// Documents dropped for this reason.
    pub reason: Option<String>,
    /// Documents of this source.
    pub source: Option<String>,
    /// The document with this id.
    pub id: Option<String>,
    /// Documents whose id contains this.
    pub id_contains: Option<String>,
    /// Kept documents instead of dropped ones.
    pub kept: bool,
    /// Kept documents with their whole text.
    pub whole: bool,
}

/// A row that `inspect` shows.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct Inspected {
    /// Unique name.
    pub id: String,
    /// Crate, top folder or file.
    pub source: String,
    /// Path below the source.
    pub path: String,
    /// Side of a kept document.
    pub split: Option<Split>,
    /// Why it was dropped.
    pub reason: Option<String>,
    /// The measured value and the limit.
    pub detail: Option<String>,
    /// Bytes: of the text if kept, in the source if dropped.
    pub bytes: u64,
    /// The beginning of the text.
    pub head: String,
    /// The whole text of a kept document, if it was asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
    /// The document that a duplicate repeats, after [`CorpusReader::name_duplicates`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub duplicate_of: Option<NamedDocument>,
}

/// The document that a duplicate repeats.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct NamedDocument {
    /// Unique name.
    pub id: String,
    /// Crate, top folder or file.
    pub source: String,
    /// Path below the source.
    pub path: String,
    /// Why it was dropped by a later stage; none if it is kept.
    pub reason: Option<String>,
}

impl NamedDocument {
    /// Its id, and its source and path where the id does not hold them.
    pub(crate) fn in_words(&self) -> String {
        let mut words = self.id.clone();
        if !self.id.contains(&self.path) {
            words += &format!(" ({} {})", self.source, self.path);
        }
        if let Some(reason) = &self.reason {
            words += &format!(" (itself dropped later: {reason})");
        }
        words
    }
}

/// Ordinals of a file in the listing and of a document in the file.
pub(crate) type RowKey = (u32, u64);

/// The document that the detail of a duplicate names, with the words that name it ("file 3 row 8").
pub(crate) fn named(reason: Option<&str>, detail: Option<&str>) -> Option<(RowKey, String)> {
    let detail = detail.filter(|_| reason.is_some_and(|reason| DUPLICATES.contains(&reason)))?;
    let (_, place) = detail.split_once(" file ")?;
    let (file, rest) = place.split_once(" row ")?;
    let row = rest.split(' ').next()?;
    Some(((file.parse().ok()?, row.parse().ok()?), format!("file {file} row {row}")))
}

impl InspectFilter {
    fn lets_through(&self, row: &Inspected) -> bool {
        let same = |wanted: &Option<String>, found: Option<&str>| {
            wanted.as_deref().is_none_or(|wanted| found == Some(wanted))
        };
        same(&self.reason, row.reason.as_deref())
            && same(&self.source, Some(&row.source))
            && same(&self.id, Some(&row.id))
            && self.id_contains.as_ref().is_none_or(|part| row.id.contains(part.as_str()))
    }
}

impl CorpusReader {
    /// Dropped or kept documents that a filter lets through, in order.
    pub fn inspect(&self, filter: InspectFilter) -> impl Iterator<Item = Result<Inspected>> + use<> {
        let parts: Vec<(Batches, Option<Split>)> = if filter.kept {
            let of = |split: Split| (self.split_batches(split), Some(split));
            Split::ALL.map(of).into()
        } else {
            vec![(self.batches(DROPPED_FILE), None)]
        };
        let whole = filter.whole;
        let rows = parts.into_iter().flat_map(move |(batches, split)| {
            flatten(batches.map(move |batch| batch.and_then(|batch| inspected(&batch, split, whole))))
        });
        rows.filter(move |row| row.as_ref().map_or(true, |row| filter.lets_through(row)))
    }

    /// Names the documents that duplicates among `rows` repeat: sets `duplicate_of`, and writes the id into `detail` in
    /// place of the ordinals of file and row. Reads the columns of names of the corpus once, at most.
    ///
    /// # Errors
    /// A damaged corpus, or the disk's refusal.
    pub fn name_duplicates(&self, rows: &mut [Inspected]) -> Result<()> {
        let of = |row: &Inspected| named(row.reason.as_deref(), row.detail.as_deref());
        let found = self.names_of(rows.iter().filter_map(of).map(|(key, _)| key))?;
        for row in rows {
            let Some((key, words)) = of(row) else { continue };
            let Some(document) = found.get(&key) else { continue };
            row.detail = row.detail.take().map(|detail| detail.replace(&words, &document.in_words()));
            row.duplicate_of = Some(document.clone());
        }
        Ok(())
    }

    /// Documents by their ordinals.
    pub(crate) fn names_of(
        &self,
        keys: impl Iterator<Item = RowKey>,
    ) -> Result<BTreeMap<RowKey, NamedDocument>> {
        let mut wanted: BTreeMap<RowKey, Option<NamedDocument>> = keys.map(|key| (key, None)).collect();
        let mut missing = wanted.len();
        // The document that is kept instead may have been dropped by a later stage.
        for prefix in ["documents-", DROPPED_FILE] {
            if missing == 0 {
                break;
            }
            for batch in self.batches(prefix).only(&["id", "source", "path", "reason", "file", "row"]) {
                missing -= name_rows(&batch?, &mut wanted)?;
                if missing == 0 {
                    break;
                }
            }
        }
        Ok(wanted.into_iter().filter_map(|(key, name)| Some((key, name?))).collect())
    }
}

/// Fills in the documents of a batch; returns how many there were.
fn name_rows(batch: &RecordBatch, wanted: &mut BTreeMap<RowKey, Option<NamedDocument>>) -> Result<usize> {
    let files: &UInt32Array = column("inspect", batch, "file")?;
    let rows: &UInt64Array = column("inspect", batch, "row")?;
    let text = |name: &str| column::<StringArray>("inspect", batch, name);
    let (ids, sources, paths) = (text("id")?, text("source")?, text("path")?);
    let reasons = batch.column_by_name("reason").map(|_| text("reason")).transpose()?;
    let mut found = 0;
    for index in 0..batch.num_rows() {
        let Some(name) = wanted.get_mut(&(files.value(index), rows.value(index))) else { continue };
        if name.is_none() {
            found += 1;
            *name = Some(NamedDocument {
                id: ids.value(index).into(),
                source: sources.value(index).into(),
                path: paths.value(index).into(),
                reason: reasons.and_then(|reasons| owned(reasons, index)),
            });
        }
    }
    Ok(found)
}

fn inspected(batch: &RecordBatch, split: Option<Split>, whole: bool) -> Result<Vec<Inspected>> {
    let text = |name: &str| column::<StringArray>("inspect", batch, name);
    let (ids, sources, paths) = (text("id")?, text("source")?, text("path")?);
    let bytes: &UInt64Array = column("inspect", batch, "bytes")?;
    let texts = text(if split.is_some() { "text" } else { "head" })?;
    let why = if split.is_some() { None } else { Some((text("reason")?, text("detail")?)) };
    Ok((0..batch.num_rows())
        .map(|index| Inspected {
            id: ids.value(index).into(),
            source: sources.value(index).into(),
            path: paths.value(index).into(),
            split,
            reason: why.and_then(|(reasons, _)| owned(reasons, index)),
            detail: why.and_then(|(_, details)| owned(details, index)),
            bytes: bytes.value(index),
            head: head(texts.value(index)).into(),
            text: (whole && split.is_some()).then(|| texts.value(index).into()),
            duplicate_of: None,
        })
        .collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_details_of_duplicates_name_documents() {
        let of = |reason, detail| named(Some(reason), Some(detail));
        assert_eq!(of("duplicate", "same text as file 3 row 8"), Some(((3, 8), "file 3 row 8".into())));
        let near = of("near-duplicate", "jaccard with file 0 row 12 at 0.9100");
        assert_eq!(near, Some(((0, 12), "file 0 row 12".into())));
        assert_eq!(of("bad-json", "a file 3 row 8"), None);
        assert_eq!(of("duplicate", "same text as file x row 8"), None);
    }
}
