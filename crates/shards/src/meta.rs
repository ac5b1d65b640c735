//! Metadata of a shard file: its tokens, their tokenizer and split.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// Identity of a document: 16 bytes of a content hash, as the corpus gave it.
pub type DocumentId = [u8; 16];

/// Longest name of a split in bytes.
pub(crate) const SPLIT_BYTES: usize = 32;

/// A 32-byte hash that identifies the tokenizer which made the tokens. Displays as 64 hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Fingerprint(pub [u8; 32]);

impl fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|b| write!(f, "{b:02x}"))
    }
}

impl fmt::Debug for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Fingerprint({self})")
    }
}

impl From<[u8; 32]> for Fingerprint {
    fn from(bytes: [u8; 32]) -> Self {
        Fingerprint(bytes)
    }
}

impl From<Fingerprint> for String {
    fn from(f: Fingerprint) -> String {
        f.to_string()
    }
}

impl FromStr for Fingerprint {
    type Err = String;
    fn from_str(s: &str) -> Result<Self, String> {
        let wrong =
            || format!("wanted a tokenizer fingerprint of 64 lowercase hexadecimal digits, found {s:?}");
        let digit = |b: u8| match b {
            b'0'..=b'9' => Some(b - b'0'),
            b'a'..=b'f' => Some(b - b'a' + 10),
            _ => None,
        };
        if s.len() != 64 {
            return Err(wrong());
        }
        let mut bytes = [0; 32];
        for (byte, pair) in bytes.iter_mut().zip(s.as_bytes().chunks_exact(2)) {
            *byte = digit(pair[0]).zip(digit(pair[1])).map(|(h, l)| h << 4 | l).ok_or_else(wrong)?;
        }
        Ok(Fingerprint(bytes))
    }
}

impl TryFrom<String> for Fingerprint {
    type Error = String;
    fn try_from(s: String) -> Result<Self, String> {
        s.parse()
    }
}

/// Metadata of one shard file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ShardMeta {
    /// Number of token ids; every token in the file is below it.
    pub vocab_size: u32,
    /// The tokenizer that made the tokens.
    pub tokenizer: Fingerprint,
    /// Name of the split: 1 to 32 of `a-z 0-9 - _`.
    pub split: String,
    /// Position of this file among the files of its split, from 0.
    pub ordinal: u32,
}

impl ShardMeta {
    /// Bytes of one token in the file: 2 or 4.
    pub fn token_bytes(&self) -> u32 {
        token_bytes_for(self.vocab_size)
    }

    /// Says what is wrong with the values, if anything.
    pub(crate) fn check(&self) -> Result<(), String> {
        if self.vocab_size == 0 {
            return Err("vocab_size: wanted at least 1, found 0".into());
        }
        check_split(&self.split)
    }
}

/// Bytes of one token for a vocabulary: 2 up to 65,536 tokens, else 4.
pub fn token_bytes_for(vocab_size: u32) -> u32 {
    if vocab_size <= 1 << 16 { 2 } else { 4 }
}

/// A split names a folder, so it may hold nothing that a path could misread.
pub(crate) fn check_split(split: &str) -> Result<(), String> {
    let allowed = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-' || b == b'_';
    if split.is_empty() || split.len() > SPLIT_BYTES || !split.bytes().all(allowed) {
        return Err(format!("split: wanted 1 to {SPLIT_BYTES} of a-z 0-9 - _, found {split:?}"));
    }
    Ok(())
}
