//! Check of a configuration, with the parts of it that other crates know: profiles of rules, predicates and the columns that they
//! read.

use crate::{compose, require, score};
use bessemer_corpus_config::{CorpusConfig, SourceConfig};
use bessemer_rules::{Predicate, build_profiles, check_columns};

/// Prefix of the name of a tag in predicates.
pub(crate) const TAG: &str = "tag.";

/// Checks every value of a configuration, and that its profiles and predicates can be used. The message names the key, the value and
/// what is allowed.
///
/// # Errors
/// The first fault.
pub fn check(config: &CorpusConfig) -> Result<(), String> {
    config.check()?;
    build_profiles(&config.rules).map_err(|error| format!("corpus.{error}"))?;
    score::check(&config.scores)?;
    let columns = columns(config);
    let columns: Vec<&str> = columns.iter().map(String::as_str).collect();
    for source in &config.sources {
        check_slices(source, &columns)?;
    }
    check_columns(&config.rules, &columns).map_err(|error| format!("corpus.{error}"))?;
    require::check(&config.evaluate).map_err(|error| error.to_string())
}

fn check_slices(source: &SourceConfig, columns: &[&str]) -> Result<(), String> {
    for slice in &source.slices {
        Predicate::parse(&slice.predicate)
            .and_then(|predicate| predicate.check_columns(columns.iter().copied()))
            .map_err(|error| {
                format!("corpus.sources {:?}, slice {:?}: where: {error}", source.name, slice.name)
            })?;
    }
    Ok(())
}

/// Columns that predicates can read.
fn columns(config: &CorpusConfig) -> Vec<String> {
    let mut columns = compose::columns(config);
    if !config.sources.is_empty() {
        columns.push(bessemer_documents::COMPONENT.into());
    }
    for source in &config.sources {
        columns.extend(source.tag.keys().map(|name| format!("{TAG}{name}")));
    }
    columns.sort_unstable();
    columns.dedup();
    columns
}

#[cfg(test)]
mod tests {
    use super::*;
    use bessemer_corpus_config::{SliceConfig, SourceKind};

    #[test]
    fn faults_of_profiles_and_predicates_are_named() {
        check(&CorpusConfig::default()).unwrap();
        let source = SourceConfig {
            name: "web".into(),
            source: SourceKind::Jsonl,
            path: "web.jsonl".into(),
            ..SourceConfig::default()
        };
        let sliced = |predicate: &str| {
            let mut source = source.clone();
            source.tag.insert("genre".into(), "novel".into());
            source.slices =
                vec![SliceConfig { name: "new".into(), predicate: predicate.into(), ..Default::default() }];
            CorpusConfig { sources: vec![source], ..CorpusConfig::default() }
        };
        check(&sliced("bytes > 2023 && tag.genre == null && component == 'web'")).unwrap();
        let bad = |edit: &dyn Fn(&mut CorpusConfig), key: &str| {
            let mut config = CorpusConfig::default();
            edit(&mut config);
            let message = check(&config).unwrap_err();
            assert!(message.contains(key), "{message} should name {key}");
        };
        bad(&|c| c.clean.max_bytes = 0, "corpus.clean.max_bytes");
        bad(&|c| c.rules.profiles = vec!["gopher-qualty".into()], "corpus.rules.profiles");
        bad(&|c| c.rules.keep = vec!["byts > 3".into()], "corpus.rules.keep");
        bad(&|c| c.evaluate.profiles = vec!["gopher-qualty".into()], "corpus.evaluate.profiles");
        bad(&|c| c.evaluate.require = vec!["kept.shar > 0.5".into()], "corpus.evaluate.require");
        bad(&|c| *c = sliced("date >"), "corpus.sources \"web\", slice \"new\": where");
        bad(&|c| *c = sliced("dat > '2023'"), "dat");
    }
}
