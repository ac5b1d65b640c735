use super::MeasureSpec;

pub(super) const MEASURE: MeasureSpec = MeasureSpec {
    name: "distinct-listed-words",
    parameters: &["list", "words"],
    value: "how many words of the list occur",
    formula: "listed words that occur",
    origin: "Gopher (Rae et al. 2021, table A1)",
    pattern: None,
    compute: |measure, text, scratch| Some(scratch.occurring(measure.words, text, measure.list.keys()) as f64),
};
