//! `experts.loads`: the choices of every expert in every step.
//!
//! `README.md` beside this crate specifies the file. Records have one length, so step s is found without reading the others.

use crate::RunLogError;
use crate::crc32c::crc32c;
use crate::log::LogSync;
use crate::reading::opened;
use bessemer_durable::{AsDir, ConfinedDir};
use std::fs::File;
use std::io::{ErrorKind, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

/// Name of the file in a run folder.
pub const LOADS_FILE: &str = "experts.loads";

/// Version of the format.
pub const LOADS_VERSION: u32 = 1;

const MAGIC: [u8; 8] = *b"BSMRLOAD";
/// Bytes of the header before the numbers of experts: magic, version, layers.
const FIXED: usize = 16;
/// Bytes of a checksum.
const CRC: usize = 4;
/// Bytes of a record's step.
const STEP: usize = 8;
/// Most layers that a file describes.
const MOST_LAYERS: usize = 1 << 16;
/// Steps of a span whose counts are summed.
const SUMMED: u64 = 8;

/// Choices of the experts of a layer, one layer behind the other, in one step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StepLoads {
    /// Finished training steps, as in the log.
    pub step: u64,
    /// A number for each expert of each layer.
    pub counts: Vec<u32>,
}

/// Choices in some consecutive steps.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LoadSpan {
    /// First and last step.
    pub steps: [u64; 2],
    /// Sums over up to eight of them, evenly spread, as [`StepLoads::counts`].
    pub counts: Vec<u64>,
}

/// A file that is read.
#[derive(Debug)]
pub struct Loads {
    path: PathBuf,
    file: File,
    experts: Vec<u32>,
    /// Whole records.
    records: u64,
    record: Vec<u8>,
}

/// The loads of a run, open for appending. One process writes the file at a time.
#[derive(Debug)]
pub struct LoadLog {
    loads: Loads,
    /// Step of the last record, 0 before the first.
    last: u64,
}

/// Header of the file of layers with these numbers of experts, 0 of a layer without.
fn header(experts: &[u32]) -> Vec<u8> {
    let mut bytes = MAGIC.to_vec();
    bytes.extend(LOADS_VERSION.to_le_bytes());
    bytes.extend((experts.len() as u32).to_le_bytes());
    bytes.extend(experts.iter().flat_map(|count| count.to_le_bytes()));
    bytes.extend(crc32c(&bytes).to_le_bytes());
    bytes
}

fn word(bytes: &[u8]) -> u32 {
    bytes.try_into().map_or(0, u32::from_le_bytes)
}

/// A record, if its bytes are whole.
fn step_of(record: &[u8]) -> Option<u64> {
    let (bytes, crc) = record.split_at_checked(record.len().checked_sub(CRC)?)?;
    let step = bytes.get(..STEP)?.try_into().ok().map(u64::from_le_bytes)?;
    (crc32c(bytes) == word(crc)).then_some(step)
}

impl Loads {
    /// Opens the file of a run folder for reading; none where there is no file.
    ///
    /// # Errors
    /// [`RunLogError::Loads`], [`RunLogError::Io`].
    pub fn open(dir: impl AsDir) -> Result<Option<Loads>, RunLogError> {
        let dir = opened(&dir)?;
        let path = dir.path().join(LOADS_FILE);
        if !dir.exists(LOADS_FILE) {
            return Ok(None);
        }
        let file = dir.open_file(LOADS_FILE).map_err(|e| RunLogError::io(&path, "open", e))?;
        Loads::of(file, path).map(Some)
    }

    /// Reads the header of an open file, at whose beginning it is.
    fn of(mut file: File, path: PathBuf) -> Result<Loads, RunLogError> {
        let wrong = |what: String| RunLogError::Loads { path: path.clone(), what };
        let mut read = |bytes: &mut [u8]| match file.read_exact(bytes) {
            Err(e) if e.kind() == ErrorKind::UnexpectedEof => Err(wrong("the header is cut".into())),
            result => result.map_err(|e| RunLogError::io(&path, "read", e)),
        };
        let mut bytes = vec![0; FIXED];
        read(&mut bytes)?;
        if bytes[..MAGIC.len()] != MAGIC {
            return Err(wrong("wanted a file that begins with \"BSMRLOAD\"".into()));
        }
        let (version, layers) = (word(&bytes[8..12]), word(&bytes[12..]) as usize);
        if version != LOADS_VERSION {
            return Err(wrong(format!(
                "version {version}, this program reads version {LOADS_VERSION}; use the program that wrote it, or another run directory"
            )));
        }
        if layers > MOST_LAYERS {
            return Err(wrong(format!("{layers} layers, wanted at most {MOST_LAYERS}")));
        }
        bytes.resize(FIXED + 4 * layers + CRC, 0);
        read(&mut bytes[FIXED..])?;
        let (described, crc) = bytes.split_at(FIXED + 4 * layers);
        if crc32c(described) != word(crc) {
            return Err(wrong("the checksum of the header is wrong".into()));
        }
        let experts: Vec<u32> = described[FIXED..].chunks_exact(4).map(word).collect();
        let all: u64 = experts.iter().map(|count| u64::from(*count)).sum();
        let length = STEP as u64 + 4 * all + CRC as u64;
        let bytes = file.metadata().map_err(|e| RunLogError::io(&path, "read", e))?.len();
        let records = bytes.saturating_sub((FIXED + 4 * layers + CRC) as u64) / length;
        // Nothing is made for records that are not there.
        let record = if records > 0 { vec![0; length as usize] } else { Vec::new() };
        Ok(Loads { path, file, experts, records, record })
    }

    /// Experts of each layer, 0 of a layer without.
    pub fn experts(&self) -> &[u32] {
        &self.experts
    }

    /// Number of records.
    pub fn records(&self) -> u64 {
        self.records
    }

    fn all(&self) -> usize {
        self.experts.iter().map(|count| *count as usize).sum()
    }

    fn record_bytes(&self) -> u64 {
        (STEP + 4 * self.all() + CRC) as u64
    }

    fn header_bytes(&self) -> u64 {
        (FIXED + 4 * self.experts.len() + CRC) as u64
    }

    fn offset(&self, number: u64) -> u64 {
        self.header_bytes() + number * self.record_bytes()
    }

    /// Reads a record into the buffer; its step, if it is whole.
    fn load(&mut self, number: u64) -> Result<Option<u64>, RunLogError> {
        let (at, length) = (self.offset(number), self.record_bytes() as usize);
        self.record.resize(length, 0);
        let read = self.file.seek(SeekFrom::Start(at)).and_then(|_| self.file.read_exact(&mut self.record));
        read.map_err(|e| RunLogError::io(&self.path, "read", e))?;
        Ok(step_of(&self.record))
    }

    /// Counts of the record in the buffer.
    fn counts(&self) -> impl Iterator<Item = u32> + '_ {
        self.record[STEP..self.record.len() - CRC].chunks_exact(4).map(word)
    }

    /// Record `number`, counted from 0; none if it is damaged.
    ///
    /// # Errors
    /// [`RunLogError::Io`].
    pub fn read(&mut self, number: u64) -> Result<Option<StepLoads>, RunLogError> {
        let step = self.load(number)?;
        Ok(step.map(|step| StepLoads { step, counts: self.counts().collect() }))
    }

    /// Sums the choices of steps `first` to `last`; none if the file has none of these steps.
    ///
    /// # Errors
    /// [`RunLogError::Io`].
    pub fn sum(&mut self, [first, last]: [u64; 2]) -> Result<Option<LoadSpan>, RunLogError> {
        let mut span: Option<LoadSpan> = None;
        for number in self.records_until(first.saturating_sub(1))?..self.records {
            let Some(step) = self.load(number)? else { continue };
            if step > last {
                break;
            }
            self.add(&mut span, step);
        }
        Ok(span)
    }

    /// Adds the record in the buffer.
    fn add(&self, span: &mut Option<LoadSpan>, step: u64) {
        let sums = span.get_or_insert_with(|| LoadSpan { steps: [step; 2], counts: vec![0; self.all()] });
        sums.steps[1] = step;
        sums.counts.iter_mut().zip(self.counts()).for_each(|(sum, count)| *sum += u64::from(count));
    }

    /// The whole run in at most `most` spans, of about as many steps each.
    ///
    /// # Errors
    /// [`RunLogError::Io`].
    pub fn spans(&mut self, most: u64) -> Result<Vec<LoadSpan>, RunLogError> {
        let (records, spans) = (self.records, most.min(self.records));
        let mut all = Vec::new();
        for at in 0..spans {
            // Products of steps and spans are far from 2^64.
            let [from, to] = [at, at + 1].map(|at| at * records / spans);
            let summed = SUMMED.min(to - from);
            let mut span = None;
            for number in (0..summed).map(|i| from + i * (to - from) / summed) {
                if let Some(step) = self.load(number)? {
                    self.add(&mut span, step);
                }
            }
            if let (Some(span), Some(last)) = (&mut span, self.load(to - 1)?) {
                span.steps[1] = last;
            }
            all.extend(span);
        }
        Ok(all)
    }

    /// Number of the records of steps up to `step`. Steps ascend.
    fn records_until(&mut self, step: u64) -> Result<u64, RunLogError> {
        let (mut low, mut high) = (0, self.records);
        while low < high {
            let middle = low + (high - low) / 2;
            // A damaged record is judged by the next one that is whole.
            let mut at = middle;
            let mut found = None;
            while at < high && found.is_none() {
                found = self.load(at)?;
                at += 1;
            }
            match found {
                Some(found) if found <= step => low = at,
                _ => high = middle,
            }
        }
        Ok(low)
    }
}

impl LoadLog {
    /// Opens `dir/experts.loads` for appending; makes it if it is missing. `experts`: of each layer of the model. A record that a crash
    /// cut is removed. A file of layers with other experts is moved to `experts.other-N.loads`.
    ///
    /// # Errors
    /// [`RunLogError::Loads`], [`RunLogError::Io`]; the file is as it was then.
    pub fn open(dir: impl AsDir, experts: &[u32]) -> Result<LoadLog, RunLogError> {
        let dir = opened(&dir)?;
        let path = dir.path().join(LOADS_FILE);
        if dir.exists(LOADS_FILE) {
            let mut file =
                dir.open_file_to_change(LOADS_FILE).map_err(|e| RunLogError::io(&path, "open", e))?;
            let (wanted, mut begun) = (header(experts), Vec::new());
            let read = (&mut file).take(wanted.len() as u64).read_to_end(&mut begun);
            read.and_then(|_| file.rewind()).map_err(|e| RunLogError::io(&path, "read", e))?;
            // A file whose header is cut holds nothing.
            if begun.len() == wanted.len() || !wanted.starts_with(&begun) {
                let loads = Loads::of(file, path.clone())?;
                if loads.experts == experts {
                    return LoadLog::continued(loads);
                }
                set_loads_aside(&dir)?;
            }
        }
        dir.write(LOADS_FILE, &header(experts)).map_err(|e| RunLogError::write(&path, e))?;
        let file = dir.open_file_to_change(LOADS_FILE).map_err(|e| RunLogError::io(&path, "open", e))?;
        Ok(LoadLog { loads: Loads::of(file, path)?, last: 0 })
    }

    /// Goes on behind the last whole record.
    fn continued(mut loads: Loads) -> Result<LoadLog, RunLogError> {
        let mut last = 0;
        while loads.records > 0 {
            match loads.load(loads.records - 1)? {
                Some(step) => {
                    last = step;
                    break;
                }
                None => loads.records -= 1,
            }
        }
        let mut log = LoadLog { loads, last };
        log.cut()?;
        Ok(log)
    }

    /// Cuts the file behind the last record.
    fn cut(&mut self) -> Result<(), RunLogError> {
        let Loads { file, path, records, .. } = &self.loads;
        let end = self.loads.offset(*records);
        let length = file.metadata().map_err(|e| RunLogError::io(path, "read", e))?.len();
        if length == end {
            return Ok(());
        }
        file.set_len(end).map_err(|e| RunLogError::io(path, "shorten", e))
    }

    /// Appends the choices of a step. Records of this step and later ones, which are run again, are taken out first.
    ///
    /// # Errors
    /// [`RunLogError::Io`] (disk full): the file is as it was before. [`RunLogError::Loads`] for another number of counts.
    pub fn append(&mut self, step: u64, counts: &[u32]) -> Result<(), RunLogError> {
        if counts.len() != self.loads.all() {
            let what = format!("wanted {} counts, found {}", self.loads.all(), counts.len());
            return Err(RunLogError::Loads { path: self.loads.path.clone(), what });
        }
        if step <= self.last {
            self.truncate_after(step.saturating_sub(1))?;
        }
        let at = self.loads.offset(self.loads.records);
        let Loads { file, path, record, records, .. } = &mut self.loads;
        record.clear();
        record.extend(step.to_le_bytes());
        counts.iter().for_each(|count| record.extend(count.to_le_bytes()));
        record.extend(crc32c(record).to_le_bytes());
        if let Err(e) = file.seek(SeekFrom::Start(at)).and_then(|_| file.write_all(record)) {
            // What was written of the record is behind the last one, where it is not read.
            return Err(RunLogError::io(path, "append to", e));
        }
        *records += 1;
        self.last = step;
        Ok(())
    }

    /// Takes out every record of a step later than `step`, because these steps are about to be run again.
    ///
    /// # Errors
    /// [`RunLogError::Io`].
    pub fn truncate_after(&mut self, step: u64) -> Result<(), RunLogError> {
        if step < self.last {
            self.loads.records = self.loads.records_until(step)?;
            self.last = match self.loads.records.checked_sub(1) {
                Some(number) => self.loads.load(number)?.unwrap_or(0),
                None => 0,
            };
        }
        self.cut()
    }

    /// Adds the file to what a handle makes durable.
    ///
    /// # Errors
    /// [`RunLogError::Io`].
    pub fn synced_by(&self, sync: &mut LogSync) -> Result<(), RunLogError> {
        let Loads { file, path, .. } = &self.loads;
        let file = file.try_clone().map_err(|e| RunLogError::io(path, "open", e))?;
        sync.add(file, path);
        Ok(())
    }

    /// Makes everything appended so far survive a power cut.
    ///
    /// # Errors
    /// [`RunLogError::Io`].
    pub fn sync(&self) -> Result<(), RunLogError> {
        let Loads { file, path, .. } = &self.loads;
        file.sync_all().map_err(|e| RunLogError::io(path, "fsync", e))
    }
}

/// Moves the file of a run folder to `experts.other-N.loads`; nothing where there is none.
///
/// # Errors
/// [`RunLogError::Io`].
pub fn set_loads_aside(dir: &ConfinedDir) -> Result<(), RunLogError> {
    if !dir.exists(LOADS_FILE) {
        return Ok(());
    }
    let free = |name: &String| !dir.exists(name);
    let aside = (1..).map(|n| format!("experts.other-{n}.loads")).find(free).unwrap_or_default();
    let moved = dir.rename(LOADS_FILE, Path::new(&aside)).and_then(|()| dir.sync());
    moved.map_err(|e| RunLogError::io(&dir.path().join(LOADS_FILE), "move aside", e))
}
