//! Longest token at a place of a text: a trie in a double array (Aoe 1989, "An efficient digital search algorithm by using a
//! double-array structure").
//!
//! The child of a node by byte `b` is at `base + b` if the node there is reached by `b`: one load a byte of text. No two nodes
//! have the same base, so whoever is reached by `b` at `base + b` is this node's child.

/// No token.
pub(crate) const NONE: u32 = u32::MAX;

/// Free places that are tried for a node with several children before it goes behind all others.
const TRIES: usize = 32;

/// Places behind a node that are tried for its first child before others.
const NEAR: usize = 8;

/// Places behind a base: one for each byte.
const BYTES: usize = 256;

const ROOT: usize = 0;

/// Places that a base can name.
const MAX_PLACES: usize = 1 << (32 - LABEL_BITS);

/// Bits of a label: 1 + the byte by which a node is reached, 0 for the root and where there is no node.
const LABEL_BITS: u32 = 9;

#[derive(Debug, Clone, Copy)]
struct Node {
    /// `base << LABEL_BITS | label`. A node without children has base 0, which no other node has.
    base_and_label: u32,
    /// Token that ends here, or [`NONE`].
    token: u32,
}

const EMPTY: Node = Node { base_and_label: 0, token: NONE };

/// Tokens by their bytes.
#[derive(Debug, Clone)]
pub(crate) struct Trie {
    nodes: Vec<Node>,
}

/// A trie under construction.
struct Builder {
    nodes: Vec<Node>,
    /// Places with a node, and bases that a node has.
    taken: Vec<bool>,
    bases: Vec<bool>,
    /// Place where the search for free places begins.
    search_from: usize,
}

/// Tokens below a node that is still to be made: `entries[first..end]` agree in `depth` bytes.
struct Branch {
    node: usize,
    first: usize,
    end: usize,
    depth: usize,
}

impl Trie {
    /// A trie of tokens, none of them empty and no two equal. `None` where they need more than [`MAX_PLACES`].
    pub(crate) fn new(mut entries: Vec<(&[u8], u32)>) -> Option<Self> {
        entries.sort_unstable();
        let mut builder =
            Builder { nodes: Vec::new(), taken: Vec::new(), bases: Vec::new(), search_from: BYTES };
        builder.grow(BYTES);
        builder.taken[ROOT] = true;
        let mut branches = vec![Branch { node: ROOT, first: 0, end: entries.len(), depth: 0 }];
        let (mut bytes, mut children) = (Vec::new(), Vec::new());
        while let Some(Branch { node, mut first, end, depth }) = branches.pop() {
            if first < end && entries[first].0.len() == depth {
                builder.nodes[node].token = entries[first].1;
                first += 1;
            }
            bytes.clear();
            children.clear();
            while first < end {
                let byte = entries[first].0[depth];
                let count = entries[first..end].partition_point(|entry| entry.0[depth] == byte);
                bytes.push(byte);
                children.push(first..first + count);
                first += count;
            }
            if bytes.is_empty() {
                continue;
            }
            let base = builder.place(node, &bytes)?;
            for (byte, range) in bytes.iter().zip(&children) {
                let node = base + usize::from(*byte);
                branches.push(Branch { node, first: range.start, end: range.end, depth: depth + 1 });
            }
        }
        Some(Trie { nodes: builder.nodes })
    }

    /// The longest token that `text` begins with, or [`NONE`], and the number of its bytes.
    #[inline(always)]
    pub(crate) fn longest(&self, text: &[u8]) -> (u32, usize) {
        let (mut base, mut token) = (self.nodes[ROOT].base_and_label >> LABEL_BITS, NONE);
        let mut len = 0;
        for (i, byte) in text.iter().enumerate() {
            let Node { base_and_label, token: ends } = self.nodes[base as usize + usize::from(*byte)];
            if base_and_label % (1 << LABEL_BITS) != u32::from(*byte) + 1 {
                break;
            }
            base = base_and_label >> LABEL_BITS;
            if ends != NONE {
                (token, len) = (ends, i + 1);
            }
        }
        (token, len)
    }
}

impl Builder {
    /// Makes `places` places exist.
    fn grow(&mut self, places: usize) {
        if self.nodes.len() < places {
            self.nodes.resize(places, EMPTY);
            self.taken.resize(places, false);
            self.bases.resize(places, false);
        }
    }

    /// Gives `parent` a base, with children by `bytes`, which ascend. Every byte's place exists then.
    fn place(&mut self, parent: usize, bytes: &[u8]) -> Option<usize> {
        let lowest = usize::from(bytes[0]);
        let is_free = |at: usize| self.taken.get(at) != Some(&true);
        let fits = |at: usize| {
            let base =
                at.checked_sub(lowest).filter(|base| *base > 0 && self.bases.get(*base) != Some(&true))?;
            bytes.iter().all(|byte| is_free(base + usize::from(*byte))).then_some(base)
        };
        // Close behind the parent a child is in the same cache line or the next.
        let near = (parent + 1..parent + 1 + NEAR).find_map(fits);
        let mut free = (self.search_from..self.nodes.len()).filter(|at| is_free(*at));
        let first = free.next().unwrap_or(self.nodes.len());
        let base = near.or_else(|| fits(first)).or_else(|| free.by_ref().take(TRIES).find_map(fits));
        // Places that so many nodes had no use for are not looked at again.
        self.search_from = if base.is_some() { first } else { free.next().unwrap_or(self.nodes.len()) };
        let base = base.unwrap_or(self.nodes.len());
        if base + BYTES > MAX_PLACES {
            return None;
        }
        self.grow(base + BYTES);
        self.bases[base] = true;
        self.nodes[parent].base_and_label |= (base as u32) << LABEL_BITS;
        for byte in bytes {
            let at = base + usize::from(*byte);
            self.taken[at] = true;
            self.nodes[at].base_and_label = u32::from(*byte) + 1;
        }
        Some(base)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    proptest! {
        #[test]
        fn longest_token_equals_that_of_a_search_through_all(
            tokens in prop::collection::btree_set(prop::collection::vec(prop::sample::select(vec![0u8, 1, 7, 254, 255]), 1..6), 0..80),
            text in prop::collection::vec(prop::sample::select(vec![0u8, 1, 7, 254, 255]), 0..12),
        ) {
            let tokens: BTreeSet<Vec<u8>> = tokens;
            let entries = tokens.iter().enumerate().map(|(i, t)| (t.as_slice(), i as u32)).collect();
            let want = tokens.iter().enumerate().filter(|(_, t)| text.starts_with(t)).max_by_key(|(_, t)| t.len());
            prop_assert_eq!(Trie::new(entries).unwrap().longest(&text), want.map_or((NONE, 0), |(i, t)| (i as u32, t.len())));
        }
    }

    #[test]
    fn nodes_with_every_child_are_placed() {
        let tokens: Vec<Vec<u8>> = (0..=255u8)
            .map(|a| vec![a])
            .chain((0..=255u8).flat_map(|a| (0..=255u8).map(move |b| vec![a, b])))
            .collect();
        let trie =
            Trie::new(tokens.iter().enumerate().map(|(i, t)| (t.as_slice(), i as u32)).collect()).unwrap();
        for (i, token) in tokens.iter().enumerate() {
            assert_eq!(trie.longest(token), (i as u32, token.len()));
            assert_eq!(trie.longest(&[token, &b"\0\xff"[..]].concat()).1, 2);
        }
        assert_eq!(trie.longest(b""), (NONE, 0));
    }
}
