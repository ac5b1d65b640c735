//! The corpus crate from outside: sources, determinism, resumption, hostile input.

use bessemer_corpus::*;
use bessemer_corpus_config::*;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use tempfile::TempDir;

fn config(source: SourceKind, path: &Path) -> CorpusConfig {
    CorpusConfig { source, path: path.display().to_string(), ..CorpusConfig::default() }
}

fn build_with(config: &CorpusConfig, out: &Path, threads: usize, memory_budget: usize) -> Result<Built> {
    let stop = AtomicBool::new(false);
    build(config, out, &BuildContext { threads, memory_budget, progress: &|_| {}, stop: &stop })
}

fn built(config: &CorpusConfig, out: &Path) -> Built {
    build_with(config, out, 2, 64 << 20).unwrap()
}

/// All files of a directory: (name, bytes).
fn contents(folder: &Path) -> Vec<(String, Vec<u8>)> {
    let mut files: Vec<PathBuf> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    let name = |path: &Path| path.file_name().unwrap().to_str().unwrap().to_string();
    files.iter().map(|path| (name(path), fs::read(path).unwrap())).collect()
}

fn texts(folder: &Path, split: Split) -> Vec<(String, String)> {
    let reader = CorpusReader::open(folder).unwrap();
    reader
        .documents(split)
        .map(|document| document.unwrap())
        .map(|document| (document.id, document.text))
        .collect()
}

fn dropped(folder: &Path) -> Vec<(String, String)> {
    let reader = CorpusReader::open(folder).unwrap();
    let rows = reader.inspect(InspectFilter::default()).map(|row| row.unwrap());
    rows.map(|row| (row.id, row.reason.unwrap())).collect()
}

/// A pseudo-random sentence of its own for each number.
fn prose(number: usize, words: usize) -> String {
    const WORDS: &[&str] =
        &["steel", "model", "token", "matrix", "kernel", "learns", "reads", "the", "a", "of"];
    let mut state = number as u64 + 1;
    let mut text = format!("Document {number}.\n");
    for _ in 0..words {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        text.push_str(WORDS[(state >> 33) as usize % WORDS.len()]);
        text.push(if state.is_multiple_of(11) { '\n' } else { ' ' });
    }
    text
}

/// A folder of many sources with duplicates, addresses and every kind of fault.
fn many_files(folder: &Path) {
    for source in 0..12 {
        let path = folder.join(format!("source-{source:02}"));
        fs::create_dir_all(&path).unwrap();
        for number in 0..40 {
            // Every eighth text occurs in all sources.
            let text = prose(if number % 8 == 0 { number } else { 1000 * source + number }, 400);
            let text = format!("{text} mail{number}@example.com 142.250.4.{number}\n");
            fs::write(path.join(format!("{number:03}.txt")), text).unwrap();
        }
        fs::write(path.join("binary.txt"), b"abc\0def").unwrap();
        fs::write(path.join("latin.txt"), [prose(7, 50).as_bytes(), b"\xe9\xff"].concat()).unwrap();
        fs::write(path.join("large.txt"), "x".repeat(300_000)).unwrap();
        fs::write(path.join("short.txt"), "short").unwrap();
    }
}

#[test]
fn threads_memory_and_spilling_do_not_change_a_byte() {
    let (input, out) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    many_files(input.path());
    let mut config = config(SourceKind::Folder, input.path());
    config.clean.invalid_utf8 = InvalidUtf8::Drop;
    config.clean.long = LongTexts::Drop;
    let mut expected: Option<Vec<(String, Vec<u8>)>> = None;
    for (name, threads, memory) in [
        ("one", 1, 64 << 20),
        ("two", 2, 64 << 20),
        ("five", 5, 64 << 20),
        ("tiny", 2, 10_000),
        ("none", 1, 0),
    ] {
        let path = out.path().join(name);
        let built = build_with(&config, &path, threads, memory).unwrap();
        assert_eq!(built.spilled_bytes > 0, memory < 64 << 20, "{name}");
        let found = contents(&path);
        match &expected {
            None => expected = Some(found),
            Some(expected) => assert!(*expected == found, "{name} differs"),
        }
    }
    let summary = CorpusReader::open(&out.path().join("one")).unwrap().summary().clone();
    assert_eq!(summary.read.documents, 12 * 44);
    assert_eq!(summary.read.documents, summary.kept.documents + summary.dropped.documents);
    let reasons: Vec<(&str, u64)> =
        summary.dropped_by_reason.iter().map(|(reason, count)| (reason.as_str(), count.documents)).collect();
    assert_eq!(
        reasons,
        [("binary", 12), ("duplicate", 55), ("invalid-utf8", 12), ("too-large", 12), ("too-short", 12)]
    );
    assert_eq!(summary.emails_replaced, summary.kept.documents);
    assert_eq!(summary.ips_replaced, summary.kept.documents);
}

#[test]
fn no_source_is_on_both_sides_and_no_validation_text_is_trained_on() {
    let (input, out) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    many_files(input.path());
    let mut config = config(SourceKind::Folder, input.path());
    config.split.validation = vec!["source-00".into(), "source-03".into()];
    config.split.validation_fraction = 0.3;
    let out = out.path().join("corpus");
    let summary = built(&config, &out).summary;
    assert_eq!(summary.split_by, "source");
    let (train, validation) = (texts(&out, Split::Train), texts(&out, Split::Validation));
    assert!(!train.is_empty() && !validation.is_empty());
    let source = |id: &str| id.split('/').next().unwrap().to_string();
    for (id, text) in &validation {
        assert!(train.iter().all(|(other, _)| source(other) != source(id)), "{id}");
        assert!(train.iter().all(|(_, other)| other != text), "{id}");
    }
    assert!(validation.iter().any(|(id, _)| source(id) == "source-00"));
    // The shared texts were first seen in validation, and yet the train copy is the one that is kept.
    let shared = |id: &str| id.ends_with("/000.txt");
    assert_eq!(train.iter().filter(|(id, _)| shared(id)).count(), 1);
    assert_eq!(validation.iter().filter(|(id, _)| shared(id)).count(), 0);
    for source in &summary.sources {
        assert!(source.train.documents == 0 || source.validation.documents == 0, "{}", source.name);
    }
}

#[test]
fn a_finished_corpus_is_reused_until_input_or_configuration_changes() {
    let (input, out) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    many_files(input.path());
    let mut config = config(SourceKind::Folder, input.path());
    let out = out.path().join("corpus");
    let first = built(&config, &out);
    assert!(!first.reused);
    assert!(built(&config, &out).reused);
    config.clean.min_bytes = 1;
    let other = built(&config, &out);
    assert!(!other.reused && other.summary.kept.documents == first.summary.kept.documents + 1);
    fs::write(input.path().join("source-00/new.txt"), prose(99_999, 100)).unwrap();
    let third = built(&config, &out);
    assert!(!third.reused && third.summary.kept.documents == other.summary.kept.documents + 1);
    // A file that was cut short afterwards is noticed and made again.
    fs::write(out.join("dropped.parquet"), b"PAR1").unwrap();
    assert!(matches!(CorpusReader::open(&out), Err(Error::Damaged { .. })));
    assert!(!built(&config, &out).reused);
    CorpusReader::open(&out).unwrap().verify().unwrap();
}

#[test]
fn a_stopped_or_killed_build_leaves_nothing_and_the_next_gives_the_same_bytes() {
    let (input, out) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    many_files(input.path());
    let config = config(SourceKind::Folder, input.path());
    let straight = out.path().join("straight");
    built(&config, &straight);
    for threads in [1, 2] {
        for limit in [0, 1, 3, 6] {
            let path = out.path().join("stopped");
            let stop = AtomicBool::new(limit == 0);
            let ticks = AtomicUsize::new(0);
            let progress = |_: Progress| {
                if ticks.fetch_add(1, Ordering::Relaxed) + 1 >= limit {
                    stop.store(true, Ordering::Relaxed);
                }
            };
            let context = BuildContext { threads, memory_budget: 50_000, progress: &progress, stop: &stop };
            let result = build(&config, &path, &context);
            assert!(matches!(result, Err(Error::Stopped)), "{limit}: {result:?}");
            assert_eq!(fs::read_dir(out.path()).unwrap().count(), 1, "only the straight corpus is there");
        }
    }
    // What a kill leaves: a partial directory with half a file, and an old corpus moved aside.
    let path = out.path().join("killed");
    for name in ["killed.partial", "killed.old.partial"] {
        fs::create_dir_all(out.path().join(name).join("spill")).unwrap();
        fs::write(out.path().join(name).join("documents-train-00000.parquet"), b"PAR1half").unwrap();
    }
    built(&config, &path);
    assert!(contents(&path) == contents(&straight));
    assert_eq!(fs::read_dir(out.path()).unwrap().count(), 2);
}

#[test]
fn a_directory_that_is_no_corpus_is_left_alone_and_a_busy_one_refused() {
    let (input, out) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    fs::write(input.path().join("a.txt"), prose(1, 100)).unwrap();
    let config = config(SourceKind::Folder, input.path());
    let path = out.path().join("thesis");
    fs::create_dir(&path).unwrap();
    fs::write(path.join("chapter.txt"), "dear").unwrap();
    let error = build_with(&config, &path, 1, 1 << 20).unwrap_err();
    assert!(matches!(error, Error::NotACorpus { .. }), "{error}");
    assert_eq!(fs::read(path.join("chapter.txt")).unwrap(), b"dear");

    let path = out.path().join("busy");
    let (inner, outer) = (path.clone(), path.clone());
    let refused = AtomicUsize::new(0);
    let progress = |_: Progress| {
        if let Err(Error::Busy { .. }) = build_with(&config, &inner, 1, 1 << 20) {
            refused.fetch_add(1, Ordering::Relaxed);
        }
    };
    let stop = AtomicBool::new(false);
    let context = BuildContext { threads: 1, memory_budget: 1 << 20, progress: &progress, stop: &stop };
    build(&config, &outer, &context).unwrap();
    assert!(refused.load(Ordering::Relaxed) > 0);
}

#[test]
fn an_empty_corpus_says_which_rule_dropped_what() {
    let (input, out) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    fs::write(input.path().join("a.txt"), "tiny").unwrap();
    fs::write(input.path().join("b.txt"), b"\0\0\0").unwrap();
    fs::write(input.path().join("c.jpeg"), b"skipped").unwrap();
    let config = config(SourceKind::Folder, input.path());
    // What a killed build left goes too: of an empty result nothing stays.
    fs::create_dir(out.path().join("x.parts.partial")).unwrap();
    let message = build_with(&config, &out.path().join("x"), 1, 1 << 20).unwrap_err().to_string();
    for part in ["2 documents", "binary 1", "too-short 1", "corpus.clean"] {
        assert!(message.contains(part), "{message}");
    }
    assert_eq!(fs::read_dir(out.path()).unwrap().count(), 0);
    fs::remove_file(input.path().join("a.txt")).unwrap();
    fs::remove_file(input.path().join("b.txt")).unwrap();
    let message = build_with(&config, &out.path().join("x"), 1, 1 << 20).unwrap_err().to_string();
    assert!(message.contains("1 file was not read: .jpeg 1 (c.jpeg)"), "{message}");
}

#[test]
fn missing_and_mistaken_paths_are_named() {
    let out = TempDir::new().unwrap();
    let say = |source, path: &Path| build_with(&config(source, path), &out.path().join("x"), 1, 1 << 20);
    let absent = out.path().join("absent");
    for source in
        [SourceKind::Folder, SourceKind::File, SourceKind::Jsonl, SourceKind::Parquet, SourceKind::Auto]
    {
        let message = say(source, &absent).unwrap_err().to_string();
        assert!(message.contains("absent") && message.contains("corpus.path"), "{message}");
    }
    let file = out.path().join("file.txt");
    fs::write(&file, "text").unwrap();
    let message = say(SourceKind::Folder, &file).unwrap_err().to_string();
    assert!(message.contains("is a file"), "{message}");
    let message = say(SourceKind::File, out.path()).unwrap_err().to_string();
    assert!(message.contains("is a folder"), "{message}");
    let message = say(SourceKind::Jsonl, out.path()).unwrap_err().to_string();
    assert!(message.contains(".jsonl"), "{message}");
    let message = say(SourceKind::Cargo, out.path()).unwrap_err().to_string();
    assert!(message.contains("no Cargo.toml"), "{message}");
}

#[test]
fn loops_pipes_dangling_links_and_hidden_files_do_no_harm() {
    use std::os::unix::fs::symlink;
    let (input, out) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    let root = input.path();
    fs::create_dir_all(root.join("a/deep")).unwrap();
    fs::write(root.join("a/deep/text.txt"), prose(1, 100)).unwrap();
    symlink(root, root.join("a/deep/loop")).unwrap();
    symlink(root.join("a"), root.join("b")).unwrap();
    symlink(root.join("nowhere"), root.join("dangling.txt")).unwrap();
    symlink(root.join("circle2.txt"), root.join("circle1.txt")).unwrap();
    symlink(root.join("circle1.txt"), root.join("circle2.txt")).unwrap();
    fs::write(root.join(".hidden.txt"), prose(2, 100)).unwrap();
    let pipe = std::process::Command::new("mkfifo").arg(root.join("pipe.txt")).status();
    assert!(pipe.is_ok_and(|status| status.success()));
    let mut config = config(SourceKind::Folder, root);
    config.exclude = vec!["skipped".into()];
    config.split.validation_fraction = 0.0;
    fs::create_dir(root.join("skipped")).unwrap();
    fs::write(root.join("skipped/text.txt"), prose(3, 100)).unwrap();
    let path = out.path().join("x");
    let summary = built(&config, &path).summary;
    assert_eq!(summary.kept.documents, 1);
    let faults: Vec<(String, String)> =
        ["circle1.txt", "circle2.txt", "dangling.txt"].map(|name| (name.into(), "unreadable".into())).into();
    assert_eq!(dropped(&path), faults);
    assert_eq!(summary.skipped_files, 5);
}

#[test]
fn one_file_is_kept_byte_for_byte_and_cut_as_nanogpt_cuts() {
    let (input, out) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    let path = input.path().join("play.txt");
    let text = format!("\u{feff}{}mail@example.com\r\n\r\nx é", prose(5, 3000));
    fs::write(&path, &text).unwrap();
    let chars: Vec<char> = text.chars().collect();
    let cut = (chars.len() as f64 * 0.9) as usize;
    let (train, validation): (String, String) =
        (chars[..cut].iter().collect(), chars[cut..].iter().collect());
    let target = out.path().join("x");
    let summary = built(&config(SourceKind::Auto, &path), &target).summary;
    assert_eq!((summary.source.as_str(), summary.split_by.as_str()), ("file", "position"));
    assert_eq!(texts(&target, Split::Train), [("play.txt#1".to_string(), train)]);
    assert_eq!(texts(&target, Split::Validation), [("play.txt#2".to_string(), validation)]);
}

#[test]
fn jsonl_in_any_compression_gives_the_same_documents_and_counts_bad_lines() {
    let (input, out) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    let mut lines = Vec::new();
    for number in 0..500 {
        lines.push(serde_json::json!({ "id": number, "text": prose(number, 60) }).to_string());
    }
    lines.insert(3, "{\"text\": \"torn".into());
    lines.insert(7, String::new());
    lines.insert(9, "{\"body\": 1}".into());
    let halves = lines.split_at(200);
    let plain: Vec<Vec<u8>> =
        [halves.0, halves.1].iter().map(|lines| format!("{}\n", lines.join("\n")).into_bytes()).collect();
    let gz = |bytes: &[u8]| {
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        encoder.write_all(bytes).unwrap();
        encoder.finish().unwrap()
    };
    let zst = |bytes: &[u8]| zstd::encode_all(bytes, 1).unwrap();
    let files = [
        ("plain.jsonl", plain.concat()),
        ("members.jsonl.gz", [gz(&plain[0]), gz(&plain[1])].concat()),
        ("frames.jsonl.zst", [zst(&plain[0]), zst(&plain[1])].concat()),
    ];
    let mut expected: Option<(Vec<String>, Vec<String>)> = None;
    for (name, bytes) in files {
        let path = input.path().join(name);
        fs::write(&path, bytes).unwrap();
        let target = out.path().join(name);
        let mut config = config(SourceKind::Auto, &path);
        config.split.validation_fraction = 0.0;
        let summary = built(&config, &target).summary;
        assert_eq!(summary.kept.documents, 500);
        let reasons: Vec<(String, String)> = dropped(&target);
        assert_eq!(
            reasons,
            [
                (format!("{name}#4"), "bad-json".to_string()),
                (format!("{name}#10"), "no-text-field".to_string())
            ]
        );
        let detail =
            CorpusReader::open(&target).unwrap().inspect(InspectFilter::default()).next().unwrap().unwrap();
        assert!(detail.detail.unwrap().starts_with(&format!("{name}:4: ")));
        let found = (
            texts(&target, Split::Train).into_iter().map(|(_, text)| text).collect::<Vec<String>>(),
            texts(&target, Split::Train).into_iter().map(|(id, _)| id.replace(name, "")).collect(),
        );
        match &expected {
            None => expected = Some(found),
            Some(expected) => assert!(*expected == found, "{name}"),
        }
    }
}

#[test]
fn a_truncated_file_gives_what_comes_before_the_break_and_the_run_goes_on() {
    let (input, out) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    let lines: String =
        (0..3000).map(|number| serde_json::json!({ "text": prose(number, 60) }).to_string() + "\n").collect();
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(lines.as_bytes()).unwrap();
    let gz = encoder.finish().unwrap();
    let zst = zstd::encode_all(lines.as_bytes(), 1).unwrap();
    fs::write(input.path().join("a.jsonl.gz"), &gz[..gz.len() / 2]).unwrap();
    fs::write(input.path().join("b.jsonl.zst"), &zst[..zst.len() / 2]).unwrap();
    fs::write(input.path().join("c.jsonl"), serde_json::json!({ "text": prose(9999, 60) }).to_string())
        .unwrap();
    fs::write(input.path().join("d.jsonl.gz"), b"no gzip at all").unwrap();
    let mut config = config(SourceKind::Jsonl, input.path());
    config.clean.exact_dedup = false;
    config.split.validation_fraction = 0.0;
    let path = out.path().join("x");
    built(&config, &path);
    let kept = texts(&path, Split::Train);
    let of = |name: &str| kept.iter().filter(|(id, _)| id.starts_with(name)).count();
    assert!(of("a.") > 500 && of("b.") > 100, "{} {}", of("a."), of("b."));
    assert_eq!(of("c."), 1);
    let faults = dropped(&path);
    assert_eq!(faults.len(), 3, "{faults:?}");
    for ((id, reason), (name, kept)) in faults.iter().zip([("a.", of("a.")), ("b.", of("b.")), ("d.", 0)]) {
        assert!(id.starts_with(name) && id.ends_with(&format!("#{}", kept + 1)), "{id} after {kept}");
        assert_eq!(reason, "truncated-input");
    }
}

#[test]
fn a_line_of_fifty_megabytes_is_passed_over_without_being_held() {
    let (input, out) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    let path = input.path().join("long.jsonl");
    let mut file = std::io::BufWriter::new(fs::File::create(&path).unwrap());
    writeln!(file, "{}", serde_json::json!({ "text": prose(1, 60) })).unwrap();
    write!(file, "{{\"text\": \"").unwrap();
    for _ in 0..50 {
        file.write_all(&[b'x'; 1 << 20]).unwrap();
    }
    writeln!(file, "\"}}").unwrap();
    writeln!(file, "{}", serde_json::json!({ "text": prose(2, 60) })).unwrap();
    file.flush().unwrap();
    let mut config = config(SourceKind::Jsonl, &path);
    config.split.validation_fraction = 0.0;
    let target = out.path().join("x");
    built(&config, &target);
    let ids: Vec<String> = texts(&target, Split::Train).into_iter().map(|(id, _)| id).collect();
    assert_eq!(ids, ["long.jsonl#1", "long.jsonl#3"]);
    assert_eq!(dropped(&target), [("long.jsonl#2".to_string(), "long-json-line".to_string())]);
}

#[test]
fn a_missing_text_field_or_column_names_those_that_exist() {
    let (input, out) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    let path = input.path().join("a.jsonl");
    fs::write(&path, "\n{\"body\": \"x\", \"url\": \"y\"}\n").unwrap();
    let message = build_with(&config(SourceKind::Auto, &path), &out.path().join("x"), 1, 1 << 20)
        .unwrap_err()
        .to_string();
    for part in ["a.jsonl:2", "\"text\"", "body, url", "corpus.text"] {
        assert!(message.contains(part), "{message}");
    }

    // A corpus of ours is a Parquet source, too.
    let folder = TempDir::new().unwrap();
    fs::write(folder.path().join("a.txt"), prose(1, 100)).unwrap();
    fs::write(folder.path().join("b.txt"), prose(2, 100)).unwrap();
    let mut first = config(SourceKind::Folder, folder.path());
    first.split.validation_fraction = 0.0;
    let made = out.path().join("made");
    built(&first, &made);
    let path = made.join("documents-train-00000.parquet");
    let mut second = config(SourceKind::Auto, &path);
    second.split.validation_fraction = 0.0;
    let again = out.path().join("again");
    built(&second, &again);
    let only_texts = |folder: &Path| {
        texts(folder, Split::Train).into_iter().map(|(_, text)| text).collect::<Vec<String>>()
    };
    assert_eq!(only_texts(&again), only_texts(&made));

    for wrong in ["content", "bytes"] {
        second.text = wrong.into();
        let message = build_with(&second, &out.path().join("x"), 1, 1 << 20).unwrap_err().to_string();
        for part in ["documents-train-00000.parquet", wrong, "text (Utf8)", "bytes (UInt64)"] {
            assert!(message.contains(part), "{message}");
        }
    }
    // A damaged file among good ones is one dropped row.
    let damaged = fs::read(&path).unwrap();
    fs::write(made.join("zz.parquet"), &damaged[..damaged.len() / 2]).unwrap();
    second.text = "text".into();
    second.path = made.display().to_string();
    second.exclude = vec!["dropped.parquet".into(), "documents-validation-00000.parquet".into()];
    let third = out.path().join("third");
    let summary = built(&second, &third).summary;
    assert_eq!(summary.kept.documents, 2);
    assert_eq!(dropped(&third), [("zz.parquet#1".to_string(), "unreadable".to_string())]);
}

#[test]
fn the_embedded_corpus_is_about_a_megabyte_and_has_both_sides() {
    let out = TempDir::new().unwrap();
    let config = CorpusConfig { source: SourceKind::Embedded, ..CorpusConfig::default() };
    let path = out.path().join("x");
    let summary = built(&config, &path).summary;
    assert!((900_000..2_000_000).contains(&summary.kept.bytes), "{}", summary.kept.bytes);
    let share = summary.split(Split::Validation).bytes as f64 / summary.kept.bytes as f64;
    assert!((0.03..0.2).contains(&share), "{share}");
}

#[test]
fn cargo_dependencies_are_read_with_version_and_licence_and_never_the_workspace_itself() {
    let out = TempDir::new().unwrap();
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut config = config(SourceKind::Cargo, &workspace);
    config.extensions = vec!["md".into()];
    let path = out.path().join("x");
    let summary = match build_with(&config, &path, 2, 64 << 20) {
        Ok(built) => built.summary,
        // A checkout without downloaded sources: the error must say what to do.
        Err(Error::Cargo { hint, .. }) => return assert!(hint.contains("cargo fetch")),
        Err(error) => panic!("{error}"),
    };
    assert!(summary.sources.len() > 50, "{}", summary.sources.len());
    assert!(summary.sources.iter().all(|source| !source.name.starts_with("bessemer")));
    let serde = summary.sources.iter().find(|source| source.name == "serde").unwrap();
    assert_eq!(serde.licence.as_deref(), Some("MIT OR Apache-2.0"));
    assert!(serde.version.is_some());
    let attribution = fs::read_to_string(path.join(ATTRIBUTION_FILE)).unwrap();
    assert!(attribution.contains("| serde |") && attribution.contains("MIT OR Apache-2.0"));
}

#[test]
fn without_a_lock_file_the_cargo_source_refuses_and_says_what_to_do() {
    let (input, out) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    fs::write(input.path().join("Cargo.toml"), "[package]\nname = \"x\"\nversion = \"0.1.0\"\n").unwrap();
    fs::create_dir(input.path().join("src")).unwrap();
    fs::write(input.path().join("src/lib.rs"), "").unwrap();
    let message = build_with(&config(SourceKind::Cargo, input.path()), &out.path().join("x"), 1, 1 << 20)
        .unwrap_err()
        .to_string();
    assert!(message.contains("lock") && message.contains("cargo fetch"), "{message}");
}

#[test]
fn documents_that_were_found_often_come_back_by_the_size_of_their_group() {
    use bessemer_tokenizer::{Tokenizer, TokenizerConfig, Trainer};
    let (input, out) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    // Document k is there k + 1 times.
    for (name, times) in [("once", 1), ("twice", 2), ("four", 4), ("six", 6), ("nine", 9)] {
        for copy in 0..times {
            let text = format!(
                "The {name} document stands in so many files, and says this much about itself, no more."
            );
            fs::write(input.path().join(format!("{name}-{copy}.txt")), text.repeat(4)).unwrap();
        }
    }
    let mut config = config(SourceKind::Folder, input.path());
    config.split.validation_fraction = 0.0;
    config.dedup.methods = vec![bessemer_corpus_config::dedup::Method::Exact];
    config.dedup.rehydrate = vec![[1, 1], [2, 2], [3, 3], [5, 5], [9, 1]];
    let folder = out.path().join("corpus");
    built(&config, &folder);
    let reader = CorpusReader::open(&folder).unwrap();
    assert_eq!(reader.summary().kept.documents, 5);
    let mut trainer =
        Trainer::new(TokenizerConfig { vocab_size: 300, ..TokenizerConfig::default() }).unwrap();
    trainer.feed("The document stands in so many files.");
    let tokenizer: std::sync::Arc<Tokenizer> = std::sync::Arc::new(trainer.finish(|_| {}).unwrap());
    let stop = AtomicBool::new(false);
    let shards = out.path().join("shards");
    let context = BuildContext { threads: 2, memory_budget: 1 << 20, progress: &|_| {}, stop: &stop };
    let made = tokenize_to_shards(&reader, &tokenizer, &shards, 100_000, &context).unwrap();
    let set = bessemer_shards::ShardSet::open(&shards, "train").unwrap();
    let documents: Vec<_> = set.documents().map(|document| document.unwrap().id).collect();
    let times = |name: &str| {
        let id = texts(&folder, Split::Train).into_iter().find(|(_, text)| text.contains(name)).unwrap().0;
        documents.iter().filter(|found| **found == document_id(&id)).count()
    };
    assert_eq!(["once", "twice", "four", "six", "nine"].map(times), [1, 2, 3, 5, 1]);
    assert_eq!(made.splits[&Split::Train].documents, 12);
    // In rounds: no document follows itself.
    assert!(documents[..5].iter().collect::<std::collections::HashSet<_>>().len() == 5);
    assert!(tokenize_to_shards(&reader, &tokenizer, &shards, 100_000, &context).unwrap().reused);
}

#[test]
fn tokens_of_a_corpus_decode_to_its_documents_and_finished_shards_are_reused() {
    use bessemer_tokenizer::{Tokenizer, TokenizerConfig, Trainer};
    let (input, out) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    many_files(input.path());
    let folder = out.path().join("corpus");
    built(&config(SourceKind::Folder, input.path()), &folder);
    let reader = CorpusReader::open(&folder).unwrap();
    let mut trainer =
        Trainer::new(TokenizerConfig { vocab_size: 400, ..TokenizerConfig::default() }).unwrap();
    for (_, text) in texts(&folder, Split::Train) {
        trainer.feed(&text);
    }
    let tokenizer: std::sync::Arc<Tokenizer> = std::sync::Arc::new(trainer.finish(|_| {}).unwrap());
    let end = tokenizer.end_of_text().expect("the default tokenizer ends documents");
    let stop = AtomicBool::new(false);
    let mut all = Vec::new();
    for (name, threads) in [("one", 1), ("two", 2)] {
        let shards = out.path().join(name);
        let context = BuildContext { threads, memory_budget: 1 << 20, progress: &|_| {}, stop: &stop };
        let first = tokenize_to_shards(&reader, &tokenizer, &shards, 100_000, &context).unwrap();
        assert!(!first.reused && first.splits[&Split::Train].files > 1);
        assert!(tokenize_to_shards(&reader, &tokenizer, &shards, 100_000, &context).unwrap().reused);
        for split in Split::ALL {
            let set = bessemer_shards::ShardSet::open(&shards, split.name()).unwrap();
            let documents = texts(&folder, split);
            assert_eq!(set.document_count(), documents.len() as u64);
            let mut tokens = vec![0; set.token_count() as usize];
            set.read(0, &mut tokens).unwrap();
            let mut ends = tokens.split(|token| *token == end);
            for (document, (id, text)) in set.documents().map(|d| d.unwrap()).zip(&documents) {
                assert_eq!(document.id, document_id(id));
                assert_eq!(tokenizer.decode(ends.next().unwrap()).unwrap(), text.as_bytes(), "{id}");
            }
            assert_eq!(set.text_bytes(), reader.summary().split(split).bytes);
        }
        all.push(contents(&shards.join("train")));
    }
    assert!(all[0] == all[1]);
    // A shard that vanished is made again.
    fs::remove_file(out.path().join("one/validation/00000.shard")).unwrap();
    let context = BuildContext { threads: 1, memory_budget: 1 << 20, progress: &|_| {}, stop: &stop };
    assert!(
        !tokenize_to_shards(&reader, &tokenizer, &out.path().join("one"), 100_000, &context).unwrap().reused
    );
}

/// Scores the tokens after the first colon of each line.
struct Answers {
    tokenizer: std::sync::Arc<bessemer_tokenizer::Tokenizer>,
    version: &'static str,
}

impl bessemer_corpus::DocumentEncoder for Answers {
    fn identity(&self) -> String {
        format!("answers {}", self.version)
    }

    fn encode(&self, text: &str) -> std::result::Result<Vec<bessemer_corpus::EncodedDocument>, String> {
        let (mut tokens, mut scored) = (Vec::new(), Vec::new());
        for line in text.split_inclusive('\n') {
            let (question, answer) =
                line.split_once(':').ok_or_else(|| format!("wanted a colon in each line, found {line:?}"))?;
            tokens.extend(self.tokenizer.encode(question.as_bytes()).map_err(|e| e.to_string())?);
            let start = tokens.len();
            tokens.extend(self.tokenizer.encode(answer.as_bytes()).map_err(|e| e.to_string())?);
            scored.push(start..tokens.len());
        }
        let text_bytes = text.replace(':', "").len() as u64;
        Ok(vec![bessemer_corpus::EncodedDocument { tokens, text_bytes, scored: Some(scored) }])
    }
}

#[test]
fn an_encoder_of_documents_chooses_the_scored_tokens() {
    use bessemer_corpus::{DocumentEncoder, encode_to_shards};
    use bessemer_tokenizer::{TokenizerConfig, TokenizerKind, Trainer};
    use std::sync::Arc;
    let (input, out) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    for number in 0..40 {
        let turn =
            |turn: u32| format!("how many legs have {turn} dogs and {number} cats:{}\n", 4 * (turn + number));
        fs::write(input.path().join(format!("{number}.txt")), (0..9).map(turn).collect::<String>()).unwrap();
    }
    let folder = out.path().join("corpus");
    built(&config(SourceKind::Folder, input.path()), &folder);
    let reader = CorpusReader::open(&folder).unwrap();
    let mut trainer =
        Trainer::new(TokenizerConfig { kind: TokenizerKind::Char, ..TokenizerConfig::default() }).unwrap();
    texts(&folder, Split::Train).iter().for_each(|(_, text)| trainer.feed(text));
    let tokenizer = Arc::new(trainer.finish(|_| {}).unwrap());
    let encoder = |version| -> Arc<dyn DocumentEncoder> {
        Arc::new(Answers { tokenizer: Arc::clone(&tokenizer), version })
    };
    let stop = AtomicBool::new(false);
    let context = BuildContext { threads: 2, memory_budget: 1 << 20, progress: &|_| {}, stop: &stop };
    let shards = out.path().join("shards");
    let encode =
        |version| encode_to_shards(&reader, &tokenizer, &encoder(version), &shards, 2000, &context).unwrap();
    let made = encode("1");
    let set = bessemer_shards::ShardSet::open(&shards, "train").unwrap();
    let mut tokens = vec![0; set.token_count() as usize];
    set.read(0, &mut tokens).unwrap();
    set.replace_unscored(0, &mut tokens, u32::MAX).unwrap();
    let answers: Vec<u8> = tokens
        .split(|token| *token == u32::MAX)
        .flat_map(|answer| tokenizer.decode(answer).unwrap())
        .collect();
    let documents = texts(&folder, Split::Train);
    let wanted: String = documents
        .iter()
        .flat_map(|(_, text)| text.split_inclusive('\n').map(|line| line.split_once(':').unwrap().1))
        .collect();
    assert_eq!(String::from_utf8(answers).unwrap(), wanted);
    let part = made.splits[&Split::Train];
    assert!(part.files > 1);
    assert_eq!((part.scored, set.scored_count()), (Some(wanted.len() as u64), wanted.len() as u64));
    // Shards are those of the encoder, as of the tokenizer.
    assert!(encode("1").reused && !encode("2").reused);
    // Of plain text all is scored, and the summary has no line about it.
    let plain = tokenize_to_shards(&reader, &tokenizer, &shards, 2000, &context).unwrap();
    assert!(!plain.reused && plain.splits[&Split::Train].scored.is_none());
    assert!(!fs::read_to_string(shards.join("tokens.json")).unwrap().contains("scored"));
    assert!(!fs::read_to_string(shards.join("tokens.json")).unwrap().contains("encoder"));
    // A document that the encoder refuses is named.
    fs::write(
        input.path().join("40.txt"),
        "a text without what an answer begins with, as long as the others are\n".repeat(8),
    )
    .unwrap();
    built(&config(SourceKind::Folder, input.path()), &out.path().join("other"));
    let reader = CorpusReader::open(&out.path().join("other")).unwrap();
    let error = encode_to_shards(&reader, &tokenizer, &encoder("1"), &shards, 2000, &context).unwrap_err();
    assert!(
        error.to_string().contains("wanted a colon in each line") && error.to_string().contains("40"),
        "{error}"
    );
}

#[test]
fn evaluation_sets_are_kept_out_and_counted() {
    let (input, out) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    // Words of letters: decontamination does not tell numbers apart.
    let word = |number: usize| -> String {
        (number * 7919 % 10_007).to_string().bytes().map(|digit| char::from(digit - b'0' + b'a')).collect()
    };
    let words =
        |from: usize, count: usize| (from..from + count).map(|number| word(number) + " ").collect::<String>();
    let question = words(500, 20);
    fs::write(input.path().join("a.txt"), words(1, 300)).unwrap();
    fs::write(input.path().join("b.txt"), words(1000, 300) + &question + &words(2000, 300)).unwrap();
    let set = out.path().join("quiz.jsonl");
    let item = serde_json::json!({ "question": question, "answer": "nothing" });
    fs::write(&set, format!("{item}\n")).unwrap();
    let mut config = config(SourceKind::Folder, input.path());
    config.clean.line_rules = Scope::None;
    config.split.validation_fraction = 0.0;
    let plain = build_with(&config, &out.path().join("plain"), 1, 1 << 20).unwrap().summary;
    config.decontaminate.sets = vec![bessemer_corpus_config::decontaminate::EvaluationSource {
        path: set.display().to_string(),
        query: vec!["question".into()],
        answer: "answer".into(),
        ..Default::default()
    }];
    let dropped = build_with(&config, &out.path().join("x"), 1, 1 << 20).unwrap().summary;
    assert_eq!((plain.kept.documents, dropped.kept.documents), (2, 1));
    assert_eq!(dropped.dropped_by_reason["contaminated"].documents, 1);
    assert_eq!(dropped.decontaminated.values().map(|c| (c.dropped, c.cut)).collect::<Vec<_>>(), [(1, 0)]);
    assert_ne!(plain.key, dropped.key);

    config.decontaminate.action = bessemer_corpus_config::decontaminate::DecontaminateAction::Window;
    let cut = build_with(&config, &out.path().join("x"), 1, 1 << 20).unwrap().summary;
    assert_eq!(cut.kept.documents, 2);
    assert!(cut.kept.bytes + 400 < plain.kept.bytes, "the margins go too");
    assert_eq!(cut.decontaminated.values().map(|c| (c.dropped, c.cut)).collect::<Vec<_>>(), [(0, 1)]);

    // Another content of the set is another corpus.
    fs::write(&set, "{\"question\": \"What else might be asked here?\", \"answer\": \"This\"}\n").unwrap();
    let other = build_with(&config, &out.path().join("x"), 1, 1 << 20).unwrap().summary;
    assert!(other.key != cut.key && other.decontaminated.is_empty());
}

#[test]
fn numbers_and_keys_are_replaced_where_that_is_asked_for() {
    let (input, out) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    let text = "Pay with 4111 1111 1111 1111, at 2600:1f18::1 the key is AKIAIOSFODNN7EXAMPLQ. ".to_string()
        + &"More words about nothing at all. ".repeat(5);
    fs::write(input.path().join("a.txt"), &text).unwrap();
    let mut config = config(SourceKind::Folder, input.path());
    config.split.validation_fraction = 0.0;
    (config.privacy.cards, config.privacy.ipv6, config.privacy.secrets) = (true, true, true);
    let summary = build_with(&config, &out.path().join("x"), 1, 1 << 20).unwrap().summary;
    assert_eq!((summary.numbers_replaced, summary.ips_replaced, summary.secrets_replaced), (1, 1, 1));
    config.privacy.drop_above = 2;
    assert!(
        build_with(&config, &out.path().join("x"), 1, 1 << 20)
            .unwrap_err()
            .to_string()
            .contains("personal-data 1")
    );
}

/// Eight pairs of similar texts, of which FineWeb's MinHash finds the first four. Where one of a pair is held out, that one is dropped, be it
/// the first or the second: no text of validation is also trained on.
#[test]
fn of_similar_texts_the_one_of_the_training_split_stays() {
    let folder = tempfile::tempdir().unwrap();
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../dedup/tests/minhash-fineweb.jsonl");
    let mut config = config(SourceKind::Jsonl, &source);
    config.clean.min_bytes = 0;
    config.dedup.methods = vec![dedup::Method::Minhash];
    config.dedup.minhash =
        dedup::MinHashConfig { verify: dedup::Verify::None, ..dedup::MinHashConfig::fineweb() };
    let ids =
        |rows: [u32; 4]| rows.map(|row| (format!("minhash-fineweb.jsonl#{row}"), "near-duplicate".into()));
    // The hash holds out row 7, not row 8, from a fraction of .01 on.
    for (fraction, rows) in [(0.0, [2, 4, 6, 8]), (0.05, [2, 4, 6, 7])] {
        config.split.validation_fraction = fraction;
        let out = folder.path().join(fraction.to_string());
        built(&config, &out);
        assert_eq!(dropped(&out), ids(rows), "validation_fraction = {fraction}");
    }
    // Without row 7 nothing is held out by hash, so another document is.
    let summary = CorpusReader::open(&folder.path().join("0.05")).unwrap().summary().clone();
    assert_eq!(summary.split(Split::Validation).documents, 1);
    assert!(
        summary.remarks.iter().any(|remark| remark.contains("holds out was kept")),
        "{:?}",
        summary.remarks
    );
}
