use super::{MeasureSpec, quotient};

pub(super) const MEASURE: MeasureSpec = MeasureSpec {
    name: "unique-words",
    parameters: &["words"],
    value: "different words / words",
    formula: "different words / words",
    origin: "RedPajama-V2 (Weber et al. 2024)",
    pattern: None,
    compute: |measure, text, scratch| {
        let unique = scratch.interned(measure.words, text).distinct().len();
        quotient(unique as u64, scratch.words(measure.words, text).len() as u64)
    },
};
