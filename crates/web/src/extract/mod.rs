//! From a page to the text that someone wrote on it.
//!
//! Two extractors behind one trait: [`Plain`] gives all visible text outside of navigation, [`Main`] what the page is
//! about. Both are one walk forwards and one backwards over the nodes of the page, so their time is linear in its
//! bytes and no nesting can exhaust a stack; limits are checked on the way, in the caller's thread, so nothing is ever
//! left running.

mod around;
mod blocks;
mod main_text;
mod measure;
mod names;
mod technical;

pub use blocks::{Block, BlockKind};

use crate::html::{Document, HtmlError, HtmlLimits, decode_references};
use blocks::collect;
use measure::{Concealed, Measures};

/// Concealed characters for each shown one above which a script shows the text, if no prose is shown.
const MOST_CONCEALED: u32 = 4;

/// The text of a page.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Extraction {
    /// The text: blocks on lines of their own, paragraphs apart by an empty line.
    pub text: String,
    /// The page's title, if it has one.
    pub title: Option<String>,
    /// The language that the page says it is in (`<html lang>`).
    pub language: Option<String>,
}

/// Turns a page into text.
pub trait Extractor: Send + Sync {
    /// Name in reports.
    fn name(&self) -> &'static str;

    /// The text of `page`.
    ///
    /// An implementation must keep to the limits by itself: it is called in the thread that waits for the result.
    ///
    /// # Errors
    /// The page exceeds a limit.
    fn extract(&self, page: &str, limits: &HtmlLimits) -> Result<Extraction, HtmlError>;
}

/// All visible text, without navigation, footers and blocks that are links for the most part.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Plain;

/// The main text: the part of the page that holds most of its prose, without what surrounds it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Main;

impl Extractor for Plain {
    fn name(&self) -> &'static str {
        "plain"
    }

    fn extract(&self, page: &str, limits: &HtmlLimits) -> Result<Extraction, HtmlError> {
        extract(page, limits, |_, blocks| blocks.retain(|b| !b.outside))
    }
}

impl Extractor for Main {
    fn name(&self) -> &'static str {
        "main"
    }

    fn extract(&self, page: &str, limits: &HtmlLimits) -> Result<Extraction, HtmlError> {
        extract(page, limits, main_text::choose)
    }
}

fn extract(
    page: &str,
    limits: &HtmlLimits,
    choose: impl Fn(&Measures<'_, '_>, &mut Vec<Block>),
) -> Result<Extraction, HtmlError> {
    let document = Document::parse(page, limits)?;
    let mut measures = Measures::new(&document, Concealed::LeaveOut);
    let mut blocks = collect(&document, &measures);
    if measures.concealed > MOST_CONCEALED * (measures.sums[0].chars - measures.sums[0].linked)
        && !blocks.iter().any(main_text::is_prose)
    {
        measures = Measures::new(&document, Concealed::Show);
        blocks = collect(&document, &measures);
    }
    measures.mark(&mut blocks);
    choose(&measures, &mut blocks);
    let title = document
        .title
        .map(|t| decode_references(t).split_whitespace().collect::<Vec<_>>().join(" "))
        .filter(|t| !t.is_empty());
    Ok(Extraction { text: blocks::join(&blocks), title, language: measures.language() })
}
