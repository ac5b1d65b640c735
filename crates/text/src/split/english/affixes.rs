//! What is cut off a chunk, and where the rest is cut.

use super::tables;

/// Classes of characters of the tokenizer, one bit each.
const ALPHA: u8 = 1;
const LOWER: u8 = 2;
const UPPER: u8 = 4;
const ICON: u8 = 8;
const PREFIX: u8 = 16;
const SUFFIX: u8 = 32;
const QUOTE: u8 = 64;
const BEFORE_DOT: u8 = 128;

const SETS: &[(&[(u32, u32)], u8)] = &[
    (tables::ALPHA, ALPHA),
    (tables::LOWER, LOWER),
    (tables::UPPER, UPPER),
    (tables::ICON, ICON),
    (tables::PREFIX, PREFIX),
    (tables::SUFFIX, SUFFIX),
    (tables::QUOTE, QUOTE),
    (tables::BEFORE_DOT, BEFORE_DOT),
];

/// Code points of the flat table.
const FLAT: usize = 0x2_0000;

#[allow(long_running_const_eval)]
static BITS: [u8; FLAT] = {
    let mut bits = [0u8; FLAT];
    let mut set = 0;
    while set < SETS.len() {
        let (ranges, bit) = SETS[set];
        let mut index = 0;
        while index < ranges.len() {
            let (mut point, last) = ranges[index];
            while point <= last && (point as usize) < FLAT {
                bits[point as usize] |= bit;
                point += 1;
            }
            index += 1;
        }
        set += 1;
    }
    bits
};

#[inline]
fn bits(c: char) -> u8 {
    match BITS.get(c as usize) {
        Some(&bits) => bits,
        None => beyond(c as u32),
    }
}

#[cold]
fn beyond(point: u32) -> u8 {
    let holds = |ranges: &[(u32, u32)]| {
        let after = ranges.partition_point(|&(first, _)| first <= point);
        after > 0 && ranges[after - 1].1 >= point
    };
    SETS.iter().filter(|(ranges, _)| holds(ranges)).map(|&(_, bit)| bit).sum()
}

#[inline]
fn is(c: Option<char>, set: u8) -> bool {
    c.is_some_and(|c| bits(c) & set != 0)
}

#[inline]
fn digit(c: Option<char>) -> bool {
    c.is_some_and(|c| c.is_ascii_digit())
}

/// Whether a top-level domain may hold this character.
pub(super) fn is_lower(c: char) -> bool {
    bits(c) & LOWER != 0
}

/// Bytes of the prefix of `text`, 0 if it has none.
#[inline]
pub(super) fn find_prefix(text: &str) -> usize {
    let bytes = text.as_bytes();
    match bytes[0] {
        b'.' => run_of_dots(bytes.iter()),
        b'+' => usize::from(!bytes.get(1).is_some_and(u8::is_ascii_digit)),
        b'U' if bytes.starts_with(b"US$") => 3,
        b'C' | b'A' if bytes.get(1) == Some(&b'$') => 2,
        byte if byte.is_ascii() => usize::from(BITS[usize::from(byte)] & PREFIX != 0),
        _ => {
            let c = text.chars().next().expect("a chunk is not empty");
            if bits(c) & PREFIX != 0 { c.len_utf8() } else { 0 }
        }
    }
}

/// Two full stops or more.
fn run_of_dots<'b>(bytes: impl Iterator<Item = &'b u8>) -> usize {
    let run = bytes.take_while(|&&byte| byte == b'.').count();
    if run >= 2 { run } else { 0 }
}

/// Bytes of the longest suffix of `text`, 0 if it has none.
#[inline]
pub(super) fn find_suffix(text: &str) -> usize {
    let bytes = text.as_bytes();
    let Some(&last) = bytes.last() else { return 0 };
    if last.is_ascii_lowercase() || last.is_ascii_uppercase() {
        let before = &text[..text.len() - 1];
        if last == b's' || last == b'S' {
            if before.ends_with('\'') {
                return 2;
            }
            if before.ends_with('’') {
                return 4;
            }
        }
        return unit(text);
    }
    match last {
        b'0'..=b'9' => 0,
        b'.' => match run_of_dots(bytes.iter().rev()) {
            0 => usize::from(is_cut_dot(&text[..text.len() - 1])),
            run => run,
        },
        b'+' => usize::from(bytes.len() > 1 && bytes[bytes.len() - 2].is_ascii_digit()),
        byte if byte.is_ascii() => {
            if BITS[usize::from(byte)] & SUFFIX != 0 {
                1
            } else {
                unit(text)
            }
        }
        _ => {
            if text.ends_with("……") {
                return "……".len();
            }
            let c = text.chars().next_back().expect("not empty");
            let single = if bits(c) & SUFFIX != 0 { c.len_utf8() } else { 0 };
            single.max(unit(text))
        }
    }
}

/// Whether a full stop after this text is cut off.
fn is_cut_dot(before: &str) -> bool {
    let mut back = before.chars().rev();
    let Some(last) = back.next() else { return false };
    if bits(last) & BEFORE_DOT != 0 {
        return true;
    }
    let previous = back.next();
    (bits(last) & UPPER != 0 && is(previous, UPPER))
        || (previous == Some('°') && matches!(last, 'F' | 'f' | 'C' | 'c' | 'K' | 'k'))
}

/// Longest unit and currency, in bytes.
const LONGEST_UNIT: usize = {
    let mut longest = 0;
    let mut index = 0;
    while index < tables::UNITS.len() {
        if tables::UNITS[index].len() > longest {
            longest = tables::UNITS[index].len();
        }
        index += 1;
    }
    longest
};

/// Bytes of the longest unit that ends the text after a digit.
#[inline]
fn unit(text: &str) -> usize {
    let bytes = text.as_bytes();
    let near = &bytes[bytes.len().saturating_sub(LONGEST_UNIT + 1)..];
    if !near.iter().any(u8::is_ascii_digit) {
        return 0;
    }
    let follows_digit = |unit: &&&str| {
        let start = text.len() - unit.len();
        start > 0 && bytes[start - 1].is_ascii_digit()
    };
    let found = tables::UNITS.iter().filter(|unit| text.ends_with(**unit)).filter(follows_digit);
    found.map(|unit| unit.len()).max().unwrap_or(0)
}

/// Where the first infix at or after `at` begins and ends.
pub(super) fn find_infix(text: &str, at: usize) -> Option<(usize, usize)> {
    let mut previous = text[..at].chars().next_back();
    let mut chars = text[at..].char_indices();
    while let Some((offset, c)) = chars.next() {
        let start = at + offset;
        let after = chars.as_str();
        let len = match c {
            'a'..='z' | 'A'..='Z' | '0'..='9' => 0,
            _ => infix_len(previous, c, &text[start..], after),
        };
        if len > 0 {
            return Some((start, start + len));
        }
        previous = Some(c);
    }
    None
}

/// Bytes of the infix that begins with `c`, which starts `here` and is followed by `after`.
fn infix_len(previous: Option<char>, c: char, here: &str, after: &str) -> usize {
    let next = after.chars().next();
    let dots = run_of_dots(here.as_bytes().iter());
    let word = |c: Option<char>| is(c, ALPHA) || digit(c);
    if dots > 0 {
        return dots;
    }
    if c == '…' || bits(c) & ICON != 0 {
        return c.len_utf8();
    }
    let cuts = match c {
        '+' | '*' | '^' => digit(previous) && (digit(next) || next == Some('-')),
        '.' => is(previous, LOWER | QUOTE) && is(next, UPPER | QUOTE),
        ',' => is(previous, ALPHA) && is(next, ALPHA),
        ':' | '<' | '>' | '=' | '/' => word(previous) && is(next, ALPHA),
        '-' if digit(previous) && (digit(next) || next == Some('-')) => true,
        '-' | '–' | '—' | '~' => return if word(previous) { hyphens(c, here) } else { 0 },
        _ => false,
    };
    if cuts { c.len_utf8() } else { 0 }
}

/// Bytes of the hyphens (one to three `-`, one or two `—`, one `–` or `~`) before a letter.
fn hyphens(c: char, here: &str) -> usize {
    let most = match c {
        '-' => 3,
        '—' => 2,
        _ => 1,
    };
    let mut rest = here;
    for _ in 0..most {
        let Some(shorter) = rest.strip_prefix(c) else { return 0 };
        rest = shorter;
        if is(rest.chars().next(), ALPHA) {
            return here.len() - rest.len();
        }
    }
    0
}
