//! Templates and arguments of wikitext in the place where they stand.
//!
//! The text of a template is in a wiki's database, not in its articles, so only templates of fixed meaning are expanded: those that
//! stand within sentences ([`super::inline`]). Others give no text. An argument (`{{{name|default}}}`) outside of a template is its default.

use super::inline;
use super::regions::{Closed, ClosedKind, Region, Tags, closed_regions};
use std::collections::HashMap;

/// Most templates inside each other, as MediaWiki has it.
const MOST_DEPTH: usize = 40;
/// Longest name of a template.
const NAME_BYTES: usize = 256;
/// Stands where a template gave no text, so that a line that holds nothing else is not an empty line. It is never written.
const PLACEHOLDER: char = '\0';

/// The text with its templates and arguments expanded.
pub(super) fn expanded(text: &str) -> String {
    let expander = Expander { text, regions: closed_regions(text) };
    let mut out = String::with_capacity(text.len());
    expander.expand(0, text.len(), &mut Tags::default(), MOST_DEPTH, &mut out);
    out
}

struct Expander<'a> {
    text: &'a str,
    regions: HashMap<usize, Closed>,
}

/// Arguments of a template, expanded.
#[derive(Debug, Default)]
pub(super) struct Arguments {
    /// Without a name, in order.
    pub(super) positional: Vec<String>,
    /// With a name in small letters, white space around the value removed.
    pub(super) named: HashMap<String, String>,
}

impl Arguments {
    /// Argument `number`, from one: by position, or by that number as its name. None where it is empty.
    pub(super) fn at(&self, number: usize) -> Option<&str> {
        let named = self.named.get(&number.to_string()).map(String::as_str);
        named.or(self.positional.get(number - 1).map(|text| text.trim())).filter(|text| !text.is_empty())
    }

    /// The first of these named arguments that is not empty.
    pub(super) fn named(&self, names: &[&str]) -> Option<&str> {
        names
            .iter()
            .filter_map(|name| self.named.get(*name))
            .map(String::as_str)
            .find(|text| !text.is_empty())
    }

    /// The last argument without a name.
    pub(super) fn last(&self) -> Option<&str> {
        (1..=self.count()).rev().find_map(|number| self.at(number))
    }

    /// Number of the last argument without a name.
    pub(super) fn count(&self) -> usize {
        let named = self.named.keys().filter_map(|name| name.parse().ok()).max().unwrap_or(0);
        self.positional.len().max(named).min(100)
    }

    /// Arguments without a name that are not empty.
    pub(super) fn all(&self) -> impl Iterator<Item = &str> {
        (1..=self.count()).filter_map(|number| self.at(number))
    }
}

impl Expander<'_> {
    /// Appends the expansion of the text between two positions.
    fn expand(&self, mut at: usize, end: usize, tags: &mut Tags, depth: usize, out: &mut String) {
        let mut copied = at;
        while at < end {
            let Some(found) = memchr::memchr2(b'{', b'<', &self.text.as_bytes()[at..end]) else { break };
            at += found;
            if self.text.as_bytes()[at] == b'<' {
                at = opaque_end(self.text, at, tags).unwrap_or(at + 1).min(end);
                continue;
            }
            let closed = self.regions.get(&at).filter(|closed| closed.end <= end);
            let Some(closed) = closed.filter(|closed| closed.kind != ClosedKind::Table) else {
                at += 1;
                continue;
            };
            out.push_str(&self.text[copied..at]);
            let before = out.len();
            if depth > 0 {
                match closed.kind {
                    ClosedKind::Argument => {
                        let parts = self.parts(at + 3, closed.end - 3, tags);
                        if let Some(&(start, end)) = parts.get(1) {
                            self.expand(start, end, tags, depth - 1, out);
                        }
                    }
                    _ => self.template(at + 2, closed.end - 2, tags, depth - 1, out),
                }
            }
            if out.len() == before {
                out.push(PLACEHOLDER);
            }
            at = closed.end;
            copied = at;
        }
        out.push_str(&self.text[copied..end]);
    }

    /// The parts between `|` that no inner template, link or code holds.
    fn parts(&self, start: usize, end: usize, tags: &mut Tags) -> Vec<(usize, usize)> {
        let bytes = self.text.as_bytes();
        let (mut parts, mut begin, mut links, mut at) = (Vec::new(), start, 0usize, start);
        while at < end {
            match bytes[at] {
                b'|' if links == 0 => {
                    parts.push((begin, at));
                    begin = at + 1;
                    at += 1;
                }
                b'{' => at = self.regions.get(&at).map_or(at + 1, |closed| closed.end),
                b'<' => at = opaque_end(self.text, at, tags).unwrap_or(at + 1),
                b'[' if bytes[at..end].starts_with(b"[[") => {
                    links += 1;
                    at += 2;
                }
                b']' if bytes[at..end].starts_with(b"]]") => {
                    links = links.saturating_sub(1);
                    at += 2;
                }
                _ => at += 1,
            }
        }
        parts.push((begin.min(end), end));
        parts
    }

    fn template(&self, start: usize, end: usize, tags: &mut Tags, depth: usize, out: &mut String) {
        let inner = &self.text.as_bytes()[start..end];
        let length = inner.iter().take(NAME_BYTES).position(|byte| matches!(byte, b'|' | b'{' | b'<'));
        let length = length.unwrap_or(inner.len().min(NAME_BYTES + 1));
        if length > NAME_BYTES || inner.get(length) == Some(&b'{') {
            return;
        }
        let head = &self.text[start..start + length];
        let name = normal_name(head);
        let function = name.split_once(':').map(|(function, _)| function.to_string());
        let Some(meaning) = inline::meaning(function.as_deref().unwrap_or(&name), function.is_some()) else {
            return;
        };
        let mut arguments = Arguments::default();
        let mut parts = self.parts(start, end, tags).into_iter();
        // The first argument of a function follows its colon.
        if let (Some((begin, first_end)), true) = (parts.next(), function.is_some()) {
            let colon = self.text[begin..first_end].find(':').map_or(first_end, |at| begin + at + 1);
            let mut value = String::new();
            self.expand(colon, first_end, tags, depth, &mut value);
            arguments.positional.push(value);
        }
        for (begin, part_end) in parts {
            let mut value = String::new();
            self.expand(begin, part_end, tags, depth, &mut value);
            value.retain(|c| c != PLACEHOLDER);
            // A sign within markup is no name.
            let equals = value.find('=').filter(|&at| !value[..at].contains(['<', '[', '{']));
            match equals {
                Some(at) if function.is_none() => {
                    let name = value[..at].trim().to_lowercase();
                    arguments.named.insert(name, value[at + 1..].trim().to_string());
                }
                _ => arguments.positional.push(value),
            }
        }
        meaning.write(&arguments, out);
    }
}

/// Position behind a comment, code, a reference or another region of tags whose braces are not templates.
pub(super) fn opaque_end(text: &str, at: usize, tags: &mut Tags) -> Option<usize> {
    match tags.region(text, at)? {
        Region::Dropped(end) | Region::Literal { next: end, .. } => Some(end),
        Region::Tag(_) | Region::Break(_) => None,
    }
}

/// The name of a template in small letters, without its namespace, underscores and white space around it.
fn normal_name(head: &str) -> String {
    let name = head.replace('_', " ").trim().to_lowercase();
    match name.strip_prefix("template:") {
        Some(rest) => rest.trim().to_string(),
        None => name,
    }
}
