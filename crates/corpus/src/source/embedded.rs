//! The corpus that the program carries, for a prebuilt binary on a machine without cargo: sources of this
//! crate (about 150 kB, a copy packed with the program) and synthetic tasks written by rule (nothing packed), together
//! about 1.2 MB.
//!
//! The tasks are there because their optimal loss is known. A line is a question, chosen at random, and an answer
//! that follows from it, so a perfect model pays exactly the entropy of the question:
//!
//! | task | line | entropy of a line | bytes |
//! |---|---|---|---|
//! | copy | `copy WORD = WORD`, 8 letters | 8 log2 26 = 37.60 bits | 25 |
//! | reverse | `reverse WORD = DROW`, 8 letters | 37.60 bits | 28 |
//! | add | `add 123 + 456 = 0579`, both 000…999 | 2 log2 1000 = 19.93 bits | 21 |
//! | brackets | `brackets ([{< = >}])`, 6 opening brackets | 6 log2 4 = 12 bits | 25 |
//! | sort | `sort 3 1 2 = 1 2 3`, 8 digits | 8 log2 10 = 26.58 bits | 39 |

use super::{Listing, MORSEL_BYTES, Source, SourceInfo};
use bessemer_dataflow::{Morsel, Scan};
use bessemer_documents::{Origin, RowBuilder};
use bessemer_units::splitmix::SplitMix64;
use std::fmt::Write;
use std::sync::Arc;

/// Files of an earlier version of this crate, packed with the program: a line `=== PATH` before each. A copy, so that the
/// corpus does not change when the program does.
const PACKED: &str = include_str!("embedded.txt");
/// Version of this crate that the packed files are from.
const PACKED_VERSION: &str = "0.1.0";

/// The packed files: (path, text).
fn own_sources() -> Vec<(&'static str, &'static str)> {
    let mut files = Vec::new();
    let mut rest = PACKED;
    while let Some((path, after)) = rest.strip_prefix("=== ").and_then(|rest| rest.split_once('\n')) {
        // The separator's line end belongs to the text before it.
        let end = after.find("\n=== ").map_or(after.len(), |end| end + 1);
        files.push((path, &after[..end]));
        rest = &after[end..];
    }
    files
}

/// Documents per task; each is a source of its own, so that the split by source holds out whole documents.
const DOCUMENTS: usize = 50;
/// The same where the corpus stands in for one of megabytes.
const ENLARGED_DOCUMENTS: usize = 500;
/// Lines of a document.
const LINES: usize = 150;

/// The tasks: name and one random line.
const TASKS: &[(&str, WriteLine)] =
    &[("copy", copy), ("reverse", reverse), ("add", add), ("brackets", brackets), ("sort", sort)];

/// Appends one random line.
type WriteLine = fn(&mut SplitMix64, &mut String);

fn word(random: &mut SplitMix64) -> String {
    (0..8).map(|_| char::from(b'a' + random.below(26) as u8)).collect()
}

fn copy(random: &mut SplitMix64, out: &mut String) {
    let word = word(random);
    let _ = writeln!(out, "copy {word} = {word}");
}

fn reverse(random: &mut SplitMix64, out: &mut String) {
    let word = word(random);
    let _ = writeln!(out, "reverse {word} = {}", word.chars().rev().collect::<String>());
}

fn add(random: &mut SplitMix64, out: &mut String) {
    let (a, b) = (random.below(1000), random.below(1000));
    let _ = writeln!(out, "add {a:03} + {b:03} = {:04}", a + b);
}

fn brackets(random: &mut SplitMix64, out: &mut String) {
    let open: Vec<usize> = (0..6).map(|_| random.index(4)).collect();
    let opening: String = open.iter().map(|&kind| ['(', '[', '{', '<'][kind]).collect();
    let closing: String = open.iter().rev().map(|&kind| [')', ']', '}', '>'][kind]).collect();
    // The word is long enough that letters are a quarter of the line: the rules for code keep it.
    let _ = writeln!(out, "brackets {opening} = {closing}");
}

fn sort(random: &mut SplitMix64, out: &mut String) {
    let mut digits: Vec<u64> = (0..8).map(|_| random.below(10)).collect();
    let line = |digits: &[u64]| digits.iter().map(u64::to_string).collect::<Vec<String>>().join(" ");
    let question = line(&digits);
    digits.sort_unstable();
    let _ = writeln!(out, "sort {question} = {}", line(&digits));
}

/// Text of a document of a task.
fn task(index: usize, document: usize) -> String {
    let mut random = SplitMix64(((index as u64) << 32) | document as u64);
    let mut text = String::new();
    for _ in 0..LINES {
        TASKS[index].1(&mut random, &mut text);
    }
    text
}

pub(crate) struct Embedded {
    listing: Listing,
    /// Documents per task.
    documents: usize,
}

/// The embedded corpus.
pub(crate) fn open() -> Embedded {
    with_documents(DOCUMENTS)
}

/// The embedded corpus with ten times the documents of each task.
pub(crate) fn open_enlarged() -> Embedded {
    with_documents(ENLARGED_DOCUMENTS)
}

fn with_documents(documents: usize) -> Embedded {
    let source = |name: String| SourceInfo {
        name,
        version: Some(PACKED_VERSION.to_string()),
        licence: Some(env!("CARGO_PKG_LICENSE").to_string()),
    };
    let mut listing = Listing { kind: "embedded", ..Listing::default() };
    listing.sources.push(source("bessemer-corpus".into()));
    for (task, _) in TASKS {
        listing.sources.extend((0..documents).map(|document| source(format!("{task}-{document:02}"))));
    }
    let own = own_sources();
    listing.files = (own.len() + TASKS.len() * documents) as u64;
    listing.bytes = own.iter().map(|(_, text)| text.len() as u64).sum();
    for (path, text) in own {
        listing.entries.push(format!("{path} {:032x}", xxhash_rust::xxh3::xxh3_128(text.as_bytes())));
    }
    listing.entries.push(format!("{} tasks, version 2, {documents} documents of {LINES} lines", TASKS.len()));
    Embedded { listing, documents }
}

impl Embedded {
    /// Marks it as the stand-in for another source.
    pub(crate) fn stands_in(&mut self, why: Option<String>) {
        self.listing.fallback = why;
    }
}

impl bessemer_dataflow::Source for Embedded {
    fn describe(&self) -> String {
        "the embedded corpus".into()
    }

    fn scan(&self) -> bessemer_dataflow::Result<Box<dyn Scan>> {
        Ok(Box::new(EmbeddedScan {
            sources: Arc::new(self.listing.sources.clone()),
            documents: self.documents,
            next: 0,
        }))
    }
}

impl Source for Embedded {
    fn listing(&self) -> &Listing {
        &self.listing
    }
}

struct EmbeddedScan {
    sources: Arc<Vec<SourceInfo>>,
    documents: usize,
    next: usize,
}

/// Documents of a batch.
const BATCH: usize = 32;

impl Scan for EmbeddedScan {
    fn next(&mut self) -> bessemer_dataflow::Result<Option<Morsel>> {
        let own = own_sources();
        let documents = self.documents;
        let count = own.len() + TASKS.len() * documents;
        let range = self.next..count.min(self.next + BATCH);
        self.next = range.end;
        if range.is_empty() {
            return Ok(None);
        }
        let sources = self.sources.clone();
        Ok(Some(Box::new(move || {
            let mut rows = RowBuilder::with_capacity(BATCH, MORSEL_BYTES);
            for ordinal in range {
                let (source, path, text) = match own.get(ordinal) {
                    Some((path, text)) => (&sources[0], (*path).to_string(), (*text).to_string()),
                    None => {
                        let number = ordinal - own.len();
                        let text = task(number / documents, number % documents);
                        (&sources[1 + number], "task.txt".to_string(), text)
                    }
                };
                let id = format!("{}/{path}", source.name);
                let origin = Origin {
                    file: ordinal as u32,
                    id: &id,
                    source: &source.name,
                    version: source.version.as_deref(),
                    licence: source.licence.as_deref(),
                    path: &path,
                    bytes: text.len() as u64,
                    ..Origin::default()
                };
                rows.push(&origin, text.as_bytes());
            }
            rows.finish()
        })))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_follow_from_questions() {
        for index in 0..TASKS.len() {
            for line in task(index, 3).lines() {
                let (question, answer) = line.split_once(" = ").unwrap();
                let (name, question) = question.split_once(' ').unwrap();
                let expected = match name {
                    "copy" => question.to_string(),
                    "reverse" => question.chars().rev().collect(),
                    "add" => {
                        let sum: u32 = question.split(" + ").map(|n| n.parse::<u32>().unwrap()).sum();
                        format!("{sum:04}")
                    }
                    "brackets" => question
                        .chars()
                        .rev()
                        .map(|c| match c {
                            '(' => ')',
                            '[' => ']',
                            '{' => '}',
                            _ => '>',
                        })
                        .collect(),
                    _ => {
                        let mut digits: Vec<&str> = question.split(' ').collect();
                        digits.sort();
                        digits.join(" ")
                    }
                };
                assert_eq!(answer, expected, "{line}");
            }
        }
    }

    #[test]
    fn packed_files_are_told_apart() {
        let own = own_sources();
        assert_eq!(own.len(), 23);
        let headers: usize = own.iter().map(|(path, _)| "=== ".len() + path.len() + 1).sum();
        assert_eq!(own.iter().map(|(_, text)| text.len()).sum::<usize>() + headers, PACKED.len());
        assert!(own.iter().all(|(path, text)| path.ends_with(".rs") && text.ends_with("}\n")), "{own:?}");
    }

    #[test]
    fn lines_have_the_documented_length() {
        let lengths: Vec<usize> =
            (0..TASKS.len()).map(|index| task(index, 0).lines().next().unwrap().len() + 1).collect();
        assert_eq!(lengths, [25, 28, 21, 25, 39]);
    }
}
