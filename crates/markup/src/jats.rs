//! JATS XML, in which PubMed Central and most publishers keep articles (ANSI/NISO Z39.96).
//!
//! The text is the title, the abstract and the body with its section titles; of figures and tables the caption. References,
//! acknowledgements and the rest of `<back>`, authors, affiliations and the cells of tables are left out. A formula is its TeX
//! where the article carries it, else the characters of its MathML.

use crate::Paper;
use crate::error::{MarkupError, MarkupLimits};
use crate::writer::TextWriter;
use crate::xml::{XmlEvent, XmlReader};

/// Bytes in which the document type or the root element of an article must begin.
const HEAD_BYTES: usize = 4096;

/// Elements that are left out with all they hold.
const DROPPED: &[&str] = &[
    "back",
    "ref-list",
    "table",
    "array",
    "contrib-group",
    "aff",
    "author-notes",
    "object-id",
    "graphic",
    "inline-graphic",
    "media",
    "supplementary-material",
    "permissions",
    "fn-group",
    "floats-group",
    "sub-article",
    "response",
    "kwd-group",
    "label",
    "journal-meta",
];
/// Elements whose text is a paragraph of its own.
const BLOCKS: &[&str] = &[
    "p",
    "title",
    "sec",
    "abstract",
    "disp-formula",
    "disp-quote",
    "list",
    "caption",
    "fig",
    "table-wrap",
    "def-list",
    "body",
    "code",
    "preformat",
];

/// Treatment of the text of an element.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Shown {
    /// Nothing yet: outside of title, abstract and body.
    Outside,
    /// The text is kept.
    Text,
    /// The text is left out.
    Dropped,
}

/// An open element.
struct Frame {
    shown: Shown,
    kind: FrameKind,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum FrameKind {
    Block,
    Inline,
    /// `<article-title>` of the article itself, with where it begins.
    Title(usize),
    /// `<tex-math>`, with where it begins.
    Tex(usize),
    /// `<alternatives>`: the first child that is text is taken, the others are not.
    Alternatives {
        taken: bool,
    },
}

/// Whether a text begins as a JATS article does: its document type is `article`, or its first element.
pub fn is_article(text: &str) -> bool {
    let head = &text[..text.floor_char_boundary(HEAD_BYTES)];
    let mut rest = head;
    while let Some(at) = memchr::memchr(b'<', rest.as_bytes()) {
        rest = &rest[at..];
        if let Some(doctype) = rest.strip_prefix("<!DOCTYPE") {
            let name = doctype.trim_start().split(|c: char| c.is_whitespace() || c == '>').next();
            return name == Some("article");
        }
        if rest.starts_with("<!--") {
            match rest.find("-->") {
                Some(end) => rest = &rest[end..],
                None => return false,
            }
        } else if !rest.starts_with("<?") {
            let name = rest[1..].split(|c: char| c.is_whitespace() || c == '>').next();
            return name == Some("article");
        }
        rest = &rest[1..];
    }
    false
}

/// The text of an article.
///
/// # Errors
/// The XML is damaged, too large or nested too deep; the document has neither title nor body.
pub fn article(xml: &str, limits: &MarkupLimits) -> Result<Paper, MarkupError> {
    let mut reader = XmlReader::new(xml, limits)?;
    let mut writer = TextWriter::default();
    let mut stack: Vec<Frame> = Vec::new();
    let mut title = None;
    while let Some(event) = reader.next()? {
        match event {
            XmlEvent::Start(element) => {
                let frame = open(&element.name(), &mut stack, &mut writer, title.is_none());
                stack.push(frame);
            }
            XmlEvent::End => {
                let Some(frame) = stack.pop() else { continue };
                match frame.kind {
                    FrameKind::Block => writer.paragraph(),
                    FrameKind::Title(start) => {
                        title = Some(writer.from(start).trim().to_string()).filter(|title| !title.is_empty());
                        writer.paragraph();
                    }
                    FrameKind::Tex(start) => {
                        let formula = formula_of(writer.from(start)).to_string();
                        writer.truncate(start);
                        writer.verbatim(&formula);
                    }
                    FrameKind::Inline | FrameKind::Alternatives { .. } => {}
                }
            }
            XmlEvent::Text(text) => {
                if stack.last().is_some_and(|frame| frame.shown == Shown::Text) {
                    writer.words(&text);
                }
            }
        }
    }
    let text = writer.finish();
    if text.is_empty() {
        return Err(MarkupError::NoDocument("the XML has no article title, abstract or body"));
    }
    Ok(Paper { title, text })
}

/// The frame of an element that begins.
fn open(name: &str, stack: &mut [Frame], writer: &mut TextWriter, untitled: bool) -> Frame {
    let mut shown = stack.last().map_or(Shown::Outside, |frame| frame.shown);
    let formula = matches!(name, "tex-math" | "math" | "textual-form" | "inline-formula");
    if let Some(Frame { kind: FrameKind::Alternatives { taken }, .. }) = stack.last_mut() {
        if *taken || !formula {
            shown = Shown::Dropped;
        }
        *taken |= formula;
    }
    if shown == Shown::Dropped || DROPPED.contains(&name) {
        return Frame { shown: Shown::Dropped, kind: FrameKind::Inline };
    }
    match name {
        "article-title" if shown == Shown::Outside && untitled => {
            writer.paragraph();
            return Frame { shown: Shown::Text, kind: FrameKind::Title(writer.len()) };
        }
        "abstract" | "body" => shown = Shown::Text,
        "tex-math" if shown == Shown::Text => {
            return Frame { shown, kind: FrameKind::Tex(writer.len()) };
        }
        "alternatives" => return Frame { shown, kind: FrameKind::Alternatives { taken: false } },
        "list-item" if shown == Shown::Text => {
            writer.line();
            writer.words("- ");
        }
        "break" if shown == Shown::Text => writer.line(),
        _ => {}
    }
    // A paragraph that begins an item stays on the line of its mark.
    let in_item = stack.last().is_some_and(|frame| frame.kind == FrameKind::Inline) && name == "p";
    let kind = if BLOCKS.contains(&name) { FrameKind::Block } else { FrameKind::Inline };
    if kind == FrameKind::Block && shown == Shown::Text && !in_item {
        writer.paragraph();
    }
    Frame { shown, kind: if in_item { FrameKind::Inline } else { kind } }
}

/// The formula of a `<tex-math>`, which may be a whole LaTeX document around it.
fn formula_of(tex: &str) -> &str {
    let body = tex.split_once("\\begin{document}").map_or(tex, |(_, body)| body);
    body.split_once("\\end{document}").map_or(body, |(body, _)| body).trim()
}
