//! Metadata of the input that predicates read: fields of JSON lines, columns of Parquet, header fields of archives.
//!
//! A predicate names them `meta.NAME`. Only fields that some predicate names are read; a row carries them as one JSON object.

use crate::evaluate;
use bessemer_corpus_config::CorpusConfig;
use bessemer_rules::{METADATA_PREFIX, Predicate, Profile, build_profiles, json_field};
use serde_json::{Map, Value as Json};
use std::collections::BTreeSet;
use std::sync::Arc;

/// Columns `meta.…` that predicates of a configuration read.
#[derive(Debug, Clone, Default)]
pub(crate) struct MetadataColumns(Arc<BTreeSet<String>>);

impl MetadataColumns {
    /// The columns that rules, samples and slices of a configuration read. A rule that cannot be built names none: the check of
    /// the configuration reports it.
    pub(crate) fn of(config: &CorpusConfig) -> MetadataColumns {
        let profiles: Vec<Profile> =
            [build_profiles(&config.rules).ok(), evaluate::profiles(&config.evaluate).ok()]
                .into_iter()
                .flatten()
                .flatten()
                .collect();
        let of_profiles = profiles.iter().flat_map(Profile::columns).map(String::from);
        let slices = config.sources.iter().flat_map(|source| &source.slices);
        let predicates: Vec<Predicate> =
            slices.filter_map(|slice| Predicate::parse(&slice.predicate).ok()).collect();
        let of_slices = predicates.iter().flat_map(Predicate::columns).map(String::from);
        let named = of_profiles.chain(of_slices).filter(|column| column.starts_with(METADATA_PREFIX));
        MetadataColumns(Arc::new(named.collect()))
    }

    /// Their names.
    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(String::as_str)
    }

    /// Whether no predicate reads metadata.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether a field of the input may hold what one of the columns names.
    pub(crate) fn reads(&self, field: &str) -> bool {
        let names = |column: &str| column == field || column.split('.').next() == Some(field);
        self.names().any(|column| names(column) || column.strip_prefix(METADATA_PREFIX).is_some_and(names))
    }

    /// The values of the columns in a document's fields, as the JSON object that its row carries; none if it has none of them.
    pub(crate) fn of_fields(&self, fields: &Map<String, Json>) -> Option<String> {
        self.object(|column| {
            json_field(fields, column).filter(|value| !value.is_object() && !value.is_array()).cloned()
        })
    }

    /// The values of the columns among named strings, such as header fields: `value` is asked for a name without `meta.`.
    pub(crate) fn of_names(&self, value: impl Fn(&str) -> Option<String>) -> Option<String> {
        self.object(|column| value(column.strip_prefix(METADATA_PREFIX)?).map(Json::String))
    }

    fn object(&self, value: impl Fn(&str) -> Option<Json>) -> Option<String> {
        let found: Map<String, Json> =
            self.names().filter_map(|column| Some((column.to_string(), value(column)?))).collect();
        (!found.is_empty()).then(|| Json::Object(found).to_string())
    }
}
