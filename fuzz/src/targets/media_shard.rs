//! Files of samples (media-shard): opened, verified, read.

use bessemer_media::shard::{Array, DType, Sample, ShardMeta, ShardReader, ShardWriter};
use std::sync::LazyLock;

static WHOLE: LazyLock<Vec<u8>> = LazyLock::new(|| {
    let meta = ShardMeta { vocab_size: 300, tokenizer: [7; 32], ordinal: 0 };
    let path = crate::folder().join("whole");
    let mut writer = ShardWriter::create(&path, meta).expect("a new file");
    for key in ["a", "b/c"] {
        let array = Array::new(DType::U8, &[2, 3], vec![9; 6]).expect("six bytes");
        writer.push(&Sample { key: key.into(), tokens: vec![1, 2], array }).expect("a sample");
    }
    writer.finish().expect("a whole file");
    std::fs::read(path).expect("a whole file")
});

/// Runs the target on one input.
pub fn run(data: &[u8]) {
    let path = crate::file("a.media", &crate::damaged(&WHOLE, data));
    if let Ok(reader) = ShardReader::open(&path) {
        let _ = reader.verify();
        for (index, sample) in reader.samples().take(100).enumerate() {
            let _ = (reader.key(index as u64), sample);
        }
    }
}
