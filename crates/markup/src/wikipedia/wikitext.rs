//! Wikitext as plain text.
//!
//! Tables, references, galleries, files, categories and links to other languages are left out; of other links the label
//! stays, of formulas and code the source. Sections that only point elsewhere ("See also", "References") are left out, as are
//! sections in which nothing is left. Templates that stand within sentences give their text, others none ([`super::templates`]).

use super::Namespaces;
use super::regions::{Region, Tags, closed_regions};
use super::templates;
use crate::error::{MarkupError, MarkupLimits};
use crate::writer::TextWriter;
use bessemer_web::html::decode_references;

/// Titles of sections that hold no prose, in small letters: English, German, French, Spanish, Italian, Portuguese.
const DROPPED_SECTIONS: &[&str] = &[
    "see also",
    "references",
    "external links",
    "further reading",
    "notes",
    "bibliography",
    "sources",
    "citations",
    "footnotes",
    "notes and references",
    "works cited",
    "einzelnachweise",
    "weblinks",
    "siehe auch",
    "literatur",
    "anmerkungen",
    "références",
    "notes et références",
    "liens externes",
    "voir aussi",
    "bibliographie",
    "referencias",
    "enlaces externos",
    "véase también",
    "bibliografía",
    "notas",
    "note",
    "collegamenti esterni",
    "voci correlate",
    "bibliografia",
    "altri progetti",
    "referências",
    "ver também",
    "ligações externas",
];
/// Longest address of a link in single brackets.
const ADDRESS_BYTES: usize = 2000;
/// Longest prefix of a link to another language.
const LANGUAGE_BYTES: usize = 12;

/// A link in double brackets that is open.
struct Link {
    /// Length of the text before it.
    start: usize,
    /// It has a label, so its target is gone from the text.
    labelled: bool,
    /// It is a file, a category or a link to another language.
    hidden: bool,
}

/// A heading whose section has no text yet.
struct Heading {
    /// Length of the text before it.
    start: usize,
    /// Length of the text up to the end of the heading.
    end: usize,
    level: usize,
}

struct Renderer<'a> {
    text: &'a str,
    at: usize,
    writer: TextWriter,
    links: Vec<Link>,
    /// External links that are open in this paragraph.
    external: usize,
    headings: Vec<Heading>,
    /// Level of the section that is left out.
    dropped_level: Option<usize>,
    namespaces: &'a Namespaces,
}

/// The text of a page.
///
/// # Errors
/// The page is too large, or its links are nested too deep.
pub fn plain_text(
    wikitext: &str,
    namespaces: &Namespaces,
    limits: &MarkupLimits,
) -> Result<String, MarkupError> {
    limits.check_bytes(wikitext.len())?;
    let expanded = if wikitext.contains("{{") { templates::expanded(wikitext) } else { wikitext.to_string() };
    limits.check_bytes(expanded.len())?;
    let wikitext = expanded.as_str();
    let ends = closed_regions(wikitext);
    let mut tags = Tags::default();
    let mut renderer = Renderer {
        text: wikitext,
        at: 0,
        writer: TextWriter::default(),
        links: Vec::new(),
        external: 0,
        headings: Vec::new(),
        dropped_level: None,
        namespaces,
    };
    while renderer.at < wikitext.len() {
        if (renderer.at == 0 || wikitext.as_bytes()[renderer.at - 1] == b'\n') && renderer.line_start() {
            continue;
        }
        let rest = &wikitext[renderer.at..];
        match rest.as_bytes()[0] {
            b'{' if ends.contains_key(&renderer.at) => renderer.at = ends[&renderer.at].end,
            b'<' => match tags.region(wikitext, renderer.at) {
                Some(region) => renderer.region(region),
                None => renderer.characters(1),
            },
            b'[' | b']' | b'|' => renderer.bracket(limits)?,
            b'\'' => {
                let quotes = rest.bytes().take_while(|byte| *byte == b'\'').count();
                // Two, three or five are bold and italic; a fourth is an apostrophe.
                if matches!(quotes, 1 | 4) {
                    renderer.words("'");
                }
                renderer.at += quotes;
            }
            b'_' if rest.starts_with("__") => renderer.magic_word(),
            b'\n' => renderer.line_end(),
            b'{' => renderer.characters(1),
            _ => renderer.characters(
                rest.find(['{', '<', '[', ']', '|', '\'', '_', '\n']).unwrap_or(rest.len()).max(1),
            ),
        }
    }
    renderer.close_headings(0);
    Ok(renderer.writer.finish())
}

impl Renderer<'_> {
    fn hidden(&self) -> bool {
        self.dropped_level.is_some()
    }

    fn words(&mut self, text: &str) {
        if !self.hidden() {
            self.writer.words(text);
        }
    }

    /// Adds so many bytes of running text.
    fn characters(&mut self, length: usize) {
        let length = self.text.ceil_char_boundary(self.at + length) - self.at;
        let text = decode_references(&self.text[self.at..self.at + length]);
        self.words(&text);
        self.at += length;
    }

    fn region(&mut self, region: Region) {
        match region {
            Region::Dropped(end) | Region::Tag(end) => self.at = end,
            Region::Break(end) => {
                self.writer.line();
                self.at = end;
            }
            Region::Literal { start, end, next } => {
                if !self.hidden() {
                    self.writer.verbatim(decode_references(&self.text[start..end]).trim_matches('\n'));
                }
                self.at = next;
            }
        }
    }

    /// Reads what only the beginning of a line can be: a heading, a rule, marks of lists. False where the line is plain text.
    fn line_start(&mut self) -> bool {
        let rest = &self.text[self.at..];
        let line = &rest[..rest.find('\n').unwrap_or(rest.len())];
        if line.starts_with('=')
            && let Some((level, title)) = heading(line)
        {
            self.heading(level, title);
            self.at += line.len();
            return true;
        }
        if line.starts_with("----") {
            self.writer.paragraph();
            self.at += line.bytes().take_while(|byte| *byte == b'-').count();
            return true;
        }
        let marks = line.bytes().take_while(|byte| matches!(byte, b'*' | b'#' | b':' | b';')).count();
        if marks == 0 {
            return false;
        }
        self.writer.line();
        if line[..marks].ends_with(['*', '#']) {
            self.words("- ");
        }
        self.at += marks;
        true
    }

    fn heading(&mut self, level: usize, title: &str) {
        self.close_headings(level);
        // A link that the section before left open ends with it.
        self.links.clear();
        if self.dropped_level.is_some_and(|dropped| level <= dropped) {
            self.dropped_level = None;
        }
        let title = title.replace("'''", "").replace("''", "");
        let title = decode_references(title.trim());
        if self.dropped_level.is_none() && DROPPED_SECTIONS.contains(&title.to_lowercase().as_str()) {
            self.dropped_level = Some(level);
        }
        if !self.hidden() {
            let start = self.writer.len();
            self.writer.paragraph();
            self.writer.words(&title);
            self.headings.push(Heading { start, end: self.writer.len(), level });
        }
        self.writer.paragraph();
    }

    /// Takes back headings of this level and below whose sections have no text.
    fn close_headings(&mut self, level: usize) {
        while let Some(heading) = self.headings.pop_if(|heading| heading.level >= level) {
            if heading.end == self.writer.len() {
                self.writer.truncate(heading.start);
            } else {
                // Text behind it is text behind all headings around it.
                self.headings.clear();
            }
        }
    }

    fn line_end(&mut self) {
        let lines = self.text[self.at..].bytes().take_while(|byte| *byte == b'\n').count();
        if lines > 1 {
            self.writer.paragraph();
            self.links.clear();
            self.external = 0;
        } else {
            self.writer.line();
        }
        self.at += lines;
    }

    fn bracket(&mut self, limits: &MarkupLimits) -> Result<(), MarkupError> {
        let rest = &self.text[self.at..];
        if rest.starts_with("[[") {
            self.at += 2;
            let hidden = self.links.last().is_some_and(|link| link.hidden) || self.is_hidden_target();
            self.links.push(Link { start: self.writer.len(), labelled: false, hidden });
            limits.check_depth(self.links.len())?;
        } else if rest.starts_with("]]") && !self.links.is_empty() {
            self.at += 2;
            if let Some(link) = self.links.pop()
                && link.hidden
            {
                self.writer.truncate(link.start);
            }
        } else if rest.starts_with('|')
            && let Some(link) = self.links.last_mut()
        {
            self.at += 1;
            if !link.labelled || link.hidden {
                link.labelled = true;
                let start = link.start;
                self.writer.truncate(start);
            } else {
                self.words("|");
            }
        } else if rest.starts_with('[')
            && let Some(address) = address(&rest[1..])
        {
            // An address without a label is no text.
            self.at += 1 + address;
            self.external += 1;
        } else if rest.starts_with(']') && self.external > 0 {
            self.external -= 1;
            self.at += 1;
        } else {
            self.characters(1);
        }
        Ok(())
    }

    /// Whether the link whose target begins here is a file, a category or the same page in another language.
    fn is_hidden_target(&self) -> bool {
        let rest = &self.text[self.at..];
        let length = rest.bytes().take(64).position(|byte| matches!(byte, b':' | b'|' | b']' | b'\n'));
        let Some(length) = length.filter(|length| rest.as_bytes()[*length] == b':' && *length > 0) else {
            return false;
        };
        let prefix = rest[..length].trim().replace('_', " ").to_lowercase();
        let is_language = prefix.len() <= LANGUAGE_BYTES
            && prefix.len() >= 2
            && prefix.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'-')
            && prefix.split('-').next().is_some_and(|code| matches!(code.len(), 2 | 3));
        is_language || self.namespaces.hidden.contains(&prefix)
    }

    /// Leaves out `__TOC__` and its like.
    fn magic_word(&mut self) {
        let rest = &self.text[self.at + 2..];
        let length = rest.bytes().take(40).take_while(u8::is_ascii_uppercase).count();
        if length > 0 && rest[length..].starts_with("__") {
            self.at += length + 4;
        } else {
            self.characters(2);
        }
    }
}

/// Level and title of a heading `== title ==`.
fn heading(line: &str) -> Option<(usize, &str)> {
    let line = line.split("<!--").next().unwrap_or(line).trim_end();
    let before = line.bytes().take_while(|byte| *byte == b'=').count();
    let after = line.bytes().rev().take_while(|byte| *byte == b'=').count();
    let level = before.min(after).min(6);
    (level > 0 && line.len() > 2 * level).then(|| (level, &line[level..line.len() - level]))
}

/// Bytes of an address that begins an external link, the space after the address included.
fn address(rest: &str) -> Option<usize> {
    let schemes = ["http://", "https://", "//", "ftp://", "mailto:"];
    if !schemes.iter().any(|scheme| rest.starts_with(scheme)) {
        return None;
    }
    let length =
        rest.bytes().take(ADDRESS_BYTES).position(|byte| matches!(byte, b' ' | b']' | b'\n' | b'\t'))?;
    Some(length + usize::from(rest.as_bytes()[length] == b' '))
}
