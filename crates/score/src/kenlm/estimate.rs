//! Interpolated modified Kneser-Ney estimation (Chen and Goodman 1998) within a memory budget, by sorting n-grams on
//! disk as Heafield et al. 2013 do.
//!
//! ```text
//! a(g)   = count of g for the longest n-grams and those that begin with <s>, else the number of different words before g
//! n_k    = number of n-grams with a = k;  Y = n1 / (n1 + 2 n2);  D_k = k - (k + 1) Y n_{k+1} / n_k  for k = 1, 2, 3+
//! p(w|h) = (a(hw) - D(a(hw))) / sum_v a(hv)  +  gamma(h) p(w|h'),   gamma(h) = sum_v D(a(hv)) / sum_v a(hv)
//! p(w)   interpolates with 1 / |V|, V = all words, </s> and <unk>, without <s>
//! ```
//!
//! Passes: count n-grams (sort by last word, then the one before, ...); walk them once for the adjusted counts of all
//! orders; per order sort by history for sums and gamma; back to the first order of sorting, in which an n-gram meets
//! its shorter end and its own gamma by walking files side by side.

use super::arpa::Builder;
use super::vocabulary::{BEGIN, END, UNKNOWN};
use super::{LanguageModel, MAX_ORDER, words};
use crate::error::{Result, ScoreError};
use bessemer_durable::ConfinedDir;
use bessemer_external_sort::{
    RecordFile, RecordReader, RecordWidth, RecordWriter, SortMemory, SortedRecords, Sorter,
};
use std::collections::HashMap;
use std::io::{self, Write};
use std::path::PathBuf;

/// Widths of the records of n words and a number of eight bytes, at n - 2; of those with two numbers, at n.
const WIDTHS: [RecordWidth<u8>; 9] = [
    RecordWidth::bytes::<16>(),
    RecordWidth::bytes::<20>(),
    RecordWidth::bytes::<24>(),
    RecordWidth::bytes::<28>(),
    RecordWidth::bytes::<32>(),
    RecordWidth::bytes::<36>(),
    RecordWidth::bytes::<40>(),
    RecordWidth::bytes::<44>(),
    RecordWidth::bytes::<48>(),
];

const BEGIN_ID: u32 = 1;
const END_ID: u32 = 2;

/// How to estimate.
#[derive(Debug, Clone, PartialEq)]
pub struct EstimateConfig {
    /// Length of the longest n-grams, 2 to 8. KenLM as it is usually built reads up to 6.
    pub order: usize,
    /// Bytes for sorting. The words of the text are held besides.
    pub memory: u64,
    /// Folder for sorted runs.
    pub folder: PathBuf,
    /// Where the counts are too few for discounts of their own, take 0.5, 1 and 1.5; otherwise that is an error.
    pub fallback: bool,
}

/// Discounts for n-grams seen once, twice, and more often.
pub type Discounts = [f64; 3];

/// A model on disk, ready to be written.
pub struct Estimated {
    words: Vec<Box<str>>,
    /// Per order records of key (last word first), log10 probability, log10 back-off weight.
    orders: Vec<RecordFile>,
    /// Per order, and whether they are the fallback.
    discounts: Vec<(Discounts, bool)>,
}

impl std::fmt::Debug for Estimated {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Estimated")
            .field("counts", &self.counts())
            .field("discounts", &self.discounts)
            .finish()
    }
}

/// Adjusted counts of one order, with the numbers of n-grams that have the counts 1 to 4.
struct Adjusted {
    file: RecordFile,
    with_count: [u64; 4],
}

/// Estimates a model from `sentences`, each split at white space. The words `<s>`, `</s>` and `<unk>` in the text are
/// taken for white space.
///
/// # Errors
/// Where the configuration is out of range, there is no text, the counts give no discounts and `fallback` is off, or
/// the disk fails.
pub fn estimate(
    config: &EstimateConfig,
    sentences: impl IntoIterator<Item = Result<String>>,
) -> Result<Estimated> {
    if !(2..=MAX_ORDER).contains(&config.order) {
        return Err(ScoreError::Config(format!(
            "order = {} is out of range: wanted 2 to {MAX_ORDER}",
            config.order
        )));
    }
    // Two sorters may hold an eighth each beyond the limit.
    let limit = usize::try_from(config.memory / 5 * 4).unwrap_or(usize::MAX);
    let folder = ConfinedDir::open_named(&config.folder).map_err(|e| ScoreError::Config(e.to_string()))?;
    let memory = SortMemory::new(limit, &folder, 1);
    let (words, counted) = count(config, &memory, sentences)?;
    let mut unigrams = vec![0u64; words.len()];
    let adjusted = adjust(config, &folder, counted, &mut unigrams)?;
    let mut discounts = Vec::new();
    for (n, counts) in adjusted.iter().map(|a| a.with_count).enumerate() {
        let own = discounts_of(counts);
        if own.is_none() && !config.fallback {
            return Err(ScoreError::Training(format!(
                "the {}-grams seen 1, 2, 3 and 4 times number {counts:?}, which gives no discounts: the text is too \
                 small or repeats itself; allow the fallback discounts 0.5, 1, 1.5",
                n + 1
            )));
        }
        discounts.push((own.unwrap_or([0.5, 1.0, 1.5]), own.is_none()));
    }
    let mut parts = Vec::new();
    for (n, adjusted) in adjusted.iter().enumerate().skip(1) {
        parts.push(sums_and_gammas(config, &folder, &memory, n + 1, &adjusted.file, discounts[n].0)?);
    }
    drop(adjusted);
    let orders = interpolate(&folder, &unigrams, discounts[0].0, parts)?;
    Ok(Estimated { words, orders, discounts })
}

/// The discounts of Chen and Goodman, or `None` where the counts do not give them.
fn discounts_of([n1, n2, n3, n4]: [u64; 4]) -> Option<Discounts> {
    if [n1, n2, n3, n4].contains(&0) {
        return None;
    }
    let y = n1 as f64 / (n1 as f64 + 2.0 * n2 as f64);
    let one = |k: f64, here: u64, next: u64| k - (k + 1.0) * y * next as f64 / here as f64;
    let discounts = [one(1.0, n1, n2), one(2.0, n2, n3), one(3.0, n3, n4)];
    let sane = discounts.iter().zip([1.0, 2.0, 3.0]).all(|(d, k)| (0.0..=k).contains(d));
    sane.then_some(discounts)
}

fn discount(discounts: &Discounts, count: u64) -> f64 {
    match count {
        0 => 0.0,
        1 => discounts[0],
        2 => discounts[1],
        _ => discounts[2],
    }
}

fn word_at(key: &[u8], i: usize) -> u32 {
    u32::from_be_bytes(key[4 * i..4 * i + 4].try_into().expect("four bytes"))
}

fn u64_at(record: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(record[at..at + 8].try_into().expect("eight bytes"))
}

fn f64_at(record: &[u8], at: usize) -> f64 {
    f64::from_bits(u64_at(record, at))
}

/// The words, and all windows of `order` words sorted with the last word first; before a sentence stand `order - 1`
/// begins.
fn count<'s>(
    config: &EstimateConfig,
    memory: &'s SortMemory<'s>,
    sentences: impl IntoIterator<Item = Result<String>>,
) -> Result<(Vec<Box<str>>, SortedRecords<'s, u8>)> {
    let order = config.order;
    let mut ids: HashMap<Box<str>, u32> = HashMap::new();
    let mut names: Vec<Box<str>> = [UNKNOWN, BEGIN, END].map(Box::from).to_vec();
    let mut sorter = Sorter::new(memory, WIDTHS[order - 2]).summing();
    let mut record = vec![0u8; 4 * order + 8];
    record[4 * order..].copy_from_slice(&1u64.to_le_bytes());
    let mut any = false;
    for sentence in sentences {
        let sentence = sentence?;
        any = true;
        record[..4 * order].chunks_exact_mut(4).for_each(|id| id.copy_from_slice(&BEGIN_ID.to_be_bytes()));
        let mut put = |id: u32, sorter: &mut Sorter<'_, u8>| {
            record.copy_within(0..4 * (order - 1), 4);
            record[..4].copy_from_slice(&id.to_be_bytes());
            sorter.push(&record)
        };
        for word in words(&sentence).filter(|word| ![UNKNOWN, BEGIN, END, "<UNK>"].contains(word)) {
            let id = match ids.get(word) {
                Some(&id) => id,
                None => {
                    let id = names.len() as u32;
                    if id == u32::MAX {
                        return Err(ScoreError::Training("the text has 2^32 different words".into()));
                    }
                    ids.insert(word.into(), id);
                    names.push(word.into());
                    id
                }
            };
            put(id, &mut sorter)?;
        }
        put(END_ID, &mut sorter)?;
    }
    if !any || names.len() == 3 {
        return Err(ScoreError::Training("the text has no words to estimate a model from".into()));
    }
    Ok((names, sorter.finish()))
}

/// Adjusted counts of every order from the counts of the longest: all n-grams that share an end stand together, so the
/// different words before it can be counted in one walk.
fn adjust(
    config: &EstimateConfig,
    folder: &ConfinedDir,
    mut counted: SortedRecords<'_, u8>,
    unigrams: &mut [u64],
) -> Result<Vec<Adjusted>> {
    let order = config.order;
    let mut writers = Vec::new();
    for n in 1..=order {
        writers.push((RecordWriter::create(folder, 4 * n + 8)?, [0u64; 4]));
    }
    let mut emit = |key: &[u8], n: usize, adjusted: u64| -> Result<()> {
        // A history of two begins is one begin too many: the shorter n-gram stands for it.
        if n >= 2 && word_at(key, n - 1) == BEGIN_ID && word_at(key, n - 2) == BEGIN_ID {
            return Ok(());
        }
        if n == 1 {
            unigrams[word_at(key, 0) as usize] = adjusted;
        }
        let (writer, with_count) = &mut writers[n - 1];
        if (1..=4).contains(&adjusted) {
            with_count[adjusted as usize - 1] += 1;
        }
        let mut record = [0u8; 4 * MAX_ORDER + 8];
        record[..4 * n].copy_from_slice(&key[..4 * n]);
        record[4 * n..4 * n + 8].copy_from_slice(&adjusted.to_le_bytes());
        Ok(writer.push(&record[..4 * n + 8])?)
    };
    let mut previous: Vec<u8> = Vec::new();
    // Of the end of length n: different words before it, and how often it was seen.
    let mut different = [0u64; MAX_ORDER + 1];
    let mut seen = [0u64; MAX_ORDER + 1];
    let adjusted = |key: &[u8], n: usize, different: u64, seen: u64| {
        if word_at(key, n - 1) == BEGIN_ID { seen } else { different }
    };
    while let Some(record) = counted.next()? {
        let (key, count) = (&record[..4 * order], u64_at(record, 4 * order));
        let common = if previous.is_empty() {
            0
        } else {
            (0..order).take_while(|&i| word_at(key, i) == word_at(&previous, i)).count()
        };
        for n in common + 1..order {
            if !previous.is_empty() {
                emit(&previous, n, adjusted(&previous, n, different[n], seen[n]))?;
            }
            (different[n], seen[n]) = (0, 0);
        }
        for n in 1..order {
            // The n-gram one longer is new.
            different[n] += u64::from(n + 1 > common);
            seen[n] += count;
        }
        emit(key, order, count)?;
        previous.clear();
        previous.extend_from_slice(key);
    }
    for n in 1..order {
        emit(&previous, n, adjusted(&previous, n, different[n], seen[n]))?;
    }
    let finish =
        |(writer, with_count): (RecordWriter, [u64; 4])| Ok(Adjusted { file: writer.finish()?, with_count });
    writers.into_iter().map(finish).collect()
}

/// Of one order: n-grams with their share and the gamma of their history, and histories with their gamma.
struct Parts<'s> {
    shares: SortedRecords<'s, u8>,
    gammas: RecordFile,
}

/// (a - D) / sum and gamma, by a walk over the n-grams of `n` words sorted by history.
fn sums_and_gammas<'s>(
    config: &EstimateConfig,
    folder: &ConfinedDir,
    memory: &'s SortMemory<'s>,
    n: usize,
    adjusted: &RecordFile,
    discounts: Discounts,
) -> Result<Parts<'s>> {
    let key = 4 * n;
    let mut by_history = Sorter::new(memory, WIDTHS[n - 2]);
    let mut reader = adjusted.read();
    let mut moved = vec![0u8; key + 8];
    while let Some(record) = reader.next()? {
        // Last word first becomes history (latest word first), then the last word.
        moved[..key - 4].copy_from_slice(&record[4..key]);
        moved[key - 4..key].copy_from_slice(&record[..4]);
        moved[key..].copy_from_slice(&record[key..]);
        by_history.push(&moved)?;
    }
    drop(reader);
    let mut by_history = by_history.finish();
    let mut shares = Sorter::new(memory, WIDTHS[n]);
    let mut gammas = RecordWriter::create(folder, key - 4 + 8)?;
    let mut history: Vec<u8> = Vec::new();
    let mut group: Vec<(u32, u64)> = Vec::new();
    let mut close = |history: &[u8], group: &mut Vec<(u32, u64)>| -> Result<()> {
        let sum: u64 = group.iter().map(|&(_, count)| count).sum();
        let taken: f64 = group.iter().map(|&(_, count)| discount(&discounts, count)).sum();
        let gamma = taken / sum as f64;
        let mut record = [0u8; 4 * MAX_ORDER + 16];
        record[..key - 4].copy_from_slice(history);
        record[key - 4..key + 4].copy_from_slice(&gamma.to_bits().to_le_bytes());
        gammas.push(&record[..key + 4])?;
        for (word, count) in group.drain(..) {
            record[..4].copy_from_slice(&word.to_be_bytes());
            record[4..key].copy_from_slice(history);
            let share = (count as f64 - discount(&discounts, count)) / sum as f64;
            record[key..key + 8].copy_from_slice(&share.to_bits().to_le_bytes());
            record[key + 8..key + 16].copy_from_slice(&gamma.to_bits().to_le_bytes());
            shares.push(&record[..key + 16])?;
        }
        Ok(())
    };
    while let Some(record) = by_history.next()? {
        if history[..] != record[..key - 4] {
            if !group.is_empty() {
                close(&history, &mut group)?;
            }
            history.clear();
            history.extend_from_slice(&record[..key - 4]);
        }
        group.push((word_at(record, n - 1), u64_at(record, key)));
    }
    if !group.is_empty() {
        close(&history, &mut group)?;
    }
    drop(by_history);
    // The shares wait until all orders are counted; half of the memory is for those that are counted then.
    if shares.held_bytes() > memory.limit() / (2 * config.order) {
        shares.spill()?;
    }
    Ok(Parts { shares: shares.finish(), gammas: gammas.finish()? })
}

/// A file of records that is read in step with a larger sequence that is sorted in the same way.
struct Follower {
    reader: RecordReader<u8>,
    key: usize,
    record: Option<Vec<u8>>,
}

impl Follower {
    fn new(file: &RecordFile, key: usize) -> Result<Follower> {
        let mut reader = file.read();
        let record = reader.next()?.map(<[u8]>::to_vec);
        Ok(Follower { reader, key, record })
    }

    /// The number after `key`, if the file has it; keys must be asked for in order.
    fn find(&mut self, key: &[u8]) -> Result<Option<f64>> {
        loop {
            match &mut self.record {
                Some(record) if record[..self.key] < *key => match self.reader.next()? {
                    Some(next) => record.copy_from_slice(next),
                    None => self.record = None,
                },
                Some(record) if record[..self.key] == *key => return Ok(Some(f64_at(record, self.key))),
                _ => return Ok(None),
            }
        }
    }
}

/// Probabilities and back-off weights of all orders.
fn interpolate(
    folder: &ConfinedDir,
    unigrams: &[u64],
    discounts: Discounts,
    parts: Vec<Parts<'_>>,
) -> Result<Vec<RecordFile>> {
    let sum: u64 = unigrams.iter().sum();
    let gamma = unigrams.iter().map(|&a| discount(&discounts, a)).sum::<f64>() / sum as f64;
    // All words but the begin, which no probability is given to.
    let uniform = gamma / (unigrams.len() - 1) as f64;
    let mut gammas = Follower::new(&parts[0].gammas, 4)?;
    let mut first = RecordWriter::create(folder, 4 + 16)?;
    for (id, &count) in unigrams.iter().enumerate() {
        let p = (count as f64 - discount(&discounts, count)) / sum as f64 + uniform;
        let p = if id as u32 == BEGIN_ID { 1.0 } else { p };
        let key = (id as u32).to_be_bytes();
        let backoff = gammas.find(&key)?.unwrap_or(1.0);
        first.push(&[&key[..], &p.to_bits().to_le_bytes(), &backoff.to_bits().to_le_bytes()].concat())?;
    }
    let mut orders = vec![first.finish()?];
    let longest = parts.len() + 1;
    let mut parts = parts.into_iter();
    let mut part = parts.next();
    let mut n = 2;
    while let Some(Parts { mut shares, .. }) = part {
        let key = 4 * n;
        let next = parts.next();
        let mut gammas = match &next {
            Some(longer) if n < longest => Some(Follower::new(&longer.gammas, key)?),
            _ => None,
        };
        let mut shorter = Follower::new(&orders[n - 2], key - 4)?;
        let mut longer = RecordWriter::create(folder, key + 16)?;
        let mut out = vec![0u8; key + 16];
        while let Some(record) = shares.next()? {
            let below = shorter.find(&record[..key - 4])?;
            let below = below.expect("the end of an n-gram was counted when the n-gram was");
            let p = f64_at(record, key) + f64_at(record, key + 8) * below;
            let backoff = match &mut gammas {
                Some(gammas) => gammas.find(&record[..key])?.unwrap_or(1.0),
                None => 1.0,
            };
            out[..key].copy_from_slice(&record[..key]);
            out[key..key + 8].copy_from_slice(&p.to_bits().to_le_bytes());
            out[key + 8..].copy_from_slice(&backoff.to_bits().to_le_bytes());
            longer.push(&out)?;
        }
        orders.push(longer.finish()?);
        part = next;
        n += 1;
    }
    Ok(orders)
}

impl Estimated {
    /// Number of n-grams of each order.
    pub fn counts(&self) -> Vec<u64> {
        self.orders.iter().map(RecordFile::records).collect()
    }

    /// Discounts of each order, and whether they are the fallback.
    pub fn discounts(&self) -> impl Iterator<Item = (Discounts, bool)> + '_ {
        self.discounts.iter().copied()
    }

    /// Calls `each` with the words, log10 probability and log10 back-off weight of every n-gram, shorter ones first.
    fn for_each<E: From<ScoreError>>(
        &self,
        mut each: impl FnMut(&[&str], f64, f64) -> std::result::Result<(), E>,
    ) -> std::result::Result<(), E> {
        for (n, file) in self.orders.iter().enumerate() {
            let n = n + 1;
            let mut reader = file.read();
            while let Some(record) = reader.next().map_err(ScoreError::from)? {
                let mut ngram = [""; MAX_ORDER];
                for (i, word) in ngram[..n].iter_mut().rev().enumerate() {
                    *word = &self.words[word_at(record, i) as usize];
                }
                each(&ngram[..n], f64_at(record, 4 * n).log10(), f64_at(record, 4 * n + 8).log10())?;
            }
        }
        Ok(())
    }

    /// Writes the model as an ARPA file.
    ///
    /// # Errors
    /// The writer's or the disk's.
    pub fn write_arpa(&self, to: &mut impl Write) -> io::Result<()> {
        writeln!(to, "\\data\\")?;
        for (n, count) in self.counts().into_iter().enumerate() {
            writeln!(to, "ngram {}={count}", n + 1)?;
        }
        let (longest, mut section) = (self.orders.len(), 0);
        self.for_each(|ngram, log10, backoff| -> io::Result<()> {
            if ngram.len() != section {
                section = ngram.len();
                writeln!(to, "\n\\{section}-grams:")?;
            }
            write!(to, "{}\t{}", log10 as f32, ngram.join(" "))?;
            if section < longest {
                write!(to, "\t{}", backoff as f32)?;
            }
            writeln!(to)
        })?;
        writeln!(to, "\n\\end\\")
    }

    /// The model in memory, as it would be read from the ARPA file.
    ///
    /// # Errors
    /// The disk's; or where two words share a 64-bit hash.
    pub fn model(&self) -> Result<LanguageModel> {
        let mut builder = Builder::new(&self.counts());
        self.for_each(|ngram, log10, backoff| {
            builder.add(ngram, log10 as f32, backoff as f32).map_err(ScoreError::Training)
        })?;
        builder.finish().map_err(ScoreError::Training)
    }
}

#[cfg(test)]
mod tests;
