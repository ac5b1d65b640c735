use super::MeasureSpec;

pub(super) const MEASURE: MeasureSpec = MeasureSpec {
    name: "words",
    parameters: &["words"],
    value: "words",
    formula: "words",
    origin: "Gopher (Rae et al. 2021, table A1)",
    pattern: None,
    compute: |measure, text, scratch| Some(scratch.word_count(measure.words, text) as f64),
};
