//! URL filters, saved pages, evaluation, and the data card that every build writes.

use bessemer_corpus::*;
use bessemer_corpus_config::*;
use bessemer_web::warc::{Compression, WarcWriter};
use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use tempfile::TempDir;

const SITES: [&str; 4] = [
    "http://good.org/1",
    "http://www.blocked.com/2",
    "https://good.org/casino-poker/3",
    "https://good.org/4",
];

fn text(number: usize) -> String {
    format!("Page {number} tells of furnaces, of steel, and of those who made it cheap. ").repeat(6)
}

fn html(number: usize) -> String {
    format!(
        "<html><head><title>{number}</title></head><body><nav><a href='/'>Home and menu</a></nav>\
         <article><h1>Page</h1><p>{}</p></article></body></html>",
        text(number)
    )
}

fn config(path: &Path) -> CorpusConfig {
    let mut config = CorpusConfig { path: path.display().to_string(), ..CorpusConfig::default() };
    config.split.validation_fraction = 0.0;
    config
}

fn built(config: &CorpusConfig, out: &Path) -> Result<CorpusSummary> {
    let stop = AtomicBool::new(false);
    let context = BuildContext { threads: 2, memory_budget: 1 << 20, progress: &|_| {}, stop: &stop };
    Ok(build(config, out, &context)?.summary)
}

/// (reason, documents) of what was dropped.
fn dropped(summary: &CorpusSummary) -> Vec<(&str, u64)> {
    summary.dropped_by_reason.iter().map(|(reason, count)| (reason.as_str(), count.documents)).collect()
}

#[test]
fn listed_urls_are_dropped_in_every_source_that_has_them() {
    let folder = TempDir::new().unwrap();
    let mut writer = WarcWriter::new(Vec::new(), Compression::Gzip);
    for (number, url) in SITES.iter().enumerate() {
        let head = "HTTP/1.1 200 OK\r\nContent-Type: text/html; charset=utf-8\r\n\r\n";
        writer.response(url, &[head.as_bytes(), html(number).as_bytes()].concat()).unwrap();
    }
    fs::write(folder.path().join("a.warc.gz"), writer.into_inner()).unwrap();

    let line = |(number, url): (usize, &&str)| {
        serde_json::json!({"content": text(number), "link": url}).to_string() + "\n"
    };
    fs::write(folder.path().join("b.jsonl"), SITES.iter().enumerate().map(line).collect::<String>()).unwrap();

    let texts: Vec<String> = (0..4).map(text).collect();
    let column =
        |values: Vec<&str>| Arc::new(arrow_array::StringArray::from(values)) as arrow_array::ArrayRef;
    let batch = arrow_array::RecordBatch::try_from_iter([
        ("number", column(vec!["a", "b", "c", "d"])),
        ("link", column(SITES.to_vec())),
        ("content", column(texts.iter().map(String::as_str).collect())),
    ])
    .unwrap();
    let file = fs::File::create(folder.path().join("c.parquet")).unwrap();
    let mut writer = parquet::arrow::ArrowWriter::try_new(file, batch.schema(), None).unwrap();
    writer.write(&batch).unwrap();
    writer.close().unwrap();

    let list = folder.path().join("domains.txt");
    fs::write(&list, "# blocked\nblocked.com\n").unwrap();
    for (name, text) in [("a.warc.gz", "text"), ("b.jsonl", "content"), ("c.parquet", "content")] {
        let mut config = config(&folder.path().join(name));
        (config.text, config.url) = (text.into(), "link".into());
        config.urls.domain_files = vec![list.display().to_string()];
        config.urls.soft_words = vec!["casino".into(), "poker".into()];
        let out = folder.path().join(format!("{name}.out"));
        let summary = built(&config, &out).unwrap();
        assert_eq!(dropped(&summary), [("domain", 1), ("soft_blacklisted", 1)], "{name}");
        let rows = CorpusReader::open(&out).unwrap().inspect(InspectFilter::default());
        let details: Vec<String> = rows.map(|row| row.unwrap().detail.unwrap()).collect();
        assert_eq!(details, [SITES[1], SITES[2]], "{name}");
        let file = fs::File::open(out.join("documents-train-00000.parquet")).unwrap();
        let reader = parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder::try_new(file).unwrap();
        let batch = reader.build().unwrap().next().unwrap().unwrap();
        let urls: &arrow_array::StringArray =
            batch.column_by_name("url").unwrap().as_any().downcast_ref().unwrap();
        assert_eq!(urls.iter().flatten().collect::<Vec<&str>>(), [SITES[0], SITES[3]], "{name}");

        // Predicates read URLs, too; and the list is part of the corpus by what it holds.
        config.rules.keep = vec!["ends_with(url, \"/4\")".into()];
        let summary = built(&config, &out).unwrap();
        assert_eq!((summary.kept.documents, summary.dropped_by_reason["domain"].documents), (1, 1), "{name}");
    }
    let mut config = config(&folder.path().join("b.jsonl"));
    (config.text, config.url) = ("content".into(), String::new());
    config.urls.domain_files = vec![list.display().to_string()];
    let out = folder.path().join("none.out");
    let summary = built(&config, &out).unwrap();
    assert_eq!(summary.kept.documents, 4);
    assert!(summary.remarks[0].contains("corpus.url"), "{:?}", summary.remarks);
    fs::write(&list, "blocked.com\nother.com\n").unwrap();
    assert_ne!(built(&config, &out).unwrap().key, summary.key);
    fs::remove_file(&list).unwrap();
    let message = built(&config, &folder.path().join("never")).unwrap_err().to_string();
    assert!(message.contains("corpus.urls") && message.contains("domains.txt"), "{message}");
}

#[test]
fn saved_pages_become_their_main_text() {
    let folder = TempDir::new().unwrap();
    let pages = folder.path().join("pages");
    fs::create_dir_all(pages.join("site")).unwrap();
    fs::write(pages.join("one.html"), html(1)).unwrap();
    fs::write(pages.join("site/two.HTM"), html(2)).unwrap();
    fs::write(pages.join("site/empty.html"), "<html><body></body></html>").unwrap();
    fs::write(pages.join("notes.txt"), text(3)).unwrap();
    let mut config = config(&pages);
    config.source = SourceKind::Html;
    let out = folder.path().join("out");
    let summary = built(&config, &out).unwrap();
    assert_eq!((summary.source.as_str(), summary.skipped_files), ("html", 1));
    assert_eq!(dropped(&summary), [("extract-empty", 1)]);
    let documents: Vec<CorpusDocument> =
        CorpusReader::open(&out).unwrap().documents(Split::Train).map(|document| document.unwrap()).collect();
    assert_eq!(
        documents.iter().map(|d| d.path.as_str()).collect::<Vec<&str>>(),
        ["one.html", "site/two.HTM"]
    );
    for document in &documents {
        assert!(document.text.contains("tells of furnaces") && !document.text.contains("menu"));
        assert!(!document.text.contains('<'), "{}", document.text);
    }
    // One page by itself.
    config.path = pages.join("one.html").display().to_string();
    assert_eq!(built(&config, &out).unwrap().kept.documents, 1);
    config.path = folder.path().join("nothing").display().to_string();
    fs::create_dir(&config.path).unwrap();
    assert!(built(&config, &out).unwrap_err().to_string().contains(".html"));
}

#[test]
fn a_sample_is_evaluated_and_reported_and_written_for_review() {
    let folder = TempDir::new().unwrap();
    let input = folder.path().join("in.jsonl");
    let line =
        |number: usize| serde_json::json!({"text": format!("{} {number}", text(number))}).to_string() + "\n";
    fs::write(&input, (0..400).map(line).collect::<String>()).unwrap();
    let mut config = config(&input);
    let out = folder.path().join("out");
    let plain = built(&config, &out).unwrap();
    assert!(plain.evaluation.is_none());
    config.evaluate = EvaluateConfig {
        sample: 0.25,
        profiles: vec!["ziya2".into(), "gopher-quality".into()],
        review: 5,
        ..EvaluateConfig::default()
    };
    let summary = built(&config, &out).unwrap();
    assert_ne!(summary.key, plain.key);
    assert_eq!(summary.fingerprint, plain.fingerprint, "it changes no document");
    let found = summary.evaluation.as_ref().unwrap();
    // 400 draws of probability 1/4: 100 with a deviation of 8.7.
    assert!((60..=140).contains(&found.sampled.documents), "{:?}", found.sampled);
    let (reported, filtered) = (&found.profiles["ziya2"], &found.profiles["gopher-quality"]);
    assert_eq!(
        (reported.passed, reported.dropped.len()),
        (found.sampled.documents, 0),
        "ziya2 tells and drops nothing"
    );
    assert!(reported.measures.len() >= 12, "{:?}", reported.measures);
    let characters = &reported.measures[0];
    assert_eq!(characters.documents, found.sampled.documents);
    let length = text(1).len() as f64;
    assert!(characters.quantiles.iter().all(|value| (value / length - 1.0).abs() < 0.05), "{characters:?}");
    assert_eq!(filtered.passed + filtered.dropped.values().sum::<u64>(), found.sampled.documents);
    let review = fs::read_to_string(out.join(REVIEW_FILE)).unwrap();
    assert_eq!(review.lines().count(), 5);
    for line in review.lines() {
        let document: serde_json::Value = serde_json::from_str(line).unwrap();
        assert!(document["id"].as_str().unwrap().starts_with("in.jsonl#"), "{line}");
        assert!(document["text"].as_str().unwrap().contains("tells of furnaces"), "{line}");
    }
    let card = fs::read_to_string(out.join(CARD_FILE)).unwrap();
    assert!(card.contains("<h2>Evaluation</h2>") && card.contains("Profile ziya2"), "{card}");
    CorpusReader::open(&out).unwrap().verify().unwrap();
    // A bound that is not met fails the build, finished or not, and leaves the directory as it was; one that is met changes nothing.
    config.evaluate.require = vec!["`gopher-quality.passed` >= 0.999".into()];
    for target in [&out, &folder.path().join("new")] {
        let message = built(&config, target).unwrap_err().to_string();
        let wanted = "wanted `gopher-quality.passed` >= 0.999, found gopher-quality.passed = 0.000000";
        assert!(message.contains("corpus.evaluate.require") && message.contains(wanted), "{message}");
    }
    assert!(!folder.path().join("new").exists(), "nothing is visible of a build that failed");
    assert_eq!(CorpusReader::open(&out).unwrap().summary(), &summary);
    config.evaluate.require = vec!["`gopher-quality.passed` < 0.001 && kept.share > 0.9".into()];
    assert_eq!(built(&config, &out).unwrap(), summary);
    config.evaluate.require.clear();
    // What is laid out for people does not outlive a deletion.
    let id = CorpusReader::open(&out).unwrap().documents(Split::Train).next().unwrap().unwrap().id;
    delete(&out, &[id], "", &AtomicBool::new(false)).unwrap();
    assert!(!out.join(REVIEW_FILE).exists());
    config.evaluate.profiles = vec!["zyia2".into()];
    let message = check(&config).unwrap_err();
    assert!(message.contains("corpus.evaluate.profiles") && message.contains("ziya2"), "{message}");
}

#[test]
fn every_build_writes_a_card_that_names_what_was_lost_and_where() {
    let folder = TempDir::new().unwrap();
    let input = folder.path().join("in");
    for source in ["good", "poor"] {
        fs::create_dir_all(input.join(source)).unwrap();
        for number in 0..6 {
            let text = if source == "good" {
                format!("{source} {}", text(number))
            } else {
                format!("<b>{number}</b>")
            };
            fs::write(input.join(source).join(format!("{number}.txt")), text).unwrap();
        }
    }
    fs::write(input.join("good/short.txt"), "<script>alert(1)</script>").unwrap();
    for source in 0..5 {
        fs::create_dir_all(input.join(format!("junk-{source}"))).unwrap();
        for number in 0..2 {
            fs::write(input.join(format!("junk-{source}/{number}.txt")), "x".repeat(300_000)).unwrap();
        }
    }
    // Files in the root, a source each, are one row.
    for number in 10..30 {
        fs::write(input.join(format!("root-{number}.txt")), text(number)).unwrap();
    }
    let out = folder.path().join("out");
    let mut config = config(&input);
    config.clean.long = LongTexts::Drop;
    let summary = built(&config, &out).unwrap();
    assert!(summary.files.iter().any(|file| file.name == CARD_FILE));
    let card = fs::read_to_string(out.join(CARD_FILE)).unwrap();
    for wanted in [
        "junk-0, junk-1, junk-2 and 2 more lost over 90 % of their bytes, most of them as too-large (2.86 MiB in all)",
        "20 files of one document each",
        "name=viewport",
        "prefers-color-scheme:dark",
        "Lengths of the kept documents",
        "How it was built",
        concat!("bessemer ", env!("CARGO_PKG_VERSION")),
        "Kept for train",
        "Dropped: too-short",
        "<svg",
        "&lt;b&gt;",
    ] {
        assert!(card.contains(wanted), "{wanted} is missing from\n{card}");
    }
    assert!(!card.contains("<script") && !card.contains("http"));
    assert_eq!(
        card.matches("<p class=alert>").count(),
        1,
        "one for a kind of loss, none for 48 bytes of poor"
    );
    assert_eq!(summary.lengths.values().map(|count| count.documents).sum::<u64>(), summary.kept.documents);
    assert_eq!(data_card(&CorpusReader::open(&out).unwrap()).unwrap(), card);
    assert_eq!(card.matches("<svg").count(), card.matches("</svg>").count());
}

#[test]
fn a_later_part_of_a_crawl_drops_the_urls_that_an_earlier_one_kept() {
    let folder = TempDir::new().unwrap();
    let part = |name: &str, numbers: &[usize]| {
        let line = |number: &usize| {
            serde_json::json!({"text": text(*number), "url": format!("http://good.org/{}", number % 10)})
                .to_string()
                + "\n"
        };
        fs::write(folder.path().join(name), numbers.iter().map(line).collect::<String>()).unwrap();
        config(&folder.path().join(name))
    };
    let mut first = part("1.jsonl", &[1, 2, 3]);
    first.urls.urls = vec!["http://good.org/3".into()];
    built(&first, &folder.path().join("first")).unwrap();
    // Other texts under the same addresses, as a page that was crawled twice.
    let mut second = part("2.jsonl", &[11, 13, 14]);
    let summary = folder.path().join("first/corpus.json").display().to_string();
    second.urls.corpora = vec![summary.clone()];
    let found = built(&second, &folder.path().join("second")).unwrap();
    assert_eq!((found.kept.documents, dropped(&found)), (2, vec![("url", 1)]));
    second.urls.corpora = vec![folder.path().display().to_string()];
    let message = built(&second, &folder.path().join("third")).unwrap_err().to_string();
    assert!(message.contains("corpora"), "{message}");
    let mut plain = part("3.jsonl", &[5]);
    plain.urls = Default::default();
    built(&plain, &folder.path().join("plain")).unwrap();
    second.urls.corpora = vec![folder.path().join("plain/corpus.json").display().to_string()];
    let message = built(&second, &folder.path().join("third")).unwrap_err().to_string();
    assert!(message.contains("no column url"), "{message}");
}
