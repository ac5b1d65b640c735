//! LaTeX of one or several files (apart at a line `%%FILE`).

use bessemer_markup::MarkupLimits;
use bessemer_markup::latex::paper;

/// Runs the target on one input.
pub fn run(data: &[u8]) {
    let source = String::from_utf8_lossy(data);
    let files: Vec<(String, String)> = source
        .split("%%FILE")
        .enumerate()
        .map(|(number, text)| (format!("{}.tex", ["a", "b", "c", "d"][number % 4]), text.to_string()))
        .collect();
    let limits = MarkupLimits { max_bytes: 1 << 20, ..MarkupLimits::default() };
    if let Ok(paper) = paper(&files, &limits) {
        // Title, abstract and body, each of at most the expanded source; composed letters and dashes grow by a little.
        assert!(paper.text.len() <= 8 * limits.max_bytes);
    }
}
