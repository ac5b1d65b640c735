//! The search: anchors, repeated anchors, fingerprints of the windows after them, groups, verification.
//!
//! | step | sorted by | records of 16 bytes |
//! |---|---|---|
//! | 1 runs of all documents | hash of the anchor | one for about T / 4 bytes |
//! | 2 runs whose hash repeats | position | those |
//! | 3 windows of these runs | 80-bit fingerprint, position | one for each byte that may repeat |
//! | 4 windows of a group but its first, with the first | position | one for each byte that repeats |
//! | 5 verified ranges, kept ranges | position | one for each stretch |
//!
//! Steps 1 and 3 only ever say that windows *differ*; that they are equal is said by their bytes, which step 4
//! compares. If it finds two different windows of equal fingerprint the search begins anew with another seed, so
//! the result is exact whatever the fingerprints do.

use super::anchors::Anchors;
use super::error::{Error, Result};
use super::ranges::{Interval, aligned, merge, subtract};
use super::records::{Clip, extend, put, sorter};
use super::store::{Reader, Store};
use bessemer_corpus_config::dedup::SubstringConfig;
use bessemer_durable::ConfinedDir;
use bessemer_external_sort::{BUCKETS, Feed, SortMemory, SortedRecords, Sorter};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use xxhash_rust::xxh3::xxh3_128_with_seed;

/// Window starts that a thread takes at once.
const PIECE: u64 = 1 << 20;
/// Bits of a position.
const POSITION_BITS: u32 = 48;
/// Seeds tried before giving up.
const SEEDS: u64 = 8;

/// How large a search may be.
#[derive(Debug, Clone)]
pub struct Limits {
    /// Worker threads.
    pub threads: usize,
    /// Bytes to hold in memory; beyond them text and records go to disk. Documents cost 8 bytes each beside it.
    pub memory: usize,
    /// Folder for spill files.
    pub spill: ConfinedDir,
}

/// Collects documents and finds the substrings that repeat among them.
pub struct Finder {
    length: usize,
    limits: Limits,
    store: Store,
    fingerprint: fn(&[u8], u64) -> u128,
}

/// Stretches by position, and the text that they are stretches of.
pub struct Repeats {
    /// Removed bytes of each document that loses some: (ordinal of the document, ranges within it).
    documents: Vec<(u64, Vec<Range<u64>>)>,
    /// Bytes written to disk on the way.
    pub spilled_bytes: u64,
    /// Windows that equal an earlier one.
    pub repeated_windows: u64,
}

impl Repeats {
    /// Removed bytes of each document that loses some: its ordinal in the order of [`Finder::push`], and ranges of its bytes.
    pub fn documents(&self) -> &[(u64, Vec<Range<u64>>)] {
        &self.documents
    }

    /// Removed bytes of each document, by value.
    pub fn into_documents(self) -> Vec<(u64, Vec<Range<u64>>)> {
        self.documents
    }
}

/// State that the threads of one search share.
struct Search<'a> {
    length: usize,
    threads: usize,
    memory: usize,
    store: &'a Store,
    seed: u64,
    fingerprint: fn(&[u8], u64) -> u128,
}

/// The search found two windows of equal fingerprint and different bytes.
struct Collided;

impl Finder {
    /// For substrings of `length` bytes.
    ///
    /// # Errors
    /// A length outside [`SubstringConfig::MIN_LENGTH`] to [`SubstringConfig::MAX_LENGTH`], or no thread.
    pub fn new(length: usize, limits: Limits) -> Result<Finder> {
        let (least, most) = (SubstringConfig::MIN_LENGTH, SubstringConfig::MAX_LENGTH);
        if !(least..=most).contains(&length) {
            return Err(Error::Config(format!(
                "substring length {length}: expected {least} to {most} bytes"
            )));
        }
        if limits.threads == 0 {
            return Err(Error::Config("substring search with 0 threads: expected at least 1".into()));
        }
        let store = Store::new(limits.memory / 4, limits.spill.clone());
        Ok(Finder { length, limits, store, fingerprint: xxh3_128_with_seed })
    }

    /// Adds a document.
    pub fn push(&mut self, document: &[u8]) -> Result<()> {
        self.store.push(document)
    }

    /// Finds the ranges.
    ///
    /// # Errors
    /// The disk's refusal, more than 2^48 bytes, or `stop` was raised.
    pub fn finish(mut self, stop: &AtomicBool) -> Result<Repeats> {
        self.store.finish()?;
        if self.store.len() >> POSITION_BITS != 0 {
            return Err(Error::Config(format!(
                "{} bytes: the search numbers 2^{POSITION_BITS} at most; split the corpus",
                self.store.len()
            )));
        }
        for seed in 0..SEEDS {
            let search = Search {
                length: self.length,
                threads: self.limits.threads,
                memory: self.limits.memory / 4 / self.limits.threads,
                store: &self.store,
                seed,
                fingerprint: self.fingerprint,
            };
            // Four sorters may hold three eighths beyond the limit.
            let memory = SortMemory::new(self.limits.memory / 8 * 3, &self.limits.spill, 1).with_stop(stop);
            if let Ok(documents) = search.run(&memory)? {
                let repeated_windows = documents.1;
                let spilled_bytes = self.store.spilled() + memory.spilled();
                return Ok(Repeats { documents: documents.0, spilled_bytes, repeated_windows });
            }
        }
        Err(Error::Collision { seeds: SEEDS })
    }
}

type Found = (Vec<(u64, Vec<Range<u64>>)>, u64);

impl Search<'_> {
    /// Runs `work` on numbers below `count`, on all threads.
    fn parallel(
        &self,
        count: u64,
        work: impl Fn(&mut dyn FnMut() -> Option<u64>) -> Result<()> + Sync,
    ) -> Result<()> {
        let next = AtomicU64::new(0);
        let failed: Mutex<Option<Error>> = Mutex::new(None);
        let one = || {
            let mut take = || {
                let number = next.fetch_add(1, Ordering::Relaxed);
                (number < count).then_some(number)
            };
            if let Err(error) = work(&mut take) {
                next.store(count, Ordering::Relaxed);
                failed.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
            }
        };
        if self.threads == 1 || count < 2 {
            one();
        } else {
            std::thread::scope(|scope| {
                for _ in 1..self.threads.min(count as usize) {
                    // Without another thread the work is done by those that are there.
                    if std::thread::Builder::new().spawn_scoped(scope, one).is_err() {
                        break;
                    }
                }
                one();
            });
        }
        failed.lock().unwrap_or_else(PoisonError::into_inner).take().map_or(Ok(()), Err)
    }

    fn run(&self, memory: &SortMemory<'_>) -> Result<std::result::Result<Found, Collided>> {
        let total = self.store.len();
        let hot = sorter(memory, total);
        {
            let anchors = sorter(memory, u64::MAX);
            self.anchors(&anchors)?;
            self.repeated_anchors(&anchors, &hot)?;
        }
        let (pairs, firsts) = (sorter(memory, total), sorter(memory, total));
        {
            let windows = sorter(memory, u64::MAX);
            self.windows(&hot, &windows)?;
            self.groups(&windows, &pairs, &firsts)?;
        }
        drop(hot);
        let (marks, keeps) = (sorter(memory, total), sorter(memory, total));
        let repeated = AtomicU64::new(0);
        if self.verify(&pairs, &marks, &repeated)?.is_err() {
            return Ok(Err(Collided));
        }
        drop(pairs);
        self.kept(&firsts, &keeps)?;
        drop(firsts);
        let documents = self.by_document(marks.finish(), keeps.finish())?;
        Ok(Ok((documents, repeated.into_inner())))
    }

    /// Hands the records of a bucket to `take`, in order.
    fn drain(
        &self,
        sorter: &Sorter<'_, u64>,
        bucket: u64,
        mut take: impl FnMut([u64; 2]) -> Result<()>,
    ) -> Result<()> {
        sorter.drain(bucket as usize, self.memory, |record| {
            record.first_chunk().map_or(Ok(()), |record| take(*record))
        })
    }

    /// Step 1.
    fn anchors(&self, sorter: &Sorter<'_, u64>) -> Result<()> {
        let total = self.store.len();
        self.parallel(total.div_ceil(PIECE), |take| {
            let (mut reader, mut feed) = (self.store.reader(), sorter.feed());
            let mut anchors = Anchors::new(self.length);
            while let Some(piece) = take() {
                let end = total.min((piece + 1) * PIECE);
                self.anchors_between(piece * PIECE, end, &mut reader, &mut anchors, &mut feed)?;
            }
            Ok(feed.finish()?)
        })
    }

    /// Runs of the windows that begin from `low` to below `high`.
    fn anchors_between(
        &self,
        low: u64,
        high: u64,
        reader: &mut Reader<'_>,
        anchors: &mut Anchors,
        feed: &mut Feed<'_, '_, u64>,
    ) -> Result<()> {
        let ends = self.store.ends();
        let mut document = ends.partition_point(|&end| end <= low);
        let mut start = low;
        while start < high && document < ends.len() {
            let end = ends[document].min(high + self.length as u64 - 1);
            let mut outcome = Ok(());
            if end > start {
                let text = reader.get(start, (end - start) as usize)?;
                anchors.runs(text, |run| {
                    let place =
                        (start + run.start as u64) << 16 | (run.windows as u64) << 1 | u64::from(run.tied);
                    if outcome.is_ok() {
                        outcome = put(feed, run.hash, place);
                    }
                });
            }
            outcome?;
            start = ends[document];
            document += 1;
        }
        Ok(())
    }

    /// Step 2: runs whose anchor's hash occurs twice.
    fn repeated_anchors(&self, anchors: &Sorter<'_, u64>, hot: &Sorter<'_, u64>) -> Result<()> {
        self.parallel(BUCKETS as u64, |take| {
            let mut feed = hot.feed();
            while let Some(bucket) = take() {
                // A record waits until the next one says whether its hash goes on.
                let mut waiting: Option<([u64; 2], bool)> = None;
                let mut settle = |[_, run]: [u64; 2], repeated: bool| -> Result<()> {
                    if repeated || run & 1 == 1 {
                        put(&mut feed, run >> 16, (run & 0xFFFF) >> 1)?;
                    }
                    Ok(())
                };
                self.drain(anchors, bucket, |record| {
                    let same = waiting.is_some_and(|(before, _)| before[0] == record[0]);
                    if let Some((before, repeated)) = waiting.replace((record, same)) {
                        settle(before, repeated || same)?;
                    }
                    Ok(())
                })?;
                if let Some((record, repeated)) = waiting {
                    settle(record, repeated)?;
                }
            }
            Ok(feed.finish()?)
        })
    }

    /// Step 3: fingerprints of the windows of repeated runs.
    fn windows(&self, hot: &Sorter<'_, u64>, windows: &Sorter<'_, u64>) -> Result<()> {
        let low = (1u64 << POSITION_BITS) - 1;
        self.parallel(BUCKETS as u64, |take| {
            let (mut reader, mut feed) = (self.store.reader(), windows.feed());
            while let Some(bucket) = take() {
                self.drain(hot, bucket, |[start, count]| {
                    let text = reader.get(start, count as usize + self.length - 1)?;
                    for (index, window) in text.windows(self.length).enumerate() {
                        let print = (self.fingerprint)(window, self.seed);
                        let (high, rest) = ((print >> 64) as u64, print as u64 & !low);
                        put(&mut feed, high, rest | (start + index as u64))?;
                    }
                    Ok(())
                })?;
            }
            Ok(feed.finish()?)
        })
    }

    /// Groups of equal fingerprint: the lowest position is the first.
    fn groups(
        &self,
        windows: &Sorter<'_, u64>,
        pairs: &Sorter<'_, u64>,
        firsts: &Sorter<'_, u64>,
    ) -> Result<()> {
        let low = (1u64 << POSITION_BITS) - 1;
        self.parallel(BUCKETS as u64, |take| {
            let (mut pair_feed, mut first_feed) = (pairs.feed(), firsts.feed());
            while let Some(bucket) = take() {
                let mut group: Option<([u64; 2], u64, bool)> = None;
                self.drain(windows, bucket, |[high, rest]| {
                    let (print, position) = ([high, rest >> POSITION_BITS], rest & low);
                    match &mut group {
                        Some((known, first, is_put)) if *known == print => {
                            put(&mut pair_feed, position, *first)?;
                            if !std::mem::replace(is_put, true) {
                                put(&mut first_feed, *first, 0)?;
                            }
                        }
                        _ => group = Some((print, position, false)),
                    }
                    Ok(())
                })?;
            }
            pair_feed.finish()?;
            Ok(first_feed.finish()?)
        })
    }

    /// Step 4: compares each window with its group's first, byte by byte, and joins neighbours.
    fn verify(
        &self,
        pairs: &Sorter<'_, u64>,
        marks: &Sorter<'_, u64>,
        repeated: &AtomicU64,
    ) -> Result<std::result::Result<(), Collided>> {
        let collided = AtomicU64::new(0);
        let length = self.length as u64;
        self.parallel(BUCKETS as u64, |take| {
            let (mut near, mut far, mut feed) = (self.store.reader(), self.store.reader(), marks.feed());
            while let Some(bucket) = take() {
                let mut before: Option<(u64, u64)> = None;
                let mut stretch: Option<Interval> = None;
                let mut count = 0;
                self.drain(pairs, bucket, |[position, first]| {
                    count += 1;
                    // Where both windows move by one, one byte is new.
                    let known = before.is_some_and(|(p, f)| p + 1 == position && f + 1 == first);
                    let (skip, rest) = if known { (length - 1, 1) } else { (0, self.length) };
                    if near.get(position + skip, rest)? != far.get(first + skip, rest)? {
                        collided.store(1, Ordering::Relaxed);
                    }
                    before = Some((position, first));
                    extend(&mut stretch, (position, position + length), &mut feed)
                })?;
                if let Some((start, end)) = stretch {
                    put(&mut feed, start, end)?;
                }
                repeated.fetch_add(count, Ordering::Relaxed);
            }
            Ok(feed.finish()?)
        })?;
        Ok(if collided.into_inner() == 0 { Ok(()) } else { Err(Collided) })
    }

    /// Step 5: ranges of the first windows.
    fn kept(&self, firsts: &Sorter<'_, u64>, keeps: &Sorter<'_, u64>) -> Result<()> {
        self.parallel(BUCKETS as u64, |take| {
            let mut feed = keeps.feed();
            while let Some(bucket) = take() {
                let mut stretch = None;
                self.drain(firsts, bucket, |[first, _]| {
                    extend(&mut stretch, (first, first + self.length as u64), &mut feed)
                })?;
                if let Some((start, end)) = stretch {
                    put(&mut feed, start, end)?;
                }
            }
            Ok(feed.finish()?)
        })
    }

    /// Cuts stretches at documents, widens them to characters and lets kept bytes win.
    fn by_document(
        &self,
        marks: SortedRecords<'_, u64>,
        keeps: SortedRecords<'_, u64>,
    ) -> Result<Vec<(u64, Vec<Range<u64>>)>> {
        let (mut marks, mut keeps) = (Clip::new(marks)?, Clip::new(keeps)?);
        let mut reader = self.store.reader();
        let (mut found, mut start) = (Vec::new(), 0);
        for (ordinal, &end) in self.store.ends().iter().enumerate() {
            let marked = marks.within(start, end)?;
            let kept = keeps.within(start, end)?;
            if !marked.is_empty() {
                let marked = self.characters(marked, start, end, &mut reader)?;
                let kept = self.characters(kept, start, end, &mut reader)?;
                let ranges: Vec<Range<u64>> = subtract(&marked, &kept)
                    .into_iter()
                    .map(|(low, high)| low - start..high - start)
                    .collect();
                if !ranges.is_empty() {
                    found.push((ordinal as u64, ranges));
                }
            }
            start = end;
        }
        Ok(found)
    }

    /// Ranges of a document widened to characters, reading a few bytes around each end.
    fn characters(
        &self,
        ranges: Vec<Interval>,
        start: u64,
        end: u64,
        reader: &mut Reader<'_>,
    ) -> Result<Vec<Interval>> {
        let mut wide = Vec::with_capacity(ranges.len());
        for (low, high) in ranges {
            let from = low.saturating_sub(3).max(start);
            let head = reader.get(from, ((low + 1).min(end) - from) as usize)?;
            let first = aligned(head, (low - from, low - from)).0 + from;
            let to = (high + 3).min(end);
            let tail = reader.get(high, (to - high) as usize)?;
            wide.push((first, aligned(tail, (0, 0)).1 + high));
        }
        merge(&mut wide);
        Ok(wide)
    }
}

#[cfg(test)]
impl Finder {
    /// With another fingerprint function.
    pub(super) fn with_fingerprint(mut self, fingerprint: fn(&[u8], u64) -> u128) -> Finder {
        self.fingerprint = fingerprint;
        self
    }
}
