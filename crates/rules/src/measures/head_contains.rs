use super::MeasureSpec;

pub(super) const MEASURE: MeasureSpec = MeasureSpec {
    name: "head-contains",
    parameters: &["marks", "length"],
    value: "1 if the first so many characters hold a mark, else 0",
    formula: "mark in the first chars",
    origin: "StarCoder (Li et al. 2023), RedPajama v1",
    pattern: None,
    compute: |measure, text, _| {
        let end = text.char_indices().nth(measure.length as usize).map_or(text.len(), |(at, _)| at);
        let head = &text[..end];
        Some(f64::from(u8::from(measure.marks.iter().any(|mark| head.contains(mark.as_str())))))
    },
};
