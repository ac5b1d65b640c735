//! Text of users kept apart from what a template prints.
//!
//! A rendered text does not show who wrote a `<|im_end|>` in it. The chat is therefore rendered a second time, in which the characters of
//! messages that could be part of a special token are replaced, one by one, by private-use characters that occur nowhere in the chat. A special
//! token of the first text that contains a replaced character in the second is text of a user. The two texts must be the same otherwise: a
//! template that looks at the replaced characters is rendered again with fewer of them, and refused if the texts still differ.

use crate::message::Role;
use aho_corasick::{AhoCorasick, MatchKind};
use serde_json::{Map, Value};
use std::collections::{BTreeSet, HashMap};
use std::ops::{Range, RangeInclusive};

/// Private-use characters of planes 15 and 16.
const PRIVATE: [RangeInclusive<char>; 2] = ['\u{f0000}'..='\u{ffffd}', '\u{100000}'..='\u{10fffd}'];

fn is_private(c: char) -> bool {
    PRIVATE.iter().any(|range| range.contains(&c))
}

/// Characters that nothing of a chat or its template contains.
pub(crate) struct Spare {
    used: BTreeSet<char>,
    next: Box<dyn Iterator<Item = char>>,
}

impl Spare {
    pub(crate) fn new() -> Spare {
        Spare { used: BTreeSet::new(), next: Box::new(PRIVATE.into_iter().flatten()) }
    }

    /// Leaves the characters of a text out.
    pub(crate) fn leave_out(&mut self, text: &str) {
        // Their first byte is 0xf3 or 0xf4.
        if text.bytes().any(|byte| byte >= 0xf3) {
            self.used.extend(text.chars().filter(|c| is_private(*c)));
        }
    }

    /// Leaves the characters of all texts of a value out.
    pub(crate) fn leave_out_value(&mut self, value: &Value) {
        match value {
            Value::String(text) => self.leave_out(text),
            Value::Array(items) => items.iter().for_each(|item| self.leave_out_value(item)),
            Value::Object(fields) => {
                for (key, value) in fields {
                    self.leave_out(key);
                    self.leave_out_value(value);
                }
            }
            _ => {}
        }
    }

    /// The next one; `None` if a text has all of them.
    pub(crate) fn take(&mut self) -> Option<char> {
        let used = &self.used;
        self.next.find(|c| !used.contains(c))
    }
}

/// Special tokens of a tokenizer.
pub(crate) struct Specials {
    spellings: Vec<String>,
    search: Option<AhoCorasick>,
    /// First and last characters.
    borders: BTreeSet<char>,
}

/// Characters that are replaced.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Replaced {
    /// All with which a special token begins or ends.
    Borders,
    /// One of each whole special token, and of texts that begin or end within one.
    Tokens,
    /// One of each whole special token.
    WholeTokens,
}

/// Characters of a chat with their replacements.
pub(crate) struct Replacements<'s> {
    specials: &'s Specials,
    replaced: Replaced,
    by_character: HashMap<char, char>,
    /// Characters by their replacements.
    pub(crate) originals: HashMap<char, char>,
    spare: &'s mut Spare,
    /// Whether the text has no spare character left.
    pub(crate) is_exhausted: bool,
}

/// Offset of the first character of a range that is no white space.
fn first_visible(text: &str, range: Range<usize>) -> Option<usize> {
    let mut characters = text[range.clone()].char_indices();
    characters.find(|(_, c)| !c.is_whitespace()).map(|(i, _)| range.start + i)
}

impl Specials {
    pub(crate) fn new(spellings: Vec<String>) -> Specials {
        let ends = |text: &String| [text.chars().next(), text.chars().next_back()];
        let borders: BTreeSet<char> =
            spellings.iter().flat_map(ends).flatten().filter(|c| !c.is_whitespace()).collect();
        // A few hundred short patterns at most: building fails only beyond 2 GiB.
        let search = AhoCorasick::builder().match_kind(MatchKind::Standard).build(&spellings).ok();
        Specials { spellings, search, borders }
    }

    /// Offsets of characters by which all special tokens that a text spells are broken.
    fn of_whole_tokens(&self, text: &str) -> BTreeSet<usize> {
        let found = self.search.iter().flat_map(|search| search.find_overlapping_iter(text));
        found.filter_map(|found| first_visible(text, found.range())).collect()
    }

    /// The same, also of tokens that the text is a part of, without the white space around it.
    fn within_tokens(&self, text: &str) -> BTreeSet<usize> {
        let mut at = self.of_whole_tokens(text);
        let trimmed = text.trim();
        let Some(first) = first_visible(text, 0..text.len()) else { return at };
        let last = first + trimmed.char_indices().next_back().map_or(0, |(i, _)| i);
        for token in &self.spellings {
            let cuts = || token.char_indices().map(|(i, _)| i).filter(|i| *i > 0);
            if token.contains(trimmed) || cuts().any(|i| trimmed.starts_with(&token[i..])) {
                at.insert(first);
            }
            if cuts().any(|i| trimmed.ends_with(&token[..i])) {
                at.insert(last);
            }
        }
        at
    }
}

impl<'s> Replacements<'s> {
    pub(crate) fn new(specials: &'s Specials, replaced: Replaced, spare: &'s mut Spare) -> Replacements<'s> {
        let (by_character, originals) = (HashMap::new(), HashMap::new());
        Replacements { specials, replaced, by_character, originals, spare, is_exhausted: false }
    }

    fn of(&mut self, c: char) -> char {
        if let Some(known) = self.by_character.get(&c) {
            return *known;
        }
        let Some(spare) = self.spare.take() else {
            self.is_exhausted = true;
            return c;
        };
        self.by_character.insert(c, spare);
        self.originals.insert(spare, c);
        spare
    }

    fn text(&mut self, text: &str) -> String {
        let specials = self.specials;
        let at = match self.replaced {
            Replaced::Tokens => specials.within_tokens(text),
            Replaced::WholeTokens => specials.of_whole_tokens(text),
            Replaced::Borders => {
                let borders = text.char_indices().filter(|(_, c)| specials.borders.contains(c));
                let mut at: BTreeSet<usize> = borders.map(|(i, _)| i).collect();
                if at.is_empty() {
                    at = specials.within_tokens(text);
                }
                at
            }
        };
        if at.is_empty() {
            return text.to_owned();
        }
        text.char_indices().map(|(i, c)| if at.contains(&i) { self.of(c) } else { c }).collect()
    }

    /// The value with its texts replaced. Names of fields, roles and types stay: templates compare them.
    pub(crate) fn value(&mut self, value: &Value) -> Value {
        match value {
            Value::String(text) => Value::String(self.text(text)),
            Value::Array(items) => items.iter().map(|item| self.value(item)).collect(),
            Value::Object(fields) => {
                let mut replaced = Map::with_capacity(fields.len());
                for (key, value) in fields {
                    let value = match value {
                        Value::String(text) if is_word(key, text) => value.clone(),
                        _ => self.value(value),
                    };
                    replaced.insert(self.key(key), value);
                }
                Value::Object(replaced)
            }
            other => other.clone(),
        }
    }

    /// A name of a field, in which only whole special tokens are replaced.
    fn key(&mut self, key: &str) -> String {
        let spelled = |search: &AhoCorasick| search.is_match(key);
        if self.specials.search.as_ref().is_some_and(spelled) { self.text(key) } else { key.to_owned() }
    }
}

/// Whether a text is a word of the format and not of a user.
fn is_word(key: &str, text: &str) -> bool {
    match key {
        "role" => Role::from_name(text).is_some(),
        "type" => {
            let types =
                ["function", "text", "string", "object", "array", "number", "integer", "boolean", "null"];
            types.contains(&text)
        }
        _ => false,
    }
}
