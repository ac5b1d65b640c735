//! Train or validation, by a keyed hash of a name.
//!
//! A name is validation when xxh3-64 of it, keyed by the seed and read as a fraction of 2^64, lies below the
//! validation fraction. So the side of one crate does not depend on which others are present, all versions of it
//! fall on one side, and a larger fraction only ever moves names from train to validation.

use crate::config::{SplitBy, SplitConfig};
use crate::error::{Error, Result};
use crate::row::{Split, TRAIN, VALIDATION};
use crate::source::Listing;
use arrow_array::{Array, RecordBatch, StringArray, UInt8Array};
use arrow_schema::{DataType, Field};
use bessemer_dataflow::{BatchMap, column, with_columns};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// The side on which the hash puts a name.
pub fn side_of(name: &str, seed: u64, validation_fraction: f64) -> Split {
    let position = xxh3_64_with_seed(name.as_bytes(), seed) as f64 / 2f64.powi(64);
    if position < validation_fraction { Split::Validation } else { Split::Train }
}

/// The split, resolved against the names that the source has.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Assign {
    seed: u64,
    fraction: f64,
    /// By source or by document, never `Auto`; of chained sources for each by its name, else under the empty name.
    by: BTreeMap<String, SplitBy>,
    fixed: BTreeMap<String, u8>,
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
                        "corpus.split.{key} names {name:?}, which is no source of this corpus; the {} sources are: {}{}",
                        names.len(),
                        some.join(", "),
                        if names.len() > some.len() { ", …" } else { "" }
                    )));
                }
                fixed.insert(name.clone(), side);
            }
        }
        let mut assign =
            Assign { seed: config.seed, fraction: config.validation_fraction, by: BTreeMap::new(), fixed };
        let alone = [String::new()];
        for chain in if listing.chained.is_empty() { &alone[..] } else { &listing.chained } {
            let own: Vec<&str> =
                parts.iter().copied().filter(|name| chain.is_empty() || chained(name) == chain).collect();
            let by = match config.by {
                SplitBy::Auto => {
                    let held_out = own.iter().filter(|name| assign.source(name) == VALIDATION).count();
                    let useful = (held_out > 0 && held_out < own.len()) || config.validation_fraction == 0.0;
                    if useful { SplitBy::Source } else { SplitBy::Document }
                }
                by => by,
            };
            assign.by.insert(chain.clone(), by);
        }
        Ok(assign)
    }

    /// What the split follows, in words.
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
    fn one_source_is_split_by_document() {
        let assign = Assign::resolve(&SplitConfig::default(), &listing(&["only"])).unwrap();
        assert_eq!(assign.in_words(), "document");
        let none = SplitConfig { validation_fraction: 0.0, ..Default::default() };
        assert_eq!(Assign::resolve(&none, &listing(&["only"])).unwrap().in_words(), "source");
    }
}
