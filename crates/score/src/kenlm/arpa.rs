//! ARPA files: text, one n-gram a line as `log10-probability TAB words TAB log10-back-off`.

use super::table::Probing;
use super::vocabulary::{BEGIN, END, UNKNOWN, Vocabulary, hash_word};
use super::{LanguageModel, MAX_ORDER, Search};
use crate::error::{Result, ScoreError};
use bessemer_durable::TextReader;
use std::collections::HashMap;
use std::io::BufRead;

/// A longer line is no n-gram.
const LONGEST_LINE: u64 = 1 << 20;
/// Probability of unknown words where the file has no `<unk>`, as in KenLM.
const UNKNOWN_LOG10: f32 = -100.0;
/// No line of an n-gram is shorter.
const SHORTEST_LINE: u64 = 4;
/// Slots per n-gram.
pub(crate) const MULTIPLIER: f32 = 1.5;

struct Lines<'n, R> {
    reader: R,
    line: Vec<u8>,
    number: u64,
    name: &'n str,
}

impl<R: BufRead> Lines<'_, R> {
    fn error(&self, what: impl Into<String>) -> ScoreError {
        ScoreError::Line { name: self.name.to_owned(), line: self.number, what: what.into() }
    }

    /// The next line without its end, or `None` at the end of the file.
    fn next(&mut self) -> Result<Option<&str>> {
        self.line.clear();
        self.number += 1;
        let mut limited = std::io::Read::take(&mut self.reader, LONGEST_LINE);
        match limited.read_until(b'\n', &mut self.line) {
            Err(e) => Err(self.error(format!("cannot be read: {e}"))),
            Ok(0) => Ok(None),
            Ok(n) if n as u64 == LONGEST_LINE => {
                Err(self.error(format!("is longer than {LONGEST_LINE} bytes")))
            }
            Ok(_) => {
                while matches!(self.line.last(), Some(b'\n' | b'\r')) {
                    self.line.pop();
                }
                match std::str::from_utf8(&self.line) {
                    Ok(line) => Ok(Some(line)),
                    Err(_) => {
                        let (name, line) = (self.name.to_owned(), self.number);
                        Err(ScoreError::Line { name, line, what: "is not UTF-8".into() })
                    }
                }
            }
        }
    }

    /// The next line that is not blank.
    fn content(&mut self, wanted: &str) -> Result<String> {
        loop {
            match self.next()? {
                Some(line) if line.trim().is_empty() => {}
                Some(line) => return Ok(line.to_owned()),
                None => {
                    return Err(
                        self.error(format!("the file ends where {wanted} was wanted: it is truncated"))
                    );
                }
            }
        }
    }
}

/// Counts of the header.
fn read_counts<R: BufRead>(lines: &mut Lines<'_, R>, len: u64) -> Result<(Vec<u64>, String)> {
    let first = lines.content("\\data\\")?;
    if first.trim() != "\\data\\" {
        let shown: String = first.chars().take(40).collect();
        return Err(lines.error(format!("wanted \"\\data\\\", found {shown:?}: not an ARPA file")));
    }
    let mut counts = Vec::new();
    loop {
        let line = lines.content("a section")?;
        let Some(pair) = line.trim().strip_prefix("ngram ") else {
            if counts.len() < 2 {
                return Err(
                    lines.error(format!("the model has order {}; 2 to {MAX_ORDER} are read", counts.len()))
                );
            }
            return Ok((counts, line));
        };
        let (order, count) = pair.split_once('=').unwrap_or((pair, ""));
        let (order, count) = (order.trim().parse::<usize>(), count.trim().parse::<u64>());
        match (order, count) {
            (Ok(order), Ok(count)) if order == counts.len() + 1 && order <= MAX_ORDER => {
                if count > len / SHORTEST_LINE {
                    return Err(lines.error(format!("{count} n-grams do not fit a file of {len} bytes")));
                }
                counts.push(count);
            }
            _ => {
                let wanted = counts.len() + 1;
                return Err(lines.error(format!(
                    "wanted \"ngram {wanted}=COUNT\" (orders to {MAX_ORDER}), found {line:?}"
                )));
            }
        }
    }
}

pub(crate) fn read(reader: impl BufRead, len: u64, name: &str) -> Result<LanguageModel> {
    let mut lines = Lines { reader: TextReader::new(reader), line: Vec::new(), number: 0, name };
    let (counts, mut section) = read_counts(&mut lines, len)?;
    let order = counts.len();
    let mut builder = Builder::new(&counts);
    for n in 1..=order {
        let wanted = format!("\\{n}-grams:");
        if section.trim() != wanted {
            return Err(lines.error(format!("wanted {wanted:?}, found {section:?}")));
        }
        for _ in 0..counts[n - 1] {
            let line = lines.content("an n-gram")?;
            read_ngram(&mut builder, n, &line).map_err(|what| lines.error(what))?;
        }
        section = lines.content("the next section or \\end\\")?;
    }
    if section.trim() != "\\end\\" {
        return Err(lines
            .error(format!("wanted \"\\end\\\", found {section:?}: more n-grams than the header states?")));
    }
    builder.finish().map_err(|what| lines.error(what))
}

fn read_ngram(builder: &mut Builder, n: usize, line: &str) -> std::result::Result<(), String> {
    let mut fields = line.split([' ', '\t']).filter(|field| !field.is_empty());
    let number = |field: Option<&str>| -> std::result::Result<f32, String> {
        let field = field.ok_or("the line has too few fields")?;
        match field.parse::<f32>() {
            Ok(value) if value.is_finite() => Ok(value),
            _ => Err(format!("wanted a finite number, found {field:?}")),
        }
    };
    let log10 = number(fields.next())?;
    if log10 > 0.0 {
        return Err(format!("log10 probability {log10} is above 0"));
    }
    let mut words = [""; MAX_ORDER];
    for word in &mut words[..n] {
        *word = fields.next().ok_or_else(|| format!("wanted {n} words"))?;
    }
    let backoff = match fields.next() {
        None => 0.0,
        Some(field) => number(Some(field))?,
    };
    if fields.next().is_some() {
        return Err(format!("has more than {n} words and two numbers"));
    }
    builder.add(&words[..n], log10, backoff)
}

/// A model that is put together n-gram by n-gram, shorter ones first.
pub(crate) struct Builder {
    order: usize,
    map: HashMap<u64, u32, super::vocabulary::Identity>,
    words: Vec<u8>,
    probing: Probing,
}

impl Builder {
    pub(crate) fn new(counts: &[u64]) -> Builder {
        let mut builder = Builder {
            order: counts.len(),
            map: HashMap::default(),
            words: Vec::new(),
            probing: Probing::with_room(counts, MULTIPLIER),
        };
        builder.new_word(UNKNOWN, UNKNOWN_LOG10, 0.0);
        builder
    }

    fn new_word(&mut self, word: &str, log10: f32, backoff: f32) {
        // A probability without the flag and a weight without an extension: see `table`.
        let backoff = if backoff == 0.0 { super::table::NO_EXTENSION } else { backoff };
        // The probability 1 of <s> keeps the sign that KenLM leaves it.
        let stored = if log10 == 0.0 { 0.0 } else { -log10.abs() };
        self.probing.unigrams.push([stored, backoff]);
        self.words.extend_from_slice(word.as_bytes());
        self.words.push(0);
    }

    /// Adds an n-gram; the error says what is wrong with it.
    pub(crate) fn add(
        &mut self,
        words: &[&str],
        log10: f32,
        backoff: f32,
    ) -> std::result::Result<(), String> {
        if let [word] = words {
            if word.eq_ignore_ascii_case(UNKNOWN) && (*word == UNKNOWN || *word == "<UNK>") {
                self.probing.unigrams[0] = [-log10.abs(), if backoff == 0.0 { -0.0 } else { backoff }];
                return Ok(());
            }
            let id = self.probing.unigrams.len() as u32;
            if id == u32::MAX || self.map.insert(hash_word(word.as_bytes()), id).is_some() {
                return Err(format!("the word {word:?} occurs twice"));
            }
            self.new_word(word, log10, backoff);
            return Ok(());
        }
        let mut ids = [0; MAX_ORDER];
        for (id, word) in ids.iter_mut().zip(words) {
            *id = match self.map.get(&hash_word(word.as_bytes())) {
                Some(&id) => id,
                None if *word == UNKNOWN || *word == "<UNK>" => 0,
                None => return Err(format!("the word {word:?} is not among the unigrams")),
            };
        }
        self.probing
            .insert(&ids[..words.len()], log10, backoff)
            .map_err(|what| format!("{}: {what}", words.join(" ")))
    }

    /// The model.
    pub(crate) fn finish(self) -> std::result::Result<LanguageModel, String> {
        let id = |word: &str| self.map.get(&hash_word(word.as_bytes())).copied();
        let missing = |word: &str| format!("the model has no {word}, so sentences cannot be scored");
        Ok(LanguageModel {
            order: self.order,
            begin: id(BEGIN).ok_or_else(|| missing(BEGIN))?,
            end: id(END).ok_or_else(|| missing(END))?,
            vocabulary: Vocabulary::Map(self.map),
            search: Search::Probing(self.probing),
            words: self.words,
        })
    }
}
