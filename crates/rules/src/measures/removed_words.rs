use super::MeasureSpec;

pub(super) const MEASURE: MeasureSpec = MeasureSpec {
    name: "removed-words",
    parameters: &["words"],
    value: "share of the words that the line rules of the profile have cut",
    formula: "(words before - words after) / words before",
    origin: "RefinedWeb (Penedo et al. 2023)",
    pattern: None,
    compute: |measure, text, scratch| {
        let before = scratch.words_before?;
        let after = scratch.word_count(measure.words, text);
        (before > 0).then(|| (before as f64 - after as f64) / before as f64)
    },
};
