//! Parts of wikitext that are no prose, found before it is rendered: templates, tables, comments, references and other tags.

use super::templates::opaque_end;
use std::collections::HashMap;

/// Tags whose content is left out.
const DROPPED_TAGS: &[&str] = &[
    "ref",
    "gallery",
    "timeline",
    "score",
    "imagemap",
    "graph",
    "mapframe",
    "maplink",
    "templatestyles",
    "references",
    "syntaxhighlight-hidden",
    "hiero",
    "categorytree",
    "inputbox",
    "indicator",
    "table",
    "style",
    "script",
    "includeonly",
];
/// Tags whose content stays as it is written.
const LITERAL_TAGS: &[&str] = &["nowiki", "pre", "math", "chem", "source", "syntaxhighlight", "code"];
/// Longest tag.
const TAG_BYTES: usize = 2000;

/// Kind of the region that begins at a position.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Region {
    /// The text up to this end is left out.
    Dropped(usize),
    /// Text between two positions as it is written, then on at the third.
    Literal { start: usize, end: usize, next: usize },
    /// A tag up to this end.
    Tag(usize),
    /// A line break up to this end.
    Break(usize),
}

/// Kind of a region that braces enclose.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ClosedKind {
    /// `{{…}}`
    Template,
    /// `{{{…}}}`
    Argument,
    /// `{|…|}`
    Table,
}

/// A region that braces enclose.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Closed {
    /// Position behind it.
    pub(super) end: usize,
    pub(super) kind: ClosedKind,
}

/// Every template, argument and table by its start. One that is never closed has none: its mark is text. Braces match as MediaWiki's
/// preprocessor matches them: of two runs of braces three make an argument, else two a template, the innermost first.
pub(super) fn closed_regions(text: &str) -> HashMap<usize, Closed> {
    struct Open {
        start: usize,
        /// Braces that are not matched yet; none for a table.
        braces: Option<usize>,
    }
    let bytes = text.as_bytes();
    let mut tags = Tags::default();
    let mut regions = HashMap::new();
    let mut open: Vec<Open> = Vec::new();
    let mut templates = 0;
    let mut at = 0;
    while let Some(found) = memchr::memchr3(b'{', b'}', b'<', &bytes[at..]) {
        at += found;
        let run = |byte: u8| bytes[at..].iter().take_while(|other| **other == byte).count();
        let begins_line =
            |at: usize| at == 0 || text[..at].trim_end_matches([' ', '\t', ':', '*', '#']).ends_with('\n');
        match bytes[at] {
            b'<' => at = opaque_end(text, at, &mut tags).unwrap_or(at + 1),
            b'{' => {
                let braces = run(b'{');
                if braces >= 2 {
                    open.push(Open { start: at, braces: Some(braces) });
                    templates += 1;
                } else if bytes.get(at + 1) == Some(&b'|') && begins_line(at) {
                    open.push(Open { start: at, braces: None });
                }
                at += braces;
            }
            _ => {
                let mut closing = run(b'}');
                let closes_table = closing == 1 && at > 0 && bytes[at - 1] == b'|' && begins_line(at - 1);
                if closes_table && open.last().is_some_and(|open| open.braces.is_none()) {
                    if let Some(table) = open.pop() {
                        regions.insert(table.start, Closed { end: at + 1, kind: ClosedKind::Table });
                    }
                    at += 1;
                    continue;
                }
                while closing >= 2 && templates > 0 {
                    // A table that was not closed inside of the template ends with it.
                    let Some(mut inner) = open.pop() else { break };
                    let Some(braces) = inner.braces else { continue };
                    let matched = braces.min(closing).min(3);
                    let kind = if matched == 3 { ClosedKind::Argument } else { ClosedKind::Template };
                    let left = braces - matched;
                    regions.insert(inner.start + left, Closed { end: at + matched, kind });
                    at += matched;
                    closing -= matched;
                    if left >= 2 {
                        inner.braces = Some(left);
                        open.push(inner);
                    } else {
                        templates -= 1;
                    }
                }
                at += closing;
            }
        }
    }
    regions
}

/// Finds what tags and comments hold, and remembers which ends do not come any more.
#[derive(Default)]
pub(super) struct Tags {
    absent: Vec<String>,
}

impl Tags {
    /// What the `<` at `at` begins; none where it is a character.
    pub(super) fn region(&mut self, text: &str, at: usize) -> Option<Region> {
        let rest = &text[at..];
        if rest.starts_with("<!--") {
            let end = self.find(text, at + 4, "-->").map_or(text.len(), |end| end + 3);
            return Some(Region::Dropped(end));
        }
        let closing = rest.starts_with("</");
        let name_start = at + 1 + usize::from(closing);
        let length = text[name_start..].bytes().take_while(u8::is_ascii_alphanumeric).count();
        if length == 0 || length > 20 {
            return None;
        }
        let name = text[name_start..name_start + length].to_ascii_lowercase();
        let tag_length = rest.bytes().take(TAG_BYTES).position(|byte| byte == b'>')?;
        let tag_end = at + tag_length + 1;
        let empty = text[..tag_end - 1].ends_with('/');
        if name == "br" {
            return Some(Region::Break(tag_end));
        }
        if closing || empty {
            return Some(Region::Tag(tag_end));
        }
        let dropped = DROPPED_TAGS.contains(&name.as_str());
        if dropped || LITERAL_TAGS.contains(&name.as_str()) {
            let Some(end) = self.find_closing(text, tag_end, &name) else {
                return Some(Region::Tag(tag_end));
            };
            let next = text[end..].find('>').map_or(text.len(), |close| end + close + 1);
            return Some(if dropped {
                Region::Dropped(next)
            } else {
                Region::Literal { start: tag_end, end, next }
            });
        }
        Some(Region::Tag(tag_end))
    }

    /// Position of `</name`, in small or capital letters.
    fn find_closing(&mut self, text: &str, at: usize, name: &str) -> Option<usize> {
        let mark = format!("</{name}");
        self.find(text, at, &mark).or_else(|| self.find(text, at, &mark.to_ascii_uppercase()))
    }

    fn find(&mut self, text: &str, at: usize, mark: &str) -> Option<usize> {
        if self.absent.iter().any(|absent| absent == mark) {
            return None;
        }
        let found = text[at..].find(mark).map(|found| at + found);
        if found.is_none() {
            self.absent.push(mark.to_string());
        }
        found
    }
}
