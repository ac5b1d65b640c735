//! MinHash as stages of a plan.
//!
//! ```text
//! map bands                                   text ─► b band keys
//! annotate: shuffle by key, link, components   narrow rows only: places and keys
//! map shingles                                the sets of candidates, nobody else's
//! annotate: shuffle, sort by component, verify (or keep the first)
//! map drop-duplicates
//! ```

use super::permutations::{Permutations, Width};
use super::{Shingler, Sketcher, lsh};
use crate::candidates;
use crate::config::{MinHashConfig, Signature};
use crate::exact::{PARTITIONS, names, with_order};
use crate::keep_first::KeepFirst;
use crate::representatives::{Representatives, Verify};
use crate::verdict::{self, DropDuplicates};
use arrow_array::builder::{BinaryBuilder, FixedSizeBinaryBuilder};
use arrow_array::{Array, BooleanArray, RecordBatch, StringArray};
use arrow_schema::{DataType, Field};
use arrow_select::filter::filter_record_batch;
use bessemer_dataflow::{BatchMap, FlatMap, Result, Stage, column, with_columns};
use std::sync::Arc;

/// Makes the band keys of texts.
pub struct BandKeys {
    signer: Signer,
    values: Vec<u64>,
    rows: usize,
    shingles: Vec<u64>,
    shingler: Shingler,
}

#[derive(Debug, Clone)]
enum Signer {
    Sketch(Arc<Sketcher>),
    Permutations(Arc<Permutations>),
}

impl Signer {
    fn new(config: &MinHashConfig) -> Signer {
        let count = config.bands * config.rows;
        let seed = config.seed as u32;
        match config.signature {
            Signature::Sketch => Signer::Sketch(Arc::new(Sketcher::new(count, config.seed))),
            Signature::Datatrove => {
                Signer::Permutations(Arc::new(Permutations::new(count, seed, Width::W64)))
            }
            Signature::Datatrove32 => {
                Signer::Permutations(Arc::new(Permutations::new(count, seed, Width::W32)))
            }
        }
    }
}

impl BandKeys {
    /// Keys as `config` says, once resolved.
    pub fn new(config: &MinHashConfig) -> BandKeys {
        BandKeys::with(&config.resolved(), Signer::new(&config.resolved()))
    }

    fn with(config: &MinHashConfig, signer: Signer) -> BandKeys {
        BandKeys {
            signer,
            values: vec![0; config.bands * config.rows],
            rows: config.rows,
            shingles: Vec::new(),
            shingler: Shingler::new(config.shingle, config.length),
        }
    }

    /// Calls `each` with the keys of a text, one a band; not at all if the text has no shingle.
    pub fn keys(&mut self, text: &str, each: impl FnMut(u64)) -> bool {
        self.shingles.clear();
        self.shingler.push(text, &mut self.shingles);
        if self.shingles.is_empty() {
            return false;
        }
        match &self.signer {
            Signer::Sketch(sketcher) => sketcher.sketch(&self.shingles, &mut self.values),
            Signer::Permutations(family) => family.signature(&self.shingles, &mut self.values),
        }
        let bands = self.values.chunks_exact(self.rows).enumerate();
        bands.map(|(band, values)| lsh::band_key(band, values)).for_each(each);
        true
    }
}

/// The stages of MinHash. Rows carry `file`, `row`, `text`, `reason`, `detail`.
pub fn stages(config: &MinHashConfig) -> Vec<Stage> {
    let config = config.resolved();
    let verified = config.verify != Verify::None;
    let mut stages = vec![
        Stage::Map(Arc::new(Bands { signer: Signer::new(&config), config: config.clone() })),
        Stage::SideJoin {
            name: "minhash-candidates".into(),
            project: names(&["file", "row", "order", "bands"]),
            side: candidates::stages(),
            adds: candidates::adds(),
        },
    ];
    let mut project = names(&["file", "row", "order", "copies", "group"]);
    let mut side = vec![
        Stage::FlatMap(Arc::new(Clustered)),
        Stage::Shuffle { key: names(&["group"]), partitions: PARTITIONS },
        Stage::Sort { by: names(&["group", "order"]) },
    ];
    if verified {
        project.extend(names(&["bands", "shingles"]));
        stages.push(Stage::Map(Arc::new(CandidateShingles { config: config.clone() })));
        side.push(Stage::PerPartition(Arc::new(Representatives {
            verify: config.verify,
            similarity: config.similarity,
        })));
    } else {
        side.push(Stage::Reduce {
            key: names(&["group"]),
            reducer: Arc::new(KeepFirst { key: "group".into() }),
        });
    }
    let name = if verified { "minhash-verified" } else { "minhash-components" };
    stages.push(Stage::SideJoin { name: name.into(), project, side, adds: verdict::adds() });
    let says = match config.verify {
        Verify::Jaccard => "jaccard similarity with",
        Verify::Containment => "containment with",
        Verify::None => "same component as",
    };
    stages.push(Stage::Map(Arc::new(DropDuplicates { reason: "near-duplicate", says })));
    stages
}

/// Adds `bands`, null for documents that are dropped already or have no shingle.
struct Bands {
    config: MinHashConfig,
    signer: Signer,
}

impl BatchMap for Bands {
    fn name(&self) -> &str {
        "minhash-bands"
    }

    fn apply(&self, batch: RecordBatch) -> Result<RecordBatch> {
        let texts: &StringArray = column(self.name(), &batch, "text")?;
        let reasons: &StringArray = column(self.name(), &batch, "reason")?;
        let width = 8 * self.config.bands as i32;
        let mut bands = FixedSizeBinaryBuilder::with_capacity(batch.num_rows(), width);
        let mut keys = BandKeys::with(&self.config, self.signer.clone());
        let mut bytes = Vec::with_capacity(width as usize);
        for row in 0..batch.num_rows() {
            bytes.clear();
            if reasons.is_null(row) && keys.keys(texts.value(row), |key| bytes.extend(key.to_le_bytes())) {
                bands.append_value(&bytes)?;
            } else {
                bands.append_null();
            }
        }
        let field = Field::new("bands", DataType::FixedSizeBinary(width), true);
        with_order(self.name(), &batch, field, Arc::new(bands.finish()))
    }
}

/// Keeps the rows that are in a component.
pub(crate) struct Clustered;

impl FlatMap for Clustered {
    fn name(&self) -> &str {
        "clustered"
    }

    fn apply(&self, batch: RecordBatch) -> Result<RecordBatch> {
        let component = bessemer_documents::doc_key_column(self.name(), &batch, "group")?;
        let keep: BooleanArray = (0..batch.num_rows()).map(|row| Some(!component.is_null(row))).collect();
        Ok(filter_record_batch(&batch, &keep)?)
    }
}

/// Adds `shingles`, the sorted set of shingles of candidates as little-endian words; null for others.
struct CandidateShingles {
    config: MinHashConfig,
}

impl BatchMap for CandidateShingles {
    fn name(&self) -> &str {
        "candidate-shingles"
    }

    fn apply(&self, batch: RecordBatch) -> Result<RecordBatch> {
        let texts: &StringArray = column(self.name(), &batch, "text")?;
        let component = bessemer_documents::doc_key_column(self.name(), &batch, "group")?;
        let mut shingler = Shingler::new(self.config.shingle, self.config.length);
        let mut shingles = BinaryBuilder::new();
        let (mut set, mut bytes) = (Vec::new(), Vec::new());
        for row in 0..batch.num_rows() {
            if component.is_null(row) {
                shingles.append_null();
            } else {
                shingler.set(texts.value(row), &mut set);
                bytes.clear();
                bytes.extend(set.iter().flat_map(|shingle| shingle.to_le_bytes()));
                shingles.append_value(&bytes);
            }
        }
        with_columns(
            &batch,
            vec![(Field::new("shingles", DataType::Binary, true), Arc::new(shingles.finish()))],
        )
    }
}
