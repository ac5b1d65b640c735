//! Several sources one after the other, as one: their files, rows, ids and names of sources, each under the name that the
//! recipe gives its source.
//!
//! Rows get the column `component`, and `tags` where a source has any. The ordinals of files go on from source to source, so
//! (file, row) stays the identity and the order of a row.

use super::{Listing, Source, SourceInfo};
use arrow_array::builder::StringBuilder;
use arrow_array::{ArrayRef, RecordBatch, StringArray, UInt32Array};
use arrow_schema::{DataType, Field};
use bessemer_corpus_config::SourceConfig;
use bessemer_dataflow::{Morsel, Scan, column, with_columns};
use bessemer_documents::{COMPONENT, TAGS};
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

/// A source of the chain, and what its rows get.
struct Member {
    source: Arc<dyn Source>,
    label: Arc<Label>,
}

/// Values that the rows of a source receive.
struct Label {
    name: String,
    /// Ordinal of its first file.
    first_file: u32,
    /// Its tags as a JSON object; nothing where no source of the chain has any.
    tags: Option<String>,
}

pub(crate) struct Chain {
    members: Vec<Member>,
    listing: Listing,
}

/// Opens a chain of opened sources.
pub(crate) fn open(sources: Vec<(&SourceConfig, Arc<dyn Source>)>) -> Chain {
    let mut listing = Listing { kind: "sources", ..Listing::default() };
    let tagged = sources.iter().any(|(config, _)| !config.tag.is_empty());
    let mut members = Vec::with_capacity(sources.len());
    for (config, source) in sources {
        let (name, inner) = (&config.name, source.listing());
        let tags = tagged.then(|| serde_json::json!(config.tag).to_string());
        // A listing of 2^32 files does not fit into memory.
        let first_file = listing.files as u32;
        listing.sources.extend(
            inner
                .sources
                .iter()
                .map(|info| SourceInfo { name: format!("{name}/{}", info.name), ..info.clone() }),
        );
        listing.entries.push(format!("source {name} {} {} files", inner.kind, inner.files));
        listing.entries.extend(inner.entries.iter().map(|entry| format!("{name}/{entry}")));
        listing.remarks.extend(inner.remarks.iter().map(|remark| format!("{name}: {remark}")));
        listing.files += inner.files;
        listing.bytes += inner.bytes;
        listing.skipped.merge(&inner.skipped);
        // Of a source whose bytes are not known before reading, none are.
        let unknown = vec![0; inner.sources.len()];
        let known = inner.source_bytes.len() == inner.sources.len();
        listing.source_bytes.extend(if known { &inner.source_bytes } else { &unknown });
        listing.chained.push(name.clone());
        if source.verbatim() {
            listing.verbatim.push(name.clone());
        }
        let label = Label { name: name.clone(), first_file, tags };
        members.push(Member { source, label: Arc::new(label) });
    }
    Chain { members, listing }
}

impl Member {
    /// Stored bytes of its files, if they can be read apart; a single file always can.
    fn file_bytes(&self) -> Option<Vec<u64>> {
        let (listing, sizes) = (self.source.listing(), self.source.file_bytes());
        match sizes.len() as u64 == listing.files {
            true => Some(sizes),
            false => (listing.files == 1).then(|| vec![listing.bytes]),
        }
    }
}

impl bessemer_dataflow::Source for Chain {
    fn describe(&self) -> String {
        let each: Vec<String> = self
            .members
            .iter()
            .map(|member| format!("{}: {}", member.label.name, member.source.describe()))
            .collect();
        each.join("; ")
    }

    fn scan(&self) -> bessemer_dataflow::Result<Box<dyn Scan>> {
        let whole = |member: &Member| (member.source.clone(), None, member.label.clone());
        Ok(Box::new(ChainScan { rest: self.members.iter().map(whole).collect(), current: None }))
    }
}

impl Source for Chain {
    fn listing(&self) -> &Listing {
        &self.listing
    }

    fn file_bytes(&self) -> Vec<u64> {
        let sizes: Option<Vec<Vec<u64>>> = self.members.iter().map(Member::file_bytes).collect();
        sizes.unwrap_or_default().concat()
    }

    fn scan_files(&self, files: Range<usize>) -> bessemer_dataflow::Result<Box<dyn Scan>> {
        Ok(Box::new(ChainScan { rest: self.pieces(files), current: None }))
    }

    fn scan_files_from(
        &self,
        files: Range<usize>,
        point: &str,
    ) -> bessemer_dataflow::Result<Option<Box<dyn Scan>>> {
        let Some((first_file, point)) = point.split_once(' ') else { return Ok(None) };
        let mut rest = self.pieces(files);
        while let Some((source, files, label)) = rest.pop_front() {
            if label.first_file.to_string() == first_file {
                let Some(files) = files else { return Ok(None) };
                let scan = source.scan_files_from(files, point)?;
                return Ok(scan.map(|scan| -> Box<dyn Scan> {
                    Box::new(ChainScan { rest, current: Some((scan, label)) })
                }));
            }
        }
        Ok(None)
    }
}

impl Chain {
    /// The files of a run, by source.
    fn pieces(&self, files: Range<usize>) -> VecDeque<Piece> {
        let mut pieces = VecDeque::new();
        for member in &self.members {
            let first = member.label.first_file as usize;
            let end = first + member.source.listing().files as usize;
            let (from, to) = (files.start.max(first), files.end.min(end));
            if from < to {
                let files = Some(from - first..to - first);
                pieces.push_back((member.source.clone(), files, member.label.clone()));
            }
        }
        pieces
    }
}

/// A source, its files or all, and what its rows get.
type Piece = (Arc<dyn Source>, Option<Range<usize>>, Arc<Label>);

struct ChainScan {
    rest: VecDeque<Piece>,
    current: Option<(Box<dyn Scan>, Arc<Label>)>,
}

impl Scan for ChainScan {
    fn next(&mut self) -> bessemer_dataflow::Result<Option<Morsel>> {
        loop {
            if let Some((scan, label)) = &mut self.current
                && let Some(morsel) = scan.next()?
            {
                let label = label.clone();
                return Ok(Some(Box::new(move || label.apply(&morsel()?))));
            }
            let Some((source, files, label)) = self.rest.pop_front() else { return Ok(None) };
            let scan = match files {
                Some(files) => source.scan_files(files)?,
                None => source.scan()?,
            };
            self.current = Some((scan, label));
        }
    }

    fn resume_point(&self) -> Option<String> {
        let (scan, label) = self.current.as_ref()?;
        Some(format!("{} {}", label.first_file, scan.resume_point()?))
    }
}

impl Label {
    /// The rows of the source as rows of the chain.
    fn apply(&self, batch: &RecordBatch) -> bessemer_dataflow::Result<RecordBatch> {
        let count = batch.num_rows();
        let files: &UInt32Array = column("chain", batch, "file")?;
        let files: UInt32Array = files.values().iter().map(|file| file + self.first_file).collect();
        let prefixed = |name: &str| -> bessemer_dataflow::Result<ArrayRef> {
            let old: &StringArray = column("chain", batch, name)?;
            let mut new = StringBuilder::with_capacity(count, old.value_data().len());
            (0..count).for_each(|index| new.append_value(format!("{}/{}", self.name, old.value(index))));
            Ok(Arc::new(new.finish()))
        };
        let text = |name: &str| Field::new(name, DataType::Utf8, false);
        let component: StringArray = (0..count).map(|_| Some(self.name.as_str())).collect();
        let mut columns: Vec<(Field, ArrayRef)> = vec![
            (Field::new("file", DataType::UInt32, false), Arc::new(files)),
            (text("id"), prefixed("id")?),
            (text("source"), prefixed("source")?),
            (text(COMPONENT), Arc::new(component)),
        ];
        if let Some(tags) = &self.tags {
            let tags: StringArray = (0..count).map(|_| Some(tags.as_str())).collect();
            columns.push((text(TAGS), Arc::new(tags)));
        }
        with_columns(batch, columns)
    }
}
