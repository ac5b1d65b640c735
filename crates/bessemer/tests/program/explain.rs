//! `corpus explain` and `corpus profiles`: every kind of file, the same numbers in both forms, errors that help.

use crate::workplace::{GPT2, Workplace};
use serde_json::Value;
use std::fs;
use std::io::Write;

const USAGE: i32 = 2;

fn place_with_documents() -> Workplace {
    let place = Workplace::new(GPT2);
    let prose = "The people of the town have to be with the others, and that is good.\n".repeat(12);
    let lines = [
        "{\"id\": \"short\", \"text\": \"I am too small...\", \"lang\": \"en\", \"meta\": {\"score\": 0.9}}"
            .to_owned(),
        "this is no JSON".into(),
        serde_json::json!({"id": 7, "text": prose, "lang": "de", "meta": {"score": 0.1}}).to_string(),
        "{\"id\": \"bare\", \"lang\": \"en\"}".into(),
    ]
    .join("\n");
    fs::write(place.path("docs.jsonl"), &lines).unwrap();
    let mut gz = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    gz.write_all(lines.as_bytes()).unwrap();
    fs::write(place.path("docs.jsonl.gz"), gz.finish().unwrap()).unwrap();
    fs::write(place.path("docs.jsonl.zst"), zstd::encode_all(lines.as_bytes(), 1).unwrap()).unwrap();
    fs::write(place.path("page.txt"), &prose).unwrap();
    place
}

fn rows(text: &str) -> Vec<Value> {
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn documents_of_every_kind_are_explained() {
    let place = place_with_documents();
    let explain =
        |file: &str| place.bessemer(&["corpus", "explain", file, "--profile", "gopher-quality", "--json"]);
    let plain = explain("docs.jsonl");
    assert!(plain.err.contains("docs.jsonl:2: wanted a JSON object"), "{}", plain.err);
    assert!(plain.err.contains("docs.jsonl:4 (bare): no text"), "{}", plain.err);
    let found = rows(&plain.text());
    assert_eq!(found.len(), 2);
    assert_eq!(found[0]["document"], "docs.jsonl:1 (short)");
    assert_eq!((&found[0]["verdict"], &found[0]["reason"]), (&"drop".into(), &"gopher_short_doc".into()));
    assert_eq!(found[1]["verdict"], "keep");
    let first = &found[1]["profiles"][0]["rules"][0];
    assert_eq!(first["rule"], "nonsymbol-words");
    assert_eq!((first["value"].as_f64(), first["min"].as_f64()), (Some(180.0), Some(50.0)));
    for file in ["docs.jsonl.gz", "docs.jsonl.zst"] {
        let packed = rows(&explain(file).text());
        assert_eq!(packed[1]["profiles"], found[1]["profiles"], "{file}");
    }
    let page = rows(&explain("page.txt").text());
    assert_eq!(page[0]["profiles"], found[1]["profiles"]);

    let table =
        place.bessemer(&["corpus", "explain", "docs.jsonl", "--profile", "fineweb", "--limit", "1"]).text();
    assert!(table.starts_with("docs.jsonl:1 (short): drop (top_2_gram)"), "{table}");
    assert!(table.contains("FAIL") && table.contains("c4-lines.sentences"), "{table}");
}

#[test]
fn pages_are_explained_by_the_text_that_a_build_takes() {
    let place = place_with_documents();
    let prose = fs::read_to_string(place.path("page.txt")).unwrap();
    let page = format!("<nav><a href=/>Home</a></nav><p>{}</p><footer>&copy;</footer>", prose.trim());
    fs::write(place.path("page.html"), &page).unwrap();
    let mut writer = bessemer_web::warc::WarcWriter::new(Vec::new(), bessemer_web::warc::Compression::Gzip);
    let response = |head: &str| format!("HTTP/1.1 {head}\r\nContent-Type: text/html\r\n\r\n{page}");
    writer.response("http://example.com/gone", response("404 No").as_bytes()).unwrap();
    writer.response("http://example.com/kept", response("200 OK").as_bytes()).unwrap();
    fs::write(place.path("a.warc.gz"), writer.into_inner()).unwrap();
    let explain = |file: &str, predicate: &str| {
        let words = ["corpus", "explain", file, "--profile", "gopher-quality", "--keep", predicate, "--json"];
        place.bessemer(&words)
    };
    let saved = rows(&explain("page.html", "!contains(text, \"Home\") && !contains(text, \"<\")").text());
    assert_eq!((saved.len(), &saved[0]["verdict"]), (1, &"keep".into()), "{saved:?}");
    let archive = explain("a.warc.gz", "url == \"http://example.com/kept\"");
    let found = rows(&archive.text());
    assert_eq!((found.len(), &found[0]["verdict"]), (1, &"keep".into()), "{}", archive.err);
    assert_eq!(found[0]["profiles"][0], saved[0]["profiles"][0]);
    assert!(archive.err.contains("http://example.com/gone): http-status (404)"), "{}", archive.err);
}

#[test]
fn predicates_see_the_columns() {
    let place = place_with_documents();
    let keep =
        |predicate: &str| place.bessemer(&["corpus", "explain", "docs.jsonl", "--keep", predicate, "--json"]);
    let found = rows(&keep("lang == \"en\" && meta.score > 0.3").text());
    assert_eq!(found[0]["verdict"], "keep");
    assert_eq!(found[1]["reason"], "lang == \"en\" && meta.score > 0.3");
    keep("lagn == \"en\"").failed(USAGE, &["character 1", "did you mean \"lang\"?"]);
    keep("lang = \"en\"").failed(USAGE, &["write \"==\" for equality"]);
}

#[test]
fn profiles_are_listed_and_wrong_names_have_a_nearest() {
    let place = place_with_documents();
    let list = place.bessemer(&["corpus", "profiles"]).text();
    assert!(list.contains("fineweb ") && list.contains("gopher-repetition"), "{list}");
    assert_eq!(place.bessemer(&["corpus", "explain", "--profile", "list"]).text(), list);
    assert!(place.bessemer(&["corpus", "profiles", "--json"]).json().as_array().unwrap().len() > 10);
    let rules = place.bessemer(&["corpus", "profiles", "gopher-quality"]).text();
    assert!(rules.contains("50 to 100000") && rules.contains("gopher_enough_stop_words"), "{rules}");
    let explain = |words: &[&str]| place.bessemer(&[&["corpus", "explain"], words].concat());
    explain(&["page.txt", "--profile", "gopher-qualty"]).failed(USAGE, &["did you mean \"gopher-quality\"?"]);
    explain(&["page.txt"]).failed(USAGE, &["--profile"]);
    explain(&["--profile", "c4"]).failed(USAGE, &["needs a file"]);
    explain(&["none.txt", "--profile", "c4"]).failed(1, &["none.txt", "No such file"]);
    explain(&["page.txt", "--profile", "fineweb2-deu_Latn"]).failed(USAGE, &["language_score", "text, path"]);
    fs::write(place.path("mine.toml"), "name = \"mine\"\n[[step]]\nrule = \"chars\"\nmax = 10\n").unwrap();
    let own = explain(&["page.txt", "--profile", "mine.toml"]).text();
    assert!(own.starts_with("page.txt: drop (chars)"), "{own}");
    fs::write(place.path("mine.toml"), "name = \"mine\"\n[[step]]\nrule = \"chras\"\n").unwrap();
    explain(&["page.txt", "--profile", "mine.toml"])
        .failed(USAGE, &["mine.toml", "step 1", "did you mean \"chars\"?"]);
    let told = explain(&["page.txt", "--profile", "rpv2"]).text();
    assert!(told.starts_with("page.txt: keep") && told.contains("word-entropy"), "{told}");
    fs::write(place.path("bad.parquet"), "no parquet").unwrap();
    explain(&["bad.parquet", "--profile", "c4"]).failed(1, &["bad.parquet"]);
    fs::write(place.path("bytes.txt"), b"abc\xff").unwrap();
    explain(&["bytes.txt", "--profile", "c4"]).failed(1, &["byte 0xff at offset 3"]);
}
