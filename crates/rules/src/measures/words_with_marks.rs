use super::MeasureSpec;

pub(super) const MEASURE: MeasureSpec = MeasureSpec {
    name: "words-with-marks",
    parameters: &["marks", "words"],
    value: "share of words that hold a mark",
    formula: "words with a mark / words",
    origin: "Dolma (Soldaini et al. 2024)",
    pattern: None,
    compute: |measure, text, scratch| {
        measure.share_of_words(text, scratch, |word| {
            measure.marks.iter().any(|mark| word.contains(mark.as_str()))
        })
    },
};
