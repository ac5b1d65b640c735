//! The sink: kept documents to one series of Parquet files per split, dropped ones to a list, all to statistics.

use super::card::samples::Samples;
use super::durable::HashingFile;
use super::parquet_file::{Encoders, ParquetFile};
use super::scores::Distribution;
use super::series::{GROUP_ROWS, Series};
use super::summary::{ComponentSummary, CorpusSummary, Count, DROPPED_FILE, SourceSummary};
use crate::cut::{document_number, is_part};
use crate::error::{Error, Result};
use crate::evaluate::{Evaluator, REVIEW_FILE};
use crate::rule::CONTAMINATED;
use crate::source::SourceInfo;
use arrow_array::builder::{StringBuilder, UInt32Builder, UInt64Builder};
use arrow_array::{Array, ArrayRef, RecordBatch};
use arrow_schema::{DataType, Field, Schema, SchemaRef};
use bessemer_dataflow::{Sink, optional};
use bessemer_documents::{
    COMPONENT, EMAILS, IPS, LENGTHS, LINES, NUMBERS, Rows, SECRETS, Split, VALIDATION, head,
};
use bessemer_durable::ConfinedDir;
use bessemer_web::redact::redact;
use std::collections::{BTreeMap, HashMap};
use std::io::Write;
use std::sync::Arc;
use xxhash_rust::xxh3::Xxh3Default;

fn dropped_schema(components: bool) -> SchemaRef {
    let mut fields = vec![
        Field::new("id", DataType::Utf8, false),
        Field::new("source", DataType::Utf8, false),
        Field::new("version", DataType::Utf8, true),
        Field::new("path", DataType::Utf8, false),
        Field::new("reason", DataType::Utf8, false),
        Field::new("detail", DataType::Utf8, true),
        Field::new("bytes", DataType::UInt64, false),
        Field::new("head", DataType::Utf8, false),
        Field::new("file", DataType::UInt32, false),
        Field::new("row", DataType::UInt64, false),
    ];
    if components {
        fields.push(Field::new(COMPONENT, DataType::Utf8, false));
    }
    Arc::new(Schema::new(fields))
}

/// The list of dropped documents.
struct Dropped {
    output: ParquetFile,
    strings: [StringBuilder; 7],
    bytes: UInt64Builder,
    file: UInt32Builder,
    row: UInt64Builder,
    /// Component of a mixture, where there are several sources.
    component: Option<StringBuilder>,
    rows: usize,
}

impl Dropped {
    fn push(&mut self, rows: &Rows<'_>, index: usize) -> Result<()> {
        self.strings[0].append_value(rows.id.value(index));
        self.strings[1].append_value(rows.source.value(index));
        self.strings[2].append_option(optional(rows.version, index));
        self.strings[3].append_value(rows.path.value(index));
        self.strings[4].append_value(rows.reason.value(index));
        self.strings[5].append_option(optional(rows.detail, index).map(redact));
        self.strings[6].append_value(head(rows.text.value(index)));
        self.bytes.append_value(rows.bytes.value(index));
        self.file.append_value(rows.file.value(index));
        self.row.append_value(rows.row.value(index));
        if let (Some(column), Some(names)) = (&mut self.component, rows.component) {
            column.append_value(names.value(index));
        }
        self.rows += 1;
        if self.rows >= GROUP_ROWS { self.flush() } else { Ok(()) }
    }

    fn flush(&mut self) -> Result<()> {
        let mut columns: Vec<ArrayRef> =
            self.strings.iter_mut().map(|column| Arc::new(column.finish()) as ArrayRef).collect();
        let heads = columns.pop();
        columns.push(Arc::new(self.bytes.finish()));
        columns.extend(heads);
        columns.push(Arc::new(self.file.finish()));
        columns.push(Arc::new(self.row.finish()));
        columns.extend(self.component.as_mut().map(|column| Arc::new(column.finish()) as ArrayRef));
        self.rows = 0;
        self.output.write(RecordBatch::try_new(dropped_schema(self.component.is_some()), columns)?)
    }
}

/// The sink.
pub(crate) struct Documents {
    /// Of train, then of validation; each for every component, or one.
    series: Vec<Series>,
    /// Index of a component by name.
    components: HashMap<String, usize>,
    dropped: Dropped,
    summary: CorpusSummary,
    /// Index into `summary.sources` by (name, version).
    places: HashMap<(String, Option<String>), usize>,
    fingerprint: Xxh3Default,
    /// Rows with a URL, where URLs are looked at.
    urls: Option<u64>,
    /// Of the scores of kept documents.
    distributions: Vec<Distribution>,
    /// For the data card.
    samples: Samples,
    evaluator: Option<Evaluator>,
    folder: ConfinedDir,
    /// File and number in it of the document that the last row is, or is a part of.
    last: Option<(u32, u64)>,
    /// Long texts that were cut, and their parts.
    cut: (u64, u64),
    /// WARC records whose header states a wrong length.
    wrong_lengths: u64,
}

impl Documents {
    /// A sink into `folder`, for these sources; documents carry the columns `extras` behind those that all have. `components`
    /// name what training weighs, where there are several sources.
    pub(crate) fn create(
        folder: &ConfinedDir,
        sources: &[SourceInfo],
        components: &[String],
        extras: &[Field],
        encoders: &Encoders,
    ) -> Result<Documents> {
        let mut summary = CorpusSummary::default();
        let mut fingerprint = Xxh3Default::new();
        for name in components {
            // Which components there are is part of what shards are made of, documents or none.
            fingerprint.update(format!("component {name}\n").as_bytes());
            summary.components.push(ComponentSummary { name: name.clone(), ..ComponentSummary::default() });
        }
        let (several, count) = (!components.is_empty(), components.len());
        let mut series = Vec::new();
        for split in Split::ALL {
            let each = components.iter().map(|name| Some(name.as_str()));
            let each = each.chain((!several).then_some(None));
            for component in each {
                series.push(Series::new(folder, split, component, count, extras, encoders)?);
            }
        }
        let mut places = HashMap::new();
        for source in sources {
            places.entry((source.name.clone(), source.version.clone())).or_insert_with(|| {
                summary.sources.push(SourceSummary {
                    name: source.name.clone(),
                    version: source.version.clone(),
                    licence: source.licence.clone(),
                    ..SourceSummary::default()
                });
                summary.sources.len() - 1
            });
        }
        Ok(Documents {
            series,
            components: components.iter().cloned().enumerate().map(|(index, name)| (name, index)).collect(),
            dropped: Dropped {
                component: several.then(StringBuilder::new),
                output: ParquetFile::create(folder, DROPPED_FILE, dropped_schema(several), encoders)?,
                strings: Default::default(),
                bytes: UInt64Builder::new(),
                file: UInt32Builder::new(),
                row: UInt64Builder::new(),
                rows: 0,
            },
            summary,
            places,
            fingerprint,
            urls: extras.iter().any(|field| field.name() == "url").then_some(0),
            distributions: extras.iter().filter_map(Distribution::new).collect(),
            samples: Samples::default(),
            evaluator: None,
            folder: folder.clone(),
            last: None,
            cut: (0, 0),
            wrong_lengths: 0,
        })
    }

    /// Evaluates a sample of what is kept.
    pub(crate) fn evaluate(&mut self, evaluator: Option<Evaluator>) {
        self.evaluator = evaluator;
    }

    fn place(&mut self, rows: &Rows<'_>, index: usize) -> Result<usize> {
        let key = (rows.source.value(index).to_string(), optional(rows.version, index).map(str::to_string));
        let known = self.places.get(&key).copied();
        known.ok_or_else(|| Error::plan("documents", format!("source {key:?} is not in the listing")))
    }

    /// The component of a row, where there are several sources.
    fn component(&self, rows: &Rows<'_>, index: usize) -> Result<Option<usize>> {
        if self.components.is_empty() {
            return Ok(None);
        }
        let name = rows.component.map(|names| names.value(index)).unwrap_or_default();
        let known = self.components.get(name).copied();
        known.map(Some).ok_or_else(|| {
            Error::plan("documents", format!("component {name:?} is not in the configuration"))
        })
    }

    /// Counts a row among what was read: a document once, whatever number of parts it has.
    fn read(&mut self, rows: &Rows<'_>, index: usize, place: usize) {
        let (row, bytes) = (rows.row.value(index), rows.bytes.value(index));
        let document = (rows.file.value(index), document_number(row));
        let is_first = self.last.replace(document) != Some(document);
        let counted = Count { documents: u64::from(is_first), bytes };
        self.summary.read += counted;
        self.summary.sources[place].read += counted;
        if is_part(row) {
            self.cut.0 += u64::from(is_first);
            self.cut.1 += 1;
        }
        self.wrong_lengths += rows.edits.get(index).get(LENGTHS);
    }

    fn keep(&mut self, batch: &RecordBatch, rows: &Rows<'_>, index: usize, place: usize) -> Result<()> {
        let text = rows.text.value(index);
        let split = if rows.split.value(index) == VALIDATION { Split::Validation } else { Split::Train };
        for part in [split.name(), rows.id.value(index), text] {
            self.fingerprint.update(&(part.len() as u64).to_le_bytes());
            self.fingerprint.update(part.as_bytes());
        }
        let component = self.component(rows, index)?;
        if let Some(component) = component {
            self.fingerprint.update(&(component as u64).to_le_bytes());
        }
        let bytes = text.len() as u64;
        self.summary.kept.add(bytes);
        self.summary.lengths.entry(bytes.max(1).ilog2()).or_default().add(bytes);
        let edits = rows.edits.get(index);
        self.summary.emails_replaced += edits.get(EMAILS);
        self.summary.ips_replaced += edits.get(IPS);
        self.summary.lines_removed += edits.get(LINES);
        self.summary.numbers_replaced += edits.get(NUMBERS);
        self.summary.secrets_replaced += edits.get(SECRETS);
        for (set, places) in edits.evaluation_sets() {
            let count = self.summary.decontaminated.entry(set.to_string()).or_default();
            count.cut += 1;
            count.places += places;
        }
        for distribution in &mut self.distributions {
            distribution.add(batch, index, bytes);
        }
        if let Some(evaluator) = &mut self.evaluator {
            evaluator.take(batch, rows, index)?;
        }
        self.samples.keep(split, rows.id.value(index), text);
        let source = &mut self.summary.sources[place];
        source.kept.add(bytes);
        match split {
            Split::Train => source.train.add(bytes),
            Split::Validation => source.validation.add(bytes),
        }
        if let Some(component) = component.and_then(|at| self.summary.components.get_mut(at)) {
            match split {
                Split::Train => component.train.add(bytes),
                Split::Validation => component.validation.add(bytes),
            }
        }
        let of_split = self.series.len() / Split::ALL.len();
        self.series[usize::from(split.code()) * of_split + component.unwrap_or(0)].push(batch, rows, index)
    }

    fn drop_row(&mut self, rows: &Rows<'_>, index: usize, place: usize) -> Result<()> {
        let (reason, bytes) = (rows.reason.value(index), rows.bytes.value(index));
        self.summary.dropped.add(bytes);
        let count = |reasons: &mut BTreeMap<String, Count>| Count::add_to(reasons, reason, bytes);
        count(&mut self.summary.dropped_by_reason);
        count(&mut self.summary.sources[place].dropped);
        let component = self.component(rows, index)?;
        if let Some(component) = component.and_then(|at| self.summary.components.get_mut(at)) {
            count(&mut component.dropped);
        }
        if reason == CONTAMINATED {
            for (set, _) in rows.edits.get(index).evaluation_sets() {
                self.summary.decontaminated.entry(set.to_string()).or_default().dropped += 1;
            }
        }
        // What went wrong with a file in an object store names its address.
        let detail = optional(rows.detail, index).map(redact);
        self.samples.drop(reason, rows.id.value(index), detail.as_deref(), rows.text.value(index));
        self.dropped.push(rows, index)
    }

    /// Closes the files and returns the statistics and the samples.
    pub(crate) fn finish(mut self) -> Result<(CorpusSummary, Samples)> {
        let mut summary = self.summary;
        for series in self.series {
            summary.files.extend(series.finish()?);
        }
        for split in Split::ALL {
            let of = |source: &SourceSummary| match split {
                Split::Train => source.train,
                Split::Validation => source.validation,
            };
            let part = summary.splits.entry(split).or_default();
            for count in summary.sources.iter().map(of) {
                part.documents += count.documents;
                part.bytes += count.bytes;
                part.sources += u64::from(count.documents > 0);
            }
        }
        if self.dropped.rows > 0 {
            self.dropped.flush()?;
        }
        summary.files.push(self.dropped.output.finish()?);
        if self.urls == Some(0) {
            summary.remarks.push(
                "corpus.urls or a score looks at URLs, and no document has one; set corpus.url to the field that holds it".into(),
            );
        }
        summary.scores = self.distributions.into_iter().map(Distribution::finish).collect();
        if self.cut.0 > 0 {
            let (texts, parts) = self.cut;
            summary.remarks.push(format!(
                "{texts} {} longer than corpus.clean.max_bytes: cut into {parts} documents at borders of paragraphs \
                 (corpus.clean.long = \"drop\" drops such texts)",
                if texts == 1 { "text is" } else { "texts are" }
            ));
        }
        if self.wrong_lengths > 0 {
            let plural = if self.wrong_lengths == 1 { "record states" } else { "records state" };
            summary.remarks.push(format!(
                "{} WARC {plural} a wrong Content-Length; each was read to the end of its compressed member",
                self.wrong_lengths
            ));
        }
        if let Some(evaluator) = self.evaluator {
            let (evaluation, review) = evaluator.finish()?;
            summary.evaluation = Some(evaluation);
            if let Some(lines) = review {
                let mut file = HashingFile::create(&self.folder, REVIEW_FILE)?;
                file.write_all(lines.as_bytes()).map_err(Error::io("write", self.folder.path()))?;
                summary.files.push(file.finish()?);
            }
        }
        summary.fingerprint = format!("{:032x}", self.fingerprint.digest128());
        Ok((summary, self.samples))
    }
}

impl Sink for Documents {
    fn write(&mut self, batch: &RecordBatch) -> bessemer_dataflow::Result<()> {
        let rows = Rows::of("documents", batch)?;
        for index in 0..batch.num_rows() {
            let place = self.place(&rows, index)?;
            self.read(&rows, index, place);
            if let Some(urls) = &mut self.urls {
                *urls += u64::from(rows.url.is_valid(index));
            }
            if rows.reason.is_null(index) {
                self.keep(batch, &rows, index, place)?;
            } else {
                self.drop_row(&rows, index, place)?;
            }
        }
        Ok(())
    }
}
