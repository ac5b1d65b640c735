use super::MeasureSpec;

pub(super) const MEASURE: MeasureSpec = MeasureSpec {
    name: "capital-words",
    parameters: &["words"],
    value: "share of words with upper-case letters and no lower-case one",
    formula: "capital words / words",
    origin: "RedPajama-V2 (Weber et al. 2024)",
    pattern: None,
    compute: |measure, text, scratch| {
        measure.share_of_words(text, scratch, |word| {
            word.chars().any(char::is_uppercase) && !word.chars().any(char::is_lowercase)
        })
    },
};
