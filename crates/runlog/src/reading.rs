//! Reading `metrics.jsonl`.

use crate::record::{FORMAT, LONGEST_LINE, VERSION};
use crate::{FILE, Record, RunLogError};
use bessemer_durable::{AsDir, ConfinedDir};
use serde_json::{Map, Value};
use std::io::{BufRead, BufReader, Read, Seek, SeekFrom};
use std::path::Path;

/// The last line of a log that a crash cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TornLine {
    /// Number of the line, from 1.
    pub line: u64,
    /// Offset in the file at which it begins.
    pub offset: u64,
    /// Its length in bytes.
    pub bytes: u64,
}

/// A line before the last one that is no record: somebody edited the file, or the disk changed it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DamagedLine {
    /// Number of the line, from 1.
    pub line: u64,
    /// Fault.
    pub what: String,
}

/// The content of a log.
#[derive(Debug, Clone, PartialEq)]
pub struct Log {
    /// The records in file order, without the first line that names the format.
    pub records: Vec<Record>,
    /// The last line, if a crash cut it. It is not among the records.
    pub torn: Option<TornLine>,
    /// Lines within the log that are no records. They are not among the records.
    pub damaged: Vec<DamagedLine>,
}

/// Reads the log of a run folder.
///
/// A last line that is cut is passed over and reported, and so is a damaged line before it: one line is not worth the
/// others. Kinds that are not known become [`Record::Other`], fields that are not known are passed over.
///
/// # Errors
/// [`RunLogError::Foreign`], [`RunLogError::Version`].
pub fn read(dir: impl AsDir) -> Result<Log, RunLogError> {
    let dir = opened(&dir)?;
    let mut log = Log { records: Vec::new(), torn: None, damaged: Vec::new() };
    log.torn = walk(&dir, |line| {
        if line.number > 1 {
            match line.object.and_then(Record::from_object) {
                Ok(record) => log.records.push(record),
                Err(what) => log.damaged.push(DamagedLine { line: line.number, what }),
            }
        }
        Ok(())
    })?;
    Ok(log)
}

/// Reads the records in the last `bytes` of a log, which may be long and may be written at this moment. Lines that are no records
/// are passed over.
///
/// # Errors
/// A log that is not there or cannot be read.
pub fn read_tail(dir: impl AsDir, bytes: u64) -> Result<Vec<Record>, RunLogError> {
    let dir = opened(&dir)?;
    let path = dir.path().join(FILE);
    let io = |e| RunLogError::io(&path, "read", e);
    let mut file = dir.open_file(FILE).map_err(io)?;
    let length = file.metadata().map_err(io)?.len();
    file.seek(SeekFrom::Start(length.saturating_sub(bytes))).map_err(io)?;
    let mut text = Vec::new();
    file.take(bytes).read_to_end(&mut text).map_err(io)?;
    let lines = text.split_inclusive(|b| *b == b'\n');
    Ok(lines.filter_map(|line| Record::from_object(parse(line).ok()?).ok()).collect())
}

pub(crate) fn opened(dir: &impl AsDir) -> Result<ConfinedDir, RunLogError> {
    dir.as_dir().map_err(RunLogError::Folder)
}

/// A line of a log.
pub(crate) struct Line<'a> {
    /// From 1.
    pub(crate) number: u64,
    /// As it stands in the file, with its line feed unless it is the last and has none.
    pub(crate) raw: &'a [u8],
    /// The JSON object that it holds, or what is wrong with it.
    pub(crate) object: Result<Map<String, Value>, String>,
}

/// Hands every line of a log to `visit`, one at a time, damaged ones too, and returns the torn last line. The first line has been
/// checked to be that of a log of this version.
pub(crate) fn walk(
    dir: &ConfinedDir,
    mut visit: impl FnMut(Line<'_>) -> Result<(), RunLogError>,
) -> Result<Option<TornLine>, RunLogError> {
    let path = &dir.path().join(FILE);
    let io = |e| RunLogError::io(path, "read", e);
    let file = dir.open_file(FILE).map_err(|e| RunLogError::io(path, "open", e))?;
    let mut reader = BufReader::with_capacity(1 << 16, file);
    let (mut raw, mut number, mut offset) = (Vec::new(), 0, 0u64);
    loop {
        raw.clear();
        number += 1;
        let bytes =
            reader.by_ref().take(LONGEST_LINE as u64 + 2).read_until(b'\n', &mut raw).map_err(io)? as u64;
        if bytes == 0 {
            return Ok(None);
        }
        let parsed = parse(&raw);
        let last = reader.fill_buf().map_err(io)?.is_empty();
        match &parsed {
            Err(_) if last && (number > 1 || begins_like_a_log(&raw)) => {
                return Ok(Some(TornLine { line: number, offset, bytes }));
            }
            Err(_) if number == 1 => return Err(foreign(path, &raw)),
            Ok(object) if number == 1 => check_first(path, &raw, object)?,
            _ => {}
        }
        visit(Line { number, raw: &raw, object: parsed })?;
        offset += bytes;
    }
}

fn parse(raw: &[u8]) -> Result<Map<String, Value>, String> {
    let text = raw.strip_suffix(b"\n").unwrap_or(raw);
    if text.len() > LONGEST_LINE {
        return Err(format!("longer than {LONGEST_LINE} bytes"));
    }
    match serde_json::from_slice(text) {
        Ok(Value::Object(object)) => Ok(object),
        Ok(_) => Err("wanted a JSON object".into()),
        Err(e) => Err(e.to_string()),
    }
}

/// The line that begins every log of this version.
pub(crate) fn first_line() -> String {
    format!("{{\"kind\":\"log\",\"format\":\"{FORMAT}\",\"version\":{VERSION}}}\n")
}

/// Whether a cut first line could be that of a log, so that a crash at the very beginning is distinguished from a file
/// that never was one.
fn begins_like_a_log(raw: &[u8]) -> bool {
    first_line().as_bytes().starts_with(raw)
}

fn check_first(path: &Path, raw: &[u8], object: &Map<String, Value>) -> Result<(), RunLogError> {
    let text = |key| object.get(key).and_then(Value::as_str);
    if text("kind") != Some("log") || text("format") != Some(FORMAT) {
        return Err(foreign(path, raw));
    }
    match object.get("version") {
        Some(version) if version.as_u64() == Some(VERSION) => Ok(()),
        version => Err(RunLogError::Version {
            path: path.to_owned(),
            wanted: VERSION,
            found: version.map_or("none".into(), Value::to_string),
        }),
    }
}

fn foreign(path: &Path, raw: &[u8]) -> RunLogError {
    let begin = &raw[..raw.len().min(80)];
    RunLogError::Foreign { path: path.to_owned(), found: format!("{:?}", String::from_utf8_lossy(begin)) }
}
