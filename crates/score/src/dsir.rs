//! Importance of documents (Xie, Santurkar, Ma, Liang 2023, DSIR, arXiv:2302.03169): how much more likely a document is under the
//! n-grams of a target than under those of the source.
//!
//! Features: words and pairs of neighbouring words of the lower-cased text, hashed into [`BUCKETS`] buckets. Weight of a document: the
//! sum over its features of log(p_target / p_source), each bucket smoothed by one count.

use crate::error::Result;
use crate::source::{ModelFile, Source};
use bessemer_text::hash::xxh3;
use std::io::{self, Read, Write};

/// Buckets of hashed n-grams.
pub const BUCKETS: usize = 10_000;
/// What the file of a model begins with; the last character is the version.
const MAGIC: &[u8; 16] = b"bessemer dsir  1";
/// No log ratio of counts in 64 bits is larger.
const LARGEST_RATIO: f32 = 100.0;

/// Counts of hashed n-grams. The bags of parts of a corpus can be summed in any order.
#[derive(Debug, Clone, PartialEq)]
pub struct Bag {
    counts: Vec<u64>,
}

impl Default for Bag {
    fn default() -> Self {
        Bag { counts: vec![0; BUCKETS] }
    }
}

impl Bag {
    /// Adds a document.
    pub fn add(&mut self, text: &str) {
        for_each_feature(text, |bucket| self.counts[bucket] += 1);
    }

    /// Adds another bag.
    pub fn merge(&mut self, other: &Bag) {
        for (to, from) in self.counts.iter_mut().zip(&other.counts) {
            *to += from;
        }
    }

    fn log_probabilities(&self) -> impl Iterator<Item = f64> + '_ {
        let total = self.counts.iter().sum::<u64>() as f64 + BUCKETS as f64;
        self.counts.iter().map(move |&count| ((count as f64 + 1.0) / total).ln())
    }
}

/// Calls `each` with the bucket of every word and every pair of words. A word is a run of letters, digits and `_`, or
/// a run of anything else but white space.
fn for_each_feature(text: &str, mut each: impl FnMut(usize)) {
    let lower = text.to_lowercase();
    let class =
        |c: char| if c.is_whitespace() { 0 } else { 1 + u8::from(!(c.is_alphanumeric() || c == '_')) };
    let bucket = |bytes: &[u8]| (xxh3(bytes) % BUCKETS as u64) as usize;
    let mut pair = Vec::new();
    let mut previous: &str = "";
    let mut rest = lower.trim_start();
    while let Some(first) = rest.chars().next() {
        let kind = class(first);
        let end = rest.find(|c: char| class(c) != kind).unwrap_or(rest.len());
        let word = &rest[..end];
        each(bucket(word.as_bytes()));
        if !previous.is_empty() {
            pair.clear();
            pair.extend_from_slice(previous.as_bytes());
            pair.push(b' ');
            pair.extend_from_slice(word.as_bytes());
            each(bucket(&pair));
        }
        previous = word;
        rest = rest[end..].trim_start();
    }
}

/// The log ratio of every bucket.
#[derive(Debug, Clone, PartialEq)]
pub struct Importance {
    ratios: Vec<f32>,
}

impl Importance {
    /// The model of two bags.
    pub fn new(target: &Bag, source: &Bag) -> Importance {
        let ratios =
            target.log_probabilities().zip(source.log_probabilities()).map(|(t, s)| (t - s) as f32).collect();
        Importance { ratios }
    }

    /// log p_target(text) - log p_source(text): above 0 for text like the target. It grows with the length of the text.
    pub fn weight(&self, text: &str) -> f64 {
        let mut sum = 0.0;
        for_each_feature(text, |bucket| sum += self.ratios[bucket] as f64);
        sum
    }

    /// The weight divided by the number of features, which makes texts of different lengths comparable; 0 for none.
    pub fn mean_weight(&self, text: &str) -> f64 {
        let (mut sum, mut count) = (0.0, 0u64);
        for_each_feature(text, |bucket| {
            sum += self.ratios[bucket] as f64;
            count += 1;
        });
        if count == 0 { 0.0 } else { sum / count as f64 }
    }

    /// Writes the model: 16 bytes of magic with the version, then [`BUCKETS`] little-endian f32.
    ///
    /// # Errors
    /// The writer's.
    pub fn write(&self, to: &mut impl Write) -> io::Result<()> {
        to.write_all(MAGIC)?;
        to.write_all(&self.ratios.iter().flat_map(|r| r.to_le_bytes()).collect::<Vec<u8>>())
    }

    /// Reads what [`Importance::write`] wrote, `len` bytes long.
    ///
    /// # Errors
    /// A file that is something else.
    pub fn read(reader: impl Read, len: u64, name: &str) -> Result<Importance> {
        let mut source = Source::new(reader, len, name);
        let magic = source.bytes(16, "the magic of an importance model")?;
        if magic != MAGIC {
            return Err(
                source.error("not an importance model of version 1; train one with `corpus train-dsir`")
            );
        }
        let ratios = source.f32s(BUCKETS as u64, LARGEST_RATIO, "the log ratios")?;
        source.end()?;
        Ok(Importance { ratios })
    }

    /// Reads a file.
    ///
    /// # Errors
    /// As [`Importance::read`].
    pub fn open(path: &std::path::Path) -> Result<Importance> {
        let file = ModelFile::open(path)?;
        Importance::read(file.reader, file.len, &file.name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn model() -> Importance {
        let (mut target, mut source) = (Bag::default(), Bag::default());
        for i in 0..50 {
            target.add(&format!("the theorem of number {i} has a proof"));
            source.add(&format!("buy number {i} now, the best!"));
        }
        Importance::new(&target, &source)
    }

    #[test]
    fn text_like_the_target_weighs_more() {
        let model = model();
        assert!(model.weight("a proof of the theorem") > 0.0);
        assert!(model.weight("Buy now, buy!") < 0.0);
        assert_eq!(model.weight(""), 0.0);
        let mut bytes = Vec::new();
        model.write(&mut bytes).expect("a vector takes all");
        assert_eq!(Importance::read(&bytes[..], bytes.len() as u64, "m").expect("reads"), model);
        assert!(Importance::read(&bytes[..99], 99, "m").is_err());
        bytes[20..24].copy_from_slice(&f32::NAN.to_le_bytes());
        assert!(Importance::read(&bytes[..], bytes.len() as u64, "m").is_err());
    }
}
