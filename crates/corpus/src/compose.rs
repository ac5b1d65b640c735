//! From a configuration to the plan.
//!
//! ```text
//! source ─► side of the split ─► parts of long texts ─► each document by itself ─► duplicates ─► head, middle, tail ─► sink
//!           [corpus.split]       one pass, one text buffer │ [corpus.dedup]  [corpus.scores]
//!                                                          └ the cut of `parts.rs`
//! each document: URLs ─► decode ─► scores that predicates name ─► profiles of rules ─► rules of this crate, privacy
//!               .urls   [corpus.clean] [corpus.scores]           [corpus.rules]      [corpus.clean, .privacy]
//!                ─► evaluation sets ─► other scores ─► slices of a mixture
//!                  .decontaminate      [corpus.scores]  [[corpus.sources]]
//! ```
//!
//! Profiles see a document before anything in it is replaced, as in the pipelines that they come from. A single `file` is
//! only decoded and split.

use crate::components::{KeepExempt, Slices};
use crate::cut::Cut;
use crate::error::{Error, Result};
use crate::output::extra;
use crate::rule::{Decode, Decontaminate, Profiles, chain, urls};
use crate::score::{self, Scores};
use crate::source::{MetadataColumns, Source};
use crate::split::Assign;
use arrow_schema::{DataType, Field};
use bessemer_corpus_config::CorpusConfig;
use bessemer_corpus_config::dedup::{DedupConfig, Method};
use bessemer_corpus_config::scores::ScoreConfig;
use bessemer_dataflow::{BatchMap, Plan, Stage};
use bessemer_documents::{
    COMPONENT, DocumentPass, DocumentPasses, EDIT_KINDS, EDITS, EMBEDDING, METADATA, TAGS, text_schema,
};
use bessemer_privacy::decontaminate::{self, EvaluationSet, Index};
use bessemer_rules::{Profile, build_profiles};
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
    // Sources of a chain that no rule touches.
    let exempt: BTreeSet<String> = source.listing().verbatim.iter().cloned().collect();
    let keep_exempt = (!exempt.is_empty()).then(|| Stage::Map(Arc::new(KeepExempt)));
    let [filtered, written] = meters;
    let passes = DocumentPasses::new(passes(config, exempt.clone(), verbatim)?, &[TAGS]);
    let max_bytes = config.clean.cuts().filter(|_| !verbatim).map(|most| most as usize);
    let cut = Stage::FlatMap(Arc::new(Cut { max_bytes, exempt }));
    let mut stages =
        vec![Stage::Map(Arc::new(assign)), cut, Stage::Map(Arc::new(passes)), Stage::Map(filtered)];
    if !verbatim {
        stages.extend(bessemer_dedup::stages(&methods(config)));
        stages.extend(score::parts(&config.scores));
    }
    stages.extend(keep_exempt);
    stages.push(Stage::Map(written));
    Ok(Plan { source, stages })
}

/// What each document goes through by itself, in order.
fn passes(
    config: &CorpusConfig,
    exempt: BTreeSet<String>,
    verbatim: bool,
) -> Result<Vec<Box<dyn DocumentPass>>> {
    let decode = Decode::of(config.clean.invalid_utf8, exempt, verbatim);
    if verbatim {
        return Ok(vec![Box::new(decode)]);
    }
    let mut passes: Vec<Box<dyn DocumentPass>> = Vec::new();
    passes.extend(urls::filter(&config.urls)?.map(|filter| boxed(urls::Urls(filter))));
    passes.push(Box::new(decode));
    let profiles = build_profiles(&config.rules).map_err(|error| Error::Config(format!("corpus.{error}")))?;
    let (named, others) = scores(config, &profiles)?;
    passes.extend(named.map(boxed));
    passes.extend((!profiles.is_empty()).then(|| boxed(Profiles(profiles))));
    passes.extend(chain(config));
    passes.extend(evaluation_sets(config)?.map(boxed));
    passes.extend(others.map(boxed));
    if !config.sources.is_empty() {
        let slices = Slices::of(&config.sources).map_err(|error| Error::Config(format!("corpus.{error}")))?;
        passes.push(Box::new(slices));
    }
    Ok(passes)
}

fn boxed(pass: impl DocumentPass + 'static) -> Box<dyn DocumentPass> {
    Box::new(pass)
}

/// The scores that predicates of the profiles name, and the others: documents that the rules drop need not be scored.
fn scores(config: &CorpusConfig, profiles: &[Profile]) -> Result<(Option<Scores>, Option<Scores>)> {
    let named: BTreeSet<&str> = profiles.iter().flat_map(Profile::columns).collect();
    let is_named =
        |score: &&ScoreConfig| score.columns().iter().any(|(column, _)| named.contains(column.as_str()));
    let list = &config.scores.list;
    let others = list.iter().filter(|score| !is_named(score));
    Ok((Scores::open(list.iter().filter(is_named))?, Scores::open(others)?))
}

/// Documents that hold parts of evaluation sets, where such sets are named.
fn evaluation_sets(config: &CorpusConfig) -> Result<Option<Decontaminate>> {
    let config = &config.decontaminate;
    let read = |source| {
        let fault = |cause| Error::Config(format!("corpus.decontaminate.sets: {cause}"));
        decontaminate::read(source, Path::new("")).map_err(fault)
    };
    let sets: Vec<EvaluationSet> = config.sets.iter().map(read).collect::<Result<_>>()?;
    Ok((!sets.is_empty()).then(|| Decontaminate(Index::new(config, &sets))))
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
        .filter(|name| ![METADATA, EMBEDDING, EDITS].contains(&name.as_str()));
    let own = own.chain(EDIT_KINDS.map(String::from));
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
    if !MetadataColumns::of(config).is_empty() {
        fields.push(Field::new(METADATA, DataType::Utf8, true));
    }
    if urls::asked(&config.urls) || score::reads_urls(&config.scores) {
        fields.push(Field::new("url", DataType::Utf8, true));
    }
    fields.extend(score::columns(&config.scores));
    fields
}
