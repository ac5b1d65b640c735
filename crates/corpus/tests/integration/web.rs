//! Archives of the web as a source: pages, what is none, and what is broken.

use bessemer_corpus::*;
use bessemer_corpus_config::*;
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
    add("http://example.com/paper", response("application/pdf", "200 OK", b"%PDF-1.7\n%\xe2\xe3\xcf\xd3"));
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
            let expected = [
                ("picture", "http-type"),
                ("paper", "pdf"),
                ("gone", "http-status"),
                ("empty", "extract-empty"),
                ("noise", "http-broken"),
            ]
            .map(|(page, reason)| (url(page), reason.to_string()));
            assert_eq!(dropped, expected);
            all.push(documents.into_iter().map(|document| document.text).collect::<Vec<String>>());
        }
    }
    assert!(all.windows(2).all(|pair| pair[0] == pair[1]));
}

/// A page whose markup is far longer than its text, as most of the web is.
fn heavy_page(markup_bytes: usize) -> String {
    html(9).replace("</body>", &format!("<script>{}</script></body>", "x();".repeat(markup_bytes / 4)))
}

#[test]
fn a_page_is_measured_by_its_text_not_by_its_markup() {
    let folder = TempDir::new().unwrap();
    let crawl = folder.path().join("crawl");
    fs::create_dir(&crawl).unwrap();
    let mut writer = WarcWriter::new(Vec::new(), Compression::Gzip);
    let page = heavy_page(400_000);
    writer.response("http://example.com/heavy", &response("text/html", "200 OK", page.as_bytes())).unwrap();
    let long = "A line of text that is no markup. ".repeat(10_000);
    writer.response("http://example.com/long", &response("text/plain", "200 OK", long.as_bytes())).unwrap();
    fs::write(crawl.join("a.warc.gz"), writer.into_inner()).unwrap();
    let saved = folder.path().join("saved");
    fs::create_dir(&saved).unwrap();
    fs::write(saved.join("heavy.html"), &page).unwrap();
    fs::write(saved.join("long.html"), format!("<p>{long}</p>")).unwrap();
    for input in [crawl, saved] {
        let out = folder.path().join("out");
        let summary = built(&input, &out, 1);
        let reasons: Vec<(&str, u64)> = summary
            .dropped_by_reason
            .iter()
            .map(|(reason, count)| (reason.as_str(), count.documents))
            .collect();
        // The text of the other page is above `max_bytes` itself: it is cut, and its parts are equal.
        assert_eq!((summary.kept.documents, &reasons[..]), (2, &[("duplicate", 1)][..]), "{input:?}");
        assert_eq!(summary.read.documents, 2);
        fs::remove_dir_all(&out).unwrap();
    }
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
    assert!(explain(&config).unwrap().contains(", profiles, "));
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
    config.dedup.methods =
        vec![bessemer_corpus_config::dedup::Method::Exact, bessemer_corpus_config::dedup::Method::Minhash];
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
    for method in
        [bessemer_corpus_config::dedup::Method::Substring, bessemer_corpus_config::dedup::Method::Lines]
    {
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

#[test]
fn predicates_read_the_metadata_of_the_input_and_it_goes_with_the_documents() {
    use arrow_array::{ArrayRef, Float64Array, Int64Array, RecordBatch, StringArray, StructArray};
    let folder = TempDir::new().unwrap();
    let text = |number: usize| {
        format!("Document {number} tells of furnaces, of steel and of cheap rails. ").repeat(4)
    };
    let metadata = std::cell::RefCell::new(Vec::new());
    let kept = |name: &str, predicates: &[&str]| {
        let mut config =
            CorpusConfig { path: folder.path().join(name).display().to_string(), ..CorpusConfig::default() };
        config.split.validation_fraction = 0.0;
        config.rules.keep = predicates.iter().map(|predicate| predicate.to_string()).collect();
        let (out, stop) = (TempDir::new().unwrap(), AtomicBool::new(false));
        let context = BuildContext { threads: 2, memory_budget: 1 << 20, progress: &|_| {}, stop: &stop };
        let out = out.path().join("corpus");
        let summary = build(&config, &out, &context).unwrap().summary;
        let reasons = summary.dropped_by_reason.keys();
        assert!(reasons.into_iter().all(|reason| predicates.contains(&reason.as_str())), "{name}");
        let file = fs::File::open(out.join("documents-train-00000.parquet")).unwrap();
        let batches = parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder::try_new(file).unwrap();
        let batch = batches.build().unwrap().next().unwrap().unwrap();
        let found: &StringArray = batch.column_by_name("metadata").unwrap().as_any().downcast_ref().unwrap();
        metadata.replace(found.iter().map(|found| found.map(str::to_string)).collect::<Vec<_>>());
        let reader = CorpusReader::open(&out).unwrap();
        reader.documents(Split::Train).map(|document| document.unwrap().id).collect::<Vec<String>>()
    };

    let lines = [
        serde_json::json!({"text": text(1), "meta": {"lang": "en", "score": 0.9}, "url": "http://a.com/"}),
        serde_json::json!({"meta": {"lang": "de", "score": 0.8}, "text": text(2)}),
        serde_json::json!({"text": text(3), "lang": "en", "score": 0.7, "ok": true}),
        serde_json::json!({"text": text(4), "meta": {"lang": ["en"]}}),
    ];
    let lines: String = lines.iter().map(|line| format!("{line}\n")).collect();
    fs::write(folder.path().join("a.jsonl"), lines).unwrap();
    assert_eq!(kept("a.jsonl", &["meta.lang == \"en\" && meta.score > 0.5"]), ["a.jsonl#1", "a.jsonl#3"]);
    // What predicates name goes with the documents.
    let with_score = |score: &str| Some(format!("{{\"meta.lang\":\"en\",\"meta.score\":{score}}}"));
    assert_eq!(*metadata.borrow(), [with_score("0.9"), with_score("0.7")]);
    assert_eq!(kept("a.jsonl", &["meta.ok || contains(meta.url, \"a.com\")"]), ["a.jsonl#1", "a.jsonl#3"]);
    assert_eq!(kept("a.jsonl", &["meta.lang == null", "meta.ok == null"]), ["a.jsonl#4"]);

    let texts: ArrayRef = std::sync::Arc::new(StringArray::from(vec![text(5), text(6), text(7)]));
    let langs: ArrayRef = std::sync::Arc::new(StringArray::from(vec![Some("en"), None, Some("en")]));
    let tokens: ArrayRef = std::sync::Arc::new(Int64Array::from(vec![10, 20, 30]));
    let scores: ArrayRef = std::sync::Arc::new(Float64Array::from(vec![0.1, 0.2, 0.3]));
    let inner = StructArray::try_from(vec![("score", scores)]).unwrap();
    let columns: Vec<(&str, ArrayRef)> =
        vec![("lang", langs), ("text", texts), ("tokens", tokens), ("quality", std::sync::Arc::new(inner))];
    let batch =
        RecordBatch::try_from_iter_with_nullable(columns.into_iter().map(|(n, c)| (n, c, true))).unwrap();
    let file = fs::File::create(folder.path().join("a.parquet")).unwrap();
    let mut writer = parquet::arrow::ArrowWriter::try_new(file, batch.schema(), None).unwrap();
    writer.write(&batch).unwrap();
    writer.close().unwrap();
    assert_eq!(kept("a.parquet", &["meta.lang == \"en\" && meta.tokens >= 20"]), ["a.parquet#3"]);
    assert_eq!(kept("a.parquet", &["meta.quality.score > 0.15"]), ["a.parquet#2", "a.parquet#3"]);

    let mut writer = WarcWriter::new(Vec::new(), Compression::Gzip);
    for (number, head) in
        ["Content-Language: en\r\n", "Content-Language: de\r\nX-Kind: news\r\n"].iter().enumerate()
    {
        let page = html(number as u64).replacen("<html>", "<html lang=fr>", 1);
        let block = format!("HTTP/1.1 200 OK\r\nContent-Type: text/html\r\n{head}\r\n{page}");
        writer.response(&format!("http://example.com/{number}"), block.as_bytes()).unwrap();
    }
    fs::write(folder.path().join("a.warc.gz"), writer.into_inner()).unwrap();
    let german = "`meta.content-language` == \"de\" && `meta.x-kind` != null";
    assert_eq!(kept("a.warc.gz", &[german]), ["a.warc.gz#2"]);
    assert_eq!(kept("a.warc.gz", &["meta.language == \"fr\" && meta.title == \"Page 0\""]), ["a.warc.gz#1"]);
    assert_eq!(kept("a.warc.gz", &["contains(`meta.WARC-Target-URI`, \"/1\")"]), ["a.warc.gz#2"]);
}
