use super::MeasureSpec;

pub(super) const MEASURE: MeasureSpec = MeasureSpec {
    name: "median-word-length",
    parameters: &["words"],
    value: "median of the characters per word",
    formula: "median(chars of a word); 0 without words",
    origin: "Dolma (Soldaini et al. 2024)",
    pattern: None,
    compute: |measure, text, scratch| Some(median(&scratch.words(measure.words, text).chars)),
};

fn median(lengths: &[u32]) -> f64 {
    if lengths.is_empty() {
        return 0.0;
    }
    let mut sorted = lengths.to_vec();
    sorted.sort_unstable();
    let middle = sorted.len() / 2;
    match sorted.len() % 2 {
        1 => f64::from(sorted[middle]),
        _ => (f64::from(sorted[middle - 1]) + f64::from(sorted[middle])) / 2.0,
    }
}
