use super::MeasureSpec;

pub(super) const MEASURE: MeasureSpec = MeasureSpec {
    name: "duplicate-ngram-chars",
    parameters: &["n", "variant", "words"],
    value: "share of characters in windows of n words that repeat",
    formula: "chars of repeated n-grams / chars; which of them: the variant",
    origin: "Gopher (Rae et al. 2021, table A1)",
    pattern: None,
    compute: |measure, text, scratch| {
        scratch.duplicate_ngrams(measure.variant, measure.words, measure.n, text)
    },
};
