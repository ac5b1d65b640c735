//! A split of several shard files and its `shards.json`.

use bessemer_shards::{
    Fingerprint, INDEX_FILE, RepeatedBlocks, SetSummary, ShardError, ShardSet, ShardSetWriter, SplitMeta,
    repeated_blocks,
};
use std::fs;
use std::path::Path;

const DOCUMENTS: u64 = 200;

fn split(name: &str) -> SplitMeta {
    SplitMeta { split: name.into(), vocab_size: 1000, tokenizer: Fingerprint([5; 32]) }
}

fn document(i: u64) -> ([u8; 16], u64, Vec<u32>) {
    // Document 17 alone is longer than a file of 1,000 bytes; every fifth is empty.
    let tokens = if i == 17 {
        3000
    } else if i.is_multiple_of(5) {
        0
    } else {
        i % 60
    };
    (u128::from(i).to_le_bytes(), i, (0..tokens).map(|t| ((t * 31 + i * 7) % 1000) as u32).collect())
}

fn write(dir: &Path, documents: u64, file_bytes: u64) -> SetSummary {
    let mut writer = ShardSetWriter::create(dir, split("train"), file_bytes).unwrap();
    for i in 0..documents {
        let (id, text_bytes, tokens) = document(i);
        writer.push_document(id, text_bytes, &tokens).unwrap();
    }
    writer.finish().unwrap()
}

#[test]
fn a_set_reads_as_one_stream_whatever_the_cut_into_files() {
    let wanted: Vec<u32> = (0..DOCUMENTS).flat_map(|i| document(i).2).collect();
    for file_bytes in [1, 1000, 4000, 1 << 20] {
        let dir = tempfile::tempdir().unwrap();
        let summary = write(dir.path(), DOCUMENTS, file_bytes);
        let set = ShardSet::open(dir.path(), "train").unwrap();
        assert_eq!(summary.files, set.files().len() as u64);
        assert_eq!(set.token_count(), wanted.len() as u64);
        assert_eq!(set.document_count(), DOCUMENTS);
        assert_eq!(set.text_bytes(), (0..DOCUMENTS).sum::<u64>());
        assert_eq!((summary.tokens, summary.file_bytes), (set.token_count(), set.file_bytes()));
        set.verify().unwrap();
        for step in [1, 7, 777, wanted.len()] {
            let mut out = vec![0; step];
            for start in (0..=wanted.len() - step).step_by(step) {
                set.read(start as u64, &mut out).unwrap();
                assert_eq!(out, wanted[start..start + step]);
            }
        }
        let mut at = 0;
        for (i, found) in set.documents().map(|d| d.unwrap()).enumerate() {
            let (id, text_bytes, tokens) = document(i as u64);
            assert_eq!((found.id, found.text_bytes), (id, text_bytes));
            assert_eq!(found.tokens, at..at + tokens.len() as u64);
            for offset in found.tokens.clone() {
                assert_eq!(set.document_at(offset).unwrap(), Some(i as u64));
            }
            at = found.tokens.end;
        }
        assert_eq!(set.document_at(at).unwrap(), None);
        assert!(set.document(DOCUMENTS).unwrap().is_none());
        assert!(matches!(set.read(at - 1, &mut [0, 0]), Err(ShardError::OutOfRange { .. })));
    }
}

#[test]
fn files_keep_to_the_limit_unless_one_document_is_longer() {
    let dir = tempfile::tempdir().unwrap();
    write(dir.path(), DOCUMENTS, 1000);
    let set = ShardSet::open(dir.path(), "train").unwrap();
    assert!(set.files().len() > 10);
    for file in set.files() {
        assert!(file.file_bytes() <= 1000 || file.document_count() == 1, "{:?}", file.path());
    }
}

#[test]
fn writing_is_a_pure_function_of_the_documents() {
    let (a, b) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    // The second folder held a longer set and the rest of a killed writer before.
    write(b.path(), 2 * DOCUMENTS, 500);
    fs::write(b.path().join("train/.00001.shard.partial"), b"half").unwrap();
    fs::write(b.path().join("train/notes.txt"), b"not a shard").unwrap();
    write(a.path(), DOCUMENTS, 1000);
    write(b.path(), DOCUMENTS, 1000);
    let read = |dir: &Path| {
        let mut files: Vec<_> = fs::read_dir(dir.join("train"))
            .unwrap()
            .map(|e| e.unwrap().path())
            .map(|p| (p.file_name().unwrap().to_owned(), fs::read(&p).unwrap()))
            .collect();
        files.sort();
        files
    };
    let (a_files, mut b_files) = (read(a.path()), read(b.path()));
    b_files.retain(|(name, _)| name != "notes.txt");
    assert_eq!(b_files.len() + 1, read(b.path()).len(), "a foreign file was removed");
    assert!(a_files == b_files);
    let sets = [&a, &b].map(|d| ShardSet::open(d.path(), "train").unwrap().checksum());
    assert_eq!(sets[0], sets[1]);
}

#[test]
fn an_interrupted_set_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    assert!(matches!(ShardSet::open(dir.path(), "train"), Err(ShardError::Unfinished { .. })));
    write(dir.path(), 10, 1000);
    let mut writer = ShardSetWriter::create(dir.path(), split("train"), 1000).unwrap();
    for i in 0..DOCUMENTS {
        let (id, text_bytes, tokens) = document(i);
        writer.push_document(id, text_bytes, &tokens).unwrap();
    }
    drop(writer);
    let error = ShardSet::open(dir.path(), "train").unwrap_err();
    assert!(matches!(error, ShardError::Unfinished { .. }));
    assert!(error.to_string().contains("train"), "{error}");
}

#[test]
fn a_swapped_missing_or_repeated_file_is_refused_by_name() {
    let dir = tempfile::tempdir().unwrap();
    write(dir.path(), DOCUMENTS, 1000);
    let train = dir.path().join("train");
    let (first, second) = (train.join("00000.shard"), train.join("00001.shard"));
    let saved = fs::read(&second).unwrap();
    fs::copy(&first, &second).unwrap();
    let error = ShardSet::open(dir.path(), "train").unwrap_err();
    assert!(matches!(error, ShardError::NotTheListedFile { .. }));
    assert!(error.to_string().contains("00001.shard"), "{error}");
    fs::remove_file(&second).unwrap();
    let error = ShardSet::open(dir.path(), "train").unwrap_err();
    assert!(matches!(error, ShardError::Io { .. }) && error.to_string().contains("00001.shard"), "{error}");
    fs::write(&second, &saved).unwrap();

    let index = train.join(INDEX_FILE);
    let text = fs::read_to_string(&index).unwrap();
    for name in ["00000.shard", "../train/00001.shard", "/etc/passwd", "1.shard", "00001.SHARD"] {
        fs::write(&index, text.replace("00001.shard", name)).unwrap();
        let error = ShardSet::open(dir.path(), "train").unwrap_err();
        assert!(matches!(error, ShardError::SetIndex { .. }), "{name}: {error}");
    }
    fs::write(&index, &text).unwrap();
    ShardSet::open(dir.path(), "train").unwrap();
}

#[test]
fn every_single_flipped_bit_of_the_index_is_detected_and_so_is_every_cut() {
    let dir = tempfile::tempdir().unwrap();
    write(dir.path(), 4, 1000);
    let index = dir.path().join("train").join(INDEX_FILE);
    let whole = fs::read(&index).unwrap();
    for bit in 0..whole.len() * 8 {
        let mut damaged = whole.clone();
        damaged[bit / 8] ^= 1 << (bit % 8);
        fs::write(&index, &damaged).unwrap();
        // The line feed after the last brace is the only byte without meaning.
        let harmless = bit / 8 == whole.len() - 1 && damaged[bit / 8].is_ascii_whitespace();
        assert!(ShardSet::open(dir.path(), "train").is_err() || harmless, "bit {bit}");
    }
    for length in 0..whole.len() - 1 {
        fs::write(&index, &whole[..length]).unwrap();
        assert!(ShardSet::open(dir.path(), "train").is_err(), "cut at {length}");
    }
}

#[test]
fn another_version_format_split_or_field_of_the_index_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    write(dir.path(), 4, 1000);
    let index = dir.path().join("train").join(INDEX_FILE);
    let text = fs::read_to_string(&index).unwrap();
    for (from, to, told) in [
        ("\"version\": 1", "\"version\": 2", "version"),
        ("bessemer-shards", "megatron", "format"),
        ("\"split\": \"train\"", "\"split\": \"test\"", "split"),
        ("\"vocab_size\"", "\"vocabulary\"", "vocabulary"),
        ("\"tokens\": 6", "\"tokens\": 18446744073709551615", "tokens"),
    ] {
        let changed = text.replacen(from, to, 1);
        assert_ne!(changed, text, "{from}");
        fs::write(&index, changed).unwrap();
        let error = ShardSet::open(dir.path(), "train").unwrap_err().to_string();
        assert!(error.contains(told) && error.contains("shards.json"), "{error}");
    }
}

#[test]
fn another_tokenizer_or_vocabulary_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    write(dir.path(), 4, 1000);
    let set = ShardSet::open(dir.path(), "train").unwrap();
    set.require(Fingerprint([5; 32]), 1000).unwrap();
    let error = set.require(Fingerprint([6; 32]), 1000).unwrap_err();
    assert!(error.to_string().contains(&"06".repeat(32)) && error.to_string().contains(&"05".repeat(32)));
    let error = set.require(Fingerprint([5; 32]), 1001).unwrap_err();
    assert!(matches!(error, ShardError::Vocabulary { wanted: 1001, found: 1000, .. }));
}

#[test]
fn a_split_without_documents_is_a_set_without_tokens() {
    let dir = tempfile::tempdir().unwrap();
    write(dir.path(), 0, 1000);
    let set = ShardSet::open(dir.path(), "train").unwrap();
    assert_eq!((set.token_count(), set.document_count(), set.files().len()), (0, 0, 1));
    assert_eq!(set.document_at(0).unwrap(), None);
    set.read(0, &mut []).unwrap();
    assert!(matches!(set.read(0, &mut [0]), Err(ShardError::OutOfRange { .. })));
}

#[test]
fn components_are_runs_of_documents_and_a_split_without_them_keeps_its_bytes() {
    let dir = tempfile::tempdir().unwrap();
    let mut writer = ShardSetWriter::create(dir.path(), split("train"), 1000).unwrap();
    for (name, range) in [("web", 0..50), ("web.recent", 50..50), ("books", 50..DOCUMENTS)] {
        writer.begin_component(name).unwrap();
        for i in range {
            let (id, text_bytes, tokens) = document(i);
            writer.push_document(id, text_bytes, &tokens).unwrap();
        }
    }
    assert!(writer.begin_component("web").unwrap_err().to_string().contains("before"));
    assert!(writer.begin_component("We b").is_err());
    writer.finish().unwrap();
    let set = ShardSet::open(dir.path(), "train").unwrap();
    let tokens = |range: std::ops::Range<u64>| range.map(|i| document(i).2.len() as u64).sum::<u64>();
    let (first, all) = (tokens(0..50), tokens(0..DOCUMENTS));
    let found: Vec<_> = set
        .components()
        .iter()
        .map(|c| (c.name.as_str(), c.tokens.clone(), c.documents, c.text_bytes))
        .collect();
    let bytes = |range: std::ops::Range<u64>| range.sum::<u64>();
    assert_eq!(
        found,
        [
            ("web", 0..first, 50, bytes(0..50)),
            ("web.recent", first..first, 0, 0),
            ("books", first..all, DOCUMENTS - 50, bytes(50..DOCUMENTS)),
        ]
    );

    // What the list says is held against itself.
    let index = dir.path().join("train").join(INDEX_FILE);
    let text = fs::read_to_string(&index).unwrap();
    for (from, to, complaint) in [
        ("\"web.recent\"", "\"web\"", "twice"),
        ("\"web.recent\"", "\"../x\"", "component"),
        ("\"version\": 2", "\"version\": 1", "version 1"),
        ("\"version\": 2", "\"version\": 3", "version"),
        ("\"documents\": 50,", "\"documents\": 49,", "documents"),
    ] {
        assert!(text.contains(from), "{from}");
        fs::write(&index, text.replacen(from, to, 1)).unwrap();
        let error = ShardSet::open(dir.path(), "train").unwrap_err().to_string();
        assert!(error.contains(complaint), "{error} should speak of {complaint}");
    }

    let plain = tempfile::tempdir().unwrap();
    write(plain.path(), DOCUMENTS, 1000);
    let text = fs::read_to_string(plain.path().join("train").join(INDEX_FILE)).unwrap();
    assert!(text.contains("\"version\": 1") && !text.contains("components"), "{text}");
    assert!(ShardSet::open(plain.path(), "train").unwrap().components().is_empty());
    let mut writer = ShardSetWriter::create(plain.path(), split("late"), 1000).unwrap();
    writer.push_document(document(1).0, 1, &document(1).2).unwrap();
    assert!(
        writer.begin_component("web").unwrap_err().to_string().contains("after documents of no component")
    );
}

/// A link or a FIFO in the place of a file or of the split's folder: nothing outside is read as a set, replaced or waited for.
#[test]
fn what_stands_in_the_place_of_a_set_is_never_followed() {
    let dir = tempfile::tempdir().unwrap();
    let (run, outside) = (dir.path().join("run"), dir.path().join("outside"));
    write(&outside, 4, 1000);
    let before = fs::read(outside.join("train").join(INDEX_FILE)).unwrap();
    fs::create_dir(&run).unwrap();
    let split_of = |path: &Path| run.join("train").join(path);
    std::os::unix::fs::symlink(outside.join("train"), run.join("train")).unwrap();
    for error in [
        ShardSet::open(&run, "train").unwrap_err(),
        ShardSetWriter::create(&run, split("train"), 1000).unwrap_err(),
    ] {
        let error = error.to_string();
        assert!(error.contains("run/train") && error.contains("symbolic link"), "{error}");
    }
    fs::remove_file(run.join("train")).unwrap();
    for name in [INDEX_FILE, "00000.shard"] {
        let file = split_of(Path::new(name));
        write(&run, 4, 1000);
        fs::remove_file(&file).unwrap();
        std::os::unix::fs::symlink(outside.join("train").join(name), &file).unwrap();
        let error = ShardSet::open(&run, "train").unwrap_err().to_string();
        assert!(error.contains(name) && error.contains("a symbolic link"), "{error}");
        fs::remove_file(&file).unwrap();
        assert!(std::process::Command::new("mkfifo").arg(&file).status().unwrap().success());
        let error = ShardSet::open(&run, "train").unwrap_err().to_string();
        assert!(error.contains(name) && error.contains("FIFO"), "{error}");
        // Another set replaces them.
        write(&run, 4, 1000);
        ShardSet::open(&run, "train").unwrap();
    }
    assert_eq!(fs::read(outside.join("train").join(INDEX_FILE)).unwrap(), before);
    ShardSet::open(&outside, "train").unwrap();
}

#[test]
fn blocks_of_validation_that_occur_in_training_are_counted_at_any_offset() {
    let dir = tempfile::tempdir().unwrap();
    // Two progressions modulo a prime, which share no window.
    let number = |i: u64| ((i * 7_919) % 1_000_003 % 1000) as u32;
    let train: Vec<u32> = (0..5000).map(number).collect();
    let fresh: Vec<u32> = (0..10 * 32).map(|i| number(500_000 + 13 * i)).collect();
    let copied = [5usize, 777, 2001, 4000, 4968].map(|at| &train[at..at + 32]).concat();
    let write = |name: &str, tokens: &[u32]| {
        let mut writer = ShardSetWriter::create(dir.path(), split(name), 3000).unwrap();
        for document in tokens.chunks(100) {
            writer.push_document([0; 16], 1, document).unwrap();
        }
        writer.finish().unwrap();
        ShardSet::open(dir.path(), name).unwrap()
    };
    let (train, other) = (write("train", &train), write("validation", &[fresh, copied].concat()));
    let found = |train: &ShardSet, other: &ShardSet| repeated_blocks(train, other).unwrap();
    assert_eq!(found(&train, &other), RepeatedBlocks { block_tokens: 32, blocks: 15, repeated: 5 });
    assert_eq!(found(&train, &train).repeated, 5000 / 32);
    let none = write("none", &[1; 31]);
    assert_eq!((found(&train, &none).blocks, found(&none, &train).repeated), (0, 0));
}
