//! The keys of `[corpus.rules]`. Every doc comment below is printed to users as the key's documentation.

use crate::error::{Error, Result};
use crate::predicate::Predicate;
use crate::profile::Profile;
use crate::read::read_list;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::path::Path;

/// `[corpus.rules]`: the rules that documents go through.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct RulesConfig {
    /// Predicates as in `keep` that come before the profiles, such as `lang == "en"`.
    pub keep_first: Vec<String>,
    /// Profiles, in order: names that `bessemer corpus profiles` lists, or paths of profile files (with a slash, or
    /// ending in .toml). Empty: none.
    pub profiles: Vec<String>,
    /// Predicates over document columns, such as `lang == "en" && quality > 0.3`. A document for which one is not true
    /// is dropped under the predicate's own text.
    pub keep: Vec<String>,
    /// A file with one bad word a line: documents that hold one are dropped, as C4 does. Empty: no such rule.
    pub bad_words: String,
    /// Language of the bad words: for ja, th and zh they count inside of other words too, and a few harmless ones are
    /// let through.
    pub bad_words_language: String,
    /// Share of the documents with bad words that are kept nonetheless, chosen by a hash of their text.
    pub bad_words_keep: f64,
}

/// Entries of the lists of bad words that C4 lets through, for languages without spaces.
const ALLOWED: [&str; 4] = ["sm", "グロ", "女の子", "性"];

impl RulesConfig {
    /// Checks names, files and predicates. The message names the key, the value and what is allowed.
    pub fn check(&self) -> std::result::Result<(), String> {
        self.build().map(|_| ()).map_err(|error| error.to_string())
    }

    /// Paths of files that the keys name, each with its key.
    pub fn paths(&mut self) -> Vec<(String, &mut String)> {
        let profiles = self.profiles.iter_mut().filter(|name| Profile::is_path(name));
        let mut paths: Vec<(String, &mut String)> =
            profiles.map(|path| ("rules.profiles".into(), path)).collect();
        paths.push(("rules.bad_words".into(), &mut self.bad_words));
        paths.retain(|(_, path)| !path.is_empty());
        paths
    }

    /// The profiles that the keys ask for, ready to run one after the other.
    ///
    /// # Errors
    /// If a profile, predicate or list cannot be used.
    pub fn build(&self) -> Result<Vec<Profile>> {
        if !(0.0..=1.0).contains(&self.bad_words_keep) {
            let keep = self.bad_words_keep;
            return Err(Error::new(format!("rules.bad_words_keep = {keep}: wanted a share from 0 to 1")));
        }
        let predicates = |name: &str, key: &str, sources: &[String]| -> Result<Profile> {
            let mut profile = Profile::parse(&format!("name = {name:?}"), None)?;
            for source in sources {
                profile.push_where(source, source).map_err(|error| error.at(key))?;
            }
            Ok(profile)
        };
        let mut profiles = Vec::new();
        if !self.keep_first.is_empty() {
            profiles.push(predicates("first", "rules.keep_first", &self.keep_first)?);
        }
        for name in &self.profiles {
            profiles.push(Profile::find(name).map_err(|error| error.at("rules.profiles"))?);
        }
        if self.keep.is_empty() && self.bad_words.is_empty() {
            return Ok(profiles);
        }
        let mut own = predicates("own", "rules.keep", &self.keep)?;
        if !self.bad_words.is_empty() {
            let list = read_list(Path::new(&self.bad_words)).map_err(|error| error.at("rules.bad_words"))?;
            let list = list.into_iter().filter(|word| !ALLOWED.contains(&word.as_str())).collect();
            let anywhere = matches!(self.bad_words_language.as_str(), "ja" | "th" | "zh");
            own.push_bad_words(list, anywhere, self.bad_words_keep)
                .map_err(|error| error.at("rules.bad_words"))?;
        }
        profiles.push(own);
        Ok(profiles)
    }

    /// Checks that every column that the predicates read is there.
    ///
    /// # Errors
    /// If one is not: the message names the nearest.
    pub fn check_columns(&self, columns: &[&str]) -> Result<()> {
        for (key, predicates) in [("rules.keep_first", &self.keep_first), ("rules.keep", &self.keep)] {
            for source in predicates {
                Predicate::parse(source)?
                    .check_columns(columns.iter().copied())
                    .map_err(|e: Error| e.at(key))?;
            }
        }
        Ok(())
    }
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
        let profiles = config.build().unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(profiles.len(), 2);
        let verdict = |text: &str| profiles[1].evaluate(&DocumentView::of(text)).verdict;
        assert_eq!(verdict("well, DARN!"), Verdict::Drop("document_removed_with_badwords".into()));
        assert_eq!(verdict("darning 性 ok"), Verdict::Keep);
        let anywhere = RulesConfig { bad_words_language: "ja".into(), ..config.clone() };
        let profiles = anywhere.build().unwrap_or_else(|error| panic!("{error}"));
        assert!(matches!(profiles[1].evaluate(&DocumentView::of("darning")).verdict, Verdict::Drop(_)));
        assert_eq!(config.check(), Ok(()));
        // A tenth of bad texts is kept, always the same ones, and good ones all stay.
        let some = RulesConfig { bad_words_keep: 0.1, ..config.clone() };
        let kept = |text: &dyn Fn(usize) -> String| {
            let profiles = some.build().unwrap_or_else(|error| panic!("{error}"));
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
        assert!(wrong.check().is_err_and(|message| message.contains("bad_words_keep = -0.1")));
        let wrong = RulesConfig { profiles: vec!["gopher-qualty".into()], ..RulesConfig::default() };
        assert!(wrong.check().is_err_and(|message| message.contains("gopher-quality")));
        let wrong = RulesConfig { keep: vec!["a <".into()], ..RulesConfig::default() };
        assert!(wrong.check().is_err_and(|message| message.starts_with("rules.keep")));
        let wrong = RulesConfig { keep: vec!["lnag == 'en'".into()], ..RulesConfig::default() };
        assert!(
            wrong.check_columns(&["lang", "text"]).is_err_and(|error| error.to_string().contains("lang"))
        );
        let first = RulesConfig { keep_first: vec!["1 > 2".into()], ..config };
        let profiles = first.build().unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(profiles.len(), 3);
        assert_eq!(profiles[0].evaluate(&DocumentView::of("x")).verdict, Verdict::Drop("1 > 2".into()));
        assert!(RulesConfig::default().build().is_ok_and(|profiles| profiles.is_empty()));
    }
}
