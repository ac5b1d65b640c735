//! Train or validation, by a keyed hash of a name.
//!
//! A name is validation when xxh3-64 of it, keyed by the seed and read as a fraction of 2^64, lies below the
//! validation fraction. So the side of one crate does not depend on which others are present, all versions of it
//! fall on one side, and a larger fraction only ever moves names from train to validation.

use crate::error::{Error, Result};
use crate::source::Listing;
use arrow_array::{Array, RecordBatch, StringArray, UInt8Array};
use arrow_schema::{DataType, Field};
use bessemer_corpus_config::{SplitBy, SplitConfig};
use bessemer_dataflow::{BatchMap, column, with_columns};
use bessemer_documents::{Split, TRAIN, VALIDATION};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// The keyed hash of a name.
pub(crate) fn position(name: &str, seed: u64) -> u64 {
    xxh3_64_with_seed(name.as_bytes(), seed)
}

/// The side on which the hash puts a name.
pub fn side_of(name: &str, seed: u64, validation_fraction: f64) -> Split {
    let position = position(name, seed) as f64 / 2f64.powi(64);
    if position < validation_fraction { Split::Validation } else { Split::Train }
}

/// Share of the text beyond which validation holds far more than the fraction that was asked for: twice as much or five
/// per cent of the text more, but no more than half of it.
pub(crate) fn most_share(fraction: f64) -> f64 {
    (2.0 * fraction).max(fraction + 0.05).min(0.5).max(1.25 * fraction)
}

/// The split, resolved against the names that the source has.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Assign {
    seed: u64,
    fraction: f64,
    /// By source or by document, never `Auto`; of chained sources for each by its name, else under the empty name.
    by: BTreeMap<String, SplitBy>,
    fixed: BTreeMap<String, u8>,
    /// Why a split by source was not taken where it could have been.
    remarks: Vec<String>,
}

/// The chained source that a name belongs to.
fn chained(name: &str) -> &str {
    name.split_once('/').map_or(name, |(first, _)| first)
}

impl Assign {
    /// Decides what `auto` means and checks the lists against the names that exist.
    pub(crate) fn resolve(config: &SplitConfig, listing: &Listing) -> Result<Assign> {
        let mut names: BTreeSet<&str> = listing.sources.iter().map(|source| source.name.as_str()).collect();
        let parts = names.clone();
        // A chained source stands for all that it consists of.
        names.extend(listing.chained.iter().map(String::as_str));
        let mut fixed = BTreeMap::new();
        for (list, key, side) in
            [(&config.train, "train", TRAIN), (&config.validation, "validation", VALIDATION)]
        {
            for name in list {
                if !names.contains(name.as_str()) {
                    let some: Vec<&str> = names.iter().take(12).copied().collect();
                    return Err(Error::Config(format!(
                        "corpus.split.{key} names {name:?}, which is not a source of this corpus; the {} \
                         sources are: {}{}",
                        names.len(),
                        some.join(", "),
                        if names.len() > some.len() { ", …" } else { "" }
                    )));
                }
                fixed.insert(name.clone(), side);
            }
        }
        let mut assign = Assign {
            seed: config.seed,
            fraction: config.validation_fraction,
            by: BTreeMap::new(),
            fixed,
            remarks: Vec::new(),
        };
        let bytes = bytes_by_name(listing);
        let alone = [String::new()];
        for chain in if listing.chained.is_empty() { &alone[..] } else { &listing.chained } {
            let own: Vec<&str> =
                parts.iter().copied().filter(|name| chain.is_empty() || chained(name) == chain).collect();
            let by = match config.by {
                SplitBy::Auto => {
                    let held_out = own.iter().filter(|name| assign.source(name) == VALIDATION).count();
                    let useful = (held_out > 0 && held_out < own.len()) || config.validation_fraction == 0.0;
                    match assign.too_much(&own, &bytes) {
                        Some(remark) if useful => {
                            assign.remarks.push(remark);
                            SplitBy::Document
                        }
                        _ if useful => SplitBy::Source,
                        _ => SplitBy::Document,
                    }
                }
                by => by,
            };
            assign.by.insert(chain.clone(), by);
        }
        Ok(assign)
    }

    /// Why sources of these names cannot be held out whole, if that would hold out far more than was asked for. Sources that
    /// the configuration names do not count.
    fn too_much(&self, names: &[&str], bytes: &BTreeMap<&str, u64>) -> Option<String> {
        let size = |name: &&str| bytes.get(name).copied().unwrap_or(0);
        let free: Vec<&str> = names.iter().copied().filter(|name| !self.is_fixed(name)).collect();
        let held_out: Vec<&str> =
            free.iter().copied().filter(|name| self.source(name) == VALIDATION).collect();
        let (all, held): (u64, u64) = (free.iter().map(size).sum(), held_out.iter().map(size).sum());
        let share = held as f64 / all.max(1) as f64;
        let largest = held_out.iter().max_by_key(|name| size(name))?;
        let more = match held_out.len() {
            0 | 1 => String::new(),
            n => format!(" and {} more", n - 1),
        };
        (share > most_share(self.fraction)).then(|| {
            format!(
                "the split goes by document: by source it would hold out {:.0} % of the bytes ({largest}{more}), \
                 {:.0} % were asked for; corpus.split.by = \"source\" insists",
                100.0 * share,
                100.0 * self.fraction
            )
        })
    }

    /// Remarks for the user on how the split was decided.
    pub(crate) fn remarks(&self) -> &[String] {
        &self.remarks
    }

    /// The key of the hash.
    pub(crate) fn seed(&self) -> u64 {
        self.seed
    }

    /// Whether the configuration names the side of a source.
    pub(crate) fn is_fixed(&self, name: &str) -> bool {
        self.fixed(name).is_some()
    }

    /// Describes the criterion of the split.
    pub(crate) fn in_words(&self) -> &'static str {
        let by = |wanted| self.by.values().all(|by| *by == wanted);
        if by(SplitBy::Document) {
            "document"
        } else if by(SplitBy::Source) {
            "source"
        } else {
            "source or document"
        }
    }

    fn fixed(&self, name: &str) -> Option<u8> {
        let whole = || self.fixed.get(chained(name)).filter(|_| !self.by.contains_key(""));
        self.fixed.get(name).or_else(whole).copied()
    }

    fn source(&self, name: &str) -> u8 {
        self.fixed(name).unwrap_or_else(|| side_of(name, self.seed, self.fraction).code())
    }

    fn assign(&self, source: &str, id: &str) -> u8 {
        let by = self.by.get("").or_else(|| self.by.get(chained(source)));
        match (by, self.fixed(source)) {
            (_, Some(side)) => side,
            (Some(SplitBy::Document), None) => side_of(id, self.seed, self.fraction).code(),
            _ => self.source(source),
        }
    }
}

/// Stored bytes of all sources of a name; empty where they are not known.
fn bytes_by_name(listing: &Listing) -> BTreeMap<&str, u64> {
    let mut bytes = BTreeMap::new();
    for (source, size) in listing.sources.iter().zip(&listing.source_bytes) {
        *bytes.entry(source.name.as_str()).or_insert(0) += size;
    }
    bytes
}

impl BatchMap for Assign {
    fn name(&self) -> &str {
        "split"
    }

    fn apply(&self, batch: RecordBatch) -> bessemer_dataflow::Result<RecordBatch> {
        let sources: &StringArray = column(self.name(), &batch, "source")?;
        let ids: &StringArray = column(self.name(), &batch, "id")?;
        let given: &UInt8Array = column(self.name(), &batch, "split")?;
        let sides: UInt8Array = (0..batch.num_rows())
            .map(|index| {
                Some(if given.is_null(index) {
                    self.assign(sources.value(index), ids.value(index))
                } else {
                    given.value(index)
                })
            })
            .collect();
        with_columns(&batch, vec![(Field::new("split", DataType::UInt8, true), Arc::new(sides))])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::SourceInfo;

    fn listing(names: &[&str]) -> Listing {
        let info = |name: &&str| SourceInfo { name: name.to_string(), version: None, licence: None };
        Listing { sources: names.iter().map(info).collect(), ..Listing::default() }
    }

    #[test]
    fn the_share_held_out_follows_the_fraction_and_grows_with_it() {
        let names: Vec<String> = (0..20_000).map(|number| format!("crate-{number}")).collect();
        for fraction in [0.0, 0.05, 0.1, 0.5] {
            let held: Vec<bool> =
                names.iter().map(|name| side_of(name, 1, fraction) == Split::Validation).collect();
            let share = held.iter().filter(|held| **held).count() as f64 / names.len() as f64;
            let sigma = (fraction * (1.0 - fraction) / names.len() as f64).sqrt();
            assert!((share - fraction).abs() <= 4.0 * sigma, "{share} for {fraction}");
            let monotone = names
                .iter()
                .zip(&held)
                .all(|(name, held)| !held || side_of(name, 1, fraction + 0.1) == Split::Validation);
            assert!(monotone);
        }
        let moved = names.iter().filter(|name| side_of(name, 1, 0.5) != side_of(name, 2, 0.5)).count();
        assert!((9_000..11_000).contains(&moved), "the seed is a key: {moved}");
    }

    #[test]
    fn lists_win_and_unknown_names_are_refused() {
        let mut config =
            SplitConfig { train: vec!["a".into()], validation: vec!["b".into()], ..Default::default() };
        let assign = Assign::resolve(&config, &listing(&["a", "b", "c"])).unwrap();
        assert_eq!(assign.in_words(), "source");
        assert_eq!((assign.assign("a", "x"), assign.assign("b", "y")), (TRAIN, VALIDATION));
        config.train = vec!["zz".into()];
        let message = Assign::resolve(&config, &listing(&["a", "b"])).unwrap_err().to_string();
        assert!(message.contains("zz") && message.contains("a, b"), "{message}");
    }

    #[test]
    fn a_source_with_most_of_the_bytes_is_not_held_out_whole() {
        let names: Vec<String> = (0..40).map(|number| format!("folder-{number}")).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let held = names.iter().position(|name| side_of(name, 0, 0.1) == Split::Validation).unwrap();
        let config = SplitConfig::default();
        let mut listing = listing(&names);
        listing.source_bytes = vec![100; names.len()];
        let assign = Assign::resolve(&config, &listing).unwrap();
        assert_eq!((assign.in_words(), assign.remarks()), ("source", &[][..]));
        listing.source_bytes[held] = 10_000;
        let assign = Assign::resolve(&config, &listing).unwrap();
        assert_eq!(assign.in_words(), "document");
        assert!(assign.remarks()[0].contains(names[held]), "{:?}", assign.remarks());
        // Who names the source, or insists, has it held out.
        let named = SplitConfig { validation: vec![names[held].into()], ..SplitConfig::default() };
        assert_eq!(Assign::resolve(&named, &listing).unwrap().in_words(), "source");
        let insists = SplitConfig { by: SplitBy::Source, ..SplitConfig::default() };
        assert_eq!(Assign::resolve(&insists, &listing).unwrap().in_words(), "source");
    }

    #[test]
    fn one_source_is_split_by_document() {
        let assign = Assign::resolve(&SplitConfig::default(), &listing(&["only"])).unwrap();
        assert_eq!(assign.in_words(), "document");
        let none = SplitConfig { validation_fraction: 0.0, ..Default::default() };
        assert_eq!(Assign::resolve(&none, &listing(&["only"])).unwrap().in_words(), "source");
    }
}
