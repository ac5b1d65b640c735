//! The keys of `[corpus.rules]`. Every doc comment below is printed to users as the key's documentation.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

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

/// Whether the name of a profile is the path of a profile file: it has a slash or ends in `.toml`.
pub fn is_profile_path(name: &str) -> bool {
    name.contains('/') || name.ends_with(".toml")
}

impl RulesConfig {
    /// Checks the values. The message names the key, the value and what is allowed.
    pub fn check(&self) -> Result<(), String> {
        if !(0.0..=1.0).contains(&self.bad_words_keep) {
            let keep = self.bad_words_keep;
            return Err(format!("rules.bad_words_keep = {keep}: wanted a share from 0 to 1"));
        }
        Ok(())
    }

    /// Paths of files that the keys name, each with its key.
    pub fn paths(&mut self) -> Vec<(String, &mut String)> {
        let profiles = self.profiles.iter_mut().filter(|name| is_profile_path(name));
        let mut paths: Vec<(String, &mut String)> =
            profiles.map(|path| ("rules.profiles".into(), path)).collect();
        paths.push(("rules.bad_words".into(), &mut self.bad_words));
        paths.retain(|(_, path)| !path.is_empty());
        paths
    }
}
