//! The keys of a URL filter. Every doc comment below is printed to users as the key's documentation.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// How URLs are compared with lists.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum UrlProfile {
    /// As datatrove does for FineWeb: words compare with their case, parents of a sub-domain are not tried.
    #[default]
    Datatrove,
    /// The same order of rules without those gaps: words in any case, every parent domain, hosts that are addresses,
    /// URLs without regard to scheme, `www.` and a final slash.
    Strict,
    /// RefinedWeb as DCLM applies it: domains, curated sources, strict words anywhere in the URL without `-` and `.`,
    /// hard words and soft words as whole words.
    Refinedweb,
}

/// Which URLs are dropped. Files hold one entry a line, plain or .gz; lines that begin with # are comments.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct UrlFilterConfig {
    /// How URLs are compared with the lists: datatrove, strict or refinedweb.
    pub profile: UrlProfile,
    /// Files of domains whose pages are dropped (`domain`, `subdomain`).
    pub domain_files: Vec<String>,
    /// Domains whose pages are dropped.
    pub domains: Vec<String>,
    /// Files of whole URLs that are dropped (`url`).
    pub url_files: Vec<String>,
    /// Whole URLs that are dropped.
    pub urls: Vec<String>,
    /// Summaries (`corpus.json`) of finished corpora whose URLs are dropped (`url`): the parts of a crawl that were built before.
    pub corpora: Vec<String>,
    /// Files of words of which one is enough (`hard_blacklisted`).
    pub banned_word_files: Vec<String>,
    /// Words of which one is enough.
    pub banned_words: Vec<String>,
    /// Files of words of which several must come together (`soft_blacklisted`).
    pub soft_word_files: Vec<String>,
    /// Words of which several must come together.
    pub soft_words: Vec<String>,
    /// How many different soft words drop a page.
    pub soft_threshold: u64,
    /// Files of letters that may stand nowhere in a URL, inside words too (`blacklisted_subword`).
    pub subword_files: Vec<String>,
    /// Letters that may stand nowhere in a URL.
    pub subwords: Vec<String>,
    /// Files of domains that are left out because they come from a curated source (`curated`; refinedweb and strict).
    pub curated_files: Vec<String>,
    /// Domains that come from a curated source.
    pub curated: Vec<String>,
}

impl Default for UrlFilterConfig {
    fn default() -> Self {
        UrlFilterConfig {
            profile: UrlProfile::Datatrove,
            domain_files: Vec::new(),
            domains: Vec::new(),
            url_files: Vec::new(),
            urls: Vec::new(),
            corpora: Vec::new(),
            banned_word_files: Vec::new(),
            banned_words: Vec::new(),
            soft_word_files: Vec::new(),
            soft_words: Vec::new(),
            soft_threshold: 2,
            subword_files: Vec::new(),
            subwords: Vec::new(),
            curated_files: Vec::new(),
            curated: Vec::new(),
        }
    }
}

impl UrlFilterConfig {
    /// Paths of files that the keys name, each with its key.
    pub fn paths(&mut self) -> Vec<(String, &mut String)> {
        let lists = [
            ("domain_files", &mut self.domain_files),
            ("url_files", &mut self.url_files),
            ("corpora", &mut self.corpora),
            ("banned_word_files", &mut self.banned_word_files),
            ("soft_word_files", &mut self.soft_word_files),
            ("subword_files", &mut self.subword_files),
            ("curated_files", &mut self.curated_files),
        ];
        let mut paths = Vec::new();
        for (key, list) in lists {
            paths.extend(list.iter_mut().map(|path| (format!("urls.{key}"), path)));
        }
        paths
    }

    /// Checks every value. The message names the key, relative to the filter's table, the value and what is allowed.
    ///
    /// # Errors
    /// A value out of range, or a key that the profile does not use.
    pub fn check(&self) -> Result<(), String> {
        if self.soft_threshold == 0 || self.soft_threshold > 1000 {
            return Err(format!("soft_threshold = {}: expected 1 to 1000", self.soft_threshold));
        }
        let curated = !self.curated.is_empty() || !self.curated_files.is_empty();
        if curated && self.profile == UrlProfile::Datatrove {
            return Err(
                "curated, curated_files: the profile datatrove has no curated sources; expected profile = \
                        \"strict\" or \"refinedweb\", or put them into domains"
                    .into(),
            );
        }
        for (key, list) in [("domains", &self.domains), ("curated", &self.curated)] {
            if let Some(bad) = list.iter().find(|d| d.is_empty() || d.contains(['/', ':', ' ', '@'])) {
                return Err(format!("{key} has {bad:?}: expected a domain such as \"example.com\""));
            }
        }
        for (key, list) in [
            ("banned_words", &self.banned_words),
            ("soft_words", &self.soft_words),
            ("subwords", &self.subwords),
        ] {
            if let Some(bad) = list.iter().find(|w| !w.chars().any(|c| c.is_ascii_alphanumeric())) {
                return Err(format!("{key} has {bad:?}: expected a word of letters or digits a-z, 0-9"));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defaults_pass_and_bad_values_are_named() {
        UrlFilterConfig::default().check().unwrap();
        let bad = |edit: &dyn Fn(&mut UrlFilterConfig), key: &str| {
            let mut c = UrlFilterConfig::default();
            edit(&mut c);
            let message = c.check().unwrap_err();
            assert!(message.contains(key), "{message}");
        };
        bad(&|c| c.soft_threshold = 0, "soft_threshold");
        bad(&|c| c.curated = vec!["wikipedia.org".into()], "curated");
        bad(&|c| c.domains = vec!["http://x".into()], "domains");
        bad(&|c| c.subwords = vec!["--".into()], "subwords");
        assert!(serde_json::from_str::<UrlFilterConfig>(r#"{"domain": []}"#).is_err());
    }
}
