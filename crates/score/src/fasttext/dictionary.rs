//! Words, labels and hashed n-grams of a fastText model.
//!
//! Hash of a token: FNV-1a with 32 bits, each byte **sign-extended** before the exclusive or. That is a slip of the
//! original which every model file depends on.

use super::args::Args;
use crate::error::{Result, ScoreError};
use crate::source::Source;
use std::collections::HashMap;
use std::io::{self, Read, Write};

/// The token that ends a line.
pub(crate) const END_OF_LINE: &str = "</s>";
/// Default prefix of labels. The model file does not store the prefix.
pub(crate) const LABEL_PREFIX: &str = "__label__";
/// A longer entry is taken for a broken file.
const LONGEST_ENTRY: usize = 1 << 20;
/// Up to here pruned n-grams are found by an array over the buckets.
const DENSE_BUCKETS: u32 = 1 << 24;

/// FNV-1a over sign-extended bytes.
pub(crate) fn hash(token: &[u8]) -> u32 {
    token.iter().fold(2_166_136_261, |h, &byte| (h ^ byte as i8 as u32).wrapping_mul(16_777_619))
}

fn hash_more(h: u32, byte: u8) -> u32 {
    (h ^ byte as i8 as u32).wrapping_mul(16_777_619)
}

/// A word or label with the number of times that it was seen in training.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Entry {
    pub(crate) token: Box<[u8]>,
    pub(crate) count: i64,
}

/// The map from tokens to rows of the input matrix and to labels.
#[derive(Debug, Clone)]
pub(crate) struct Dictionary {
    /// Words first, then labels, as in the file.
    entries: Vec<Entry>,
    words: usize,
    tokens: i64,
    pruned: Pruned,
    table: Table,
    minn: usize,
    maxn: usize,
    word_ngrams: usize,
    bucket: u32,
    /// Rows of the pieces of word `i`, the word itself first: `pieces[starts[i]..starts[i + 1]]`.
    pieces: Vec<u32>,
    starts: Vec<usize>,
}

/// Hashed n-grams that have a row.
#[derive(Debug, Clone)]
enum Pruned {
    /// All of them.
    No,
    /// The listed ones, by bucket; -1 for none.
    Array(Vec<i32>),
    Map(HashMap<u32, u32>),
}

/// Open addressing over the hash that the model has anyway.
#[derive(Debug, Clone)]
struct Table {
    slots: Vec<u32>,
}

const EMPTY: u32 = u32::MAX;

impl Table {
    fn new(entries: &[Entry]) -> Table {
        let mut table = Table { slots: vec![EMPTY; (entries.len() * 2).next_power_of_two().max(2)] };
        for (id, entry) in entries.iter().enumerate() {
            let slot = table.slot(entries, &entry.token, hash(&entry.token));
            // Of equal entries the last one counts, as in the original.
            table.slots[slot] = id as u32;
        }
        table
    }

    /// Slot that holds `token`, or the slot into which it would go.
    fn slot(&self, entries: &[Entry], token: &[u8], hash: u32) -> usize {
        let mask = self.slots.len() - 1;
        let mut at = hash as usize & mask;
        while self.slots[at] != EMPTY && *entries[self.slots[at] as usize].token != *token {
            at = (at + 1) & mask;
        }
        at
    }
}

impl Dictionary {
    /// A dictionary of `words` and `labels`, each in the order of their ids.
    pub(crate) fn new(words: Vec<Entry>, labels: Vec<Entry>, tokens: i64, args: &Args) -> Dictionary {
        let count = words.len();
        let mut entries = words;
        entries.extend(labels);
        Dictionary::assemble(entries, count, tokens, Pruned::No, args)
    }

    fn assemble(entries: Vec<Entry>, words: usize, tokens: i64, pruned: Pruned, args: &Args) -> Dictionary {
        let mut dictionary = Dictionary {
            table: Table::new(&entries),
            entries,
            words,
            tokens,
            pruned,
            minn: args.minn,
            maxn: args.maxn,
            word_ngrams: args.word_ngrams,
            bucket: args.bucket,
            pieces: Vec::new(),
            starts: Vec::new(),
        };
        if args.maxn > 0 {
            let mut pieces = Vec::new();
            let mut starts = vec![0];
            let mut framed = Vec::new();
            for id in 0..words {
                let token = &dictionary.entries[id].token;
                pieces.push(id as u32);
                if **token != *END_OF_LINE.as_bytes() {
                    dictionary.add_pieces(token, &mut framed, &mut pieces);
                }
                starts.push(pieces.len());
            }
            (dictionary.pieces, dictionary.starts) = (pieces, starts);
        }
        dictionary
    }

    pub(crate) fn read<R: Read>(source: &mut Source<R>, args: &Args) -> Result<Dictionary> {
        let (size, words, labels) = (source.i32("size")?, source.i32("nwords")?, source.i32("nlabels")?);
        let (tokens, pruned) = (source.i64("ntokens")?, source.i64("pruneidx_size")?);
        if words < 0 || labels < 0 || words as i64 + labels as i64 != size as i64 {
            return Err(source.error(format!("{words} words and {labels} labels do not make {size} entries")));
        }
        if labels == 0 {
            return Err(source.error("the model has no labels"));
        }
        // An entry takes at least a NUL, a count and a type.
        source.need(size as u64 * 10, "the dictionary")?;
        let mut entries = Vec::with_capacity(size as usize);
        for at in 0..size {
            let token = source.c_string(LONGEST_ENTRY, "a dictionary entry")?.into_boxed_slice();
            let count = source.i64("the count of an entry")?;
            let kind = source.u8("the type of an entry")?;
            if kind != u8::from(at >= words) {
                return Err(
                    source.error(format!("entry {at} of {words} words and {labels} labels has type {kind}"))
                );
            }
            if count < 0 {
                return Err(source.error(format!("entry {at} was seen {count} times")));
            }
            entries.push(Entry { token, count });
        }
        let pruned = read_pruned(source, pruned, args.bucket)?;
        Ok(Dictionary::assemble(entries, words as usize, tokens, pruned, args))
    }

    /// As the original writes an unpruned dictionary.
    pub(crate) fn write(&self, to: &mut impl Write) -> io::Result<()> {
        for value in [self.entries.len(), self.words, self.entries.len() - self.words] {
            to.write_all(&(value as i32).to_le_bytes())?;
        }
        to.write_all(&self.tokens.to_le_bytes())?;
        to.write_all(&(-1i64).to_le_bytes())?;
        for (id, entry) in self.entries.iter().enumerate() {
            to.write_all(&entry.token)?;
            to.write_all(&[0])?;
            to.write_all(&entry.count.to_le_bytes())?;
            to.write_all(&[u8::from(id >= self.words)])?;
        }
        Ok(())
    }

    pub(crate) fn words(&self) -> usize {
        self.words
    }

    pub(crate) fn tokens(&self) -> i64 {
        self.tokens
    }

    pub(crate) fn labels(&self) -> &[Entry] {
        &self.entries[self.words..]
    }

    pub(crate) fn is_pruned(&self) -> bool {
        !matches!(self.pruned, Pruned::No)
    }

    /// Rows that the input matrix must have so that every id of this dictionary is one of them.
    pub(crate) fn rows_needed(&self) -> u64 {
        let hashed = match &self.pruned {
            Pruned::No if self.maxn > 0 || self.word_ngrams > 1 => self.bucket as u64,
            Pruned::No => 0,
            Pruned::Array(rows) => rows.iter().max().map_or(0, |&r| (r + 1) as u64),
            Pruned::Map(rows) => rows.values().max().map_or(0, |&r| r as u64 + 1),
        };
        self.words as u64 + hashed
    }

    fn find(&self, token: &[u8], hash: u32) -> Option<usize> {
        match self.table.slots[self.table.slot(&self.entries, token, hash)] {
            EMPTY => None,
            id => Some(id as usize),
        }
    }

    /// The number of a label, if the model knows it.
    pub(crate) fn label(&self, label: &str) -> Option<usize> {
        self.find(label.as_bytes(), hash(label.as_bytes()))?.checked_sub(self.words)
    }

    /// The rows of `text`: words, pieces of words, word n-grams, and the end of the line. Labels in the text are left
    /// out. Line ends count as white space: the text is one line. Returns the number of tokens, labels included.
    pub(crate) fn line(&self, text: &str, line: &mut Line) -> usize {
        line.rows.clear();
        line.hashes.clear();
        let mut tokens = 0;
        for token in text.as_bytes().split(|byte| is_separator(*byte)).filter(|token| !token.is_empty()) {
            tokens += 1;
            self.add_token(token, line);
            if token == END_OF_LINE.as_bytes() {
                // The original stops at this token also where the text spells it out.
                self.add_word_ngrams(line);
                return tokens;
            }
        }
        self.add_token(END_OF_LINE.as_bytes(), line);
        self.add_word_ngrams(line);
        tokens + 1
    }

    fn add_token(&self, token: &[u8], line: &mut Line) {
        let h = hash(token);
        match self.find(token, h) {
            Some(id) if id >= self.words => return,
            Some(id) if self.maxn == 0 => line.rows.push(id as u32),
            Some(id) => line.rows.extend_from_slice(&self.pieces[self.starts[id]..self.starts[id + 1]]),
            None if token.starts_with(LABEL_PREFIX.as_bytes()) => return,
            None if token == END_OF_LINE.as_bytes() => {}
            None => self.add_pieces(token, &mut line.framed, &mut line.rows),
        }
        line.hashes.push(h);
    }

    /// Rows of the pieces of `<token>` with `minn` to `maxn` characters; single characters at either end are none.
    fn add_pieces(&self, token: &[u8], framed: &mut Vec<u8>, rows: &mut Vec<u32>) {
        if self.maxn == 0 {
            return;
        }
        framed.clear();
        framed.push(b'<');
        framed.extend_from_slice(token);
        framed.push(b'>');
        for start in 0..framed.len() {
            if is_continuation(framed[start]) {
                continue;
            }
            let (mut h, mut end) = (hash(&[]), start);
            for n in 1..=self.maxn {
                if end == framed.len() {
                    break;
                }
                h = hash_more(h, framed[end]);
                end += 1;
                while end < framed.len() && is_continuation(framed[end]) {
                    h = hash_more(h, framed[end]);
                    end += 1;
                }
                if n >= self.minn && !(n == 1 && (start == 0 || end == framed.len())) {
                    self.push_hashed(h % self.bucket, rows);
                }
            }
        }
    }

    fn add_word_ngrams(&self, line: &mut Line) {
        for first in 0..line.hashes.len() {
            let mut h = line.hashes[first] as i32 as u64;
            for &next in line.hashes[first + 1..].iter().take(self.word_ngrams.saturating_sub(1)) {
                h = h.wrapping_mul(116_049_371).wrapping_add(next as i32 as u64);
                self.push_hashed((h % self.bucket as u64) as u32, &mut line.rows);
            }
        }
    }

    fn push_hashed(&self, bucket: u32, rows: &mut Vec<u32>) {
        let row = match &self.pruned {
            Pruned::No => bucket,
            Pruned::Array(kept) => match kept.get(bucket as usize) {
                Some(&row) if row >= 0 => row as u32,
                _ => return,
            },
            Pruned::Map(kept) => match kept.get(&bucket) {
                Some(&row) => row,
                None => return,
            },
        };
        rows.push(self.words as u32 + row);
    }
}

/// The rows of one text, with the scratch space for finding them.
#[derive(Debug, Clone, Default)]
pub(crate) struct Line {
    pub(crate) rows: Vec<u32>,
    hashes: Vec<u32>,
    framed: Vec<u8>,
}

/// The bytes between tokens.
pub(crate) fn is_separator(byte: u8) -> bool {
    matches!(byte, b' ' | b'\n' | b'\r' | b'\t' | 0x0b | 0x0c | 0)
}

fn is_continuation(byte: u8) -> bool {
    byte & 0xc0 == 0x80
}

fn read_pruned<R: Read>(source: &mut Source<R>, size: i64, bucket: u32) -> Result<Pruned> {
    if size < 0 {
        return Ok(Pruned::No);
    }
    source.need((size as u64).saturating_mul(8), "the list of kept n-grams")?;
    let mut pairs = Vec::with_capacity(size as usize);
    for _ in 0..size {
        let (bucket_id, row) = (source.i32("a kept n-gram")?, source.i32("the row of a kept n-gram")?);
        if bucket_id < 0 || row < 0 || row == i32::MAX {
            return Err(source.error(format!("n-gram {bucket_id} in row {row}: both must be at least 0")));
        }
        pairs.push((bucket_id as u32, row as u32));
    }
    if bucket > DENSE_BUCKETS {
        return Ok(Pruned::Map(pairs.into_iter().collect()));
    }
    let mut rows = vec![-1; bucket as usize];
    for (bucket_id, row) in pairs {
        match rows.get_mut(bucket_id as usize) {
            Some(slot) => *slot = row as i32,
            None => return Err(source.error(format!("n-gram {bucket_id} is outside the {bucket} buckets"))),
        }
    }
    Ok(Pruned::Array(rows))
}

/// Counts tokens and labels of training text.
#[derive(Debug, Default)]
pub(crate) struct Counter {
    words: HashMap<Box<[u8]>, (usize, i64)>,
    labels: HashMap<Box<[u8]>, (usize, i64)>,
    tokens: i64,
}

impl Counter {
    /// Adds one example.
    pub(crate) fn add(&mut self, labels: &[String], text: &str) {
        for label in labels {
            add_one(&mut self.labels, label.as_bytes());
            self.tokens += 1;
        }
        for token in text.as_bytes().split(|byte| is_separator(*byte)).filter(|token| !token.is_empty()) {
            // What looks like a label in running text teaches nothing.
            if !token.starts_with(LABEL_PREFIX.as_bytes()) {
                add_one(&mut self.words, token);
                self.tokens += 1;
            }
            if token == END_OF_LINE.as_bytes() {
                return;
            }
        }
        add_one(&mut self.words, END_OF_LINE.as_bytes());
        self.tokens += 1;
    }

    /// The dictionary of what was seen at least `min_count` times, most frequent first, ties as first seen.
    ///
    /// # Errors
    /// A text without words or without labels.
    pub(crate) fn finish(self, min_count: i64, args: &Args) -> Result<Dictionary> {
        let words = sorted(self.words, min_count);
        let labels = sorted(self.labels, 1);
        if words.is_empty() || labels.is_empty() {
            return Err(ScoreError::Training(format!(
                "{} words seen at least {min_count} times and {} labels: wanted at least one of each",
                words.len(),
                labels.len()
            )));
        }
        if words.len() as u64 + args.bucket as u64 > i32::MAX as u64 {
            return Err(ScoreError::Training(format!(
                "{} words and {} buckets exceed 2^31 rows; raise min_count or lower bucket",
                words.len(),
                args.bucket
            )));
        }
        Ok(Dictionary::new(words, labels, self.tokens, args))
    }
}

fn add_one(counts: &mut HashMap<Box<[u8]>, (usize, i64)>, token: &[u8]) {
    // Two look-ups, so that a token is copied only when it is new.
    if let Some((_, count)) = counts.get_mut(token) {
        *count += 1;
    } else {
        let order = counts.len();
        counts.insert(token.into(), (order, 1));
    }
}

fn sorted(counts: HashMap<Box<[u8]>, (usize, i64)>, min_count: i64) -> Vec<Entry> {
    let mut kept: Vec<_> = counts.into_iter().filter(|(_, (_, count))| *count >= min_count).collect();
    kept.sort_unstable_by_key(|(_, (order, count))| (std::cmp::Reverse(*count), *order));
    kept.into_iter().map(|(token, (_, count))| Entry { token, count }).collect()
}

#[cfg(test)]
mod tests {
    use super::super::args::Loss;
    use super::*;

    fn args(minn: usize, maxn: usize, word_ngrams: usize, bucket: u32) -> Args {
        Args {
            dim: 4,
            ws: 5,
            epoch: 5,
            min_count: 1,
            neg: 5,
            word_ngrams,
            loss: Loss::Softmax,
            bucket,
            minn,
            maxn,
            lr_update_rate: 100,
            t: 1e-4,
        }
    }

    #[test]
    fn hashes_are_those_of_the_original() {
        assert_eq!(hash("hello".as_bytes()), 1_335_831_723);
        assert_eq!(hash("é".as_bytes()), 1_023_043_777);
        assert_eq!(hash(b"</s>"), 3_617_362_777);
    }

    #[test]
    fn pieces_of_cat_are_those_of_the_original() {
        let mut counter = Counter::default();
        counter.add(&["__label__x".into()], "dog");
        let dictionary = counter.finish(1, &args(2, 4, 1, 1000)).expect("words and labels");
        let mut rows = Vec::new();
        dictionary.add_pieces(b"cat", &mut Vec::new(), &mut rows);
        let words = dictionary.words() as u32;
        let buckets: Vec<u32> = rows.iter().map(|r| r - words).collect();
        assert_eq!(buckets, [512, 747, 973, 945, 31, 995, 136, 106, 615]);
    }

    #[test]
    fn the_bigram_hash_is_that_of_the_original() {
        let mut counter = Counter::default();
        counter.add(&["__label__x".into()], "hello world");
        let dictionary = counter.finish(1, &args(0, 0, 2, 2_000_000)).expect("words and labels");
        let mut line = Line::default();
        assert_eq!(dictionary.line("hello\nworld", &mut line), 3);
        // hello, world, </s>, then the bigram of the first two.
        assert_eq!(line.rows[3] - dictionary.words() as u32, 1_485_020);
        assert_eq!(line.rows.len(), 5);
    }

    #[test]
    fn unknown_words_give_their_pieces_only_and_labels_nothing() {
        let mut counter = Counter::default();
        counter.add(&["__label__x".into()], "dog");
        let dictionary = counter.finish(1, &args(3, 3, 1, 1000)).expect("words and labels");
        let mut line = Line::default();
        dictionary.line("cat __label__x __label__other", &mut line);
        // <ca, cat, at>, and the end of the line, which has no pieces.
        assert_eq!(line.rows.len(), 4);
        assert_eq!(dictionary.label("__label__x"), Some(0));
        assert_eq!(dictionary.label("dog"), None);
    }
}
