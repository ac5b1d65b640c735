//! Synonyms by a WordNet (Fellbaum 1998): its files `index.*`, `data.*` and `*.exc` of nouns, verbs, adjectives and adverbs, as versions 3.0 and 3.1
//! have them (wndb(5WN)).
//!
//! Base forms of a word are found as NLTK finds them: the word, and either what the list of exceptions has for it or what the rules of its part of speech
//! make of its ending, as far as the index has them. Memory: the data files and an entry for each lemma.

use std::collections::HashMap;

/// Suffixes of the files, in the order of the parts of speech.
pub const PARTS: [&str; 4] = ["noun", "verb", "adj", "adv"];

/// Endings and what takes their place, by part of speech.
const ENDINGS: [&[(&str, &str)]; 4] = [
    &[
        ("s", ""),
        ("ses", "s"),
        ("ves", "f"),
        ("xes", "x"),
        ("zes", "z"),
        ("ches", "ch"),
        ("shes", "sh"),
        ("men", "man"),
        ("ies", "y"),
    ],
    &[("s", ""), ("ies", "y"), ("es", "e"), ("es", ""), ("ed", "e"), ("ed", ""), ("ing", "e"), ("ing", "")],
    &[("er", ""), ("est", ""), ("er", "e"), ("est", "e")],
    &[],
];

/// Texts of the files of one part of speech.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PartFiles {
    /// `index.*`.
    pub index: String,
    /// `data.*`.
    pub data: String,
    /// `*.exc`.
    pub exceptions: String,
}

/// Why files are no WordNet.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{file}, line {line}: wanted {wanted}, found {found:?}")]
pub struct WordNetError {
    /// Name of the file.
    pub file: String,
    /// From 1.
    pub line: usize,
    /// What a line is.
    pub wanted: &'static str,
    /// The beginning of the line.
    pub found: String,
}

/// Sets of synonyms.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WordNet {
    parts: Vec<Part>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Part {
    data: String,
    /// Places of the sets of a lemma in `data`.
    places: HashMap<String, Vec<usize>>,
    exceptions: HashMap<String, Vec<String>>,
    endings: &'static [(&'static str, &'static str)],
}

impl WordNet {
    /// Reads the files of the four parts of speech, in the order of [`PARTS`].
    ///
    /// # Errors
    /// A line of another form; a place in an index where the data file has no set.
    pub fn new(files: [PartFiles; 4]) -> Result<WordNet, WordNetError> {
        let parts = files.into_iter().zip(PARTS).zip(ENDINGS);
        let parts = parts.map(|((files, part), endings)| Part::new(files, part, endings));
        Ok(WordNet { parts: parts.collect::<Result<_, _>>()? })
    }

    /// Words of all sets that a word's base forms are in; those of several words are left out.
    pub fn synonyms(&self, word: &str) -> Vec<String> {
        let word = word.to_lowercase();
        let mut found = Vec::new();
        for part in &self.parts {
            for form in part.forms(&word) {
                for place in &part.places[&form] {
                    let words = set_at(&part.data, *place).into_iter().flatten();
                    found.extend(words.filter(|word| !word.contains('_')).map(str::to_owned));
                }
            }
        }
        found
    }
}

/// The words of the set at a place of a data file: `OFFSET FILE TYPE COUNT WORD ID WORD ID …`, the count in hexadecimal.
fn set_at(data: &str, place: usize) -> Option<Vec<&str>> {
    let line = data.get(place..)?.lines().next()?;
    let mut fields = line.split(' ');
    let own: usize = fields.next()?.parse().ok()?;
    let count = usize::from_str_radix(fields.nth(2)?, 16).ok().filter(|_| own == place)?;
    let words: Vec<&str> = fields.step_by(2).take(count).collect();
    // Adjectives may have a marker of their place behind: `galore(ip)`.
    let plain = |word: &'_ str| word.find('(').filter(|_| word.ends_with(')'));
    (words.len() == count)
        .then(|| words.into_iter().map(|word| &word[..plain(word).unwrap_or(word.len())]).collect())
}

impl Part {
    fn new(
        files: PartFiles,
        part: &str,
        endings: &'static [(&'static str, &'static str)],
    ) -> Result<Part, WordNetError> {
        let PartFiles { index, data, exceptions } = files;
        let mut places = HashMap::new();
        // The licence stands before, in lines that begin with blanks.
        for (at, line) in index.lines().enumerate().filter(|(_, line)| !line.starts_with(' ')) {
            let of_lemma =
                index_line(line).filter(|(_, of)| of.iter().all(|place| set_at(&data, *place).is_some()));
            let Some((lemma, of)) = of_lemma else {
                let wanted = "a lemma and the places of its sets in the data file";
                return Err(wrong(format!("index.{part}"), at, wanted, line));
            };
            places.insert(lemma.to_owned(), of);
        }
        let mut bases = HashMap::new();
        for (at, line) in exceptions.lines().enumerate() {
            let mut words = line.split_whitespace().map(str::to_owned);
            let (Some(form), of) = (words.next(), words.collect::<Vec<String>>()) else { continue };
            if of.is_empty() {
                return Err(wrong(format!("{part}.exc"), at, "a form and its base forms", line));
            }
            bases.insert(form, of);
        }
        Ok(Part { data, places, exceptions: bases, endings })
    }

    /// Base forms of a word that the index has.
    fn forms(&self, word: &str) -> Vec<String> {
        let by_rule = |(old, new): &(&str, &str)| word.strip_suffix(old).map(|stem| format!("{stem}{new}"));
        let bases = match self.exceptions.get(word) {
            Some(bases) => bases.clone(),
            None => self.endings.iter().filter_map(by_rule).collect(),
        };
        let mut forms = Vec::new();
        for form in std::iter::once(word.to_owned()).chain(bases) {
            if self.places.contains_key(&form) && !forms.contains(&form) {
                forms.push(form);
            }
        }
        forms
    }
}

/// `LEMMA POS SETS POINTERS SYMBOL… SENSES TAGGED OFFSET…`.
fn index_line(line: &str) -> Option<(&str, Vec<usize>)> {
    let fields: Vec<&str> = line.split_whitespace().collect();
    let [sets, pointers] = [fields.get(2)?, fields.get(3)?].map(|field| field.parse::<usize>().ok());
    let places = fields.get(pointers?.checked_add(6)?..)?;
    let places: Vec<usize> = places.iter().map(|place| place.parse().ok()).collect::<Option<_>>()?;
    (Some(places.len()) == sets).then(|| (fields[0], places))
}

fn wrong(file: String, at: usize, wanted: &'static str, line: &str) -> WordNetError {
    WordNetError { file, line: at + 1, wanted, found: line.chars().take(60).collect() }
}
