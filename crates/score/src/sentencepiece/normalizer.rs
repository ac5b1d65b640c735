//! The normal form of a SentencePiece model: a table of replacements in a double array (Yata's darts-clone), and spaces.

use super::proto::NormalizerSpec;

/// Character that replaces a space.
const SPACE: char = '\u{2581}';
/// Longest key that is looked for, in bytes; those of the tables that ship with SentencePiece have at most 18.
const MAX_KEY: usize = 64;

#[derive(Debug, Clone)]
pub(super) struct Normalizer {
    /// Units of the double array; empty without a table.
    units: Vec<u32>,
    /// Replacements, each ended by NUL.
    replacements: Vec<u8>,
    add_prefix: bool,
    remove_spaces: bool,
    escape: bool,
    suffix: bool,
    /// Pieces of the user, which stay as they are, longest first.
    own: Vec<Box<str>>,
}

impl Normalizer {
    pub(super) fn new(spec: NormalizerSpec, mut own: Vec<Box<str>>) -> Result<Normalizer, String> {
        own.sort_by_key(|piece| std::cmp::Reverse(piece.len()));
        let (mut units, mut replacements) = (Vec::new(), Vec::new());
        if !spec.charsmap.is_empty() {
            let map = &spec.charsmap;
            let size = map
                .get(..4)
                .map_or(usize::MAX, |head| u32::from_le_bytes([head[0], head[1], head[2], head[3]]) as usize);
            let trie = size.checked_add(4).and_then(|end| map.get(4..end));
            let Some(trie) = trie.filter(|trie| !trie.is_empty() && trie.len() % 4 == 0) else {
                return Err(format!("the table of characters of {} bytes is broken", map.len()));
            };
            units = trie.chunks_exact(4).map(|u| u32::from_le_bytes([u[0], u[1], u[2], u[3]])).collect();
            replacements = map[4 + size..].to_vec();
        }
        let NormalizerSpec { add_prefix, remove_spaces, escape, suffix, .. } = spec;
        Ok(Normalizer { units, replacements, add_prefix, remove_spaces, escape, suffix, own })
    }

    /// The normal form of a text.
    pub(super) fn apply(&self, text: &str) -> String {
        let mut rest = text;
        let mut out = String::with_capacity(text.len() + text.len() / 4 + 4);
        if self.remove_spaces {
            while let Some((" ", length)) = self.prefix(rest) {
                rest = &rest[length..];
            }
        }
        if rest.is_empty() {
            return out;
        }
        let space = if self.escape { SPACE } else { ' ' };
        if self.add_prefix && !self.suffix {
            out.push(space);
        }
        let mut after_space = self.remove_spaces;
        while let Some((mut part, length)) = self.prefix(rest) {
            while after_space && part.starts_with(' ') {
                part = &part[1..];
            }
            if let Some(last) = part.chars().next_back() {
                out.extend(part.chars().map(|c| if c == ' ' { space } else { c }));
                after_space = last == ' ';
            }
            rest = &rest[length..];
            after_space &= self.remove_spaces;
        }
        if self.remove_spaces {
            while out.ends_with(space) {
                out.pop();
            }
        }
        if self.add_prefix && self.suffix {
            out.push(space);
        }
        out
    }

    /// What stands for the beginning of a text, and how many bytes of the text that is; nothing at its end.
    fn prefix<'t>(&'t self, text: &'t str) -> Option<(&'t str, usize)> {
        let first = text.chars().next()?;
        if let Some(own) = self.own.iter().find(|own| text.starts_with(&***own)) {
            return Some((&text[..own.len()], own.len()));
        }
        let own = || (&text[..first.len_utf8()], first.len_utf8());
        Some(self.longest(text).unwrap_or_else(own))
    }

    /// The longest key of the table that the text begins with: its replacement and its length.
    fn longest(&self, text: &str) -> Option<(&str, usize)> {
        let mut found = None;
        let unit = |at: usize| self.units.get(at).copied();
        let mut at = offset(unit(0)?);
        for (index, &byte) in text.as_bytes().iter().take(MAX_KEY).enumerate() {
            at ^= usize::from(byte);
            let Some(here) = unit(at) else { break };
            // The label of a node: 8 bits, and the bit that marks leaves.
            if here & 0x8000_00ff != u32::from(byte) {
                break;
            }
            at ^= offset(here);
            if here >> 8 & 1 == 1 {
                let value = unit(at)? & 0x7fff_ffff;
                found = Some((value as usize, index + 1));
            }
        }
        let (value, length) = found?;
        let rest = self.replacements.get(value..)?;
        let end = rest.iter().position(|&byte| byte == 0)?;
        // A table that is broken leaves the character as it is.
        let replacement = std::str::from_utf8(&rest[..end]).ok()?;
        text.is_char_boundary(length).then_some((replacement, length))
    }
}

/// Where the children of a unit lie, relative to it.
fn offset(unit: u32) -> usize {
    ((unit >> 10) << ((unit & (1 << 9)) >> 6)) as usize
}
