//! Classes of characters, looked up in one flat table.
//!
//! The sets are those of Python (Unicode 14) and of datatrove, because profiles of rules are defined by them; Rust's
//! `char` methods differ in places (`is_alphabetic` takes marks and letter-numbers, `is_whitespace` leaves out
//! U+001C to U+001F).

mod tables;

/// A set of classes, one bit each.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Class(u16);

impl Class {
    /// datatrove's `PUNCTUATION`: 66 signs and the control characters but tab and newline.
    pub const PUNCTUATION: Class = Class(1);
    /// datatrove's `TERMINAL_PUNCTUATION`: 159 code points that end a sentence in some script.
    pub const TERMINAL: Class = Class(2);
    /// The union of both: a word made only of these is no word for the Gopher rules.
    pub const SYMBOL: Class = Class(3);
    /// General category Mn.
    pub const MARK_NONSPACING: Class = Class(4);
    /// General category Nd.
    pub const DIGIT: Class = Class(8);
    /// General categories L*, Python's `isalpha`.
    pub const LETTER: Class = Class(16);
    /// Python's `isspace`.
    pub const SPACE: Class = Class(32);
    /// General categories P*.
    pub const PUNCTUATION_CATEGORY: Class = Class(64);
    /// Characters after which spaCy's sentencizer ends a sentence.
    pub const SENTENCIZER: Class = Class(128);
    /// Replaced by `cc_net`'s normal form.
    pub(crate) const CC_NET_MAPPED: Class = Class(256);
    /// Control characters that `cc_net` deletes: U+0000-001F and U+007F-009F.
    pub(crate) const CC_NET_CONTROL: Class = Class(512);

    /// Whether the two sets share a class.
    pub const fn meets(self, other: Class) -> bool {
        self.0 & other.0 != 0
    }
}

/// Characters and their replacements in the normal form of `cc_net`, the upstream slip with the full-width one included.
pub const CC_NET_TABLE: &[(char, &str)] = &[
    ('，', ","),
    ('。', "."),
    ('、', ","),
    ('„', "\""),
    ('”', "\""),
    ('“', "\""),
    ('«', "\""),
    ('»', "\""),
    ('１', "\""),
    ('」', "\""),
    ('「', "\""),
    ('《', "\""),
    ('》', "\""),
    ('´', "'"),
    ('∶', ":"),
    ('：', ":"),
    ('？', "?"),
    ('！', "!"),
    ('（', "("),
    ('）', ")"),
    ('；', ";"),
    ('–', "-"),
    ('—', " - "),
    ('．', ". "),
    ('～', "~"),
    ('’', "'"),
    ('…', "..."),
    ('━', "-"),
    ('〈', "<"),
    ('〉', ">"),
    ('【', "["),
    ('】', "]"),
    ('％', "%"),
    ('►', "-"),
];

/// Code points of the flat table: the first two planes hold nearly all text.
const FLAT: usize = 0x2_0000;

const SETS: &[(&[(u32, u32)], u16)] = &[
    (tables::PUNCTUATION, Class::PUNCTUATION.0),
    (tables::TERMINAL, Class::TERMINAL.0),
    (tables::MARK_NONSPACING, Class::MARK_NONSPACING.0),
    (tables::DIGIT, Class::DIGIT.0),
    (tables::LETTER, Class::LETTER.0),
    (tables::SPACE, Class::SPACE.0),
    (tables::PUNCTUATION_CATEGORY, Class::PUNCTUATION_CATEGORY.0),
    (tables::SENTENCIZER, Class::SENTENCIZER.0),
    (&[(0, 0x1f), (0x7f, 0x9f)], Class::CC_NET_CONTROL.0),
];

// 130,000 stores while compiling.
#[allow(long_running_const_eval)]
static CLASSES: [u16; FLAT] = {
    let mut classes = [0u16; FLAT];
    let mut set = 0;
    while set < SETS.len() {
        let (ranges, bit) = SETS[set];
        let mut index = 0;
        while index < ranges.len() {
            let (mut point, last) = ranges[index];
            while point <= last && (point as usize) < FLAT {
                classes[point as usize] |= bit;
                point += 1;
            }
            index += 1;
        }
        set += 1;
    }
    let mut index = 0;
    while index < CC_NET_TABLE.len() {
        classes[CC_NET_TABLE[index].0 as usize] |= Class::CC_NET_MAPPED.0;
        index += 1;
    }
    classes
};

/// The classes of a character.
#[inline]
pub fn class(c: char) -> Class {
    match CLASSES.get(c as usize) {
        Some(&bits) => Class(bits),
        None => beyond(c as u32),
    }
}

/// The classes of an ASCII byte (of the Latin-1 character for higher bytes).
#[inline]
pub fn byte_class(byte: u8) -> Class {
    Class(CLASSES[byte as usize])
}

/// The classes of a character beyond the flat table.
#[cold]
fn beyond(point: u32) -> Class {
    let mut bits = 0;
    for (ranges, bit) in SETS {
        let after = ranges.partition_point(|&(first, _)| first <= point);
        if after > 0 && ranges[after - 1].1 >= point {
            bits |= bit;
        }
    }
    Class(bits)
}

/// Python's `str.isspace` of one character.
#[inline]
pub fn is_space(c: char) -> bool {
    class(c).meets(Class::SPACE)
}

/// Python's `str.isalpha` of one character: a letter (L*), no mark and no number.
#[inline]
pub fn is_letter(c: char) -> bool {
    class(c).meets(Class::LETTER)
}

/// Python's `str.strip()`.
pub fn strip(text: &str) -> &str {
    text.trim_matches(is_space)
}

/// Python's `str.lstrip()`.
pub fn strip_start(text: &str) -> &str {
    text.trim_start_matches(is_space)
}

/// Python's `str.rstrip()`.
pub fn strip_end(text: &str) -> &str {
    text.trim_end_matches(is_space)
}

/// Number of characters of a text: its bytes that do not continue a character. Written so that it is vectorised.
#[inline]
pub fn char_count(text: &str) -> usize {
    // Sums of bytes in blocks that cannot overflow are what compilers turn into vector code.
    text.as_bytes()
        .chunks(192)
        .map(|block| usize::from(block.iter().map(|&b| u8::from((b as i8) >= -0x40)).sum::<u8>()))
        .sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_of_the_sets() {
        let size = |set: Class| ('\0'..=char::MAX).filter(|&c| class(c).meets(set)).count();
        assert_eq!(size(Class::TERMINAL), 159);
        // 66 signs and 9 + 2 + 19 + 33 control characters.
        assert_eq!(size(Class::PUNCTUATION), 66 + 63);
        assert_eq!(size(Class::SPACE), 29);
        assert_eq!(size(Class::DIGIT), 660);
    }

    #[test]
    fn the_two_lookups_agree() {
        for c in ('\0'..=char::MAX).step_by(7).chain("a１é。\u{301}\u{2f00}\u{20000}\u{e0100}".chars()) {
            let mapped = CC_NET_TABLE.iter().any(|&(from, _)| from == c);
            let expected = beyond(c as u32).0 | if mapped { Class::CC_NET_MAPPED.0 } else { 0 };
            assert_eq!(class(c).0, expected, "{c:?}");
        }
        assert!(class('\u{20000}').meets(Class::LETTER));
        assert!(class('\u{e0100}').meets(Class::MARK_NONSPACING));
    }

    #[test]
    fn edges_of_python() {
        assert!(is_space('\u{1c}') && is_space('\u{85}') && is_space('\u{a0}') && !is_space('\u{200b}'));
        assert!(is_letter('é') && is_letter('ª') && is_letter('漢') && !is_letter('Ⅷ') && !is_letter('1'));
        assert_eq!(strip("\u{1f} a b\u{3000}\n"), "a b");
        assert_eq!(char_count(""), 0);
        assert_eq!(char_count(&"aé漢😀".repeat(100)), 400);
    }
}
