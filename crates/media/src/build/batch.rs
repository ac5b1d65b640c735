//! Batches of samples, shared by threads and written in order.

use super::process::{Made, Processor};
use super::{BuildConfig, Counts, Encode, FAILURES_FILE};
use crate::hash::HashIndex;
use crate::pairs::{Event, RawSample};
use crate::shard::SetWriter;
use crate::{MediaError, Result, guarded};
use bessemer_durable::NewFile;
use std::io::Write;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Samples of a batch; not a multiple of the number of threads, which must not matter.
const BATCH: usize = 256;
/// Encoded bytes of a batch.
const BATCH_BYTES: u64 = 64 << 20;
/// Bytes of the arrays that a batch makes, as far as they are known beforehand.
const BATCH_ARRAY_BYTES: usize = 256 << 20;

/// A build in progress: events go in, files come out. For sources that [`super::build`] does not read itself.
#[derive(Debug)]
pub struct Builder<'a> {
    dir: PathBuf,
    config: &'a BuildConfig,
    writer: SetWriter,
    failures: NewFile,
    processors: Vec<Mutex<Processor<'a>>>,
    index: Option<HashIndex>,
    batch: Vec<Event>,
    batch_bytes: u64,
    most: usize,
    counts: Counts,
}

impl<'a> Builder<'a> {
    /// Starts a build in the folder `out`; a set that is there counts as unfinished from here on.
    ///
    /// # Errors
    /// [`MediaError::Argument`], [`MediaError::Io`].
    pub fn create(out: &Path, config: &'a BuildConfig, encode: &'a Encode<'a>) -> Result<Builder<'a>> {
        config.check()?;
        let index = config.near_duplicates.map(HashIndex::new).transpose()?;
        let scratch = |i: usize| out.join(format!(".video-{i}.scratch"));
        let processors = (0..config.threads)
            .map(|i| Processor::new(config, encode, scratch(i)).map(Mutex::new))
            .collect::<Result<Vec<_>>>()?;
        let writer = SetWriter::create(out, encode.vocab_size, encode.fingerprint, config.shard_bytes)?;
        let path = out.join(FAILURES_FILE);
        let failures = NewFile::create(&path).map_err(|e| MediaError::io(&path, "create", e))?;
        let element = config.normalised.map_or(1, |(_, d)| d.bytes());
        let picture = 3 * config.image_size * config.image_size * element;
        let audio = config.mels.unwrap_or(0) * config.audio_seconds * 100 * config.audio_dtype.bytes();
        let most = (BATCH_ARRAY_BYTES / picture.max(audio).max(1)).clamp(1, BATCH);
        Ok(Builder {
            dir: out.to_owned(),
            config,
            writer,
            failures,
            processors,
            index,
            batch: Vec::new(),
            batch_bytes: 0,
            most,
            counts: Counts::default(),
        })
    }

    /// Takes a sample or a failure; a full batch is made and written.
    ///
    /// # Errors
    /// [`MediaError::Io`], [`MediaError::Stopped`] if `progress` says so.
    pub fn push(&mut self, event: Event, progress: &mut dyn FnMut(&Counts) -> ControlFlow<()>) -> Result<()> {
        if let Event::Sample(raw) = &event {
            self.batch_bytes += raw.bytes();
        }
        self.batch.push(event);
        if self.batch.len() >= self.most || self.batch_bytes >= BATCH_BYTES {
            self.flush(progress)?;
        }
        Ok(())
    }

    fn flush(&mut self, progress: &mut dyn FnMut(&Counts) -> ControlFlow<()>) -> Result<()> {
        let batch = std::mem::take(&mut self.batch);
        self.batch_bytes = 0;
        let made = make_all(&self.processors, &batch);
        for (event, made) in batch.into_iter().zip(made) {
            match (event, made) {
                (Event::Failed { key, reason, detail }, _) => self.fail(&key, reason, &detail)?,
                (Event::Sample(raw), Some(Ok(made))) => {
                    self.counts.read += 1;
                    self.keep(&raw, &made)?;
                }
                // The disk is no business of one sample.
                (Event::Sample(_), Some(Err(e @ MediaError::Io { .. }))) => return Err(e),
                (Event::Sample(raw), Some(Err(e))) => {
                    self.counts.read += 1;
                    self.fail(&raw.key, e.reason(), &e.to_string())?;
                }
                (Event::Sample(_), None) => unreachable!("every sample of a batch is made"),
            }
        }
        match progress(&self.counts) {
            ControlFlow::Continue(()) => Ok(()),
            ControlFlow::Break(()) => Err(MediaError::Stopped),
        }
    }

    fn keep(&mut self, raw: &RawSample, made: &Made) -> Result<()> {
        if let (Some(index), Some(hash)) = (&mut self.index, made.phash) {
            if index.earliest(hash).is_some() {
                self.counts.near_duplicates += 1;
                return Ok(());
            }
            index.insert(hash);
        }
        match self.writer.push(&made.sample) {
            Ok(()) => {
                self.counts.kept += 1;
                Ok(())
            }
            Err(e @ MediaError::Sample(_)) => self.fail(&raw.key, e.reason(), &e.to_string()),
            Err(e) => Err(e),
        }
    }

    fn fail(&mut self, key: &str, reason: &str, detail: &str) -> Result<()> {
        *self.counts.failed.entry(reason.to_owned()).or_default() += 1;
        let line = serde_json::json!({ "key": key, "reason": reason, "detail": detail });
        let path = self.dir.join(FAILURES_FILE);
        writeln!(self.failures, "{line}").map_err(|e| MediaError::io(&path, "write", e))
    }

    /// Makes the last batch, and the list of the set.
    ///
    /// # Errors
    /// [`MediaError::Io`], [`MediaError::Stopped`].
    pub fn finish(mut self, progress: &mut dyn FnMut(&Counts) -> ControlFlow<()>) -> Result<Counts> {
        self.flush(progress)?;
        let path = self.dir.join(FAILURES_FILE);
        self.failures.commit().map_err(|e| MediaError::io(&path, "finish", e))?;
        let counts =
            serde_json::to_value(&self.counts).map_err(|e| MediaError::shard(&self.dir, e.to_string()))?;
        self.writer.finish(self.config.settings(), counts)?;
        Ok(self.counts)
    }
}

/// What each event of a batch makes, in order; `None` for events that are no samples.
fn make_all(processors: &[Mutex<Processor<'_>>], batch: &[Event]) -> Vec<Option<Result<Made>>> {
    let next = AtomicUsize::new(0);
    let work = |processor: &Mutex<Processor<'_>>| {
        let mut processor = processor.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let mut made = Vec::new();
        loop {
            let i = next.fetch_add(1, Ordering::Relaxed);
            match batch.get(i) {
                None => return made,
                Some(Event::Failed { .. }) => {}
                // Whatever fails inside, a tokenizer's panic included, costs this one sample.
                Some(Event::Sample(raw)) => made.push((i, guarded("sample", || processor.make(raw)))),
            }
        }
    };
    let mut all: Vec<Option<Result<Made>>> = (0..batch.len()).map(|_| None).collect();
    let mut place = |made: Vec<(usize, Result<Made>)>| made.into_iter().for_each(|(i, m)| all[i] = Some(m));
    if let [only] = processors {
        place(work(only));
        return all;
    }
    std::thread::scope(|scope| {
        let work = &work;
        let mut processors = processors.iter();
        let here = processors.next();
        // Without another thread the work is done by those that are there.
        let start = |p| std::thread::Builder::new().spawn_scoped(scope, move || work(p)).ok();
        let threads: Vec<_> = processors.map_while(start).collect();
        here.into_iter().for_each(|p| place(work(p)));
        threads.into_iter().for_each(|t| place(t.join().expect("a panic of a sample is caught")));
    });
    all
}
