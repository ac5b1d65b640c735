//! Archives of the web as a source: pages, what is none, and what is broken.

use bessemer_corpus::*;
use bessemer_web::warc::{Compression, WarcWriter};
use std::fs;
use std::path::Path;
use std::sync::atomic::AtomicBool;
use tempfile::TempDir;

fn html(number: u64) -> String {
    let sentence =
        format!("Paragraph {number} tells of furnaces, of steel, and of those who made it cheap. ");
    let paragraphs: String = (0..4).map(|_| format!("<p>{}</p>", sentence.repeat(4))).collect();
    format!(
        "<html><head><title>Page {number}</title></head><body><nav><a href='/'>Home</a></nav>\
         <article><h1>Page {number}</h1>{paragraphs}</article></body></html>"
    )
}

fn response(kind: &str, status: &str, body: &[u8]) -> Vec<u8> {
    let head = format!("HTTP/1.1 {status}\r\nContent-Type: {kind}\r\n\r\n");
    [head.as_bytes(), body].concat()
}

fn archive(compression: Compression) -> Vec<u8> {
    let mut writer = WarcWriter::new(Vec::new(), compression);
    let mut add = |url: &str, block: Vec<u8>| writer.response(url, &block).unwrap();
    add("http://example.com/one", response("text/html; charset=utf-8", "200 OK", html(1).as_bytes()));
    add("http://example.com/picture", response("image/png", "200 OK", b"\x89PNG"));
    add("http://example.com/gone", response("text/html", "404 Not Found", html(2).as_bytes()));
    add(
        "http://example.com/plain",
        response("text/plain", "200 OK", "Plain text, kept. ".repeat(20).as_bytes()),
    );
    add("http://example.com/empty", response("text/html", "200 OK", b"<html><body></body></html>"));
    add("http://example.com/noise", b"no message at all".to_vec());
    let mut latin = html(3).replace("cheap", "ch\u{e9}ap").chars().map(|c| c as u8).collect::<Vec<u8>>();
    latin.push(b'\n');
    add("http://example.com/latin", response("text/html; charset=iso-8859-1", "200 OK", &latin));
    writer.into_inner()
}

fn built(input: &Path, out: &Path, threads: usize) -> CorpusSummary {
    let mut config = CorpusConfig { path: input.display().to_string(), ..CorpusConfig::default() };
    config.split.validation_fraction = 0.0;
    let stop = AtomicBool::new(false);
    let context = BuildContext { threads, memory_budget: 1 << 20, progress: &|_| {}, stop: &stop };
    build(&config, out, &context).unwrap().summary
}

#[test]
fn pages_become_documents_and_the_rest_is_told_apart() {
    let folder = TempDir::new().unwrap();
    let mut all = Vec::new();
    for (name, compression) in [("a.warc", Compression::Plain), ("a.warc.gz", Compression::Gzip)] {
        for threads in [1, 2] {
            let input = folder.path().join(name);
            fs::write(&input, archive(compression)).unwrap();
            let out = folder.path().join(format!("{name}-{threads}"));
            let summary = built(&input, &out, threads);
            assert_eq!(summary.source, "warc");
            let reader = CorpusReader::open(&out).unwrap();
            let documents: Vec<CorpusDocument> =
                reader.documents(Split::Train).map(|document| document.unwrap()).collect();
            let paths: Vec<&str> = documents.iter().map(|document| document.path.as_str()).collect();
            let url = |page: &str| format!("http://example.com/{page}");
            assert_eq!(paths, [url("one"), url("plain"), url("latin")]);
            assert!(documents[0].text.contains("tells of furnaces") && !documents[0].text.contains("Home"));
            assert!(!documents[0].text.contains('<'));
            assert!(documents[2].text.contains("ch\u{e9}ap"), "{}", documents[2].text);
            let dropped: Vec<(String, String)> = reader
                .inspect(InspectFilter::default())
                .map(|row| row.unwrap())
                .map(|row| (row.path, row.reason.unwrap()))
                .collect();
            let expected = [("gone", "http-status"), ("empty", "no-text"), ("noise", "bad-http")]
                .map(|(page, reason)| (url(page), reason.to_string()));
            assert_eq!(dropped, expected);
            all.push(documents.into_iter().map(|document| document.text).collect::<Vec<String>>());
        }
    }
    assert!(all.windows(2).all(|pair| pair[0] == pair[1]));
}

#[test]
fn a_broken_member_costs_its_record_and_no_other() {
    let folder = TempDir::new().unwrap();
    let mut bytes = Vec::new();
    let mut middle = 0..0;
    for number in 0..9 {
        let mut writer = WarcWriter::new(Vec::new(), Compression::Gzip);
        let block = response("text/html", "200 OK", html(number).as_bytes());
        writer.response(&format!("http://example.com/{number}"), &block).unwrap();
        let start = bytes.len();
        bytes.extend(writer.into_inner());
        if number == 4 {
            middle = start..bytes.len();
        }
    }
    let place = (middle.start + middle.end) / 2;
    bytes[place..place + 20].fill(0xff);
    let input = folder.path().join("crawl");
    fs::create_dir(&input).unwrap();
    fs::write(input.join("a.warc.gz"), &bytes).unwrap();
    fs::write(input.join("b.warc.gz"), &bytes[..middle.start + 30]).unwrap();
    let out = folder.path().join("out");
    let summary = built(&input, &out, 2);
    // Eight pages of the first file; the second file's four are the same texts.
    assert_eq!((summary.kept.documents, summary.dropped_by_reason["duplicate"].documents), (8, 4));
    let faults: u64 = ["broken-record", "truncated-input"]
        .iter()
        .filter_map(|reason| summary.dropped_by_reason.get(*reason))
        .map(|count| count.documents)
        .sum();
    assert_eq!(faults, 2, "{:?}", summary.dropped_by_reason);
}

#[test]
fn profiles_and_predicates_drop_under_their_own_reasons() {
    let folder = TempDir::new().unwrap();
    let input = folder.path().join("texts");
    fs::create_dir(&input).unwrap();
    let long = |seed: usize| {
        let words = ["furnace", "steel", "the", "of", "makes", "people", "cheap", "river", "stone", "with"];
        let line = |line: usize| {
            let word = |word: usize| words[(seed * 31 + line * 7 + word * word * 3 + word) % words.len()];
            (0..12).map(word).collect::<Vec<&str>>().join(" ") + "."
        };
        (0..12).map(line).collect::<Vec<String>>().join("\n")
    };
    fs::write(input.join("a.txt"), long(1)).unwrap();
    fs::write(input.join("b.txt"), "I am too small. ".repeat(10)).unwrap();
    fs::write(input.join("c.md"), long(2)).unwrap();
    let mut config = CorpusConfig { path: input.display().to_string(), ..CorpusConfig::default() };
    config.split.validation_fraction = 0.0;
    config.rules.profiles = vec!["gopher-quality".into()];
    config.rules.keep = vec!["ends_with(path, \".txt\") && bytes > 100".into()];
    let (out, stop) = (folder.path().join("out"), AtomicBool::new(false));
    let context = BuildContext { threads: 2, memory_budget: 1 << 20, progress: &|_| {}, stop: &stop };
    let summary = build(&config, &out, &context).unwrap().summary;
    let dropped: Vec<Inspected> =
        CorpusReader::open(&out).unwrap().inspect(InspectFilter::default()).map(|row| row.unwrap()).collect();
    let reasons: Vec<(&str, &str)> =
        dropped.iter().map(|row| (row.path.as_str(), row.reason.as_deref().unwrap())).collect();
    assert_eq!(reasons, [("b.txt", "gopher_short_doc"), ("c.md", config.rules.keep[0].as_str())]);
    assert!(dropped[0].detail.as_deref().unwrap().contains("40"), "{:?}", dropped[0].detail);
    assert_eq!(summary.kept.documents, 1);
    // Removal is counted by rule and source.
    let source = summary.sources.iter().find(|source| source.name == "b.txt").unwrap();
    assert_eq!(source.dropped["gopher_short_doc"].documents, 1);
    assert!(explain(&config).unwrap().contains("map profiles"));
    let card = data_card(&CorpusReader::open(&out).unwrap()).unwrap();
    assert!(card.contains("gopher_short_doc") && card.contains("I am too small."), "{card}");
    assert!(card.contains("ends_with(path, &quot;.txt&quot;) &amp;&amp; bytes &gt; 100"), "{card}");
    assert!(
        !card.contains("http:") && !card.contains("https:") && !card.contains("<script"),
        "it needs no network"
    );
    // Another rule, another corpus; the same rule, the same.
    assert!(build(&config, &out, &context).unwrap().reused);
    config.rules.keep.clear();
    assert_eq!(build(&config, &out, &context).unwrap().summary.kept.documents, 2);
}

#[test]
fn named_methods_of_deduplication_count_copies() {
    let folder = TempDir::new().unwrap();
    let input = folder.path().join("texts");
    fs::create_dir(&input).unwrap();
    let text = |number: usize| {
        (0..200).map(|word| format!("w{} ", (word * word + number * 977) % 5003)).collect::<String>()
    };
    fs::write(input.join("a.txt"), text(1)).unwrap();
    fs::write(input.join("b.txt"), text(2)).unwrap();
    fs::write(input.join("c.txt"), text(1)).unwrap();
    fs::write(input.join("d.txt"), text(1) + "and one more line at the end").unwrap();
    let mut config = CorpusConfig { path: input.display().to_string(), ..CorpusConfig::default() };
    config.split.validation_fraction = 0.0;
    config.dedup.methods = vec![bessemer_dedup::Method::Exact, bessemer_dedup::Method::Minhash];
    let (out, stop) = (folder.path().join("out"), AtomicBool::new(false));
    let context = BuildContext { threads: 2, memory_budget: 1 << 20, progress: &|_| {}, stop: &stop };
    let summary = build(&config, &out, &context).unwrap().summary;
    assert_eq!(summary.kept.documents, 2);
    assert_eq!(summary.dropped_by_reason["duplicate"].documents, 1);
    assert_eq!(summary.dropped_by_reason["near-duplicate"].documents, 1);
    let file = fs::File::open(out.join("documents-train-00000.parquet")).unwrap();
    let reader = parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder::try_new(file).unwrap();
    let batch = reader.build().unwrap().next().unwrap().unwrap();
    let copies: &arrow_array::UInt64Array =
        batch.column_by_name("copies").unwrap().as_any().downcast_ref().unwrap();
    assert_eq!(copies.values(), &[3, 1]);

    // Deletion keeps the counts, and leaves what a build with the list makes.
    let second = CorpusReader::open(&out).unwrap().documents(Split::Train).nth(1).unwrap().unwrap().id;
    delete(&out, &[second], "asked for", &stop).unwrap();
    let documents = || fs::read(out.join("documents-train-00000.parquet")).unwrap();
    let deleted = documents();
    let tombstones = fs::read(folder.path().join("out.tombstones.json")).unwrap();
    assert!(!tombstones.is_empty());
    fs::remove_dir_all(&out).unwrap();
    build(&config, &out, &context).unwrap();
    assert!(documents() == deleted);
}

#[test]
fn repeated_parts_are_cut_out_of_documents() {
    let folder = TempDir::new().unwrap();
    let input = folder.path().join("texts");
    fs::create_dir(&input).unwrap();
    let line = |from: usize| {
        (from..from + 80).map(|word| format!("w{} ", (word * word + from) % 5003)).collect::<String>() + "\n"
    };
    let repeated = line(7000);
    fs::write(input.join("a.txt"), line(1) + &repeated + &line(100)).unwrap();
    fs::write(input.join("b.txt"), line(200) + &repeated + &line(300)).unwrap();
    let (out, stop) = (folder.path().join("out"), AtomicBool::new(false));
    let context = BuildContext { threads: 2, memory_budget: 1 << 20, progress: &|_| {}, stop: &stop };
    for method in [bessemer_dedup::Method::Substring, bessemer_dedup::Method::Lines] {
        let mut config = CorpusConfig { path: input.display().to_string(), ..CorpusConfig::default() };
        config.split.validation_fraction = 0.0;
        config.dedup.methods = vec![method];
        config.dedup.lines.min_sentences = 0;
        build(&config, &out, &context).unwrap();
        let reader = CorpusReader::open(&out).unwrap();
        let texts: Vec<String> = reader.documents(Split::Train).map(|d| d.unwrap().text).collect();
        let holding = texts.iter().filter(|text| text.contains(repeated.trim())).count();
        assert_eq!((texts.len(), holding), (2, 1), "{method:?}");
    }
}
