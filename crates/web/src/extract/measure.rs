//! What each element of a page holds: letters, letters in links, prose; and whether it is seen at all.

use super::around;
use super::blocks::Block;
use super::names::{Role, is_concealed, role};
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
    /// In an element that is never shown, such as a script.
    unseen: bool,
    /// Concealed by an attribute, itself or through an ancestor.
    concealed: bool,
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
    pub roles: Vec<Role>,
    /// Unlinked characters that attributes conceal.
    pub concealed: u32,
    /// Characters of headings outside of links.
    heading_chars: u32,
    /// Index of the block that is the heading of the text.
    pub heading: Option<usize>,
    /// The page is a piece of technical documentation: code and definitions are frequent in it.
    pub technical: bool,
}

/// Fewest elements of code in a technical page.
const TECHNICAL_CODE: u32 = 2;
/// Most characters outside of links and headings for each element of code or definitions in a technical page.
const TECHNICAL_SPACING: f64 = 1000.0;

/// Treatment of elements that attributes conceal (`hidden`, `aria-hidden`, `display: none`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Concealed {
    /// They are no part of the text.
    LeaveOut,
    /// A script shows them: they hold nearly all of the text.
    Show,
}

impl<'d, 'a> Measures<'d, 'a> {
    pub(super) fn new(document: &'d Document<'a>, concealed_parts: Concealed) -> Self {
        let nodes = &document.nodes;
        let mut roles = Vec::with_capacity(nodes.len());
        let plain = State::default();
        let mut states = vec![plain; nodes.len()];
        let mut sums = vec![Sum::default(); nodes.len()];
        let (mut heading_chars, mut concealed) = (0, 0);
        for (i, node) in nodes.iter().enumerate() {
            let above = if i == 0 { plain } else { states[node.parent as usize] };
            let mut state = State { content: false, around: false, ..above };
            let mut r = Role::Unknown;
            match node.kind {
                NodeKind::Element(tag, a) => {
                    r = role(tag, &a);
                    state.concealed |= is_concealed(&a);
                    state.unseen |= tag.is_invisible();
                    state.hidden = state.unseen || state.concealed && concealed_parts == Concealed::LeaveOut;
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
                    if above.hidden {
                        let counts = !(above.unseen || above.linked);
                        concealed += if counts { visible_chars(text) } else { 0 };
                    } else {
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
        Measures { document, sums, states, roles, concealed, heading_chars, heading: None, technical: false }
    }

    /// Marks what is around the text, and recognises technical documentation.
    pub(super) fn mark(&mut self, blocks: &mut [Block]) {
        around::mark(self, blocks);
        let (mut code, mut definitions) = (0, 0);
        for (node, state) in self.document.nodes.iter().zip(&self.states) {
            if !(state.around || state.hidden)
                && let NodeKind::Element(tag, _) = node.kind
            {
                code += u32::from(is_code(tag));
                definitions += u32::from(is_definition(tag));
            }
        }
        let all = self.sums[0].chars - self.sums[0].linked;
        let running = f64::from(all.saturating_sub(self.heading_chars).max(1));
        self.technical =
            code >= TECHNICAL_CODE && f64::from(code + definitions) * TECHNICAL_SPACING >= running;
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

/// Whether an element holds code, or what is typed and printed.
pub(super) fn is_code(tag: Tag) -> bool {
    use Tag::*;
    matches!(tag, Pre | Code | Kbd | Samp | Tt | Var | Listing | Xmp)
}

/// Whether an element is a term or its definition.
pub(super) fn is_definition(tag: Tag) -> bool {
    matches!(tag, Tag::Dt | Tag::Dd)
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
