//! N-grams of evaluation sets, and which of them a document holds.

use super::read::{EvaluationSet, Item};
use bessemer_corpus_config::decontaminate::{DecontaminateAction, DecontaminateConfig, DecontaminateProfile};
use bessemer_text::hash::{xxh3, xxh64};
use bessemer_text::ngram::Joined;
use bessemer_text::{Simplify, Words};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, HashMap};
use std::ops::Range;

/// Fewest words of a short question: fewer stand everywhere.
const LEAST_QUESTION: usize = 3;
/// Base of the rolling hash over hashes of words.
const BASE: u64 = 0x9E37_79B9_7F4A_7C15;

/// What evaluation sets hold. Two different n-grams have one hash with a probability of 2^-64.
#[derive(Debug)]
pub struct Index {
    config: DecontaminateConfig,
    names: Vec<String>,
    /// Set of each n-gram; the first of several.
    grams: HashMap<u64, u32>,
    /// By number of words: questions that are too short for an n-gram, and their answers.
    short: BTreeMap<usize, HashMap<u64, Vec<Short>>>,
}

#[derive(Debug)]
struct Short {
    set: u32,
    /// Hashes of the words of each answer; empty if the question counts by itself.
    answers: Vec<Vec<u64>>,
}

/// Words of a text in normal form.
struct Normal {
    hashes: Vec<u64>,
    /// Byte range of each word in the text.
    places: Vec<Range<usize>>,
}

/// A part of a document that an evaluation set holds.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Hit {
    /// Number of the set.
    pub set: u32,
    /// The words that agree: bytes of the document (profile native), else empty.
    pub bytes: Range<usize>,
    /// The words that agree.
    pub words: String,
}

/// Outcome for a document.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Decontaminated {
    /// No part of any set.
    Clean,
    /// Dropped, with the first hit.
    Dropped(Hit),
    /// Parts of it are cut out: what is left, and every hit.
    Cut(String, Vec<Hit>),
}

/// Counts by evaluation set.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Report {
    /// By name of the set.
    pub sets: BTreeMap<String, SetCount>,
}

/// Counts of one evaluation set.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SetCount {
    /// Documents dropped for it.
    pub dropped: u64,
    /// Documents that it was cut out of.
    pub cut: u64,
    /// Places in documents that it was cut out of.
    pub places: u64,
}

impl Report {
    /// Counts a document.
    pub fn add(&mut self, index: &Index, outcome: &Decontaminated) {
        match outcome {
            Decontaminated::Clean => {}
            Decontaminated::Dropped(hit) => self.of(index, hit.set).dropped += 1,
            Decontaminated::Cut(_, hits) => {
                let mut seen = Vec::new();
                for hit in hits {
                    let count = self.of(index, hit.set);
                    count.places += 1;
                    if !seen.contains(&hit.set) {
                        seen.push(hit.set);
                        count.cut += 1;
                    }
                }
            }
        }
    }

    fn of(&mut self, index: &Index, set: u32) -> &mut SetCount {
        self.sets.entry(index.name(set).to_string()).or_default()
    }

    /// Adds the counts of another part of the corpus.
    pub fn merge(&mut self, other: &Report) {
        for (name, count) in &other.sets {
            let sum = self.sets.entry(name.clone()).or_default();
            sum.dropped += count.dropped;
            sum.cut += count.cut;
            sum.places += count.places;
        }
    }
}

/// Words of UAX #29, each simplified as datatrove does a text, and where they stand.
fn normal(text: &str) -> Normal {
    let (mut hashes, mut places) = (Vec::new(), Vec::new());
    let (simplify, mut word) = (Simplify::default(), String::new());
    let begin = text.as_ptr() as usize;
    Words::Uax29.for_each(text, |part| {
        simplify.apply_into(part, &mut word);
        if !word.is_empty() {
            let start = part.as_ptr() as usize - begin;
            hashes.push(xxh3(word.as_bytes()));
            places.push(start..start + part.len());
        }
    });
    Normal { hashes, places }
}

/// Hash of each window of `n` hashes.
fn rolling(hashes: &[u64], n: usize) -> impl Iterator<Item = u64> + '_ {
    let leaving = (0..n).fold(1u64, |power, _| power.wrapping_mul(BASE));
    let mut sum = 0u64;
    hashes.iter().enumerate().filter_map(move |(index, &hash)| {
        sum = sum.wrapping_mul(BASE).wrapping_add(hash);
        if index >= n {
            sum = sum.wrapping_sub(hashes[index - n].wrapping_mul(leaving));
        }
        (index + 1 >= n).then_some(sum ^ (sum >> 31))
    })
}

/// Words of datatrove: English words of the simplified text.
fn english(text: &str) -> Joined {
    let simple = Simplify::default().apply(text);
    Joined::spaced(Words::English.split(&simple))
}

fn english_words(text: &str) -> Vec<String> {
    let simple = Simplify::default().apply(text);
    Words::English.split(&simple).into_iter().map(str::to_string).collect()
}

/// The windows of `n` words that stand for a question and its answer (`NGramsDecontConfig`): those of the answer, those of the
/// question if asked for, and those that take the end of the question and the beginning of the answer.
fn windows<'w, T>(query: &'w [T], answer: &'w [T], config: &DecontaminateConfig) -> Vec<Vec<&'w T>> {
    let n = config.ngram as usize;
    let mut all: Vec<Vec<&T>> = answer.windows(n).map(|window| window.iter().collect()).collect();
    if config.query_ngrams {
        all.extend(query.windows(n).map(|window| window.iter().collect::<Vec<&T>>()));
    }
    if config.overlap_ngrams {
        for head in 1..n {
            let tail = n - head;
            if query.len() >= tail && answer.len() >= head {
                all.push(query[query.len() - tail..].iter().chain(&answer[..head]).collect());
            }
        }
    }
    all
}

impl Index {
    /// The index of evaluation sets, in the order in which hits name them.
    pub fn new(config: &DecontaminateConfig, sets: &[EvaluationSet]) -> Index {
        let mut index = Index {
            config: config.clone(),
            names: sets.iter().map(|set| set.name.clone()).collect(),
            grams: HashMap::new(),
            short: BTreeMap::new(),
        };
        for (number, set) in sets.iter().enumerate() {
            for item in &set.items {
                match config.profile {
                    DecontaminateProfile::Native => index.add(number as u32, item),
                    DecontaminateProfile::Datatrove => index.add_datatrove(number as u32, item),
                }
            }
        }
        index
    }

    /// N-grams held.
    pub fn len(&self) -> usize {
        self.grams.len() + self.short.values().map(HashMap::len).sum::<usize>()
    }

    /// Whether nothing is held.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Name of a set.
    pub fn name(&self, set: u32) -> &str {
        self.names.get(set as usize).map_or("", String::as_str)
    }

    fn add_datatrove(&mut self, set: u32, item: &Item) {
        let query = english_words(&item.query);
        for answer in &item.answers {
            for window in windows(&query, &english_words(answer), &self.config) {
                let joined = Joined::spaced(window.iter().map(|word| word.as_str()));
                let hashes = joined.hashes(window.len(), xxh64).collect::<Vec<u64>>();
                hashes.into_iter().for_each(|hash| {
                    self.grams.entry(hash).or_insert(set);
                });
            }
        }
    }

    fn add(&mut self, set: u32, item: &Item) {
        let n = self.config.ngram as usize;
        let query = normal(&item.query).hashes;
        let answers: Vec<Vec<u64>> = item.answers.iter().map(|answer| normal(answer).hashes).collect();
        let none = [Vec::new()];
        let each = if answers.is_empty() { &none } else { answers.as_slice() };
        for answer in each {
            for window in windows(&query, answer, &self.config) {
                let words: Vec<u64> = window.into_iter().copied().collect();
                rolling(&words, n).for_each(|hash| {
                    self.grams.entry(hash).or_insert(set);
                });
            }
        }
        let short: Vec<Vec<u64>> = answers
            .into_iter()
            .filter(|answer| !answer.is_empty() && query.len() + answer.len() < n)
            .collect();
        if (LEAST_QUESTION..n).contains(&query.len()) && !short.is_empty() {
            let by_length = self.short.entry(query.len()).or_default();
            let all = rolling(&query, query.len());
            all.for_each(|hash| {
                by_length.entry(hash).or_default().push(Short { set, answers: short.clone() })
            });
        }
    }

    /// Looks for what the sets hold in a document.
    pub fn check(&self, text: &str) -> Decontaminated {
        if self.config.profile == DecontaminateProfile::Datatrove {
            return self.check_datatrove(text);
        }
        let words = normal(text);
        let mut hits = self.hits(&words);
        hits.sort_unstable_by_key(|(range, set)| (range.start, range.end, *set));
        let Some(first) = hits.first() else { return Decontaminated::Clean };
        let named = |(range, set): &(Range<usize>, u32)| {
            let bytes = words.places[range.start].start..words.places[range.end - 1].end;
            Hit { set: *set, words: text[bytes.clone()].to_string(), bytes }
        };
        match self.config.action {
            DecontaminateAction::Drop => Decontaminated::Dropped(named(first)),
            DecontaminateAction::Window => {
                let mut merged: Vec<(Range<usize>, u32)> = Vec::new();
                for (range, set) in hits {
                    match merged.last_mut() {
                        Some((last, same)) if *same == set && range.start <= last.end => {
                            last.end = last.end.max(range.end);
                        }
                        _ => merged.push((range, set)),
                    }
                }
                self.cut(text, merged.iter().map(named).collect())
            }
        }
    }

    /// Ranges of words that agree with a set.
    fn hits(&self, words: &Normal) -> Vec<(Range<usize>, u32)> {
        let n = self.config.ngram as usize;
        let mut hits = Vec::new();
        for (start, hash) in rolling(&words.hashes, n).enumerate() {
            if let Some(&set) = self.grams.get(&hash) {
                hits.push((start..start + n, set));
            }
        }
        for (&length, questions) in &self.short {
            for (start, hash) in rolling(&words.hashes, length).enumerate() {
                for short in questions.get(&hash).into_iter().flatten() {
                    if let Some(end) = self.answered(&words.hashes, start + length, &short.answers) {
                        hits.push((start..end, short.set));
                    }
                }
            }
        }
        hits
    }

    /// The end of the first answer that begins within the allowed distance behind word `from`.
    fn answered(&self, words: &[u64], from: usize, answers: &[Vec<u64>]) -> Option<usize> {
        (from..=words.len().min(from + self.config.answer_within as usize)).find_map(|at| {
            let here = |answer: &&Vec<u64>| words[at..].starts_with(answer);
            answers.iter().find(here).map(|answer| at + answer.len())
        })
    }

    fn check_datatrove(&self, text: &str) -> Decontaminated {
        let n = self.config.ngram as usize;
        let words = english(text);
        for (start, hash) in words.hashes(n, xxh64).enumerate() {
            if let Some(&set) = self.grams.get(&hash) {
                return Decontaminated::Dropped(Hit {
                    set,
                    bytes: 0..0,
                    words: words.window(start, n).to_string(),
                });
            }
        }
        Decontaminated::Clean
    }

    /// Cuts hits out with a margin, and what is left between them if it is too little.
    fn cut(&self, text: &str, hits: Vec<Hit>) -> Decontaminated {
        let margin = self.config.window_chars as usize;
        let mut cuts: Vec<Range<usize>> = Vec::new();
        for hit in &hits {
            let before = text[..hit.bytes.start].char_indices().rev().take(margin).last();
            let start = before.map_or(hit.bytes.start, |(at, _)| at);
            let after = text[hit.bytes.end..].char_indices().nth(margin);
            let end = after.map_or(text.len(), |(at, _)| hit.bytes.end + at);
            match cuts.last_mut() {
                Some(last) if start <= last.end => last.end = last.end.max(end),
                _ => cuts.push(start..end),
            }
        }
        let ends = cuts.iter().map(|cut| cut.start).chain([text.len()]);
        let starts = std::iter::once(0).chain(cuts.iter().map(|cut| cut.end));
        let least = self.config.min_piece_chars as usize;
        let pieces: Vec<&str> = starts
            .zip(ends)
            .map(|(start, end)| &text[start..end])
            .filter(|piece| !piece.is_empty() && piece.chars().take(least).count() >= least)
            .collect();
        if cuts.len() > self.config.max_cuts as usize || pieces.is_empty() {
            let first = hits.into_iter().next();
            return first.map_or(Decontaminated::Clean, Decontaminated::Dropped);
        }
        Decontaminated::Cut(pieces.join("\n"), hits)
    }
}
