//! From the keys of `[corpus.rules]` to profiles.

use crate::error::{Error, Result};
use crate::predicate::Predicate;
use crate::profile::Profile;
use crate::read::read_list;
use bessemer_corpus_config::RulesConfig;
use std::path::Path;

/// Entries of the lists of bad words that C4 lets through, for languages without spaces.
const ALLOWED: [&str; 4] = ["sm", "グロ", "女の子", "性"];

/// The profiles that the keys ask for, ready to run one after the other.
///
/// # Errors
/// If a profile, predicate or list cannot be used.
pub fn build_profiles(config: &RulesConfig) -> Result<Vec<Profile>> {
    config.check().map_err(Error::new)?;
    let predicates = |name: &str, key: &str, sources: &[String]| -> Result<Profile> {
        let mut profile = Profile::parse(&format!("name = {name:?}"), None)?;
        for source in sources {
            profile.push_where(source, source).map_err(|error| error.at(key))?;
        }
        Ok(profile)
    };
    let mut profiles = Vec::new();
    if !config.keep_first.is_empty() {
        profiles.push(predicates("first", "rules.keep_first", &config.keep_first)?);
    }
    for name in &config.profiles {
        profiles.push(Profile::find(name).map_err(|error| error.at("rules.profiles"))?);
    }
    if config.keep.is_empty() && config.bad_words.is_empty() {
        return Ok(profiles);
    }
    let mut own = predicates("own", "rules.keep", &config.keep)?;
    if !config.bad_words.is_empty() {
        let list = read_list(Path::new(&config.bad_words)).map_err(|error| error.at("rules.bad_words"))?;
        let list = list.into_iter().filter(|word| !ALLOWED.contains(&word.as_str())).collect();
        let anywhere = matches!(config.bad_words_language.as_str(), "ja" | "th" | "zh");
        own.push_bad_words(list, anywhere, config.bad_words_keep)
            .map_err(|error| error.at("rules.bad_words"))?;
    }
    profiles.push(own);
    Ok(profiles)
}

/// Checks that every column that the predicates read is there.
///
/// # Errors
/// If one is not: the message names the nearest.
pub fn check_columns(config: &RulesConfig, columns: &[&str]) -> Result<()> {
    for (key, predicates) in [("rules.keep_first", &config.keep_first), ("rules.keep", &config.keep)] {
        for source in predicates {
            Predicate::parse(source)?.check_columns(columns.iter().copied()).map_err(|e: Error| e.at(key))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::evaluate::{DocumentView, Verdict};

    #[test]
    fn profiles_predicates_and_words() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("bad.txt");
        std::fs::write(&path, "darn\n性\n\n").expect("writable");
        let config = RulesConfig {
            keep_first: Vec::new(),
            profiles: vec!["c4-paragraphs".into()],
            keep: vec!["1 < 2".into()],
            bad_words: path.display().to_string(),
            bad_words_language: String::new(),
            bad_words_keep: 0.0,
        };
        let profiles = build_profiles(&config).unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(profiles.len(), 2);
        let verdict = |text: &str| profiles[1].evaluate(&DocumentView::of(text)).verdict;
        assert_eq!(verdict("well, DARN!"), Verdict::Drop("document_removed_with_badwords".into()));
        assert_eq!(verdict("darning 性 ok"), Verdict::Keep);
        let anywhere = RulesConfig { bad_words_language: "ja".into(), ..config.clone() };
        let profiles = build_profiles(&anywhere).unwrap_or_else(|error| panic!("{error}"));
        assert!(matches!(profiles[1].evaluate(&DocumentView::of("darning")).verdict, Verdict::Drop(_)));
        assert!(build_profiles(&config).is_ok());
        // A tenth of bad texts is kept, always the same ones, and good ones all stay.
        let some = RulesConfig { bad_words_keep: 0.1, ..config.clone() };
        let kept = |text: &dyn Fn(usize) -> String| {
            let profiles = build_profiles(&some).unwrap_or_else(|error| panic!("{error}"));
            let is_kept =
                |n: &usize| profiles[1].evaluate(&DocumentView::of(&text(*n))).verdict == Verdict::Keep;
            (0..2000).filter(is_kept).collect::<Vec<usize>>()
        };
        let bad = kept(&|n| format!("darn {n}"));
        // 200 expected; a binomial's deviation is 13.4.
        assert!(bad.len().abs_diff(200) < 54, "{}", bad.len());
        assert_eq!(bad, kept(&|n| format!("darn {n}")));
        assert_eq!(kept(&|n| format!("fine {n}")).len(), 2000);
        let wrong = RulesConfig { bad_words_keep: -0.1, ..config.clone() };
        assert!(build_profiles(&wrong).is_err_and(|error| error.0.contains("bad_words_keep = -0.1")));
        let wrong = RulesConfig { profiles: vec!["gopher-qualty".into()], ..RulesConfig::default() };
        assert!(build_profiles(&wrong).is_err_and(|error| error.0.contains("gopher-quality")));
        let wrong = RulesConfig { keep: vec!["a <".into()], ..RulesConfig::default() };
        assert!(build_profiles(&wrong).is_err_and(|error| error.0.starts_with("rules.keep")));
        let wrong = RulesConfig { keep: vec!["lnag == 'en'".into()], ..RulesConfig::default() };
        assert!(
            check_columns(&wrong, &["lang", "text"]).is_err_and(|error| error.to_string().contains("lang"))
        );
        let first = RulesConfig { keep_first: vec!["1 > 2".into()], ..config };
        let profiles = build_profiles(&first).unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(profiles.len(), 3);
        assert_eq!(profiles[0].evaluate(&DocumentView::of("x")).verdict, Verdict::Drop("1 > 2".into()));
        assert!(build_profiles(&RulesConfig::default()).is_ok_and(|profiles| profiles.is_empty()));
    }
}
