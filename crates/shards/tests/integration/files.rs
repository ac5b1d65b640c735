//! One shard file through its public interface.

use bessemer_shards::{Document, Fingerprint, ShardError, ShardMeta, ShardReader, ShardWriter};
use proptest::prelude::*;
use std::fs;
use std::path::Path;

fn meta(vocab_size: u32) -> ShardMeta {
    ShardMeta { vocab_size, tokenizer: Fingerprint([9; 32]), split: "valid".into(), ordinal: 0 }
}

fn names(dir: &Path) -> Vec<String> {
    let mut names: Vec<_> =
        fs::read_dir(dir).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

fn documents(vocab_size: u32) -> impl Strategy<Value = Vec<([u8; 16], u64, Vec<u32>)>> {
    let tokens = prop::collection::vec(0..vocab_size, 0..300);
    prop::collection::vec((any::<[u8; 16]>(), 0u64..1 << 40, tokens), 0..30)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, ..ProptestConfig::default() })]
    #[test]
    fn what_is_written_is_read(
        (vocab_size, documents) in prop::sample::select(vec![1u32, 2, 257, 65_536, 65_537, u32::MAX])
            .prop_flat_map(|v| (Just(v), documents(v))),
        cuts in prop::collection::vec((0.0f64..1.0, 0.0f64..1.0), 5),
    ) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.shard");
        let mut writer = ShardWriter::create(&path, meta(vocab_size)).unwrap();
        let (mut stream, mut wanted) = (Vec::<u32>::new(), Vec::new());
        for (id, text_bytes, tokens) in &documents {
            let foreseen = writer.file_bytes_with(tokens.len() as u64, tokens.len() as u64);
            writer.push_document(*id, *text_bytes, tokens).unwrap();
            prop_assert!(foreseen <= writer.file_bytes_with(0, 0));
            let start = stream.len() as u64;
            stream.extend(tokens);
            wanted.push(Document { id: *id, tokens: start..stream.len() as u64, text_bytes: *text_bytes });
        }
        let summary = writer.finish().unwrap();
        prop_assert_eq!(names(dir.path()), ["a.shard"]);
        let reader = ShardReader::open(&path).unwrap();
        prop_assert_eq!(reader.meta(), &meta(vocab_size));
        prop_assert_eq!(reader.token_count(), stream.len() as u64);
        prop_assert_eq!(reader.checksum(), summary.checksum);
        prop_assert_eq!(reader.file_bytes(), fs::metadata(&path).unwrap().len());
        prop_assert_eq!(reader.text_bytes(), documents.iter().map(|d| d.1).sum::<u64>());
        prop_assert_eq!(reader.documents().map(|d| d.unwrap()).collect::<Vec<_>>(), wanted.clone());
        for (a, b) in cuts {
            let (a, b) = ((a * stream.len() as f64) as usize, (b * stream.len() as f64) as usize);
            let (a, b) = (a.min(b), a.max(b));
            let mut out = vec![0; b - a];
            reader.read(a as u64, &mut out).unwrap();
            prop_assert_eq!(&out, &stream[a..b]);
        }
        for offset in 0..stream.len() as u64 {
            let at = reader.document_at(offset).unwrap().unwrap();
            prop_assert!(wanted[at as usize].tokens.contains(&offset));
        }
        prop_assert_eq!(reader.document_at(stream.len() as u64).unwrap(), None);
        reader.verify().unwrap();
        let past = reader.read(stream.len() as u64, &mut [0]);
        assert!(matches!(past, Err(ShardError::OutOfRange { .. })));
        let overflow = reader.read(u64::MAX, &mut [0]);
        assert!(matches!(overflow, Err(ShardError::OutOfRange { .. })));
    }

    #[test]
    fn arbitrary_bytes_are_refused(bytes in prop::collection::vec(any::<u8>(), 0..600)) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("noise.shard");
        fs::write(&path, &bytes).unwrap();
        let error = ShardReader::open(&path).unwrap_err().to_string();
        prop_assert!(error.contains("noise.shard"));
        for version in 1..=2 {
            let mut with_magic = b"\x89BSHARD\n".to_vec();
            with_magic.extend([version, 0, 0, 0]);
            with_magic.extend(&bytes);
            fs::write(&path, &with_magic).unwrap();
            prop_assert!(ShardReader::open(&path).is_err());
        }
    }
}

#[test]
fn several_blocks_of_a_mebibyte_round_trip() {
    for vocab_size in [50_257, 128_256] {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.shard");
        let tokens: Vec<u32> =
            (0..1_500_001u32).map(|i| i.wrapping_mul(2_654_435_761) % vocab_size).collect();
        let mut writer = ShardWriter::create(&path, meta(vocab_size)).unwrap();
        for (i, document) in tokens.chunks(77_777).enumerate() {
            writer.push_document([i as u8; 16], 1, document).unwrap();
        }
        writer.finish().unwrap();
        let reader = ShardReader::open(&path).unwrap();
        let mut out = vec![0; tokens.len()];
        reader.read(0, &mut out).unwrap();
        assert!(out == tokens);
        reader.verify().unwrap();
    }
}

#[test]
fn foreign_files_are_refused_by_name_and_kind() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("holiday.shard");
    fs::write(&path, b"\x89PNG\r\n\x1a\n and so on").unwrap();
    let error = ShardReader::open(&path).unwrap_err();
    assert!(matches!(error, ShardError::Foreign { .. }));
    assert!(error.to_string().contains("holiday.shard"), "{error}");
    assert!(error.to_string().contains("89 50 4e 47"), "{error}");

    fs::write(&path, vec![0; 5000]).unwrap();
    assert!(matches!(ShardReader::open(&path), Err(ShardError::Foreign { .. })));
    fs::write(&path, b"\x89BSHARD\n\x03\0\0\0 whatever version 3 looks like").unwrap();
    assert!(matches!(ShardReader::open(&path), Err(ShardError::Version { wanted: 2, found: 3, .. })));
    fs::write(&path, b"").unwrap();
    assert!(matches!(ShardReader::open(&path), Err(ShardError::Truncated { found: 0, .. })));

    assert!(matches!(ShardReader::open(dir.path()), Err(ShardError::NotAFile { .. })));
    assert!(matches!(ShardReader::open("/dev/zero"), Err(ShardError::NotAFile { .. })));
    let missing = dir.path().join("missing.shard");
    let error = ShardReader::open(&missing).unwrap_err();
    assert!(matches!(error, ShardError::Io { .. }) && error.to_string().contains("missing.shard"));
}

#[test]
fn a_token_outside_the_vocabulary_is_refused_and_the_writer_goes_on() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.shard");
    let mut writer = ShardWriter::create(&path, meta(10)).unwrap();
    writer.push_document([0; 16], 1, &[1, 2]).unwrap();
    match writer.push_document([1; 16], 1, &[9, 10, 11]) {
        Err(ShardError::TokenOutsideVocabulary {
            document: 1,
            position: 1,
            token: 10,
            vocab_size: 10,
            ..
        }) => {}
        other => panic!("{other:?}"),
    }
    writer.push_document([2; 16], 1, &[3]).unwrap();
    assert_eq!(writer.finish().unwrap().tokens, 3);
    let reader = ShardReader::open(&path).unwrap();
    assert_eq!(reader.documents().map(|d| d.unwrap().id[0]).collect::<Vec<_>>(), [0, 2]);
}

#[test]
fn a_writer_dropped_before_finish_leaves_nothing_and_the_old_file_stays() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.shard");
    let mut writer = ShardWriter::create(&path, meta(10)).unwrap();
    writer.push_document([0; 16], 1, &[1, 2]).unwrap();
    assert!(!path.exists());
    drop(writer);
    assert!(names(dir.path()).is_empty());

    let mut writer = ShardWriter::create(&path, meta(10)).unwrap();
    writer.push_document([0; 16], 1, &[1, 2]).unwrap();
    writer.finish().unwrap();
    let mut writer = ShardWriter::create(&path, meta(10)).unwrap();
    writer.push_document([0; 16], 1, &[3, 4, 5]).unwrap();
    drop(writer);
    assert_eq!(ShardReader::open(&path).unwrap().token_count(), 2);
    assert_eq!(names(dir.path()), ["a.shard"]);
}

#[test]
fn names_of_splits_that_could_be_misread_as_paths_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    for split in ["", "..", "a/b", "Train", "a b", "é", &"x".repeat(33)] {
        let meta = ShardMeta { split: split.into(), ..meta(10) };
        let refused = ShardWriter::create(dir.path().join("a.shard"), meta);
        assert!(matches!(refused, Err(ShardError::Meta { .. })), "{split:?}");
    }
    assert!(names(dir.path()).is_empty());
}

/// Runs in a child process whose files may not grow past a limit: the only portable full disk.
#[test]
fn child_that_meets_a_full_disk() {
    let Ok(dir) = std::env::var("SHARD_TEST_FULL_DISK") else { return };
    let path = Path::new(&dir).join("a.shard");
    let mut writer = ShardWriter::create(&path, meta(1000)).unwrap();
    let document = vec![1; 1 << 18];
    let mut error = None;
    for _ in 0..64 {
        if let Err(e) = writer.push_document([0; 16], 1, &document) {
            error = Some(e);
            break;
        }
    }
    let error = error.expect("the limit of the file size was not met");
    assert!(matches!(error, ShardError::Write { .. }) && error.to_string().contains("a.shard"), "{error}");
    let again = writer.push_document([0; 16], 1, &[1]);
    assert!(matches!(again, Err(ShardError::Poisoned { .. })));
    assert!(matches!(writer.finish(), Err(ShardError::Poisoned { .. })));
}

#[test]
fn a_full_disk_is_an_error_and_leaves_nothing_visible() {
    let dir = tempfile::tempdir().unwrap();
    let test = std::env::current_exe().unwrap();
    // An ignored SIGXFSZ is inherited, so that a write past the limit fails with EFBIG instead of killing.
    let output = std::process::Command::new("sh")
        .args(["-c", "trap '' XFSZ; ulimit -f 4096; exec \"$0\" --exact files::child_that_meets_a_full_disk"])
        .arg(&test)
        .env("SHARD_TEST_FULL_DISK", dir.path())
        .output()
        .unwrap();
    let told = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{told}");
    assert!(told.contains("1 passed"), "{told}");
    assert!(names(dir.path()).is_empty(), "{:?}", names(dir.path()));
}
