//! The URL filter of the `web` crate as a pass over documents, before anything looks at a text.

use crate::error::{Error, Result};
use bessemer_documents::{Document, DocumentPass, Scratch, Verdict};
use bessemer_web::url::{UrlFilter, UrlFilterConfig};
use std::sync::Arc;

/// Reads the lists of a filter; none if it would drop nothing.
///
/// # Errors
/// A list that cannot be read.
pub(crate) fn filter(config: &UrlFilterConfig) -> Result<Option<Arc<UrlFilter>>> {
    if !asked(config) {
        return Ok(None);
    }
    let filter = UrlFilter::new(config).map_err(|error| Error::Config(format!("corpus.urls: {error}")))?;
    Ok(Some(Arc::new(filter)))
}

/// Whether there is a list.
pub(crate) fn asked(config: &UrlFilterConfig) -> bool {
    let inline = [
        &config.domains,
        &config.urls,
        &config.banned_words,
        &config.soft_words,
        &config.subwords,
        &config.curated,
    ];
    !config.clone().paths().is_empty() || inline.iter().any(|list| !list.is_empty())
}

/// The pass. Documents without a URL are kept.
pub(crate) struct Urls(pub(crate) Arc<UrlFilter>);

impl DocumentPass for Urls {
    fn name(&self) -> &str {
        "urls"
    }

    fn visit(&self, document: &mut Document<'_>, _: &mut Scratch) -> bessemer_dataflow::Result<Verdict> {
        let judged = document.string("url").and_then(|url| Some((self.0.judge(url)?, url)));
        Ok(judged.map_or(Verdict::Keep, |(verdict, url)| Verdict::drop(verdict.name(), url.to_string())))
    }
}
