//! Tokens beside the model: special tokens such as `<|endoftext|>`, and words that are never cut.
//!
//! They are found as Hugging Face's `tokenizers` finds them (`added_vocabulary.rs`): first those that are matched before
//! normalisation, then in each of the remaining pieces the others; leftmost, then longest.

use regex::Regex;
use std::ops::Range;

/// A token with a fixed spelling that no merge makes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AddedToken {
    /// Its text.
    pub content: String,
    /// Its id.
    pub id: u32,
    /// Whether it is special: it stands for no text, and has byte length 0.
    pub special: bool,
    /// Match only where no word character touches the token.
    pub single_word: bool,
    /// White space before the token belongs to the match.
    pub lstrip: bool,
    /// White space after the token belongs to the match.
    pub rstrip: bool,
    /// Match after normalisation, and so after the tokens without this flag.
    pub normalized: bool,
    /// Whether the file lists it in the model's vocabulary too.
    pub(crate) in_vocabulary: bool,
}

/// Added tokens that an encoding recognises.
#[derive(Clone, Copy)]
pub(crate) enum Recognised<'a> {
    /// Added tokens that are text: without the flag `special`.
    Text,
    All,
    /// Tokens that are text, and special ones whose bytes pass.
    Placed(&'a dyn Fn(Range<usize>) -> bool),
}

/// A piece of a text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Segment {
    pub(crate) range: Range<usize>,
    /// The token that the piece is; none for text.
    pub(crate) id: Option<u32>,
}

/// Finds added tokens in text.
#[derive(Debug, Clone)]
pub(crate) struct AddedTokens {
    /// By id.
    tokens: Vec<AddedToken>,
    /// Tokens that are looked for first, and then.
    phases: [ByFirstByte; 2],
    /// Whether a token is not special.
    has_text: bool,
    word: Regex,
}

/// For each first byte, indices of tokens, longest first.
#[derive(Debug, Clone, Default)]
struct ByFirstByte(Vec<Vec<usize>>);

impl AddedTokens {
    pub(crate) fn new(mut tokens: Vec<AddedToken>) -> Self {
        tokens.sort_by_key(|token| token.id);
        // Without a normaliser the key decides only about the order of the two searches: where all agree there is one.
        if tokens.iter().all(|token| token.normalized) {
            tokens.iter_mut().for_each(|token| token.normalized = false);
        }
        let phases = [false, true].map(|normalized| {
            let mut lists = Vec::new();
            for (i, token) in tokens.iter().enumerate().filter(|(_, token)| token.normalized == normalized) {
                lists.resize(256, Vec::new());
                lists[usize::from(token.content.as_bytes()[0])].push(i);
            }
            for list in &mut lists {
                list.sort_by_key(|&i: &usize| std::cmp::Reverse(tokens[i].content.len()));
            }
            ByFirstByte(lists)
        });
        let has_text = tokens.iter().any(|token| !token.special);
        let word = Regex::new(r"^\w").expect("the pattern is a constant and compiles");
        AddedTokens { tokens, phases, has_text, word }
    }

    pub(crate) fn tokens(&self) -> &[AddedToken] {
        &self.tokens
    }

    /// Whether there is a token to recognise.
    pub(crate) fn any(&self, recognised: Recognised<'_>) -> bool {
        match recognised {
            Recognised::Text => self.has_text,
            Recognised::All | Recognised::Placed(_) => !self.tokens.is_empty(),
        }
    }

    /// The pieces of a text, in order.
    pub(crate) fn segments(&self, text: &[u8], recognised: Recognised<'_>) -> Vec<Segment> {
        let [first, second] = &self.phases;
        let mut segments = Vec::new();
        self.split(first, text, 0, recognised, &mut segments);
        if second.0.is_empty() {
            return segments;
        }
        let mut all = Vec::with_capacity(segments.len());
        for segment in segments {
            match segment.id {
                Some(_) => all.push(segment),
                None => self.split(
                    second,
                    &text[segment.range.clone()],
                    segment.range.start,
                    recognised,
                    &mut all,
                ),
            }
        }
        all
    }

    /// Splits a piece that begins at `offset`.
    fn split(
        &self,
        lists: &ByFirstByte,
        text: &[u8],
        offset: usize,
        recognised: Recognised<'_>,
        out: &mut Vec<Segment>,
    ) {
        let mut push = |range: Range<usize>, id| {
            out.push(Segment { range: range.start + offset..range.end + offset, id });
        };
        let (mut done, mut at) = (0, 0);
        let may_be = |at: usize, token: &AddedToken| match recognised {
            Recognised::Placed(allowed) if token.special => {
                allowed(offset + at..offset + at + token.content.len())
            }
            _ => true,
        };
        while let Some((found, token)) = self.find(lists, text, at, &may_be) {
            let (mut start, mut end) = (found, found + token.content.len());
            // A match that does not count is used up all the same.
            at = end;
            if token.special && matches!(recognised, Recognised::Text) {
                continue;
            }
            if token.single_word
                && (self.ends_with_word(&text[..start]) || self.starts_with_word(&text[end..]))
            {
                continue;
            }
            if token.lstrip {
                // White space that an earlier token took stays with that one.
                start = space_start(text, start).max(done);
            }
            if token.rstrip {
                end = space_end(text, end);
            }
            if done < start {
                push(done..start, None);
            }
            push(start..end.max(start), Some(token.id));
            done = end;
        }
        if done < text.len() {
            push(done..text.len(), None);
        }
    }

    /// The next match at or after `from` that may be the token there.
    fn find(
        &self,
        lists: &ByFirstByte,
        text: &[u8],
        from: usize,
        may_be: &dyn Fn(usize, &AddedToken) -> bool,
    ) -> Option<(usize, &AddedToken)> {
        if lists.0.is_empty() {
            return None;
        }
        (from..text.len()).find_map(|at| {
            let candidates = &lists.0[usize::from(text[at])];
            let mut tokens = candidates.iter().map(|&i| &self.tokens[i]);
            let hit =
                tokens.find(|token| text[at..].starts_with(token.content.as_bytes()) && may_be(at, token))?;
            Some((at, hit))
        })
    }

    fn is_word(&self, c: char) -> bool {
        self.word.is_match(c.encode_utf8(&mut [0; 4]))
    }

    fn ends_with_word(&self, text: &[u8]) -> bool {
        last_char(text).is_some_and(|c| self.is_word(c))
    }

    fn starts_with_word(&self, text: &[u8]) -> bool {
        first_char(text).is_some_and(|c| self.is_word(c))
    }
}

/// The character that bytes begin with.
fn first_char(text: &[u8]) -> Option<char> {
    let head = &text[..text.len().min(4)];
    head.utf8_chunks().next().and_then(|chunk| chunk.valid().chars().next())
}

/// The character that bytes end with.
fn last_char(text: &[u8]) -> Option<char> {
    (1..=text.len().min(4))
        .find_map(|length| std::str::from_utf8(&text[text.len() - length..]).ok())
        .and_then(|tail| tail.chars().next_back())
}

/// Where the white space begins that ends at `at`.
fn space_start(text: &[u8], mut at: usize) -> usize {
    while let Some(c) = last_char(&text[..at]).filter(|c| c.is_whitespace()) {
        at -= c.len_utf8();
    }
    at
}

/// Where the white space ends that begins at `at`.
fn space_end(text: &[u8], mut at: usize) -> usize {
    while let Some(c) = first_char(&text[at..]).filter(|c| c.is_whitespace()) {
        at += c.len_utf8();
    }
    at
}

#[cfg(test)]
mod tests {
    use super::*;

    fn token(content: &str, id: u32) -> AddedToken {
        AddedToken {
            content: content.into(),
            id,
            special: false,
            single_word: false,
            lstrip: false,
            rstrip: false,
            normalized: false,
            in_vocabulary: true,
        }
    }

    /// Pieces as text, tokens in brackets with their id.
    fn split(tokens: Vec<AddedToken>, text: &str, recognised: Recognised<'_>) -> String {
        let segments = AddedTokens::new(tokens).segments(text.as_bytes(), recognised);
        let spelled = |segment: &Segment| match segment.id {
            Some(id) => format!("[{id}{}]", &text[segment.range.clone()]),
            None => format!("({})", &text[segment.range.clone()]),
        };
        segments.iter().map(spelled).collect()
    }

    #[test]
    fn the_longest_of_the_leftmost_is_found() {
        let tokens = vec![token("<a", 0), token("<a>", 1), token(">b", 2)];
        assert_eq!(split(tokens, "x<a>b<a>b>b<a", Recognised::All), "(x)[1<a>](b)[1<a>](b)[2>b][0<a]");
    }

    #[test]
    fn white_space_words_and_the_order_of_searches() {
        let strips = AddedToken { lstrip: true, rstrip: true, ..token("<m>", 5) };
        assert_eq!(
            split(vec![strips.clone()], "a \u{a0}<m>\n <m> b", Recognised::All),
            "(a)[5 \u{a0}<m>\n ][5<m> ](b)"
        );
        let word = AddedToken { single_word: true, ..token("ing", 6) };
        assert_eq!(
            split(vec![word], "ing sing ing, ing\u{301} ing", Recognised::All),
            "[6ing]( sing )[6ing](, ing\u{301} )[6ing]"
        );
        let later = AddedToken { normalized: true, ..token("ab", 7) };
        assert_eq!(split(vec![later.clone(), token("bc", 8)], "abc ab", Recognised::All), "(a)[8bc]( )[7ab]");
        let special = AddedToken { special: true, ..token("<s>x", 9) };
        assert_eq!(split(vec![special.clone(), token("x", 10)], "<s>x x", Recognised::Text), "(<s>x )[10x]");
        assert_eq!(split(vec![special, token("x", 10)], "<s>x x", Recognised::All), "[9<s>x]( )[10x]");
    }

    #[test]
    fn a_special_token_that_may_not_be_where_it_is_hides_no_other() {
        let special = |content: &str, id| AddedToken { special: true, ..token(content, id) };
        let tokens = vec![special("<a><b>", 0), special("<b>", 1), special("<a>", 2), token("<c>", 3)];
        // The first three bytes are of a user.
        let placed = |range: Range<usize>| range.start >= 3;
        let found = split(tokens.clone(), "<a><b><c><a><b>", Recognised::Placed(&placed));
        assert_eq!(found, "(<a>)[1<b>][3<c>][0<a><b>]");
        let none = split(tokens, "<a><b><c>", Recognised::Placed(&|_| false));
        assert_eq!(none, "(<a><b>)[3<c>]");
    }
}
