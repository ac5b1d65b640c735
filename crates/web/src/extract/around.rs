//! Decides which parts of a page are around its text.
//!
//! An element such as `nav`, a role or a name only suggests that a part is navigation, a sidebar or comments. Themes give
//! the same names to the article (`entry share`, `node-promoted`, `with-sidebar`), so the prose decides: a suggestion
//! is ignored for the part that holds most of the prose outside of comments, and for the first prose after the heading
//! if there is no other near it. Where these rules leave no prose, names, then comments, then elements are ignored.

use super::blocks::{Block, BlockKind};
use super::main_text::{PROSE, is_prose};
use super::measure::{Measures, State, Sum};
use super::names::Role;
use crate::html::{Node, NodeKind, Tag, decode_references};

/// Reason why a part is around the text; the stronger, the later it is ignored.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Around {
    /// Not around the text.
    #[default]
    Text,
    /// A name suggests it.
    Named,
    /// A name suggests comments.
    Comments,
    /// An element or a role suggests it.
    Element,
}

/// Share of the prose, or of the letters, above which a part is the page, whatever suggests that it is around.
const TOO_MUCH_TO_DROP: f64 = 0.6;
/// The same for names on a page that has no other prose near its heading.
const MOST: f64 = 0.5;
/// Share of the prose that the surroundings of a heading hold at least.
const NEAR: f64 = 0.2;

/// Text of an element outside of comments inside it.
#[derive(Debug, Clone, Copy, Default)]
struct Held {
    /// Weight of the prose.
    prose: u64,
    /// Characters outside of links.
    letters: u64,
}

impl Held {
    fn add(&mut self, other: Held) {
        self.prose += other.prose;
        self.letters += other.letters;
    }

    fn has_more_prose(self, share: f64, of: Held) -> bool {
        self.prose as f64 > share * of.prose as f64
    }

    fn has_most_letters(self, of: Held) -> bool {
        self.letters as f64 > TOO_MUCH_TO_DROP * of.letters.max(1) as f64
    }
}

fn held(b: &Block) -> Held {
    Held { prose: if is_prose(b) { u64::from(b.weight) } else { 0 }, letters: u64::from(b.chars - b.linked) }
}

/// Judgement of the parts of a page.
struct Judge<'m, 'd, 'a> {
    measures: &'m Measures<'d, 'a>,
    blocks: &'m [Block],
    /// Text of each element outside of comments.
    held: Vec<Held>,
    /// Text of the page outside of comments and of elements that are around.
    total: Held,
    /// Elements that are around by themselves, not by a name.
    elements: Vec<bool>,
    /// Elements whose names are ignored.
    cleared: Vec<bool>,
    /// Number of elements named as comments around each element, itself included.
    comments: Vec<u8>,
}

/// Location of prose that nothing marks as around the text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum OtherProse {
    /// Near the heading, as far as is known.
    NearHeading,
    /// Nowhere near it: what is marked is rather the text.
    Elsewhere,
}

/// Marks elements and blocks that are around the text.
pub(super) fn mark(measures: &mut Measures<'_, '_>, blocks: &mut [Block]) {
    let mut judge = Judge::new(measures, blocks);
    judge.judge_elements(OtherProse::NearHeading);
    let mut around = judge.judge(OtherProse::NearHeading);
    let heading = judge.heading();
    let near = judge.near_heading(heading);
    if !near.iter().any(|b| is_prose(b) && around[b.node as usize] == Around::Text) {
        judge.judge_elements(OtherProse::Elsewhere);
        judge.clear_first_prose(near, &around);
        around = judge.judge(OtherProse::Elsewhere);
    }
    measures.heading = heading;
    let level = level(blocks, &around);
    for (state, around) in measures.states.iter_mut().zip(&around) {
        state.around = *around > level;
    }
    for b in blocks {
        b.outside = measures.states[b.node as usize].around;
    }
}

/// Returns the strongest reason that is ignored: one that leaves prose on the page.
fn level(blocks: &[Block], around: &[Around]) -> Around {
    let sum = |level: Around| {
        let mut sum = Held::default();
        for b in blocks.iter().filter(|b| around[b.node as usize] <= level) {
            let text = !matches!(b.kind, BlockKind::Heading(_)) && b.link_density() <= 0.5;
            sum.add(Held { letters: if text { u64::from(b.weight) } else { 0 }, ..held(b) });
        }
        sum
    };
    let mut level = Around::Text;
    let mut kept = sum(level);
    for (next, most_kept) in
        [(Around::Named, PROSE), (Around::Comments, PROSE / 2), (Around::Element, PROSE / 2)]
    {
        if kept.prose > 0 {
            break;
        }
        let more = sum(next);
        if more.prose >= 2 * u64::from(PROSE) && kept.letters < u64::from(most_kept) {
            (level, kept) = (next, more);
        }
    }
    level
}

impl<'m, 'd, 'a> Judge<'m, 'd, 'a> {
    fn new(measures: &'m Measures<'d, 'a>, blocks: &'m [Block]) -> Self {
        let nodes = &measures.document.nodes;
        let mut all = vec![Held::default(); nodes.len()];
        for b in blocks {
            all[b.node as usize].add(held(b));
        }
        for i in (1..nodes.len()).rev() {
            if measures.roles[i] != Role::Comments {
                let own = all[i];
                all[nodes[i].parent as usize].add(own);
            }
        }
        let mut judge = Judge {
            measures,
            blocks,
            held: all,
            total: Held::default(),
            elements: vec![false; nodes.len()],
            cleared: vec![false; nodes.len()],
            comments: vec![0; nodes.len()],
        };
        for (i, node) in nodes.iter().enumerate().skip(1) {
            let own = u8::from(measures.roles[i] == Role::Comments);
            judge.comments[i] = judge.comments[node.parent as usize].saturating_add(own);
        }
        judge
    }

    /// Decides which elements are around by themselves.
    fn judge_elements(&mut self, other: OtherProse) {
        let nodes = &self.measures.document.nodes;
        let mut inside = vec![false; nodes.len()];
        for i in 1..nodes.len() {
            let (held, page) = (self.held[i], self.held[0]);
            let (prose, letters) = (held.has_more_prose(TOO_MUCH_TO_DROP, page), held.has_most_letters(page));
            let is_text = match other {
                OtherProse::NearHeading => prose && letters,
                OtherProse::Elsewhere => prose || letters,
            };
            self.elements[i] = self.suggests(i) && !is_text;
            inside[i] = self.elements[i] || inside[nodes[i].parent as usize];
        }
        self.total = Held::default();
        for b in self.blocks {
            if !inside[b.node as usize] && self.comments[b.node as usize] == 0 {
                self.total.add(held(b));
            }
        }
    }

    /// Whether the element, its role or its make-up suggests that it is around the text.
    fn suggests(&self, i: usize) -> bool {
        let Measures { document, states, sums, roles, .. } = self.measures;
        match document.nodes[i].kind {
            // A header belongs to the page, unless it is that of the text.
            NodeKind::Element(Tag::Header, _) if roles[i] != Role::Element => {
                !inside_content(&document.nodes, states, i)
            }
            NodeKind::Element(Tag::Table, _) if roles[i] != Role::Element => is_navigation_table(&sums[i]),
            _ => roles[i] == Role::Element,
        }
    }

    /// Returns for each node why it is around the text.
    fn judge(&self, other: OtherProse) -> Vec<Around> {
        let most = if other == OtherProse::NearHeading { TOO_MUCH_TO_DROP } else { MOST };
        let is_text = |held: Held| held.has_more_prose(most, self.total) || held.has_most_letters(self.total);
        let nodes = &self.measures.document.nodes;
        let mut around = vec![Around::Text; nodes.len()];
        // Ends and classes of the elements around the present one whose names are ignored: theirs are ignored inside too.
        let mut wrong: Vec<(usize, Option<&str>)> = Vec::new();
        for i in 1..nodes.len() {
            while wrong.pop_if(|(end, _)| *end <= i).is_some() {}
            let own = match self.measures.roles[i] {
                _ if self.elements[i] => Around::Element,
                _ if self.cleared[i] => Around::Text,
                Role::Comments => Around::Comments,
                Role::Boilerplate if wrong.last().is_some_and(|(_, class)| *class == self.class(i)) => {
                    Around::Text
                }
                Role::Boilerplate if is_text(self.held[i]) => {
                    wrong.push((nodes[i].end as usize, self.class(i)));
                    Around::Text
                }
                Role::Boilerplate => Around::Named,
                _ => Around::Text,
            };
            around[i] = own.max(around[nodes[i].parent as usize]);
        }
        around
    }

    /// Returns the blocks after the heading that are near it: those in the innermost element around the heading that
    /// holds a fair share of the page's prose after it.
    fn near_heading(&self, heading: Option<usize>) -> &'m [Block] {
        let Some(heading) = heading else { return self.blocks };
        let nodes = &self.measures.document.nodes;
        let wanted = (NEAR * self.total.prose as f64).max(f64::from(PROSE));
        let (begin, mut end, mut prose) = (heading + 1, heading + 1, 0.0);
        let mut at = self.blocks[heading].node as usize;
        loop {
            while let Some(b) = self.blocks.get(end).filter(|b| (at as u32..nodes[at].end).contains(&b.node))
            {
                prose += held(b).prose as f64;
                end += 1;
            }
            if prose >= wanted || at == 0 {
                return &self.blocks[begin..end];
            }
            at = nodes[at].parent as usize;
        }
    }

    /// Returns the heading of the text: the longest that is part of the page's title, else the first of the first
    /// level, else of the second.
    fn heading(&self) -> Option<usize> {
        let letters = |text: &str| -> String {
            text.chars().filter(|c| c.is_alphanumeric()).flat_map(char::to_lowercase).take(300).collect()
        };
        let title = letters(&decode_references(self.measures.document.title.unwrap_or_default()));
        let headings = || {
            let all = self.blocks.iter().enumerate();
            all.filter_map(|(i, b)| match b.kind {
                BlockKind::Heading(level) => Some((i, b, level)),
                _ => None,
            })
        };
        let titled = headings().take(100).filter(|(_, b, _)| {
            let text = letters(&b.text);
            b.weight >= 6 && !text.is_empty() && title.contains(&text)
        });
        // Of equals the first.
        if let Some((i, ..)) = titled.max_by_key(|(i, b, _)| (b.weight, usize::MAX - i)) {
            return Some(i);
        }
        let first = |wanted| headings().find(|(_, b, level)| *level == wanted && b.link_density() < 0.9);
        first(1).or_else(|| first(2)).map(|(i, ..)| i)
    }

    /// Ignores the names of what holds the first prose of `near`, and of its siblings with the same names. A comment
    /// inside of comments, or one of several, stays one.
    fn clear_first_prose(&mut self, near: &[Block], around: &[Around]) {
        let first = near.iter().find(|b| {
            let node = b.node as usize;
            is_prose(b) && around[node] < Around::Element && self.comments[node] <= 1
        });
        let Some(first) = first else { return };
        let (mut at, mut innermost, mut added) = (first.node as usize, None, Held::default());
        while at > 0 {
            match self.measures.roles[at] {
                // One of several with the same names is a comment.
                Role::Comments if self.siblings(at).count() > 1 => return,
                Role::Comments => added = self.held[at],
                Role::Boilerplate => {}
                _ => {
                    at = self.add_above(at, added);
                    continue;
                }
            }
            self.cleared[at] = true;
            innermost = innermost.or(Some(at));
            at = self.add_above(at, added);
        }
        self.total.add(added);
        let twins: Vec<usize> = innermost.map_or_else(Vec::new, |at| self.siblings(at).collect());
        for i in twins {
            self.cleared[i] = true;
        }
    }

    /// Adds text that is no comment to the parent of an element. Returns the parent.
    fn add_above(&mut self, i: usize, text: Held) -> usize {
        let parent = self.measures.document.nodes[i].parent as usize;
        self.held[parent].add(text);
        parent
    }

    /// Elements with the parent, the class and the role of an element, itself included.
    fn siblings(&self, i: usize) -> impl Iterator<Item = usize> {
        let Measures { document, roles, .. } = self.measures;
        let (parent, class) = (document.nodes[i].parent, self.class(i));
        let inside = parent as usize + 1..document.nodes[parent as usize].end as usize;
        inside.filter(move |j| {
            let same = class.is_some() && self.class(*j) == class && roles[*j] == roles[i];
            *j == i || same && document.nodes[*j].parent == parent
        })
    }

    fn class(&self, i: usize) -> Option<&'a str> {
        match self.measures.document.nodes[i].kind {
            NodeKind::Element(_, a) => a.class,
            NodeKind::Text(_) => None,
        }
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

/// Whether one of the nearest ancestors names the text. Eight are enough for a header, and bound the work.
fn inside_content(nodes: &[Node<'_>], states: &[State], node: usize) -> bool {
    let mut at = node;
    for _ in 0..8 {
        at = nodes[at].parent as usize;
        if states[at].content {
            return true;
        }
    }
    false
}
