//! Character classes of the pre-tokenizers: which of `\p{L}`, `\p{N}`, `\s` a character belongs to.
//!
//! The three properties are disjoint, so one class a character suffices. ASCII takes one load. Letters and others of two and three
//! bytes are found by one bit, chosen by their bytes without decoding; the rest by a two-level table over the code point (page of
//! 256, then byte). All are built at compile time from [`super::unicode_ranges`]: about 62 KiB of constants.

use super::unicode_ranges::{LETTERS, NUMBERS, WHITESPACE};

/// Class of one character. A byte that is no part of valid UTF-8 is a character of class [`Class::Other`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Class {
    /// None of the others: punctuation, symbols, marks, controls, unassigned, invalid bytes.
    Other = 0,
    /// `\p{L}`.
    Letter = 1,
    /// `\p{N}`.
    Number = 2,
    /// `\s` except the space, carriage return and line feed.
    White = 3,
    /// U+0020, which every pattern treats apart from other white space.
    Space = 4,
    /// Carriage return or line feed, which the Llama-3 family treats apart.
    Newline = 5,
}

impl Class {
    /// Whether the character matches `\s`.
    #[inline]
    pub(crate) const fn is_white(self) -> bool {
        self as u8 >= Class::White as u8
    }
}

const PAGES: usize = 0x110000 / 256;
/// Pages that hold more than one class, plus the uniform ones (all Other, all Letter).
const MAX_DISTINCT: usize = 200;

struct Table {
    page: [u8; PAGES],
    class: [[u8; 256]; MAX_DISTINCT],
}

/// Uniform pages share block 0 (Other) and block 1 (Letter); every other touched page gets its own block.
const fn build() -> Table {
    let mut table = Table { page: [0; PAGES], class: [[0; 256]; MAX_DISTINCT] };
    let mut i = 0;
    while i < 256 {
        table.class[1][i] = Class::Letter as u8;
        i += 1;
    }
    let used = paint(&mut table, &LETTERS, Class::Letter as u8, 2);
    let used = paint(&mut table, &NUMBERS, Class::Number as u8, used);
    paint(&mut table, &WHITESPACE, Class::White as u8, used);
    table
}

const fn paint(table: &mut Table, ranges: &[(u32, u32)], class: u8, mut used: usize) -> usize {
    let mut r = 0;
    while r < ranges.len() {
        let (first, last) = (ranges[r].0 as usize, ranges[r].1 as usize);
        let mut page = first >> 8;
        while page <= last >> 8 {
            let low = if page == first >> 8 { first & 255 } else { 0 };
            let high = if page == last >> 8 { last & 255 } else { 255 };
            if low == 0 && high == 255 {
                assert!(class == Class::Letter as u8, "only letters fill whole pages");
                table.page[page] = 1;
            } else {
                if table.page[page] == 0 {
                    table.page[page] = used as u8;
                    used += 1;
                }
                let block = table.page[page] as usize;
                let mut i = low;
                while i <= high {
                    table.class[block][i] = class;
                    i += 1;
                }
            }
            page += 1;
        }
        r += 1;
    }
    used
}

static TABLE: Table = build();

/// Class of each byte below 0x80; bytes from 0x80 on are [`Class::Other`] here and need decoding.
static ASCII: [Class; 256] = {
    let mut table = [Class::Other; 256];
    let mut b = 0;
    while b < 128 {
        table[b] = match b as u8 {
            b' ' => Class::Space,
            b'\r' | b'\n' => Class::Newline,
            b'\t' | 0x0B | 0x0C => Class::White,
            b'0'..=b'9' => Class::Number,
            b'a'..=b'z' | b'A'..=b'Z' => Class::Letter,
            _ => Class::Other,
        };
        b += 1;
    }
    table
};

/// Class of the character at `text[at]` and its length in bytes (1 for an invalid byte). `at < text.len()`.
#[inline(always)]
pub(crate) fn class_at(text: &[u8], at: usize) -> (Class, usize) {
    let b = text[at];
    if b < 0x80 {
        return (ASCII[b as usize], 1);
    }
    let (word, last, len) = match text[at..].first_chunk() {
        Some(&[first @ 0xE0..0xF0, second, third]) if second & 0xC0 == 0x80 => {
            let page = (usize::from(first & 0x0F) << 6) | usize::from(second & 0x3F);
            (&CLASS_BITS.three[page], third, 3)
        }
        Some(&[first @ 0xC0..0xE0, second, _]) => (&CLASS_BITS.two[usize::from(first & 0x1F)], second, 2),
        _ => return class_by_decoding(text, at),
    };
    let is_in = |bits: u64| last & 0xC0 == 0x80 && (bits >> (last & 63)) & 1 == 1;
    if is_in(word.letters) {
        (Class::Letter, len)
    } else if is_in(word.others) {
        (Class::Other, len)
    } else {
        class_by_decoding(text, at)
    }
}

#[inline(never)]
fn class_by_decoding(text: &[u8], at: usize) -> (Class, usize) {
    match decode(&text[at..]) {
        None => (Class::Other, 1),
        Some((code_point, len)) => (class_of(code_point), len),
    }
}

/// Letters and others among 64 characters that differ in their last byte, a bit each.
#[derive(Clone, Copy)]
struct ClassWord {
    letters: u64,
    others: u64,
}

/// Letters and others among the characters of two and of three bytes, by the bytes before the last. Overlong forms and surrogates
/// are neither.
struct ClassBits {
    two: [ClassWord; 32],
    three: [ClassWord; 1024],
}

static CLASS_BITS: ClassBits = {
    let none = ClassWord { letters: 0, others: 0 };
    let mut bits = ClassBits { two: [none; 32], three: [none; 1024] };
    let mut code_point = 0x80;
    while code_point < 0x10000 {
        let word = if code_point < 0x800 {
            &mut bits.two[code_point >> 6]
        } else {
            &mut bits.three[code_point >> 6]
        };
        let class = TABLE.class[TABLE.page[code_point >> 8] as usize][code_point & 255];
        let is_surrogate = code_point >= 0xD800 && code_point < 0xE000;
        if class == Class::Letter as u8 {
            word.letters |= 1 << (code_point & 63);
        } else if class == Class::Other as u8 && !is_surrogate {
            word.others |= 1 << (code_point & 63);
        }
        code_point += 1;
    }
    bits
};

/// Class of a code point.
#[inline]
pub(crate) fn class_of(code_point: u32) -> Class {
    if code_point < 0x80 {
        return ASCII[code_point as usize];
    }
    match TABLE.class[TABLE.page[(code_point >> 8) as usize] as usize][(code_point & 255) as usize] {
        1 => Class::Letter,
        2 => Class::Number,
        3 => Class::White,
        _ => Class::Other,
    }
}

/// The first character of `bytes` if a valid UTF-8 sequence stands there (no overlong form, no surrogate,
/// at most U+10FFFF): code point and length. Table 3-7 of the Unicode standard.
#[inline]
pub(crate) fn decode(bytes: &[u8]) -> Option<(u32, usize)> {
    let first = *bytes.first()?;
    let tail = |i: usize| bytes.get(i).filter(|b| **b & 0xC0 == 0x80).map(|b| u32::from(b & 0x3F));
    let lead = u32::from(first);
    let (code_point, len, least) = match first {
        0..=0x7F => (lead, 1, 0),
        0xC2..=0xDF => (((lead & 0x1F) << 6) | tail(1)?, 2, 0x80),
        0xE0..=0xEF => (((lead & 0x0F) << 12) | (tail(1)? << 6) | tail(2)?, 3, 0x800),
        0xF0..=0xF4 => (((lead & 7) << 18) | (tail(1)? << 12) | (tail(2)? << 6) | tail(3)?, 4, 0x10000),
        _ => return None,
    };
    let valid = code_point >= least && code_point <= 0x10FFFF && !(0xD800..=0xDFFF).contains(&code_point);
    valid.then_some((code_point, len))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decoding_agrees_with_the_standard_library_on_every_character_and_on_broken_sequences() {
        for c in '\0'..=char::MAX {
            let mut buffer = [0; 4];
            let bytes = c.encode_utf8(&mut buffer).as_bytes();
            assert_eq!(decode(bytes), Some((c as u32, c.len_utf8())));
            if c.len_utf8() > 1 {
                assert_eq!(decode(&bytes[..bytes.len() - 1]), None);
            }
        }
        for broken in [&[0x80u8][..], &[0xC0, 0x80], &[0xED, 0xA0, 0x80], &[0xF4, 0x90, 0x80, 0x80], &[0xFF]]
        {
            assert_eq!(decode(broken), None, "{broken:x?}");
        }
    }

    #[test]
    fn classes_by_bits_are_those_by_decoding_for_every_three_bytes_and_every_character() {
        for first in 0x80..=0xFF {
            for rest in 0..=0xFFFFu16 {
                let [second, third] = rest.to_be_bytes();
                let text = [first, second, third];
                assert_eq!(class_at(&text, 0), class_by_decoding(&text, 0), "{text:x?}");
            }
        }
        for c in '\u{80}'..=char::MAX {
            let text = format!("{c}. ");
            assert_eq!(class_at(text.as_bytes(), 0), (class_of(c as u32), c.len_utf8()), "{c:?}");
        }
    }

    #[test]
    fn table_agrees_with_the_ranges_it_was_built_from() {
        let member = |ranges: &[(u32, u32)], c: u32| {
            let after = ranges.partition_point(|r| r.0 <= c);
            after > 0 && c <= ranges[after - 1].1
        };
        for c in 0..0x110000u32 {
            let want = if member(&LETTERS, c) {
                Class::Letter
            } else if member(&NUMBERS, c) {
                Class::Number
            } else if c == 0x20 {
                Class::Space
            } else if c == 10 || c == 13 {
                Class::Newline
            } else if member(&WHITESPACE, c) {
                Class::White
            } else {
                Class::Other
            };
            assert_eq!(class_of(c), want, "U+{c:04X}");
        }
    }
}
