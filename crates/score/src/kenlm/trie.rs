//! N-grams in KenLM's trie: words in the order last to first, children of a node sorted by word id and packed to the
//! bit, with or without quantised weights and with or without a separate array for the high bits of the pointers
//! (the compression of Raj and Whittaker 2003).
//!
//! The bytes of the file are kept as they are; whatever they hold, look-ups stay inside them.

use crate::error::Result;
use crate::source::Source;
use std::io::Read;

/// How the weights and pointers are stored.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Kind {
    pub(crate) quantised: bool,
    pub(crate) array: bool,
}

/// Nodes `begin..end` of the next longer order.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Range {
    begin: u64,
    end: u64,
}

#[derive(Debug, Clone)]
pub(crate) struct Trie {
    bytes: Vec<u8>,
    unigrams: u64,
    middle: Vec<Level>,
    longest: Level,
    tables: Option<Tables>,
}

/// One order of the trie.
#[derive(Debug, Clone, Default)]
struct Level {
    entries: u64,
    /// Offset of the packed entries, in bytes.
    at: u64,
    word_bits: u32,
    weight_bits: u32,
    /// Bits of a pointer that stand in the entry.
    next_bits: u32,
    /// Sorted: the first entry whose pointer has high bits 0, 1, 2, ...
    high: Vec<u64>,
}

/// Quantised weights: where the tables begin and their number of bits.
#[derive(Debug, Clone)]
struct Tables {
    probability_bits: u32,
    backoff_bits: u32,
    /// Per middle order the probabilities and the back-off weights; last the probabilities of the longest order.
    probability: Vec<Vec<f32>>,
    backoff: Vec<Vec<f32>>,
}

fn bits_for(value: u64) -> u32 {
    u64::BITS - value.leading_zeros()
}

impl Level {
    fn total_bits(&self) -> u32 {
        self.word_bits + self.weight_bits + self.next_bits
    }

    /// Bytes of the packed entries: one entry more for the last pointer, and 8 bytes so that reads need no care.
    fn bytes(&self) -> Option<u64> {
        let bits = self.entries.checked_add(1)?.checked_mul(self.total_bits() as u64)?;
        (bits.checked_add(7)? / 8).checked_add(8)
    }
}

/// Low bits that the array takes away from a pointer, as KenLM chooses them.
fn chopped_bits(entries: u64, max_next: u64, configured: u32) -> u32 {
    let required = bits_for(max_next);
    let cost = |chop: u32| {
        let table = if chop == 0 { 0 } else { max_next >> (required - chop) };
        table as i128 * 64 - entries as i128 * chop as i128
    };
    (0..=required.min(configured)).min_by_key(|&chop| (cost(chop), chop)).unwrap_or(0)
}

impl Trie {
    /// Reads what follows the vocabulary; `at` is the distance of the source from the start of the file.
    pub(crate) fn read<R: Read>(source: &mut Source<R>, counts: &[u64], kind: Kind) -> Result<Trie> {
        let start = source.at();
        let order = counts.len();
        for &count in counts {
            if count >= 1 << 57 {
                return Err(source.error(format!("impossible number of n-grams of one order, {count}")));
            }
        }
        let tables = if kind.quantised { Some(Tables::read(source, order)?) } else { None };
        let header = source.at() - start;
        // Whatever comes after the vocabulary and the tables is kept, except the words at the end.
        let unigram_bytes = counts[0].saturating_add(2).saturating_mul(16);
        source.need(unigram_bytes, "the unigrams of the trie")?;
        let bytes = source.bytes(source.remaining(), "the trie")?;
        let base = start + header;
        let mut at = unigram_bytes;
        let mut configured = None;
        let mut middle = Vec::new();
        for n in 1..order - 1 {
            let weight_bits = tables.as_ref().map_or(63, |t| t.probability_bits + t.backoff_bits);
            let mut level =
                Level { entries: counts[n], weight_bits, word_bits: bits_for(counts[0]), ..Level::default() };
            level.next_bits = bits_for(counts[n + 1]);
            if kind.array {
                let bad = || source.error("the pointers of the trie are not where they should be");
                let head = bytes.get(at as usize..at as usize + 2).ok_or_else(bad)?;
                let bits = match configured {
                    None if head[0] != 0 => return Err(bad()),
                    None => *configured.insert(head[1] as u32),
                    Some(bits) => bits,
                };
                let chopped = chopped_bits(counts[n] + 1, counts[n + 1], bits);
                level.next_bits -= chopped;
                let high = if chopped == 0 { 1 } else { (counts[n + 1] >> level.next_bits) + 1 };
                // Aligned as the file is, after 8 bytes of header.
                let padding = (base + at).wrapping_neg() % 8;
                let from = at + padding + 8;
                let until = high.checked_mul(8).and_then(|b| b.checked_add(from)).ok_or_else(bad)?;
                let array = bytes.get(from as usize..until as usize).ok_or_else(bad)?;
                level.high =
                    array.chunks_exact(8).map(|b| u64::from_le_bytes(b.try_into().expect("8"))).collect();
                level.high[0] = 0;
                if level.high.windows(2).any(|pair| pair[0] > pair[1]) {
                    return Err(bad());
                }
                at += 8 * (1 + high) + 7;
            }
            level.at = at;
            at = level
                .bytes()
                .and_then(|b| b.checked_add(at))
                .ok_or_else(|| source.error("the trie has impossible sizes"))?;
            middle.push(level);
        }
        let weight_bits = tables.as_ref().map_or(31, |t| t.probability_bits);
        let mut longest = Level { entries: counts[order - 1], weight_bits, ..Level::default() };
        (longest.word_bits, longest.at) = (bits_for(counts[0]), at);
        let end = longest.bytes().and_then(|b| b.checked_add(at)).unwrap_or(u64::MAX);
        if end > bytes.len() as u64 {
            return Err(source.error(format!(
                "the counts of the header need {end} bytes of trie, found {}: the file is truncated",
                bytes.len()
            )));
        }
        let mut bytes = bytes;
        bytes.truncate(end as usize);
        let trie = Trie { bytes, unigrams: counts[0], middle, longest, tables };
        trie.check(source)?;
        Ok(trie)
    }

    /// Unigram weights must be numbers; longer ones are judged when they are read.
    fn check<R: Read>(&self, source: &Source<R>) -> Result<()> {
        for id in 0..self.unigrams {
            let (log10, backoff, _) = self.unigram(id as u32);
            if !log10.is_finite() || !backoff.is_finite() {
                return Err(source.error(format!("unigram {id} has weights {log10} and {backoff}")));
            }
        }
        Ok(())
    }

    fn bits(&self, base: u64, offset: u64, count: u32) -> u64 {
        let from = (base + offset / 8) as usize;
        let Some(eight) = self.bytes.get(from..from + 8) else { return 0 };
        let word = u64::from_le_bytes(eight.try_into().expect("eight bytes"));
        (word >> (offset % 8)) & ((1u64 << count) - 1)
    }

    pub(crate) fn unigram(&self, id: u32) -> (f32, f32, Range) {
        let at = id.min(self.unigrams as u32) as usize * 16;
        let four = |at: usize| f32::from_le_bytes(self.bytes[at..at + 4].try_into().expect("four bytes"));
        let next = |at: usize| u64::from_le_bytes(self.bytes[at..at + 8].try_into().expect("eight bytes"));
        (four(at), four(at + 4), Range { begin: next(at + 8), end: next(at + 24) })
    }

    /// The entry of `word` among the nodes of `range`.
    fn entry(&self, level: &Level, word: u32, range: Range) -> Option<u64> {
        let total = level.total_bits() as u64;
        let (mut low, mut high) = (range.begin, range.end.min(level.entries));
        while low < high {
            let middle = low + (high - low) / 2;
            match self.bits(level.at, middle * total, level.word_bits).cmp(&(word as u64)) {
                std::cmp::Ordering::Equal => return Some(middle),
                std::cmp::Ordering::Less => low = middle + 1,
                std::cmp::Ordering::Greater => high = middle,
            }
        }
        None
    }

    /// Weights of the n-gram of length `2 + at` that extends the node by `word`, and its own children.
    pub(crate) fn middle(&self, at: usize, word: u32, range: &mut Range) -> Option<(f32, f32)> {
        let level = &self.middle[at];
        let index = self.entry(level, word, *range)?;
        let bit = index * level.total_bits() as u64 + level.word_bits as u64;
        let (log10, backoff) = match &self.tables {
            None => {
                let log10 = self.bits(level.at, bit, 31) as u32 | 1 << 31;
                let backoff = self.bits(level.at, bit + 31, 32) as u32;
                (f32::from_bits(log10), f32::from_bits(backoff))
            }
            Some(tables) => {
                let backoff = self.bits(level.at, bit, tables.backoff_bits) as usize;
                let log10 =
                    self.bits(level.at, bit + tables.backoff_bits as u64, tables.probability_bits) as usize;
                (tables.probability[at][log10], tables.backoff[at][backoff])
            }
        };
        *range = Range { begin: self.next(level, index), end: self.next(level, index + 1) };
        (log10.is_finite() && backoff.is_finite()).then_some((log10, backoff))
    }

    /// Index of the first child of entry `index`.
    fn next(&self, level: &Level, index: u64) -> u64 {
        let bit = index * level.total_bits() as u64 + (level.word_bits + level.weight_bits) as u64;
        let low = self.bits(level.at, bit, level.next_bits);
        if level.high.is_empty() {
            return low;
        }
        let high = level.high.partition_point(|&first| first <= index) as u64 - 1;
        high << level.next_bits | low
    }

    pub(crate) fn longest(&self, word: u32, range: Range) -> Option<f32> {
        let level = &self.longest;
        let bit = self.entry(level, word, range)? * level.total_bits() as u64 + level.word_bits as u64;
        let log10 = match &self.tables {
            None => f32::from_bits(self.bits(level.at, bit, 31) as u32 | 1 << 31),
            Some(tables) => {
                let code = self.bits(level.at, bit, tables.probability_bits) as usize;
                tables.probability[self.middle.len()][code]
            }
        };
        log10.is_finite().then_some(log10)
    }
}

impl Tables {
    fn read<R: Read>(source: &mut Source<R>, order: usize) -> Result<Tables> {
        let head = source.bytes(8, "the header of the quantised weights")?;
        let (version, probability_bits, backoff_bits) = (head[0], head[1] as u32, head[2] as u32);
        if version != 2 || !(1..=25).contains(&probability_bits) || !(1..=25).contains(&backoff_bits) {
            return Err(source.error(format!(
                "quantisation version {version} with {probability_bits} and {backoff_bits} bits; wanted version 2 \
                 and 1 to 25 bits"
            )));
        }
        let mut tables =
            Tables { probability_bits, backoff_bits, probability: Vec::new(), backoff: Vec::new() };
        for n in 2..=order {
            tables.probability.push(floats(source, 1 << probability_bits)?);
            if n < order {
                tables.backoff.push(floats(source, 1 << backoff_bits)?);
            }
        }
        Ok(tables)
    }
}

/// Floats of which some may be infinite: an unused bin is.
fn floats<R: Read>(source: &mut Source<R>, count: u64) -> Result<Vec<f32>> {
    let bytes = source.bytes(count * 4, "a table of quantised weights")?;
    Ok(bytes.chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().expect("four bytes"))).collect())
}
