//! Text that the model wrote, by step.

use crate::facts::Facts;
use crate::html::{details, section};
use crate::text::{escape, number};

/// Longest text shown of one sample, in characters.
const LONGEST: usize = 20_000;
/// Samples shown: the first few and the last ones tell the story of a long run.
const SHOWN: usize = 24;

pub(crate) fn samples(facts: &Facts<'_>) -> String {
    let mut all = facts.samples.clone();
    all.sort_by_key(|s| s.step);
    let left_out = all.len().saturating_sub(SHOWN);
    if left_out > 0 {
        all.drain(SHOWN / 3..SHOWN / 3 + left_out);
    }
    let last = all.last().map(|s| s.step);
    let mut body = String::new();
    for sample in &all {
        let temperature = match sample.temperature {
            Some(0.0) => ", greedy".to_string(),
            Some(t) => format!(", temperature {}", number(t)),
            None => String::new(),
        };
        let text = format!(
            "<pre class=\"sample\"><b>{}</b>{}</pre>\n",
            escape(&cropped(&sample.prompt)),
            escape(&cropped(&sample.text))
        );
        body += &details(&format!("step {}{temperature}", sample.step), &text, Some(sample.step) == last);
    }
    if left_out > 0 {
        body += &format!("<p class=\"note\">{left_out} samples in between are left out.</p>\n");
    }
    if !body.is_empty() {
        body = format!("<p>The prompt is in bold; the model wrote the rest.</p>\n{body}");
    }
    section("samples", "Samples", &body)
}

fn cropped(text: &str) -> String {
    match text.char_indices().nth(LONGEST) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_string(),
    }
}
