//! Tokens that stand beside the model: special tokens such as `<|endoftext|>`.

/// A token with a fixed spelling that no merge makes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AddedToken {
    /// Its text.
    pub content: String,
    /// Its id.
    pub id: u32,
    /// Whether it is special: it stands for no text, and has byte length 0.
    pub special: bool,
    /// Whether the file lists it in the model's vocabulary too.
    pub(crate) in_vocabulary: bool,
}

/// Finds added tokens in text: leftmost, then longest.
#[derive(Debug, Clone, Default)]
pub(crate) struct AddedTokens {
    /// By id.
    tokens: Vec<AddedToken>,
    /// For each first byte, indices of tokens, longest first.
    by_first_byte: Vec<Vec<usize>>,
}

impl AddedTokens {
    pub(crate) fn new(mut tokens: Vec<AddedToken>) -> Self {
        tokens.sort_by_key(|token| token.id);
        let mut by_first_byte = vec![Vec::new(); 256];
        for (i, token) in tokens.iter().enumerate() {
            by_first_byte[usize::from(token.content.as_bytes()[0])].push(i);
        }
        for list in &mut by_first_byte {
            list.sort_by_key(|&i: &usize| std::cmp::Reverse(tokens[i].content.len()));
        }
        AddedTokens { tokens, by_first_byte }
    }

    pub(crate) fn tokens(&self) -> &[AddedToken] {
        &self.tokens
    }

    /// The next added token at or after `from`: its start and itself.
    pub(crate) fn find(&self, text: &[u8], from: usize) -> Option<(usize, &AddedToken)> {
        if self.tokens.is_empty() {
            return None;
        }
        (from..text.len()).find_map(|at| {
            let candidates = &self.by_first_byte[usize::from(text[at])];
            let hit =
                candidates.iter().find(|&&i| text[at..].starts_with(self.tokens[i].content.as_bytes()))?;
            Some((at, &self.tokens[*hit]))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_of_the_leftmost_is_found() {
        let token = |content: &str, id| AddedToken {
            content: content.into(),
            id,
            special: true,
            in_vocabulary: true,
        };
        let tokens = AddedTokens::new(vec![token("<a", 0), token("<a>", 1), token(">b", 2)]);
        let text = b"x<a>b<a";
        assert_eq!(tokens.find(text, 0).map(|(at, t)| (at, t.id)), Some((1, 1)));
        assert_eq!(tokens.find(text, 2).map(|(at, t)| (at, t.id)), Some((3, 2)));
        assert_eq!(tokens.find(text, 4).map(|(at, t)| (at, t.id)), Some((5, 0)));
        assert_eq!(tokens.find(text, 6), None);
    }
}
