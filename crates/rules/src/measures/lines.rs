//! Number, length, beginning and end of lines.

use super::{MeasureSpec, quotient};
use bessemer_text::unicode::{Class, char_count, class, strip_start};

/// The measures of this file, in the order of the documentation.
pub(super) const MEASURES: &[MeasureSpec] = &[
    MeasureSpec {
        name: "lines",
        parameters: &["lines"],
        value: "lines",
        formula: "lines",
        origin: "FineWeb (Penedo et al. 2024), Ziya2 (Gan et al. 2023)",
        pattern: None,
        compute: |measure, text, scratch| Some(scratch.duplicates(measure.lines, text).items as f64),
    },
    MeasureSpec {
        name: "lines-starting",
        parameters: &["marks", "trim", "lines"],
        value: "share of lines that begin with a mark",
        formula: "such lines / lines",
        origin: "Gopher (Rae et al. 2021, table A1)",
        pattern: None,
        compute: |measure, text, _| {
            measure.share_of_lines(text, |line| {
                let line = if measure.trim { strip_start(line) } else { line };
                measure.marks.iter().any(|mark| line.starts_with(mark.as_str()))
            })
        },
    },
    MeasureSpec {
        name: "lines-ending",
        parameters: &["marks", "trim", "lines"],
        value: "share of lines that end with a mark",
        formula: "such lines / lines",
        origin: "Gopher (Rae et al. 2021, table A1)",
        pattern: None,
        compute: |measure, text, _| measure.share_of_lines(text, |line| measure.ends_line(line)),
    },
    MeasureSpec {
        name: "lines-not-ending",
        parameters: &["marks", "trim", "lines"],
        value: "share of lines that end with none of the marks",
        formula: "such lines / lines",
        origin: "NeMo Curator",
        pattern: None,
        compute: |measure, text, _| measure.share_of_lines(text, |line| !measure.ends_line(line)),
    },
    MeasureSpec {
        name: "lines-terminated",
        parameters: &["lines"],
        value: "share of lines that end with a sentence-ending sign of any script",
        formula: "such lines / lines",
        origin: "FineWeb (Penedo et al. 2024)",
        pattern: None,
        compute: |measure, text, _| {
            measure.share_of_lines(text, |line| {
                line.chars().next_back().is_some_and(|c| class(c).meets(Class::TERMINAL))
            })
        },
    },
    MeasureSpec {
        name: "short-lines",
        parameters: &["length", "lines"],
        value: "share of lines with at most so many characters",
        formula: "such lines / lines",
        origin: "FineWeb (Penedo et al. 2024)",
        pattern: None,
        compute: |measure, text, _| measure.share_of_lines(text, |line| is_short(line, measure.length)),
    },
    MeasureSpec {
        name: "longest-line",
        parameters: &["lines"],
        value: "characters of the longest line",
        formula: "max(chars of a line)",
        origin: "StarCoder (Li et al. 2023), RedPajama v1",
        pattern: None,
        compute: |measure, text, _| {
            let lengths = measure.line_lengths(text);
            (lengths.lines > 0).then_some(lengths.longest[0] as f64)
        },
    },
    MeasureSpec {
        name: "mean-line-length",
        parameters: &["lines"],
        value: "characters per line",
        formula: "chars of lines / lines",
        origin: "StarCoder (Li et al. 2023), RedPajama v1",
        pattern: None,
        compute: |measure, text, _| {
            let lengths = measure.line_lengths(text);
            quotient(lengths.chars, lengths.lines)
        },
    },
    MeasureSpec {
        name: "third-longest-line",
        parameters: &["lines"],
        value: "characters of the third longest line; 0 with fewer lines",
        formula: "third of the chars of lines, sorted",
        origin: "mC4 (Xue et al. 2021)",
        pattern: None,
        compute: |measure, text, _| Some(measure.line_lengths(text).longest[2] as f64),
    },
];

fn is_short(line: &str, length: u64) -> bool {
    // A character has one to four bytes.
    let bytes = line.len() as u64;
    bytes <= length || (bytes <= 4 * length && char_count(line) as u64 <= length)
}
