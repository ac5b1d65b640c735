//! The pages of a file, as builds read them: a saved page, or the records of a web archive.

use crate::failure::Failure;
use bessemer_corpus::source_kind_of;
use bessemer_corpus_config::SourceKind;
use bessemer_web::extract::Extractor;
use bessemer_web::page::{Page, PageOptions, page_of_html, page_of_record};
use bessemer_web::warc::{WarcLimits, WarcReader};
use std::io::Read;
use std::path::Path;

/// Errors of reading pages.
pub(crate) enum PageFault {
    /// A damaged record; reading continues after it.
    Record(String),
    /// No further page can be read.
    File(String),
    /// A remark on the file; no page is lost.
    Remark(String),
}

pub(crate) type Pages = Box<dyn Iterator<Item = Result<Page, PageFault>>>;

/// Whether a file of this name holds pages: saved HTML or a web archive.
pub(crate) fn holds_pages(path: &Path) -> bool {
    is_html(path) || source_kind_of(&path.to_string_lossy()) == Some(SourceKind::Warc)
}

fn is_html(path: &Path) -> bool {
    source_kind_of(&path.to_string_lossy()) == Some(SourceKind::Html)
}

/// The pages of a saved page or, under any other name, of a web archive.
pub(crate) fn pages(
    path: &Path,
    extractor: &'static dyn Extractor,
    options: PageOptions,
) -> Result<Pages, Failure> {
    if is_html(path) {
        let page = saved_page(path, extractor, &options);
        let page = page.map_err(|e| Failure::new(format!("cannot read {}: {e}", path.display())))?;
        return Ok(Box::new(std::iter::once(Ok(page))));
    }
    let place = path.display().to_string();
    let mut reader = WarcReader::open(path, WarcLimits::default())
        .map_err(|error| Failure::new(format!("{place}: {error}")))?;
    let (mut ended, mut faults) = (false, 0_u64);
    Ok(Box::new(std::iter::from_fn(move || {
        while !ended {
            match reader.next() {
                Ok(Some(record)) => {
                    if let Some(page) = page_of_record(&record, extractor, &options) {
                        return Some(Ok(page));
                    }
                }
                Ok(None) => {
                    ended = true;
                    let wrong = reader.counts().wrong_lengths;
                    if wrong > 0 {
                        let plural = if wrong == 1 { "record states" } else { "records state" };
                        return Some(Err(PageFault::Remark(format!(
                            "{place}: {wrong} {plural} a wrong Content-Length; read to the end of the compressed member"
                        ))));
                    }
                    if reader.counts().records == 0 && faults == 0 && reader.length() > 0 {
                        return Some(Err(PageFault::File(format!("{place} holds no WARC record"))));
                    }
                }
                Err(error) if error.is_skippable() => {
                    faults += 1;
                    return Some(Err(PageFault::Record(format!("{place}: {error}; skipped"))));
                }
                Err(error) => {
                    ended = true;
                    return Some(Err(PageFault::File(format!("{place}: {error}"))));
                }
            }
        }
        None
    })))
}

fn saved_page(path: &Path, extractor: &dyn Extractor, options: &PageOptions) -> std::io::Result<Page> {
    let mut bytes = Vec::new();
    // One byte above the limit is enough to see that there are too many.
    let most = options.max_body as u64 + 1;
    bessemer_durable::open_regular(path)?.take(most).read_to_end(&mut bytes)?;
    Ok(page_of_html(&bytes, extractor, options))
}
