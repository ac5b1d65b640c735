//! The lines of a page: each block of text with what it is and how much of it is links.

use super::measure::{Measures, State, visible_chars};
use crate::html::{Document, Node, NodeKind, Tag, decode_references};

/// Kind of a block of text.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum BlockKind {
    /// A heading of level 1 to 6.
    Heading(u8),
    /// A paragraph, or text that stands by itself.
    #[default]
    Paragraph,
    /// An item of a list.
    Item,
    /// Preformatted text, kept as it is.
    Code,
    /// A row of a table, cells apart by ` | `.
    Row,
}

/// A block of text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Block {
    /// Kind of the block.
    pub kind: BlockKind,
    /// The text, references decoded.
    pub text: String,
    /// Characters that are no white space.
    pub chars: u32,
    /// Of these in links.
    pub linked: u32,
    /// Of these in links to places on the same page.
    pub(super) local: u32,
    /// Number of the element in the tree that holds it.
    pub(super) node: u32,
    /// Letters, CJK characters counted three times: one says as much as three letters.
    pub(super) weight: u32,
    /// In a part that is around the text.
    pub(super) outside: bool,
}

impl Block {
    /// Share of the characters that is in links.
    pub(super) fn link_density(&self) -> f64 {
        f64::from(self.linked) / f64::from(self.chars.max(1))
    }
}

/// CJK characters in the first 2,000 of a text.
fn wide_chars(text: &str) -> u32 {
    if text.is_ascii() {
        return 0;
    }
    let wide = text.chars().take(2000).filter(
        |c| matches!(*c, '\u{2e80}'..='\u{9fff}' | '\u{ac00}'..='\u{d7af}' | '\u{f900}'..='\u{faff}'),
    );
    wide.count() as u32
}

#[derive(Default)]
struct Collector {
    blocks: Vec<Block>,
    text: String,
    chars: u32,
    linked: u32,
    local: u32,
    node: u32,
    kind: BlockKind,
    /// White space is waiting to be written before the next word.
    space: bool,
    breaks: u32,
}

impl Collector {
    /// Ends the block.
    fn flush(&mut self) {
        if self.chars > 0 {
            let text = if self.kind == BlockKind::Code {
                self.text.trim_matches('\n').trim_end().to_string()
            } else {
                self.text.trim_matches(|c: char| c.is_whitespace() || c == '|').to_string()
            };
            if !text.is_empty() {
                self.blocks.push(Block {
                    kind: self.kind,
                    weight: self.chars + 2 * wide_chars(&text),
                    text,
                    chars: self.chars,
                    linked: self.linked,
                    local: self.local,
                    node: self.node,
                    outside: false,
                });
            }
        }
        self.text.clear();
        (self.chars, self.linked, self.local, self.space, self.breaks) = (0, 0, 0, false, 0);
    }

    fn line_break(&mut self) {
        if self.chars == 0 {
            return;
        }
        self.breaks += 1;
        if self.breaks == 2 && self.kind != BlockKind::Row && self.kind != BlockKind::Code {
            self.flush();
        }
    }

    /// Adds text, and counts its characters as those of a link if `state` says so.
    fn add(&mut self, text: &str, state: State, preformatted: bool) {
        let before = self.chars;
        if preformatted {
            self.text.push_str(text);
            self.chars += visible_chars(text);
        } else {
            self.add_words(text);
        }
        if state.linked {
            self.linked += self.chars - before;
            self.local += if state.local { self.chars - before } else { 0 };
        }
    }

    fn add_words(&mut self, text: &str) {
        let mut rest = text;
        while let Some(c) = rest.chars().next() {
            let size = c.len_utf8();
            // A no-break space is a space to whoever reads; zero-width marks are nothing.
            if c.is_whitespace() || c == '\u{200b}' || c == '\u{feff}' || c == '\u{ad}' || c == '\0' {
                self.space |= c.is_whitespace();
                rest = &rest[size..];
                continue;
            }
            if self.breaks > 0 && !self.text.is_empty() {
                let row = self.kind == BlockKind::Row || self.kind == BlockKind::Item;
                self.text.push(if row { ' ' } else { '\n' });
            } else if self.space && !self.text.is_empty() && !self.text.ends_with([' ', '\n']) {
                self.text.push(' ');
            }
            self.space = false;
            self.breaks = 0;
            // What is left of a word of ASCII goes at once.
            let word = rest.bytes().take_while(|b| (b'!'..=b'~').contains(b)).count();
            let taken = word.max(size);
            self.text.push_str(&rest[..taken]);
            self.chars += word.max(1) as u32;
            rest = &rest[taken..];
        }
    }
}

/// An element whose end the walk waits for.
struct Open {
    end: u32,
    tag: Tag,
    block: bool,
    /// Kind of block that the parent element continues with.
    kind: BlockKind,
    pre: bool,
    row: bool,
}

/// All visible blocks of a page in their order.
pub(super) fn collect(document: &Document<'_>, measures: &Measures<'_, '_>) -> Vec<Block> {
    let nodes = &document.nodes;
    let mut c = Collector::default();
    let mut open: Vec<Open> = Vec::new();
    // Inside preformatted text; inside a row of a data table.
    let (mut pre, mut row) = (false, false);
    let mut i = 0;
    while i < nodes.len() {
        while let Some(top) = open.pop_if(|o| o.end as usize <= i) {
            if top.block && !(row && top.row) {
                c.flush();
            }
            (c.kind, pre, row) = (top.kind, top.pre, top.row);
            if top.tag == Tag::Q {
                c.add("\u{201d}", State::default(), pre);
            }
        }
        let node = &nodes[i];
        match node.kind {
            NodeKind::Text(text) => {
                if c.chars == 0 {
                    c.node = node.parent;
                }
                c.add(&decode_references(text), measures.states[i], pre);
                i += 1;
            }
            NodeKind::Element(_, _) if measures.states[i].hidden => i = node.end as usize,
            NodeKind::Element(tag, _) => {
                begin(&mut c, &mut open, measures, i, tag, &mut pre, &mut row);
                i += 1;
            }
        }
    }
    while let Some(top) = open.pop() {
        if top.block {
            c.flush();
        }
        c.kind = top.kind;
    }
    c.flush();
    c.blocks
}

/// Takes a start tag.
fn begin(
    c: &mut Collector,
    open: &mut Vec<Open>,
    measures: &Measures<'_, '_>,
    i: usize,
    tag: Tag,
    pre: &mut bool,
    row: &mut bool,
) {
    let node = &measures.document.nodes[i];
    match tag {
        Tag::Br if *pre => return c.add("\n", State::default(), true),
        Tag::Br => return c.line_break(),
        Tag::Wbr => c.space |= is_between_words(&measures.document.nodes, i),
        Tag::Q => c.add("\u{201c}", State::default(), *pre),
        _ => {}
    }
    let before = Open { end: node.end, tag, block: tag.is_block(), kind: c.kind, pre: *pre, row: *row };
    if *row {
        // Cells of one row are one block.
        if matches!(tag, Tag::Td | Tag::Th) && c.chars > 0 {
            c.text.push_str(" |");
            c.space = true;
            c.breaks = 0;
        } else if tag.is_block() {
            c.space = true;
        }
    } else if tag.is_block() {
        c.flush();
        c.kind = match tag {
            Tag::Li | Tag::Dd | Tag::Dt => BlockKind::Item,
            Tag::Pre | Tag::Listing | Tag::Xmp | Tag::Plaintext => BlockKind::Code,
            Tag::Tr if is_in_data_table(measures, i) => BlockKind::Row,
            _ => match tag.heading() {
                Some(level) => BlockKind::Heading(level),
                None if matches!(tag, Tag::P | Tag::Div) && c.kind == BlockKind::Item => BlockKind::Item,
                None if c.kind == BlockKind::Code => BlockKind::Code,
                None => BlockKind::Paragraph,
            },
        };
        *pre |= c.kind == BlockKind::Code;
        *row = c.kind == BlockKind::Row;
    }
    open.push(before);
}

/// Whether a `<wbr>` stands between two elements that hold words, as between a name and its badge in
/// `<a>Reader</a><wbr><span>Experimental</span>`. Anywhere else it is a possible break inside of a word.
fn is_between_words(nodes: &[Node<'_>], wbr: usize) -> bool {
    let [Some(before), Some(element), Some(after)] =
        [nodes.get(wbr - 1), nodes.get(wbr + 1), nodes.get(wbr + 2)]
    else {
        return false;
    };
    let NodeKind::Text(before_text) = before.kind else { return false };
    let NodeKind::Text(after_text) = after.kind else { return false };
    before.parent != nodes[wbr].parent
        && matches!(element.kind, NodeKind::Element(..))
        && before_text.ends_with(char::is_alphanumeric)
        && after_text.starts_with(char::is_alphanumeric)
}

/// Whether a row's table, a parent or grandparent, holds data.
fn is_in_data_table(measures: &Measures<'_, '_>, row: usize) -> bool {
    let mut at = row;
    for _ in 0..2 {
        at = measures.document.nodes[at].parent as usize;
        if measures.tag(at) == Tag::Table {
            return measures.is_data_table(at);
        }
    }
    false
}

/// The text of blocks: an empty line around headings, paragraphs, code and tables; items and rows on lines of their
/// own.
pub(super) fn join(blocks: &[Block]) -> String {
    let mut out = String::with_capacity(blocks.iter().map(|b| b.text.len() + 2).sum());
    let mut last: Option<&Block> = None;
    for b in blocks {
        if let Some(last) = last {
            let tight = matches!(
                (last.kind, b.kind),
                (BlockKind::Item, BlockKind::Item) | (BlockKind::Row, BlockKind::Row)
            );
            out.push_str(if tight { "\n" } else { "\n\n" });
        }
        if b.kind == BlockKind::Item {
            out.push_str("- ");
        }
        out.push_str(&b.text);
        last = Some(b);
    }
    out
}
