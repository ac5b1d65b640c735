//! Input that strangers made to do harm: bombs, giants, broken members, deep nesting, bait for patterns. Each is counted under
//! its reason, the run goes on, and memory stays what it is for any input.
//!
//! The child is this test program itself, asked for the ignored test `child`: it builds and tells its peak of memory.

// A failed unwrap in a test is a failed test with a backtrace; the figures of the full sizes are printed.
#![allow(clippy::unwrap_used, clippy::print_stdout)]

use bessemer_corpus::*;
use bessemer_corpus_config::*;
use bessemer_web::warc::{Compression, WarcWriter};
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::path::Path;
use std::process::Command;
use std::sync::atomic::AtomicBool;
use tempfile::TempDir;

const CONFIG: &str = "BESSEMER_TEST_CONFIG";
const OUT: &str = "BESSEMER_TEST_OUT";
/// Bytes of rows, and what the README of the crate allows in addition for two threads.
const BUDGET: usize = 8 << 20;
const ALLOWED: u64 = (8 << 20) + (100 << 20) + 2 * (25 << 20);

#[test]
#[ignore = "the process that the other tests start"]
fn child() {
    let Ok(config) = std::env::var(CONFIG) else { return };
    let out = std::env::var(OUT).unwrap();
    let stop = AtomicBool::new(false);
    let context = BuildContext { threads: 2, memory_budget: BUDGET, progress: &|_| {}, stop: &stop };
    build(&serde_json::from_str(&config).unwrap(), Path::new(&out), &context).unwrap();
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    fs::write(format!("{out}.peak"), peak.trim().strip_suffix(" kB").unwrap()).unwrap();
}

/// Builds in a process of its own: dropped documents by reason, paths of kept ones, peak of memory in bytes.
fn built(config: &CorpusConfig) -> (BTreeMap<String, u64>, Vec<String>, u64) {
    let folder = TempDir::new().unwrap();
    let out = folder.path().join("out");
    let mut config = config.clone();
    config.split.validation_fraction = 0.0;
    let status = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "hostile::child", "--ignored", "--quiet"])
        .env(CONFIG, serde_json::to_string(&config).unwrap())
        .env(OUT, &out)
        .stdout(std::process::Stdio::null())
        .status()
        .unwrap();
    assert!(status.success(), "the build ends well: {status}");
    let peak: u64 = fs::read_to_string(folder.path().join("out.peak")).unwrap().parse().unwrap();
    let reader = CorpusReader::open(&out).unwrap();
    let summary = reader.summary();
    assert_eq!(summary.read.documents, summary.kept.documents + summary.dropped.documents);
    let dropped = summary.dropped_by_reason.iter().map(|(reason, count)| (reason.clone(), count.documents));
    let kept = reader.documents(Split::Train).map(|document| document.unwrap().id).collect();
    (dropped.collect(), kept, peak << 10)
}

fn config(path: &Path) -> CorpusConfig {
    CorpusConfig { path: path.display().to_string(), ..CorpusConfig::default() }
}

fn counts(list: &[(&str, u64)]) -> BTreeMap<String, u64> {
    list.iter().map(|(reason, count)| (reason.to_string(), *count)).collect()
}

/// A line of JSON that is kept.
fn line(number: u64) -> String {
    let text = format!("Document {number} of those that harm nobody. ").repeat(5);
    format!("{}\n", serde_json::json!({ "text": text }))
}

/// A text of `mebibytes` of one letter.
fn giant(out: &mut impl Write, mebibytes: u64) {
    let block = vec![b'x'; 1 << 20];
    (0..mebibytes).for_each(|_| out.write_all(&block).unwrap());
}

/// JSON lines: a giant line plain, in gzip and in zstd; a broken member between good ones; bytes that are no UTF-8; deep nesting.
fn json_lines(folder: &Path, mebibytes: u64) {
    let mut plain = BufWriter::new(File::create(folder.join("a-giant.jsonl")).unwrap());
    write!(plain, "{}{{\"text\": \"", line(1)).unwrap();
    giant(&mut plain, mebibytes);
    write!(plain, "\"}}\n{}", line(2)).unwrap();
    plain.flush().unwrap();

    let file = BufWriter::new(File::create(folder.join("b-bomb.jsonl.gz")).unwrap());
    let mut gzip = flate2::write::GzEncoder::new(file, flate2::Compression::new(9));
    gzip.write_all(line(3).as_bytes()).unwrap();
    giant(&mut gzip, mebibytes);
    gzip.finish().unwrap().flush().unwrap();

    let file = BufWriter::new(File::create(folder.join("c-bomb.jsonl.zst")).unwrap());
    let mut zstd = zstd::Encoder::new(file, 3).unwrap();
    zstd.write_all(line(4).as_bytes()).unwrap();
    giant(&mut zstd, mebibytes);
    zstd.finish().unwrap().flush().unwrap();

    let member = |number: u64| {
        let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::new(6));
        gzip.write_all(line(number).as_bytes()).unwrap();
        gzip.finish().unwrap()
    };
    let mut broken = member(6);
    let middle = broken.len() / 2;
    broken[middle..].iter_mut().for_each(|byte| *byte ^= 0x5a);
    fs::write(folder.join("d-broken.jsonl.gz"), [member(5), broken, member(7)].concat()).unwrap();

    let mut bytes = line(8).into_bytes();
    bytes.extend(b"{\"text\": \"caf\xe9 \xff\xfe\"}\n");
    bytes.extend(format!("{{\"text\": {}\n", "[".repeat(100_000)).bytes());
    bytes.extend(format!("{}1{}\n", "{\"a\":".repeat(100_000), "}".repeat(100_000)).bytes());
    bytes.extend(b"{\"text\": \"\\ud800 a lone surrogate\"}\n\0\0\0\n");
    bytes.extend(line(9).bytes());
    fs::write(folder.join("e-bytes.jsonl"), bytes).unwrap();
}

fn json_lines_are_survived(mebibytes: u64) {
    let folder = TempDir::new().unwrap();
    json_lines(folder.path(), mebibytes);
    let (dropped, kept, peak) = built(&config(folder.path()));
    let expected = [
        ("bad-json", 3),
        ("decompression-bomb", 2),
        ("long-json-line", 1),
        // Objects within objects are JSON, however deep.
        ("no-text-field", 1),
        // A lone surrogate costs a character, not the line.
        ("too-short", 1),
        ("truncated-input", 1),
    ];
    assert_eq!(dropped, counts(&expected));
    let names = ["a-giant.jsonl#1", "a-giant.jsonl#3", "b-bomb.jsonl.gz#1", "c-bomb.jsonl.zst#1"];
    assert_eq!(kept[..4], names);
    assert_eq!(kept[4..], ["d-broken.jsonl.gz#1", "e-bytes.jsonl#1", "e-bytes.jsonl#7"]);
    println!("JSON lines, giants of {mebibytes} MiB: peak {} MiB", peak >> 20);
    assert!(peak < ALLOWED, "{} MiB, at most {}", peak >> 20, ALLOWED >> 20);
}

/// A response with a page.
fn response(kind: &str, body: &[u8]) -> Vec<u8> {
    [format!("HTTP/1.1 200 OK\r\nContent-Type: {kind}\r\n\r\n").as_bytes(), body].concat()
}

fn page(number: u64) -> String {
    let paragraph =
        format!("<p>{}</p>", format!("Page {number} tells of steel and of those who made it. ").repeat(6));
    format!("<html><body><article>{}</article></body></html>", paragraph.repeat(3))
}

fn archives_are_survived(mebibytes: u64) {
    let folder = TempDir::new().unwrap();
    let (mut good, mut expected) = (Vec::new(), BTreeMap::new());
    for (name, compression) in
        [("a.warc", Compression::Plain), ("b.warc.gz", Compression::Gzip), ("c.warc.zst", Compression::Zstd)]
    {
        let mut archive = Vec::new();
        let mut member = |url: &str, block: &[u8], harm: fn(&mut Vec<u8>)| {
            let mut writer = WarcWriter::new(Vec::new(), compression);
            writer.response(url, block).unwrap();
            let mut bytes = writer.into_inner();
            harm(&mut bytes);
            archive.extend(bytes);
        };
        let none: fn(&mut Vec<u8>) = |_| {};
        member("http://example.com/1", &response("text/html", page(1).as_bytes()), none);
        for open in ["<div>", "<b><i>", "<table><tr><td>", "<ul><li>"] {
            let deep = open.repeat(100_000 / open.matches('<').count());
            member("http://example.com/deep", &response("text/html", deep.as_bytes()), none);
        }
        let mut giant_block = response("text/plain", b"");
        giant(&mut giant_block, mebibytes);
        member("http://example.com/giant", &giant_block, none);
        let latin = response(
            "text/html; charset=utf-8",
            b"<p>caf\xe9 \xff\xfe\x80 and more of it, for it is long enough.".repeat(9).as_slice(),
        );
        member("http://example.com/latin", &latin, none);
        if compression != Compression::Plain {
            let harm: fn(&mut Vec<u8>) = |bytes| {
                let middle = bytes.len() / 2;
                bytes[middle..].iter_mut().for_each(|byte| *byte ^= 0x5a);
            };
            member("http://example.com/broken", &response("text/html", page(2).as_bytes()), harm);
        }
        member("http://example.com/3", &response("text/html", page(3).as_bytes()), none);
        fs::write(folder.path().join(name), archive).unwrap();
        good.extend([format!("{name}#1")]);
        *expected.entry("extract-too-deep".to_string()).or_insert(0) += 4;
    }
    let mut config = config(folder.path());
    config.clean.exact_dedup = false;
    let (dropped, kept, peak) = built(&config);
    println!("archives, giants of {mebibytes} MiB: {dropped:?}, peak {} MiB", peak >> 20);
    for (reason, count) in expected {
        assert_eq!(dropped.get(&reason), Some(&count), "{reason}: {dropped:?}");
    }
    assert!(dropped["broken-record"] + dropped.get("too-large").unwrap_or(&0) >= 5, "{dropped:?}");
    assert_eq!(kept.len(), 9, "first, latin and last of each archive: {kept:?}");
    assert!(good.iter().all(|id| kept.contains(id)));
    assert!(peak < ALLOWED, "{} MiB, at most {}", peak >> 20, ALLOWED >> 20);
}

/// A Parquet file of these texts, in zstd.
fn parquet_of(path: &Path, texts: Vec<String>) {
    let texts: arrow_array::ArrayRef = std::sync::Arc::new(arrow_array::StringArray::from(texts));
    let batch = arrow_array::RecordBatch::try_from_iter([("text", texts)]).unwrap();
    let codec = parquet::basic::Compression::ZSTD(parquet::basic::ZstdLevel::default());
    let properties = parquet::file::properties::WriterProperties::builder()
        .set_compression(codec)
        .set_dictionary_enabled(false)
        .set_statistics_enabled(parquet::file::properties::EnabledStatistics::None)
        .build();
    let file = File::create(path).unwrap();
    let mut writer = parquet::arrow::ArrowWriter::try_new(file, batch.schema(), Some(properties)).unwrap();
    writer.write(&batch).unwrap();
    writer.close().unwrap();
}

#[test]
fn hostile_parquet_is_refused_before_it_costs_anything() {
    let folder = TempDir::new().unwrap();
    let text = |number: u64| format!("Document {number} of those that harm nobody. ").repeat(5);
    parquet_of(&folder.path().join("a-good.parquet"), vec![text(1), text(2)]);
    // One value of 257 MiB in a file of some kilobytes.
    parquet_of(&folder.path().join("b-giant.parquet"), vec!["x".repeat(257 << 20)]);
    assert!(fs::metadata(folder.path().join("b-giant.parquet")).unwrap().len() < 100_000);
    // A footer of 107 bytes that states 15 lists of 2^31 - 1 booleans, which take no bytes.
    let footer = [[0xf9, 0xf1, 0xff, 0xff, 0xff, 0xff, 0x07].repeat(15), vec![0, 0]].concat();
    let crafted = [b"PAR1", &footer[..], &(footer.len() as u32).to_le_bytes(), b"PAR1"].concat();
    assert_eq!(crafted.len(), 119);
    fs::write(folder.path().join("c-footer.parquet"), crafted).unwrap();
    let begun = std::time::Instant::now();
    let (dropped, kept, peak) = built(&config(folder.path()));
    println!("Parquet: {dropped:?}, {:?}, peak {} MiB", begun.elapsed(), peak >> 20);
    assert_eq!(dropped, counts(&[("unreadable", 2)]));
    assert_eq!(kept, ["a-good.parquet#1", "a-good.parquet#2"]);
    assert!(begun.elapsed() < std::time::Duration::from_secs(20), "{:?}", begun.elapsed());
    assert!(peak < ALLOWED, "{} MiB, at most {}", peak >> 20, ALLOWED >> 20);
}

/// Texts on which backtracking patterns take forever, and on which quadratic searches take long.
fn bait(bytes: usize) -> Vec<(&'static str, String)> {
    let fill = |piece: &str| piece.repeat(bytes / piece.len());
    vec![
        ("a", fill("a")),
        ("spaces", fill(" ") + "x"),
        ("at", fill("a@")),
        ("local", fill("a.") + "@"),
        ("domain", "x@".to_string() + &fill("a-") + "!"),
        ("dots", fill("1.")),
        ("ip", fill("8.8.8.")),
        ("colons", fill("1:")),
        ("digits", fill("4111 1111 ")),
        ("phone", fill("+1 (")),
        ("brackets", fill("[[{(<")),
        ("ellipsis", fill("...")),
        ("lines", fill("- \n")),
        ("bullets", fill("\u{2022}\n\n")),
        ("urls", fill("http://a.")),
        ("sentence", fill("A. ")),
        ("quotes", fill("\"'\u{201d}")),
        ("marks", fill("e\u{301}\u{301}")),
        ("wide", fill("\u{1f600}\u{200d}")),
        ("secret", fill("api_key=")),
        ("pem", fill("-----BEGIN PRIVATE KEY-----")),
        ("copyright", fill("// Copyright (c) by (c) ")),
        ("nested", fill("/* /* ")),
        ("numbers", fill("0x1,-1e")),
    ]
}

fn bait_is_survived(bytes: usize) {
    let folder = TempDir::new().unwrap();
    let bait = bait(bytes);
    for (name, text) in &bait {
        fs::write(folder.path().join(format!("{name}.txt")), text).unwrap();
        fs::write(folder.path().join(format!("{name}.rs")), text).unwrap();
    }
    let good = "This is a text of the kind that people write when they have something to say, and it harms nobody at all.\n";
    fs::write(folder.path().join("good.txt"), good.repeat(3)).unwrap();
    let mut all = config(folder.path());
    all.clean.max_bytes = bytes as u64 + 10;
    all.privacy.ipv6 = true;
    all.privacy.phones = serde_json::from_str("\"international\"").unwrap();
    (all.privacy.cards, all.privacy.ibans, all.privacy.secrets) = (true, true, true);
    for profile in bessemer_rules::Profile::names() {
        let begun = std::time::Instant::now();
        let mut config = all.clone();
        config.rules.profiles = vec![profile.into()];
        // The text that is kept, so that a build of nothing but bait does not count as empty.
        config.source = SourceKind::Folder;
        let stop = AtomicBool::new(false);
        let context = BuildContext { threads: 2, memory_budget: BUDGET, progress: &|_| {}, stop: &stop };
        let out = folder.path().join("out.partial");
        match build(&config, &out, &context) {
            Ok(built) => assert_eq!(built.summary.read.documents, 2 * bait.len() as u64 + 1),
            // Where a profile drops the good text too, all that was read is in the message.
            Err(Error::Empty { seen, .. }) => assert_eq!(seen, 2 * bait.len() as u64 + 1),
            Err(error) => panic!("{profile}: {error}"),
        }
        println!("bait of {bytes} bytes, {profile}: {:?}", begun.elapsed());
        let _ = fs::remove_dir_all(&out);
    }
}

#[test]
fn hostile_json_lines_are_counted_and_passed_over() {
    json_lines_are_survived(70);
}

#[test]
fn hostile_archives_are_counted_and_passed_over() {
    archives_are_survived(20);
}

#[test]
fn no_text_holds_up_any_profile() {
    bait_is_survived(4 << 10);
}

#[test]
#[ignore = "a minute and 2 GB of disk: giants of 1 GiB, bait of 200 kB"]
fn hostile_input_of_full_size() {
    json_lines_are_survived(1 << 10);
    archives_are_survived(1 << 10);
    bait_is_survived(200_000);
}
