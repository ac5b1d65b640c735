use super::MeasureSpec;

pub(super) const MEASURE: MeasureSpec = MeasureSpec {
    name: "mark-words",
    parameters: &["marks", "words"],
    value: "share of words that are a mark, or `#` to more than a half",
    formula: "words that are marks / words",
    origin: "NeMo Curator",
    pattern: None,
    compute: |measure, text, scratch| {
        measure.share_of_words(text, scratch, |word| {
            let hashes = word.bytes().filter(|&byte| byte == b'#').count();
            measure.marks.iter().any(|mark| mark == word) || 2 * hashes > word.chars().count()
        })
    },
};
