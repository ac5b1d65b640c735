//! JSON lines, plain or compressed: one object a line, one of its fields is the text.
//!
//! The sequential part decompresses and cuts runs of whole lines; parsing happens in the morsels. A line that is
//! no JSON object, or has no text, becomes a dropped row that names its line; `NaN` and lone surrogates are
//! repaired first ([`repair_json`]). A line longer than the limit is
//! passed over without being held. A compressed file that ends early, is damaged or unpacks beyond measure gives the lines
//! before that place and one dropped row that says where it broke; the run goes on with the next file.

use super::folder::FileEntry;
use super::place::Place;
use super::{FieldNames, Listing, MORSEL_BYTES, Source, compressed, repair_json};
use crate::error::{Error, Result};
use bessemer_dataflow::{Morsel, Scan};
use bessemer_documents::{HEAD_BYTES, Origin, RowBuilder};
use serde::de::{DeserializeSeed, IgnoredAny, MapAccess, Visitor};
use serde_json::{Map, Value as Json};
use std::borrow::Cow;
use std::io::{BufRead, Read};
use std::ops::Range;
use std::sync::Arc;

/// Endings of the files that are read from a folder, before that of a compressed file.
const ENDINGS: &[&str] = &[".jsonl", ".ndjson"];

/// Whether a file name is that of JSON lines.
pub(crate) fn is_jsonl(name: &str) -> bool {
    let lower = compressed::inner_name(name).to_ascii_lowercase();
    ENDINGS.iter().any(|ending| lower.ends_with(ending))
}

pub(crate) struct Jsonl {
    root: String,
    fields: Arc<FieldNames>,
    files: Arc<Vec<FileEntry>>,
    listing: Listing,
    max_line: usize,
}

/// Opens the files and checks that the first object of each has the field; in an object store that of the first file.
pub(crate) fn open(place: &Place<'_>, fields: FieldNames, max_bytes: u64) -> Result<Jsonl> {
    let (files, mut listing) = place.find("jsonl", is_jsonl)?;
    listing.entries.push(format!("field {}", fields.text));
    // JSON escapes take up to six bytes for one, and other fields take their share.
    let max_line = (max_bytes as usize).saturating_mul(8).clamp(16 << 20, 512 << 20);
    for file in files.iter().take(place.checked()) {
        check_field(file, &fields, max_line)?;
    }
    let root = place.path.display().to_string();
    Ok(Jsonl { root, fields: Arc::new(fields), files: Arc::new(files), listing, max_line })
}

/// Refuses a file whose first object lacks the field, naming those it has.
fn check_field(file: &FileEntry, fields: &FieldNames, max_line: usize) -> Result<()> {
    let Ok(mut reader) = compressed::open(file) else { return Ok(()) };
    let mut line = Vec::new();
    for number in 1..=100 {
        line.clear();
        match reader.by_ref().take(max_line as u64).read_until(b'\n', &mut line) {
            Ok(0) | Err(_) => return file.reached(),
            Ok(_) => {}
        }
        if let Ok(Parsed { text: None, names, .. }) = parse(&repair_json(&line), fields) {
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

/// What a line holds.
struct Parsed<'a> {
    text: Option<Cow<'a, str>>,
    url: Option<Cow<'a, str>>,
    date: Option<Cow<'a, str>>,
    /// Fields that may hold metadata that predicates read.
    metadata: Map<String, Json>,
    /// Embedding, as little-endian 32-bit floats.
    embedding: Option<Vec<u8>>,
    /// Names of the fields, kept only until the text is found.
    names: Vec<String>,
}

fn parse<'a>(line: &'a [u8], fields: &FieldNames) -> serde_json::Result<Parsed<'a>> {
    let mut reader = serde_json::Deserializer::from_slice(line);
    let parsed = Object { fields }.deserialize(&mut reader)?;
    reader.end()?;
    Ok(parsed)
}

/// A list of numbers as little-endian 32-bit floats; none for anything else.
fn floats(value: &Json) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    for number in value.as_array()? {
        bytes.extend((number.as_f64()? as f32).to_le_bytes());
    }
    Some(bytes)
}

struct Object<'f> {
    fields: &'f FieldNames,
}

impl<'de> DeserializeSeed<'de> for Object<'_> {
    type Value = Parsed<'de>;
    fn deserialize<D: serde::Deserializer<'de>>(
        self,
        reader: D,
    ) -> std::result::Result<Self::Value, D::Error> {
        reader.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for Object<'_> {
    type Value = Parsed<'de>;

    fn expecting(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "a JSON object with a text field {:?}", self.fields.text)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> std::result::Result<Self::Value, A::Error> {
        let mut parsed = Parsed {
            text: None,
            url: None,
            date: None,
            metadata: Map::new(),
            embedding: None,
            names: Vec::new(),
        };
        while let Some(name) = map.next_key::<Text<'de>>()? {
            if name.0 == self.fields.text {
                parsed.text = map.next_value::<Option<Text<'de>>>()?.map(|text| text.0);
                continue;
            }
            if !self.fields.embedding.is_empty() && name.0 == self.fields.embedding {
                parsed.embedding = floats(&map.next_value::<Json>()?);
                continue;
            }
            let held = [(&self.fields.url, &mut parsed.url), (&self.fields.date, &mut parsed.date)];
            let held = held.into_iter().find(|(field, _)| !field.is_empty() && name.0 == **field);
            if self.fields.metadata.reads(&name.0) {
                let value = map.next_value::<Json>()?;
                if let Some((_, text)) = held {
                    *text = value.as_str().map(|text| Cow::Owned(text.to_owned()));
                }
                parsed.metadata.insert(name.0.clone().into_owned(), value);
            } else if let Some((_, text)) = held {
                *text = map.next_value::<Perhaps<'de>>()?.0;
            } else {
                map.next_value::<IgnoredAny>()?;
            }
            if parsed.names.len() < 32 {
                parsed.names.push(name.0.into_owned());
            }
        }
        Ok(parsed)
    }
}

/// A string that borrows where it has no escapes.
#[derive(serde::Deserialize)]
struct Text<'a>(#[serde(borrow)] Cow<'a, str>);

/// A string, or nothing where the value is of another kind.
struct Perhaps<'a>(Option<Cow<'a, str>>);

impl<'de> serde::Deserialize<'de> for Perhaps<'de> {
    fn deserialize<D: serde::Deserializer<'de>>(reader: D) -> std::result::Result<Self, D::Error> {
        reader.deserialize_any(PerhapsVisitor)
    }
}

struct PerhapsVisitor;

impl<'de> Visitor<'de> for PerhapsVisitor {
    type Value = Perhaps<'de>;

    fn expecting(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "any value")
    }

    fn visit_borrowed_str<E>(self, text: &'de str) -> std::result::Result<Self::Value, E> {
        Ok(Perhaps(Some(Cow::Borrowed(text))))
    }

    fn visit_str<E>(self, text: &str) -> std::result::Result<Self::Value, E> {
        Ok(Perhaps(Some(Cow::Owned(text.to_string()))))
    }

    fn visit_bool<E>(self, _: bool) -> std::result::Result<Self::Value, E> {
        Ok(Perhaps(None))
    }

    fn visit_i64<E>(self, _: i64) -> std::result::Result<Self::Value, E> {
        Ok(Perhaps(None))
    }

    fn visit_u64<E>(self, _: u64) -> std::result::Result<Self::Value, E> {
        Ok(Perhaps(None))
    }

    fn visit_f64<E>(self, _: f64) -> std::result::Result<Self::Value, E> {
        Ok(Perhaps(None))
    }

    fn visit_unit<E>(self) -> std::result::Result<Self::Value, E> {
        Ok(Perhaps(None))
    }

    fn visit_seq<A: serde::de::SeqAccess<'de>>(
        self,
        mut list: A,
    ) -> std::result::Result<Self::Value, A::Error> {
        while list.next_element::<IgnoredAny>()?.is_some() {}
        Ok(Perhaps(None))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> std::result::Result<Self::Value, A::Error> {
        while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
        Ok(Perhaps(None))
    }
}

impl bessemer_dataflow::Source for Jsonl {
    fn describe(&self) -> String {
        format!("{} JSON-lines files in {}", self.files.len(), self.root)
    }

    fn scan(&self) -> bessemer_dataflow::Result<Box<dyn Scan>> {
        self.scan_files(0..self.files.len())
    }
}

impl Source for Jsonl {
    fn listing(&self) -> &Listing {
        &self.listing
    }

    fn file_bytes(&self) -> Vec<u64> {
        self.files.iter().map(|file| file.bytes).collect()
    }

    fn scan_files(&self, files: Range<usize>) -> bessemer_dataflow::Result<Box<dyn Scan>> {
        Ok(Box::new(JsonlScan {
            files: self.files.clone(),
            fields: self.fields.clone(),
            max_line: self.max_line,
            file: files.start,
            end: files.end,
            reader: None,
            line: 0,
        }))
    }
}

struct JsonlScan {
    files: Arc<Vec<FileEntry>>,
    fields: Arc<FieldNames>,
    max_line: usize,
    /// Ordinal of the file being read.
    file: usize,
    /// Where the run of files ends.
    end: usize,
    reader: Option<Box<dyn BufRead + Send>>,
    /// Lines of it read so far.
    line: u64,
}

/// A run of lines of one file.
#[derive(Default)]
struct Chunk {
    bytes: Vec<u8>,
    /// (line number, end in `bytes`, bytes of the line in the file)
    lines: Vec<(u64, usize, u64)>,
    /// The fault that ends the file, with the line at which it struck.
    fault: Option<(u64, &'static str, String)>,
}

impl JsonlScan {
    /// Reads a chunk; none at the end of the file.
    fn chunk(&mut self) -> Option<Chunk> {
        let mut chunk = Chunk::default();
        if self.reader.is_none() {
            match compressed::open(&self.files[self.file]) {
                Ok(reader) => self.reader = Some(reader),
                Err(error) => {
                    chunk.fault = Some((self.line + 1, "unreadable", error.to_string()));
                    return Some(chunk);
                }
            }
        }
        let reader = self.reader.as_mut()?;
        while chunk.bytes.len() < MORSEL_BYTES {
            let start = chunk.bytes.len();
            let limit = self.max_line as u64;
            match reader.by_ref().take(limit).read_until(b'\n', &mut chunk.bytes) {
                Ok(0) => break,
                Ok(read) => {
                    self.line += 1;
                    let mut length = read as u64;
                    if length == limit && chunk.bytes.last() != Some(&b'\n') {
                        // Too long to hold: keep the head, pass over the rest.
                        chunk.bytes.truncate(start + HEAD_BYTES);
                        match skip_line(reader) {
                            Ok(skipped) => length += skipped,
                            Err(cause) => {
                                chunk.fault = Some((self.line, broken(&cause), cause.to_string()));
                                break;
                            }
                        }
                    }
                    chunk.lines.push((self.line, chunk.bytes.len(), length));
                }
                Err(cause) => {
                    // The line in which it broke is incomplete.
                    chunk.bytes.truncate(start);
                    chunk.fault = Some((self.line + 1, broken(&cause), cause.to_string()));
                    break;
                }
            }
        }
        (!chunk.lines.is_empty() || chunk.fault.is_some()).then_some(chunk)
    }
}

/// The reason of the row that stands for what could not be read.
fn broken(cause: &std::io::Error) -> &'static str {
    if compressed::is_bomb(cause) { "decompression-bomb" } else { "truncated-input" }
}

/// Reads to the end of the line without holding it; returns its bytes.
fn skip_line(reader: &mut dyn BufRead) -> std::io::Result<u64> {
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

impl Scan for JsonlScan {
    fn next(&mut self) -> bessemer_dataflow::Result<Option<Morsel>> {
        while self.file < self.end {
            let ordinal = self.file;
            let Some(chunk) = self.chunk() else {
                (self.file, self.reader, self.line) = (self.file + 1, None, 0);
                continue;
            };
            if chunk.fault.is_some() {
                self.files[ordinal].reached()?;
                (self.file, self.reader, self.line) = (self.file + 1, None, 0);
            }
            let (files, fields, limit) = (self.files.clone(), self.fields.clone(), self.max_line);
            return Ok(Some(Box::new(move || rows(&files[ordinal], ordinal as u32, &chunk, &fields, limit))));
        }
        Ok(None)
    }
}

/// Parses the lines of a chunk.
fn rows(
    file: &FileEntry,
    ordinal: u32,
    chunk: &Chunk,
    fields: &FieldNames,
    limit: usize,
) -> bessemer_dataflow::Result<arrow_array::RecordBatch> {
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
        let mut origin = Origin {
            file: ordinal,
            row: number,
            id: &id,
            source: name,
            path: name,
            bytes: length,
            ..Origin::default()
        };
        if length > line.len() as u64 {
            rows.refuse(
                &origin,
                "long-json-line",
                &format!("{name}:{number}: {length} bytes, at most {limit}"),
                line,
            );
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
        match parsed {
            Ok(Parsed { text: Some(text), url, date, metadata, embedding, .. }) => {
                let metadata = fields.metadata.of_fields(&metadata);
                origin.metadata = metadata.as_deref();
                origin.embedding = embedding.as_deref();
                origin.bytes = text.len() as u64;
                (origin.url, origin.fetched) = (url.as_deref(), date.as_deref());
                rows.push(&origin, text.as_bytes());
            }
            Ok(Parsed { text: None, names, .. }) => {
                let field = &fields.text;
                let detail = format!("{name}:{number}: no text in {field:?}; fields: {}", names.join(", "));
                rows.refuse(&origin, "no-text-field", &detail, line);
            }
            Err(error) => rows.refuse(&origin, "bad-json", &format!("{name}:{number}: {error}"), line),
        }
    }
    if let Some((number, reason, problem)) = &chunk.fault {
        let id = format!("{name}#{number}");
        let origin = Origin {
            file: ordinal,
            row: *number,
            id: &id,
            source: name,
            path: name,
            bytes: 0,
            ..Origin::default()
        };
        let detail = format!("{name}:{number}: {problem}; the lines before it are kept");
        rows.refuse(&origin, reason, &detail, &[]);
    }
    rows.finish()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::MetadataColumns;

    #[test]
    fn the_text_is_found_and_unescaped_and_other_fields_are_passed_over() {
        let fields = FieldNames {
            text: "text".into(),
            url: "url".into(),
            date: String::new(),
            metadata: MetadataColumns::default(),
            embedding: String::new(),
        };
        let text =
            |line: &str| parse(line.as_bytes(), &fields).map(|parsed| parsed.text.map(Cow::into_owned));
        let url = |line: &str| parse(line.as_bytes(), &fields).map(|parsed| parsed.url.map(Cow::into_owned));
        assert_eq!(url(r#"{"text": "a", "url": "http:\/\/b"}"#).unwrap(), Some("http://b".into()));
        for other in ["null", "3", "-3", "0.5", "true", "[1, {}]", "{\"a\": []}"] {
            assert_eq!(url(&format!(r#"{{"url": {other}, "text": "a"}}"#)).unwrap(), None, "{other}");
        }
        assert_eq!(text(r#"{"id": [1, {"text": 2}], "text": "a\né"}"#).unwrap(), Some("a\né".into()));
        assert_eq!(text(r#"{"text": null}"#).unwrap(), None);
        assert_eq!(text(r#"{"\u0074ext": "x"}"#).unwrap(), Some("x".into()));
        assert!(text(r#"{"text": 3}"#).is_err());
        assert!(text(r#"{"text": "a"} x"#).is_err());
        assert!(text("[1]").is_err());
        assert!(text(&"[".repeat(100_000)).is_err());
        assert!(text(&format!(r#"{{"a": {}"#, "[".repeat(100_000))).is_err());
    }
}
