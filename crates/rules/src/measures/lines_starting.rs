use super::MeasureSpec;
use bessemer_text::unicode::strip_start;

pub(super) const MEASURE: MeasureSpec = MeasureSpec {
    name: "lines-starting",
    parameters: &["marks", "trim", "lines"],
    value: "share of lines that begin with a mark",
    formula: "such lines / lines",
    origin: "Gopher (Rae et al. 2021, table A1)",
    pattern: None,
    compute: |measure, text, _| {
        measure.share_of_lines(text, |line| {
            let line = if measure.trim { strip_start(line) } else { line };
            measure.marks.iter().any(|mark| line.starts_with(mark.as_str()))
        })
    },
};
