//! Semantic deduplication as stages of a plan: embeddings, one operator, verdicts.

use super::kmeans::{Centres, Settings, kmeans};
use super::{Keep, SemanticConfig, dot, hashed_bag, normalise};
use crate::candidates::check;
use crate::exact::{names, with_order};
use crate::mix::{mix, stream};
use crate::place::{Place, place_column};
use crate::sorter::{Sorter, Space};
use crate::verdict::{self, DropDuplicates, Verdicts, weight};
use arrow_array::builder::FixedSizeBinaryBuilder;
use arrow_array::{Array, FixedSizeBinaryArray, FixedSizeListArray, Float32Array, RecordBatch, StringArray};
use arrow_schema::{DataType, Field};
use bessemer_dataflow::{BatchMap, Error, Input, Operator, OperatorContext, Output, Result, Stage, column};
use std::fs::File;
use std::io::{BufReader, BufWriter, Read, Seek, SeekFrom, Write};
use std::path::PathBuf;
use std::sync::Arc;

/// Points that are assigned at once.
const CHUNK: usize = 4096;

/// The stages of semantic deduplication.
pub fn stages(config: &SemanticConfig) -> Vec<Stage> {
    vec![
        Stage::Map(Arc::new(Embeddings { config: config.clone() })),
        Stage::Annotate {
            name: "semantic".into(),
            project: names(&["file", "row", "order", "copies", "embedding"]),
            side: vec![Stage::Whole(Arc::new(SemDeDup { config: config.clone() }))],
            adds: verdict::adds(),
        },
        Stage::Map(Arc::new(DropDuplicates { reason: "semantic-duplicate", says: "cosine similarity with" })),
    ]
}

/// Adds `embedding`, of length 1, as little-endian floats; null for documents that are dropped or have none.
struct Embeddings {
    config: SemanticConfig,
}

impl Embeddings {
    /// Embeddings of a column, and their dimensions.
    fn given<'b>(&self, batch: &'b RecordBatch) -> Result<(&'b FixedSizeListArray, &'b Float32Array, usize)> {
        let lists: &FixedSizeListArray = column(self.name(), batch, &self.config.column)?;
        let values = lists.values().as_any().downcast_ref::<Float32Array>().ok_or_else(|| {
            let found = lists.values().data_type();
            Error::plan(
                self.name(),
                format!("column {:?} holds {found}; wanted 32-bit floats", self.config.column),
            )
        })?;
        Ok((lists, values, lists.value_length() as usize))
    }
}

impl BatchMap for Embeddings {
    fn name(&self) -> &str {
        "embeddings"
    }

    fn apply(&self, batch: RecordBatch) -> Result<RecordBatch> {
        let reasons: &StringArray = column(self.name(), &batch, "reason")?;
        let texts: &StringArray = column(self.name(), &batch, "text")?;
        let given = if self.config.column.is_empty() { None } else { Some(self.given(&batch)?) };
        let dimensions = given.map_or(self.config.dimensions, |(_, _, dimensions)| dimensions);
        let width = 4 * dimensions as i32;
        let mut embeddings = FixedSizeBinaryBuilder::with_capacity(batch.num_rows(), width);
        let mut vector = vec![0.0; dimensions];
        let mut words = Vec::new();
        for row in 0..batch.num_rows() {
            let there = reasons.is_null(row)
                && match given {
                    Some((lists, values, _)) => {
                        let from = lists.value_offset(row) as usize;
                        vector.copy_from_slice(&values.values()[from..from + dimensions]);
                        !lists.is_null(row) && normalise(&mut vector)
                    }
                    None => hashed_bag(texts.value(row), &mut words, &mut vector),
                };
            if there {
                let bytes: Vec<u8> = vector.iter().flat_map(|x| x.to_le_bytes()).collect();
                embeddings.append_value(bytes)?;
            } else {
                embeddings.append_null();
            }
        }
        let field = Field::new("embedding", DataType::FixedSizeBinary(width), true);
        with_order(self.name(), &batch, field, Arc::new(embeddings.finish()))
    }
}

/// Vectors in a file.
struct Vectors {
    path: PathBuf,
    dimensions: usize,
    count: u64,
    writer: Option<BufWriter<File>>,
}

impl Vectors {
    fn new(path: PathBuf) -> Self {
        Vectors { path, dimensions: 0, count: 0, writer: None }
    }

    fn push(&mut self, bytes: &[u8]) -> Result<()> {
        if self.writer.is_none() {
            let file = File::create_new(&self.path).map_err(Error::io("create spill file", &self.path))?;
            self.writer = Some(BufWriter::with_capacity(1 << 20, file));
            self.dimensions = bytes.len() / 4;
        }
        self.count += 1;
        match &mut self.writer {
            Some(writer) => writer.write_all(bytes).map_err(Error::io("write spill file", &self.path)),
            None => Ok(()),
        }
    }

    /// The file, to be read; none if there is no vector.
    fn open(&mut self) -> Result<Option<BufReader<File>>> {
        let Some(mut writer) = self.writer.take() else { return Ok(None) };
        writer.flush().map_err(Error::io("write spill file", &self.path))?;
        self.reader().map(Some)
    }

    fn reader(&self) -> Result<BufReader<File>> {
        let file = File::open(&self.path).map_err(Error::io("open spill file", &self.path))?;
        Ok(BufReader::with_capacity(1 << 20, file))
    }

    fn read(&self, reader: &mut BufReader<File>, out: &mut [f32]) -> Result<()> {
        let mut bytes = vec![0; 4 * out.len()];
        reader.read_exact(&mut bytes).map_err(Error::io("read spill file", &self.path))?;
        for (x, bytes) in out.iter_mut().zip(bytes.as_chunks::<4>().0) {
            *x = f32::from_le_bytes(*bytes);
        }
        Ok(())
    }

    fn read_at(&self, reader: &mut BufReader<File>, index: u64, out: &mut [f32]) -> Result<()> {
        let at = SeekFrom::Start(index * 4 * self.dimensions as u64);
        reader.seek(at).map_err(Error::io("read spill file", &self.path))?;
        self.read(reader, out)
    }
}

/// The operator.
struct SemDeDup {
    config: SemanticConfig,
}

/// A document: place and weight.
type Entry = (Place, u64);

impl SemDeDup {
    /// Centres of the sample: about `sample` documents, chosen by a hash of their places.
    fn centres(
        &self,
        vectors: &Vectors,
        entries: &[Entry],
        context: &OperatorContext<'_>,
    ) -> Result<Centres> {
        let share = (self.config.sample as f64 / entries.len() as f64).min(1.0);
        let below = (share * u64::MAX as f64) as u64;
        let mut sample = Vec::new();
        let mut vector = vec![0.0; vectors.dimensions];
        let mut reader = vectors.reader()?;
        for (place, _) in entries {
            vectors.read(&mut reader, &mut vector)?;
            let [high, low] = place.words();
            if stream(self.config.seed ^ mix(high), low) <= below {
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
        order: &mut crate::sorter::Merged<3>,
        context: &OperatorContext<'_>,
        output: &mut Output<'_>,
    ) -> Result<()> {
        let dimensions = vectors.dimensions;
        let mut reader = vectors.reader()?;
        let mut vector = vec![0.0; dimensions];
        let mut cluster = None;
        // Kept documents of the cluster: index, copies gained, and their vectors one after the other.
        let mut kept: Vec<(usize, u64)> = Vec::new();
        let mut near: Vec<f32> = Vec::new();
        let mut found = Verdicts::default();
        let end = |kept: &mut Vec<(usize, u64)>, found: &mut Verdicts| {
            for (index, gained) in kept.drain(..).filter(|kept| kept.1 > 0) {
                found.kept(entries[index].0, gained);
            }
        };
        let least = (1.0 - self.config.eps) as f32;
        while let Some([of, _, index]) = order.next()? {
            if cluster != Some(of) {
                check(context.stop)?;
                cluster = Some(of);
                end(&mut kept, &mut found);
                near.clear();
            }
            vectors.read_at(&mut reader, index, &mut vector)?;
            let close = near
                .chunks_exact(dimensions)
                .map(|other| dot(other, &vector))
                .enumerate()
                .find(|(_, cosine)| *cosine >= least);
            let (place, weight) = entries[index as usize];
            match close {
                Some((which, cosine)) => {
                    kept[which].1 += weight;
                    found.dropped(place, entries[kept[which].0].0, Some(cosine));
                }
                None => {
                    kept.push((index as usize, 0));
                    near.extend_from_slice(&vector);
                }
            }
            if let Some(batch) = found.full()? {
                output(batch)?;
            }
        }
        end(&mut kept, &mut found);
        if let Some(batch) = found.flush()? { output(batch) } else { Ok(()) }
    }
}

impl Operator for SemDeDup {
    fn name(&self) -> &str {
        "semdedup"
    }

    fn run(
        &self,
        input: &mut Input<'_>,
        context: &OperatorContext<'_>,
        output: &mut Output<'_>,
    ) -> Result<()> {
        let mut vectors = Vectors::new(context.spill.join("vectors"));
        let mut entries: Vec<Entry> = Vec::new();
        while let Some(batch) = input()? {
            let orders = place_column(self.name(), &batch, "order")?;
            let embeddings: &FixedSizeBinaryArray = column(self.name(), &batch, "embedding")?;
            for row in (0..batch.num_rows()).filter(|&row| !embeddings.is_null(row)) {
                if vectors.count > 0 && embeddings.value(row).len() != 4 * vectors.dimensions {
                    let (found, wanted) = (embeddings.value(row).len() / 4, vectors.dimensions);
                    return Err(Error::plan(
                        self.name(),
                        format!("an embedding has {found} dimensions and the first has {wanted}"),
                    ));
                }
                vectors.push(embeddings.value(row))?;
                entries.push((Place::of_bytes(orders.value(row)), weight(self.name(), &batch, row)?));
            }
        }
        let Some(mut reader) = vectors.open()? else { return Ok(()) };
        // Rows arrive by (file, row); the split leads the order in which they are kept.
        let mut by_place: Vec<u64> = (0..vectors.count).collect();
        by_place.sort_unstable_by_key(|&index| entries[index as usize].0);
        let mut rank_of = vec![0; entries.len()];
        by_place.iter().enumerate().for_each(|(rank, &index)| rank_of[index as usize] = rank as u64);
        drop(by_place);
        let centres = self.centres(&vectors, &entries, context)?;
        let space = Space::new(context.memory / 2, context.spill, context.threads);
        let mut order = Sorter::<3>::new(&space, 0.5);
        let mut index = 0;
        while index < vectors.count {
            check(context.stop)?;
            let count = (vectors.count - index).min(CHUNK as u64) as usize;
            let mut points = vec![0.0; count * vectors.dimensions];
            vectors.read(&mut reader, &mut points)?;
            for (cluster, cosine) in centres.assign(&points, context.threads) {
                order.push([cluster as u64, self.rank(cosine, rank_of[index as usize]), index])?;
                index += 1;
            }
        }
        self.judge(&vectors, &entries, &mut order.finish()?, context, output)
    }
}
