//! The URL filter of the `web` crate as a pass over documents, before anything looks at a text.

use crate::error::{Error, Result};
use crate::output::summary::SUMMARY_FILE;
use crate::read::CorpusReader;
use arrow_array::cast::AsArray;
use bessemer_corpus_config::urls::UrlFilterConfig;
use bessemer_documents::{Document, DocumentPass, Scratch, Split, Verdict};
use bessemer_web::url::UrlFilter;
use std::path::Path;
use std::sync::Arc;

/// Reads the lists of a filter; none if it would drop nothing.
///
/// # Errors
/// A list that cannot be read.
pub(crate) fn filter(config: &UrlFilterConfig) -> Result<Option<Arc<UrlFilter>>> {
    if !asked(config) {
        return Ok(None);
    }
    let mut config = config.clone();
    for summary in std::mem::take(&mut config.corpora) {
        add_urls_of_corpus(Path::new(&summary), &mut config.urls)?;
    }
    let filter = UrlFilter::new(&config).map_err(|error| Error::Config(format!("corpus.urls: {error}")))?;
    Ok(Some(Arc::new(filter)))
}

/// Adds the URLs of the documents that a finished corpus kept.
fn add_urls_of_corpus(summary: &Path, urls: &mut Vec<String>) -> Result<()> {
    if summary.file_name().is_none_or(|name| name != SUMMARY_FILE) {
        return Err(Error::Config(format!(
            "corpus.urls.corpora has {:?}: expected the path of a {SUMMARY_FILE}, such as runs/part-1/corpus/{SUMMARY_FILE}",
            summary.display()
        )));
    }
    let reader = CorpusReader::open(summary.parent().unwrap_or(Path::new("")))?;
    for split in Split::ALL {
        for batch in reader.split_batches(split).only(&["url"]) {
            let batch = batch?;
            let column = batch.column_by_name("url").and_then(|column| column.as_string_opt::<i32>());
            let Some(column) = column else {
                return Err(Error::Config(format!(
                    "corpus.urls.corpora: the documents of {} have no column url: build that corpus with a list in corpus.urls",
                    summary.display()
                )));
            };
            urls.extend(column.iter().flatten().map(String::from));
        }
    }
    Ok(())
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
        let listed = document.string("url").and_then(|url| Some((self.0.verdict(url)?, url)));
        Ok(listed.map_or(Verdict::Keep, |(verdict, url)| Verdict::drop(verdict.name(), url.to_string())))
    }
}
