//! From a configuration to the plan: one function a stage, in the order in which documents pass them.
//!
//! ```text
//! source ─► decode ─► side of the split ─► profiles of rules ─► rules of this room, privacy ─► evaluation sets ─┬─► duplicates ─► sink
//!           [corpus.clean]  [corpus.split]   [corpus.rules]       [corpus.clean, .privacy]      .decontaminate   │   [corpus.dedup]
//!                                                                                                                └ the cut of `parts.rs`
//! ```
//!
//! Profiles see a document before anything in it is replaced, as in the pipelines that they come from. A single `file` is
//! only decoded and split.

use crate::config::CorpusConfig;
use crate::dedup::exact;
use crate::error::{Error, Result};
use crate::row::text_schema;
use crate::rule::{Decode, Decontaminate, Profiles, Rules};
use crate::source::Source;
use crate::split::Assign;
use bessemer_dataflow::{BatchMap, Plan, Stage};
use bessemer_dedup::Method;
use bessemer_privacy::decontaminate::{self, EvaluationSet, Index};
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
    let [judged, written] = meters;
    let mut stages = vec![decode(config, verbatim), Stage::Map(Arc::new(assign))];
    if !verbatim {
        stages.extend(profiles(config)?);
        stages.push(own_rules(config));
        stages.extend(evaluation_sets(config)?);
    }
    stages.push(Stage::Map(judged));
    if !verbatim {
        stages.extend(duplicates(config));
    }
    stages.push(Stage::Map(written));
    Ok(Plan { source, stages })
}

/// Bytes to text.
fn decode(config: &CorpusConfig, verbatim: bool) -> Stage {
    Stage::Map(Arc::new(Decode { invalid: config.clean.invalid_utf8, verbatim }))
}

/// The profiles of `[corpus.rules]`, where there are any.
fn profiles(config: &CorpusConfig) -> Result<Option<Stage>> {
    let profiles = config.rules.build().map_err(|error| Error::Config(format!("corpus.{error}")))?;
    Ok((!profiles.is_empty()).then(|| Stage::Map(Arc::new(Profiles(profiles)))))
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

/// Equal documents, if they are to go and no method of `[corpus.dedup]` looks for them; then those methods.
fn duplicates(config: &CorpusConfig) -> Vec<Stage> {
    let own = config.clean.enabled && config.clean.exact_dedup;
    let named = config.dedup.methods.contains(&Method::Exact);
    let mut stages = if own && !named { exact::stages() } else { Vec::new() };
    stages.extend(config.dedup.stages());
    stages
}

/// Names of the columns that predicates can read.
pub(crate) fn columns() -> Vec<String> {
    text_schema().fields().iter().map(|field| field.name().clone()).collect()
}
