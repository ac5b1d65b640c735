//! Verification: a document is dropped only if it is similar enough to one that is kept.
//!
//! Within a component of candidates documents are taken in order. Each is compared with the representatives so far
//! that share a band with it, lowest first; the first that is similar enough is the one it repeats, otherwise it is a
//! representative itself. So no chain a ~ b ~ c drops c for the sake of a, and the order of arrival plays no part.
//!
//! Similarity is exact: of the sets of 64-bit shingle hashes of the two texts, by merging them.
//!
//! Components know nothing of each other: each partition of whole components is worked on by itself, and the join sorts the output rows.
//!
//! Memory: sets of representatives up to half of what is granted, then files; beside them 20 bytes for each band of each
//! representative of the largest component. Time: at most [`PER_KEY`] comparisons for each band.

use crate::keys::{check, words};
use crate::verdict::{Verdicts, weight};
use arrow_array::{BinaryArray, FixedSizeBinaryArray};
use bessemer_corpus_config::dedup::Verify;
use bessemer_dataflow::{BreakerContext, Error, Input, Output, PipelineBreaker, Result, column};
use bessemer_documents::{DocKey, doc_key_column};
use bessemer_durable::ConfinedDir;
use std::collections::HashMap;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom, Write};

/// Representatives that are listed under one band key: bounds the work where thousands of different texts share a
/// boilerplate. The lowest are listed.
const PER_KEY: usize = 64;

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

/// The similarity of two sorted sets; 1 where nothing is verified.
pub fn similarity(verify: Verify, a: &[u64], b: &[u64]) -> f64 {
    if a.is_empty() || b.is_empty() {
        return if a.len() == b.len() { 1.0 } else { 0.0 };
    }
    match verify {
        Verify::Jaccard => {
            let both = common(a, b);
            both as f64 / (a.len() + b.len() - both) as f64
        }
        Verify::Containment => common(a, b) as f64 / a.len().min(b.len()) as f64,
        Verify::None => 1.0,
    }
}

/// The most that sets of these sizes can reach.
fn bound(verify: Verify, a: usize, b: usize) -> f64 {
    match verify {
        Verify::Jaccard => a.min(b) as f64 / a.max(b).max(1) as f64,
        Verify::Containment | Verify::None => 1.0,
    }
}

/// Storage of a representative's set.
enum Stored {
    Memory(Vec<u64>),
    File { at: u64, length: usize },
}

/// Name of the file of sets beyond the memory.
const SETS: &str = "sets";

/// Sets beyond the memory.
struct Overflow {
    folder: ConfinedDir,
    file: Option<File>,
    end: u64,
}

impl Overflow {
    fn store(&mut self, set: &[u64]) -> Result<Stored> {
        if self.file.is_none() {
            self.file = Some(self.folder.create_new(SETS).map_err(Error::System)?);
        }
        let bytes: Vec<u8> = set.iter().flat_map(|word| word.to_le_bytes()).collect();
        let at = self.end;
        if let Some(file) = &mut self.file {
            let written = file.seek(SeekFrom::Start(at)).and_then(|_| file.write_all(&bytes));
            written.map_err(Error::io("write spill file", &self.folder.path().join(SETS)))?;
        }
        self.end += bytes.len() as u64;
        Ok(Stored::File { at, length: set.len() })
    }

    fn load(&mut self, at: u64, length: usize, set: &mut Vec<u64>) -> Result<()> {
        let mut bytes = vec![0; 8 * length];
        if let Some(file) = &mut self.file {
            let read = file.seek(SeekFrom::Start(at)).and_then(|_| file.read_exact(&mut bytes));
            read.map_err(Error::io("read spill file", &self.folder.path().join(SETS)))?;
        }
        set.clear();
        set.extend(words(&bytes));
        Ok(())
    }
}

/// The set of a document that is kept.
struct Representative {
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

struct State {
    how: Representatives,
    /// Of the documents that `found` keeps, in its order.
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
    fn new(how: Representatives, memory: usize, folder: ConfinedDir) -> Self {
        State {
            how,
            representatives: Vec::new(),
            by_key: HashMap::new(),
            held: 0,
            memory,
            overflow: Overflow { folder, file: None, end: 0 },
            found: Verdicts::default(),
            near: Vec::new(),
            loaded: Vec::new(),
        }
    }

    fn end_component(&mut self) {
        self.found.end_group();
        self.representatives.clear();
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
            if bound(how.verify, set.len(), representative.length) < how.similarity {
                continue;
            }
            let other = match &representative.set {
                Stored::Memory(set) => set,
                Stored::File { at, length } => {
                    self.overflow.load(*at, *length, &mut self.loaded)?;
                    &self.loaded
                }
            };
            let similarity = similarity(how.verify, set, other);
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
        self.found.keep(place);
        self.representatives.push(Representative { length: set.len(), set: stored });
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
        let mut state = State::new(*self, context.memory / 2, context.spill.clone());
        let mut component: Option<Vec<u8>> = None;
        let (mut keys, mut set) = (Vec::new(), Vec::new());
        while let Some(batch) = input()? {
            check(context.stop)?;
            let orders = doc_key_column(self.name(), &batch, "order")?;
            let components = doc_key_column(self.name(), &batch, "group")?;
            let bands: &FixedSizeBinaryArray = column(self.name(), &batch, "bands")?;
            let shingles: &BinaryArray = column(self.name(), &batch, "shingles")?;
            for row in 0..batch.num_rows() {
                if component.as_deref() != Some(components.value(row)) {
                    state.end_component();
                    component = Some(components.value(row).to_vec());
                }
                keys.clear();
                keys.extend(words(bands.value(row)));
                set.clear();
                set.extend(words(shingles.value(row)));
                let place = DocKey::of_bytes(orders.value(row));
                match state.find(&set, &keys)? {
                    Some((index, similarity)) => {
                        let copies = weight(self.name(), &batch, row)?;
                        state.found.drop(place, copies, index, Some(similarity as f32));
                    }
                    None => state.lead(place, &set, &keys)?,
                }
                if let Some(batch) = state.found.full()? {
                    output(batch)?;
                }
            }
        }
        state.found.finish()?.map_or(Ok(()), output)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn similarities() {
        let (a, b) = ([1, 2, 3, 4], [3, 4, 5]);
        assert_eq!(common(&a, &b), 2);
        assert_eq!(similarity(Verify::Jaccard, &a, &b), 2.0 / 5.0);
        assert_eq!(similarity(Verify::Containment, &a, &b), 2.0 / 3.0);
        assert_eq!(similarity(Verify::Jaccard, &a, &[]), 0.0);
        assert_eq!(similarity(Verify::Jaccard, &[], &[]), 1.0);
        assert_eq!(bound(Verify::Jaccard, 3, 4), 0.75);
    }

    fn decide(memory: usize, documents: &[(&[u64], &[u64])]) -> Vec<Option<usize>> {
        let folder = tempfile::tempdir().unwrap();
        let how = Representatives { verify: Verify::Jaccard, similarity: 0.6 };
        let mut state = State::new(how, memory, ConfinedDir::open(folder.path()).unwrap());
        let mut kept = Vec::new();
        documents
            .iter()
            .enumerate()
            .map(|(row, (set, keys))| {
                let found = state.find(set, keys).unwrap();
                if found.is_none() {
                    state.lead(DocKey { split: 0, file: 0, row: row as u64 }, set, keys).unwrap();
                    kept.push(row);
                }
                found.map(|(representative, _)| kept[representative])
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

    /// Three of five are .6, the most that these sizes allow.
    #[test]
    fn a_similarity_at_the_limit_is_enough() {
        let excerpt: [(&[u64], &[u64]); 2] = [(&[1, 2, 3, 4, 5], &[7]), (&[1, 2, 3], &[7])];
        assert_eq!(decide(0, &excerpt), [None, Some(0)]);
    }
}
