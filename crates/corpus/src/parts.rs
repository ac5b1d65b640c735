//! Finished parts of the rows: what a build that was killed need not do again.
//!
//! The stages before the first side join look at one batch each: reading, decoding, rules, scores, the keys of duplicates. Their rows
//! are written to part files in `NAME.parts.partial` beside the corpus, and the stages after them read these files: the columns of
//! keys to find duplicates, and all of them to write the result. A build that is restarted reuses every finished part and continues
//! after the last one.
//!
//! ```text
//! NAME.parts.partial/
//!   key.json                 key of configuration and input: parts of another build are removed
//!   000000/                  a unit: a run of the source's files that is read apart from the others
//!     part-00000.arrow       rows (Arrow IPC stream), written under another name, synced, renamed
//!     part-00000.json        marker: morsels, documents, bytes and hash of the part; written after it
//!     end.json               marker: the unit has no further part
//! ```
//!
//! A part without its marker does not exist. A marker whose part has another hash ends what is trusted: the unit goes on
//! from there. Where a part ends is no matter of the result, because no stage before the cut looks across batches
//! and no later stage looks at them.
//!
//! Units are worked on by different threads; in a single unit the threads share the batches.

use crate::build::BuildContext;
use crate::error::{Error, Result};
use crate::output::durable::{
    HashingFile, OutputDir, hash_of, is_own_part, own_part_number, read_replaceable,
};
use crate::source::Source;
use arrow_array::{Array, RecordBatch, UInt64Array};
use arrow_ipc::writer::StreamWriter;
use bessemer_dataflow::{Executor, KeptRows, Morsel, Plan, Scan, Sink, Stage, column, scan_files};
use bessemer_durable::{ConfinedDir, EntryKind, thread_error};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use xxhash_rust::xxh3::xxh3_128;

/// Version of the files here: of their columns too.
const VERSION: u32 = 6;
/// Stored bytes of a source below which a build is begun again rather than continued: it takes a second.
const WORTH_BYTES: u64 = 8 << 20;
/// Parts and units that a source is cut into, within the limits below.
const PIECES: u64 = 256;
/// Limits of the bytes of a part: what is lost at most, and what is worth two files.
const PART_BYTES: (u64, u64) = (2 << 20, 64 << 20);

/// Name of the folder of the parts that another engine makes: parts of another version are other files.
pub(crate) fn folder_name(key: &str) -> String {
    format!("{:032x}", xxh3_128(format!("parts {VERSION} {key}").as_bytes()))
}

/// Whether rows of this source are kept as parts.
pub(crate) fn worth(source: &dyn Source) -> bool {
    source.listing().bytes >= WORTH_BYTES && source.file_bytes().len() as u64 == source.listing().files
}

/// Bytes of rows after which a part ends, and stored bytes after which a unit ends.
fn piece_bytes(source: &dyn Source) -> u64 {
    (source.listing().bytes / PIECES).clamp(PART_BYTES.0, PART_BYTES.1)
}

/// Runs of files whose stored bytes reach a piece's.
pub(crate) fn units(source: &dyn Source) -> Vec<Range<usize>> {
    let (sizes, enough) = (source.file_bytes(), piece_bytes(source));
    let (mut units, mut start, mut bytes) = (Vec::new(), 0, 0);
    for (index, size) in sizes.iter().enumerate() {
        bytes += size;
        if bytes >= enough || index + 1 == sizes.len() {
            units.push(start..index + 1);
            (start, bytes) = (index + 1, 0);
        }
    }
    units
}

/// The marker of a part.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
struct Marker {
    /// Morsels of the unit whose rows are here.
    morsels: u64,
    /// Rows.
    documents: u64,
    /// Sum of their column `bytes`.
    source_bytes: u64,
    /// Bytes of the part file.
    file_bytes: u64,
    /// XXH3-128 of the part file.
    xxh3_128: String,
    /// Resume point of the source after the part, where it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    resume_point: Option<String>,
}

/// Identity of a build.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct Key {
    version: u32,
    program: String,
    key: String,
}

/// The directory of parts of a corpus.
pub(crate) struct Parts {
    dir: ConfinedDir,
}

/// Suffix of the directory of parts.
const SUFFIX: &str = ".parts.partial";
/// File with the identity of the build that made the parts.
const KEY_FILE: &str = "key.json";
/// Marker of a unit without further parts.
const END_FILE: &str = "end.json";

impl Parts {
    /// Whether there are parts.
    pub(crate) fn left(target: &OutputDir) -> bool {
        target.above.exists(target.beside(SUFFIX))
    }

    /// Removes what an earlier build left.
    pub(crate) fn clear(target: &OutputDir) -> Result<()> {
        target.remove_beside(SUFFIX)
    }

    /// Opens the parts of the build `key`; those of another build are removed.
    pub(crate) fn open(target: &OutputDir, key: &str) -> Result<Parts> {
        let wanted = Key { version: VERSION, program: env!("CARGO_PKG_VERSION").into(), key: key.into() };
        let open = || target.above.create_dir(target.beside(SUFFIX)).map_err(Error::System);
        let mut dir = open()?;
        if read_json::<Key>(&dir, KEY_FILE)?.as_ref() != Some(&wanted) {
            Self::clear(target)?;
            dir = open()?;
            write_json(&dir, KEY_FILE, &wanted)?;
        }
        Ok(Parts { dir })
    }

    /// Makes the parts that are missing. `known` receives (documents, bytes) of parts that existed already; `tick` is
    /// called after each batch, on the calling thread.
    pub(crate) fn make(
        &self,
        source: &Arc<dyn Source>,
        stages: &[Stage],
        context: &BuildContext<'_>,
        known: &(dyn Fn(u64, u64) + Sync),
        tick: &dyn Fn(),
    ) -> Result<()> {
        let units = units(source.as_ref());
        let workers = context.threads.clamp(1, units.len().max(1));
        let work = Work {
            parts: self,
            source,
            stages,
            part_bytes: piece_bytes(source.as_ref()),
            threads: (context.threads / workers).max(1),
            memory: context.memory_budget / workers,
            stop: context.stop,
            failed: AtomicBool::new(false),
            known,
        };
        let next = AtomicUsize::new(0);
        let failures: Mutex<BTreeMap<usize, Error>> = Mutex::new(BTreeMap::new());
        let (sender, receiver) = sync_channel(64);
        std::thread::scope(|scope| {
            for started in 0..workers {
                let sender = sender.clone();
                let (work, units, next, failures) = (&work, &units, &next, &failures);
                let worker = move || {
                    while !work.failed.load(Ordering::Relaxed) {
                        let unit = next.fetch_add(1, Ordering::Relaxed);
                        let Some(files) = units.get(unit) else { break };
                        if let Err(error) = work.unit(unit, files.clone(), &sender) {
                            work.failed.store(true, Ordering::Relaxed);
                            failures.lock().unwrap_or_else(PoisonError::into_inner).insert(unit, error);
                        }
                    }
                };
                match std::thread::Builder::new().spawn_scoped(scope, worker) {
                    Ok(_) => {}
                    // The others take over its units.
                    Err(_) if started > 0 => break,
                    Err(cause) => {
                        let error = Error::System(thread_error(cause));
                        failures.lock().unwrap_or_else(PoisonError::into_inner).insert(0, error);
                        break;
                    }
                }
            }
            drop(sender);
            receiver.iter().for_each(|()| tick());
        });
        let failures = failures.into_inner().unwrap_or_else(PoisonError::into_inner);
        // A unit that was stopped because another failed is not the cause.
        let (stopped, causes): (Vec<_>, Vec<_>) =
            failures.into_values().partition(|error| matches!(error, Error::Stopped));
        match causes.into_iter().chain(stopped).next() {
            Some(error) => Err(error),
            None => Ok(()),
        }
    }

    /// The rows of all parts, in order.
    pub(crate) fn rows(&self, source: &dyn Source) -> Result<PartFiles> {
        let mut files = Vec::new();
        for unit in 0..units(source).len() {
            let folder = unit_name(unit);
            for number in 0.. {
                if !self.dir.exists(folder.join(marker_name(number))) {
                    break;
                }
                files.push(folder.join(part_name(number)));
            }
        }
        Ok(PartFiles { described: source.describe(), dir: self.dir.clone(), files })
    }
}

/// Name of the folder of a unit.
fn unit_name(unit: usize) -> PathBuf {
    format!("{unit:06}").into()
}

/// Name of the file of a part.
fn part_name(number: u32) -> String {
    format!("part-{number:05}.arrow")
}

/// Name of the file of a part that is being written.
fn temporary_name(number: u32) -> String {
    format!("part-{number:05}.arrow.tmp")
}

/// Name of the marker of a part.
fn marker_name(number: u32) -> String {
    format!("part-{number:05}.json")
}

fn write_json(dir: &ConfinedDir, name: &str, value: &impl Serialize) -> Result<()> {
    let json =
        serde_json::to_string(value).map_err(|cause| Error::Json { path: dir.path().join(name), cause })?;
    dir.write(name, format!("{json}\n").as_bytes()).map_err(Error::System)
}

/// A value of [`write_json`]; none where the file is missing or holds something else.
fn read_json<T: for<'a> Deserialize<'a>>(dir: &ConfinedDir, name: &str) -> Result<Option<T>> {
    Ok(read_replaceable(dir, name)?.and_then(|text| serde_json::from_str(&text).ok()))
}

/// Whether a file has this length and hash.
fn matches(dir: &ConfinedDir, name: &str, marker: &Marker) -> bool {
    dir.open_file(name)
        .and_then(|mut file| hash_of(&mut file))
        .is_ok_and(|found| found == (marker.xxh3_128.clone(), marker.file_bytes))
}

/// State that the workers share.
struct Work<'a> {
    parts: &'a Parts,
    source: &'a Arc<dyn Source>,
    stages: &'a [Stage],
    part_bytes: u64,
    /// Threads and bytes of each worker.
    threads: usize,
    memory: usize,
    stop: &'a AtomicBool,
    /// Another worker failed.
    failed: AtomicBool,
    known: &'a (dyn Fn(u64, u64) + Sync),
}

impl Work<'_> {
    /// Makes what is missing of a unit.
    fn unit(&self, unit: usize, files: Range<usize>, told: &SyncSender<()>) -> Result<()> {
        let dir = self.parts.dir.create_dir(unit_name(unit)).map_err(Error::System)?;
        let (mut number, mut skip, mut resume_point) = (0, 0, None);
        loop {
            let Some(marker) = read_json::<Marker>(&dir, &marker_name(number))?
                .filter(|marker| matches(&dir, &part_name(number), marker))
            else {
                break;
            };
            (self.known)(marker.documents, marker.source_bytes);
            number += 1;
            skip += marker.morsels;
            resume_point = marker.resume_point;
        }
        if read_json::<u32>(&dir, END_FILE)? == Some(number) {
            return Ok(());
        }
        forget_parts(&dir, number).map_err(Error::System)?;
        let points = ResumePoints::default();
        let mut sink = PartSink {
            work: self,
            dir: dir.clone(),
            number,
            open: None,
            marker: Marker::default(),
            held: 0,
            points: points.clone(),
        };
        let source = self.source.clone();
        let plan = Plan {
            source: Arc::new(Unit { source, files, skip, resume_point, points }),
            stages: self.stages.to_vec(),
        };
        let tick = || {
            // The receiver lives until all senders are gone.
            let _ = told.send(());
        };
        // No stage before the cut holds rows, so nothing is spilled.
        Executor::new(self.threads, self.memory, &self.parts.dir, self.stop, &tick).run(&plan, &mut sink)?;
        sink.close()?;
        write_json(&dir, END_FILE, &sink.number)
    }
}

/// Removes the parts from `number` on, and what is unfinished, from the folder of a unit: files that a build writes and
/// nothing else.
fn forget_parts(unit: &ConfinedDir, number: u32) -> std::io::Result<()> {
    let finished = |name: &str| {
        !name.ends_with(".tmp")
            && !name.ends_with(".partial")
            && own_part_number(name).is_some_and(|part| part < number)
    };
    for (name, kind) in unit.list("")? {
        let is_ours = kind == EntryKind::File && name.to_str().is_some_and(is_own_part);
        if is_ours && !name.to_str().is_some_and(finished) {
            unit.remove_file(&name)?;
        }
    }
    Ok(())
}

/// Writes the rows of a unit as parts: one batch is one morsel.
struct PartSink<'a> {
    work: &'a Work<'a>,
    /// Directory of the unit.
    dir: ConfinedDir,
    /// Number of the open or next part.
    number: u32,
    open: Option<StreamWriter<HashingFile>>,
    marker: Marker,
    /// Bytes of rows in the open part.
    held: u64,
    points: ResumePoints,
}

impl PartSink<'_> {
    /// Ends the open part, if there is one.
    fn close(&mut self) -> Result<()> {
        let Some(mut writer) = self.open.take() else { return Ok(()) };
        writer.finish()?;
        let written = writer.into_inner()?.finish()?;
        self.dir.rename(temporary_name(self.number), part_name(self.number)).map_err(Error::System)?;
        let mut found = std::mem::take(&mut self.marker);
        (found.file_bytes, found.xxh3_128) = (written.bytes, written.xxh3_128);
        write_json(&self.dir, &marker_name(self.number), &found)?;
        self.number += 1;
        self.held = 0;
        Ok(())
    }
}

impl Sink for PartSink<'_> {
    fn write(&mut self, batch: &RecordBatch) -> bessemer_dataflow::Result<()> {
        if self.work.failed.load(Ordering::Relaxed) {
            return Err(bessemer_dataflow::Error::Stopped);
        }
        let writer = match &mut self.open {
            Some(writer) => writer,
            None => {
                let file = HashingFile::create(&self.dir, temporary_name(self.number))?;
                self.open.insert(StreamWriter::try_new(file, &batch.schema())?)
            }
        };
        writer.write(batch)?;
        let bytes: &UInt64Array = column("parts", batch, "bytes")?;
        self.marker.morsels += 1;
        // Batches come in the order of their morsels.
        self.marker.resume_point =
            self.points.lock().unwrap_or_else(PoisonError::into_inner).pop_front().flatten();
        self.marker.documents += batch.num_rows() as u64;
        self.marker.source_bytes += bytes.values().iter().sum::<u64>();
        let held = batch.columns().iter().map(|column| column.to_data().get_slice_memory_size());
        for bytes in held {
            self.held += bytes? as u64;
        }
        if self.held >= self.work.part_bytes {
            self.close()?;
        }
        Ok(())
    }
}

/// Resume points behind the morsels that were named and whose rows are not written yet, in order.
type ResumePoints = Arc<Mutex<VecDeque<Option<String>>>>;

/// The rest of a unit as a source.
struct Unit {
    source: Arc<dyn Source>,
    files: Range<usize>,
    /// Morsels whose rows are there already.
    skip: u64,
    /// Resume point of the source after them, where it has one.
    resume_point: Option<String>,
    points: ResumePoints,
}

/// A scan that notes the resume point behind each morsel.
struct NotedScan {
    scan: Box<dyn Scan>,
    points: ResumePoints,
}

impl Scan for NotedScan {
    fn next(&mut self) -> bessemer_dataflow::Result<Option<Morsel>> {
        let morsel = self.scan.next()?;
        if morsel.is_some() {
            let point = self.scan.resume_point();
            self.points.lock().unwrap_or_else(PoisonError::into_inner).push_back(point);
        }
        Ok(morsel)
    }
}

impl bessemer_dataflow::Source for Unit {
    fn describe(&self) -> String {
        format!("files {:?} of {}", self.files, self.source.describe())
    }

    fn scan(&self) -> bessemer_dataflow::Result<Box<dyn Scan>> {
        let resumed = match &self.resume_point {
            Some(point) => self.source.scan_files_from(self.files.clone(), point)?,
            None => None,
        };
        let scan = match resumed {
            Some(scan) => scan,
            None => {
                // Finds the place by reading what lies before it, without making rows of it.
                let mut scan = self.source.scan_files(self.files.clone())?;
                for _ in 0..self.skip {
                    if scan.next()?.is_none() {
                        break;
                    }
                }
                scan
            }
        };
        Ok(Box::new(NotedScan { scan, points: self.points.clone() }))
    }
}

/// Finished parts as a source, which is read by columns and as often as wanted.
#[derive(Clone)]
pub(crate) struct PartFiles {
    described: String,
    dir: ConfinedDir,
    files: Vec<PathBuf>,
}

impl bessemer_dataflow::Source for PartFiles {
    fn describe(&self) -> String {
        format!("{} finished parts of {}", self.files.len(), self.described)
    }

    fn scan(&self) -> bessemer_dataflow::Result<Box<dyn Scan>> {
        KeptRows::scan(self, None)
    }

    fn kept(&self) -> Option<Arc<dyn KeptRows>> {
        Some(Arc::new(self.clone()))
    }
}

impl KeptRows for PartFiles {
    fn scan(&self, columns: Option<&[String]>) -> bessemer_dataflow::Result<Box<dyn Scan>> {
        Ok(scan_files(&self.dir, self.files.clone(), columns))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn only_files_with_names_of_a_build_are_forgotten() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        let foreign = [
            "part-.arrow",
            "part-3.arrow",
            "part-0000007.json",
            ".part-00009.arrow.partial",
            "part-00003.parquet",
            "notes.txt",
            "part-+0003.arrow",
        ];
        let old = ["part-00000.arrow", "part-00000.json", "part-00001.arrow", "part-100000.json"];
        let gone = ["part-00001.arrow.tmp", ".part-00001.json.partial", "part-00002.arrow", "end.json"];
        for name in foreign.iter().chain(&old).chain(&gone) {
            fs::write(path(name), name).unwrap();
        }
        fs::create_dir(path("part-00004.arrow")).unwrap();
        std::os::unix::fs::symlink(path("notes.txt"), path("part-00005.arrow")).unwrap();
        forget_parts(&ConfinedDir::open(folder.path()).unwrap(), 2).unwrap();
        let there = |name: &&str| fs::symlink_metadata(path(name)).is_ok();
        assert!(foreign.iter().chain(&old[..3]).chain(&["part-00004.arrow", "part-00005.arrow"]).all(there));
        assert!(!gone.iter().chain(&old[3..]).any(there));
    }
}
