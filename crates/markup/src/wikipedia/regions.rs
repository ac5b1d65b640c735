//! Parts of wikitext that are no prose, found before it is rendered: templates, tables, comments, references and other tags.

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

/// The end of every template and table by its start. One that is never closed has none: its mark is text.
pub(super) fn closed_regions(text: &str) -> HashMap<usize, usize> {
    #[derive(PartialEq)]
    enum Mark {
        Template,
        Table,
    }
    let bytes = text.as_bytes();
    let mut ends = HashMap::new();
    let mut open: Vec<(Mark, usize)> = Vec::new();
    let mut templates = 0;
    let mut at = 0;
    while let Some(found) = memchr::memchr3(b'{', b'}', b'|', &bytes[at..]) {
        at += found;
        let begins_line = text[..at].trim_end_matches([' ', '\t', ':', '*', '#']).ends_with('\n') || at == 0;
        match &bytes[at..] {
            [b'{', b'{', ..] => {
                open.push((Mark::Template, at));
                templates += 1;
                at += 2;
            }
            [b'{', b'|', ..] if begins_line => {
                open.push((Mark::Table, at));
                at += 2;
            }
            [b'}', b'}', ..] if templates > 0 => {
                // A table that was not closed inside of the template ends with it.
                while let Some((mark, start)) = open.pop() {
                    if mark == Mark::Template {
                        ends.insert(start, at + 2);
                        templates -= 1;
                        break;
                    }
                }
                at += 2;
            }
            [b'|', b'}', rest @ ..]
                if begins_line
                    && rest.first() != Some(&b'}')
                    && open.last().is_some_and(|(mark, _)| *mark == Mark::Table) =>
            {
                if let Some((_, start)) = open.pop() {
                    ends.insert(start, at + 2);
                }
                at += 2;
            }
            _ => at += 1,
        }
    }
    ends
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
