//! Perturbations of words: contractions, spelling, gender, fillers, Pig Latin.

use crate::characters::space;
use crate::lists;
use bessemer_mersenne::PythonRandom;
use std::collections::HashMap;

fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// Replaces runs of characters of words, hyphens within them included, where `replace` knows another.
fn map_words(text: &str, mut replace: impl FnMut(&str) -> Option<String>) -> String {
    let mut changed = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(start) = rest.find(is_word) {
        changed += &rest[..start];
        rest = &rest[start..];
        let mut end = 0;
        loop {
            let word = &rest[end..];
            end += word.find(|c| !is_word(c)).unwrap_or(word.len());
            match rest[end..].strip_prefix('-') {
                Some(behind) if behind.starts_with(is_word) => end += 1,
                _ => break,
            }
        }
        let (word, behind) = rest.split_at(end);
        match replace(word) {
            Some(other) => changed += &other,
            None => changed += word,
        }
        rest = behind;
    }
    changed + rest
}

/// `str.capitalize()`.
fn capitalized(text: &str) -> String {
    let mut characters = text.chars();
    let first = characters.next().into_iter().flat_map(char::to_uppercase);
    first.chain(characters.as_str().to_lowercase().chars()).collect()
}

/// HELM's `match_case`: `target` in the case of `source`.
fn match_case(source: &str, target: &str) -> String {
    if source.chars().all(char::is_lowercase) {
        target.to_lowercase()
    } else if source.chars().all(char::is_uppercase) {
        target.to_uppercase()
    } else if source.starts_with(char::is_uppercase) {
        capitalized(target)
    } else {
        target.to_owned()
    }
}

/// Replaces the first of `pairs` that stands at the beginning of a word, ignoring case, and is followed by what `follows` accepts.
fn replace_phrases<'a>(
    text: &str,
    pairs: impl Iterator<Item = (&'a str, &'a str)> + Clone,
    follows: impl Fn(Option<char>) -> bool,
) -> String {
    let mut changed = String::with_capacity(text.len());
    let (mut at, mut within) = (0, false);
    while let Some(c) = text[at..].chars().next() {
        let here = &text[at..];
        let is_here = |phrase: &str| {
            here.get(..phrase.len()).is_some_and(|found| found.eq_ignore_ascii_case(phrase))
                && follows(here[phrase.len()..].chars().next())
        };
        let found = (!within && is_word(c)).then(|| pairs.clone().find(|(phrase, _)| is_here(phrase)));
        if let Some((phrase, other)) = found.flatten() {
            changed += &match_case(&here[..phrase.len()], other);
            at += phrase.len();
            within = true;
        } else {
            changed.push(c);
            at += c.len_utf8();
            within = is_word(c);
        }
    }
    changed
}

/// HELM's `contraction`: "she is" becomes "she's" where a space follows. The phrases are tried in the order of the list.
pub(crate) fn contraction(text: &str) -> String {
    // Of two contractions with one meaning HELM takes the later, "isn't" and not "ain't".
    let shorter = |phrase: &str| {
        let last = lists::CONTRACTIONS.iter().rev().find(|(_, long)| *long == phrase);
        last.map_or("", |(short, _)| *short)
    };
    let pairs = lists::CONTRACTIONS.iter().map(|(_, long)| (*long, shorter(long)));
    replace_phrases(text, pairs, |next| next == Some(' '))
}

/// HELM's `expansion`: "she's" becomes "she is".
pub(crate) fn expansion(text: &str) -> String {
    replace_phrases(text, lists::CONTRACTIONS.iter().copied(), |next| !next.is_some_and(is_word))
}

/// NL-Augmenter's `weekday_month_abbreviation`, both ways: "Monday" and "Mon." change places. Names within longer words are left as they are.
pub(crate) fn weekday_month_abbreviation(text: &str) -> String {
    let mut changed = String::with_capacity(text.len());
    let (mut at, mut within) = (0, false);
    while let Some(c) = text[at..].chars().next() {
        let here = &text[at..];
        let long = |name: &str| here.strip_prefix(name).is_some_and(|behind| !behind.starts_with(is_word));
        let found =
            lists::DATES.iter().find_map(|(name, short)| match (long(name), here.starts_with(short)) {
                (true, _) => Some((*name, *short)),
                (_, true) => Some((*short, *name)),
                _ => None,
            });
        match found.filter(|_| !within) {
            Some((old, new)) => {
                changed += new;
                at += old.len();
                within = false;
            }
            None => {
                changed.push(c);
                at += c.len_utf8();
                within = is_word(c);
            }
        }
    }
    changed
}

/// A word in Pig Latin, as the package piglatin (Pabel) translates it: leading consonants move behind, and "ay" follows; y is a vowel but at the beginning.
fn pig_latin_word(word: &str) -> String {
    if !word.contains(|c: char| c.is_ascii_alphabetic()) {
        return word.replace('-', "");
    }
    let Some(begin) = word.find(is_word) else { return word.to_owned() };
    let end = word.trim_end_matches(|c| !is_word(c)).len();
    let middle = &word[begin..end];
    let is_vowel = |(i, c): (usize, char)| "aeiou".contains(c) || i > 0 && c == 'y';
    let vowel = middle.char_indices().find(|place| is_vowel(*place)).map_or(middle.len(), |(i, _)| i);
    let (consonants, stem) = middle.split_at(vowel);
    format!("{}{stem}{consonants}ay{}", &word[..begin], &word[end..]).replace('-', "")
}

/// NL-Augmenter's `pig_latin`, in lower case. Blanks stay as they are.
pub(crate) fn pig_latin(text: &str) -> String {
    let lower = text.to_lowercase();
    let pieces = lower.split_inclusive(char::is_whitespace);
    pieces
        .map(|piece| {
            let word = piece.trim_end_matches(char::is_whitespace);
            let blank = &piece[word.len()..];
            if word.is_empty() { piece.to_owned() } else { pig_latin_word(word) + blank }
        })
        .collect()
}

/// Replaces words by their counterparts, in their case.
fn exchange(text: &str, counterparts: &HashMap<String, String>) -> String {
    map_words(text, |word| counterparts.get(&word.to_lowercase()).map(|other| match_case(word, other)))
}

fn one_way(pairs: &[(&str, &str)]) -> HashMap<String, String> {
    pairs.iter().map(|(from, to)| ((*from).to_owned(), (*to).to_owned())).collect()
}

fn both_ways(pairs: &[(&str, &str)]) -> HashMap<String, String> {
    let back: Vec<(&str, &str)> = pairs.iter().map(|(one, other)| (*other, *one)).collect();
    let mut all = one_way(&back);
    all.extend(one_way(pairs));
    all
}

/// NL-Augmenter's `gender_swap` without names of persons.
pub(crate) fn gender_swap(text: &str) -> String {
    let mut counterparts = both_ways(lists::GENDER_PAIRS);
    counterparts.extend(one_way(lists::GENDER_SINGLES));
    exchange(text, &counterparts)
}

/// HELM's `gender` with mode `pronouns`, from male to female.
pub(crate) fn gender_pronouns(text: &str) -> String {
    exchange(text, &one_way(lists::PRONOUNS))
}

/// HELM's `gender` with mode `terms`, from male to female.
pub(crate) fn gender_terms(text: &str) -> String {
    exchange(text, &one_way(lists::TERMS))
}

/// NL-Augmenter's `americanize_britishize_english`: British words become American and American ones British.
pub(crate) fn american_british(text: &str) -> String {
    let mut counterparts = both_ways(lists::VOCABULARY);
    for (british, american, endings) in lists::SPELLINGS {
        for ending in endings.split(' ') {
            let ending = if ending == "-" { "" } else { ending };
            let (british, american) = (format!("{british}{ending}"), format!("{american}{ending}"));
            counterparts.insert(american.clone(), british.clone());
            counterparts.insert(british, american);
        }
    }
    counterparts.retain(|word, _| !lists::AMBIGUOUS.contains(&word.as_str()));
    exchange(text, &counterparts)
}

/// HELM's `misspellings`: each word that has misspellings becomes one of them with probability `rate`.
pub(crate) fn misspelling(text: &str, rate: f64, random: &mut PythonRandom) -> String {
    let lines = lists::MISSPELLINGS.lines().filter_map(|line| line.split_once(' '));
    let misspellings: HashMap<&str, &str> = lines.collect();
    map_words(text, |word| {
        let wrong = misspellings.get(word.to_lowercase().as_str())?;
        if random.uniform() >= rate {
            return None;
        }
        let drawn = random.below(wrong.split(' ').count());
        wrong.split(' ').nth(drawn).map(|wrong| match_case(word, wrong))
    })
}

/// HELM's `filler_words` with these phrases: before each word one of them with probability `rate`.
pub(crate) fn filler_words(text: &str, rate: f64, fillers: &[&str], random: &mut PythonRandom) -> String {
    let mut words = Vec::new();
    for word in text.split(' ') {
        if random.uniform() <= rate {
            words.push(fillers[random.below(fillers.len())]);
        }
        words.push(word);
    }
    words.join(" ")
}

/// HELM's `mild_mix`: lower case, contractions, misspellings with probability `rate`, up to three spaces.
pub(crate) fn mild_mix(text: &str, rate: f64, random: &mut PythonRandom) -> String {
    let text = contraction(&text.to_lowercase());
    let text = misspelling(&text, rate, random);
    space(&text, 3, random)
}
