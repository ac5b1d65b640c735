//! Sentences without a model.

/// Pieces that end after a run of `.`, `!` or `?`, trimmed of white space at both ends, empty ones left out; what
/// follows the last mark is a sentence too.
///
/// Simple by intention: abbreviations and decimal points end a sentence here.
pub fn sentences(text: &str) -> impl Iterator<Item = &str> {
    let mark = |c: char| matches!(c, '.' | '!' | '?');
    let mut rest = text;
    std::iter::from_fn(move || {
        while !rest.is_empty() {
            let end = match rest.find(mark) {
                None => rest.len(),
                Some(at) => rest.len() - rest[at..].trim_start_matches(mark).len(),
            };
            let (sentence, after) = rest.split_at(end);
            rest = after;
            let sentence = crate::unicode::strip(sentence);
            if !sentence.is_empty() {
                return Some(sentence);
            }
        }
        None
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cut_after_marks() {
        let all = |text| sentences(text).collect::<Vec<_>>();
        assert_eq!(all("One. Two?! Three... four"), ["One.", "Two?!", "Three...", "four"]);
        assert_eq!(all("  \n "), [""; 0]);
        assert_eq!(all(". . a"), [".", ".", "a"]);
        assert_eq!(all("漢字。 é!"), ["漢字。 é!"]);
    }
}
