//! From a finished corpus to token shards: one more plan.
//!
//! The source is a split of the corpus, one map encodes, the sink writes shards. Each document of plain text is followed by the
//! end-of-text token where the tokenizer has one. Other documents, such as chats, are encoded by a [`DocumentEncoder`], which also states
//! which of their tokens are scored. Documents of the training split that are to come several times
//! (`dedup.rehydrate`) do so in rounds: every document once, then those that come twice once more, and so on, so that
//! repetitions stand far apart. Of several sources, component comes after component, each in its own rounds, and the
//! shards say where each begins. The result is a pure function of corpus, tokenizer and file size. `tokens.json`, written
//! last beside the splits' folders, says what is there; with the same inputs the work is skipped.

use crate::build::{BuildContext, Progress};
use crate::encode::{DocumentEncoder, PlainText};
use crate::error::{Error, Result};
use crate::output::durable::{OutputDir, read_replaceable};
use crate::read::{Batches, CorpusReader};
use arrow_array::builder::{BinaryBuilder, StringBuilder};
use arrow_array::{Array, BinaryArray, RecordBatch, StringArray, UInt64Array};
use arrow_schema::{DataType, Field, Schema};
use bessemer_dataflow::{Executor, FlatMap, Morsel, Plan, Scan, Sink, Source, Stage, column, morsel};
use bessemer_dedup::rehydrate::repeats;
use bessemer_documents::Split;
use bessemer_durable::ConfinedDir;
use bessemer_shards::{Fingerprint, ShardError, ShardSet, ShardSetWriter, SplitMeta};
use bessemer_tokenizer::Tokenizer;
use serde::{Deserialize, Serialize};
use std::cell::Cell;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use xxhash_rust::xxh3::xxh3_128;

/// Name of the file that says what the shards hold.
pub const TOKENS_FILE: &str = "tokens.json";

/// Counts of a split's shards.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TokenSummary {
    /// Documents.
    pub documents: u64,
    /// Tokens, end-of-text tokens included.
    pub tokens: u64,
    /// Of the tokens those that are scored, if not all are.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scored: Option<u64>,
    /// Bytes of the text that they encode.
    pub text_bytes: u64,
    /// Shard files.
    pub files: u64,
    /// Their bytes.
    pub file_bytes: u64,
}

/// Summary of a directory of shards.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tokenized {
    /// Fingerprint of the corpus.
    pub corpus: String,
    /// Fingerprint of the tokenizer.
    pub tokenizer: String,
    /// The token behind each document, if any.
    pub end_of_text: Option<u32>,
    /// Identity of the encoder of documents; empty: plain text.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub encoder: String,
    /// File length at which the next file begins.
    pub shard_bytes: u64,
    /// How often documents of the training split come, by their copies; empty: once.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub rehydrate: Vec<[u64; 2]>,
    /// Train and validation.
    pub splits: BTreeMap<Split, TokenSummary>,
    /// The directory held these shards already and nothing was done.
    #[serde(skip)]
    pub reused: bool,
}

/// Identity of a document in the shards: XXH3-128 of its name in the corpus, big-endian.
pub fn document_id(id: &str) -> [u8; 16] {
    xxh3_128(id.as_bytes()).to_be_bytes()
}

/// Encodes the corpus into `out_dir/train/` and `out_dir/validation/`, in files of about `shard_bytes`.
///
/// # Errors
/// A document that the tokenizer cannot encode (only a character tokenizer has such), a damaged corpus, the
/// stop flag, or the disk's refusal. The directory has no `tokens.json` then.
pub fn tokenize_to_shards(
    reader: &CorpusReader,
    tokenizer: &Arc<Tokenizer>,
    out_dir: &Path,
    shard_bytes: u64,
    context: &BuildContext<'_>,
) -> Result<Tokenized> {
    let encoder: Arc<dyn DocumentEncoder> = Arc::new(PlainText(Arc::clone(tokenizer)));
    encode_to_shards(reader, tokenizer, &encoder, out_dir, shard_bytes, context)
}

/// As [`tokenize_to_shards`], of documents that `encoder` encodes with this tokenizer.
///
/// # Errors
/// As [`tokenize_to_shards`]; a document that the encoder refuses, or of which it states scored ranges that are none.
pub fn encode_to_shards(
    reader: &CorpusReader,
    tokenizer: &Tokenizer,
    encoder: &Arc<dyn DocumentEncoder>,
    out_dir: &Path,
    shard_bytes: u64,
    context: &BuildContext<'_>,
) -> Result<Tokenized> {
    let mut wanted = Tokenized {
        corpus: reader.summary().fingerprint.clone(),
        tokenizer: tokenizer.fingerprint(),
        end_of_text: tokenizer.end_of_text(),
        encoder: encoder.identity(),
        shard_bytes,
        rehydrate: reader.summary().rehydrate.clone(),
        ..Tokenized::default()
    };
    let OutputDir { above, name } = OutputDir::create(out_dir)?;
    let dir = above.create_dir(name).map_err(Error::System)?;
    if let Some(found) = finished(&dir, &wanted)? {
        return Ok(Tokenized { reused: true, ..found });
    }
    match dir.remove_file(TOKENS_FILE) {
        Ok(()) => dir.sync().map_err(Error::System)?,
        Err(cause) if cause.kind() == std::io::ErrorKind::NotFound => {}
        Err(cause) => return Err(Error::System(cause)),
    }
    let fingerprint = wanted.tokenizer.parse::<Fingerprint>().map_err(Error::Config)?;
    let vocab_size = u32::try_from(tokenizer.vocab_size()).map_err(|_| {
        Error::Config(format!("vocabulary of {} tokens: ids have 32 bits", tokenizer.vocab_size()))
    })?;

    let (documents, bytes) = (Cell::new(0), Cell::new(0));
    let tick = || {
        (context.progress)(Progress {
            stage: "tokenize",
            documents: documents.get(),
            bytes: bytes.get(),
            total_bytes: reader.summary().kept.bytes,
        });
    };
    for split in Split::ALL {
        let meta = SplitMeta { split: split.name().into(), vocab_size, tokenizer: fingerprint };
        // Validation shows a document once: a loss is of the text, not of how often it was found.
        let table = if split == Split::Train { wanted.rehydrate.clone() } else { Vec::new() };
        let rounds = table.iter().map(|&[_, weight]| weight).max().unwrap_or(1);
        let mut sink = Shards {
            writer: ShardSetWriter::create(out_dir, meta, shard_bytes)?,
            documents: &documents,
            bytes: &bytes,
        };
        let executor = Executor::new(context.threads, context.memory_budget, &dir, context.stop, &tick);
        let components = reader.summary().components.iter().map(|component| Some(component.name.clone()));
        let alone = reader.summary().components.is_empty().then_some(None);
        for component in components.chain(alone) {
            if let Some(name) = &component {
                sink.writer.begin_component(name)?;
            }
            for round in 0..rounds {
                let encode = Encode { encoder: Arc::clone(encoder), table: table.clone(), round };
                let component = component.clone();
                let plan = Plan {
                    source: Arc::new(SplitSource { reader: reader.clone(), split, component }),
                    stages: vec![Stage::FlatMap(Arc::new(encode))],
                };
                executor.run(&plan, &mut sink)?;
            }
        }
        let summary = sink.writer.finish()?;
        let part = TokenSummary {
            documents: summary.documents,
            tokens: summary.tokens,
            scored: Some(summary.scored).filter(|scored| *scored < summary.tokens),
            text_bytes: summary.text_bytes,
            files: summary.files,
            file_bytes: summary.file_bytes,
        };
        wanted.splits.insert(split, part);
    }
    let json = serde_json::to_string_pretty(&wanted)
        .map_err(|cause| Error::Json { path: out_dir.join(TOKENS_FILE), cause })?;
    dir.write(TOKENS_FILE, format!("{json}\n").as_bytes()).map_err(Error::System)?;
    Ok(wanted)
}

/// The shards that are there, if they were made from the same inputs and open without complaint.
fn finished(dir: &ConfinedDir, wanted: &Tokenized) -> Result<Option<Tokenized>> {
    let text = read_replaceable(dir, TOKENS_FILE)?.unwrap_or_default();
    let Ok(found) = serde_json::from_str::<Tokenized>(&text) else { return Ok(None) };
    let same = Tokenized { splits: BTreeMap::new(), ..found.clone() } == *wanted;
    let opens = |split: Split| -> std::result::Result<bool, ShardError> {
        let set = ShardSet::open(dir.path(), split.name())?;
        Ok(found.splits.get(&split).is_some_and(|part| part.tokens == set.token_count()))
    };
    Ok((same && Split::ALL.into_iter().all(|split| opens(split).unwrap_or(false))).then_some(found))
}

/// A split of a corpus, or one component in it, as the source of a plan.
struct SplitSource {
    reader: CorpusReader,
    split: Split,
    component: Option<String>,
}

impl Source for SplitSource {
    fn describe(&self) -> String {
        let of = self.component.as_ref().map(|name| format!(" of {name}")).unwrap_or_default();
        format!("{} documents{of} of {}", self.split.name(), self.reader.folder().display())
    }

    fn scan(&self) -> bessemer_dataflow::Result<Box<dyn Scan>> {
        Ok(Box::new(SplitScan(self.reader.series_batches(self.split, self.component.as_deref()))))
    }
}

struct SplitScan(Batches);

impl Scan for SplitScan {
    fn next(&mut self) -> bessemer_dataflow::Result<Option<Morsel>> {
        Ok(self.0.next().transpose()?.map(morsel))
    }
}

/// Encodes the texts of a batch: columns id, bytes (of the text), tokens (u32, little-endian) and scored (starts and ends of ranges, u32,
/// little-endian; null if all tokens are). Leaves out the documents that do not come in this round.
struct Encode {
    encoder: Arc<dyn DocumentEncoder>,
    /// How often documents come, by their copies.
    table: Vec<[u64; 2]>,
    /// Counted from 0.
    round: u64,
}

impl FlatMap for Encode {
    fn name(&self) -> &str {
        "encode"
    }

    fn apply(&self, batch: RecordBatch) -> bessemer_dataflow::Result<RecordBatch> {
        let ids: &StringArray = column(self.name(), &batch, "id")?;
        let texts: &StringArray = column(self.name(), &batch, "text")?;
        let copies: Option<&UInt64Array> = match batch.column_by_name("copies") {
            Some(_) => Some(column(self.name(), &batch, "copies")?),
            None => None,
        };
        let mut kept = StringBuilder::new();
        let mut tokens = BinaryBuilder::with_capacity(batch.num_rows(), texts.value_data().len());
        let mut bytes = Vec::with_capacity(batch.num_rows());
        let mut scored = BinaryBuilder::new();
        let mut encoded = Vec::new();
        for index in 0..batch.num_rows() {
            if repeats(&self.table, copies.map_or(1, |copies| copies.value(index))) <= self.round {
                continue;
            }
            let wrong = |cause: String| Error::Tokenize { id: ids.value(index).into(), cause };
            for document in self.encoder.encode(texts.value(index)).map_err(wrong)? {
                encoded.clear();
                encoded.extend(document.tokens.iter().flat_map(|token| token.to_le_bytes()));
                tokens.append_value(&encoded);
                match &document.scored {
                    Some(ranges) => {
                        encoded.clear();
                        for end in ranges.iter().flat_map(|range| [range.start, range.end]) {
                            let end = u32::try_from(end).map_err(|_| {
                                wrong(format!("wanted scored ranges below token 2^32, found {end}"))
                            })?;
                            encoded.extend(end.to_le_bytes());
                        }
                        scored.append_value(&encoded);
                    }
                    None => scored.append_null(),
                }
                kept.append_value(ids.value(index));
                bytes.push(document.text_bytes);
            }
        }
        let schema = Schema::new(vec![
            Field::new("id", DataType::Utf8, false),
            Field::new("bytes", DataType::UInt64, false),
            Field::new("tokens", DataType::Binary, false),
            Field::new("scored", DataType::Binary, true),
        ]);
        let columns: Vec<arrow_array::ArrayRef> = vec![
            Arc::new(kept.finish()),
            Arc::new(UInt64Array::from(bytes)),
            Arc::new(tokens.finish()),
            Arc::new(scored.finish()),
        ];
        Ok(RecordBatch::try_new(Arc::new(schema), columns)?)
    }
}

/// Writes shards.
struct Shards<'a> {
    writer: ShardSetWriter,
    documents: &'a Cell<u64>,
    bytes: &'a Cell<u64>,
}

impl Sink for Shards<'_> {
    fn write(&mut self, batch: &RecordBatch) -> bessemer_dataflow::Result<()> {
        let ids: &StringArray = column("shards", batch, "id")?;
        let bytes: &UInt64Array = column("shards", batch, "bytes")?;
        let tokens: &BinaryArray = column("shards", batch, "tokens")?;
        let scored: &BinaryArray = column("shards", batch, "scored")?;
        let (mut document, mut ranges) = (Vec::new(), Vec::new());
        for index in 0..batch.num_rows() {
            document.clear();
            document.extend(words(tokens.value(index)));
            ranges.clear();
            match scored.is_valid(index) {
                true => {
                    let mut ends = words(scored.value(index)).map(|end| end as usize);
                    ranges.extend(std::iter::from_fn(|| Some(ends.next()?..ends.next()?)));
                }
                false => ranges.push(0..document.len()),
            }
            self.writer
                .push_scored(document_id(ids.value(index)), bytes.value(index), &document, &ranges)
                .map_err(Error::Shard)?;
            self.documents.set(self.documents.get() + 1);
            self.bytes.set(self.bytes.get() + bytes.value(index));
        }
        Ok(())
    }
}

/// Numbers of a column of bytes.
fn words(bytes: &[u8]) -> impl Iterator<Item = u32> {
    bytes.chunks_exact(4).map(|word| u32::from_le_bytes([word[0], word[1], word[2], word[3]]))
}
