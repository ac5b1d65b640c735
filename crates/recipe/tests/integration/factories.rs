//! The recipes of data factories over a small web archive: each page is dropped by the rule that is there for it, in the order of
//! the paper, and what is left is kept.

use bessemer_corpus::{BuildContext, CorpusReader, InspectFilter, Split, build};
use bessemer_corpus_config::CorpusConfig;
use bessemer_recipe::load_recipe;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::AtomicBool;

/// Words of sentences that no rule drops.
const WORDS: &str = "furnace river steel iron workers bridge railway engine winter morning letter village market harbour captain \
    garden window stone silver copper wagon horse bread water fire smoke valley mountain forest summer evening lantern bell church school \
    doctor teacher farmer merchant sailor soldier painter library museum theatre station platform ticket journey island storm thunder \
    cloud meadow orchard barrel hammer anvil chimney roof ladder rope anchor compass ship canal lock mill wheel grain flour cattle sheep";

/// Different sentences of plain English for each number. No five words in a row are the same in all sentences of a frame, so that
/// no rule finds repetition.
fn prose(number: u64, sentences: usize) -> String {
    const FRAMES: [&str; 6] = [
        "The A of the B was built with the C that came from the D.",
        "Once a A came to the B and asked for the C near the D.",
        "Nobody in the A knew that the B and the C were lost to the D.",
        "They have seen the A with a B, and the C is now a D.",
        "When the A was gone, B went to see the C and the D.",
        "It was the A that the B wanted, but the C was of the D.",
    ];
    let words: Vec<&str> = WORDS.split_whitespace().collect();
    let mut state = number.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = |below: usize| {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (state >> 33) as usize % below
    };
    let mut text = String::new();
    for index in 0..sentences {
        let mut frame = FRAMES[next(FRAMES.len())].to_string();
        for mark in ["A", "B", "C", "D"] {
            frame = frame.replacen(&format!(" {mark}"), &format!(" {}", words[next(words.len())]), 1);
        }
        text += &frame;
        text += if index % 4 == 3 { "\n" } else { " " };
    }
    text
}

/// A response of a web archive.
fn record(url: &str, text: &str) -> String {
    let paragraphs: String = text.lines().map(|line| format!("<p>{line}</p>")).collect();
    let page = format!(
        "<html><head><title>A page</title></head><body><nav><a href=\"/\">Home</a></nav><article>{paragraphs}</article></body></html>"
    );
    let block = format!("HTTP/1.1 200 OK\r\nContent-Type: text/html; charset=utf-8\r\n\r\n{page}");
    format!(
        "WARC/1.0\r\nWARC-Type: response\r\nWARC-Target-URI: {url}\r\nWARC-Date: 2026-01-02T03:04:05Z\r\n\
         Content-Type: application/http; msgtype=response\r\nContent-Length: {}\r\n\r\n{block}\r\n\r\n",
        block.len()
    )
}

const GERMAN: &str = "Der Ofen stand am Fluss, und die Leute im Dorf sagten, dass der Stahl, der daraus kam, billig und gut war. \
    Im Winter fuhren die Wagen über die Brücke, weil das Wasser zu hoch stand und niemand wusste, wann es wieder sinken würde. ";

/// The archive, page by page: name, text.
fn pages() -> Vec<(&'static str, String)> {
    let shared = prose(77, 3);
    let mut repetitive =
        "Buy the cheap steel of the river here and now with the best price that we have. ".repeat(20);
    repetitive.push('\n');
    vec![
        ("good.org/one", prose(1, 24)),
        ("good.org/two", prose(7, 24)),
        ("blocked.com/page", prose(3, 24)),
        ("good.org/german", GERMAN.repeat(3)),
        ("good.org/short", prose(4, 2)),
        ("good.org/repetitive", repetitive),
        ("good.org/copy-of-two", prose(7, 24).replacen(" the ", " this ", 1)),
        ("good.org/passage-first", format!("{}{shared}\n", prose(5, 24))),
        ("good.org/passage-again", format!("{}{shared}\n", prose(6, 24))),
    ]
}

/// Texts of kept pages and reasons of dropped ones, by name.
fn built(recipe: &str) -> (BTreeMap<String, String>, BTreeMap<String, String>) {
    let folder = tempfile::tempdir().unwrap();
    let archive: String =
        pages().iter().map(|(name, text)| record(&format!("http://{name}"), text)).collect();
    std::fs::write(folder.path().join("crawl.warc"), archive).unwrap();
    let sets = [
        format!("corpus.path={}", folder.path().join("crawl.warc").display()),
        "corpus.urls.domains=[\"blocked.com\"]".into(),
        "corpus.split.validation_fraction=0.0".into(),
    ];
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../recipes").join(recipe);
    let loaded = load_recipe(&path, &sets).unwrap_or_else(|error| panic!("{error}"));
    let config: CorpusConfig = loaded.value.corpus;
    let corpus = folder.path().join("corpus");
    let stop = AtomicBool::new(false);
    let context = BuildContext { threads: 2, memory_budget: 64 << 20, progress: &|_| {}, stop: &stop };
    build(&config, &corpus, &context).unwrap();
    let reader = CorpusReader::open(&corpus).unwrap();
    let name = |path: &str| path.trim_start_matches("http://").to_string();
    let kept = reader.documents(Split::Train).map(|document| document.unwrap());
    let kept = kept.map(|document| (name(&document.path), document.text)).collect();
    let dropped = reader.inspect(InspectFilter::default()).map(|row| row.unwrap());
    let dropped = dropped.map(|row| (name(&row.path), row.reason.unwrap())).collect();
    (kept, dropped)
}

/// Reason of a page that another language than English drops.
const LANGUAGE: &str = r#"lang == "en" && lang_score >= 0.65"#;

#[test]
fn refinedweb_goes_through_every_step_of_macrodata_refinement() {
    let (kept, dropped) = built("refinedweb.toml");
    let reason = |page: &str| dropped.get(page).map_or("kept", String::as_str);
    assert_eq!(reason("blocked.com/page"), "domain");
    assert_eq!(reason("good.org/german"), LANGUAGE);
    assert_eq!(reason("good.org/copy-of-two"), "near-duplicate");
    for page in ["good.org/short", "good.org/repetitive"] {
        assert!(dropped.contains_key(page) && reason(page) != LANGUAGE, "{page}: {}", reason(page));
    }
    for page in ["good.org/one", "good.org/two", "good.org/passage-first", "good.org/passage-again"] {
        assert!(kept.contains_key(page), "{page}: {}", reason(page));
    }
    // Of the passage that two pages share the first copy stays.
    let shared = prose(77, 3);
    let passage = shared.trim();
    assert!(kept["good.org/passage-first"].contains(passage));
    assert!(!kept["good.org/passage-again"].contains(passage));
    assert_eq!(kept["good.org/one"].split_whitespace().count(), prose(1, 24).split_whitespace().count());
}

#[test]
fn fineweb_keeps_passages_and_drops_near_duplicates() {
    let (kept, dropped) = built("fineweb.toml");
    let reason = |page: &str| dropped.get(page).map_or("kept", String::as_str);
    assert_eq!(reason("blocked.com/page"), "domain");
    assert_eq!(reason("good.org/german"), LANGUAGE);
    assert_eq!(reason("good.org/short"), "gopher_short_doc");
    assert!(reason("good.org/repetitive").contains("gram"), "{}", reason("good.org/repetitive"));
    assert_eq!(reason("good.org/copy-of-two"), "near-duplicate");
    let passage = prose(77, 3);
    for page in ["good.org/passage-first", "good.org/passage-again"] {
        assert!(kept.get(page).is_some_and(|text| text.contains(passage.trim())), "{page}: {}", reason(page));
    }
}
