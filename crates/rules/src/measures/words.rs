//! Number, length and vocabulary of words.

use super::{MeasureSpec, newlines, occurrences, quotient};

/// The measures of this file, in the order of the documentation.
pub(super) const MEASURES: &[MeasureSpec] = &[
    MeasureSpec {
        name: "words",
        parameters: &["words"],
        value: "words",
        formula: "words",
        origin: "Gopher (Rae et al. 2021, table A1)",
        pattern: None,
        compute: |measure, text, scratch| Some(scratch.word_count(measure.words, text) as f64),
    },
    MeasureSpec {
        name: "nonsymbol-words",
        parameters: &["words"],
        value: "words with a character that is no punctuation",
        formula: "words with a non-punctuation character",
        origin: "datatrove's Gopher",
        pattern: None,
        compute: |measure, text, scratch| Some(scratch.stats(measure.words, text).nonsymbol as f64),
    },
    MeasureSpec {
        name: "mean-word-length",
        parameters: &["words"],
        value: "characters per word",
        formula: "chars of words / words",
        origin: "Gopher (Rae et al. 2021, table A1)",
        pattern: None,
        compute: |measure, text, scratch| {
            let list = scratch.words(measure.words, text);
            quotient(list.total_chars, list.len() as u64)
        },
    },
    MeasureSpec {
        name: "mean-nonsymbol-word-length",
        parameters: &["words"],
        value: "characters per word, over words with a character that is no punctuation",
        formula: "chars of such words / such words",
        origin: "datatrove's Gopher",
        pattern: None,
        compute: |measure, text, scratch| {
            let stats = scratch.stats(measure.words, text);
            quotient(stats.nonsymbol_chars, stats.nonsymbol)
        },
    },
    MeasureSpec {
        name: "median-word-length",
        parameters: &["words"],
        value: "median of the characters per word",
        formula: "median(chars of a word); 0 without words",
        origin: "Dolma (Soldaini et al. 2024)",
        pattern: None,
        compute: |measure, text, scratch| Some(median(&scratch.words(measure.words, text).chars)),
    },
    MeasureSpec {
        name: "longest-word",
        parameters: &["words"],
        value: "characters of the longest word",
        formula: "max(chars of a word)",
        origin: "NeMo Curator",
        pattern: None,
        compute: |measure, text, scratch| {
            scratch.words(measure.words, text).chars.iter().max().map(|&chars| f64::from(chars))
        },
    },
    MeasureSpec {
        name: "marks-per-word",
        parameters: &["marks", "words"],
        value: "occurrences of the marks in the text, per word",
        formula: "marks in the text / words",
        origin: "Gopher (Rae et al. 2021, table A1)",
        pattern: None,
        compute: |measure, text, scratch| {
            let found = measure.marks.iter().map(|mark| occurrences(text, mark)).sum();
            quotient(found, scratch.word_count(measure.words, text))
        },
    },
    MeasureSpec {
        name: "words-with-marks",
        parameters: &["marks", "words"],
        value: "share of words that hold a mark",
        formula: "words with a mark / words",
        origin: "Dolma (Soldaini et al. 2024)",
        pattern: None,
        compute: |measure, text, scratch| {
            measure.share_of_words(text, scratch, |word| {
                measure.marks.iter().any(|mark| word.contains(mark.as_str()))
            })
        },
    },
    MeasureSpec {
        name: "mark-words",
        parameters: &["marks", "words"],
        value: "share of words that are a mark, or `#` to more than a half",
        formula: "words that are marks / words",
        origin: "NeMo Curator",
        pattern: None,
        compute: |measure, text, scratch| {
            measure.share_of_words(text, scratch, |word| {
                let hashes = word.bytes().filter(|&byte| byte == b'#').count();
                measure.marks.iter().any(|mark| mark == word) || 2 * hashes > word.chars().count()
            })
        },
    },
    MeasureSpec {
        name: "letter-words",
        parameters: &["words"],
        value: "share of words with a letter",
        formula: "words with a letter / words",
        origin: "Gopher (Rae et al. 2021, table A1)",
        pattern: None,
        compute: |measure, text, scratch| {
            quotient(scratch.stats(measure.words, text).with_letter, scratch.word_count(measure.words, text))
        },
    },
    MeasureSpec {
        name: "letterless-words",
        parameters: &["words"],
        value: "share of words without a letter",
        formula: "words without a letter / words",
        origin: "RefinedWeb (Penedo et al. 2023)",
        pattern: None,
        compute: |measure, text, scratch| {
            let words = scratch.word_count(measure.words, text);
            quotient(words - scratch.stats(measure.words, text).with_letter, words)
        },
    },
    MeasureSpec {
        name: "capital-words",
        parameters: &["words"],
        value: "share of words with upper-case letters and no lower-case one",
        formula: "capital words / words",
        origin: "RedPajama-V2 (Weber et al. 2024)",
        pattern: None,
        compute: |measure, text, scratch| {
            measure.share_of_words(text, scratch, |word| {
                word.chars().any(char::is_uppercase) && !word.chars().any(char::is_lowercase)
            })
        },
    },
    MeasureSpec {
        name: "unique-words",
        parameters: &["words"],
        value: "different words / words",
        formula: "different words / words",
        origin: "RedPajama-V2 (Weber et al. 2024)",
        pattern: None,
        compute: |measure, text, scratch| {
            let unique = scratch.interned(measure.words, text).distinct().len();
            quotient(unique as u64, scratch.words(measure.words, text).len() as u64)
        },
    },
    MeasureSpec {
        name: "word-entropy",
        parameters: &["words"],
        value: "entropy of the words in nats",
        formula: "-Σ p ln p over different words",
        origin: "RedPajama-V2 (Weber et al. 2024)",
        pattern: None,
        compute: |measure, text, scratch| {
            let words = scratch.words(measure.words, text).len();
            // Sorted, so that the sum does not depend on the order of the words.
            let distinct = scratch.interned(measure.words, text).distinct();
            let mut counts: Vec<u32> = distinct.iter().map(|word| word.count).collect();
            counts.sort_unstable();
            let entropy = counts.iter().map(|&count| f64::from(count) / words as f64).map(|p| -p * p.ln());
            (words > 0).then(|| entropy.sum())
        },
    },
    MeasureSpec {
        name: "distinct-listed-words",
        parameters: &["list", "words"],
        value: "how many words of the list occur",
        formula: "listed words that occur",
        origin: "Gopher (Rae et al. 2021, table A1)",
        pattern: None,
        compute: |measure, text, scratch| {
            Some(scratch.occurring(measure.words, text, measure.list.keys()) as f64)
        },
    },
    MeasureSpec {
        name: "listed-words",
        parameters: &["list", "ignore-case", "words"],
        value: "how often words of the list occur",
        formula: "occurrences of listed words",
        origin: "Dolma (Soldaini et al. 2024), RefinedWeb (Penedo et al. 2023)",
        pattern: None,
        compute: |measure, text, scratch| {
            let listed = |word: &&str| match measure.ignore_case {
                true => measure.list.contains_key(word.to_lowercase().as_str()),
                false => measure.list.contains_key(*word),
            };
            Some(scratch.words(measure.words, text).iter(text).filter(listed).count() as f64)
        },
    },
    MeasureSpec {
        name: "removed-words",
        parameters: &["words"],
        value: "share of the words that the line rules of the profile have cut",
        formula: "(words before - words after) / words before",
        origin: "RefinedWeb (Penedo et al. 2023)",
        pattern: None,
        compute: |measure, text, scratch| {
            let before = scratch.words_before?;
            let after = scratch.word_count(measure.words, text);
            (before > 0).then(|| (before as f64 - after as f64) / before as f64)
        },
    },
    MeasureSpec {
        name: "newlines-per-word",
        parameters: &["words"],
        value: "newlines per word",
        formula: "newlines / words",
        origin: "FineWeb (Penedo et al. 2024)",
        pattern: None,
        compute: |measure, text, scratch| quotient(newlines(text), scratch.word_count(measure.words, text)),
    },
];

fn median(lengths: &[u32]) -> f64 {
    if lengths.is_empty() {
        return 0.0;
    }
    let mut sorted = lengths.to_vec();
    sorted.sort_unstable();
    let middle = sorted.len() / 2;
    match sorted.len() % 2 {
        1 => f64::from(sorted[middle]),
        _ => (f64::from(sorted[middle - 1]) + f64::from(sorted[middle])) / 2.0,
    }
}
