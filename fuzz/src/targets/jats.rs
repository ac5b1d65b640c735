//! Articles in JATS XML.

use bessemer_markup::MarkupLimits;
use bessemer_markup::jats::{article, is_article};

/// Runs the target on one input.
pub fn run(data: &[u8]) {
    let xml = String::from_utf8_lossy(data);
    is_article(&xml);
    if let Ok(paper) = article(&xml, &MarkupLimits::default()) {
        assert!(paper.text.len() <= 2 * xml.len());
    }
}
