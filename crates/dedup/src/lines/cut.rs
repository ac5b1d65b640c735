//! Keys of one document's lines and sentences, and the document without some of them.

use bessemer_text::hash::sha1_64;
use bessemer_text::split::sentences;
use bessemer_text::{Simplify, Words, paragraph_key};

/// A text without repeated parts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TextEdit {
    /// Text that is left.
    pub text: String,
    /// Lines or sentences removed.
    pub removed: usize,
}

/// Place and key of each line that is not blank in `cc_net`'s normal form.
pub fn line_keys(text: &str) -> Vec<(u32, u64)> {
    let mut keys = Vec::new();
    for (place, line) in text.split('\n').enumerate() {
        if !bessemer_text::cc_net_dedup(line).is_empty() {
            keys.push((place as u32, paragraph_key(line)));
        }
    }
    keys
}

/// Place and key of each span of `count` sentences: the place is that of the first.
pub fn sentence_keys(text: &str, count: usize) -> Vec<(u32, u64)> {
    let simplify = Simplify::default();
    let simple: Vec<String> = sentences(text).map(|sentence| simplify.apply(sentence)).collect();
    let spans = simple.windows(count.max(1)).enumerate();
    spans.map(|(place, span)| (place as u32, sha1_64(span.join(" ").as_bytes()))).collect()
}

/// The text without the lines at these places, which are in order.
pub fn without_lines(text: &str, places: &[u32]) -> TextEdit {
    let mut next = places.iter().peekable();
    let mut left = String::with_capacity(text.len());
    let (mut removed, mut first) = (0, true);
    for (place, line) in text.split('\n').enumerate() {
        if next.next_if(|&&wanted| wanted as usize == place).is_some() {
            removed += 1;
            continue;
        }
        if !first {
            left.push('\n');
        }
        left.push_str(line);
        first = false;
    }
    TextEdit { text: left, removed }
}

/// The text without the spans of `count` sentences that begin at these places, which are in order. White space before a
/// sentence goes with it, and at the beginning of what is left.
pub fn without_sentences(text: &str, places: &[u32], count: usize) -> TextEdit {
    let begin = text.as_ptr() as usize;
    let mut next = places.iter().peekable();
    let (mut left, mut removed) = (String::with_capacity(text.len()), 0);
    let (mut done, mut drop_until) = (0, 0);
    for (place, sentence) in sentences(text).enumerate() {
        while next.next_if(|&&wanted| wanted as usize == place).is_some() {
            drop_until = place + count;
        }
        let end = sentence.as_ptr() as usize - begin + sentence.len();
        if place < drop_until {
            removed += 1;
        } else {
            left.push_str(&text[done..end]);
        }
        done = end;
    }
    TextEdit { text: bessemer_text::unicode::strip_start(&left).to_string(), removed }
}

/// Words and sentences of a text, as the limits of sentence deduplication count them.
pub(super) fn size(text: &str) -> (usize, usize) {
    (Words::English.count(text), sentences(text).count())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // A failed unwrap in a test is a failed test with a backtrace.
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn keys_of_lines_are_those_of_cc_net() {
        // Golden of the reference.
        assert_eq!(line_keys("hello world 000"), [(0, 12035920033921484254)]);
        assert_eq!(
            line_keys("Hello World 123\n\n \nx"),
            [(0, 12035920033921484254), (3, paragraph_key("x"))]
        );
    }

    #[test]
    fn spans_of_three_sentences_are_compared_in_simple_form() {
        let keys = sentence_keys("One is here. Two: there! Three? Four.", 3);
        assert_eq!(keys.len(), 2);
        assert_eq!(keys[0].1, sentence_keys("one is HERE.  two there.\nthree.", 3)[0].1);
        assert_eq!(keys[0].1, sha1_64(b"one is here two there three"));
        assert_eq!(sentence_keys("One. Two.", 3), []);
    }

    #[test]
    fn cuts_keep_the_rest_as_it_is() {
        assert_eq!(without_lines("a\nb\n\nc", &[1, 3]), TextEdit { text: "a\n".into(), removed: 2 });
        assert_eq!(without_lines("a\n", &[]), TextEdit { text: "a\n".into(), removed: 0 });
        let text = "A one.  B two! C three?\nD four. E five.";
        assert_eq!(without_sentences(text, &[1], 3), TextEdit { text: "A one. E five.".into(), removed: 3 });
        assert_eq!(without_sentences(text, &[0, 1], 3), TextEdit { text: "E five.".into(), removed: 4 });
        assert_eq!(without_sentences(text, &[], 3), TextEdit { text: text.into(), removed: 0 });
    }

    proptest! {
        /// Removing nothing changes at most white space at the beginning; removing everything leaves nothing.
        #[test]
        fn cuts_are_consistent(text in "[ab .!\n]{0,60}") {
            let lines = text.split('\n').count() as u32;
            prop_assert_eq!(&without_lines(&text, &[]).text, &text);
            prop_assert_eq!(without_lines(&text, &(0..lines).collect::<Vec<_>>()).text, "");
            let count = sentences(&text).count();
            let all: Vec<u32> = (0..count as u32).collect();
            let cut = without_sentences(&text, &all, 1);
            prop_assert_eq!((cut.text.as_str(), cut.removed), ("", count));
        }
    }
}
