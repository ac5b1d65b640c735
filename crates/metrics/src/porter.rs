//! Porter's stemmer of English words ("An algorithm for suffix stripping", 1980) with the changes that NLTK makes by default, which ROUGE and
//! METEOR are computed with. It is not the later "Porter 2" (Snowball English).
//!
//! NLTK's changes: a list of irregular words, words of two letters or fewer stay, `ies` and `ied` of four letters keep an `e`, `y` becomes `i` after a
//! consonant that is not the first letter, `alli` before the other suffixes, `bli`, `fulli` and `logi`, and vowel-consonant as a whole
//! word counts as a short syllable.

/// Words that the rules would spoil.
const IRREGULAR: [(&str, &str); 16] = [
    ("sky", "sky"),
    ("skies", "sky"),
    ("dying", "die"),
    ("lying", "lie"),
    ("tying", "tie"),
    ("news", "news"),
    ("innings", "inning"),
    ("inning", "inning"),
    ("outings", "outing"),
    ("outing", "outing"),
    ("cannings", "canning"),
    ("canning", "canning"),
    ("howe", "howe"),
    ("proceed", "proceed"),
    ("exceed", "exceed"),
    ("succeed", "succeed"),
];

/// Suffix and what takes its place where the stem before it has a measure above 0.
const STEP_2: [(&str, &str); 21] = [
    ("ational", "ate"),
    ("tional", "tion"),
    ("enci", "ence"),
    ("anci", "ance"),
    ("izer", "ize"),
    ("bli", "ble"),
    ("alli", "al"),
    ("entli", "ent"),
    ("eli", "e"),
    ("ousli", "ous"),
    ("ization", "ize"),
    ("ation", "ate"),
    ("ator", "ate"),
    ("alism", "al"),
    ("iveness", "ive"),
    ("fulness", "ful"),
    ("ousness", "ous"),
    ("aliti", "al"),
    ("iviti", "ive"),
    ("biliti", "ble"),
    ("fulli", "ful"),
];
const STEP_3: [(&str, &str); 7] = [
    ("icate", "ic"),
    ("ative", ""),
    ("alize", "al"),
    ("iciti", "ic"),
    ("ical", "ic"),
    ("ful", ""),
    ("ness", ""),
];
/// Suffixes that go where the stem before them has a measure above 1.
const STEP_4: [&str; 19] = [
    "al", "ance", "ence", "er", "ic", "able", "ible", "ant", "ement", "ment", "ent", "ion", "ou", "ism",
    "ate", "iti", "ous", "ive", "ize",
];

/// The stem of a word. The word is taken in lower case; characters that are no vowels count as consonants.
pub fn stem(word: &str) -> String {
    let lower = word.to_lowercase();
    if let Some((_, stem)) = IRREGULAR.iter().find(|(irregular, _)| *irregular == lower) {
        return (*stem).into();
    }
    if word.chars().count() <= 2 {
        return lower;
    }
    // The rules look at single characters; whole ones, since suffixes are ASCII.
    let mut word: Vec<char> = lower.chars().collect();
    step_1(&mut word);
    step_2(&mut word);
    replace(&mut word, &STEP_3, |stem, _| measure(stem) > 0);
    if let Some(suffix) = STEP_4.iter().find(|suffix| ends(&word, suffix)) {
        let stem = &word[..word.len() - suffix.len()];
        if measure(stem) > 1 && (*suffix != "ion" || matches!(stem.last(), Some('s' | 't'))) {
            word.truncate(stem.len());
        }
    }
    if let Some((&'e', stem)) = word.split_last() {
        let measure = measure(stem);
        if measure > 1 || measure == 1 && !short_syllable(stem) {
            word.pop();
        }
    }
    if ends(&word, "ll") && measure(&word[..word.len() - 1]) > 1 {
        word.pop();
    }
    word.into_iter().collect()
}

fn step_1(word: &mut Vec<char>) {
    if ends(word, "ies") {
        word.truncate(if word.len() == 4 { 3 } else { word.len() - 2 });
    } else if ends(word, "sses") {
        word.truncate(word.len() - 2);
    } else if ends(word, "s") && !ends(word, "ss") {
        word.pop();
    }

    if ends(word, "ied") {
        word.truncate(if word.len() == 4 { 3 } else { word.len() - 2 });
    } else if ends(word, "eed") {
        if measure(&word[..word.len() - 3]) > 0 {
            word.pop();
        }
    } else {
        let cut = ["ed", "ing"].iter().find(|suffix| {
            ends(word, suffix) && consonants(&word[..word.len() - suffix.len()]).contains(&false)
        });
        if let Some(suffix) = cut {
            word.truncate(word.len() - suffix.len());
            restore(word);
        }
    }

    if let Some((&'y', stem)) = word.split_last()
        && stem.len() > 1
        && consonants(stem).last() == Some(&true)
    {
        word.pop();
        word.push('i');
    }
}

/// The end of a word that has lost `ed` or `ing`.
fn restore(word: &mut Vec<char>) {
    let last = word.last().copied();
    if ["at", "bl", "iz"].iter().any(|suffix| ends(word, suffix)) {
        word.push('e');
    } else if word.len() >= 2
        && last == word.get(word.len() - 2).copied()
        && consonants(word).last() == Some(&true)
    {
        if !matches!(last, Some('l' | 's' | 'z')) {
            word.pop();
        }
    } else if measure(word) == 1 && short_syllable(word) {
        word.push('e');
    }
}

fn step_2(word: &mut Vec<char>) {
    while ends(word, "alli") && measure(&word[..word.len() - 4]) > 0 {
        word.truncate(word.len() - 2);
    }
    // Of `logi` the l belongs to the stem that is measured.
    if !replace(word, &STEP_2, |stem, _| measure(stem) > 0)
        && ends(word, "logi")
        && measure(&word[..word.len() - 3]) > 0
    {
        word.pop();
    }
}

/// Replaces the first suffix of the rules that the word has, if the stem before it is allowed. Whether the word has one.
fn replace(word: &mut Vec<char>, rules: &[(&str, &str)], allowed: fn(&[char], &str) -> bool) -> bool {
    let Some((suffix, replacement)) = rules.iter().find(|(suffix, _)| ends(word, suffix)) else {
        return false;
    };
    let length = word.len() - suffix.len();
    if allowed(&word[..length], suffix) {
        word.truncate(length);
        word.extend(replacement.chars());
    }
    true
}

fn ends(word: &[char], suffix: &str) -> bool {
    word.len() >= suffix.len() && word[word.len() - suffix.len()..].iter().copied().eq(suffix.chars())
}

/// Which letters are consonants; a `y` is one at the beginning and after a vowel.
fn consonants(word: &[char]) -> Vec<bool> {
    let mut flags: Vec<bool> = Vec::with_capacity(word.len());
    for c in word {
        flags.push(match c {
            'a' | 'e' | 'i' | 'o' | 'u' => false,
            'y' => flags.last().is_none_or(|before| !before),
            _ => true,
        });
    }
    flags
}

/// How often a vowel is followed by a consonant.
fn measure(word: &[char]) -> usize {
    consonants(word).windows(2).filter(|pair| !pair[0] && pair[1]).count()
}

/// Whether a word ends with consonant, vowel and a consonant other than w, x and y, or is a vowel and a consonant.
fn short_syllable(word: &[char]) -> bool {
    match consonants(word).as_slice() {
        [.., true, false, true] => !matches!(word.last(), Some('w' | 'x' | 'y')),
        [false, true] => true,
        _ => false,
    }
}
