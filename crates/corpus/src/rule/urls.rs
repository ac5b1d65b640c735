//! The URL filter of the `web` room as a map over batches, before anything looks at a text.

use crate::error::{Error, Result};
use arrow_array::builder::StringBuilder;
use arrow_array::{Array, RecordBatch, StringArray};
use arrow_schema::{DataType, Field};
use bessemer_dataflow::{BatchMap, column, optional, with_columns};
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

/// The map. Documents without a URL pass.
pub(crate) struct Urls(pub(crate) Arc<UrlFilter>);

impl BatchMap for Urls {
    fn name(&self) -> &str {
        "urls"
    }

    fn apply(&self, batch: RecordBatch) -> bessemer_dataflow::Result<RecordBatch> {
        let of = |name| column::<StringArray>(self.name(), &batch, name);
        let (urls, old_reasons, old_details) = (of("url")?, of("reason")?, of("detail")?);
        if urls.null_count() == urls.len() {
            return Ok(batch);
        }
        let (mut reasons, mut details) = (StringBuilder::new(), StringBuilder::new());
        for index in 0..batch.num_rows() {
            let url = optional(urls, index).filter(|_| old_reasons.is_null(index));
            match url.and_then(|url| Some((self.0.judge(url)?, url))) {
                Some((verdict, url)) => {
                    reasons.append_value(verdict.name());
                    details.append_value(url);
                }
                None => {
                    reasons.append_option(optional(old_reasons, index));
                    details.append_option(optional(old_details, index));
                }
            }
        }
        let field = |name: &str| Field::new(name, DataType::Utf8, true);
        with_columns(
            &batch,
            vec![
                (field("reason"), Arc::new(reasons.finish())),
                (field("detail"), Arc::new(details.finish())),
            ],
        )
    }
}
