//! Words and their ids. KenLM keeps 64-bit hashes of words and, for those who want them, the words themselves.

use super::murmur::murmur64;
use std::collections::HashMap;

/// The word of everything unknown; its id is 0.
pub(crate) const UNKNOWN: &str = "<unk>";
/// What stands before the first word of a sentence.
pub(crate) const BEGIN: &str = "<s>";
/// The word at the end of a sentence.
pub(crate) const END: &str = "</s>";

/// Hash of a word.
pub(crate) fn hash_word(word: &[u8]) -> u64 {
    murmur64(word, 0)
}

/// Ids of words by hash.
#[derive(Debug, Clone)]
pub(crate) enum Vocabulary {
    /// Any order of ids.
    Map(HashMap<u64, u32, Identity>),
    /// Sorted hashes: the id is the position plus one.
    Sorted(Vec<u64>),
}

/// The key is a hash already.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Identity(u64);

impl std::hash::BuildHasher for Identity {
    type Hasher = Identity;
    fn build_hasher(&self) -> Identity {
        Identity(0)
    }
}

impl std::hash::Hasher for Identity {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, bytes: &[u8]) {
        self.0 = murmur64(bytes, self.0);
    }
    fn write_u64(&mut self, value: u64) {
        self.0 = value;
    }
}

impl Vocabulary {
    /// The id of a word, 0 if it is unknown.
    pub(crate) fn id(&self, word: &[u8]) -> u32 {
        let hash = hash_word(word);
        match self {
            Vocabulary::Map(map) => map.get(&hash).copied().unwrap_or(0),
            Vocabulary::Sorted(hashes) => hashes.binary_search(&hash).map_or(0, |at| at as u32 + 1),
        }
    }
}
