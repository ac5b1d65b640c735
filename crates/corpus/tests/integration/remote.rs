//! Corpora from an object store on 127.0.0.1: the same bytes as from a disk, through a store that misbehaves.

#![cfg(feature = "remote")]

use crate::mixture::Elsewhere;
use crate::store;

use arrow_array::{ArrayRef, RecordBatch, StringArray};
use bessemer_corpus::*;
use bessemer_corpus_config::*;
use bessemer_object_store::{RemoteFile, RemoteOptions, Stores};
use bessemer_web::warc::{Compression, WarcLimits, WarcReader, WarcWriter, cut};
use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use store::{Act, Store};
use tempfile::TempDir;

fn run(config: &CorpusConfig, out: &Path) -> Result<Built> {
    let stop = AtomicBool::new(false);
    build(config, out, &BuildContext { threads: 2, memory_budget: 1 << 20, progress: &|_| {}, stop: &stop })
}

fn config(path: &str, store: &Store) -> CorpusConfig {
    let mut config =
        CorpusConfig { path: path.into(), access: Access::of(store.settings()), ..CorpusConfig::default() };
    config.split.by = SplitBy::Document;
    config.clean.min_bytes = 1;
    config
}

/// Text of about `bytes` bytes that depends on `number`.
fn text(number: u64, bytes: usize) -> String {
    let mut state = number.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut text = String::new();
    while text.len() < bytes {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        text.extend([33, 38, 43, 48, 53].map(|shift| char::from(b'a' + (state >> shift) as u8 % 26)));
        text.push(' ');
    }
    text
}

fn lines(numbers: std::ops::Range<u64>, bytes: usize) -> Vec<u8> {
    numbers
        .map(|n| serde_json::json!({ "text": text(n, bytes) }).to_string() + "\n")
        .collect::<String>()
        .into_bytes()
}

fn parquet_file(numbers: std::ops::Range<u64>) -> Vec<u8> {
    let texts: StringArray = numbers.map(|n| Some(text(n, 300))).collect();
    let batch = RecordBatch::try_from_iter([("text", Arc::new(texts) as ArrayRef)]).unwrap();
    let mut writer = parquet::arrow::ArrowWriter::try_new(Vec::new(), batch.schema(), None).unwrap();
    for start in (0..batch.num_rows()).step_by(100) {
        writer.write(&batch.slice(start, 100.min(batch.num_rows() - start))).unwrap();
        writer.flush().unwrap();
    }
    writer.into_inner().unwrap()
}

/// Every file of a corpus but its summary and its card, which name the input.
fn contents(folder: &Path) -> Vec<(String, Vec<u8>)> {
    let mut found: Vec<_> = fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .map(|path| (path.file_name().unwrap().to_str().unwrap().to_string(), fs::read(&path).unwrap()))
        .filter(|(name, _)| name != SUMMARY_FILE && name != CARD_FILE)
        .collect();
    found.sort();
    found
}

#[test]
fn a_prefix_gives_the_bytes_of_the_same_folder_through_a_store_that_misbehaves() {
    let folder = TempDir::new().unwrap();
    let mut files = vec![
        ("a/2.jsonl", lines(0..40, 200)),
        ("a-b.jsonl", lines(30..60, 200)),
        // Above a block, above what is worth parts.
        ("a/1.jsonl", lines(100..110, 1 << 20)),
        ("z.jsonl.zst", zstd::encode_all(lines(200..300, 500).as_slice(), 1).unwrap()),
        (".hidden.jsonl", lines(400..410, 100)),
        ("out/of/it.jsonl", lines(500..510, 100)),
        ("notes.txt", b"no part of it".to_vec()),
    ];
    let disk = folder.path().join("input");
    for (name, data) in &files {
        let path = disk.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, data).unwrap();
    }
    let objects = files.iter().map(|(name, data)| (format!("bucket/set/{name}"), data.clone()));
    let acts = [
        Act::Status(503),
        Act::Serve,
        Act::HalfBody,
        Act::Serve,
        Act::Serve,
        Act::Serve,
        Act::Serve,
        Act::Serve,
        Act::Serve,
        Act::HalfBody,
        Act::Close,
        Act::Serve,
        Act::Status(500),
    ];
    let store = Store::start(objects, &acts);
    let (here, there) = (folder.path().join("here"), folder.path().join("there"));
    let exclude = vec!["out/of".to_string()];
    let local = CorpusConfig { exclude: exclude.clone(), ..config(disk.to_str().unwrap(), &store) };
    let remote = CorpusConfig { exclude, ..config("s3://bucket/set", &store) };
    let wanted = run(&local, &here).unwrap().summary;
    let found = run(&remote, &there).unwrap().summary;
    assert_eq!((found.fingerprint.as_str(), found.listed_files), (wanted.fingerprint.as_str(), 4));
    assert!(contents(&here) == contents(&there));
    assert!(store.state.lock().unwrap().acts.is_empty());
    // No secret is written down.
    for (name, data) in
        contents(&there).into_iter().chain([("".into(), fs::read(there.join(SUMMARY_FILE)).unwrap())])
    {
        assert!(!data.windows(9).any(|part| part == b"wJalrXUtn"), "{name}");
    }

    // A store that fails in the middle ends the build instead of leaving documents out; the next one goes on.
    let again = folder.path().join("again");
    let mut refuse = vec![Act::Serve; 8];
    refuse.push(Act::Status(403));
    store.state.lock().unwrap().acts = refuse.into();
    let message = run(&remote, &again).unwrap_err().to_string();
    assert!(message.contains("access refused") && !again.exists(), "{message}");
    run(&remote, &again).unwrap();
    assert!(contents(&here) == contents(&again));

    // Finished until an object changes: its ETag is part of the key.
    assert!(run(&remote, &there).unwrap().reused);
    let last = files.len() - 5;
    files[last].1[20] ^= 1;
    store
        .state
        .lock()
        .unwrap()
        .objects
        .insert(format!("bucket/set/{}", files[last].0), files[last].1.clone());
    assert!(!run(&remote, &there).unwrap().reused);
}

/// Other machines read an object store with settings of their own; none of them is in the plan that they are sent.
#[test]
fn a_plan_for_other_machines_names_the_address_and_no_credentials() {
    let folder = TempDir::new().unwrap();
    // Each above what is worth parts, so that there are several.
    let objects = (0..3).map(|n| (format!("bucket/set/{n}.jsonl"), lines(n * 100..n * 100 + 30, 90 << 10)));
    let store = Store::start(objects, &[]);
    let config = config("s3://bucket/set", &store);
    run(&config, &folder.path().join("here")).unwrap();
    let stop = AtomicBool::new(false);
    let context = BuildContext { threads: 2, memory_budget: 64 << 20, progress: &|_| {}, stop: &stop };
    let paths = ["s3://bucket/set".to_string()];
    let there = folder.path().join("there");
    let engine = Elsewhere { paths: &paths, access: Access::of(store.settings()) };
    build_on(&config, &there, &context, Some(&engine)).unwrap();
    assert!(contents(&folder.path().join("here")) == contents(&there));

    // A machine without settings says which are missing; an address with a signature is not sent.
    let engine = Elsewhere { paths: &paths, access: Access::default() };
    let out = folder.path().join("out");
    let message = build_on(&config, &out, &context, Some(&engine)).unwrap_err().to_string();
    assert!(message.contains("AWS_ACCESS_KEY_ID"), "{message}");
    let signed =
        CorpusConfig { path: format!("{}/bucket/set/0.jsonl?sig=1", store.address), ..config.clone() };
    store.state.lock().unwrap().signed = false;
    let message = build_on(&signed, &out, &context, Some(&engine)).unwrap_err().to_string();
    assert!(message.contains("credentials") && !message.contains("sig=1") && !out.exists(), "{message}");
}

#[test]
fn parquet_and_single_objects_are_read_by_ranges() {
    let folder = TempDir::new().unwrap();
    let file = parquet_file(0..950);
    fs::write(folder.path().join("x.parquet"), &file).unwrap();
    let store = Store::start([("bucket/x.parquet".to_string(), file)], &[Act::Serve, Act::Status(503)]);
    store.state.lock().unwrap().signed = false;
    let disk = folder.path().join("x.parquet");
    let wanted = run(&config(disk.to_str().unwrap(), &store), &folder.path().join("here")).unwrap().summary;
    for (number, url) in
        ["s3://bucket/x.parquet", &format!("{}/bucket/x.parquet?sig=1", store.address)].iter().enumerate()
    {
        let out = folder.path().join(number.to_string());
        let found = run(&config(url, &store), &out).unwrap().summary;
        assert_eq!((found.fingerprint, found.kept.documents), (wanted.fingerprint.clone(), 950));
        assert!(contents(&out) == contents(&folder.path().join("here")));
    }
}

#[test]
fn what_is_wrong_is_said_before_anything_is_written() {
    let folder = TempDir::new().unwrap();
    let store = Store::start([("bucket/a.jsonl".to_string(), lines(0..3, 100))], &[]);
    let out = folder.path().join("out");
    let fails = |config: &CorpusConfig, part: &str| {
        let message = run(config, &out).unwrap_err().to_string();
        assert!(message.contains(part), "{message}");
        assert!(!out.exists());
    };
    let stranger = CorpusConfig { access: Access::default(), ..config("s3://bucket/a.jsonl", &store) };
    fails(&stranger, "AWS_ACCESS_KEY_ID");
    let other = store.settings().into_iter().map(|(name, value)| {
        if name == "AWS_ACCESS_KEY_ID" { (name, "SOMEBODY".to_string()) } else { (name, value) }
    });
    let wrong_key = CorpusConfig { access: Access::of(other), ..config("s3://bucket/a.jsonl", &store) };
    fails(&wrong_key, "access refused");
    fails(&config("s3://bucket/nothing", &store), "no objects have this prefix");
    fails(&CorpusConfig { text: "body".into(), ..config("s3://bucket/a.jsonl", &store) }, "\"body\"");
    fails(&config("ftp://host/a.jsonl", &store), "unknown scheme");
}

#[test]
fn an_archive_is_read_in_ranges_from_a_store() {
    let mut writer = WarcWriter::new(Vec::new(), Compression::Gzip);
    for i in 0..20 {
        writer.response(&format!("http://example.com/{i}"), &vec![b'x'; 300 + i * 10]).unwrap();
    }
    let bytes = writer.into_inner();
    let store = Store::start([("bucket/file".to_string(), bytes.clone())], &[]);
    let options = RemoteOptions { block_bytes: 1 << 10, ..Access::of(store.settings()).options() };
    let stores = Arc::new(Stores::open("s3://bucket/file", options).unwrap());
    let object = stores.stat("s3://bucket/file").unwrap();
    let mut uris = Vec::new();
    for range in cut(bytes.len() as u64, 3) {
        let file = RemoteFile::new(stores.clone(), object.clone());
        let mut reader = WarcReader::new(file, WarcLimits::default()).unwrap();
        reader.restrict(range).unwrap();
        while let Some(record) = reader.next().unwrap() {
            uris.push(record.target_uri().unwrap().to_string());
        }
    }
    let wanted: Vec<String> = (0..20).map(|i| format!("http://example.com/{i}")).collect();
    assert_eq!(uris, wanted);
}
