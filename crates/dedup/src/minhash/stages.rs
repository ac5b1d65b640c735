//! MinHash as stages of a plan.
//!
//! ```text
//! map bands                  text ─► b band keys
//! side join of bands         shuffle by key, link, components: narrow rows only, places and keys
//! side join of groups        shingles of candidates, nobody else's; shuffle, sort by component, verify (or keep the first)
//! map drop-duplicates
//! ```

use super::permutations::{Permutations, Width};
use super::{Shingler, Sketcher, lsh, resolved};
use crate::candidates;
use crate::keep_first::KeepFirst;
use crate::keys::{KeptRows, PARTITIONS, names, with_keys};
use crate::representatives::Representatives;
use crate::verdict::{self, DropDuplicates, without};
use arrow_array::builder::BinaryBuilder;
use arrow_array::{RecordBatch, StringArray};
use arrow_schema::{DataType, Field};
use bessemer_corpus_config::dedup::{MinHashConfig, Signature, Verify};
use bessemer_dataflow::{BatchMap, Result, Stage, column, with_columns};
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
        BandKeys::with(&resolved(config), Signer::new(&resolved(config)))
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

/// The map that adds `bands`, null for documents that are dropped already or have no shingle.
pub(crate) fn keys(config: &MinHashConfig) -> Stage {
    let config = resolved(config);
    Stage::Map(Arc::new(Bands { signer: Signer::new(&config), config }))
}

/// The stages of MinHash behind [`keys`].
pub(crate) fn stages(config: &MinHashConfig) -> Vec<Stage> {
    let config = resolved(config);
    let mut project = names(&["file", "row", "split", "reason", "copies", "group"]);
    let mut side = vec![
        Stage::FlatMap(Arc::new(KeptRows { key: Some("group") })),
        Stage::Shuffle { key: names(&["group"]), partitions: PARTITIONS },
        Stage::Sort { by: names(&["group", "order"]) },
    ];
    let (name, says) = match config.verify {
        Verify::Jaccard => ("minhash-verified", "jaccard similarity with"),
        Verify::Containment => ("minhash-verified", "containment with"),
        Verify::None => ("minhash-components", "same component as"),
    };
    if config.verify == Verify::None {
        side.push(Stage::Reduce { key: names(&["group"]), reducer: Arc::new(KeepFirst) });
    } else {
        project.extend(names(&["bands", "text"]));
        side.insert(1, Stage::Map(Arc::new(CandidateShingles { config: config.clone() })));
        let (verify, similarity) = (config.verify, config.similarity);
        side.push(Stage::PerPartition(Arc::new(Representatives { verify, similarity })));
    }
    vec![
        Stage::SideJoin {
            name: "minhash-candidates".into(),
            project: names(&["file", "row", "split", "reason", "bands"]),
            side: candidates::stages(),
            adds: candidates::adds(),
        },
        Stage::SideJoin { name: name.into(), project, side, adds: verdict::adds() },
        Stage::Map(Arc::new(DropDuplicates { reason: "near-duplicate", says, key: "bands" })),
    ]
}

struct Bands {
    config: MinHashConfig,
    signer: Signer,
}

impl BatchMap for Bands {
    fn name(&self) -> &str {
        "minhash-bands"
    }

    fn apply(&self, batch: RecordBatch) -> Result<RecordBatch> {
        let mut keys = BandKeys::with(&self.config, self.signer.clone());
        let width = 8 * self.config.bands as i32;
        with_keys(self.name(), &batch, "bands", Some(width), |_, text, bytes| {
            keys.keys(text, |key| bytes.extend(key.to_le_bytes()))
        })
    }
}

/// Replaces the text by `shingles`, its sorted set of shingles as little-endian words.
struct CandidateShingles {
    config: MinHashConfig,
}

impl BatchMap for CandidateShingles {
    fn name(&self) -> &str {
        "candidate-shingles"
    }

    fn apply(&self, batch: RecordBatch) -> Result<RecordBatch> {
        let texts: &StringArray = column(self.name(), &batch, "text")?;
        let mut shingler = Shingler::new(self.config.shingle, self.config.length);
        let (mut shingles, mut set, mut bytes) = (BinaryBuilder::new(), Vec::new(), Vec::new());
        for row in 0..batch.num_rows() {
            shingler.set(texts.value(row), &mut set);
            bytes.clear();
            bytes.extend(set.iter().flat_map(|shingle| shingle.to_le_bytes()));
            shingles.append_value(&bytes);
        }
        let field = Field::new("shingles", DataType::Binary, false);
        without(&with_columns(&batch, vec![(field, Arc::new(shingles.finish()))])?, &["text"])
    }
}
