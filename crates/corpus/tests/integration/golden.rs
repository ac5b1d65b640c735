//! Corpora whose rows are written down: what changes them must say so, and raise a version (see `outputs`).

use bessemer_corpus::*;
use bessemer_corpus_config::*;
use std::fs;
use std::path::Path;
use std::sync::atomic::AtomicBool;
use tempfile::TempDir;
use xxhash_rust::xxh3::Xxh3Default;

/// Hash of what became of every document: kept ones with their whole text, dropped ones with the reason and the measured value.
pub(crate) fn rows(folder: &Path) -> String {
    let reader = CorpusReader::open(folder).unwrap();
    let mut hash = Xxh3Default::new();
    for split in Split::ALL {
        for document in reader.documents(split) {
            hash.update(format!("{split:?} {:?}\n", document.unwrap()).as_bytes());
        }
    }
    for row in reader.inspect(InspectFilter::default()) {
        let row = row.unwrap();
        // As the structure looked when the hashes were written down.
        let line = format!(
            "Inspected {{ id: {:?}, source: {:?}, path: {:?}, split: {:?}, reason: {:?}, detail: {:?}, bytes: {:?}, head: {:?} }}\n",
            row.id, row.source, row.path, row.split, row.reason, row.detail, row.bytes, row.head
        );
        hash.update(line.as_bytes());
    }
    format!("{:032x}", hash.digest128())
}

fn built(config: &CorpusConfig) -> (CorpusSummary, String) {
    let folder = TempDir::new().unwrap();
    let out = folder.path().join("corpus");
    let stop = AtomicBool::new(false);
    let context = BuildContext { threads: 2, memory_budget: 64 << 20, progress: &|_| {}, stop: &stop };
    let summary = build(config, &out, &context).unwrap().summary;
    (summary, rows(&out))
}

#[test]
fn the_embedded_corpus_is_the_one_it_was() {
    let config = CorpusConfig { source: SourceKind::Embedded, ..CorpusConfig::default() };
    let (_, rows) = built(&config);
    assert_eq!(rows, "bbc2b40303196c1afdd59331134a696d");
}

/// Addresses in every neighbourhood, and copies that differ in white space, on both sides of the split.
fn addresses_and_copies(folder: &Path) {
    const PIECES: &[&str] = &[
        "8.8.8.8",
        "10.0.0.1",
        ".3.3.3.0",
        "108.0.0.01",
        "1.2.3.4.5.6.7.8",
        "a@b.c",
        "@",
        "é8.8.4.4@x.y",
        "email@[123.123.123.123]",
        "a@1.1.1.1",
        "9.9.9.9@mail.example.org",
        "email..email@example.com",
        "v1.2.3",
        "x",
        " ",
        " ",
        "\n",
        "-",
        "é",
        ":",
        "jane.doe@mail.de",
    ];
    let mut state = 17u64;
    let mut next = |below: usize| {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (state >> 33) as usize % below
    };
    for source in 0..12 {
        let path = folder.join(format!("source-{source:02}"));
        fs::create_dir_all(&path).unwrap();
        for number in 0..30 {
            let mut text = String::new();
            for _ in 0..120 {
                text.push_str(PIECES[next(PIECES.len())]);
            }
            fs::write(path.join(format!("{number:02}.txt")), &text).unwrap();
            if number % 5 == 0 {
                // A copy in the next source, with other line ends.
                let other = folder.join(format!("source-{:02}", (source * 7 + number) % 12));
                fs::create_dir_all(&other).unwrap();
                fs::write(other.join(format!("copy-{source}-{number}.txt")), text.replace('\n', " \r\n\n"))
                    .unwrap();
            }
        }
    }
}

#[test]
fn addresses_and_copies_are_found_as_they_were() {
    let input = TempDir::new().unwrap();
    addresses_and_copies(input.path());
    let path = input.path().display().to_string();
    let mut config = CorpusConfig { source: SourceKind::Folder, path, ..CorpusConfig::default() };
    config.privacy.patterns = privacy::AddressPatterns::Datatrove;
    let (summary, rows) = built(&config);
    assert_eq!(summary.dropped_by_reason["duplicate"].documents, 72);
    assert_eq!(rows, "3e0b386bf5fd492be9091d62d86d6e75");
}
