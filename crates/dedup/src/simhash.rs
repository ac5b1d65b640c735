//! SimHash (Charikar 2002; Manku, Jain, Das Sarma, "Detecting Near-Duplicates for Web Crawling", 2007).
//!
//! ```text
//! fingerprint bit i = 1 iff  Σ over features h of (2 bit_i(h) − 1) > 0
//! ```
//! Features are the hashes of 3-word windows, each occurrence counted. Two documents are duplicates if their 64-bit
//! fingerprints differ in at most `distance` bits. Candidates: the fingerprint is cut into `blocks` blocks; if at
//! most d bits differ, at least blocks − d blocks are equal, so for each choice of that many blocks documents are
//! sorted by those blocks and compared within equal ones. Every pair within the distance is found.
//!
//! Cost: C(blocks, d) records of 40 bytes a document, sorted; comparisons within groups grow with the square of the
//! different fingerprints in them: with 64 bits, distance 3 and 6 blocks the key has 32 bits.

use crate::candidates::{self, Links, STOP_EVERY, sort_memory};
use crate::keys::{KeptRows, PARTITIONS, check, names};
use crate::minhash::Shingler;
use crate::verdict::{self, DropDuplicates, Verdicts, weight};
use arrow_array::{Array, ArrayRef, RecordBatch, StringArray, UInt8Array, UInt32Array, UInt64Array};
use arrow_schema::{DataType, Field};
use arrow_select::take::take_record_batch;
use bessemer_corpus_config::dedup::SimHashConfig;
use bessemer_dataflow::{
    BatchMap, BreakerContext, FlatMap, Input, Output, PipelineBreaker, Result, Stage, column, with_columns,
};
use bessemer_documents::{DocKey, doc_key_column};
use bessemer_external_sort::WordSorter;
use std::sync::Arc;

/// The fingerprint of features: bit i is set iff more features have it than not.
pub fn fingerprint(features: &[u64]) -> u64 {
    let mut counts = [0_i64; 64];
    for &feature in features {
        for (bit, count) in counts.iter_mut().enumerate() {
            *count += (feature >> bit & 1) as i64;
        }
    }
    let whole = features.len() as i64;
    counts.iter().enumerate().fold(0, |print, (bit, &count)| print | u64::from(2 * count > whole) << bit)
}

/// Masks that keep `keep` of `blocks` blocks of 64 bits, each choice once.
fn choices(blocks: u32, keep: u32) -> Vec<u64> {
    let bounds: Vec<u32> = (0..=blocks).map(|block| 64 * block / blocks).collect();
    let mask = |block: u32| {
        let (from, to) = (bounds[block as usize], bounds[block as usize + 1]);
        let ones = if to - from == 64 { u64::MAX } else { (1 << (to - from)) - 1 };
        ones << from
    };
    (0_u32..1 << blocks)
        .filter(|choice| choice.count_ones() == keep)
        .map(|choice| {
            (0..blocks).filter(|block| choice >> block & 1 == 1).fold(0, |all, block| all | mask(block))
        })
        .collect()
}

/// The map that adds `simhash`, null for documents that are dropped already or have no feature.
pub(crate) fn keys(config: &SimHashConfig) -> Stage {
    Stage::Map(Arc::new(Fingerprints { config: config.clone() }))
}

/// The stages of SimHash behind [`keys`].
pub(crate) fn stages(config: &SimHashConfig) -> Vec<Stage> {
    let masks = choices(config.blocks, config.blocks - config.distance);
    let mut side = vec![
        Stage::FlatMap(Arc::new(KeptRows { key: Some("simhash") })),
        Stage::FlatMap(Arc::new(Choices { masks })),
    ];
    side.extend(candidates::linked(&["choice", "blocks"], Arc::new(Close { distance: config.distance })));
    let (reason, says, key) = ("near-duplicate", "fingerprint agrees with", "simhash");
    vec![
        Stage::SideJoin {
            name: "simhash-candidates".into(),
            project: names(&["file", "row", "split", "reason", "simhash"]),
            side,
            adds: candidates::adds(),
        },
        Stage::SideJoin {
            name: "simhash-verified".into(),
            project: names(&["file", "row", "split", "reason", "copies", "group", "simhash"]),
            side: vec![
                Stage::FlatMap(Arc::new(KeptRows { key: Some("group") })),
                Stage::Shuffle { key: names(&["group"]), partitions: PARTITIONS },
                Stage::Sort { by: names(&["group", "order"]) },
                Stage::PerPartition(Arc::new(Nearest { distance: config.distance })),
            ],
            adds: verdict::adds(),
        },
        Stage::Map(Arc::new(DropDuplicates { reason, says, key })),
    ]
}

struct Fingerprints {
    config: SimHashConfig,
}

impl BatchMap for Fingerprints {
    fn name(&self) -> &str {
        "simhash"
    }

    fn apply(&self, batch: RecordBatch) -> Result<RecordBatch> {
        let texts: &StringArray = column(self.name(), &batch, "text")?;
        let reasons: &StringArray = column(self.name(), &batch, "reason")?;
        let mut shingler = Shingler::new(self.config.shingle, self.config.length);
        let mut features = Vec::new();
        let prints: UInt64Array = (0..batch.num_rows())
            .map(|row| {
                features.clear();
                if reasons.is_null(row) {
                    shingler.push(texts.value(row), &mut features);
                }
                (!features.is_empty()).then(|| fingerprint(&features))
            })
            .collect();
        with_columns(&batch, vec![(Field::new("simhash", DataType::UInt64, true), Arc::new(prints))])
    }
}

/// Makes of a document one row for each choice of blocks: `choice`, `blocks` (the fingerprint within them), `simhash` and `order`.
struct Choices {
    /// Of at most 255 choices.
    masks: Vec<u64>,
}

impl FlatMap for Choices {
    fn name(&self) -> &str {
        "simhash-choices"
    }

    fn apply(&self, batch: RecordBatch) -> Result<RecordBatch> {
        let prints: &UInt64Array = column(self.name(), &batch, "simhash")?;
        let each = |row: u32| (0..self.masks.len() as u8).map(move |choice| (row, choice));
        // A batch holds fewer than 2^31 rows, because Arrow's offsets are 32 bits wide.
        let rows = 0..batch.num_rows() as u32;
        let (rows, choices): (Vec<u32>, Vec<u8>) = rows.flat_map(each).unzip();
        let blocks = rows.iter().zip(&choices);
        let blocks: UInt64Array = blocks
            .map(|(&row, &choice)| prints.value(row as usize) & self.masks[usize::from(choice)])
            .collect();
        let batch = take_record_batch(&batch, &UInt32Array::from(rows))?;
        let choice = Field::new("choice", DataType::UInt8, false);
        let new = vec![
            (choice, Arc::new(UInt8Array::from(choices)) as ArrayRef),
            (Field::new("blocks", DataType::UInt64, false), Arc::new(blocks)),
        ];
        with_columns(&batch, new)
    }
}

/// Links documents within the distance.
struct Close {
    distance: u32,
}

impl PipelineBreaker for Close {
    fn name(&self) -> &str {
        "simhash-links"
    }

    fn run(
        &self,
        input: &mut Input<'_>,
        context: &BreakerContext<'_>,
        output: &mut Output<'_>,
    ) -> Result<()> {
        let memory = sort_memory(context);
        // (choice, fingerprint within its blocks, fingerprint, place)
        let mut entries = WordSorter::<5>::new(&memory);
        while let Some(batch) = input()? {
            let orders = doc_key_column(self.name(), &batch, "order")?;
            let choices: &UInt8Array = column(self.name(), &batch, "choice")?;
            let blocks: &UInt64Array = column(self.name(), &batch, "blocks")?;
            let prints: &UInt64Array = column(self.name(), &batch, "simhash")?;
            for row in 0..batch.num_rows() {
                let [high, low] = DocKey::of_bytes(orders.value(row)).words();
                let choice = u64::from(choices.value(row));
                entries.push([choice, blocks.value(row), prints.value(row), high, low])?;
            }
        }
        let mut entries = entries.finish();
        let mut links = Links::new(output);
        // Of the group: its key, and its different fingerprints with the first document of each.
        let mut key = None;
        let mut group: Vec<(u64, [u64; 2])> = Vec::new();
        let mut work = 0_u64;
        while let Some([choice, masked, print, high, low]) = entries.next()? {
            if key != Some((choice, masked)) {
                key = Some((choice, masked));
                group.clear();
            }
            let place = [high, low];
            if let Some(&(same, first)) = group.last()
                && same == print
            {
                links.push(place, first)?;
                continue;
            }
            for &(other, first) in &group {
                if (print ^ other).count_ones() <= self.distance {
                    links.push(place, first)?;
                }
            }
            if (work + group.len() as u64 + 1) / STOP_EVERY != work / STOP_EVERY {
                check(context.stop)?;
            }
            work += group.len() as u64 + 1;
            group.push((print, place));
        }
        links.finish()
    }
}

/// Names for each document the lowest representative within the distance; documents without one are representatives.
struct Nearest {
    distance: u32,
}

impl PipelineBreaker for Nearest {
    fn name(&self) -> &str {
        "simhash-verify"
    }

    fn run(
        &self,
        input: &mut Input<'_>,
        context: &BreakerContext<'_>,
        output: &mut Output<'_>,
    ) -> Result<()> {
        let (mut component, mut found) = (None, Verdicts::default());
        // Fingerprints of the documents that are kept.
        let mut kept: Vec<u64> = Vec::new();
        while let Some(batch) = input()? {
            check(context.stop)?;
            let orders = doc_key_column(self.name(), &batch, "order")?;
            let components = doc_key_column(self.name(), &batch, "group")?;
            let prints: &UInt64Array = column(self.name(), &batch, "simhash")?;
            for row in 0..batch.num_rows() {
                if component.as_deref() != Some(components.value(row)) {
                    component = Some(components.value(row).to_vec());
                    found.end_group();
                    kept.clear();
                }
                let (place, print) = (DocKey::of_bytes(orders.value(row)), prints.value(row));
                let differing = |other: &u64| (print ^ other).count_ones();
                match kept.iter().position(|other| differing(other) <= self.distance) {
                    Some(index) => {
                        let agreeing = (64 - differing(&kept[index])) as f32 / 64.0;
                        found.drop(place, weight(self.name(), &batch, row)?, index, Some(agreeing));
                    }
                    None => {
                        found.keep(place);
                        kept.push(print);
                    }
                }
                if let Some(batch) = found.full()? {
                    output(batch)?;
                }
            }
        }
        found.finish()?.map_or(Ok(()), output)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bessemer_units::splitmix::nth;

    #[test]
    fn golden_value_of_text_dedup() {
        assert_eq!(
            fingerprint(&[13_352_372_148_217_134_600, 5_020_219_685_658_847_592]),
            74_633_958_390_507_528
        );
        assert_eq!(fingerprint(&[42]), 42);
        assert_eq!(fingerprint(&[]), 0);
    }

    #[test]
    fn every_pair_within_the_distance_shares_a_choice() {
        for (blocks, distance) in [(4, 3), (6, 3), (5, 1), (3, 0)] {
            let masks = choices(blocks, blocks - distance);
            for round in 0..200 {
                let a = nth(3, round);
                let b = (0..distance).fold(a, |b, bit| b ^ 1 << (nth(round, u64::from(bit)) % 64));
                assert!(masks.iter().any(|mask| a & mask == b & mask), "{blocks} {distance}");
            }
        }
        assert_eq!(choices(4, 1).iter().fold(0, |all, mask| all | mask), u64::MAX);
        assert_eq!(choices(6, 3).len(), 20);
    }
}
