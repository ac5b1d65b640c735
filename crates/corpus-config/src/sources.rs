//! The keys of `[[corpus.sources]]` and `[corpus.mix]`: several sources, slices of them, and how much training takes of each.
//!
//! A *component* is what training weighs: a source, or a slice of one. The slice `recent` of the source `web` is the component
//! `web.recent`; what no slice of `web` takes is the component `web`.

use crate::{CorpusConfig, SourceKind};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// Most components of a corpus: each has files of its own that are open at once.
pub const MOST_COMPONENTS: usize = 256;
/// Longest name of a source or slice.
const NAME_CHARS: usize = 40;
/// Most passes over a component that can be asked for.
const MOST_EPOCHS: f64 = 1e6;

/// `[[corpus.sources]]`: one of several sources.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct SourceConfig {
    /// Its name: 1 to 40 of a-z, 0-9, `-` and `_`. Its documents and the names of their sources begin with it and a slash.
    pub name: String,
    /// Kind, as `corpus.source`.
    pub source: SourceKind,
    /// The file or folder to read, as `corpus.path`.
    pub path: String,
    /// Name of the JSON field or Parquet column that holds the text; empty means `corpus.text`.
    pub text: String,
    /// Name of the field or column that holds a document's URL; empty means `corpus.url`.
    pub url: String,
    /// Name of the field or column that says when a document was fetched; empty means `corpus.date`.
    pub date: String,
    /// Extensions to keep; empty means `corpus.extensions`.
    pub extensions: Vec<String>,
    /// Sub-folders and files to leave out, as paths relative to this source's root.
    pub exclude: Vec<String>,
    /// Share of the training samples, relative to the other weights. Either all sources and slices have one or none; of a
    /// source whose slices have weights, what no slice takes has 0 unless it is given one here.
    pub weight: Option<f64>,
    /// Most passes of training over it, and over its slices that do not say otherwise; not set: any number.
    pub epochs: Option<f64>,
    /// Facts about the whole source: predicates read `tag.NAME`.
    pub tag: BTreeMap<String, String>,
    /// Parts of the source that training weighs by themselves. A document belongs to the first slice whose predicate is true.
    pub slices: Vec<SliceConfig>,
}

/// A slice of a source.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct SliceConfig {
    /// Its name: 1 to 40 of a-z, 0-9, `-` and `_`.
    pub name: String,
    /// Predicate over document columns, such as `quality > 0.5 && fetched >= "2023"`.
    #[serde(rename = "where")]
    pub predicate: String,
    /// Share of the training samples, relative to the other weights.
    pub weight: Option<f64>,
    /// Most passes of training over it; not set: as its source.
    pub epochs: Option<f64>,
}

/// `[corpus.mix]`: how training mixes sources and slices that have no weights.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct MixConfig {
    /// T in share ~ samples^(1/T) (Conneau & Lample 2019): 1 is by size, larger values bring small sources up.
    pub temperature: f64,
}

impl Default for MixConfig {
    fn default() -> Self {
        MixConfig { temperature: 1.0 }
    }
}

/// A unit of the mixture: a source or a slice of one.
#[derive(Debug, Clone, PartialEq)]
pub struct ComponentConfig {
    /// `SOURCE`, or `SOURCE.SLICE`.
    pub name: String,
    /// Its weight; either all components have one or none.
    pub weight: Option<f64>,
    /// Most passes over it.
    pub epochs: Option<f64>,
}

fn check_name(key: &str, name: &str) -> Result<(), String> {
    let allowed = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-' || b == b'_';
    if !name.is_empty() && name.len() <= NAME_CHARS && name.bytes().all(allowed) {
        return Ok(());
    }
    Err(format!("{key} = {name:?}: expected 1 to {NAME_CHARS} of a-z, 0-9, - and _"))
}

fn check_share(key: &str, weight: Option<f64>, epochs: Option<f64>) -> Result<(), String> {
    if let Some(weight) = weight.filter(|weight| !(weight.is_finite() && (0.0..=1e9).contains(weight))) {
        return Err(format!("{key}: weight = {weight}: expected 0 to 1e9"));
    }
    if let Some(epochs) = epochs.filter(|epochs| !(*epochs > 0.0 && *epochs <= MOST_EPOCHS)) {
        return Err(format!("{key}: epochs = {epochs}: expected more than 0, at most {MOST_EPOCHS}"));
    }
    Ok(())
}

impl SourceConfig {
    /// The configuration of a corpus of this source alone.
    pub fn alone(&self, corpus: &CorpusConfig) -> CorpusConfig {
        let own = |own: &String, whole: &String| if own.is_empty() { whole.clone() } else { own.clone() };
        CorpusConfig {
            source: self.source,
            path: self.path.clone(),
            text: own(&self.text, &corpus.text),
            url: own(&self.url, &corpus.url),
            date: own(&self.date, &corpus.date),
            extensions: if self.extensions.is_empty() {
                corpus.extensions.clone()
            } else {
                self.extensions.clone()
            },
            exclude: self.exclude.clone(),
            sources: Vec::new(),
            mix: MixConfig::default(),
            ..corpus.clone()
        }
    }

    fn check(&self, corpus: &CorpusConfig) -> Result<(), String> {
        let key = format!("corpus.sources {:?}", self.name);
        check_name("corpus.sources: name", &self.name)?;
        self.alone(corpus).check_place().map_err(|problem| format!("{key}: {problem}"))?;
        check_share(&key, self.weight, self.epochs)?;
        for tag in self.tag.keys() {
            check_name(&format!("{key}: tag"), tag)?;
        }
        let mut names = BTreeSet::new();
        for slice in &self.slices {
            check_name(&format!("{key}: slices: name"), &slice.name)?;
            if !names.insert(&slice.name) {
                return Err(format!("{key}: two slices have the name {:?}", slice.name));
            }
            let key = format!("{key}, slice {:?}", slice.name);
            check_share(&key, slice.weight, slice.epochs)?;
        }
        Ok(())
    }

    /// Its components: what no slice takes, then the slices.
    fn components(&self) -> impl Iterator<Item = ComponentConfig> + '_ {
        let sliced = self.slices.iter().any(|slice| slice.weight.is_some());
        let rest = ComponentConfig {
            name: self.name.clone(),
            weight: self.weight.or(sliced.then_some(0.0)),
            epochs: self.epochs,
        };
        std::iter::once(rest).chain(self.slices.iter().map(|slice| ComponentConfig {
            name: format!("{}.{}", self.name, slice.name),
            weight: slice.weight,
            epochs: slice.epochs.or(self.epochs),
        }))
    }

    /// What of it decides the documents: neither where it lies nor how training weighs it.
    fn identity(&self) -> serde_json::Value {
        let slices: Vec<(&str, &str)> =
            self.slices.iter().map(|slice| (slice.name.as_str(), slice.predicate.as_str())).collect();
        serde_json::json!({
            "name": self.name,
            "text": self.text,
            "url": self.url,
            "date": self.date,
            "extensions": self.extensions,
            "exclude": self.exclude,
            "tag": self.tag,
            "slices": slices,
        })
    }
}

impl CorpusConfig {
    /// What training weighs, in the order of the shards; empty for a corpus of one source.
    pub fn components(&self) -> Vec<ComponentConfig> {
        self.sources.iter().flat_map(SourceConfig::components).collect()
    }

    /// What of `[[corpus.sources]]` decides the documents.
    pub fn sources_identity(&self) -> serde_json::Value {
        self.sources.iter().map(SourceConfig::identity).collect()
    }

    /// Checks `[[corpus.sources]]` and `[corpus.mix]`.
    pub(crate) fn check_sources(&self) -> Result<(), String> {
        let temperature = self.mix.temperature;
        if !(0.01..=1000.0).contains(&temperature) {
            return Err(format!("corpus.mix.temperature = {temperature}: expected 0.01 to 1000"));
        }
        if self.sources.is_empty() {
            return Ok(());
        }
        if self.source != SourceKind::Auto || !self.path.is_empty() {
            return Err(
                "corpus.source and corpus.path are the short form for one source: leave them out beside [[corpus.sources]]"
                    .into(),
            );
        }
        let mut names = BTreeSet::new();
        for source in &self.sources {
            source.check(self)?;
            if !names.insert(&source.name) {
                return Err(format!("corpus.sources: two have the name {:?}", source.name));
            }
        }
        let components = self.components();
        if components.len() > MOST_COMPONENTS {
            return Err(format!(
                "corpus.sources: {} sources and slices, expected at most {MOST_COMPONENTS}",
                components.len()
            ));
        }
        let weights = components.iter().filter_map(|component| component.weight);
        if weights.clone().next().is_none() {
            return Ok(());
        }
        if let Some(without) = components.iter().find(|component| component.weight.is_none()) {
            return Err(format!(
                "corpus.sources: {:?} has no weight and others have one: expected a weight for all sources and slices, or for \
                 none",
                without.name
            ));
        }
        if weights.sum::<f64>() <= 0.0 {
            return Err("corpus.sources: every weight is 0: expected one above".into());
        }
        if temperature != 1.0 {
            return Err(format!(
                "corpus.mix.temperature = {temperature} has no effect with explicit weights: leave out one \
                 of the two"
            ));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn two() -> CorpusConfig {
        let source = |name: &str, weight| SourceConfig {
            name: name.into(),
            source: SourceKind::Jsonl,
            path: format!("{name}.jsonl"),
            weight,
            ..SourceConfig::default()
        };
        CorpusConfig {
            sources: vec![source("web", Some(0.7)), source("books", Some(0.3))],
            ..Default::default()
        }
    }

    #[test]
    fn each_bad_value_is_named() {
        two().check().unwrap();
        let bad = |edit: &dyn Fn(&mut CorpusConfig), key: &str| {
            let mut config = two();
            edit(&mut config);
            let message = config.check().unwrap_err();
            assert!(message.contains(key), "{message} should name {key}");
        };
        bad(&|c| c.path = "x".into(), "corpus.path");
        bad(&|c| c.mix.temperature = 0.0, "temperature");
        bad(&|c| c.mix.temperature = 2.0, "temperature");
        bad(&|c| c.sources[0].name = "We b".into(), "We b");
        bad(&|c| c.sources[0].name = "books".into(), "two have the name");
        bad(&|c| c.sources[0].path.clear(), "\"web\": corpus.path is missing");
        bad(&|c| c.sources[0].weight = None, "\"web\" has no weight");
        bad(&|c| c.sources[0].weight = Some(-1.0), "weight = -1");
        bad(&|c| c.sources[1].epochs = Some(0.0), "epochs = 0");
        bad(&|c| c.sources.iter_mut().for_each(|source| source.weight = Some(0.0)), "every weight is 0");
        let slice = |predicate: &str| SliceConfig {
            name: "new".into(),
            predicate: predicate.into(),
            weight: Some(1.0),
            epochs: None,
        };
        bad(&|c| c.sources[0].slices = vec![slice("bytes > 3"), slice("bytes > 4")], "two slices");
    }

    #[test]
    fn components_are_the_rest_of_a_source_and_its_slices() {
        let mut config = two();
        config.sources[0].epochs = Some(3.0);
        let slice = |name: &str, epochs| SliceConfig {
            name: name.into(),
            predicate: "bytes > 3".into(),
            weight: Some(0.1),
            epochs,
        };
        config.sources[0].weight = None;
        config.sources[0].slices = vec![slice("old", None), slice("new", Some(1.0))];
        config.check().unwrap();
        let found: Vec<_> = config.components().into_iter().map(|c| (c.name, c.weight, c.epochs)).collect();
        assert_eq!(
            found,
            [
                ("web".to_string(), Some(0.0), Some(3.0)),
                ("web.old".to_string(), Some(0.1), Some(3.0)),
                ("web.new".to_string(), Some(0.1), Some(1.0)),
                ("books".to_string(), Some(0.3), None),
            ]
        );
        assert!(CorpusConfig::default().components().is_empty());
    }
}
