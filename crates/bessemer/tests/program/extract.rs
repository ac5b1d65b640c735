//! `bessemer corpus extract`: pages of an archive with a broken member, HTML files, what is no archive.

use crate::workplace::Workplace;
use bessemer_web::warc::{Compression, WarcWriter};
use std::fs;

const TEXT: &str = "The converter blew for twenty minutes, and the iron that had been brittle came out as steel that \
    could be rolled, drawn and forged, to the astonishment of everyone who had come to see it fail.";

fn archive(place: &Workplace) {
    let mut writer = WarcWriter::new(Vec::new(), Compression::Gzip);
    let page =
        format!("<title>Steel</title><nav><a href=/>Home</a></nav><p>{TEXT}</p><p>{TEXT} caf\u{e9}</p>");
    let http = |status: &str, body: &[u8]| {
        [format!("HTTP/1.1 {status}\r\nContent-Type: text/html; charset=iso-8859-1\r\n\r\n").as_bytes(), body]
            .concat()
    };
    let latin: Vec<u8> = page.chars().map(|c| c as u8).collect();
    let first = writer.response("http://example.com/steel", &http("200 OK", &latin)).unwrap();
    let second = writer.response("http://example.com/lost", &http("200 OK", &latin)).unwrap();
    writer.response("http://example.com/gone", &http("404 Not Found", b"gone")).unwrap();
    let mut bytes = writer.into_inner();
    let middle = (first + second / 2) as usize;
    bytes[middle..middle + 20].fill(0);
    fs::write(place.path("a.warc.gz"), bytes).unwrap();
}

#[test]
fn each_page_has_its_url_charset_verdict_and_text() {
    let place = Workplace::new("");
    archive(&place);
    let done = place.bessemer(&["corpus", "extract", "a.warc.gz", "--json"]);
    assert_eq!(done.code, Some(0), "{}", done.err);
    let pages: Vec<serde_json::Value> =
        done.text().lines().map(|l| serde_json::from_str(l).unwrap()).collect();
    assert_eq!(pages.len(), 2, "{}", done.text());
    assert_eq!(pages[0]["url"], "http://example.com/steel");
    assert_eq!(pages[0]["charset"], "windows-1252");
    assert_eq!(pages[0]["title"], "Steel");
    assert_eq!(pages[0]["text"], format!("{TEXT}\n\n{TEXT} café"));
    assert_eq!((&pages[1]["verdict"], &pages[1]["detail"]), (&"http-status".into(), &"404".into()));
    assert!(done.err.contains("skipped") && done.err.contains("1 ok"), "{}", done.err);

    let done = place.bessemer(&["corpus", "extract", "a.warc.gz", "--ok"]);
    assert!(done.text().starts_with("http://example.com/steel  windows-1252  ok\n"), "{}", done.text());
    assert!(!done.text().contains("gone"), "{}", done.text());
}

#[test]
fn html_files_and_bad_ones() {
    let place = Workplace::new("");
    fs::write(place.path("p.html"), format!("<p>{TEXT}<p>{TEXT}<footer>f</footer>")).unwrap();
    let done = place.bessemer(&["corpus", "extract", "p.html", "--plain"]);
    assert_eq!(
        (done.code, done.text().matches("converter").count()),
        (Some(0), 2),
        "{}{}",
        done.text(),
        done.err
    );
    fs::write(place.path("no.warc"), "no records here").unwrap();
    for (words, wanted) in
        [(vec!["missing.warc.gz"], "missing.warc.gz"), (vec!["missing.html"], "missing.html")]
    {
        let done = place.bessemer(&[&["corpus", "extract"], &words[..]].concat());
        assert!(done.code == Some(1) && done.err.contains(wanted), "{:?} {}", done.code, done.err);
    }
    let done = place.bessemer(&["corpus", "extract", "no.warc"]);
    assert!(done.err.contains("wanted a line WARC/1.x"), "{}", done.err);
}
