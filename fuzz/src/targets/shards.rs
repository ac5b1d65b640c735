//! Files of tokens: opened, verified, read.

use bessemer_shards::{Fingerprint, ShardMeta, ShardReader, ShardSet, ShardWriter};
use std::sync::LazyLock;

static WHOLE: LazyLock<Vec<u8>> = LazyLock::new(|| {
    let meta =
        ShardMeta { vocab_size: 300, tokenizer: Fingerprint([7; 32]), split: "train".into(), ordinal: 0 };
    let path = crate::folder().join("whole");
    let mut writer = ShardWriter::create(&path, meta).expect("a new file");
    writer.push_document([1; 16], 9, &[1, 2, 299]).expect("tokens of the vocabulary");
    writer.push_document([2; 16], 3, &[5]).expect("tokens of the vocabulary");
    writer.push_scored([3; 16], 3, &[5, 6, 7], &[0..1, 2..3]).expect("tokens of the vocabulary");
    writer.finish().expect("a whole file");
    std::fs::read(path).expect("a whole file")
});

/// Runs the target on one input.
pub fn run(data: &[u8]) {
    let path = crate::file("a.shard", &crate::damaged(&WHOLE, data));
    if let Ok(reader) = ShardReader::open(&path) {
        let _ = reader.verify();
        let _ = reader.read(0, &mut [0; 16]);
        let _ = reader.documents().take(100).count();
        let _ = reader.replace_unscored(0, &mut [0; 5], 1);
        let _ = reader.count_scored(0, reader.token_count());
        let _ = reader.read(reader.token_count().saturating_sub(3), &mut [0; 3]);
    }
    // The same bytes as the index of a set.
    let folder = crate::folder().join("set");
    let _ = std::fs::create_dir_all(&folder);
    let _ = std::fs::write(folder.join("shards.json"), data);
    let _ = ShardSet::open(&folder, "train");
}
