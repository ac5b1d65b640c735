//! From a configuration to the plan: one function a stage, in the order in which documents pass them.
//!
//! ```text
//! source ─► URLs ─► decode ─► side of the split ─► scores that predicates name ─► profiles of rules ─┐
//!          .urls   [corpus.clean]  [corpus.split]    [corpus.scores]                [corpus.rules]     │
//!                    ┌──────────────────────────────────────────────────────────────────────────────┘
//!                    └─► rules of this room, privacy ─► evaluation sets ─► other scores ─┬─► duplicates ─► head, middle, tail ─► sink
//!                          [corpus.clean, .privacy]      .decontaminate    [corpus.scores]  │   [corpus.dedup]   [corpus.scores]
//!                                                                                         └ the cut of `parts.rs`
//! ```
//!
//! Profiles see a document before anything in it is replaced, as in the pipelines that they come from. A single `file` is
//! only decoded and split.

use crate::components::{BySource, Slices, Spare};
use crate::config::CorpusConfig;
use crate::error::{Error, Result};
use crate::output::extra;
use crate::rule::{Decode, Decontaminate, Profiles, Rules, urls};
use crate::score;
use crate::source::{MetadataColumns, Source};
use crate::split::Assign;
use arrow_schema::{DataType, Field};
use bessemer_dataflow::{BatchMap, Plan, Stage};
use bessemer_dedup::{DedupConfig, Method};
use bessemer_documents::{COMPONENT, EMBEDDING, METADATA, text_schema};
use bessemer_privacy::decontaminate::{self, EvaluationSet, Index};
use bessemer_rules::Profile;
use bessemer_score::ScoreConfig;
use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

/// Functions that the caller wants to see the rows at two points: behind the last rule, and before the sink.
pub(crate) type Meters = [Arc<dyn BatchMap>; 2];

/// The plan of a configuration over an opened source.
pub(crate) fn plan(
    config: &CorpusConfig,
    source: Arc<dyn Source>,
    assign: Assign,
    meters: Meters,
) -> Result<Plan> {
    let verbatim = source.verbatim();
    // Sources of a chain that no rule touches; their rows hide while the rules look.
    let spared: Arc<BTreeSet<String>> = Arc::new(source.listing().verbatim.iter().cloned().collect());
    let spare = |map: Spare| (!spared.is_empty()).then(|| Stage::Map(Arc::new(map)));
    let [judged, written] = meters;
    let mut stages = Vec::new();
    if !verbatim {
        stages.extend(urls::filter(&config.urls)?.map(|filter| Stage::Map(Arc::new(urls::Urls(filter)))));
    }
    stages.extend([decode(config, verbatim, &spared), Stage::Map(Arc::new(assign))]);
    stages.extend(spare(Spare::hide(spared.clone())));
    if !verbatim {
        let profiles = config.rules.build().map_err(|error| Error::Config(format!("corpus.{error}")))?;
        let (named, others) = scores(config, &profiles)?;
        stages.extend(named);
        stages.extend((!profiles.is_empty()).then(|| Stage::Map(Arc::new(Profiles(profiles)))));
        stages.push(own_rules(config));
        stages.extend(evaluation_sets(config)?);
        stages.extend(others);
    }
    stages.extend(slices(config)?);
    stages.push(Stage::Map(judged));
    if !verbatim {
        stages.extend(methods(config).stages());
        stages.extend(score::parts(&config.scores));
    }
    stages.extend(spare(Spare::show(spared.clone())));
    stages.push(Stage::Map(written));
    Ok(Plan { source, stages })
}

/// Bytes to text.
fn decode(config: &CorpusConfig, verbatim: bool, spared: &Arc<BTreeSet<String>>) -> Stage {
    let decode = |verbatim| Arc::new(Decode { invalid: config.clean.invalid_utf8, verbatim });
    if spared.is_empty() {
        return Stage::Map(decode(verbatim));
    }
    Stage::Map(Arc::new(BySource { verbatim: spared.clone(), kept: decode(true), judged: decode(false) }))
}

/// The slices of several sources.
fn slices(config: &CorpusConfig) -> Result<Option<Stage>> {
    if config.sources.is_empty() {
        return Ok(None);
    }
    let slices = Slices::of(&config.sources).map_err(|error| Error::Config(format!("corpus.{error}")))?;
    Ok(Some(Stage::Map(Arc::new(slices))))
}

/// The scores that predicates of the profiles name, and the others: documents that the rules drop need not be scored.
fn scores(config: &CorpusConfig, profiles: &[Profile]) -> Result<(Option<Stage>, Option<Stage>)> {
    let named: BTreeSet<&str> = profiles.iter().flat_map(Profile::columns).collect();
    let is_named =
        |score: &&ScoreConfig| score.columns().iter().any(|(column, _)| named.contains(column.as_str()));
    let list = &config.scores.list;
    let others = list.iter().filter(|score| !is_named(score));
    Ok((score::stage(list.iter().filter(is_named))?, score::stage(others)?))
}

/// The rules and edits of `[corpus.clean]` and `[corpus.privacy]`.
fn own_rules(config: &CorpusConfig) -> Stage {
    Stage::Map(Arc::new(Rules::new(config)))
}

/// Documents that hold parts of evaluation sets, where such sets are named.
fn evaluation_sets(config: &CorpusConfig) -> Result<Option<Stage>> {
    let config = &config.decontaminate;
    let read = |source| {
        let fault = |cause| Error::Config(format!("corpus.decontaminate.sets: {cause}"));
        decontaminate::read(source, Path::new("")).map_err(fault)
    };
    let sets: Vec<EvaluationSet> = config.sets.iter().map(read).collect::<Result<_>>()?;
    Ok((!sets.is_empty()).then(|| Stage::Map(Arc::new(Decontaminate(Index::new(config, &sets))))))
}

/// The methods that look for duplicates, in order: `exact` first where `[corpus.clean]` asks for it and `[corpus.dedup]`
/// does not name it.
pub(crate) fn methods(config: &CorpusConfig) -> DedupConfig {
    let mut dedup = config.dedup.clone();
    if !dedup.semantic.column.is_empty() {
        // Sources put what the configuration names there.
        dedup.semantic.column = EMBEDDING.into();
    }
    if config.clean.enabled && config.clean.exact_dedup && !dedup.methods.contains(&Method::Exact) {
        dedup.methods.insert(0, Method::Exact);
    }
    dedup
}

/// Names of the columns that predicates can read.
pub(crate) fn columns(config: &CorpusConfig) -> Vec<String> {
    let schema = text_schema();
    let own = schema
        .fields()
        .iter()
        .map(|field| field.name().clone())
        .filter(|name| name != METADATA && name != EMBEDDING);
    let metadata = MetadataColumns::of(config);
    own.chain(metadata.names().map(String::from)).chain(score::predicate_columns(&config.scores)).collect()
}

/// Columns that the documents carry behind those that all corpora have.
pub(crate) fn extras(config: &CorpusConfig, verbatim: bool) -> Vec<Field> {
    let mut fields = Vec::new();
    if !config.dedup.methods.is_empty() {
        fields.push(extra::copies());
    }
    if !config.sources.is_empty() {
        fields.push(Field::new(COMPONENT, DataType::Utf8, false));
    }
    if verbatim {
        return fields;
    }
    if urls::asked(&config.urls) || score::reads_urls(&config.scores) {
        fields.push(Field::new("url", DataType::Utf8, true));
    }
    fields.extend(score::columns(&config.scores));
    fields
}
