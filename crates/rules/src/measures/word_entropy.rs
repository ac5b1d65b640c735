use super::MeasureSpec;

pub(super) const MEASURE: MeasureSpec = MeasureSpec {
    name: "word-entropy",
    parameters: &["words"],
    value: "entropy of the words in nats",
    formula: "-Σ p ln p over different words",
    origin: "RedPajama-V2 (Weber et al. 2024)",
    pattern: None,
    compute: |measure, text, scratch| {
        let words = scratch.words(measure.words, text).len();
        // Sorted, so that the sum does not depend on the order of the words.
        let distinct = scratch.interned(measure.words, text).distinct();
        let mut counts: Vec<u32> = distinct.iter().map(|word| word.count).collect();
        counts.sort_unstable();
        let entropy = counts.iter().map(|&count| f64::from(count) / words as f64).map(|p| -p * p.ln());
        (words > 0).then(|| entropy.sum())
    },
};
