//! LaTeX sources of a paper as plain text.
//!
//! The text is the title, the abstract and the sections. Mathematics stays as written, with macros without arguments expanded;
//! of figures and tables the caption stays. Comments, preamble, bibliography, citations, cross-references and authors are left
//! out. The passes, in order:
//!
//! ```text
//! files ─► the main file ─► comments removed, \input resolved (files)
//!       ─► definitions taken out, one branch of each conditional kept (resolve, conditionals, conditions) ─► macros expanded (macros) ─► text (render)
//! ```
//!
//! This reads LaTeX as it is written in papers; it does not run TeX. Macros with arguments are expanded where they hold a conditional;
//! of others the command disappears and the arguments stay. Of a conditional whose condition the paper does not decide the first
//! branch stays.

mod commands;
mod conditionals;
mod conditions;
mod files;
mod macros;
mod render;
mod resolve;
mod scan;

use crate::Paper;
use crate::error::{MarkupError, MarkupLimits};
use scan::Grouped;

/// The text of a paper in LaTeX. `files` are the sources with their paths in the archive.
///
/// # Errors
/// No file is a LaTeX document; the files, or what their macros expand to, are too large; groups are nested too deep.
pub fn paper(files: &[(String, String)], limits: &MarkupLimits) -> Result<Paper, MarkupError> {
    let source = files::joined(files, limits)?;
    let source = macros::expanded(&source, limits)?;
    let (preamble, body) = match scan::find_begin_document(&source) {
        Some((start, end)) => (&source[..start], &source[end..]),
        None => ("", source.as_str()),
    };
    let (preamble, grouped_body) = (Grouped::new(preamble), Grouped::new(body));
    let title = match preamble.argument_of("title").or_else(|| grouped_body.argument_of("title")) {
        Some(title) => Some(render::text(title, limits)?.replace(['\n', '\r'], " ")),
        None => None,
    };
    let title = title.filter(|title| !title.is_empty());
    let abstract_text = match preamble.argument_of("abstract") {
        Some(text) => render::text(text, limits)?,
        None => String::new(),
    };
    let body = render::text(body, limits)?;
    let parts: Vec<&str> = [title.as_deref().unwrap_or_default(), &abstract_text, &body]
        .into_iter()
        .filter(|part| !part.is_empty())
        .collect();
    let text = parts.join("\n\n");
    if text.is_empty() {
        return Err(MarkupError::NoDocument("the LaTeX document has no text"));
    }
    Ok(Paper { title, text })
}
