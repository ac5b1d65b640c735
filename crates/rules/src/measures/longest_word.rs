use super::MeasureSpec;

pub(super) const MEASURE: MeasureSpec = MeasureSpec {
    name: "longest-word",
    parameters: &["words"],
    value: "characters of the longest word",
    formula: "max(chars of a word)",
    origin: "NeMo Curator",
    pattern: None,
    compute: |measure, text, scratch| {
        scratch.words(measure.words, text).chars.iter().max().map(|&chars| f64::from(chars))
    },
};
