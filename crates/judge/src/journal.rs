//! The file of a study: a journal of JSON lines, which README.md specifies.
//!
//! A line is appended under a lock on the file, and is on the disk before the call returns. A line feed ends it, so that a
//! crash can cut only the last one. Readers take no lock: they read the lines that were added since they last looked.

use crate::JudgeError;
use crate::study::{Question, Study};
use bessemer_durable::{ConfinedDir, FileLock, NewFile, failure_text, parent};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, Instant};
use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

/// Name of the format, in the first line.
const FORMAT: &str = "bessemer-judge";
/// Version of the format; a database of SQLite was version 1. It grows only when an older program could not read the file.
const VERSION: u32 = 2;
/// Longest line, bytes.
const LONGEST_LINE: usize = 256 << 20;
/// Wait for another program that appends.
const BUSY: Duration = Duration::from_secs(5);
/// Time between two attempts to lock the file.
const RETRY: Duration = Duration::from_millis(5);
/// First bytes of every study.
const BEGIN: &[u8] = b"{\"kind\":\"study\"";
/// First bytes of every database of SQLite.
const SQLITE: &[u8] = b"SQLite format 3\0";
/// Offset of `PRAGMA application_id` in a database.
const APPLICATION_OFFSET: usize = 68;
/// `PRAGMA application_id` of a study of version 1: "BsmJ".
pub(crate) const APPLICATION: u32 = 0x4273_6d4a;

/// Kind of a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum RecordKind {
    Study,
    Item,
    /// Facts about the items for the program that made the study.
    Context,
    Judgements,
    ModelJudge,
    Verdicts,
    /// A kind of a later program, which is passed over.
    #[serde(other)]
    Other,
}

/// The first record.
#[derive(Debug, Serialize, Deserialize)]
struct Header {
    format: String,
    version: u32,
    /// XXH3-64 of the study, in hexadecimal digits. It seeds the checksums of the other lines.
    id: String,
    question: Question,
    judgements_per_task: u32,
    seed: u64,
    /// Number of items, whose records follow.
    items: usize,
}

/// Receiver of records, by kind and line.
pub(crate) type Replay<'a> = &'a mut dyn FnMut(RecordKind, &[u8]) -> Result<(), String>;

/// Last line of a journal that a crash cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct TornLine {
    /// Number of the line, from 1.
    pub(crate) line: u64,
    /// Its length in bytes.
    pub(crate) bytes: u64,
}

/// A journal on disk.
#[derive(Debug)]
pub(crate) struct Journal {
    dir: ConfinedDir,
    name: OsString,
    path: PathBuf,
    file: File,
    /// Identity of the study.
    id: u64,
    /// Number of items of the study.
    items: usize,
    /// Bytes of the lines that were read.
    length: u64,
    lines: u64,
    /// Number of the next record.
    next: u64,
    /// Records whose lines are gone.
    missing: u64,
}

/// A journal that is being made and becomes visible whole.
pub(crate) struct NewJournal {
    file: NewFile,
    id: u64,
    next: u64,
}

impl NewJournal {
    /// Starts the journal of a study.
    pub(crate) fn create(path: &Path, study: &Study) -> Result<NewJournal, JudgeError> {
        let id = xxh3_64(&serde_json::to_vec(study).map_err(io::Error::from)?);
        let header = Header {
            format: FORMAT.into(),
            version: VERSION,
            id: format!("{id:016x}"),
            question: study.question.clone(),
            judgements_per_task: study.judgements,
            seed: study.seed,
            items: study.items.len(),
        };
        let mut file = NewFile::create(path)?;
        file.write_all(&line(RecordKind::Study, 0, &header, 0)?)?;
        let mut new = NewJournal { file, id, next: 1 };
        study.items.iter().try_for_each(|item| new.append(RecordKind::Item, item))?;
        Ok(new)
    }

    /// Adds a record.
    pub(crate) fn append<T: Serialize>(&mut self, kind: RecordKind, record: &T) -> Result<(), JudgeError> {
        self.file.write_all(&line(kind, self.next, record, self.id)?)?;
        self.next += 1;
        Ok(())
    }

    /// Gives the journal its name, which no file may have.
    pub(crate) fn commit(self) -> Result<(), JudgeError> {
        Ok(self.file.commit_new()?)
    }
}

impl Journal {
    /// Opens a journal: the study, still without its items, is in the first line.
    pub(crate) fn open(path: &Path) -> Result<(Journal, Study), JudgeError> {
        let foreign = |found: String| JudgeError::Foreign { path: path.to_owned(), wanted: VERSION, found };
        let Some(name) = path.file_name() else { return Err(foreign("a path without a name".into())) };
        let dir = ConfinedDir::open_named(parent(path))?;
        let file = dir.open_file(name)?;
        let mut journal = Journal {
            dir,
            name: name.to_owned(),
            path: path.to_owned(),
            file,
            id: 0,
            items: 0,
            length: 0,
            lines: 0,
            next: 1,
            missing: 0,
        };
        let mut begin = Vec::new();
        (&journal.file).take(100).read_to_end(&mut begin).map_err(|e| journal.failed("read", &e))?;
        if begin.starts_with(SQLITE) {
            let application = begin.get(APPLICATION_OFFSET..APPLICATION_OFFSET + 4);
            return Err(match application == Some(&APPLICATION.to_be_bytes()) {
                true => JudgeError::OldStudy { path: path.to_owned() },
                false => foreign("a SQLite database of another program".into()),
            });
        }
        if !begin.starts_with(BEGIN) {
            return Err(foreign(match begin.is_empty() {
                true => "an empty file".into(),
                false => format!(
                    "a file that begins with {:?}",
                    String::from_utf8_lossy(&begin[..begin.len().min(40)])
                ),
            }));
        }
        let study = journal.read_header(foreign)?;
        Ok((journal, study))
    }

    fn read_header(&mut self, foreign: impl Fn(String) -> JudgeError) -> Result<Study, JudgeError> {
        #[derive(Deserialize)]
        struct Format {
            format: String,
            version: u32,
        }

        let mut raw = Vec::new();
        let reading = self
            .file
            .rewind()
            .and_then(|()| BufReader::new(&self.file).take(LONGEST_LINE as u64).read_until(b'\n', &mut raw));
        reading.map_err(|e| self.failed("read", &e))?;
        let damaged = |what| self.damaged(what);
        let Format { format, version } = parse(&raw).map_err(damaged)?;
        if format != FORMAT {
            return Err(foreign(format!("the format {format:?}")));
        }
        if version != VERSION {
            return Err(foreign(format!("version {version}")));
        }
        let wanted = || "no line with its checksum".to_owned();
        let text = raw.strip_suffix(b"\n").ok_or_else(wanted).map_err(damaged)?;
        verify(text, 0).map_err(damaged)?;
        let header: Header = parse(text).map_err(damaged)?;
        let id = u64::from_str_radix(&header.id, 16).map_err(|_| damaged("no identity".into()))?;
        (self.id, self.items) = (id, header.items);
        (self.length, self.lines) = (raw.len() as u64, 1);
        let Header { question, judgements_per_task: judgements, seed, .. } = header;
        Ok(Study { question, judgements, seed, items: Vec::new() })
    }

    /// Number of items that the study has.
    pub(crate) fn items(&self) -> usize {
        self.items
    }

    /// Records whose lines are gone.
    pub(crate) fn missing(&self) -> u64 {
        self.missing
    }

    /// Hands over the records that were added since the last call. Returns a last line that is not whole: a crash has cut it,
    /// or another program is writing it.
    pub(crate) fn read(&mut self, replay: Replay<'_>) -> Result<Option<TornLine>, JudgeError> {
        let found = self.file.metadata().map_err(|e| self.failed("read", &e))?.len();
        if found == self.length {
            return Ok(None);
        }
        if found < self.length {
            return Err(self.changed());
        }
        self.file.seek(SeekFrom::Start(self.length)).map_err(|e| self.failed("read", &e))?;
        let mut reader = BufReader::with_capacity(1 << 16, &self.file);
        let mut raw = Vec::new();
        loop {
            raw.clear();
            let bytes = reader.by_ref().take(LONGEST_LINE as u64).read_until(b'\n', &mut raw);
            let bytes = bytes.map_err(|e| self.failed("read", &e))? as u64;
            let torn = TornLine { line: self.lines + 1, bytes };
            let Some(text) = raw.strip_suffix(b"\n") else {
                return match bytes {
                    0 => Ok(None),
                    bytes if bytes == LONGEST_LINE as u64 => {
                        Err(self.damaged(format!("more than {LONGEST_LINE} bytes")))
                    }
                    _ => Ok(Some(torn)),
                };
            };
            if let Err(what) = verify(text, self.id) {
                let last = reader.fill_buf().map_err(|e| self.failed("read", &e))?.is_empty();
                return match last && text.contains(&0) {
                    // A power cut left zeros in the place of what was written.
                    true => Ok(Some(torn)),
                    false => Err(self.damaged(what)),
                };
            }
            let next = self.record(text, replay).map_err(|what| self.damaged(what))?;
            self.missing += next - 1 - self.next;
            self.next = next;
            self.lines += 1;
            self.length += bytes;
        }
    }

    /// Hands over the record of a line; returns the number of the next one.
    fn record(&self, text: &[u8], replay: Replay<'_>) -> Result<u64, String> {
        #[derive(Deserialize)]
        struct Head {
            kind: RecordKind,
            seq: u64,
        }

        let Head { kind, seq } = parse(text)?;
        if seq < self.next {
            return Err(format!("record {seq} after record {}", self.next - 1));
        }
        let next = seq.checked_add(1).ok_or("a record after which no other fits")?;
        replay(kind, text)?;
        Ok(next)
    }

    /// Locks the journal for [`Journal::append`]; waits for another program that appends.
    pub(crate) fn lock(&self) -> Result<FileLock, JudgeError> {
        // A lock would make the file.
        if !self.dir.exists(&self.name) {
            return Err(self.changed());
        }
        let until = Instant::now() + BUSY;
        loop {
            if let Some(lock) = self.dir.try_lock(&self.name)? {
                return Ok(lock);
            }
            if Instant::now() >= until {
                return Err(JudgeError::Io(io::Error::new(
                    io::ErrorKind::WouldBlock,
                    format!(
                        "{}: another program has locked the study for {} s; try again when it has finished",
                        self.path.display(),
                        BUSY.as_secs()
                    ),
                )));
            }
            sleep(RETRY);
        }
    }

    /// Appends a record after the lines that were read, which must be all whole ones, and makes it durable. After an error the
    /// journal is as it was before.
    pub(crate) fn append<T: Serialize>(
        &mut self,
        _lock: &FileLock,
        kind: RecordKind,
        record: &T,
    ) -> Result<(), JudgeError> {
        let line = line(kind, self.next, record, self.id)?;
        let file = self.dir.open_file_to_change(&self.name)?;
        let identity = |file: &File| file.metadata().map(|found| (found.dev(), found.ino()));
        let same = identity(&file).and_then(|named| Ok(named == identity(&self.file)?));
        if !same.map_err(|e| self.failed("append to", &e))? {
            return Err(self.changed());
        }
        // A line that a crash cut is removed first.
        let written = file
            .set_len(self.length)
            .and_then(|()| file.write_all_at(&line, self.length))
            .and_then(|()| file.sync_data());
        written.map_err(|e| {
            // If this fails too, the rest is read as a cut line.
            let _ = file.set_len(self.length);
            self.failed("append to", &e)
        })
    }

    fn failed(&self, doing: &str, error: &io::Error) -> JudgeError {
        JudgeError::Io(io::Error::new(error.kind(), failure_text(&self.path, doing, error)))
    }

    fn changed(&self) -> JudgeError {
        JudgeError::Io(io::Error::other(format!(
            "{}: wanted the study that was opened, found that it was removed, replaced or made shorter since; put it back \
             and open it again",
            self.path.display()
        )))
    }

    /// Error of the line after those that were read.
    pub(crate) fn damaged(&self, found: String) -> JudgeError {
        let (path, line) = (self.path.clone(), self.lines + 1);
        // Without its texts a study has no meaning.
        let remedy = match self.lines as usize <= self.items {
            true => "restore the file from a copy".to_owned(),
            false => format!(
                "restore the file from a copy, or give up what this line holds: sed -i {line}d {}",
                path.display()
            ),
        };
        JudgeError::Damaged { path, line, found, remedy }
    }
}

/// Reads the record of a line.
pub(crate) fn parse<T: DeserializeOwned>(text: &[u8]) -> Result<T, String> {
    serde_json::from_slice(text).map_err(|e| format!("something else: {e}"))
}

/// The end of a line after `body`, which holds the checksum.
fn seal(body: &[u8], id: u64) -> String {
    format!(",\"xxh3\":\"{:016x}\"}}", xxh3_64_with_seed(body, id))
}

/// Checks the checksum of a line.
fn verify(text: &[u8], id: u64) -> Result<(), String> {
    let sealed = text.len().checked_sub(seal(&[], id).len()).and_then(|at| text.split_at_checked(at));
    match sealed {
        Some((body, end)) if end == seal(body, id).as_bytes() => Ok(()),
        _ => Err("a line that does not have its checksum".into()),
    }
}

/// The line of a record, with its line feed.
fn line<T: Serialize>(kind: RecordKind, seq: u64, record: &T, id: u64) -> Result<Vec<u8>, JudgeError> {
    #[derive(Serialize)]
    struct Line<'a, T> {
        kind: RecordKind,
        seq: u64,
        #[serde(flatten)]
        record: &'a T,
    }

    let mut line = serde_json::to_vec(&Line { kind, seq, record }).map_err(io::Error::from)?;
    line.pop();
    line.extend(seal(&line, id).bytes());
    line.push(b'\n');
    match line.len() < LONGEST_LINE {
        true => Ok(line),
        false => Err(JudgeError::Setting(format!(
            "a record of the study: wanted less than {LONGEST_LINE} bytes, found {}",
            line.len()
        ))),
    }
}
