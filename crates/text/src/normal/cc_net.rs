//! The two normal forms of `cc_net` (Wenzek et al. 2020, arXiv:1911.00359) and the key of a paragraph.

use super::push_unaccented;
use crate::hash::sha1_64;
use crate::unicode::{CC_NET_TABLE, Class, byte_class, class, strip};

/// Text as the language models of `cc_net` read it: trimmed, lower case, without accents, digits zeroed, punctuation
/// mapped to ASCII, control characters dropped.
pub fn cc_net_normalize(line: &str) -> String {
    let line = strip(line);
    let mut out = String::with_capacity(line.len());
    if line.is_ascii() {
        out.extend(line.bytes().filter(|&b| !control(b)).map(|b| char::from(zeroed(b))));
        return out;
    }
    let mut plain = String::with_capacity(line.len());
    push_unaccented(&line.to_lowercase(), &mut plain);
    for c in plain.chars() {
        push_mapped(c, &mut out, |replacement, out| out.push_str(replacement));
    }
    out
}

/// Text as `cc_net` compares paragraphs: trimmed, lower case, digits zeroed, the table's characters and control
/// characters deleted; ASCII punctuation and accents stay.
pub fn cc_net_dedup(line: &str) -> String {
    let line = strip(line);
    let mut out = String::with_capacity(line.len());
    if line.is_ascii() {
        out.extend(line.bytes().filter(|&b| !control(b)).map(|b| char::from(zeroed(b))));
        return out;
    }
    for c in line.to_lowercase().chars() {
        push_mapped(c, &mut out, |_, _| {});
    }
    out
}

/// The key of a paragraph: the first 8 bytes of SHA-1 of [`cc_net_dedup`] of it, as a little-endian number.
pub fn paragraph_key(line: &str) -> u64 {
    sha1_64(cc_net_dedup(line).as_bytes())
}

fn push_mapped(c: char, out: &mut String, mapped: impl Fn(&str, &mut String)) {
    let classes = class(c);
    if classes.meets(Class::DIGIT) {
        out.push('0');
    } else if classes.meets(Class::CC_NET_MAPPED) {
        let found = CC_NET_TABLE.iter().find(|&&(from, _)| from == c);
        mapped(found.map_or("", |&(_, to)| to), out);
    } else if !classes.meets(Class::CC_NET_CONTROL) {
        out.push(c);
    }
}

fn control(byte: u8) -> bool {
    byte_class(byte).meets(Class::CC_NET_CONTROL)
}

fn zeroed(byte: u8) -> u8 {
    if byte.is_ascii_digit() { b'0' } else { byte.to_ascii_lowercase() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use unicode_normalization::UnicodeNormalization;

    /// The steps one after the other.
    fn plain(line: &str, accents: bool, replace: bool) -> String {
        let line = strip(line).to_lowercase();
        let line: String = if accents {
            line
        } else {
            line.nfd().filter(|&c| !class(c).meets(Class::MARK_NONSPACING)).collect()
        };
        let line: String = line.chars().map(|c| if class(c).meets(Class::DIGIT) { '0' } else { c }).collect();
        let mut out = String::new();
        for c in line.chars() {
            match CC_NET_TABLE.iter().find(|&&(from, _)| from == c) {
                Some(&(_, to)) if replace => out.push_str(to),
                Some(_) => {}
                None => out.push(c),
            }
        }
        out.retain(|c| !matches!(c as u32, 0..=0x1f | 0x7f..=0x9f));
        out
    }

    #[test]
    fn golden_values() {
        assert_eq!(cc_net_normalize("０２３４５６７８９ | 0123456789"), "000000000 | 0000000000");
        assert_eq!(paragraph_key("hello world 000"), 12_035_920_033_921_484_254);
        assert_eq!(paragraph_key(" Hello World 123\n"), 12_035_920_033_921_484_254);
    }

    #[test]
    fn the_two_forms_differ() {
        let line = " Café — “Été” １２, №1\u{7f}! ";
        assert_eq!(cc_net_normalize(line), "cafe  -  \"ete\" 00, №0!");
        assert_eq!(cc_net_dedup(line), "café  été 00, №0!");
        assert_eq!(cc_net_normalize(" \u{1f}\n"), "");
        // A decomposed Hangul syllable stays decomposed, as upstream.
        assert_eq!(cc_net_normalize("한"), "한".nfd().collect::<String>());
    }

    proptest! {
        #[test]
        fn equal_to_the_steps(line in "\\PC{0,12}|[ -~\t\u{b}\u{85}0-9A-Cé１，。…—İΣ\u{301}]{0,40}") {
            prop_assert_eq!(cc_net_normalize(&line), plain(&line, false, true));
            prop_assert_eq!(cc_net_dedup(&line), plain(&line, true, false));
        }
    }
}
