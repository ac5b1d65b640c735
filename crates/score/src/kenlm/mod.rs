//! n-gram language models: ARPA text and the binaries of KenLM read, sentences scored, models estimated and written.
//!
//! The probability of a word after a history is that of the longest n-gram that ends with it, times the back-off
//! weights of every longer history that exists but lacks the word (Katz back-off as ARPA files write it; Heafield
//! 2011). All weights are log10.

mod arpa;
mod binary;
mod estimate;
mod murmur;
mod perplexity;
mod table;
mod trie;
mod vocabulary;

pub use estimate::{Discounts, EstimateConfig, Estimated, estimate};
pub use perplexity::{Pieces, WhiteSpace, perplexity_of_document};

use crate::error::Result;
use crate::source::{ModelFile, Source};
use std::io::{BufRead, Read, Write};
use std::path::Path;
use table::{Probing, extend_key, negative};
use trie::Trie;
use vocabulary::Vocabulary;

/// Longest n-grams that are read.
pub const MAX_ORDER: usize = 8;

/// What the past words mean to the next one: the words of the longest history that the model knows, latest first, with
/// their back-off weights.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct State {
    words: [u32; MAX_ORDER - 1],
    backoffs: [f32; MAX_ORDER - 1],
    len: usize,
}

/// The score of one word.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct WordScore {
    /// log10 of the probability.
    pub log10: f32,
    /// Length of the n-gram that gave it.
    pub matched: usize,
    /// True for a word that the model does not know.
    pub unknown: bool,
}

/// A back-off language model.
#[derive(Debug, Clone)]
pub struct LanguageModel {
    order: usize,
    vocabulary: Vocabulary,
    search: Search,
    begin: u32,
    end: u32,
    /// The words in the order of their ids, each followed by NUL; empty where the file did not keep them.
    words: Vec<u8>,
}

#[derive(Debug, Clone)]
enum Search {
    Probing(Probing),
    Trie(Trie),
}

impl LanguageModel {
    /// Reads an ARPA file (`\data\`) or a KenLM binary; the first bytes decide which.
    ///
    /// # Errors
    /// Where the file is not a whole model; the message names the place.
    pub fn open(path: &Path) -> Result<LanguageModel> {
        let ModelFile { mut reader, len, name } = ModelFile::open(path)?;
        let head = reader.fill_buf().map_err(|e| crate::ScoreError::io("read", path, e))?;
        if head.starts_with(b"mmap") {
            LanguageModel::read_binary(reader, len, &name)
        } else {
            LanguageModel::read_arpa(reader, len, &name)
        }
    }

    /// Reads a KenLM binary of `len` bytes: probing, or trie in any of its four kinds.
    ///
    /// # Errors
    /// As [`LanguageModel::open`].
    pub fn read_binary(reader: impl Read, len: u64, name: &str) -> Result<LanguageModel> {
        binary::read(Source::new(reader, len, name))
    }

    /// Reads an ARPA file of `len` bytes; tables are made no larger than so many bytes can fill.
    ///
    /// # Errors
    /// As [`LanguageModel::open`].
    pub fn read_arpa(reader: impl BufRead, len: u64, name: &str) -> Result<LanguageModel> {
        arpa::read(reader, len, name)
    }

    /// Writes the model as a probing binary that KenLM reads.
    ///
    /// # Errors
    /// The writer's; or for a model from a trie or from a file without words.
    pub fn write_binary(&self, to: &mut impl Write) -> std::io::Result<()> {
        binary::write(self, to)
    }

    /// The order: length of the longest n-grams.
    pub fn order(&self) -> usize {
        self.order
    }

    /// The state before the first word of a sentence.
    pub fn begin(&self) -> State {
        let mut state = State::default();
        let (_, backoff) = self.unigram(self.begin).0;
        (state.words[0], state.backoffs[0], state.len) = (self.begin, backoff, 1);
        state
    }

    /// The state without any history.
    pub fn null(&self) -> State {
        State::default()
    }

    /// Scores `word` after `state`, which becomes the state after it.
    pub fn score_word(&self, state: &mut State, word: &str) -> WordScore {
        self.score_id(state, self.vocabulary.id(word.as_bytes()))
    }

    fn unigram(&self, id: u32) -> ((f32, f32), Node) {
        match &self.search {
            Search::Probing(probing) => {
                let [log10, backoff] = probing.unigrams[id as usize];
                ((negative(log10), backoff), Node::Key(id as u64))
            }
            Search::Trie(trie) => {
                let (log10, backoff, range) = trie.unigram(id);
                ((negative(log10), backoff), Node::Range(range))
            }
        }
    }

    pub(crate) fn score_id(&self, state: &mut State, id: u32) -> WordScore {
        let ((mut log10, backoff), mut node) = self.unigram(id);
        let mut next = State::default();
        (next.words[0], next.backoffs[0]) = (id, backoff);
        let mut matched = 1;
        for i in 0..state.len {
            let longest = i + 2 == self.order;
            match self.extend(&mut node, i, state.words[i], longest) {
                None => break,
                Some((found, backoff)) => {
                    log10 = found;
                    matched = i + 2;
                    if !longest {
                        (next.words[i + 1], next.backoffs[i + 1]) = (state.words[i], backoff);
                    }
                }
            }
        }
        for backoff in &state.backoffs[(matched - 1).min(state.len)..state.len] {
            log10 += backoff;
        }
        next.len = matched.min(self.order - 1);
        *state = next;
        WordScore { log10, matched, unknown: id == 0 }
    }

    /// The n-gram one word longer than `node`, which becomes it.
    fn extend(&self, node: &mut Node, at: usize, earlier: u32, longest: bool) -> Option<(f32, f32)> {
        match (&self.search, node) {
            (Search::Probing(probing), Node::Key(key)) => {
                *key = extend_key(*key, earlier);
                if longest {
                    let slot = probing.longest.find(*key)?;
                    return Some((negative(f32::from_bits(slot[2])), 0.0));
                }
                let slot = probing.middle[at].find(*key)?;
                Some((negative(f32::from_bits(slot[2])), f32::from_bits(slot[3])))
            }
            (Search::Trie(trie), Node::Range(range)) if longest => {
                Some((trie.longest(earlier, *range)?, 0.0))
            }
            (Search::Trie(trie), Node::Range(range)) => trie.middle(at, earlier, range),
            _ => None,
        }
    }

    /// log10 probability of a sentence of words, and the number of words with the end of the sentence.
    pub fn score_words<'w>(&self, words: impl IntoIterator<Item = &'w str>) -> (f64, u64) {
        let (mut state, mut sum, mut count) = (self.begin(), 0.0f64, 0);
        for word in words {
            sum += self.score_word(&mut state, word).log10 as f64;
            count += 1;
        }
        sum += self.score_id(&mut state, self.end).log10 as f64;
        (sum, count + 1)
    }

    /// log10 probability of the words between white space, and their number with the end of the sentence.
    pub fn score_sentence(&self, sentence: &str) -> (f64, u64) {
        self.score_words(words(sentence))
    }

    /// 10^(-log10 probability per word), the end of the sentence counted as a word.
    pub fn perplexity(&self, sentence: &str) -> f64 {
        let (log10, count) = self.score_sentence(sentence);
        10f64.powf(-log10 / count as f64)
    }
}

/// An n-gram while it is looked for.
enum Node {
    Key(u64),
    Range(trie::Range),
}

/// Words as KenLM's tools see them: between ASCII white space.
pub(crate) fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split([' ', '\t', '\n', '\r', '\x0b', '\x0c', '\0']).filter(|word| !word.is_empty())
}
