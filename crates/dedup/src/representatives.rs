//! Verification: a document is dropped only if it is similar enough to one that is kept.
//!
//! Within a component of candidates documents are taken in order. Each is compared with the representatives so far
//! that share a band with it, lowest first; the first that is similar enough is the one it repeats, otherwise it is a
//! representative itself. So no chain a ~ b ~ c drops c for the sake of a, and the order of arrival plays no part.
//!
//! Similarity is exact: of the sets of 64-bit shingle hashes of the two texts, by merging them.
//!
//! Components know nothing of each other, so threads take runs of whole components; one that is larger than a run stays on the
//! calling thread, which reads it as it comes. The result is independent of the thread
//! that computes it; the join sorts the output rows.
//!
//! Memory: sets of representatives up to half of what is granted, then files; beside them 20 bytes for each band of each
//! representative of the largest component, and two runs of [`RUN_BYTES`] a thread. Time: at most [`PER_KEY`] comparisons for each band.

use crate::candidates::{check, words};
use crate::verdict::{Verdicts, weight};
use arrow_array::{Array, BinaryArray, FixedSizeBinaryArray, RecordBatch};
use bessemer_dataflow::{BreakerContext, Error, Input, Output, PipelineBreaker, Result, column};
use bessemer_documents::{DocKey, doc_key_column};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom, Write};
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::atomic::AtomicBool;
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::sync::{Mutex, PoisonError};

/// Representatives that are listed under one band key: bounds the work where thousands of different texts share a
/// boilerplate. The lowest are listed.
const PER_KEY: usize = 64;
/// Bytes of keys and sets that a thread is given at once.
const RUN_BYTES: usize = 1 << 20;

/// How candidates are verified.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Verify {
    /// Jaccard similarity of the sets of shingles: common over all.
    #[default]
    Jaccard,
    /// Containment: common over the smaller set, so that an excerpt counts as a duplicate.
    Containment,
    /// No verification: connected components of candidates are duplicates, as in datatrove. Chains, and drops what is not similar.
    None,
}

/// Common elements of two sorted sets.
pub(crate) fn common(a: &[u64], b: &[u64]) -> usize {
    let (mut i, mut j, mut count) = (0, 0, 0);
    while i < a.len() && j < b.len() {
        let (x, y) = (a[i], b[j]);
        // Without branches on the outcome, which is as good as random.
        count += usize::from(x == y);
        i += usize::from(x <= y);
        j += usize::from(y <= x);
    }
    count
}

impl Verify {
    /// The similarity of two sorted sets; 1 where nothing is verified.
    pub fn similarity(self, a: &[u64], b: &[u64]) -> f64 {
        if a.is_empty() || b.is_empty() {
            return if a.len() == b.len() { 1.0 } else { 0.0 };
        }
        match self {
            Verify::Jaccard => {
                let both = common(a, b);
                both as f64 / (a.len() + b.len() - both) as f64
            }
            Verify::Containment => common(a, b) as f64 / a.len().min(b.len()) as f64,
            Verify::None => 1.0,
        }
    }

    /// The most that sets of these sizes can reach.
    fn bound(self, a: usize, b: usize) -> f64 {
        match self {
            Verify::Jaccard => a.min(b) as f64 / a.max(b).max(1) as f64,
            Verify::Containment | Verify::None => 1.0,
        }
    }
}

/// Storage of a representative's set.
enum Stored {
    Memory(Vec<u64>),
    File { at: u64, length: usize },
}

/// Sets beyond the memory.
struct Overflow {
    path: PathBuf,
    file: Option<File>,
    end: u64,
}

impl Overflow {
    fn store(&mut self, set: &[u64]) -> Result<Stored> {
        if self.file.is_none() {
            let options = File::options().read(true).write(true).create_new(true).open(&self.path);
            self.file = Some(options.map_err(Error::io("create spill file", &self.path))?);
        }
        let bytes: Vec<u8> = set.iter().flat_map(|word| word.to_le_bytes()).collect();
        let at = self.end;
        if let Some(file) = &mut self.file {
            let written = file.seek(SeekFrom::Start(at)).and_then(|_| file.write_all(&bytes));
            written.map_err(Error::io("write spill file", &self.path))?;
        }
        self.end += bytes.len() as u64;
        Ok(Stored::File { at, length: set.len() })
    }

    fn load(&mut self, at: u64, length: usize, set: &mut Vec<u64>) -> Result<()> {
        let mut bytes = vec![0; 8 * length];
        if let Some(file) = &mut self.file {
            let read = file.seek(SeekFrom::Start(at)).and_then(|_| file.read_exact(&mut bytes));
            read.map_err(Error::io("read spill file", &self.path))?;
        }
        set.clear();
        set.extend(words(&bytes));
        Ok(())
    }
}

struct Representative {
    place: DocKey,
    gained: u64,
    length: usize,
    set: Stored,
}

/// The pipeline breaker. Rows come sorted by (`group`, `order`) and carry `bands`, `shingles` (sorted set, little-endian
/// words) and perhaps `copies`.
#[derive(Clone, Copy)]
pub(crate) struct Representatives {
    pub(crate) verify: Verify,
    pub(crate) similarity: f64,
}

/// A document that is to be verified.
struct Candidate {
    place: DocKey,
    copies: u64,
    /// First document of its component.
    first: bool,
    keys: Range<usize>,
    set: Range<usize>,
}

/// Documents after each other, with their keys and sets.
#[derive(Default)]
struct Run {
    candidates: Vec<Candidate>,
    /// Keys and sets.
    words: Vec<u64>,
}

impl Run {
    fn push(&mut self, place: DocKey, copies: u64, first: bool, keys: &[u8], set: &[u8]) {
        let mut add = |bytes: &[u8]| {
            let start = self.words.len();
            self.words.extend(words(bytes));
            start..self.words.len()
        };
        let (keys, set) = (add(keys), add(set));
        self.candidates.push(Candidate { place, copies, first, keys, set });
    }

    fn bytes(&self) -> usize {
        8 * self.words.len()
    }
}

struct State {
    how: Representatives,
    representatives: Vec<Representative>,
    by_key: HashMap<u64, Vec<u32>>,
    held: usize,
    memory: usize,
    overflow: Overflow,
    found: Verdicts,
    // Buffers.
    near: Vec<u32>,
    loaded: Vec<u64>,
}

impl State {
    fn new(how: Representatives, memory: usize, path: PathBuf) -> Self {
        State {
            how,
            representatives: Vec::new(),
            by_key: HashMap::new(),
            held: 0,
            memory,
            overflow: Overflow { path, file: None, end: 0 },
            found: Verdicts::default(),
            near: Vec::new(),
            loaded: Vec::new(),
        }
    }

    /// Decides on the documents of a run, which goes on where the last one ended.
    fn decide(&mut self, run: &Run, output: &mut Output<'_>) -> Result<()> {
        for candidate in &run.candidates {
            if candidate.first {
                self.end_component();
            }
            let (keys, set) = (&run.words[candidate.keys.clone()], &run.words[candidate.set.clone()]);
            match self.find(set, keys)? {
                Some((representative, similarity)) => {
                    self.representatives[representative].gained += candidate.copies;
                    let first = self.representatives[representative].place;
                    self.found.dropped(candidate.place, first, Some(similarity as f32));
                }
                None => self.lead(candidate.place, set, keys)?,
            }
            if let Some(batch) = self.found.full()? {
                output(batch)?;
            }
        }
        Ok(())
    }

    /// Ends the last component and gives out what is left.
    fn finish(&mut self, output: &mut Output<'_>) -> Result<()> {
        self.end_component();
        if let Some(batch) = self.found.flush()? { output(batch) } else { Ok(()) }
    }

    fn end_component(&mut self) {
        for representative in
            self.representatives.drain(..).filter(|representative| representative.gained > 0)
        {
            self.found.kept(representative.place, representative.gained);
        }
        self.by_key.clear();
        self.held = 0;
        // The file's space is used again from its beginning.
        self.overflow.end = 0;
    }

    /// The first representative that is similar enough, and how similar.
    fn find(&mut self, set: &[u64], keys: &[u64]) -> Result<Option<(usize, f64)>> {
        let how = self.how;
        self.near.clear();
        for key in keys {
            self.near.extend(self.by_key.get(key).into_iter().flatten());
        }
        self.near.sort_unstable();
        self.near.dedup();
        for &index in &self.near {
            let representative = &self.representatives[index as usize];
            if how.verify.bound(set.len(), representative.length) < how.similarity {
                continue;
            }
            let other = match &representative.set {
                Stored::Memory(set) => set,
                Stored::File { at, length } => {
                    self.overflow.load(*at, *length, &mut self.loaded)?;
                    &self.loaded
                }
            };
            let similarity = how.verify.similarity(set, other);
            if similarity >= how.similarity {
                return Ok(Some((index as usize, similarity)));
            }
        }
        Ok(None)
    }

    fn lead(&mut self, place: DocKey, set: &[u64], keys: &[u64]) -> Result<()> {
        let index = u32::try_from(self.representatives.len())
            .map_err(|_| Error::plan("verify", "a component has more than 2^32 representatives"))?;
        let stored = if self.held + 8 * set.len() <= self.memory {
            self.held += 8 * set.len();
            Stored::Memory(set.to_vec())
        } else {
            self.overflow.store(set)?
        };
        for &key in keys {
            let listed = self.by_key.entry(key).or_default();
            if listed.len() < PER_KEY {
                listed.push(index);
            }
        }
        self.representatives.push(Representative { place, gained: 0, length: set.len(), set: stored });
        Ok(())
    }
}

impl PipelineBreaker for Representatives {
    fn name(&self) -> &str {
        "verify"
    }

    fn run(
        &self,
        input: &mut Input<'_>,
        context: &BreakerContext<'_>,
        output: &mut Output<'_>,
    ) -> Result<()> {
        // One share for the calling thread, which takes components that are larger than a run.
        let others = if context.threads > 1 { context.threads } else { 0 };
        let memory = context.memory / 2 / (others + 1);
        let state = |index: usize| State::new(*self, memory, context.spill.join(format!("sets-{index}")));
        let (give, take) = sync_channel::<Run>(others.max(1));
        let take = Mutex::new(take);
        let (tell, told) = channel::<Result<RecordBatch>>();
        std::thread::scope(|scope| {
            for index in 1..=others {
                let (take, tell, state) = (&take, tell.clone(), &state);
                scope.spawn(move || work(state(index), take, &tell));
            }
            drop(tell);
            let mut feed = Feed {
                state: state(0),
                run: Run::default(),
                give,
                told,
                spread: others > 0,
                long: others == 0,
            };
            let fed = feed.all(self.name(), input, context.stop, output);
            let Feed { give, told, .. } = feed;
            // Without further runs the workers end, and with them what they tell.
            drop(give);
            for batch in told {
                if fed.is_ok() {
                    output(batch?)?;
                }
            }
            fed
        })
    }
}

/// Decides on runs of whole components until there are none. After an error runs are only taken away, so that nobody waits.
fn work(mut state: State, take: &Mutex<Receiver<Run>>, tell: &Sender<Result<RecordBatch>>) {
    let mut failed = false;
    loop {
        // The lock is held while waiting: whoever has it takes the next run.
        let run = take.lock().unwrap_or_else(PoisonError::into_inner).recv();
        let Ok(run) = run else { return };
        if failed {
            continue;
        }
        // Nobody listens any more only after an error of another's.
        let mut output = |batch: RecordBatch| {
            let _ = tell.send(Ok(batch));
            Ok(())
        };
        let work =
            AssertUnwindSafe(|| state.decide(&run, &mut output).and_then(|()| state.finish(&mut output)));
        let panicked = || Err(Error::Panicked { stage: "verify", message: "a worker ended".into() });
        if let Err(error) = catch_unwind(work).unwrap_or_else(|_| panicked()) {
            failed = true;
            let _ = tell.send(Err(error));
        }
    }
}

/// Cuts the rows into runs of whole components.
struct Feed {
    /// Of the calling thread.
    state: State,
    run: Run,
    give: SyncSender<Run>,
    told: Receiver<Result<RecordBatch>>,
    /// There are other threads.
    spread: bool,
    /// The run belongs to a component that the calling thread has begun.
    long: bool,
}

impl Feed {
    fn all(
        &mut self,
        name: &str,
        input: &mut Input<'_>,
        stop: &AtomicBool,
        output: &mut Output<'_>,
    ) -> Result<()> {
        let mut last: Option<Vec<u8>> = None;
        while let Some(batch) = input()? {
            check(stop)?;
            let orders = doc_key_column(name, &batch, "order")?;
            let components = doc_key_column(name, &batch, "group")?;
            let bands: &FixedSizeBinaryArray = column(name, &batch, "bands")?;
            let shingles: &BinaryArray = column(name, &batch, "shingles")?;
            for row in (0..batch.num_rows()).filter(|&row| !components.is_null(row)) {
                let first = last.as_deref() != Some(components.value(row));
                if first {
                    last = Some(components.value(row).to_vec());
                    if self.run.bytes() >= RUN_BYTES || self.long && self.spread {
                        self.hand_over(output)?;
                    }
                } else if self.run.bytes() >= RUN_BYTES {
                    // A component without end in sight: it is read as it comes.
                    self.long = true;
                    self.here(output)?;
                }
                let place = DocKey::of_bytes(orders.value(row));
                self.run.push(
                    place,
                    weight(name, &batch, row)?,
                    first,
                    bands.value(row),
                    shingles.value(row),
                );
                if self.long && self.run.bytes() >= RUN_BYTES {
                    self.here(output)?;
                }
            }
            for batch in self.told.try_iter() {
                output(batch?)?;
            }
        }
        self.hand_over(output)
    }

    /// Decides on the run on this thread; its component may go on.
    fn here(&mut self, output: &mut Output<'_>) -> Result<()> {
        self.state.decide(&std::mem::take(&mut self.run), output)
    }

    /// Ends the run with its component.
    fn hand_over(&mut self, output: &mut Output<'_>) -> Result<()> {
        if self.long {
            self.here(output)?;
            self.long = !self.spread;
            return self.state.finish(output);
        }
        for batch in self.told.try_iter() {
            output(batch?)?;
        }
        // The workers hold the other end until this one is gone.
        self.give.send(std::mem::take(&mut self.run)).map_err(|_| Error::plan("verify", "no worker is left"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn similarities() {
        let (a, b) = ([1, 2, 3, 4], [3, 4, 5]);
        assert_eq!(common(&a, &b), 2);
        assert_eq!(Verify::Jaccard.similarity(&a, &b), 2.0 / 5.0);
        assert_eq!(Verify::Containment.similarity(&a, &b), 2.0 / 3.0);
        assert_eq!(Verify::Jaccard.similarity(&a, &[]), 0.0);
        assert_eq!(Verify::Jaccard.similarity(&[], &[]), 1.0);
        assert_eq!(Verify::Jaccard.bound(3, 4), 0.75);
    }

    fn decide(memory: usize, documents: &[(&[u64], &[u64])]) -> Vec<Option<usize>> {
        let folder = tempfile::tempdir().unwrap();
        let how = Representatives { verify: Verify::Jaccard, similarity: 0.6 };
        let mut state = State::new(how, memory, folder.path().join("sets"));
        documents
            .iter()
            .enumerate()
            .map(|(row, (set, keys))| {
                let found = state.find(set, keys).unwrap();
                if found.is_none() {
                    state.lead(DocKey { split: 0, file: 0, row: row as u64 }, set, keys).unwrap();
                }
                found.map(|(representative, _)| state.representatives[representative].place.row as usize)
            })
            .collect()
    }

    #[test]
    fn chains_do_not_reach_the_far_end_and_memory_does_not_matter() {
        // Neighbours share four of six; 0 and 2 share three of seven.
        let chain: [(&[u64], &[u64]); 5] = [
            (&[1, 2, 3, 4, 5], &[7]),
            (&[2, 3, 4, 5, 6], &[7, 8]),
            (&[3, 4, 5, 6, 7], &[7, 8]),
            (&[4, 5, 6, 7, 8], &[8]),
            // Equal to the first, but no band in common: never compared.
            (&[1, 2, 3, 4, 5], &[9]),
        ];
        for memory in [0, 40, 1 << 20] {
            assert_eq!(decide(memory, &chain), [None, Some(0), None, Some(2), None]);
        }
    }
}
