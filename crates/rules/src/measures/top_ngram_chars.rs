use super::MeasureSpec;

pub(super) const MEASURE: MeasureSpec = MeasureSpec {
    name: "top-ngram-chars",
    parameters: &["n", "variant", "words"],
    value: "share of characters in the most frequent window of n words",
    formula: "chars of the top n-gram · its count / chars; what chars are: the variant",
    origin: "Gopher (Rae et al. 2021, table A1)",
    pattern: None,
    compute: |measure, text, scratch| scratch.top_ngram(measure.variant, measure.words, measure.n, text),
};
