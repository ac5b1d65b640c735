//! What each element of a page holds: letters, letters in links, prose; and whether it is seen at all.

use super::names::{Role, role};
use crate::html::{Document, NodeKind, Tag};

/// Sums over the visible text of an element.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Sum {
    /// Characters that are no white space.
    pub chars: u32,
    /// Of these in links.
    pub linked: u32,
    /// Tables inside, this element included.
    pub tables: u32,
    /// Rows of tables inside.
    pub rows: u32,
    /// Cells of tables inside.
    pub cells: u32,
    /// Blocks inside that are no parts of a table.
    pub blocks: u32,
    /// Links inside.
    pub links: u32,
}

/// An element's own part.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct State {
    /// Not shown.
    pub hidden: bool,
    /// Around the text, itself or through an ancestor.
    pub around: bool,
    /// The element itself names the text.
    pub content: bool,
    /// In a link that leads away from the text. A link inside of code is part of the code, and a link of a heading to
    /// itself part of the heading.
    pub linked: bool,
    /// In a link to a place on the same page.
    pub local: bool,
    /// In code.
    code: bool,
    /// In a heading.
    heading: bool,
}

/// Characters that are no white space.
pub(super) fn visible_chars(text: &str) -> u32 {
    // `char::is_whitespace` in ASCII: tab to carriage return, and the space.
    let ascii_space = |b: u8| (b'\t'..=b'\r').contains(&b) || b == b' ';
    let count = match text.is_ascii() {
        true => text.bytes().map(|b| usize::from(!ascii_space(b))).sum(),
        false => text.chars().filter(|c| !c.is_whitespace()).count(),
    };
    count as u32
}

/// The measures of a page, by node.
pub(super) struct Measures<'d, 'a> {
    pub document: &'d Document<'a>,
    pub sums: Vec<Sum>,
    pub states: Vec<State>,
    /// The page is a piece of technical documentation: code and definitions are frequent in it.
    pub technical: bool,
}

/// Fewest elements of code in a technical page.
const TECHNICAL_CODE: u32 = 2;
/// Most characters outside of links and headings for each element of code or definitions in a technical page.
const TECHNICAL_SPACING: f64 = 1000.0;

/// A part is not "around" the text if it holds more than this share of the page's unlinked letters: then its name is
/// wrong, and it is the page.
const TOO_MUCH_TO_DROP: f64 = 0.6;

impl<'d, 'a> Measures<'d, 'a> {
    pub(super) fn new(document: &'d Document<'a>) -> Self {
        let nodes = &document.nodes;
        let mut roles = Vec::with_capacity(nodes.len());
        let plain = State::default();
        let mut states = vec![plain; nodes.len()];
        let mut sums = vec![Sum::default(); nodes.len()];
        let mut heading_chars = 0;
        for (i, node) in nodes.iter().enumerate() {
            let above = if i == 0 { plain } else { states[node.parent as usize] };
            let mut state = State { content: false, around: false, ..above };
            let mut r = Role::Unknown;
            match node.kind {
                NodeKind::Element(tag, a) => {
                    r = role(tag, &a);
                    state.hidden |= r == Role::Hidden;
                    state.code |= is_code(tag);
                    state.heading |= tag.heading().is_some();
                    if let (Tag::A, Some(href)) = (tag, a.href) {
                        state.local = href.starts_with('#');
                        state.linked |= !(state.code || state.heading && state.local);
                        sums[i].links = u32::from(!state.hidden);
                    }
                    state.content = r == Role::Content;
                    let sum = &mut sums[i];
                    match tag {
                        Tag::Table => sum.tables = 1,
                        Tag::Tr => sum.rows = 1,
                        Tag::Td | Tag::Th => sum.cells = 1,
                        Tag::Tbody | Tag::Thead | Tag::Tfoot | Tag::Caption => {}
                        _ => sum.blocks = u32::from(tag.is_block() && tag != Tag::P),
                    }
                }
                NodeKind::Text(text) => {
                    if !above.hidden {
                        let chars = visible_chars(text);
                        sums[i].chars = chars;
                        sums[i].linked = if above.linked { chars } else { 0 };
                        heading_chars += if above.heading && !above.linked { chars } else { 0 };
                    }
                }
            }
            roles.push(r);
            states[i] = state;
        }
        // A child has a higher number than its parent: backwards, every sum is whole before it is added.
        for i in (1..nodes.len()).rev() {
            let s = sums[i];
            let p = &mut sums[nodes[i].parent as usize];
            p.chars += s.chars;
            p.linked += s.linked;
            p.tables += s.tables;
            p.rows += s.rows;
            p.cells += s.cells;
            p.blocks += s.blocks;
            p.links += s.links;
        }
        let own = |s: &Sum| f64::from(s.chars - s.linked);
        let all = own(&sums[0]).max(1.0);
        let (mut code, mut definitions) = (0, 0);
        for i in 1..nodes.len() {
            let parent = nodes[i].parent as usize;
            let small = own(&sums[i]) <= TOO_MUCH_TO_DROP * all;
            let mut around = roles[i] == Role::Boilerplate && small;
            match nodes[i].kind {
                // A header belongs to the page, unless it is that of the text.
                NodeKind::Element(Tag::Header, _) => {
                    around |= small && !states[parent].content && !inside_content(nodes, &states, i);
                }
                NodeKind::Element(Tag::Table, _) => around |= small && is_navigation_table(&sums[i]),
                _ => {}
            }
            states[i].around = around || states[parent].around;
            if !(states[i].around || states[i].hidden)
                && let NodeKind::Element(tag, _) = nodes[i].kind
            {
                code += u32::from(is_code(tag));
                definitions += u32::from(is_definition(tag));
            }
        }
        let running = (all - f64::from(heading_chars)).max(1.0);
        let technical =
            code >= TECHNICAL_CODE && f64::from(code + definitions) * TECHNICAL_SPACING >= running;
        Measures { document, sums, states, technical }
    }

    /// `<html lang>`.
    pub(super) fn language(&self) -> Option<String> {
        self.document.nodes.iter().take(64).find_map(|n| match n.kind {
            NodeKind::Element(Tag::Html, a) => a.lang.map(|l| l.trim().to_string()).filter(|l| !l.is_empty()),
            _ => None,
        })
    }

    pub(super) fn tag(&self, node: usize) -> Tag {
        match self.document.nodes[node].kind {
            NodeKind::Element(tag, _) => tag,
            NodeKind::Text(_) => Tag::Other,
        }
    }

    /// Whether a table holds data: cells in rows, no table and no blocks inside, and not one long text.
    pub(super) fn is_data_table(&self, node: usize) -> bool {
        let s = self.sums[node];
        s.tables == 1
            && s.rows >= 2
            && s.cells >= 2 * s.rows
            && s.blocks * 4 <= s.cells
            && s.chars <= 200 * s.cells
    }
}

/// Whether a table is the line of links to the pages before, behind and above, as DocBook writes them.
fn is_navigation_table(s: &Sum) -> bool {
    s.tables == 1
        && (1..=3).contains(&s.rows)
        && (3..=9).contains(&s.cells)
        && s.links * 2 >= s.cells
        && s.chars - s.linked <= 150
}

/// Whether an element holds code, or what is typed and printed.
pub(super) fn is_code(tag: Tag) -> bool {
    use Tag::*;
    matches!(tag, Pre | Code | Kbd | Samp | Tt | Var | Listing | Xmp)
}

/// Whether an element is a term or its definition.
pub(super) fn is_definition(tag: Tag) -> bool {
    matches!(tag, Tag::Dt | Tag::Dd)
}

/// Whether one of the nearest ancestors names the text. Eight are enough for a header, and bound the work.
fn inside_content(nodes: &[crate::html::Node<'_>], states: &[State], node: usize) -> bool {
    let mut at = node;
    for _ in 0..8 {
        at = nodes[at].parent as usize;
        if states[at].content {
            return true;
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::visible_chars;

    #[test]
    fn every_character_counts_as_the_standard_library_says() {
        for c in '\0'..='\u{ffff}' {
            assert_eq!(visible_chars(&c.to_string()), u32::from(!c.is_whitespace()), "{c:?}");
        }
        assert_eq!(visible_chars(" a\tb é\u{a0}c\n"), 4);
    }
}
