//! Pages: encodings, the tokenizer and tree of HTML, both extractors.

use bessemer_web::encoding::{decode, repair_mojibake};
use bessemer_web::extract::{Extractor, Main, Plain};
use bessemer_web::html::{HtmlLimits, decode_references};
use bessemer_web::page::{PageOptions, page_of_html};

/// Runs the target on one input.
pub fn run(data: &[u8]) {
    let page = decode(data, None, None).text;
    for extractor in [&Main as &dyn Extractor, &Plain] {
        if let Ok(extraction) = extractor.extract(&page, &HtmlLimits::default()) {
            // Text is what the page has, not what its markup grows into.
            assert!(extraction.text.len() <= 16 * page.len() + 1024);
        }
    }
    page_of_html(data, &Main, &PageOptions::default());
    repair_mojibake(&page);
    decode_references(&page);
}
