//! Semantic deduplication as stages of a plan: embeddings, one pipeline breaker, verdicts.

use super::kmeans::{Centres, Settings, kmeans};
use super::{dot, hashed_bag, normalise};
use crate::keys::{KeptRows, check, names, with_keys};
use crate::verdict::{self, DropDuplicates, Verdicts, weight};
use arrow_array::{Array, BinaryArray, RecordBatch};
use bessemer_corpus_config::dedup::{Keep, SemanticConfig};
use bessemer_dataflow::{
    BatchMap, BreakerContext, Error, Input, Output, PipelineBreaker, Result, Stage, column,
};
use bessemer_documents::{DocKey, doc_key_column};
use bessemer_durable::ConfinedDir;
use bessemer_external_sort::{SortMemory, SortedWords, WordSorter};
use bessemer_units::splitmix::{mix, nth};
use std::fs::File;
use std::io::{BufReader, BufWriter, Read, Write};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::Arc;

/// Points that are assigned at once.
const CHUNK: usize = 4096;

/// The map that adds `embedding`, of length 1, as little-endian floats; null for documents that are dropped or have none.
pub(crate) fn keys(config: &SemanticConfig) -> Stage {
    Stage::Map(Arc::new(Embeddings { config: config.clone() }))
}

/// The stages of semantic deduplication behind [`keys`].
pub(crate) fn stages(config: &SemanticConfig) -> Vec<Stage> {
    let (reason, says, key) = ("semantic-duplicate", "cosine similarity with", "embedding");
    vec![
        Stage::SideJoin {
            name: "semantic".into(),
            project: names(&["file", "row", "split", "reason", "copies", key]),
            side: vec![
                Stage::FlatMap(Arc::new(KeptRows { key: None })),
                Stage::PipelineBreaker(Arc::new(SemDeDup { config: config.clone() })),
            ],
            adds: verdict::adds(),
        },
        Stage::Map(Arc::new(DropDuplicates { reason, says, key })),
    ]
}

struct Embeddings {
    config: SemanticConfig,
}

impl BatchMap for Embeddings {
    fn name(&self) -> &str {
        "embeddings"
    }

    fn apply(&self, batch: RecordBatch) -> Result<RecordBatch> {
        let given: Option<&BinaryArray> = match self.config.column.as_str() {
            "" => None,
            name => Some(column(self.name(), &batch, name)?),
        };
        let (mut vector, mut words) = (vec![0.0; self.config.dimensions], Vec::new());
        with_keys(self.name(), &batch, "embedding", None, |row, text, bytes| {
            let there = match given {
                Some(given) => {
                    vector.resize(given.value(row).len() / 4, 0.0);
                    decode(given.value(row), &mut vector);
                    !given.is_null(row) && normalise(&mut vector)
                }
                None => hashed_bag(text, &mut words, &mut vector),
            };
            bytes.extend(vector.iter().flat_map(|x| x.to_le_bytes()));
            there
        })
    }
}

/// Name of the file of vectors.
const VECTORS: &str = "vectors";

/// Vectors in a file.
struct Vectors {
    folder: ConfinedDir,
    /// Path of the file, for messages.
    path: PathBuf,
    dimensions: usize,
    count: u64,
    writer: Option<BufWriter<File>>,
}

impl Vectors {
    fn new(folder: ConfinedDir) -> Self {
        let path = folder.path().join(VECTORS);
        Vectors { folder, path, dimensions: 0, count: 0, writer: None }
    }

    fn push(&mut self, bytes: &[u8]) -> Result<()> {
        if self.writer.is_none() {
            let file = self.folder.create_new(VECTORS).map_err(Error::System)?;
            self.writer = Some(BufWriter::with_capacity(1 << 20, file));
            self.dimensions = bytes.len() / 4;
        }
        self.count += 1;
        match &mut self.writer {
            Some(writer) => writer.write_all(bytes).map_err(Error::io("write spill file", &self.path)),
            None => Ok(()),
        }
    }

    /// The file, to be read from its beginning; none if there is no vector.
    fn finish(&mut self) -> Result<Option<BufReader<File>>> {
        let Some(mut writer) = self.writer.take() else { return Ok(None) };
        writer.flush().map_err(Error::io("write spill file", &self.path))?;
        self.reader().map(Some)
    }

    fn open(&self) -> Result<File> {
        self.folder.open_file(VECTORS).map_err(Error::System)
    }

    fn reader(&self) -> Result<BufReader<File>> {
        Ok(BufReader::with_capacity(1 << 20, self.open()?))
    }

    /// Reads the vectors that follow. `bytes` is scratch memory.
    fn read(&self, reader: &mut BufReader<File>, bytes: &mut Vec<u8>, out: &mut [f32]) -> Result<()> {
        bytes.resize(4 * out.len(), 0);
        reader.read_exact(bytes).map_err(Error::io("read spill file", &self.path))?;
        decode(bytes, out);
        Ok(())
    }

    /// Reads one vector, and no byte beside it: what is wanted next lies anywhere in the file.
    fn read_at(&self, file: &File, bytes: &mut Vec<u8>, index: u64, out: &mut [f32]) -> Result<()> {
        bytes.resize(4 * out.len(), 0);
        let offset = index * 4 * self.dimensions as u64;
        file.read_exact_at(bytes, offset).map_err(Error::io("read spill file", &self.path))?;
        decode(bytes, out);
        Ok(())
    }
}

fn decode(bytes: &[u8], out: &mut [f32]) {
    for (x, bytes) in out.iter_mut().zip(bytes.as_chunks::<4>().0) {
        *x = f32::from_le_bytes(*bytes);
    }
}

/// The pipeline breaker.
struct SemDeDup {
    config: SemanticConfig,
}

/// A document: place and weight.
type Entry = (DocKey, u64);

impl SemDeDup {
    /// Centres of the sample: about `sample` documents, chosen by a hash of their places.
    fn centres(&self, vectors: &Vectors, entries: &[Entry], context: &BreakerContext<'_>) -> Result<Centres> {
        let share = (self.config.sample as f64 / entries.len() as f64).min(1.0);
        let below = (share * u64::MAX as f64) as u64;
        let mut sample = Vec::new();
        let mut vector = vec![0.0; vectors.dimensions];
        let (mut reader, mut bytes) = (vectors.reader()?, Vec::new());
        for (place, _) in entries {
            vectors.read(&mut reader, &mut bytes, &mut vector)?;
            let [high, low] = place.words();
            if nth(self.config.seed ^ mix(high), low) <= below {
                sample.extend_from_slice(&vector);
            }
        }
        let settings = Settings {
            clusters: match self.config.clusters {
                0 => ((entries.len() as f64).sqrt().ceil() as usize).max(1),
                clusters => clusters,
            },
            iterations: self.config.iterations,
            tolerance: self.config.tolerance,
            seed: self.config.seed,
            threads: context.threads,
        };
        let centres = kmeans(&sample, vectors.dimensions, &settings, context.stop);
        check(context.stop)?;
        Ok(centres)
    }

    /// (cluster, rank, index) in order: the rank is what `keep` prefers.
    fn rank(&self, cosine: f32, index: u64) -> u64 {
        // Cosines lie in [-1, 1]; 2 + cosine is positive, so its bits order as its values.
        let bits = u64::from((2.0 + cosine).to_bits());
        match self.config.keep {
            Keep::First => index,
            Keep::Hard => bits,
            Keep::Easy => u64::MAX - bits,
        }
    }

    fn judge(
        &self,
        vectors: &Vectors,
        entries: &[Entry],
        order: &mut SortedWords<'_, 3>,
        context: &BreakerContext<'_>,
        output: &mut Output<'_>,
    ) -> Result<()> {
        let dimensions = vectors.dimensions;
        let (file, mut bytes) = (vectors.open()?, Vec::new());
        let mut vector = vec![0.0; dimensions];
        let (mut cluster, mut found) = (None, Verdicts::default());
        // Vectors of the documents of the cluster that are kept, one after the other.
        let mut kept: Vec<f32> = Vec::new();
        let least = (1.0 - self.config.eps) as f32;
        while let Some([of, _, index]) = order.next()? {
            if cluster != Some(of) {
                check(context.stop)?;
                cluster = Some(of);
                found.end_group();
                kept.clear();
            }
            vectors.read_at(&file, &mut bytes, index, &mut vector)?;
            let mut cosines = kept.chunks_exact(dimensions).map(|other| dot(other, &vector)).enumerate();
            let close = cosines.find(|(_, cosine)| *cosine >= least);
            let (place, weight) = entries[index as usize];
            match close {
                Some((which, cosine)) => found.drop(place, weight, which, Some(cosine)),
                None => {
                    found.keep(place);
                    kept.extend_from_slice(&vector);
                }
            }
            if let Some(batch) = found.full()? {
                output(batch)?;
            }
        }
        found.finish()?.map_or(Ok(()), output)
    }
}

impl PipelineBreaker for SemDeDup {
    fn name(&self) -> &str {
        "semdedup"
    }

    fn run(
        &self,
        input: &mut Input<'_>,
        context: &BreakerContext<'_>,
        output: &mut Output<'_>,
    ) -> Result<()> {
        let mut vectors = Vectors::new(context.spill.clone());
        let mut entries: Vec<Entry> = Vec::new();
        let mut documents = 0;
        while let Some(batch) = input()? {
            documents += batch.num_rows();
            let orders = doc_key_column(self.name(), &batch, "order")?;
            let embeddings: &BinaryArray = column(self.name(), &batch, "embedding")?;
            for row in (0..batch.num_rows()).filter(|&row| !embeddings.is_null(row)) {
                if vectors.count > 0 && embeddings.value(row).len() != 4 * vectors.dimensions {
                    let (found, wanted) = (embeddings.value(row).len() / 4, vectors.dimensions);
                    return Err(Error::plan(
                        self.name(),
                        format!(
                            "the embedding of {:?} has {found} dimensions; wanted {wanted}, as the first has",
                            DocKey::of_bytes(orders.value(row))
                        ),
                    ));
                }
                vectors.push(embeddings.value(row))?;
                entries.push((DocKey::of_bytes(orders.value(row)), weight(self.name(), &batch, row)?));
            }
        }
        let Some(mut reader) = vectors.finish()? else {
            return match (documents, self.config.column.as_str()) {
                (0, _) | (_, "") => Ok(()),
                (_, name) => Err(Error::plan(
                    self.name(),
                    format!("no document of {documents} has a vector in the column {name:?}"),
                )),
            };
        };
        // Rows arrive by (file, row); the split leads the order in which they are kept.
        let mut by_place: Vec<u64> = (0..vectors.count).collect();
        by_place.sort_unstable_by_key(|&index| entries[index as usize].0);
        let mut rank_of = vec![0; entries.len()];
        by_place.iter().enumerate().for_each(|(rank, &index)| rank_of[index as usize] = rank as u64);
        drop(by_place);
        let centres = self.centres(&vectors, &entries, context)?;
        let memory =
            SortMemory::new(context.memory / 4, context.spill, context.threads).with_stop(context.stop);
        let mut order = WordSorter::<3>::new(&memory);
        let (mut index, mut bytes) = (0, Vec::new());
        while index < vectors.count {
            check(context.stop)?;
            let count = (vectors.count - index).min(CHUNK as u64) as usize;
            let mut points = vec![0.0; count * vectors.dimensions];
            vectors.read(&mut reader, &mut bytes, &mut points)?;
            for (cluster, cosine) in centres.assign(&points, context.threads) {
                order.push([cluster as u64, self.rank(cosine, rank_of[index as usize]), index])?;
                index += 1;
            }
        }
        self.judge(&vectors, &entries, &mut order.finish(), context, output)
    }
}
