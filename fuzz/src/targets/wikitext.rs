//! Pages of a MediaWiki dump, wikitext, and posts of Stack Exchange.

use bessemer_markup::MarkupLimits;
use bessemer_markup::stack_exchange::Post;
use bessemer_markup::wikipedia::{Namespaces, WikiPage, plain_text};

/// Runs the target on one input.
pub fn run(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let limits = MarkupLimits::default();
    let namespaces = Namespaces::of_head(&text);
    if let Ok(plain) = plain_text(&text, &namespaces, &limits) {
        assert!(plain.len() <= 2 * text.len() + 16);
    }
    if let Ok(page) = WikiPage::parse(&text, &limits) {
        let _ = plain_text(&page.wikitext, &namespaces, &limits);
    }
    let _ = Post::parse(&text, &limits);
}
