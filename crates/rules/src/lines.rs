//! Lines and paragraphs, as the origins of the rules cut them, and how many of them repeat.

use crate::hashing::IdTable;
use bessemer_text::hash::xxh3;
use bessemer_text::split::lines::{newline_runs, newlines, paragraphs, splitlines};
use bessemer_text::unicode::{char_count, is_space, strip};

/// How lines or paragraphs are cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Lines {
    /// Python's `splitlines()`.
    Splitlines,
    /// At each `\n`.
    Newlines,
    /// At each run of `\n`.
    NewlineRuns,
    /// At each `\n`, blank lines left out, none trimmed.
    Content,
    /// At each `\n`, trimmed, empty ones left out.
    Stripped,
    /// The trimmed text at each run of two or more `\n`.
    Paragraphs,
    /// At each `\n\n`, trimmed, empty ones left out.
    StrippedParagraphs,
}

impl Lines {
    /// Every kind.
    pub const ALL: [Lines; 7] = [
        Lines::Splitlines,
        Lines::Newlines,
        Lines::NewlineRuns,
        Lines::Content,
        Lines::Stripped,
        Lines::Paragraphs,
        Lines::StrippedParagraphs,
    ];

    /// Its name in a profile.
    pub const fn name(self) -> &'static str {
        match self {
            Lines::Splitlines => "splitlines",
            Lines::Newlines => "newlines",
            Lines::NewlineRuns => "newline-runs",
            Lines::Content => "content",
            Lines::Stripped => "stripped",
            Lines::Paragraphs => "paragraphs",
            Lines::StrippedParagraphs => "stripped-paragraphs",
        }
    }

    pub(crate) fn index(self) -> usize {
        self as usize
    }

    /// Calls `each` with every line or paragraph.
    #[inline]
    pub(crate) fn for_each<'t>(self, text: &'t str, each: impl FnMut(&'t str)) {
        match self {
            Lines::Splitlines => splitlines(text).for_each(each),
            Lines::Newlines => newlines(text).for_each(each),
            Lines::NewlineRuns => newline_runs(text).for_each(each),
            Lines::Content => newlines(text).filter(|line| has_content(line)).for_each(each),
            Lines::Stripped => newlines(text).map(strip).filter(|line| !line.is_empty()).for_each(each),
            Lines::Paragraphs => paragraphs(text).for_each(each),
            Lines::StrippedParagraphs => {
                text.split("\n\n").map(strip).filter(|part| !part.is_empty()).for_each(each);
            }
        }
    }
}

/// Whether a line holds more than white space.
pub(crate) fn has_content(line: &str) -> bool {
    line.chars().any(|c| !is_space(c))
}

/// A segment of a text.
#[derive(Debug, Clone, Copy)]
pub(crate) struct CountedLine {
    /// Its hash: segments with the same one are taken for equal.
    key: u64,
    /// Its characters.
    chars: u32,
    /// How often it has come, where it came first.
    count: u32,
}

/// How many segments of a text repeat.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Duplicates {
    /// Segments.
    pub(crate) items: u64,
    /// Their characters.
    pub(crate) chars: u64,
    /// Different segments.
    pub(crate) unique: u64,
    /// Characters of the first of each.
    pub(crate) unique_chars: u64,
    /// Segments that come more than once, all their occurrences.
    pub(crate) repeated: u64,
    /// Characters of these.
    pub(crate) repeated_chars: u64,
}

impl Duplicates {
    /// Counts the segments of a text.
    pub(crate) fn of(
        text: &str,
        lines: Lines,
        table: &mut IdTable,
        counted: &mut Vec<CountedLine>,
    ) -> Duplicates {
        counted.clear();
        lines.for_each(text, |line| {
            let chars = char_count(line) as u32;
            counted.push(CountedLine { key: xxh3(line.as_bytes()), chars, count: 0 });
        });
        table.reset(counted.len());
        let mut found = Duplicates { items: counted.len() as u64, ..Duplicates::default() };
        for index in 0..counted.len() {
            let CountedLine { key, chars, .. } = counted[index];
            let chars = u64::from(chars);
            found.chars += chars;
            let first =
                table.find_or_insert(table.hash(key, 0), index as u32, |id| counted[id as usize].key == key);
            let count = &mut counted[first as usize].count;
            *count += 1;
            match *count {
                1 => {
                    found.unique += 1;
                    found.unique_chars += chars;
                }
                // The second occurrence makes the first one a repeated segment too.
                2 => {
                    found.repeated += 2;
                    found.repeated_chars += 2 * chars;
                }
                _ => {
                    found.repeated += 1;
                    found.repeated_chars += chars;
                }
            }
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashMap;

    proptest! {
        #[test]
        fn duplicates_are_those_of_a_map(text in "[ab\n é]{0,40}") {
            for lines in Lines::ALL {
                let mut counts: HashMap<&str, u64> = HashMap::new();
                let mut plain = Duplicates::default();
                lines.for_each(&text, |line| *counts.entry(line).or_default() += 1);
                for (line, count) in counts {
                    let chars = line.chars().count() as u64;
                    plain.items += count;
                    plain.chars += count * chars;
                    plain.unique += 1;
                    plain.unique_chars += chars;
                    if count > 1 {
                        plain.repeated += count;
                        plain.repeated_chars += count * chars;
                    }
                }
                let found = Duplicates::of(&text, lines, &mut IdTable::default(), &mut Vec::new());
                prop_assert_eq!(found, plain, "{}", lines.name());
            }
        }
    }
}
