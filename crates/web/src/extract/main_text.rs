//! The choice of the blocks that are the main text.
//!
//! Prose is separated from the rest by three measures that need no language: the length of a block, the share of it that
//! is links (Kohlschütter et al. 2010), and where the prose of the page is together. The container is the deepest
//! element that holds most of the page's prose; blocks in it stay unless links or names speak against them.

use super::blocks::{Block, BlockKind};
use super::measure::Measures;
use super::technical::{self, is_explained};
use crate::html::Tag;

/// Weight from which a block counts as prose.
pub(super) const PROSE: u32 = 80;
/// Links above this share make a block a list of links.
const MAX_LINKED: f64 = 0.4;
/// Share of the prose that an element must hold for its siblings to be left out.
const MOST: f64 = 0.8;
/// Share of the prose of an element that says it is the text which a part of it must hold to be taken alone.
const MOST_OF_TEXT: f64 = 0.95;
/// Share of the page's prose that an element which says it is the text must hold to be believed.
const MOST_OF_NAMED: f64 = 0.4;

/// Whether a block is a paragraph's worth of text, wherever it stands.
pub(super) fn is_prose(b: &Block) -> bool {
    match b.kind {
        BlockKind::Heading(_) => false,
        BlockKind::Code => b.weight >= 40,
        BlockKind::Row => b.weight >= 20 && b.link_density() < MAX_LINKED,
        BlockKind::Paragraph | BlockKind::Item => b.weight >= PROSE && b.link_density() < MAX_LINKED,
    }
}

/// Whether a block that is shorter than a paragraph ends like a sentence.
fn is_sentence(b: &Block) -> bool {
    b.kind == BlockKind::Paragraph
        && b.weight >= 50
        && b.linked == 0
        && b.text.ends_with(['.', '!', '?', '\u{2026}', '\u{3002}', '\u{ff01}', '\u{ff1f}'])
}

/// Leaves the blocks of the main text.
pub(super) fn choose(measures: &Measures<'_, '_>, blocks: &mut Vec<Block>) {
    if measures.technical {
        return technical::choose(measures, blocks);
    }
    let prose: Vec<bool> = blocks.iter().map(|b| !b.outside && is_prose(b)).collect();
    let total: u64 = blocks.iter().zip(&prose).filter(|(_, p)| **p).map(|(b, _)| u64::from(b.weight)).sum();
    if total < u64::from(PROSE) * 2 {
        // No prose to speak of: a short notice, a gallery. What is not around the text is all there is.
        blocks.retain(|b| !b.outside && b.link_density() <= 0.5);
        return;
    }
    let mut held = vec![0; measures.document.nodes.len()];
    for (b, p) in blocks.iter().zip(&prose) {
        held[b.node as usize] += if *p { u64::from(b.weight) } else { 0 };
    }
    let container = container(measures, held, [MOST, MOST_OF_TEXT], |_, _| true);
    let end = measures.document.nodes[container].end as usize;
    let inside: Vec<bool> = blocks.iter().map(|b| (container..end).contains(&(b.node as usize))).collect();
    let mut first = (0..blocks.len()).find(|i| prose[*i] && inside[*i]).unwrap_or(0);
    let last = (0..blocks.len()).rev().find(|i| prose[*i] && inside[*i]).unwrap_or(blocks.len());
    // The paragraphs that lead from the heading to the container are often beside it.
    let lead = measures.heading.filter(|heading| {
        let between = first.min(*heading)..first;
        between.into_iter().any(|i| prose[i] || !blocks[i].outside && is_sentence(&blocks[i]))
    });
    let lead = lead.map_or(first..first, |heading| heading..first);
    first = lead.clone().find(|i| prose[*i]).unwrap_or(first);
    let mut at = 0;
    blocks.retain(|b| {
        let i = at;
        at += 1;
        if b.outside || !(inside[i] || lead.contains(&i)) {
            return false;
        }
        if prose[i] {
            return true;
        }
        let links = b.link_density();
        match b.kind {
            BlockKind::Heading(_) => i < last && links < 0.9,
            BlockKind::Code => true,
            // Between prose short blocks belong to it; before and behind it is where dates, authors, buttons and
            // further links stand.
            _ if i > first && i < last => {
                links <= 0.5 || b.weight < 40 && links < 0.8 || is_explained(measures, b, container)
            }
            BlockKind::Item => links <= 0.2 && i > first,
            _ => links <= 0.2 && b.weight >= 30,
        }
    });
}

/// The deepest element that holds most of the text, of which `held` has what stands directly in each element. `most` is
/// the share that a part must hold to be taken alone, in the page and in an element that says it is the text; `allowed`
/// judges each step from an element to a part of it.
pub(super) fn container(
    measures: &Measures<'_, '_>,
    mut held: Vec<u64>,
    [most_of_page, most_of_text]: [f64; 2],
    allowed: impl Fn(usize, usize) -> bool,
) -> usize {
    let nodes = &measures.document.nodes;
    for i in (1..nodes.len()).rev() {
        held[nodes[i].parent as usize] += held[i];
    }
    let total = held[0];
    let share = |i: usize, of: u64| held[i] as f64 / of.max(1) as f64;
    // An element that says it is the text and holds a fair part of the prose is the place to begin; of several the
    // one that holds most, and of equals the innermost.
    let mut start = 0;
    for i in 1..nodes.len() {
        let named = measures.states[i].content && !measures.states[i].around;
        if named
            && share(i, total) >= MOST_OF_NAMED
            && (start == 0 || held[i] as f64 >= 0.9 * held[start] as f64)
        {
            start = i;
        }
    }
    let whole = held[start];
    let most = if start == 0 { most_of_page } else { most_of_text };
    let mut at = start;
    // Down along the path; each step skips over siblings, so the walk sees every node at most once.
    loop {
        let mut child = at + 1;
        let mut next = None;
        while child < nodes[at].end as usize {
            if share(child, whole) >= most && allowed(at, child) {
                next = Some(child);
                break;
            }
            child = nodes[child].end as usize;
        }
        match next {
            // A single paragraph or list is no container: its siblings are its context.
            Some(n)
                if !matches!(
                    measures.tag(n),
                    Tag::P | Tag::Ul | Tag::Ol | Tag::Dl | Tag::Pre | Tag::Blockquote | Tag::Table
                ) =>
            {
                at = n
            }
            _ => return at,
        }
    }
}
