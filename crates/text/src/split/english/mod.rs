//! English words as spaCy's rule-based tokenizer cuts them, which is what datatrove counts.
//!
//! No model is involved: `spacy.blank("en")` is a list of rules, and the tables beside this file are read out of it.
//! A text falls at white space into chunks. From a chunk, prefixes (brackets, quotes, currency, symbols) and suffixes
//! (the same, `'s`, units after digits, full stops) are cut one by one until it is an exception ("don't": do, n't) or
//! nothing is left to cut. What remains is one word if it is a URL, else it is cut at infixes (dashes between letters,
//! ellipses, operators). At last, neighbours that together are an exception (`:` and `)`) are joined again.
//!
//! White space other than a single blank is a token of its own: no word, but it can begin a sentence.

mod affixes;
mod tables;
mod url;

use crate::hash::packed;
use crate::unicode::{Class, byte_class, class, is_space};
use affixes::{find_infix, find_prefix, find_suffix};
use std::cmp::Reverse;

/// A token: a range of bytes of the text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Token {
    /// Its first byte.
    pub start: usize,
    /// The byte after it.
    pub end: usize,
    /// Whether it is a run of white space.
    pub space: bool,
}

impl Token {
    /// Its text.
    #[inline]
    pub fn of<'t>(&self, text: &'t str) -> &'t str {
        &text[self.start..self.end]
    }
}

/// Longest exception, in bytes.
const LONGEST: usize = {
    let mut longest = 0;
    let mut index = 0;
    while index < tables::EXCEPTIONS.len() {
        if tables::EXCEPTIONS[index].0.len() > longest {
            longest = tables::EXCEPTIONS[index].0.len();
        }
        index += 1;
    }
    longest
};

/// Slots of the table of exceptions: three times as many as exceptions.
const SLOTS: usize = 1 << 12;

/// A hash of the first and the last bytes and the length.
const fn exception_hash(text: &[u8]) -> u64 {
    let (a, b) = match (text.first_chunk::<8>(), text.last_chunk::<8>()) {
        (Some(first), Some(last)) => (u64::from_le_bytes(*first), u64::from_le_bytes(*last)),
        _ => match (text.first_chunk::<4>(), text.last_chunk::<4>()) {
            (Some(first), Some(last)) => {
                (u32::from_le_bytes(*first) as u64, u32::from_le_bytes(*last) as u64)
            }
            _ => (text[0] as u64, (text[text.len() / 2] as u64) << 8 | text[text.len() - 1] as u64),
        },
    };
    let mixed = a.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ (b + text.len() as u64);
    mixed.wrapping_mul(0xd6e8_feb8_6659_fd93)
}

/// The slot of a hash, and five other bits of it at the place where a slot keeps them.
const fn slot(hash: u64) -> (usize, u16) {
    ((hash >> 52) as usize, (hash >> 36) as u16 & TAG)
}

/// Bits of a slot that tell most texts from its exception.
const TAG: u16 = 0xf800;

/// The index of an exception plus one, and bits of its hash; 0 is empty.
static EXCEPTION_SLOTS: [u16; SLOTS] = {
    let mut slots = [0u16; SLOTS];
    let mut index = 0;
    while index < tables::EXCEPTIONS.len() {
        let (mut at, tag) = slot(exception_hash(tables::EXCEPTIONS[index].0.as_bytes()));
        while slots[at] != 0 {
            at = (at + 1) % SLOTS;
        }
        index += 1;
        slots[at] = index as u16 | tag;
    }
    assert!(index < 1 << TAG.trailing_zeros(), "the index of an exception fits below its tag");
    slots
};

/// Where the rows of a sorted table begin that start with each byte; the last entry is the table's length.
const fn first_bytes(table: &[(&str, &[u8])]) -> [u16; 257] {
    let mut starts = [0u16; 257];
    let (mut byte, mut index) = (0, 0);
    while byte <= 256 {
        while index < table.len() && (table[index].0.as_bytes()[0] as usize) < byte {
            index += 1;
        }
        starts[byte] = index as u16;
        byte += 1;
    }
    starts
}

static REJOINED_BY_BYTE: [u16; 257] = first_bytes(tables::REJOINED);

/// The rows that start with a byte.
fn rows_of(starts: &[u16; 257], byte: u8) -> std::ops::Range<usize> {
    usize::from(starts[usize::from(byte)])..usize::from(starts[usize::from(byte) + 1])
}

/// The byte lengths of the parts of an exception.
#[inline]
fn exception(text: &str) -> Option<&'static [u8]> {
    let bytes = text.as_bytes();
    if bytes.is_empty() || bytes.len() > LONGEST {
        return None;
    }
    let (mut at, tag) = slot(exception_hash(bytes));
    while EXCEPTION_SLOTS[at] != 0 {
        if EXCEPTION_SLOTS[at] & TAG == tag {
            let (known, parts) = tables::EXCEPTIONS[usize::from(EXCEPTION_SLOTS[at] & !TAG) - 1];
            if known == text {
                return Some(parts);
            }
        }
        at = (at + 1) % SLOTS;
    }
    None
}

/// Which pairs of bytes the first two parts of an exception of [`tables::REJOINED`] begin with, one bit a pair.
static REJOINED_PAIRS: [[u64; 4]; 256] = {
    let mut pairs = [[0; 4]; 256];
    let mut index = 0;
    while index < tables::REJOINED.len() {
        let (text, parts) = tables::REJOINED[index];
        let (a, b) = (text.as_bytes()[0], text.as_bytes()[parts[0] as usize]);
        pairs[a as usize][b as usize / 64] |= 1 << (b % 64);
        index += 1;
    }
    pairs
};

/// A chunk that was cut before, and the bytes of its tokens, as many as are not 0.
#[derive(Debug, Default, Clone, Copy)]
struct KnownChunk {
    packed: u128,
    len: u8,
    tokens: [u8; 8],
}

/// Chunks that are remembered: the newest of each hash. 64 KiB of them.
const KNOWN: usize = 1 << 11;

/// Cuts texts; keeps its buffers from one to the next.
#[derive(Debug, Default, Clone)]
pub struct Tokenizer {
    known: Vec<KnownChunk>,
    suffixes: Vec<(usize, usize)>,
    /// (first token, tokens, exception) of neighbours that are an exception together.
    rejoined: Vec<(usize, usize, usize)>,
    seen: Vec<bool>,
    other: Vec<Token>,
}

impl Tokenizer {
    /// One without buffers yet.
    pub fn new() -> Tokenizer {
        Tokenizer::default()
    }

    /// Replaces the contents of `tokens` by the tokens of `text`.
    pub fn tokenize(&mut self, text: &str, tokens: &mut Vec<Token>) {
        tokens.clear();
        let bytes = text.as_bytes();
        let mut at = 0;
        while at < bytes.len() {
            let (start, letters) = (at, ascii_letters(&bytes[at..]));
            at += letters;
            let space_follows = at == bytes.len() || ends_chunk(&bytes[at..]);
            if letters > 0 && space_follows {
                // The common case: nothing but ASCII letters has no affix of any kind.
                push_whole(tokens, text, start, at);
            } else {
                at = chunk_end(text, at);
                if at > start {
                    self.known_chunk(text, start, at, tokens);
                }
            }
            at = self.white_space(text, at, tokens);
        }
        self.rejoin(text, tokens);
    }

    /// A run of white space at `at`: a token unless it is one blank after a word.
    fn white_space(&mut self, text: &str, at: usize, tokens: &mut Vec<Token>) -> usize {
        let bytes = text.as_bytes();
        if at + 1 < bytes.len() && bytes[at] == b' ' && bytes[at + 1].is_ascii_graphic() && at > 0 {
            return at + 1;
        }
        let end = text.len() - text[at..].trim_start_matches(is_space).len();
        // The blank that follows a word belongs to it.
        let start = if at > 0 && bytes.get(at) == Some(&b' ') { at + 1 } else { at };
        if start < end {
            tokens.push(Token { start, end, space: true });
        }
        end
    }

    /// Cuts a chunk as it was cut the last time: what its tokens are depends on nothing else.
    fn known_chunk(&mut self, text: &str, start: usize, end: usize, tokens: &mut Vec<Token>) {
        let Some(packed) = packed(text.as_bytes(), start, end) else {
            return self.chunk(text, start, end, tokens);
        };
        self.known.resize(KNOWN, KnownChunk::default());
        let mixed = (packed as u64 ^ (packed >> 64) as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let at = (mixed >> 32) as usize % KNOWN;
        let known = self.known[at];
        if known.packed == packed && usize::from(known.len) == end - start {
            let mut from = start;
            for len in known.tokens.into_iter().take_while(|&len| len > 0) {
                let to = from + usize::from(len);
                tokens.push(Token { start: from, end: to, space: false });
                from = to;
            }
            return;
        }
        let first = tokens.len();
        self.chunk(text, start, end, tokens);
        let mut lens = [0; 8];
        if tokens.len() - first <= lens.len() {
            lens.iter_mut()
                .zip(&tokens[first..])
                .for_each(|(len, token)| *len = (token.end - token.start) as u8);
            self.known[at] = KnownChunk { packed, len: (end - start) as u8, tokens: lens };
        }
    }

    /// Affixes, exceptions, URLs, infixes.
    fn chunk(&mut self, text: &str, start: usize, end: usize, tokens: &mut Vec<Token>) {
        self.suffixes.clear();
        let (mut from, mut to) = (start, end);
        let push = |tokens: &mut Vec<Token>, start, end| tokens.push(Token { start, end, space: false });
        let mut left = usize::MAX;
        while from < to && to - from != left {
            let rest = &text[from..to];
            if exception(rest).is_some() {
                break;
            }
            left = rest.len();
            let prefix = find_prefix(rest);
            if prefix > 0 && exception(&rest[prefix..]).is_some() {
                push(tokens, from, from + prefix);
                from += prefix;
                break;
            }
            let suffix = find_suffix(&rest[prefix..]);
            if suffix > 0 && exception(&rest[..rest.len() - suffix]).is_some() {
                self.suffixes.push((to - suffix, to));
                to -= suffix;
                break;
            }
            if prefix > 0 {
                push(tokens, from, from + prefix);
                from += prefix;
            }
            if suffix > 0 {
                self.suffixes.push((to - suffix, to));
                to -= suffix;
            }
        }
        if from < to {
            push_middle(tokens, text, from, to);
        }
        for &(start, end) in self.suffixes.iter().rev() {
            push(tokens, start, end);
        }
    }

    /// Finds neighbours that are an exception together, keeps the longest where some overlap, and cuts them as the
    /// exception says. Neighbours with a blank between them take part in the choice but stay as they are, as upstream.
    fn rejoin(&mut self, text: &str, tokens: &mut Vec<Token>) {
        self.rejoined.clear();
        let bytes = text.as_bytes();
        let mut a = tokens.first().map_or(0, |token| bytes[token.start]);
        for index in 1..tokens.len() {
            let b = bytes[tokens[index].start];
            if REJOINED_PAIRS[usize::from(a)][usize::from(b / 64)] >> (b % 64) & 1 != 0
                && !(a.is_ascii_alphanumeric() && b.is_ascii_alphanumeric())
            {
                self.candidates(text, tokens, index - 1);
            }
            a = b;
        }
        if self.rejoined.is_empty() {
            return;
        }
        self.rejoined.sort_unstable_by_key(|&(start, len, _)| (Reverse(len), start));
        self.seen.clear();
        self.seen.resize(tokens.len(), false);
        let mut chosen = Vec::new();
        for &(start, len, rule) in &self.rejoined {
            if !self.seen[start] && !self.seen[start + len - 1] {
                chosen.push((start, len, rule));
            }
            self.seen[start..start + len].fill(true);
        }
        chosen.retain(|&(start, len, _)| {
            tokens[start..start + len].windows(2).all(|pair| pair[0].end == pair[1].start)
        });
        chosen.sort_unstable();
        self.other.clear();
        let mut next = 0;
        for (start, len, rule) in chosen {
            self.other.extend_from_slice(&tokens[next..start]);
            let whole = tables::REJOINED[rule].0;
            let parts = exception(whole).expect("what is rejoined is an exception");
            push_parts(&mut self.other, tokens[start].start, parts);
            next = start + len;
        }
        self.other.extend_from_slice(&tokens[next..]);
        std::mem::swap(tokens, &mut self.other);
    }

    /// Every exception whose parts stand at token `index`.
    fn candidates(&mut self, text: &str, tokens: &[Token], index: usize) {
        let first = tokens[index].of(text);
        let head = |(whole, parts): &(&'static str, &[u8])| &whole[..usize::from(parts[0])];
        let rows = rows_of(&REJOINED_BY_BYTE, first.as_bytes()[0]);
        let from = rows.start + tables::REJOINED[rows.clone()].partition_point(|row| head(row) < first);
        for (rule, row) in tables::REJOINED.iter().enumerate().take(rows.end).skip(from) {
            if head(row) != first {
                break;
            }
            let (whole, parts) = *row;
            let Some(found) = tokens.get(index..index + parts.len()) else { continue };
            let mut at = 0;
            let same = found.iter().zip(parts).all(|(token, &len)| {
                let part = &whole[at..at + usize::from(len)];
                at += usize::from(len);
                token.of(text) == part
            });
            if same {
                self.rejoined.push((index, parts.len(), rule));
            }
        }
    }
}

/// Number of sentences by spaCy's sentencizer: a sentence begins after a closing mark, at the first token that is
/// neither punctuation nor such a mark. A text without tokens counts as one.
pub fn sentence_count(text: &str, tokens: &[Token]) -> usize {
    let (mut count, mut closed) = (1, false);
    for token in tokens {
        let token = token.of(text);
        let first = class_of_first(token);
        let closing = first.meets(Class::SENTENCIZER) && is_one_char(token);
        if closing {
            closed = true;
        } else if closed && !is_punctuation(token) {
            count += 1;
            closed = false;
        }
    }
    count
}

fn class_of_first(token: &str) -> Class {
    match token.as_bytes()[0] {
        byte if byte.is_ascii() => byte_class(byte),
        _ => class(token.chars().next().expect("a token is not empty")),
    }
}

fn is_one_char(token: &str) -> bool {
    token.len() == 1 || token.chars().nth(1).is_none()
}

fn is_punctuation(token: &str) -> bool {
    class_of_first(token).meets(Class::PUNCTUATION_CATEGORY)
        && token.chars().all(|c| class(c).meets(Class::PUNCTUATION_CATEGORY))
}

/// Number of ASCII letters at the front.
#[inline]
fn ascii_letters(bytes: &[u8]) -> usize {
    const fn each(byte: u8) -> u64 {
        u64::from_le_bytes([byte; 8])
    }
    let mut at = 0;
    // Eight bytes at a time: one branch for most words instead of one for each letter.
    while let Some(chunk) = bytes[at..].first_chunk::<8>() {
        let chunk = u64::from_le_bytes(*chunk);
        let lower = (chunk | each(0x20)) & each(0x7f);
        let from_a = lower + each(0x80 - b'a');
        let after_z = lower + each(0x7f - b'z');
        let others = !(from_a & !after_z & !chunk) & each(0x80);
        if others != 0 {
            return at + others.trailing_zeros() as usize / 8;
        }
        at += 8;
    }
    at + bytes[at..].iter().position(|b| !b.is_ascii_alphabetic()).unwrap_or(bytes.len() - at)
}

/// Whether an ASCII white space stands here.
#[inline]
fn ends_chunk(bytes: &[u8]) -> bool {
    bytes[0].is_ascii() && byte_class(bytes[0]).meets(Class::SPACE)
}

/// End of the chunk that continues at `at`.
fn chunk_end(text: &str, mut at: usize) -> usize {
    let bytes = text.as_bytes();
    while at < bytes.len() {
        let byte = bytes[at];
        if byte.is_ascii() {
            if byte_class(byte).meets(Class::SPACE) {
                return at;
            }
            at += 1;
        } else {
            let c = text[at..].chars().next().expect("a character starts here");
            if is_space(c) {
                return at;
            }
            at += c.len_utf8();
        }
    }
    at
}

fn push_parts(tokens: &mut Vec<Token>, mut start: usize, parts: &[u8]) {
    for &len in parts {
        let end = start + usize::from(len);
        tokens.push(Token { start, end, space: false });
        start = end;
    }
}

/// One word, or the parts of an exception.
#[inline]
fn push_whole(tokens: &mut Vec<Token>, text: &str, start: usize, end: usize) {
    match exception(&text[start..end]) {
        Some(parts) => push_parts(tokens, start, parts),
        None => tokens.push(Token { start, end, space: false }),
    }
}

/// What is left of a chunk when its affixes are cut: an exception, a URL, or something to cut at infixes.
fn push_middle(tokens: &mut Vec<Token>, text: &str, from: usize, to: usize) {
    let middle = &text[from..to];
    if let Some(parts) = exception(middle) {
        return push_parts(tokens, from, parts);
    }
    let bytes = middle.as_bytes();
    if bytes.iter().all(u8::is_ascii_alphanumeric) || url::is_url(middle) {
        return tokens.push(Token { start: from, end: to, space: false });
    }
    let (mut start, mut at) = (0, 0);
    while let Some((infix, end)) = find_infix(middle, at) {
        at = end;
        // An infix at the very front cuts nothing and stays with what follows.
        if infix == 0 {
            continue;
        }
        if infix != start {
            tokens.push(Token { start: from + start, end: from + infix, space: false });
        }
        tokens.push(Token { start: from + infix, end: from + end, space: false });
        start = end;
    }
    if start < middle.len() {
        tokens.push(Token { start: from + start, end: to, space: false });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    pub(super) fn words(text: &str) -> Vec<&str> {
        let mut tokens = Vec::new();
        Tokenizer::new().tokenize(text, &mut tokens);
        tokens.iter().filter(|token| !token.space).map(|token| token.of(text)).collect()
    }

    #[test]
    fn rules_at_work() {
        assert_eq!(words("(Don't stop!)"), ["(", "Do", "n't", "stop", "!", ")"]);
        assert_eq!(
            words("state-of-the-art, 5km/h..."),
            ["state", "-", "of", "-", "the", "-", "art", ",", "5", "km/h", "..."]
        );
        assert_eq!(
            words("see http://x.org/a,b, Mr. X's x-Mr. hello:)"),
            ["see", "http://x.org/a,b", ",", "Mr.", "X", "'s", "x", "-", "Mr.", "hello", ":)"]
        );
    }

    #[test]
    fn exceptions_are_found_and_nothing_else() {
        for (text, parts) in tables::EXCEPTIONS {
            assert_eq!(exception(text), Some(*parts), "{text}");
            let longer = format!("{text}x");
            let known = |text: &str| tables::EXCEPTIONS.iter().find(|row| row.0 == text).map(|row| row.1);
            assert_eq!(exception(&longer), known(&longer));
            let shorter: String = text.chars().skip(1).collect();
            assert_eq!(exception(&shorter), known(&shorter));
        }
    }

    #[test]
    fn tables_are_sorted() {
        let head = |row: &(&'static str, &[u8])| &row.0[..usize::from(row.1[0])];
        assert!(tables::REJOINED.is_sorted_by(|a, b| head(a) <= head(b)));
        for (text, parts) in tables::EXCEPTIONS.iter().chain(tables::REJOINED) {
            assert_eq!(parts.iter().map(|&len| usize::from(len)).sum::<usize>(), text.len(), "{text}");
        }
    }

    #[test]
    fn hostile_chunks_take_linear_time() {
        // Each would take hours if a step looked back or ahead over the whole chunk.
        for piece in
            ["(", ".", "@", ":)", "a@", "…", "://", "-", "a.", "'s", "1km", "<3", "@a.bc:1", "\u{301}", "a-"]
        {
            let text = piece.repeat(400_000);
            assert_eq!(words(&text).concat(), text, "{piece}");
        }
    }

    proptest! {
        #[test]
        fn ascii_letters_are_counted(bytes in prop::collection::vec(prop_oneof![b'A'..=b'Z', b'a'..=b'z', b'`'..=b'{', any::<u8>()], 0..40)) {
            let plain = bytes.iter().take_while(|b| b.is_ascii_alphabetic()).count();
            prop_assert_eq!(ascii_letters(&bytes), plain);
        }

        #[test]
        fn known_chunks_are_cut_as_new_ones(
            chunks in prop::collection::vec("\\PC{1,17}|[a-zA-Z0-9.,:;()'’\"/-]{1,17}|(a|1|:\\)|'s|\\.\\.){1,9}", 1..40),
        ) {
            let mut tokenizer = Tokenizer::new();
            let (mut found, mut plain) = (Vec::new(), Vec::new());
            for chunk in chunks.iter().chain(&chunks) {
                tokenizer.tokenize(chunk, &mut found);
                Tokenizer::new().tokenize(chunk, &mut plain);
                prop_assert_eq!(&found, &plain);
            }
        }

        #[test]
        fn tokens_cover_the_text(text in "\\PC{0,20}|[a-zA-Z0-9 .,:;()'’\"\n\u{a0}/-]{0,60}") {
            let mut tokens = Vec::new();
            Tokenizer::new().tokenize(&text, &mut tokens);
            let mut at = 0;
            for token in &tokens {
                prop_assert!(token.start == at || &text[at..token.start] == " ");
                prop_assert!(token.end > token.start);
                prop_assert_eq!(token.of(&text).chars().all(is_space), token.space);
                at = token.end;
            }
            prop_assert!(at == text.len() || &text[at..] == " ");
        }
    }
}
