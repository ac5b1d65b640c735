//! JSON lines, plain or compressed: one object a line, one of its fields is the text, or the turns of a chat. Arrays of objects
//! and tables are read as the lines that they would be (`row_lines`).
//!
//! The sequential part decompresses and cuts runs of whole lines; parsing happens in the morsels. A line that is
//! no JSON object, or has no text, becomes a dropped row that names its line; `NaN` and lone surrogates are
//! repaired first ([`repair_json`]). A line longer than the limit is skipped without being held. A compressed file that ends early,
//! is damaged or is a decompression bomb gives the lines before that place and one dropped row that names it; reading continues
//! with the next file.

use super::files::{ByFile, FileSource};
use super::folder::FileEntry;
use super::json_line::{Parsed, parse};
use super::location::SourceLocation;
use super::{FieldNames, MORSEL_BYTES, compressed, repair_json, row_lines};
use crate::error::{Error, Result};
use arrow_array::RecordBatch;
use bessemer_documents::{HEAD_BYTES, Origin, RowBuilder};
use std::borrow::Cow;
use std::io::{BufRead, Read};
use std::sync::Arc;

/// Endings of the files that are read from a folder, before that of a compressed file.
const ENDINGS: &[&str] = &[".jsonl", ".ndjson"];

/// Whether a file name is that of JSON lines.
pub(crate) fn is_jsonl(name: &str) -> bool {
    let lower = compressed::inner_name(name).to_ascii_lowercase();
    ENDINGS.iter().any(|ending| lower.ends_with(ending))
}

/// How lines become rows.
#[derive(Clone)]
pub(super) struct Jsonl {
    fields: Arc<FieldNames>,
    max_line: usize,
}

/// Opens the files and checks that the first object of each has the field; in an object store that of the first file.
pub(super) fn open(
    place: &SourceLocation<'_>,
    fields: FieldNames,
    max_bytes: u64,
) -> Result<FileSource<Jsonl>> {
    let (mut files, mut listing) = place.find("jsonl", is_jsonl)?;
    // Other files beside JSON lines are often about them.
    if files.is_empty() {
        (files, listing) = place.find("jsonl", row_lines::holds_rows)?;
    }
    listing.entries.push(format!("field {}", fields.text));
    // JSON escapes take up to six bytes for one, and other fields take their share.
    let max_line = (max_bytes as usize).saturating_mul(8).clamp(16 << 20, 512 << 20);
    // Each row of chats is checked by itself.
    let checked = if fields.chats.is_some() { 0 } else { place.checked() };
    for file in files.iter().take(checked) {
        check_field(file, &fields, max_line)?;
    }
    Ok(FileSource::new(place, files, listing, Jsonl { fields: Arc::new(fields), max_line }))
}

/// Refuses a file whose first object lacks the field, naming those it has.
fn check_field(file: &FileEntry, fields: &FieldNames, max_line: usize) -> Result<()> {
    let Ok(mut reader) = row_lines::open(file, &fields.text, max_line as u64) else { return Ok(()) };
    let mut line = Vec::new();
    for number in 1..=100 {
        line.clear();
        match reader.by_ref().take(max_line as u64).read_until(b'\n', &mut line) {
            Ok(0) | Err(_) => return file.reached(),
            Ok(_) => {}
        }
        let repaired = repair_json(&line);
        let parsed = parse(&repaired, fields);
        if row_lines::holds_rows(&file.relative)
            && let Err(error) = &parsed
            && !line.trim_ascii().is_empty()
        {
            return Err(Error::Source {
                path: file.path.clone(),
                problem: format!("holds neither a list of objects nor an object a line: {error}"),
                hint:
                    "take the list out of the object that it is in, with: jq -c '.NAME[]' FILE > FILE.jsonl"
                        .into(),
            });
        }
        if let Ok(Parsed { text: None, chat: None, names, .. }) = parsed {
            return Err(Error::NoTextColumn {
                place: format!("{}:{number}", file.path.display()),
                what: "field",
                wanted: fields.text.clone(),
                found: names.join(", "),
            });
        }
        if line.iter().any(|byte| !byte.is_ascii_whitespace()) {
            return Ok(());
        }
    }
    Ok(())
}

/// An open file.
pub(super) struct Lines {
    reader: Box<dyn BufRead + Send>,
    /// Lines read so far.
    line: u64,
}

/// A run of lines of one file.
#[derive(Default)]
pub(super) struct Chunk {
    bytes: Vec<u8>,
    /// (line number, end in `bytes`, bytes of the line in the file)
    lines: Vec<(u64, usize, u64)>,
    /// The fault that ends the file, with the line at which it struck.
    fault: Option<(u64, &'static str, String)>,
}

impl ByFile for Jsonl {
    const FILES: &'static str = "JSON-lines files";
    type Reader = Lines;
    type Chunk = Chunk;

    fn open(&self, file: &FileEntry) -> std::result::Result<Lines, Chunk> {
        let fault =
            |error: Error| Chunk { fault: Some((1, "unreadable", error.to_string())), ..Chunk::default() };
        row_lines::open(file, &self.fields.text, self.max_line as u64)
            .map(|reader| Lines { reader, line: 0 })
            .map_err(fault)
    }

    fn next(&self, _: &FileEntry, lines: &mut Lines) -> (Option<Chunk>, bool) {
        let mut chunk = Chunk::default();
        let Lines { reader, line } = lines;
        let limit = self.max_line as u64;
        while chunk.bytes.len() < MORSEL_BYTES {
            let start = chunk.bytes.len();
            match reader.by_ref().take(limit).read_until(b'\n', &mut chunk.bytes) {
                Ok(0) => break,
                Ok(read) => {
                    *line += 1;
                    let mut length = read as u64;
                    if length == limit && chunk.bytes.last() != Some(&b'\n') {
                        // Too long to hold: keep the head, pass over the rest.
                        chunk.bytes.truncate(start + HEAD_BYTES);
                        match skip_line(reader) {
                            Ok(skipped) => length += skipped,
                            Err(cause) => {
                                chunk.fault =
                                    Some((*line, compressed::fault_reason(&cause), cause.to_string()));
                                break;
                            }
                        }
                    }
                    chunk.lines.push((*line, chunk.bytes.len(), length));
                }
                Err(cause) => {
                    // The line in which it broke is incomplete.
                    chunk.bytes.truncate(start);
                    chunk.fault = Some((*line + 1, compressed::fault_reason(&cause), cause.to_string()));
                    break;
                }
            }
        }
        let has_ended = chunk.fault.is_some() || chunk.lines.is_empty();
        let is_some = chunk.fault.is_some() || !chunk.lines.is_empty();
        (is_some.then_some(chunk), has_ended)
    }

    fn rows(&self, file: &FileEntry, ordinal: usize, chunk: Chunk) -> bessemer_dataflow::Result<RecordBatch> {
        rows(file, ordinal, &chunk, self)
    }
}

/// Reads to the end of the line without holding it; returns its bytes.
pub(super) fn skip_line(reader: &mut dyn BufRead) -> std::io::Result<u64> {
    let mut skipped = 0;
    loop {
        let block = reader.fill_buf()?;
        if block.is_empty() {
            return Ok(skipped);
        }
        let (used, ended) = match block.iter().position(|&byte| byte == b'\n') {
            Some(position) => (position + 1, true),
            None => (block.len(), false),
        };
        reader.consume(used);
        skipped += used as u64;
        if ended {
            return Ok(skipped);
        }
    }
}

/// Parses the lines of a chunk.
fn rows(
    file: &FileEntry,
    ordinal: usize,
    chunk: &Chunk,
    Jsonl { fields, max_line: limit }: &Jsonl,
) -> bessemer_dataflow::Result<RecordBatch> {
    let name = &file.relative;
    let mut rows = RowBuilder::with_capacity(chunk.lines.len(), chunk.bytes.len());
    let mut start = 0;
    for &(number, end, length) in &chunk.lines {
        let line = &chunk.bytes[start..end];
        start = end;
        if length == line.len() as u64 && line.iter().all(u8::is_ascii_whitespace) {
            continue;
        }
        let id = format!("{name}#{number}");
        let mut origin = Origin { bytes: length, ..file.origin(ordinal, number, &id) };
        if length > line.len() as u64 {
            rows.refuse(
                &origin,
                "long-json-line",
                &format!("{name}:{number}: {length} bytes, at most {limit}"),
                line,
            );
            continue;
        }
        if let Some(chats) = fields.chats {
            match chats.text_of_row(line) {
                Ok(text) => {
                    origin.bytes = text.len() as u64;
                    rows.push(&origin, text.as_bytes());
                }
                Err(problem) => {
                    rows.refuse(&origin, "bad-chat", &format!("{name}:{number}: {problem}"), line);
                }
            }
            continue;
        }
        let repaired;
        let mut parsed = parse(line, fields);
        if parsed.is_err() {
            repaired = repair_json(line);
            if matches!(repaired, Cow::Owned(_)) {
                parsed = parse(&repaired, fields);
            }
        }
        let parsed = parsed.map(|parsed| match (parsed.text, parsed.chat) {
            (None, Some(Ok(chat))) => Parsed { text: Some(Cow::Owned(chat)), chat: None, ..parsed },
            (text, chat) => Parsed { text, chat, ..parsed },
        });
        match parsed {
            Ok(Parsed { text: Some(text), url, date, metadata, embedding, .. }) => {
                let metadata = fields.metadata.of_fields(&metadata);
                origin.metadata = metadata.as_deref();
                origin.embedding = embedding.as_deref();
                origin.bytes = text.len() as u64;
                (origin.url, origin.fetched) = (url.as_deref(), date.as_deref());
                rows.push(&origin, text.as_bytes());
            }
            Ok(Parsed { chat: Some(Err(problem)), .. }) => {
                rows.refuse(&origin, "bad-dialogue", &format!("{name}:{number}: {problem}"), line);
            }
            Ok(Parsed { names, .. }) => {
                let field = &fields.text;
                let detail = format!("{name}:{number}: no text in {field:?}; fields: {}", names.join(", "));
                rows.refuse(&origin, "no-text-field", &detail, line);
            }
            Err(error) => rows.refuse(&origin, "bad-json", &format!("{name}:{number}: {error}"), line),
        }
    }
    if let Some((number, reason, problem)) = &chunk.fault {
        let id = format!("{name}#{number}");
        let detail = format!("{name}:{number}: {problem}; the lines before it are kept");
        rows.refuse(&file.origin(ordinal, *number, &id), reason, &detail, &[]);
    }
    rows.finish()
}
