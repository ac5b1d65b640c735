//! Perturbations of single characters: typing errors, case, blanks, look-alikes, order.

use bessemer_mersenne::{Mt19937, PythonRandom};
use unicode_normalization::UnicodeNormalization;

/// Keys near each letter, NL-Augmenter's `butter_fingers_perturbation`: the letter itself is among them.
const NEAR_AND_SAME: [(char, &str); 27] = [
    ('q', "qwasedzx"),
    ('w', "wqesadrfcx"),
    ('e', "ewrsfdqazxcvgt"),
    ('r', "retdgfwsxcvgt"),
    ('t', "tryfhgedcvbnju"),
    ('y', "ytugjhrfvbnji"),
    ('u', "uyihkjtgbnmlo"),
    ('i', "iuojlkyhnmlp"),
    ('o', "oipklujm"),
    ('p', "plo['ik"),
    ('a', "aqszwxwdce"),
    ('s', "swxadrfv"),
    ('d', "decsfaqgbv"),
    ('f', "fdgrvwsxyhn"),
    ('g', "gtbfhedcyjn"),
    ('h', "hyngjfrvkim"),
    ('j', "jhknugtblom"),
    ('k', "kjlinyhn"),
    ('l', "lokmpujn"),
    ('z', "zaxsvde"),
    ('x', "xzcsdbvfrewq"),
    ('c', "cxvdfzswergb"),
    ('v', "vcfbgxdertyn"),
    ('b', "bvnghcftyun"),
    ('n', "nbmhjvgtuik"),
    ('m', "mnkjloik"),
    (' ', " "),
];

/// Keys beside each letter, HELM's `typos`: without the letter itself.
const BESIDE: [(char, &str); 26] = [
    ('q', "was"),
    ('w', "qesad"),
    ('e', "wsdfr"),
    ('r', "edfgt"),
    ('t', "rfghy"),
    ('y', "tghju"),
    ('u', "yhjki"),
    ('i', "ujklo"),
    ('o', "iklp"),
    ('p', "ol"),
    ('a', "qwsz"),
    ('s', "weadzx"),
    ('d', "erfcxs"),
    ('f', "rtgvcd"),
    ('g', "tyhbvf"),
    ('h', "yujnbg"),
    ('j', "uikmnh"),
    ('k', "iolmj"),
    ('l', "opk"),
    ('z', "asx"),
    ('x', "sdcz"),
    ('c', "dfvx"),
    ('v', "fgbc"),
    ('b', "ghnv"),
    ('n', "hjmb"),
    ('m', "jkn"),
];

/// Characters that look like others in leet (NL-Augmenter's `leet_letters`, after the Simple English Wikipedia).
const LEET: [(char, &str); 31] = [
    ('!', "1"),
    ('7', "1"),
    ('A', "4"),
    ('B', "8"),
    ('C', "0"),
    ('D', "0"),
    ('E', "3"),
    ('G', "6"),
    ('I', "1"),
    ('J', "9"),
    ('L', "7"),
    ('N', "11"),
    ('O', "0"),
    ('S', "5"),
    ('T', "7"),
    ('X', "8"),
    ('Z', "2"),
    ('b', "6"),
    ('e', "3"),
    ('g', "9"),
    ('h', "4"),
    ('j', "7"),
    ('m', "3"),
    ('o', "0"),
    ('w', "3"),
    ('y', "4"),
    ('|', "1"),
    ('Θ', "0"),
    ('ε', "3"),
    ('ω', "3"),
    ('∈', "3"),
];

fn found<'a>(table: &'a [(char, &'a str)], wanted: char) -> Option<&'a str> {
    table.iter().find(|(key, _)| *key == wanted).map(|(_, value)| *value)
}

/// The lower case of a character whose lower case is one character; else the character.
fn lower(c: char) -> char {
    let mut all = c.to_lowercase();
    match (all.next(), all.next()) {
        (Some(one), None) => one,
        _ => c,
    }
}

/// Replaces characters by what `replace` draws for their lower case, and keeps their case.
fn retype(text: &str, mut replace: impl FnMut(char) -> char) -> String {
    let mut typed = String::with_capacity(text.len());
    for c in text.chars() {
        let small = lower(c);
        match replace(small) {
            new if small == c => typed.push(new),
            new => typed.extend(new.to_uppercase()),
        }
    }
    typed
}

/// One of the characters of a text that has some.
fn choice(keys: &str, random: &mut PythonRandom) -> Option<char> {
    keys.chars().nth(random.below(keys.chars().count().max(1)))
}

/// NL-Augmenter's `butter_fingers_perturbation`. A key is missed where a number from 0 to 99 is at most `100 rate`, and the right one may be drawn again.
pub(crate) fn butter_fingers(text: &str, rate: f64, random: &mut PythonRandom) -> String {
    let most = (rate * 100.0) as usize;
    retype(text, |small| match found(&NEAR_AND_SAME, small) {
        Some(keys) if random.below(100) <= most => choice(keys, random).unwrap_or(small),
        _ => small,
    })
}

/// HELM's `typos`: each letter with probability `rate` becomes one beside it on the keyboard.
pub(crate) fn typos(text: &str, rate: f64, random: &mut PythonRandom) -> String {
    retype(text, |small| match found(&BESIDE, small) {
        Some(keys) if random.uniform() < rate => choice(keys, random).unwrap_or(small),
        _ => small,
    })
}

/// NL-Augmenter's `change_char_case`: each letter with probability `rate` in the other case.
pub(crate) fn change_char_case(text: &str, rate: f64, random: &mut PythonRandom) -> String {
    let mut changed = String::with_capacity(text.len());
    for c in text.chars() {
        if c.is_uppercase() && random.uniform() < rate {
            changed.extend(c.to_lowercase());
        } else if c.is_lowercase() && random.uniform() < rate {
            changed.extend(c.to_uppercase());
        } else {
            changed.push(c);
        }
    }
    changed
}

/// NL-Augmenter's `random_upper_transformation`: `rate` of all characters in upper case.
pub(crate) fn random_upper(text: &str, rate: f64, random: &mut PythonRandom) -> String {
    let length = text.chars().count();
    let mut chosen = vec![false; length];
    for place in random.sample(length, (length as f64 * rate) as usize) {
        chosen[place] = true;
    }
    let mut changed = String::with_capacity(text.len());
    for (c, chosen) in text.chars().zip(chosen) {
        match chosen {
            true => changed.extend(c.to_uppercase()),
            false => changed.push(c),
        }
    }
    changed
}

/// NL-Augmenter's `whitespace_perturbation`: blanks vanish with probability `rate`, and stand behind other characters with half of it.
pub(crate) fn whitespace(text: &str, rate: f64, random: &mut PythonRandom) -> String {
    let mut changed = String::with_capacity(text.len());
    for c in text.chars() {
        let draw = random.uniform();
        if c.is_whitespace() && draw < rate {
            continue;
        }
        changed.push(c);
        if !c.is_whitespace() && draw < rate / 2.0 {
            changed.push(' ');
        }
    }
    changed
}

/// HELM's `space`: each run of spaces becomes 1 to `most`.
pub(crate) fn space(text: &str, most: usize, random: &mut PythonRandom) -> String {
    let mut changed = String::with_capacity(text.len());
    let mut within = false;
    for c in text.chars() {
        match c {
            ' ' if within => {}
            ' ' => changed.extend(std::iter::repeat_n(' ', 1 + random.below(most.max(1)))),
            c => changed.push(c),
        }
        within = c == ' ';
    }
    changed
}

/// HELM's `extra_space`.
pub(crate) fn extra_space(text: &str) -> String {
    text.replace(' ', "  ")
}

/// NL-Augmenter's `leet_letters`: as many draws as `rate` of all characters, with replacement, among those that have a look-alike.
pub(crate) fn leet_letters(text: &str, rate: f64, random: &mut PythonRandom) -> String {
    let characters: Vec<char> = text.chars().collect();
    let candidates: Vec<(usize, &str)> =
        characters.iter().enumerate().filter_map(|(i, c)| Some((i, found(&LEET, *c)?))).collect();
    if candidates.is_empty() {
        return text.to_owned();
    }
    let mut replaced: Vec<Option<&str>> = vec![None; characters.len()];
    for drawn in random.choices(candidates.len(), (rate * characters.len() as f64) as usize) {
        let (place, leet) = candidates[drawn];
        replaced[place] = Some(leet);
    }
    let mut changed = String::with_capacity(text.len());
    for (c, replaced) in characters.into_iter().zip(replaced) {
        match replaced {
            Some(leet) => changed.push_str(leet),
            None => changed.push(c),
        }
    }
    changed
}

/// NL-Augmenter's `underscore_trick`: spaces become underscores with probability `rate`.
pub(crate) fn underscore_trick(text: &str, rate: f64, random: &mut PythonRandom) -> String {
    text.chars().map(|c| if c == ' ' && random.uniform() <= rate { '_' } else { c }).collect()
}

/// NL-Augmenter's `swap_characters`: pairs of neighbours change places with probability `rate`, in an order that is drawn. The numbers are those of
/// NumPy's `RandomState`, whose seed is `seed` and the sum of all code points.
pub(crate) fn swap_characters(text: &str, rate: f64, seed: u32) -> String {
    let mut characters: Vec<char> = text.chars().collect();
    let sum = characters.iter().fold(seed, |sum, c| sum.wrapping_add(u32::from(*c)));
    let mut random = Mt19937::new(sum);
    let pairs = characters.len().saturating_sub(1);
    let mut swapped: Vec<usize> = (0..pairs).filter(|_| random.uniform() < rate).collect();
    for last in (1..swapped.len()).rev() {
        // NumPy's legacy interval: the low bits of a word, drawn again while they are too large.
        let mask = (last + 1).next_power_of_two() - 1;
        let place = loop {
            let drawn = random.next_u32() as usize & mask;
            if drawn <= last {
                break drawn;
            }
        };
        swapped.swap(last, place);
    }
    for place in swapped {
        characters.swap(place, place + 1);
    }
    characters.into_iter().collect()
}

/// NL-Augmenter's `diacritic_removal`: canonical decomposition, of which ASCII is left. Texts in other alphabets vanish.
pub(crate) fn diacritic_removal(text: &str) -> String {
    text.nfd().filter(char::is_ascii).collect()
}
