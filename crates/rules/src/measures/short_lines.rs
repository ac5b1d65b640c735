use super::MeasureSpec;
use bessemer_text::unicode::char_count;

pub(super) const MEASURE: MeasureSpec = MeasureSpec {
    name: "short-lines",
    parameters: &["length", "lines"],
    value: "share of lines with at most so many characters",
    formula: "such lines / lines",
    origin: "FineWeb (Penedo et al. 2024)",
    pattern: None,
    compute: |measure, text, _| measure.share_of_lines(text, |line| is_short(line, measure.length)),
};

fn is_short(line: &str, length: u64) -> bool {
    // A character has one to four bytes.
    let bytes = line.len() as u64;
    bytes <= length || (bytes <= 4 * length && char_count(line) as u64 <= length)
}

#[cfg(test)]
mod tests {
    use super::is_short;

    #[test]
    fn characters_count_whatever_their_bytes() {
        for (line, short) in
            [("", true), ("abc", true), ("abcd", false), ("😀😀😀", true), ("😀😀😀😀", false)]
        {
            assert_eq!(is_short(line, 3), short, "{line}");
        }
    }
}
