use super::MeasureSpec;
use crate::repetition::ratio;

pub(super) const MEASURE: MeasureSpec = MeasureSpec {
    name: "repeated-line-chars-of-words",
    parameters: &["words", "lines"],
    value: "characters of lines that come more than once / characters of all words",
    formula: "chars of lines with a copy / chars of words",
    origin: "Dolma (Soldaini et al. 2024)",
    pattern: None,
    compute: |measure, text, scratch| {
        let found = scratch.duplicates(measure.lines, text);
        Some(ratio(found.repeated_chars, scratch.words(measure.words, text).total_chars.max(1)))
    },
};
