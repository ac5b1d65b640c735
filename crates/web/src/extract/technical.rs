//! The main text of technical documentation.
//!
//! In manuals and references much of the text is short lines, definitions, and links to other entries, which in an
//! article would be what is around the text. So here every unlinked character counts as text, not only paragraphs, and
//! lists of links stay where they belong to the text: inside a list that explains them, between parts of the text, or
//! behind a heading.

use super::blocks::{Block, BlockKind};
use super::main_text::container;
use super::measure::{Measures, is_code, is_definition};
use crate::html::Tag;

/// Links above this share make a block, or a list, one of links.
const MAX_LINKED: f64 = 0.5;
/// Shares of the text that a part must hold to be taken alone: of the page, of an element that says it is the text.
/// They can be low, since code and definitions tell where the text is.
const MOST: [f64; 2] = [0.5, 0.8];
/// Share of the code and definitions that a part must hold to be taken alone.
const MOST_MARKS: f64 = 0.95;
/// Unlinked characters from which a block counts as prose.
const PROSE: u32 = 80;

/// What an element holds that tells where the text of a manual is.
#[derive(Debug, Clone, Copy, Default)]
struct Marks {
    /// Elements of code and definitions outside of links.
    code: u32,
    /// Headings of the first two levels that are no links.
    headings: u32,
    /// Blocks of prose.
    prose: u32,
}

/// Leaves the blocks of the main text.
pub(super) fn choose(measures: &Measures<'_, '_>, blocks: &mut Vec<Block>) {
    let start = start_of_text(measures, blocks);
    blocks.retain(|b| !b.outside && b.node as usize >= start);
    let nodes = measures.document.nodes.len();
    let mut held = vec![0; nodes];
    let mut marks = vec![Marks::default(); nodes];
    for b in blocks.iter() {
        let m = &mut marks[b.node as usize];
        match b.kind {
            BlockKind::Heading(level) => m.headings += u32::from(level <= 2 && !is_links(b)),
            _ => m.prose += u32::from(is_prose(b)),
        }
        held[b.node as usize] += u64::from(b.weight - b.linked);
    }
    for i in (1..nodes).rev() {
        let (s, tag) = (measures.states[i], measures.tag(i));
        let code = is_code(tag) || is_definition(tag);
        marks[i].code += u32::from(code && i >= start && !(s.around || s.hidden || s.linked));
        let m = marks[i];
        let p = &mut marks[measures.document.nodes[i].parent as usize];
        p.code += m.code;
        p.headings += m.headings;
        p.prose += m.prose;
    }
    let container = container(measures, held, MOST, |at, part| {
        let (all, part) = (marks[at], marks[part]);
        f64::from(part.code) >= MOST_MARKS * f64::from(all.code)
            && (part.headings == all.headings || part.prose == all.prose)
    });
    let end = measures.document.nodes[container].end;
    blocks.retain(|b| (container as u32..end).contains(&b.node));

    let keep = kept(measures, blocks, container);
    let mut keep = keep.iter();
    blocks.retain(|_| *keep.next().unwrap_or(&false));
}

/// Returns the first node that can belong to the text. Short lines before the page's title, the first heading of level 1,
/// are a help window, a version or a menu, unless they stand beside the title or in the element that says it is the
/// text. A title behind prose or code is no title of the page.
fn start_of_text(measures: &Measures<'_, '_>, blocks: &[Block]) -> usize {
    let is_title = |b: &Block| b.kind == BlockKind::Heading(1) && !is_links(b);
    let is_text = |b: &Block| b.kind == BlockKind::Code || is_prose(b);
    let title = blocks.iter().find(|b| !b.outside && (is_title(b) || is_text(b)));
    let Some(title) = title.filter(|b| is_title(b)) else { return 0 };
    let nodes = &measures.document.nodes;
    let mut at = title.node as usize;
    while at > 0 && measures.tag(at).heading().is_none() {
        at = nodes[at].parent as usize;
    }
    let mut start = nodes[at].parent as usize;
    at = start;
    while at > 0 {
        if measures.states[at].content {
            start = at;
        }
        at = nodes[at].parent as usize;
    }
    start
}

/// Whether a block holds a paragraph's worth of unlinked text.
fn is_prose(b: &Block) -> bool {
    !is_heading(b) && b.weight - b.linked >= PROSE
}

/// Returns for each block whether it is in the container and is text.
fn kept(measures: &Measures<'_, '_>, blocks: &[Block], container: usize) -> Vec<bool> {
    let links: Vec<bool> = blocks
        .iter()
        .map(|b| !is_heading(b) && is_links(b) && !is_explained(measures, b, container))
        .collect();
    let text = |i: usize| !links[i] && !is_heading(&blocks[i]);
    let first = (0..blocks.len()).find(|i| text(*i)).unwrap_or(blocks.len());
    let last = (0..blocks.len()).rev().find(|i| text(*i)).unwrap_or(0);
    let mut keep = vec![true; blocks.len()];
    // Whether the list of links that is being read has a heading or a sentence that introduces it.
    let mut introduced = false;
    for (i, b) in blocks.iter().enumerate() {
        if !links[i] {
            introduced = is_heading(b) || b.text.ends_with([':', '\u{ff1a}']);
            continue;
        }
        // A list of links to places on this page is its table of contents: it repeats the headings.
        let contents = b.kind == BlockKind::Item && b.local * 2 > b.linked;
        keep[i] = !contents && (introduced || (first..last).contains(&i));
    }
    keep
}

fn is_heading(b: &Block) -> bool {
    matches!(b.kind, BlockKind::Heading(_))
}

/// Whether most of a block is links; code is code.
fn is_links(b: &Block) -> bool {
    b.link_density() > MAX_LINKED && b.kind != BlockKind::Code
}

/// Whether the nearest list or table around a block, inside the container, is not made of links.
pub(super) fn is_explained(measures: &Measures<'_, '_>, block: &Block, container: usize) -> bool {
    let mut at = block.node as usize;
    for _ in 0..8 {
        if at <= container {
            return false;
        }
        if matches!(measures.tag(at), Tag::Ul | Tag::Ol | Tag::Dl | Tag::Table) {
            let s = measures.sums[at];
            return f64::from(s.linked) <= MAX_LINKED * f64::from(s.chars);
        }
        at = measures.document.nodes[at].parent as usize;
    }
    false
}
