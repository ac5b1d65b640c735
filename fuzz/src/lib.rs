//! What the fuzz targets share: a folder in memory for readers that take paths, and a small build of a corpus.

use bessemer_corpus::{BuildContext, CorpusConfig, SourceKind, build};
use std::path::{Path, PathBuf};
use std::sync::LazyLock;
use std::sync::atomic::AtomicBool;

static FOLDER: LazyLock<PathBuf> = LazyLock::new(|| {
    // A folder in memory where run.sh gives one (TMPDIR): a target writes thousands of files.
    let base = std::env::temp_dir();
    let folder = base.join(format!("bessemer-fuzz-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder for files of this process");
    folder
});

/// A folder of this process.
pub fn folder() -> &'static Path {
    &FOLDER
}

/// Writes a file into the folder of this process.
pub fn file(name: &str, data: &[u8]) -> PathBuf {
    let path = FOLDER.join(name);
    std::fs::write(&path, data).expect("the folder can be written");
    path
}

/// `data` itself or, where it begins with zero, the valid `whole` with bytes that `data` names (offset, value) changed: what a
/// checksum or a length of a file would otherwise keep away from the reader.
pub fn damaged(whole: &[u8], data: &[u8]) -> Vec<u8> {
    let Some((0, changes)) = data.split_first() else { return data.to_vec() };
    let mut bytes = whole.to_vec();
    for change in changes.as_chunks::<3>().0 {
        let offset = usize::from(u16::from_le_bytes([change[0], change[1]]));
        match bytes.get_mut(offset) {
            Some(byte) => *byte = change[2],
            // Beyond the end: the file is cut.
            None => bytes.truncate(whole.len() * usize::from(change[2]) / 256),
        }
    }
    bytes
}

/// Builds a corpus of one file. Faults of its documents are no errors of the build, so only a build without any document may fail.
pub fn build_corpus(source: SourceKind, name: &str, data: &[u8]) {
    let mut config =
        CorpusConfig { source, path: file(name, data).display().to_string(), ..CorpusConfig::default() };
    config.clean.min_bytes = 0;
    config.memory = "144MiB".into();
    let out = FOLDER.join("out");
    let _ = std::fs::remove_dir_all(&out);
    let stop = AtomicBool::new(false);
    let context = BuildContext { threads: 1, memory_budget: 4 << 20, progress: &|_| {}, stop: &stop };
    if let Ok(built) = build(&config, &out, &context) {
        let summary = built.summary;
        assert_eq!(summary.read.documents, summary.kept.documents + summary.dropped.documents);
    }
}

/// For readers that run an outside decoder behind `catch_unwind`: libFuzzer's hook would end the process at a panic that is
/// caught. Panics that nobody catches are still found.
pub fn caught_panics_are_errors() {
    std::panic::set_hook(Box::new(|_| {}));
}
