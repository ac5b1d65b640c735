//! Estimate of what the rules of a configuration keep, from a sample of its input.

use crate::build::as_maps;
use crate::check;
use crate::compose;
use crate::error::{Error, Result};
use crate::output::summary::Count;
use crate::source::{self, Source};
use crate::split::Assign;
use arrow_array::RecordBatch;
use bessemer_corpus_config::CorpusConfig;
use bessemer_dataflow::{Executor, Morsel, Plan, Scan, Sink, optional};
use bessemer_documents::Rows;
use bessemer_durable::ConfinedDir;
use std::collections::{BTreeMap, VecDeque};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Morsels of a sample, of about a MiB each.
const MORSELS: usize = 12;
/// Runs of files that a sample is taken from, spread over all.
const RUNS: usize = 4;
/// Bytes of rows that a sample may hold in memory.
const MEMORY: usize = 256 << 20;

/// Sample of an input, after the rules.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Sample {
    /// Documents read; a long text that is cut counts as its parts.
    pub read: Count,
    /// Documents kept, with the bytes of their texts.
    pub kept: Count,
    /// Dropped documents by reason.
    pub dropped: BTreeMap<String, Count>,
    /// Files of the whole input.
    pub files: u64,
    /// Bytes of these as they are stored.
    pub stored: u64,
    /// Whether the sample is the whole input.
    pub is_whole: bool,
}

impl Sample {
    /// Bytes of text that the rules keep of an input that holds about `bytes` of text.
    pub fn kept_of(&self, bytes: u64) -> u64 {
        match self.is_whole {
            true => self.kept.bytes,
            false => {
                (u128::from(bytes) * u128::from(self.kept.bytes) / u128::from(self.read.bytes.max(1))) as u64
            }
        }
    }
}

/// Runs the rules of a configuration over a part of its input: the beginnings of some runs of files. What documents do to each
/// other, such as duplicates, shows only within the sample. `spill` is an existing directory for rows that memory does not hold.
///
/// # Errors
/// Errors of a build that concern the configuration and the source.
pub fn sample(config: &CorpusConfig, threads: usize, spill: &Path, stop: &AtomicBool) -> Result<Sample> {
    check(config).map_err(Error::Config)?;
    let config = &*config.of_documents();
    let source = source::open(config)?;
    let listing = source.listing();
    let assign = Assign::resolve(&config.split, listing)?;
    let mut sample = Sample { files: listing.files, stored: listing.bytes, ..Sample::default() };
    let head = Arc::new(Head { source: source.clone(), has_more: Arc::default() });
    let stages = compose::plan(config, source, assign, as_maps(&Default::default()))?.stages;
    let plan = Plan { source: head.clone(), stages };
    let spill = ConfinedDir::open_named(spill).map_err(Error::System)?;
    Executor::new(threads, MEMORY, &spill, stop, &|| {}).run(&plan, &mut Counts(&mut sample))?;
    sample.is_whole = !head.has_more.load(Ordering::Relaxed);
    Ok(sample)
}

/// The rows of a sample.
struct Head {
    source: Arc<dyn Source>,
    /// Whether the source has rows that are not in the sample.
    has_more: Arc<AtomicBool>,
}

impl bessemer_dataflow::Source for Head {
    fn describe(&self) -> String {
        format!("a sample of {}", self.source.describe())
    }

    fn scan(&self) -> bessemer_dataflow::Result<Box<dyn Scan>> {
        let files = self.source.file_bytes().len();
        let runs = RUNS.min(files);
        let start = |run: usize| files * run / runs.max(1);
        let scans: bessemer_dataflow::Result<VecDeque<Box<dyn Scan>>> = match runs {
            0 => self.source.scan().map(|scan| [scan].into()),
            _ => (0..runs).map(|run| self.source.scan_files(start(run)..start(run + 1))).collect(),
        };
        let each = MORSELS / runs.max(1);
        Ok(Box::new(HeadScan { scans: scans?, each, left: each, has_more: self.has_more.clone() }))
    }
}

struct HeadScan {
    scans: VecDeque<Box<dyn Scan>>,
    /// Morsels that are taken of each scan, and those that are left of the first.
    each: usize,
    left: usize,
    has_more: Arc<AtomicBool>,
}

impl Scan for HeadScan {
    fn next(&mut self) -> bessemer_dataflow::Result<Option<Morsel>> {
        while let Some(scan) = self.scans.front_mut() {
            if let Some(morsel) = scan.next()? {
                if self.left > 0 {
                    self.left -= 1;
                    return Ok(Some(morsel));
                }
                self.has_more.store(true, Ordering::Relaxed);
            }
            self.scans.pop_front();
            self.left = self.each;
        }
        Ok(None)
    }
}

struct Counts<'a>(&'a mut Sample);

impl Sink for Counts<'_> {
    fn write(&mut self, batch: &RecordBatch) -> bessemer_dataflow::Result<()> {
        let rows = Rows::of("sample", batch)?;
        for index in 0..batch.num_rows() {
            let bytes = rows.bytes.value(index);
            self.0.read.add(bytes);
            match optional(rows.reason, index) {
                None => self.0.kept.add(rows.text.value(index).len() as u64),
                Some(reason) => Count::add_to(&mut self.0.dropped, reason, bytes),
            }
        }
        Ok(())
    }
}
