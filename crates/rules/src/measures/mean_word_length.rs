use super::{MeasureSpec, quotient};

pub(super) const MEASURE: MeasureSpec = MeasureSpec {
    name: "mean-word-length",
    parameters: &["words"],
    value: "characters per word",
    formula: "chars of words / words",
    origin: "Gopher (Rae et al. 2021, table A1)",
    pattern: None,
    compute: |measure, text, scratch| {
        let list = scratch.words(measure.words, text);
        quotient(list.total_chars, list.len() as u64)
    },
};
