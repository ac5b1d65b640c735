//! The filter: which list drops a URL.

use super::lists::{ListError, StringSet, read_list};
use super::{host, registered_domain};
use aho_corasick::{AhoCorasick, MatchKind};
use bessemer_corpus_config::urls::{UrlFilterConfig, UrlProfile};
use std::path::Path;

/// Why a URL is dropped. Names as in datatrove.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum UrlVerdict {
    /// Its registered domain is listed.
    Domain,
    /// Its host is listed.
    Subdomain,
    /// The URL comes from a curated source.
    Curated,
    /// The URL itself is listed.
    Url,
    /// The URL holds a banned word.
    HardBlacklisted,
    /// The URL holds several soft words.
    SoftBlacklisted,
    /// The URL holds a banned sub-word.
    BlacklistedSubword,
}

impl UrlVerdict {
    /// Name in reports.
    pub fn name(self) -> &'static str {
        match self {
            UrlVerdict::Domain => "domain",
            UrlVerdict::Subdomain => "subdomain",
            UrlVerdict::Curated => "curated",
            UrlVerdict::Url => "url",
            UrlVerdict::HardBlacklisted => "hard_blacklisted",
            UrlVerdict::SoftBlacklisted => "soft_blacklisted",
            UrlVerdict::BlacklistedSubword => "blacklisted_subword",
        }
    }
}

/// A filter with its lists in memory. A verdict takes time linear in the URL.
#[derive(Debug, Clone)]
pub struct UrlFilter {
    profile: UrlProfile,
    domains: StringSet,
    urls: StringSet,
    banned: StringSet,
    soft: StringSet,
    soft_threshold: u64,
    subwords: Option<AhoCorasick>,
    curated: StringSet,
}

/// Letters and digits in small letters: how words stand in lists.
fn squeezed(text: &str) -> String {
    text.chars().filter(char::is_ascii_alphanumeric).map(|c| c.to_ascii_lowercase()).collect()
}

/// A URL without what does not change the page: scheme, `www.`, fragment, final slash.
fn same_page(url: &str) -> String {
    let rest = url.trim().split('#').next().unwrap_or_default();
    let rest = rest.split_once("://").map_or(rest, |(_, r)| r);
    let (authority, path) = rest.split_at(rest.find(['/', '?']).unwrap_or(rest.len()));
    let authority = authority.to_lowercase();
    let authority = authority.strip_prefix("www.").unwrap_or(&authority);
    format!("{authority}{}", path.trim_end_matches('/'))
}

fn load(files: &[String], inline: &[String], form: impl Fn(&str) -> String) -> Result<StringSet, ListError> {
    let mut entries: Vec<String> = inline.iter().map(|e| form(e)).collect();
    for file in files {
        read_list(Path::new(file), |e| entries.push(form(e)))?;
    }
    entries.retain(|e| !e.is_empty());
    Ok(StringSet::new(entries))
}

impl UrlFilter {
    /// Reads the lists of a configuration.
    ///
    /// # Errors
    /// A list cannot be read.
    pub fn new(config: &UrlFilterConfig) -> Result<UrlFilter, ListError> {
        let profile = config.profile;
        let domain = |d: &str| d.trim_matches('.').to_lowercase();
        let url = |u: &str| if profile == UrlProfile::Strict { same_page(u) } else { u.to_string() };
        let subwords = load(&config.subword_files, &config.subwords, squeezed)?;
        let subwords = (!subwords.is_empty())
            .then(|| AhoCorasick::builder().match_kind(MatchKind::Standard).build(subwords.iter()))
            .transpose()
            .map_err(|e| ListError::Words(e.to_string()))?;
        Ok(UrlFilter {
            profile,
            domains: load(&config.domain_files, &config.domains, domain)?,
            urls: load(&config.url_files, &config.urls, url)?,
            banned: load(&config.banned_word_files, &config.banned_words, squeezed)?,
            soft: load(&config.soft_word_files, &config.soft_words, squeezed)?,
            soft_threshold: config.soft_threshold,
            subwords,
            curated: load(&config.curated_files, &config.curated, domain)?,
        })
    }

    /// The reason for which a page at `url` is dropped; None if it is kept.
    pub fn verdict(&self, url: &str) -> Option<UrlVerdict> {
        let host = host(url);
        let host = host.as_deref().unwrap_or_default();
        if let Some(verdict) = self.host_verdict(host) {
            return Some(verdict);
        }
        let listed = match self.profile {
            UrlProfile::Strict => !self.urls.is_empty() && self.urls.contains(&same_page(url)),
            _ => self.urls.contains(url),
        };
        if listed {
            return Some(UrlVerdict::Url);
        }
        // RefinedWeb looks for its strict words first and leaves only `-` and `.` out of the URL.
        if self.profile == UrlProfile::Refinedweb && self.holds_subword(url, |c| !matches!(c, '-' | '.')) {
            return Some(UrlVerdict::BlacklistedSubword);
        }
        if let Some(verdict) = self.word_verdict(url) {
            return Some(verdict);
        }
        (self.profile != UrlProfile::Refinedweb && self.holds_subword(url, |c| c.is_ascii_alphanumeric()))
            .then_some(UrlVerdict::BlacklistedSubword)
    }

    fn host_verdict(&self, host: &str) -> Option<UrlVerdict> {
        if host.is_empty() {
            return None;
        }
        let registered = registered_domain(host);
        if self.profile == UrlProfile::Datatrove {
            // An address, or a name under no known suffix, has no domain there.
            let registered = registered?;
            if self.domains.contains(registered) {
                return Some(UrlVerdict::Domain);
            }
            return self.domains.contains(host).then_some(UrlVerdict::Subdomain);
        }
        let mut name = host;
        loop {
            if self.curated.contains(name) {
                return Some(UrlVerdict::Curated);
            }
            if self.domains.contains(name) {
                let own = registered.is_none_or(|r| r == name);
                return Some(if own { UrlVerdict::Domain } else { UrlVerdict::Subdomain });
            }
            // Above the registered domain lie public suffixes, which nobody means.
            if registered.is_none() || registered == Some(name) {
                return None;
            }
            name = name.split_once('.')?.1;
        }
    }

    fn word_verdict(&self, url: &str) -> Option<UrlVerdict> {
        if self.banned.is_empty() && self.soft.is_empty() {
            return None;
        }
        let lower;
        let text = if self.profile == UrlProfile::Datatrove {
            url
        } else {
            lower = url.to_ascii_lowercase();
            &lower
        };
        let mut soft: Vec<&str> = Vec::new();
        for word in text.split(|c: char| !c.is_ascii_alphanumeric()).filter(|w| !w.is_empty()) {
            if self.banned.contains(word) {
                return Some(UrlVerdict::HardBlacklisted);
            }
            if (soft.len() as u64) < self.soft_threshold && self.soft.contains(word) && !soft.contains(&word)
            {
                soft.push(word);
            }
        }
        (soft.len() as u64 >= self.soft_threshold).then_some(UrlVerdict::SoftBlacklisted)
    }

    fn holds_subword(&self, url: &str, keep: impl Fn(char) -> bool) -> bool {
        let Some(automaton) = &self.subwords else { return false };
        let text: String = url.chars().filter(|c| keep(*c)).map(|c| c.to_ascii_lowercase()).collect();
        automaton.is_match(&text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filter(profile: UrlProfile) -> UrlFilter {
        let list = |words: &[&str]| words.iter().map(|w| (*w).to_string()).collect::<Vec<_>>();
        UrlFilter::new(&UrlFilterConfig {
            profile,
            domains: list(&["blocked.com", "danger.org", "badsubdomain.nice.com", "10.0.0.7"]),
            urls: list(&["https://fine.com/bad-page"]),
            banned_words: list(&["hardword"]),
            soft_words: list(&["softa", "softb", "softc"]),
            subwords: list(&["sub-word"]),
            curated: if profile == UrlProfile::Datatrove { vec![] } else { list(&["wikipedia.org"]) },
            ..UrlFilterConfig::default()
        })
        .unwrap()
    }

    fn verdict(profile: UrlProfile, url: &str) -> &'static str {
        filter(profile).verdict(url).map_or("kept", UrlVerdict::name)
    }

    #[test]
    fn values_of_datatrove() {
        for (url, wanted) in [
            // Its own tests.
            ("https://blocked.com/some-sites", "domain"),
            ("https://hey.danger.org/x", "domain"),
            ("https://badsubdomain.nice.com/x", "subdomain"),
            ("https://sdsd.badsubdomain.nice.com/x", "kept"),
            ("https://nice.com/x", "kept"),
            // The order and the letters of its rules.
            ("https://fine.com/bad-page", "url"),
            ("https://fine.com/bad-page/", "kept"),
            ("https://fine.com/a/hardword.html", "hard_blacklisted"),
            ("https://fine.com/a/HardWord.html", "kept"),
            ("https://fine.com/ahardword", "kept"),
            ("https://fine.com/softa/softa", "kept"),
            ("https://fine.com/softa/softb", "soft_blacklisted"),
            ("https://fine.com/xsub.WORDx", "blacklisted_subword"),
            ("http://10.0.0.7/", "kept"),
            ("", "kept"),
        ] {
            assert_eq!(verdict(UrlProfile::Datatrove, url), wanted, "{url}");
        }
    }

    #[test]
    fn strict_closes_the_gaps() {
        for (url, wanted) in [
            ("https://sdsd.badsubdomain.nice.com/x", "subdomain"),
            ("https://hey.danger.org/x", "domain"),
            ("https://NICE.com/x", "kept"),
            ("http://www.fine.com/bad-page/#part", "url"),
            ("https://fine.com/a/HardWord.html", "hard_blacklisted"),
            ("https://fine.com/SoftA/softb", "soft_blacklisted"),
            ("http://10.0.0.7:80/", "domain"),
            ("https://en.wikipedia.org/wiki/Steel", "curated"),
            ("https://fine.com/xsub.WORDx", "blacklisted_subword"),
        ] {
            assert_eq!(verdict(UrlProfile::Strict, url), wanted, "{url}");
        }
    }

    #[test]
    fn refinedweb_looks_for_strict_words_first() {
        for (url, wanted) in [
            ("https://fine.com/su-b.wo.rd/hardword", "blacklisted_subword"),
            ("https://fine.com/sub/word", "kept"),
            ("https://fine.com/HARDWORD", "hard_blacklisted"),
            ("https://fine.com/softc_softb", "soft_blacklisted"),
            ("https://de.wikipedia.org/", "curated"),
        ] {
            assert_eq!(verdict(UrlProfile::Refinedweb, url), wanted, "{url}");
        }
    }
}
