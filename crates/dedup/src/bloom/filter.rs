//! A Bloom filter (Bloom 1970) in shards, with a file format of its own.
//!
//! ```text
//! k = ⌈m/n ln 2⌉      p = (1 − (1 − 1/m)^{kn})^k      positions (h1 + i h2) mod m, i = 0 … k − 1
//! ```
//! h1 is the key itself, a well-mixed 64-bit hash; h2 is the finaliser of SplitMix64 of it, made odd (Kirsch,
//! Mitzenmacher, "Less Hashing, Same Performance", 2006). The highest six bits of the key choose the shard.
//!
//! File, little-endian: magic `BESSBLOM`, version u32, k u32, seed u64, bits u64, inserted u64, checksum u64, then
//! bits / 64 words. The checksum is the XXH3 of everything else in the file, in its order. (Version 1 left the header out.)

use super::SHARDS;
use crate::mix::mix;
use std::io::{Error, ErrorKind, Read, Result, Write};
use xxhash_rust::xxh3::Xxh3Default;

/// The first bytes of a file.
pub const MAGIC: &[u8; 8] = b"BESSBLOM";
/// Version of the file format.
pub const VERSION: u32 = 2;
/// Bytes in front of the checksum.
const HEADER: usize = 40;
/// Bits of the smallest filter: 1 MiB.
const SMALLEST: u64 = 8 << 20;

/// Bits and hashes of a filter.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Size {
    /// Bits, a power of two.
    pub bits: u64,
    /// Positions of a key.
    pub hashes: u32,
    /// Share of false answers when the expected number of keys is in.
    pub false_positives: f64,
}

impl Size {
    /// The smallest size, doubled from 1 MiB, at which `expected` keys give at most `target` false answers.
    pub fn for_keys(expected: u64, target: f64) -> Size {
        let mut bits = SMALLEST;
        loop {
            let (m, n) = (bits as f64, expected.max(1) as f64);
            let hashes = (m / n * std::f64::consts::LN_2).ceil().clamp(1.0, 64.0);
            // (1 − 1/m)^(kn) without losing 1/m in the rounding of 1.
            let empty = (hashes * n * (-1.0 / m).ln_1p()).exp();
            let false_positives = (1.0 - empty).powf(hashes);
            if false_positives <= target || bits >= 1 << 50 {
                return Size { bits, hashes: hashes as u32, false_positives };
            }
            bits *= 2;
        }
    }
}

/// The filter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Filter {
    hashes: u32,
    seed: u64,
    inserted: u64,
    words: Vec<u64>,
}

/// One shard of a filter while several threads work on different ones.
pub(super) struct Shard<'f> {
    words: &'f mut [u64],
    hashes: u32,
}

impl Shard<'_> {
    fn positions(&self, key: u64) -> impl Iterator<Item = (usize, u64)> + use<> {
        let mask = self.words.len() as u64 * 64 - 1;
        let step = mix(key) | 1;
        (0..u64::from(self.hashes)).map(move |i| {
            let bit = key.wrapping_add(i.wrapping_mul(step)) & mask;
            ((bit / 64) as usize, 1 << (bit % 64))
        })
    }

    pub(super) fn contains(&self, key: u64) -> bool {
        self.positions(key).all(|(word, bit)| self.words[word] & bit != 0)
    }

    pub(super) fn insert(&mut self, key: u64) {
        for (word, bit) in self.positions(key) {
            self.words[word] |= bit;
        }
    }
}

/// The shard of a key.
pub(super) fn shard_of(key: u64) -> usize {
    (key >> 58) as usize
}

impl Filter {
    /// An empty filter.
    pub fn new(size: Size, seed: u64) -> Filter {
        Filter { hashes: size.hashes, seed, inserted: 0, words: vec![0; (size.bits / 64) as usize] }
    }

    /// The seed of the hashes of its keys.
    pub fn seed(&self) -> u64 {
        self.seed
    }

    /// Keys inserted so far, repeats included.
    pub fn inserted(&self) -> u64 {
        self.inserted
    }

    /// Counts keys that were inserted through shards.
    pub(super) fn count(&mut self, keys: u64) {
        self.inserted += keys;
    }

    /// All shards, each to be given to one thread.
    pub(super) fn shards(&mut self) -> Vec<Shard<'_>> {
        let length = self.words.len() / SHARDS;
        let hashes = self.hashes;
        self.words.chunks_exact_mut(length).map(|words| Shard { words, hashes }).collect()
    }

    fn shard(&mut self, key: u64) -> Shard<'_> {
        let length = self.words.len() / SHARDS;
        let at = shard_of(key) * length;
        Shard { words: &mut self.words[at..at + length], hashes: self.hashes }
    }

    /// Whether a key may have been inserted.
    pub fn contains(&mut self, key: u64) -> bool {
        self.shard(key).contains(key)
    }

    /// Inserts a key.
    pub fn insert(&mut self, key: u64) {
        self.shard(key).insert(key);
        self.inserted += 1;
    }

    /// Everything in front of the checksum.
    fn header(&self) -> [u8; HEADER] {
        let mut header = [0; HEADER];
        header[..8].copy_from_slice(MAGIC);
        header[8..12].copy_from_slice(&VERSION.to_le_bytes());
        header[12..16].copy_from_slice(&self.hashes.to_le_bytes());
        for (index, word) in [self.seed, self.words.len() as u64 * 64, self.inserted].iter().enumerate() {
            header[16 + 8 * index..][..8].copy_from_slice(&word.to_le_bytes());
        }
        header
    }

    fn checksum(&self) -> u64 {
        let mut hash = Xxh3Default::new();
        hash.update(&self.header());
        for word in &self.words {
            hash.update(&word.to_le_bytes());
        }
        hash.digest()
    }

    /// Writes the filter.
    ///
    /// # Errors
    /// The writer's.
    pub fn write_to(&self, out: &mut impl Write) -> Result<()> {
        out.write_all(&self.header())?;
        out.write_all(&self.checksum().to_le_bytes())?;
        self.words.iter().try_for_each(|word| out.write_all(&word.to_le_bytes()))
    }

    /// Reads a filter that takes at most `limit` bytes.
    ///
    /// # Errors
    /// The reader's; `InvalidData` for another format or version, impossible sizes, or a wrong checksum.
    pub fn read_from(input: &mut impl Read, limit: usize) -> Result<Filter> {
        let fault = |what: String| Error::new(ErrorKind::InvalidData, what);
        let mut magic = [0; 8];
        input.read_exact(&mut magic)?;
        if &magic != MAGIC {
            return Err(fault("no Bloom filter: the file does not begin with BESSBLOM".into()));
        }
        let mut half = || -> Result<u32> {
            let mut bytes = [0; 4];
            input.read_exact(&mut bytes)?;
            Ok(u32::from_le_bytes(bytes))
        };
        let (version, hashes) = (half()?, half()?);
        if version != VERSION {
            return Err(fault(format!("Bloom filter of version {version}; this program reads {VERSION}")));
        }
        let mut word = || -> Result<u64> {
            let mut bytes = [0; 8];
            input.read_exact(&mut bytes)?;
            Ok(u64::from_le_bytes(bytes))
        };
        let (seed, bits, inserted, checksum) = (word()?, word()?, word()?, word()?);
        if !bits.is_power_of_two() || bits < 64 * SHARDS as u64 || !(1..=64).contains(&hashes) {
            return Err(fault(format!("Bloom filter of {bits} bits and {hashes} hashes cannot be")));
        }
        if bits / 8 > limit as u64 {
            return Err(fault(format!("Bloom filter of {} bytes; at most {limit} are allowed", bits / 8)));
        }
        let words = (0..bits / 64).map(|_| word()).collect::<Result<Vec<u64>>>()?;
        let filter = Filter { hashes, seed, inserted, words };
        if filter.checksum() != checksum {
            return Err(fault("Bloom filter is damaged: its checksum differs".into()));
        }
        Ok(filter)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mix::stream;

    #[test]
    fn sizes_are_those_of_dolma() {
        let million = Size::for_keys(1_000_000, 0.01);
        assert_eq!((million.bits, million.hashes), (2 << 23, 12));
        assert!((million.false_positives - 3.165e-4).abs() < 5e-8, "{}", million.false_positives);
        let billion = Size::for_keys(1_000_000_000, 0.01);
        assert_eq!((billion.bits, billion.hashes), (2 << 33, 12));
        assert!((billion.false_positives - 2.602e-4).abs() < 5e-8, "{}", billion.false_positives);
    }

    #[test]
    fn false_answers_are_as_rare_as_the_formula_says() {
        let size = Size { bits: 1 << 18, hashes: 5, false_positives: 0.0 };
        let mut filter = Filter::new(size, 1);
        let keys = 30_000;
        (0..keys).for_each(|i| filter.insert(stream(1, i)));
        assert!((0..keys).all(|i| filter.contains(stream(1, i))), "none is forgotten");
        let wrong = (0..100_000).filter(|&i| filter.contains(stream(2, i))).count() as f64 / 100_000.0;
        let (m, n, k) = ((1 << 18) as f64, keys as f64, 5.0);
        let expected = (1.0 - (1.0 - 1.0 / m).powf(k * n)).powf(k);
        assert!((wrong - expected).abs() < 5.0 * (expected / 100_000.0).sqrt(), "{wrong} {expected}");
    }

    #[test]
    fn files_come_back_and_damage_is_told() {
        let mut filter = Filter::new(Size { bits: 1 << 12, hashes: 3, false_positives: 0.0 }, 9);
        (0..50).for_each(|i| filter.insert(stream(1, i)));
        let mut bytes = Vec::new();
        filter.write_to(&mut bytes).unwrap();
        assert_eq!(bytes.len(), 48 + 512);
        assert_eq!(Filter::read_from(&mut &bytes[..], 1 << 20).unwrap(), filter);
        let told = |change: &dyn Fn(&mut Vec<u8>), limit| {
            let mut bytes = bytes.clone();
            change(&mut bytes);
            Filter::read_from(&mut &bytes[..], limit).unwrap_err().to_string()
        };
        assert!(told(&|bytes| bytes[0] = b'X', 1 << 20).contains("BESSBLOM"));
        assert!(told(&|bytes| bytes[8] = 1, 1 << 20).contains("version 1"));
        assert!(told(&|bytes| bytes[100] ^= 1, 1 << 20).contains("checksum"));
        assert!(told(&|bytes| bytes[24] = 77, 1 << 20).contains("cannot be"));
        assert!(told(&|bytes| bytes[30] = 1, 1 << 20).contains("cannot be"));
        assert!(told(&|_| (), 10).contains("at most 10"));
        assert!(Filter::read_from(&mut &bytes[..100], 1 << 20).is_err());
        for at in 0..bytes.len() {
            for bit in 0..8 {
                told(&|bytes| bytes[at] ^= 1 << bit, 1 << 20);
            }
        }
    }
}
