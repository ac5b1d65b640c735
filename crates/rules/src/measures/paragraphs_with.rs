use super::{MeasureSpec, quotient};
use bessemer_text::unicode::strip;

pub(super) const MEASURE: MeasureSpec = MeasureSpec {
    name: "paragraphs-with",
    parameters: &["marks", "lines"],
    value: "share of paragraphs that hold a mark, in lower case; 1 if one holds `lorem ipsum`",
    formula: "such paragraphs / paragraphs",
    origin: "NeMo Curator",
    pattern: None,
    compute: |measure, text, _| {
        let (mut found, mut paragraphs, mut lorem) = (0, 0, false);
        measure.lines.for_each(text, |paragraph| {
            let paragraph = strip(paragraph).to_lowercase();
            paragraphs += 1;
            lorem |= paragraph.contains("lorem ipsum");
            found += u64::from(measure.marks.iter().any(|mark| paragraph.contains(mark.as_str())));
        });
        if lorem { Some(1.0) } else { quotient(found, paragraphs) }
    },
};
