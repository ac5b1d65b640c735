//! URLs: hosts, registered domains, filters, and the dates and tags that are read from them. The first line is the list.

use bessemer_corpus_config::urls::UrlFilterConfig;
use bessemer_score::{date::Date, domain};
use bessemer_web::url::{UrlFilter, host, registered_domain, top_label};

/// Runs the target on one input.
pub fn run(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let (list, urls) = text.split_once('\n').unwrap_or(("", text));
    let entries: Vec<String> = list.split(' ').map(String::from).collect();
    let config = UrlFilterConfig {
        domains: entries.clone(),
        urls: entries.clone(),
        banned_words: entries.clone(),
        soft_words: entries.clone(),
        subwords: entries,
        ..UrlFilterConfig::default()
    };
    let filter = UrlFilter::new(&config);
    let tags = domain::DomainTags::with_lines(list, "fuzz");
    for url in urls.lines().take(64) {
        if let Some(host) = host(url) {
            registered_domain(&host);
            top_label(&host);
        }
        if let Ok(filter) = &filter {
            filter.verdict(url);
        }
        if let Ok(tags) = &tags {
            tags.tag(url);
        }
        Date::from_url(url);
        Date::from_text(url);
        Date::from_warc(url);
    }
}
