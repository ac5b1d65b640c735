//! tiny-shakespeare as the ladder reads it: one id a character, the first 90 % to train, the rest to validate.

use bessemer_tensor::rng::RngKey;
use std::path::PathBuf;

/// The training and the validation part of the text, as character ids.
pub(crate) struct Text {
    pub(crate) train: Vec<u32>,
    pub(crate) validation: Vec<u32>,
    pub(crate) vocab: usize,
}

impl Text {
    /// Finds the text (1,115,394 bytes) in `shared/data` of the repository or of a directory above it, or at
    /// BESSEMER_TINYSHAKESPEARE; `None`, with a message, if it is absent.
    pub(crate) fn find() -> Option<Text> {
        let named = std::env::var_os("BESSEMER_TINYSHAKESPEARE").map(PathBuf::from);
        let root = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
        let beside = root.ancestors().skip(2).take(2).map(|d| d.join("shared/data/tinyshakespeare.txt"));
        let Some(text) = named.into_iter().chain(beside).find_map(|path| std::fs::read(path).ok()) else {
            println!(
                "skipped: shared/data/tinyshakespeare.txt is absent (BESSEMER_TINYSHAKESPEARE names another place)"
            );
            return None;
        };
        assert_eq!(text.len(), 1_115_394, "this is not the tiny-shakespeare of char-rnn");
        let mut alphabet = text.clone();
        alphabet.sort_unstable();
        alphabet.dedup();
        let id = |c: &u8| alphabet.binary_search(c).unwrap() as u32;
        let (train, validation) = text.split_at(1_003_854);
        let ids = |part: &[u8]| part.iter().map(id).collect();
        Some(Text { train: ids(train), validation: ids(validation), vocab: alphabet.len() })
    }
}

/// `rows` windows of `t` ids that start anywhere in `data`: inputs and the ids that follow them.
pub(crate) fn random_windows(data: &[u32], rows: usize, t: usize, key: RngKey) -> (Vec<u32>, Vec<u32>) {
    let starts: Vec<usize> = (0..rows).map(|r| key.block(r as u64)[0] as usize % (data.len() - t)).collect();
    let cut = |shift: usize| starts.iter().flat_map(|&s| &data[s + shift..s + shift + t]).copied().collect();
    (cut(0), cut(1))
}
