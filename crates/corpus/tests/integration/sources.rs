//! What goes into a corpus: which files of a folder are read, as what text; what is left out, and how that is reported; what is held
//! out of small corpora.

use bessemer_corpus::*;
use bessemer_corpus_config::*;
use std::fs;
use std::io::Write;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use tempfile::TempDir;

fn config(source: SourceKind, path: &Path) -> CorpusConfig {
    CorpusConfig { source, path: path.display().to_string(), ..CorpusConfig::default() }
}

/// All text on the side of training, as it is.
fn all(source: SourceKind, path: &Path) -> CorpusConfig {
    let mut config = config(source, path);
    config.split.validation_fraction = 0.0;
    config.clean.min_bytes = 0;
    config
}

fn build_with(config: &CorpusConfig, out: &Path, threads: usize) -> Result<Built> {
    let stop = AtomicBool::new(false);
    build(config, out, &BuildContext { threads, memory_budget: 64 << 20, progress: &|_| {}, stop: &stop })
}

/// The summary, and the documents of a side as (id, text).
fn built(config: &CorpusConfig, split: Split) -> (CorpusSummary, Vec<(String, String)>) {
    let out = TempDir::new().unwrap();
    let path = out.path().join("corpus");
    let summary = build_with(config, &path, 2).unwrap().summary;
    let reader = CorpusReader::open(&path).unwrap();
    let documents = reader.documents(split).map(|document| document.unwrap());
    (summary, documents.map(|document| (document.id, document.text)).collect())
}

fn texts(config: &CorpusConfig) -> Vec<(String, String)> {
    built(config, Split::Train).1
}

/// A text of its own for each number.
fn prose(number: usize, words: usize) -> String {
    let word = |index: usize| format!("word{} ", (index * 7919 + number * 104_729) % 9973);
    let mut text: String =
        (0..words).map(|index| word(index) + if index % 9 == 8 { "\n" } else { "" }).collect();
    text.push('\n');
    text
}

#[test]
fn links_that_lead_out_of_a_folder_are_followed_only_where_that_is_asked_for() {
    let (outside, input) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    let root = input.path();
    fs::write(outside.path().join("secret.txt"), prose(1, 80)).unwrap();
    fs::create_dir_all(root.join("a")).unwrap();
    fs::write(root.join("a/own.txt"), prose(2, 80)).unwrap();
    symlink(outside.path(), root.join("a/folder")).unwrap();
    symlink(outside.path().join("secret.txt"), root.join("a/file.txt")).unwrap();
    // Links that stay below the root, one of them by way of its parent.
    symlink("own.txt", root.join("a/same.txt")).unwrap();
    symlink(Path::new("..").join(root.file_name().unwrap()).join("a"), root.join("b")).unwrap();
    let mut config = all(SourceKind::Folder, root);
    config.clean.exact_dedup = false;
    let (summary, documents) = built(&config, Split::Train);
    let ids: Vec<&str> = documents.iter().map(|(id, _)| id.as_str()).collect();
    assert_eq!(ids, ["a/own.txt", "a/same.txt"]);
    let left_out = &summary.skipped["link out of the root"];
    assert_eq!(
        (left_out.files, &left_out.examples[..]),
        (2, &["a/file.txt".to_string(), "a/folder".into()][..])
    );
    assert!(
        summary.remarks.iter().any(|remark| remark.contains("link out of the root 2 (a/file.txt)")),
        "{:?}",
        summary.remarks
    );
    config.follow_links = true;
    let ids: Vec<String> = texts(&config).into_iter().map(|(id, _)| id).collect();
    assert_eq!(ids, ["a/file.txt", "a/folder/secret.txt", "a/own.txt", "a/same.txt"]);
    // The folder that the user names may itself be a link, and JSON lines and web archives keep to their root as well.
    let link = outside.path().join("link");
    symlink(root, &link).unwrap();
    config = all(SourceKind::Folder, &link);
    assert_eq!(texts(&config).len(), 1, "equal texts once");
    fs::write(outside.path().join("far.jsonl"), "{\"text\": \"far away\"}\n").unwrap();
    fs::write(root.join("near.jsonl"), "{\"text\": \"near by\"}\n").unwrap();
    symlink(outside.path().join("far.jsonl"), root.join("a-far.jsonl")).unwrap();
    assert_eq!(texts(&all(SourceKind::Jsonl, root)), [("near.jsonl#1".to_string(), "near by".to_string())]);
}

#[test]
fn what_a_folder_leaves_out_is_counted_and_named_by_kind() {
    let input = TempDir::new().unwrap();
    let root = input.path();
    let pipe = std::process::Command::new("mkfifo").arg(root.join("pipe.txt")).status();
    assert!(pipe.is_ok_and(|status| status.success()));
    for (name, bytes) in [
        ("a.txt", prose(1, 80).as_bytes()),
        ("paper.pdf", b"%PDF-1.7"),
        ("more.PDF", b"%PDF-1.7 and more"),
        ("photo.jpeg", b"\xff\xd8"),
        ("Makefile", b"all:\n\tcc -o all all.c\n"),
        ("program", b"\x7fELF\x02\x01\x01"),
        ("core", b"\x7fELF\x02\x01\x02"),
        (".hidden.txt", b"x"),
        ("data.7z", b"7z"),
        ("notes.this is no extension", b"x"),
    ] {
        fs::write(root.join(name), bytes).unwrap();
    }
    let (summary, documents) = built(&all(SourceKind::Folder, root), Split::Train);
    let names: Vec<&str> = documents.iter().map(|(id, _)| id.as_str()).collect();
    assert_eq!(names, ["Makefile", "a.txt", "notes.this is no extension"]);
    let found: Vec<(&str, u64, u64)> =
        summary.skipped.iter().map(|(kind, found)| (kind.as_str(), found.files, found.bytes)).collect();
    assert_eq!(
        found,
        [
            (".7z", 1, 2),
            (".jpeg", 1, 2),
            (".pdf", 2, 25),
            ("hidden", 1, 0),
            ("no extension and no text", 2, 14),
            ("pipe, device or socket", 1, 0)
        ]
    );
    assert_eq!(summary.skipped_files, 8);
    let said = &summary.remarks[0];
    assert!(
        said.starts_with("7 files were not read: .pdf 2 (more.PDF), no extension and no text 2 (core)"),
        "{said}"
    );
    assert!(said.ends_with("; PDF is not read: convert it to text or HTML first"), "{said}");
    // Also where nothing at all can be read.
    for name in ["a.txt", "Makefile", "notes.this is no extension"] {
        fs::remove_file(root.join(name)).unwrap();
    }
    let out = TempDir::new().unwrap();
    let error =
        build_with(&config(SourceKind::Folder, root), &out.path().join("x"), 1).unwrap_err().to_string();
    assert!(error.contains(".pdf 2") && error.contains("corpus.extensions"), "{error}");
}

#[test]
fn pdf_is_refused_under_its_name_wherever_it_is_read_as_text() {
    let input = TempDir::new().unwrap();
    let root = input.path();
    fs::write(root.join("a.txt"), prose(1, 80)).unwrap();
    fs::write(root.join("renamed.txt"), b"%PDF-1.4\n1 0 obj").unwrap();
    fs::write(root.join("saved.html"), b"%PDF-1.4\n1 0 obj").unwrap();
    fs::write(root.join("paper.pdf"), b"%PDF-1.7\n%\xe2\xe3\xcf\xd3\n1 0 obj").unwrap();
    let (summary, documents) = built(&all(SourceKind::Folder, root), Split::Train);
    let dropped = |summary: &CorpusSummary| summary.dropped_by_reason.get("pdf").map(|count| count.documents);
    assert_eq!((documents.len(), dropped(&summary)), (1, Some(2)), "{:?}", summary.dropped_by_reason);
    let mut asked = all(SourceKind::Folder, root);
    asked.extensions = vec!["txt".into(), "pdf".into()];
    assert_eq!(dropped(&built(&asked, Split::Train).0), Some(2));
    for source in [SourceKind::File, SourceKind::Auto] {
        let out = TempDir::new().unwrap();
        let config = config(source, &root.join("paper.pdf"));
        let error = build_with(&config, &out.path().join("x"), 1).unwrap_err().to_string();
        assert!(error.contains("is a PDF file") && error.contains("convert it to text"), "{error}");
    }
}

#[test]
fn bz2_and_xz_are_read_in_folders_and_as_json_lines() {
    let input = TempDir::new().unwrap();
    let root = input.path();
    let lines: String = (0..60)
        .map(|n| format!("line {n}: the converter blows {} minutes and steel runs\n", n * 7 % 40))
        .collect();
    let bz2 = |text: &str| {
        let mut encoder = bzip2::write::BzEncoder::new(Vec::new(), bzip2::Compression::fast());
        encoder.write_all(text.as_bytes()).unwrap();
        encoder.finish().unwrap()
    };
    let (head, tail) = lines.split_at(lines.len() / 2);
    // Several streams behind each other, as `cat` makes them.
    fs::write(root.join("a.txt.bz2"), [bz2(head), bz2(tail)].concat()).unwrap();
    let xz = include_bytes!("../data/lines.txt.xz");
    fs::write(root.join("b.txt.xz"), xz).unwrap();
    fs::write(root.join("c.txt.gz"), b"this is no gzip").unwrap();
    fs::write(root.join("d.txt.xz"), &xz[..xz.len() - 40]).unwrap();
    let mut config = all(SourceKind::Folder, root);
    config.clean.exact_dedup = false;
    let (summary, documents) = built(&config, Split::Train);
    assert_eq!(documents, [("a.txt.bz2".to_string(), lines.clone()), ("b.txt.xz".to_string(), lines)]);
    // What could not be read is said, with the file.
    assert_eq!(summary.dropped_by_reason["unreadable"].documents, 2);
    let said = summary.remarks.iter().find(|remark| remark.contains("could not be read to the end")).unwrap();
    assert!(
        said.starts_with("2 inputs") && said.contains("c.txt.gz: ") && said.contains("d.txt.xz: "),
        "{said}"
    );

    let folder = root.join("lines");
    fs::create_dir(&folder).unwrap();
    fs::write(folder.join("x.jsonl.bz2"), bz2("{\"text\": \"one\"}\n{\"text\": \"two\"}\n")).unwrap();
    let ids: Vec<(String, String)> = texts(&all(SourceKind::Auto, &folder));
    assert_eq!(
        ids,
        [("x.jsonl.bz2#1".to_string(), "one".to_string()), ("x.jsonl.bz2#2".to_string(), "two".to_string())]
    );
    // A single text is cut by position, byte for byte; it is not unpacked for that.
    let error =
        build_with(&all(SourceKind::File, &root.join("b.txt.xz")), &folder.join("out"), 1).unwrap_err();
    assert!(
        error.to_string().contains("is compressed") && error.to_string().contains("unpack it"),
        "{error}"
    );
}

#[test]
fn pages_of_the_web_and_legacy_encodings_are_text_in_a_folder() {
    let input = TempDir::new().unwrap();
    let root = input.path();
    let paragraph = "Das Stahlwerk verbläst das flüssige Roheisen mit Luft, und nach zwanzig Minuten ist größtenteils \
                     Stahl daraus geworden, der in Blöcke gegossen wird. ";
    let page = format!(
        "<html><head><meta charset=\"iso-8859-1\"><title>Stahl</title><script>var x = 1;</script></head><body>\
         <nav><a href=\"/\">Start</a></nav><main><h1>Stahl</h1><p>{}</p><p>{}</p></main></body></html>",
        paragraph.repeat(3),
        paragraph.repeat(2)
    );
    let latin: Vec<u8> = page.chars().map(|c| u8::try_from(u32::from(c)).unwrap()).collect();
    fs::write(root.join("page.html"), latin).unwrap();
    let plain: Vec<u8> = paragraph.repeat(4).chars().map(|c| u8::try_from(u32::from(c)).unwrap()).collect();
    fs::write(root.join("plain.txt"), &plain).unwrap();
    let wide: Vec<u8> = "\u{feff}"
        .encode_utf16()
        .chain(paragraph.repeat(5).encode_utf16())
        .flat_map(u16::to_le_bytes)
        .collect();
    fs::write(root.join("wide.txt"), wide).unwrap();
    // A text that is UTF-8 but for one byte is damaged, not in another encoding; zero bytes are no text.
    fs::write(root.join("zbroken.txt"), [paragraph.repeat(6).as_bytes(), b"\xff"].concat()).unwrap();
    fs::write(root.join("zz.txt"), [&plain[..], b"\0"].concat()).unwrap();
    let mut config = all(SourceKind::Folder, root);
    let (summary, documents) = built(&config, Split::Train);
    let ids: Vec<&str> = documents.iter().map(|(id, _)| id.as_str()).collect();
    assert_eq!(ids, ["page.html", "plain.txt", "wide.txt"], "{:?}", summary.dropped_by_reason);
    assert!(
        documents[0].1.contains("verbläst das flüssige") && !documents[0].1.contains('<'),
        "{}",
        documents[0].1
    );
    assert_eq!(documents[1].1, paragraph.repeat(4));
    assert_eq!(documents[2].1, paragraph.repeat(5));
    assert_eq!(summary.dropped_by_reason.keys().collect::<Vec<_>>(), ["binary", "invalid-utf8"]);
    config.clean.invalid_utf8 = InvalidUtf8::Drop;
    let ids: Vec<String> = texts(&config).into_iter().map(|(id, _)| id).collect();
    assert_eq!(ids, ["page.html"], "a page says its encoding");
}

#[test]
fn parquet_pages_of_every_codec_are_read_and_ids_count_from_one_in_every_source() {
    use parquet::basic::{BrotliLevel, Compression, GzipLevel, ZstdLevel};
    let input = TempDir::new().unwrap();
    let root = input.path();
    let codecs = [
        ("brotli", Compression::BROTLI(BrotliLevel::default())),
        ("gzip", Compression::GZIP(GzipLevel::default())),
        ("lz4", Compression::LZ4),
        ("lz4raw", Compression::LZ4_RAW),
        ("snappy", Compression::SNAPPY),
        ("zstd", Compression::ZSTD(ZstdLevel::default())),
    ];
    for (index, (name, codec)) in codecs.into_iter().enumerate() {
        let texts: arrow_array::StringArray = (0..2).map(|row| Some(prose(10 * index + row, 60))).collect();
        let batch =
            arrow_array::RecordBatch::try_from_iter([("text", Arc::new(texts) as arrow_array::ArrayRef)])
                .unwrap();
        let properties =
            parquet::file::properties::WriterProperties::builder().set_compression(codec).build();
        let file = fs::File::create(root.join(format!("{name}.parquet"))).unwrap();
        let mut writer =
            parquet::arrow::ArrowWriter::try_new(file, batch.schema(), Some(properties)).unwrap();
        writer.write(&batch).unwrap();
        writer.close().unwrap();
    }
    let (summary, documents) = built(&all(SourceKind::Parquet, root), Split::Train);
    assert_eq!((summary.kept.documents, summary.dropped.documents), (12, 0), "{:?}", summary.remarks);
    let ids: Vec<&str> = documents.iter().map(|(id, _)| id.as_str()).take(4).collect();
    assert_eq!(ids, ["brotli.parquet#1", "brotli.parquet#2", "gzip.parquet#1", "gzip.parquet#2"]);

    let lines = root.join("a.jsonl");
    fs::write(&lines, "{\"text\": \"one\"}\n").unwrap();
    assert_eq!(texts(&all(SourceKind::Jsonl, &lines))[0].0, "a.jsonl#1");
    let crawl = root.join("a.wet");
    let block = "A page of plain text.\n";
    fs::write(
        &crawl,
        format!(
            "WARC/1.0\r\nWARC-Type: conversion\r\nWARC-Target-URI: http://example.com/\r\n\
             Content-Type: text/plain\r\nContent-Length: {}\r\n\r\n{block}\r\n\r\n",
            block.len()
        ),
    )
    .unwrap();
    assert_eq!(texts(&all(SourceKind::Warc, &crawl))[0].0, "a.wet#1");
    let text = root.join("a.txt");
    fs::write(&text, prose(1, 50)).unwrap();
    assert_eq!(texts(&all(SourceKind::File, &text))[0].0, "a.txt#1");
}

#[test]
fn a_pipe_in_the_place_of_a_file_is_refused_at_once() {
    let input = TempDir::new().unwrap();
    let pipe = input.path().join("pipe.jsonl");
    let made = std::process::Command::new("mkfifo").arg(&pipe).status();
    assert!(made.is_ok_and(|status| status.success()));
    let out = input.path().join("out");
    for source in [SourceKind::Auto, SourceKind::Jsonl, SourceKind::File, SourceKind::Html] {
        let error = build_with(&config(source, &pipe), &out, 1).unwrap_err().to_string();
        assert!(error.contains("pipe, device or socket"), "{source:?}: {error}");
    }
    assert!(open_compressed(&pipe).is_err_and(|error| error.to_string().contains("FIFO")));
    // As a list or an evaluation set beside the text, too.
    fs::write(input.path().join("text.txt"), prose(1, 200)).unwrap();
    let mut config = config(SourceKind::File, &input.path().join("text.txt"));
    config.rules.bad_words = pipe.display().to_string();
    let error = build_with(&config, &out, 1).unwrap_err().to_string();
    assert!(error.contains("corpus.rules.bad_words") && error.contains("wanted a regular file"), "{error}");
}

#[test]
fn small_corpora_hold_something_out_and_say_so() {
    let input = TempDir::new().unwrap();
    let root = input.path();
    // One document: its tail, cut at a line.
    fs::write(root.join("only.txt"), prose(1, 900)).unwrap();
    let config = config(SourceKind::Folder, root);
    let (summary, train) = built(&config, Split::Train);
    let (_, validation) = built(&config, Split::Validation);
    assert_eq!((train.len(), validation.len()), (1, 1));
    assert_eq!(train[0].0, validation[0].0, "a deletion by id takes both parts");
    assert_eq!(format!("{}{}", train[0].1, validation[0].1), prose(1, 900));
    let share = validation[0].1.len() as f64 / prose(1, 900).len() as f64;
    assert!(train[0].1.ends_with('\n') && (0.1..0.2).contains(&share), "{share}");
    assert!(
        summary.remarks.iter().any(|remark| remark.contains("the end of the largest")),
        "{:?}",
        summary.remarks
    );
    // Several of like size, none of which the hash holds out: one whole document. The number of threads changes nothing.
    for number in 2..=12 {
        fs::write(root.join(format!("{number}.txt")), prose(number, 900)).unwrap();
    }
    let held: Vec<usize> = (1..40)
        .filter(|seed| {
            let mut config = config.clone();
            config.split.seed = *seed as u64;
            let (summary, validation) = built(&config, Split::Validation);
            let hashed = (2..=12)
                .map(|number| format!("{number}.txt"))
                .chain(["only.txt".to_string()])
                .filter(|name| side_of(name, *seed as u64, 0.1) == Split::Validation)
                .count();
            let said = summary.remarks.iter().any(|remark| remark.contains("hashes lowest"));
            assert_eq!(said, hashed == 0, "{:?}", summary.remarks);
            assert_eq!(validation.len(), hashed.max(1));
            hashed == 0
        })
        .collect();
    assert!(held.len() > 3, "seeds that hold nothing out: {held:?}");
    let mut config = config.clone();
    config.split.seed = held[0] as u64;
    let out = TempDir::new().unwrap();
    let contents = |threads: usize| {
        let path = out.path().join(format!("threads-{threads}"));
        let built = build_with(&config, &path, threads).unwrap();
        assert!(build_with(&config, &path, threads).unwrap().reused && !path.join("spill").exists());
        built.summary
    };
    assert_eq!(contents(1), contents(4));
    // Who asks for no validation gets none.
    config.split.validation_fraction = 0.0;
    assert!(built(&config, Split::Validation).1.is_empty());
}

#[test]
fn a_folder_with_most_of_the_text_is_not_held_out_unsaid() {
    let input = TempDir::new().unwrap();
    let names: Vec<String> = (0..4).map(|number| format!("folder-{number}")).collect();
    // A seed whose hash holds out exactly one of the four folders.
    let held_by = |seed: u64| -> Vec<&String> {
        names.iter().filter(|name| side_of(name, seed, 0.1) == Split::Validation).collect()
    };
    let seed = (0..1000).find(|seed| held_by(*seed).len() == 1).unwrap();
    let large = held_by(seed)[0].clone();
    for (index, name) in names.iter().enumerate() {
        fs::create_dir(input.path().join(name)).unwrap();
        for number in 0..if *name == large { 60 } else { 10 } {
            fs::write(input.path().join(format!("{name}/{number}.txt")), prose(100 * index + number, 100))
                .unwrap();
        }
    }
    let mut config = config(SourceKind::Folder, input.path());
    config.split.seed = seed;
    let share =
        |summary: &CorpusSummary| summary.split(Split::Validation).bytes as f64 / summary.kept.bytes as f64;
    let (summary, _) = built(&config, Split::Train);
    assert!(share(&summary) < 0.25, "{}", share(&summary));
    assert_eq!(summary.split_by, "document");
    assert!(
        summary.remarks.iter().any(|remark| remark.contains("the split goes by document")),
        "{:?}",
        summary.remarks
    );
    // Who insists gets it, and is told what that means.
    config.split.by = SplitBy::Source;
    let (summary, _) = built(&config, Split::Train);
    assert!(share(&summary) > 0.6 && summary.split_by == "source");
    assert!(
        summary.remarks.iter().any(|remark| remark.contains("% of the kept text")),
        "{:?}",
        summary.remarks
    );
}

#[test]
fn the_embedded_corpus_keeps_every_task() {
    let config = CorpusConfig { source: SourceKind::Embedded, ..CorpusConfig::default() };
    let (summary, _) = built(&config, Split::Train);
    for task in ["copy", "reverse", "add", "brackets", "sort"] {
        let kept = summary
            .sources
            .iter()
            .filter(|source| source.name.starts_with(task) && source.kept.documents == 1);
        assert_eq!(kept.count(), 50, "{task}: {:?}", summary.dropped_by_reason);
    }
}

#[test]
fn only_the_documented_default_falls_back_to_the_embedded_corpus() {
    let empty = TempDir::new().unwrap();
    let out = TempDir::new().unwrap();
    let named = SourceConfig { name: "code".into(), ..SourceConfig::default() };
    // This crate's folder is in a workspace, so `auto` works here; a folder without one is an error for whoever names it.
    for config in [
        config(SourceKind::Cargo, empty.path()),
        CorpusConfig {
            sources: vec![SourceConfig {
                source: SourceKind::Cargo,
                path: empty.path().display().to_string(),
                ..named
            }],
            ..CorpusConfig::default()
        },
    ] {
        let error = build_with(&config, &out.path().join("x"), 1).unwrap_err().to_string();
        assert!(error.contains("no Cargo.toml"), "{error}");
    }
}

/// A text in UTF-16 with a byte order mark.
fn utf16(text: &str, big_endian: bool) -> Vec<u8> {
    let bytes = |unit: u16| if big_endian { unit.to_be_bytes() } else { unit.to_le_bytes() };
    "\u{feff}".encode_utf16().chain(text.encode_utf16()).flat_map(bytes).collect()
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

#[test]
fn byte_order_marks_and_utf16_lose_no_line() {
    let lines: String = (0..4).map(|n| format!("{{\"text\": \"line {n} é 雨\"}}\n")).collect();
    let marked = format!("\u{feff}{lines}").into_bytes();
    let table = "\u{feff}text\nline 0 é 雨\nline 1 é 雨\nline 2 é 雨\nline 3 é 雨\n";
    let files = [
        ("a.jsonl", marked.clone()),
        ("a.jsonl.gz", gzip(&marked)),
        // Two files with marks, put together.
        ("b.jsonl", format!("\u{feff}{}\u{feff}{}", &lines[..52], &lines[52..]).into_bytes()),
        ("little.jsonl", utf16(&lines, false)),
        ("big.jsonl", utf16(&lines, true)),
        ("big.jsonl.gz", gzip(&utf16(&lines, true))),
        ("a.csv", table.as_bytes().to_vec()),
        ("b.csv", utf16(table.trim_start_matches('\u{feff}'), false)),
    ];
    for (name, bytes) in files {
        let input = TempDir::new().unwrap();
        let path = input.path().join(name);
        fs::write(&path, bytes).unwrap();
        let mut config = all(SourceKind::Auto, &path);
        config.clean.min_alphanumeric_share = 0.0;
        let found: Vec<String> = texts(&config).into_iter().map(|(_, text)| text).collect();
        assert_eq!(found, (0..4).map(|n| format!("line {n} é 雨")).collect::<Vec<_>>(), "{name}");
    }
}

#[test]
fn long_texts_are_cut_into_parts_on_one_side_of_the_split() {
    let input = TempDir::new().unwrap();
    let books: Vec<String> =
        (0..12).map(|number| (0..60).map(|at| prose(number * 100 + at, 40) + "\n").collect()).collect();
    for (number, book) in books.iter().enumerate() {
        fs::write(input.path().join(format!("book-{number}.txt")), book).unwrap();
    }
    fs::write(input.path().join("short.txt"), prose(9_999, 80)).unwrap();
    let generated = format!("// @generated\n{}", "let x = 1;\n".repeat(3000));
    fs::write(input.path().join("long.rs"), generated).unwrap();
    let mut config = config(SourceKind::Folder, input.path());
    config.clean.max_bytes = 5_000;
    config.split.validation_fraction = 0.3;
    let (summary, train) = built(&config, Split::Train);
    let (_, validation) = built(&config, Split::Validation);
    for (number, book) in books.iter().enumerate() {
        let of = |documents: &[(String, String)]| -> Vec<(usize, String)> {
            let name = format!("book-{number}.txt#");
            let part = |(id, text): &(String, String)| {
                Some((id.strip_prefix(&name)?.parse().unwrap(), text.clone()))
            };
            documents.iter().filter_map(part).collect()
        };
        let (in_train, in_validation) = (of(&train), of(&validation));
        assert!(in_train.is_empty() != in_validation.is_empty(), "book {number}");
        let parts = [in_train, in_validation].concat();
        assert!(
            parts.len() > 2 && parts.iter().zip(1..).all(|((part, _), wanted)| *part == wanted),
            "{parts:?}"
        );
        assert!(parts.iter().all(|(_, text)| (1000..=5000).contains(&text.len())));
        assert_eq!(&parts.iter().map(|(_, text)| text.as_str()).collect::<String>(), book);
        let borders = parts[1..].iter().all(|(_, text)| text.starts_with("word"));
        assert!(borders && parts[..parts.len() - 1].iter().all(|(_, text)| text.ends_with("\n\n")));
    }
    assert!(!validation.is_empty() && train.iter().chain(&validation).any(|(id, _)| id == "short.txt"));
    assert_eq!((summary.read.documents, summary.dropped_by_reason["too-large"].documents), (14, 1));
    assert_eq!(summary.kept.documents as usize, train.len() + validation.len());
    let said = summary.remarks.iter().find(|remark| remark.contains("corpus.clean.long")).unwrap();
    assert!(said.starts_with("12 texts are longer than corpus.clean.max_bytes"), "{said}");
    // Deduplication sees parts; a deletion by the name of the book takes all of them.
    let out = TempDir::new().unwrap();
    let path = out.path().join("corpus");
    fs::write(input.path().join("copy.txt"), &books[0]).unwrap();
    config.dedup.methods = vec![bessemer_corpus_config::dedup::Method::Minhash];
    let summary = build_with(&config, &path, 3).unwrap().summary;
    assert!(summary.dropped_by_reason.keys().any(|reason| reason.contains("duplicate")), "{summary:?}");
    let stop = AtomicBool::new(false);
    let deletion = delete(&path, &["book-1.txt".to_string()], "asked for", &stop).unwrap();
    assert!(deletion.deleted > 2 && deletion.unknown.is_empty(), "{deletion:?}");
    assert_eq!(deletion.summary.read, summary.read);
    // Dropping is a choice.
    config.clean.long = LongTexts::Drop;
    let summary = build_with(&config, &path.with_extension("drop"), 2).unwrap().summary;
    assert_eq!(summary.dropped_by_reason["too-large"].documents, 14);
}

#[test]
fn the_end_of_a_book_is_held_out_and_counts_once() {
    let input = TempDir::new().unwrap();
    let book: String = (0..40).map(|at| prose(at, 40) + &format!("mail{at}@example.net\n\n")).collect();
    fs::write(input.path().join("book.txt"), &book).unwrap();
    let mut config = config(SourceKind::Folder, input.path());
    config.privacy.attribution_lines = false;
    for most in [200_000, 3_000] {
        config.clean.max_bytes = most;
        let (summary, train) = built(&config, Split::Train);
        let (_, validation) = built(&config, Split::Validation);
        let text = |side: &[(String, String)]| side.iter().map(|(_, text)| text.as_str()).collect::<String>();
        let held = text(&validation).len() as f64 / summary.kept.bytes as f64;
        assert!((0.05..0.25).contains(&held), "{held}");
        let kept = text(&train) + &text(&validation);
        assert_eq!(kept.matches("word").count(), book.matches("word").count());
        assert_eq!(summary.emails_replaced, 40, "{most}");
        assert_eq!((summary.read.documents, summary.sources[0].read.documents), (1, 1));
        assert_eq!(summary.read.bytes, book.len() as u64);
    }
}

#[test]
fn files_without_an_extension_are_read_by_their_content() {
    let input = TempDir::new().unwrap();
    let root = input.path();
    let binary: Vec<u8> = (0..4000u32).map(|n| ((n * 7919) >> 3) as u8).collect();
    let latin: Vec<u8> = "Les élèves de l'école ont passé l'été à la mer, où ils étaient déjà allés.\n"
        .repeat(9)
        .chars()
        .map(|c| u32::from(c) as u8)
        .collect();
    for (name, bytes) in [
        ("README", prose(1, 60).into_bytes()),
        ("NEWS.gz", gzip(prose(2, 60).as_bytes())),
        ("changelog.Debian.gz", gzip(prose(3, 60).as_bytes())),
        ("LISEZMOI", latin),
        ("notes", utf16(&prose(4, 60), false)),
        ("program", binary.clone()),
        ("core.gz", gzip(&binary)),
        ("data.bin", prose(5, 60).into_bytes()),
        ("rows.csv", b"a,b\n1,2\n".to_vec()),
    ] {
        fs::write(root.join(name), bytes).unwrap();
    }
    let (summary, documents) = built(&all(SourceKind::Folder, root), Split::Train);
    let names: Vec<&str> = documents.iter().map(|(id, _)| id.as_str()).collect();
    assert_eq!(names, ["LISEZMOI", "NEWS.gz", "README", "changelog.Debian.gz", "notes"]);
    assert!(documents[0].1.starts_with("Les élèves") && documents[4].1 == prose(4, 60));
    let skipped: Vec<(&str, u64)> =
        summary.skipped.iter().map(|(kind, found)| (kind.as_str(), found.files)).collect();
    assert_eq!(skipped, [(".bin", 1), (".csv", 1), ("no extension and no text", 2)]);
    assert!(summary.remarks[0].contains("corpus.source = \"jsonl\""), "{:?}", summary.remarks);
    // Who names extensions gets these.
    let mut named = all(SourceKind::Folder, root);
    named.extensions = vec!["bin".into()];
    assert_eq!(texts(&named).len(), 1);
}

#[test]
fn lists_and_tables_are_rows_and_nested_fields_are_found() {
    let input = TempDir::new().unwrap();
    let root = input.path();
    let write = |name: &str, bytes: &[u8]| {
        fs::write(root.join(name), bytes).unwrap();
        root.join(name)
    };
    let array = "[\n  {\"id\": 1, \"text\": \"one, [two]\",\n   \"score\": 3},\n  {\"id\": 2, \"text\": \"three\\n\\\"four\\\"\"}\n]";
    let table = "id,text\n1,\"one, [two]\"\n2,\"three\n\"\"four\"\"\"\n";
    let wanted = ["one, [two]", "three\n\"four\""];
    for path in [
        write("rows.json", array.as_bytes()),
        write("rows.json.gz", &gzip(array.as_bytes())),
        write("rows.csv", table.as_bytes()),
        write(
            "rows.tsv",
            table.replace("id,text", "id\ttext").replace("1,", "1\t").replace("2,", "2\t").as_bytes(),
        ),
    ] {
        let found = texts(&all(SourceKind::Auto, &path));
        assert_eq!(
            found.iter().map(|(_, text)| text.as_str()).collect::<Vec<_>>(),
            wanted,
            "{}",
            path.display()
        );
        let name = path.file_name().unwrap().to_str().unwrap();
        assert_eq!(found[1].0, format!("{name}#2"));
    }
    // One object is no list of rows, and nothing is read as one text.
    let object = write("object.json", b"{\n  \"data\": [{\"text\": \"a\"}]\n}\n");
    let out = TempDir::new().unwrap();
    let refused = |path: &Path| {
        build_with(&all(SourceKind::Auto, path), &out.path().join("c"), 1).unwrap_err().to_string()
    };
    assert!(refused(&object).contains("jq -c '.NAME[]'"), "{}", refused(&object));
    let nested = write("nested.jsonl", b"{\"doc\": {\"body\": \"a\", \"at\": {\"url\": \"http://b.example\"}}}\n{\"doc.body\": \"c\", \"doc\": {\"body\": \"d\"}}\n");
    let mut config = all(SourceKind::Auto, &nested);
    config.text = "doc.body".into();
    config.url = "doc.at.url".into();
    assert_eq!(texts(&config).into_iter().map(|(_, text)| text).collect::<Vec<_>>(), ["a", "c"]);
    config.text = "doc.title".into();
    let missing = build_with(&config, &out.path().join("d"), 1).unwrap_err().to_string();
    assert!(missing.contains("no text field \"doc.title\""), "{missing}");
}

#[test]
fn structures_of_parquet_hold_the_text_of_a_path_of_names() {
    use arrow_array::{Array, ArrayRef, RecordBatch, StringArray, StructArray};
    use arrow_schema::{DataType, Field};
    let texts_of = |values: &[Option<&str>]| -> ArrayRef { Arc::new(StringArray::from(values.to_vec())) };
    let inner = StructArray::from(vec![(
        Arc::new(Field::new("body", DataType::Utf8, true)),
        texts_of(&[Some("one"), None, Some("three")]),
    )]);
    let outer = StructArray::from(vec![(
        Arc::new(Field::new("doc", inner.data_type().clone(), false)),
        Arc::new(inner) as ArrayRef,
    )]);
    let literal = texts_of(&[Some("x"), Some("y"), Some("z")]);
    let batch =
        RecordBatch::try_from_iter([("page", Arc::new(outer) as ArrayRef), ("a.b", literal)]).unwrap();
    let input = TempDir::new().unwrap();
    let path = input.path().join("a.parquet");
    let mut writer =
        parquet::arrow::ArrowWriter::try_new(fs::File::create(&path).unwrap(), batch.schema(), None).unwrap();
    writer.write(&batch).unwrap();
    writer.close().unwrap();
    let mut config = all(SourceKind::Auto, &path);
    config.text = "page.doc.body".into();
    let (summary, found) = built(&config, Split::Train);
    assert_eq!(found.iter().map(|(_, text)| text.as_str()).collect::<Vec<_>>(), ["one", "three"]);
    assert_eq!(summary.dropped_by_reason["no-text-field"].documents, 1);
    config.text = "a.b".into();
    assert_eq!(texts(&config).len(), 3);
}

#[test]
fn a_sample_tells_what_the_rules_keep() {
    let input = TempDir::new().unwrap();
    let line = |number: usize| {
        let text = if number.is_multiple_of(4) {
            "short".into()
        } else {
            format!("{number}. ") + &prose(number, 80)
        };
        serde_json::json!({ "text": text }).to_string() + "\n"
    };
    let config = config(SourceKind::Auto, input.path());
    let stop = AtomicBool::new(false);
    let sampled = |config: &CorpusConfig| sample(config, 2, input.path(), &stop).unwrap();
    fs::write(input.path().join("a.jsonl"), (0..40).map(line).collect::<String>()).unwrap();
    let whole = sampled(&config);
    assert!(whole.is_whole && (whole.read.documents, whole.kept.documents) == (40, 30), "{whole:?}");
    assert_eq!((whole.dropped["too-short"].documents, whole.kept_of(1 << 40)), (10, whole.kept.bytes));
    for file in 0..8 {
        let lines: String = (0..4000).map(|number| line(file * 4000 + number)).collect();
        fs::write(input.path().join(format!("{file}.jsonl")), lines).unwrap();
    }
    let part = sampled(&config);
    let share = part.kept_of(1_000_000) as f64 / 1e6;
    assert!(!part.is_whole && part.read.documents < 20_000 && (0.97..1.0).contains(&share), "{part:?}");
}

#[test]
fn a_wrong_length_of_a_warc_record_is_a_remark() {
    let input = TempDir::new().unwrap();
    let mut bytes = Vec::new();
    for (number, off) in [(0, 10), (1, 0), (2, -7)] {
        let block = format!("HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n\r\n{}", prose(number, 90));
        let length = block.len() as i64 + off;
        let uri = format!("http://example.org/{number}");
        let head = format!(
            "WARC/1.0\r\nWARC-Type: response\r\nWARC-Target-URI: {uri}\r\nContent-Length: {length}\r\n\r\n"
        );
        bytes.extend(gzip(format!("{head}{block}\r\n\r\n").as_bytes()));
    }
    fs::write(input.path().join("a.warc.gz"), bytes).unwrap();
    let (summary, documents) = built(&all(SourceKind::Auto, input.path()), Split::Train);
    let found: Vec<&str> = documents.iter().map(|(_, text)| text.trim_end()).collect();
    assert_eq!(found, (0..3).map(|number| prose(number, 90).trim_end().to_string()).collect::<Vec<_>>());
    assert!(
        summary.remarks.iter().any(|remark| remark.starts_with("2 WARC records state")),
        "{:?}",
        summary.remarks
    );
}
