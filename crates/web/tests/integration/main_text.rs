//! Main text of the pages in golden/extract/made, by lists of sentences that belong to it and sentences that do not.

use bessemer_web::extract::{Extractor, Main, Plain};
use bessemer_web::html::HtmlLimits;
use serde_json::Value;
use std::path::Path;

/// Sentences found and not found.
#[derive(Default)]
struct Score {
    wanted: u32,
    found: u32,
    wrong: u32,
    empty: Vec<String>,
}

impl Score {
    fn f1(&self) -> f64 {
        f64::from(2 * self.found) / f64::from(self.wanted + self.found + self.wrong)
    }
}

fn letters(text: &str) -> String {
    text.chars().filter(|c| c.is_alphanumeric()).flat_map(char::to_lowercase).collect()
}

fn score(extractor: &dyn Extractor) -> Score {
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../golden/extract");
    let lists = std::fs::read(golden.join("lists-made.json")).unwrap();
    let lists: serde_json::Map<String, Value> = serde_json::from_slice(&lists).unwrap();
    assert!(lists.len() >= 75, "{} pages", lists.len());
    let mut score = Score::default();
    for (name, lists) in &lists {
        let page = std::fs::read_to_string(golden.join("made").join(format!("{name}.html"))).unwrap();
        let text = letters(&extractor.extract(&page, &HtmlLimits::default()).unwrap().text);
        let of = |kind: &str| {
            let sentences = lists[kind].as_array().unwrap().iter().map(|s| letters(s.as_str().unwrap()));
            let all: Vec<String> = sentences.collect();
            (all.len() as u32, all.iter().filter(|s| text.contains(*s)).count() as u32)
        };
        let (wanted, found) = of("with");
        score.wanted += wanted;
        score.found += found;
        score.wrong += of("without").1;
        if text.is_empty() {
            score.empty.push(name.clone());
        }
    }
    score
}

#[test]
fn main_text_of_made_pages() {
    let main = score(&Main);
    assert!(main.empty.is_empty(), "no text: {:?}", main.empty);
    // trafilatura 2.3.1 has .933 on these pages.
    assert!(
        main.f1() >= 0.97,
        "F1 {:.4}: found {} of {}, wrong {}",
        main.f1(),
        main.found,
        main.wanted,
        main.wrong
    );
}

#[test]
fn visible_text_of_made_pages_holds_the_main_text() {
    let plain = score(&Plain);
    assert!(plain.empty.is_empty(), "no text: {:?}", plain.empty);
    assert!(plain.found * 100 >= plain.wanted * 99, "found {} of {}", plain.found, plain.wanted);
}
