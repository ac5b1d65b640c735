use super::MeasureSpec;

pub(super) const MEASURE: MeasureSpec = MeasureSpec {
    name: "listed-words",
    parameters: &["list", "ignore-case", "words"],
    value: "how often words of the list occur",
    formula: "occurrences of listed words",
    origin: "Dolma (Soldaini et al. 2024), RefinedWeb (Penedo et al. 2023)",
    pattern: None,
    compute: |measure, text, scratch| {
        let listed = |word: &&str| match measure.ignore_case {
            true => measure.list.contains_key(word.to_lowercase().as_str()),
            false => measure.list.contains_key(*word),
        };
        Some(scratch.words(measure.words, text).iter(text).filter(listed).count() as f64)
    },
};
