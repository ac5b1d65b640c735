//! Appending to `metrics.jsonl`, and taking steps back on resume.

use crate::reading::{DamagedLine, Line, TornLine, first_line, opened, walk};
use crate::record::LONGEST_LINE;
use crate::{Record, RunLogError};
use bessemer_durable::{AsDir, ConfinedDir};
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};

/// Name of the log in a run folder.
pub const FILE: &str = "metrics.jsonl";

/// Name of the file beside the log in which its damaged lines are kept.
pub const DAMAGED_FILE: &str = "metrics.damaged";

/// The log of a run, open for appending. One process writes a log at a time.
///
/// Every record is one `write` of one whole line, so a crash can cut only the last line. A line is in the hands of
/// the operating system when [`RunLog::append`] returns (a killed process loses nothing); it survives a power cut
/// after [`RunLog::sync`], which a trainer calls before a checkpoint of the same step becomes durable.
#[derive(Debug)]
pub struct RunLog {
    dir: ConfinedDir,
    path: PathBuf,
    file: File,
    /// Length up to which the file holds whole lines.
    length: u64,
    repaired: Option<TornLine>,
    damaged: Vec<DamagedLine>,
    poisoned: bool,
    /// The line being written; kept to be used again.
    line: Vec<u8>,
}

/// Makes a log, and files beside it, survive a power cut, from a thread that does not append to them.
#[derive(Debug)]
pub struct LogSync {
    files: Vec<(File, PathBuf)>,
}

impl LogSync {
    /// Makes everything appended so far survive a power cut.
    ///
    /// # Errors
    /// [`RunLogError::Io`].
    pub fn sync(&self) -> Result<(), RunLogError> {
        let sync =
            |(file, path): &(File, PathBuf)| file.sync_all().map_err(|e| RunLogError::io(path, "fsync", e));
        self.files.iter().try_for_each(sync)
    }

    pub(crate) fn add(&mut self, file: File, path: &Path) {
        self.files.push((file, path.to_owned()));
    }
}

impl RunLog {
    /// Opens `dir/metrics.jsonl` for appending; makes it if it is missing. The folder must exist.
    ///
    /// The file is read once: a last line that a crash cut is removed and reported by [`RunLog::repaired`]; damaged lines
    /// before it are moved to [`DAMAGED_FILE`] and reported by [`RunLog::damaged`].
    ///
    /// # Errors
    /// [`RunLogError::Foreign`], [`RunLogError::Version`], [`RunLogError::Io`]; the file is as it was then.
    pub fn open(dir: impl AsDir) -> Result<RunLog, RunLogError> {
        let dir = opened(&dir)?;
        let path = dir.path().join(FILE);
        let (mut whole, mut ends_with_line_feed, mut repaired) = (0, true, None);
        let mut damaged = Vec::new();
        if dir.exists(FILE) {
            repaired = walk(&dir, |line| {
                whole += line.raw.len() as u64;
                ends_with_line_feed = line.raw.ends_with(b"\n");
                let number = line.number;
                if let Err(what) = record_of(line) {
                    damaged.push(DamagedLine { line: number, what });
                }
                Ok(())
            })?;
        }
        let (file, length, poisoned) = (open_append(&dir, FILE)?, whole, false);
        let mut log = RunLog { dir, file, path, length, repaired, damaged, poisoned, line: Vec::new() };
        if repaired.is_some() {
            log.file.set_len(whole).map_err(|e| RunLogError::io(&log.path, "remove the cut line of", e))?;
        }
        if whole == 0 {
            log.write(first_line().as_bytes())?;
            log.sync()?;
            log.dir.sync().map_err(|e| RunLogError::write(&log.path, e))?;
        } else if !ends_with_line_feed {
            // The crash took only the line feed: the record is whole.
            log.write(b"\n")?;
        }
        if !log.damaged.is_empty() {
            log.set_damaged_lines_aside()?;
        }
        Ok(log)
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The cut line that was removed when the log was opened.
    pub fn repaired(&self) -> Option<TornLine> {
        self.repaired
    }

    /// The damaged lines that were moved aside when the log was opened.
    pub fn damaged(&self) -> &[DamagedLine] {
        &self.damaged
    }

    /// Moves damaged lines to the file beside the log: first they are there, then they are no longer here.
    fn set_damaged_lines_aside(&mut self) -> Result<(), RunLogError> {
        let aside = self.path.with_file_name(DAMAGED_FILE);
        let error = |e| RunLogError::io(&aside, "append to", e);
        let mut file = open_append(&self.dir, DAMAGED_FILE)?;
        walk(&self.dir, |line| {
            let raw = line.raw;
            match record_of(line) {
                Ok(()) => Ok(()),
                Err(_) => file.write_all(raw).map_err(error),
            }
        })?;
        file.sync_all().map_err(error)?;
        self.replace(|line| record_of(line).is_ok())
    }

    /// Appends one record.
    ///
    /// # Errors
    /// [`RunLogError::Io`] (disk full): the log is as it was before. [`RunLogError::Record`] for one longer than
    /// 16 MiB.
    pub fn append(&mut self, record: &Record) -> Result<(), RunLogError> {
        let wrong = |what: String| RunLogError::Record {
            path: self.path.clone(),
            kind: record.kind().to_owned(),
            what,
        };
        if record.kind().is_empty() {
            return Err(wrong("wanted the key \"kind\"".into()));
        }
        let mut line = std::mem::take(&mut self.line);
        line.clear();
        record.write_line(&mut line).map_err(|e| wrong(e.to_string()))?;
        if line.len() > LONGEST_LINE {
            return Err(wrong(format!("wanted at most {LONGEST_LINE} bytes, found {}", line.len())));
        }
        line.push(b'\n');
        let written = self.write(&line);
        self.line = line;
        written
    }

    /// Makes everything appended so far survive a power cut.
    ///
    /// # Errors
    /// [`RunLogError::Io`].
    pub fn sync(&self) -> Result<(), RunLogError> {
        self.file.sync_all().map_err(|e| RunLogError::io(&self.path, "fsync", e))
    }

    /// A handle that does the work of [`RunLog::sync`] from another thread. Where the log is replaced meanwhile
    /// ([`RunLog::truncate_after`]), it syncs the log that was.
    ///
    /// # Errors
    /// [`RunLogError::Io`].
    pub fn syncer(&self) -> Result<LogSync, RunLogError> {
        let file = self.file.try_clone().map_err(|e| RunLogError::io(&self.path, "open", e))?;
        Ok(LogSync { files: vec![(file, self.path.clone())] })
    }

    /// Takes out every record with a `step` later than `step`, of known and unknown kinds alike, because these
    /// steps are about to be run again from a checkpoint. The log then reads as if the run had never gone past
    /// `step`. Returns how many records were taken out. The other lines stay byte for byte.
    ///
    /// # Errors
    /// [`RunLogError::Write`]: the log is as it was, or already shortened, never in between,
    /// and has to be opened again.
    pub fn truncate_after(&mut self, step: u64) -> Result<u64, RunLogError> {
        let later = |line: &Line<'_>| {
            let at = |object: &serde_json::Map<_, _>| object.get("step").and_then(serde_json::Value::as_u64);
            line.object.as_ref().ok().and_then(at).is_some_and(|s| s > step)
        };
        let mut dropped = 0;
        walk(&self.dir, |line| {
            dropped += u64::from(later(&line));
            Ok(())
        })?;
        if dropped > 0 {
            self.replace(|line| !later(&line))?;
        }
        Ok(dropped)
    }

    /// Replaces the log by those of its lines that are `kept`.
    fn replace(&mut self, kept: impl Fn(Line<'_>) -> bool) -> Result<(), RunLogError> {
        // After an error the name may or may not stand for the new file already.
        self.length = self.rewrite(kept).inspect_err(|_| self.poisoned = true)?;
        // The open file is the replaced one.
        self.file = open_append(&self.dir, FILE).inspect_err(|_| self.poisoned = true)?;
        Ok(())
    }

    /// Writes the new log and gives it its name; returns its length.
    fn rewrite(&self, kept: impl Fn(Line<'_>) -> bool) -> Result<u64, RunLogError> {
        let error = |e| RunLogError::write(&self.path, e);
        let mut out = self.dir.new_file(FILE).map_err(error)?;
        let mut length = 0;
        walk(&self.dir, |line| {
            let raw = line.raw;
            if kept(line) {
                out.write_all(raw).map_err(error)?;
                length += raw.len() as u64;
            }
            Ok(())
        })?;
        out.commit().map_err(error)?;
        Ok(length)
    }

    fn write(&mut self, line: &[u8]) -> Result<(), RunLogError> {
        if self.poisoned {
            return Err(RunLogError::Poisoned { path: self.path.clone() });
        }
        if let Err(e) = self.file.write_all(line) {
            // Part of the line may be in the file: the next record must not be glued to it.
            self.poisoned = self.file.set_len(self.length).is_err();
            return Err(RunLogError::io(&self.path, "append to", e));
        }
        self.length += line.len() as u64;
        Ok(())
    }
}

/// Errors if a line is no record (or, as the first one, not that of a log).
fn record_of(line: Line<'_>) -> Result<(), String> {
    let object = line.object?;
    if line.number > 1 {
        Record::from_object(object)?;
    }
    Ok(())
}

fn open_append(dir: &ConfinedDir, name: &str) -> Result<File, RunLogError> {
    dir.append(name).map_err(|e| RunLogError::io(&dir.path().join(name), "open for appending", e))
}
