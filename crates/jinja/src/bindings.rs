//! Variables that a tag binds.

use minijinja::machinery::Token;

/// Names of the variables that a tag binds, with its tokens from its keyword on. Those that a block after the tag gives a value are
/// among them.
pub(crate) fn bound_names<'a>(tag: &[Token<'a>]) -> Vec<&'a str> {
    let Some((Token::Ident(keyword), rest)) = tag.split_first() else { return Vec::new() };
    match *keyword {
        "set" => targets(rest, |token| matches!(token, Token::Assign | Token::Pipe)),
        "for" => targets(rest, |token| matches!(token, Token::Ident("in"))),
        "with" => assigned(rest),
        "macro" => parameters(rest.get(1..).unwrap_or_default()),
        "call" if matches!(rest.first(), Some(Token::ParenOpen)) => parameters(rest),
        _ => Vec::new(),
    }
}

/// Whether a tag gives its variable the text up to `endset`.
pub(crate) fn is_block_set(tag: &[Token<'_>]) -> bool {
    let mut depth = 0;
    let assigns = tag.iter().any(|token| {
        depth += change(token);
        depth == 0 && matches!(token, Token::Assign)
    });
    matches!(tag.first(), Some(Token::Ident("set"))) && !assigns
}

/// Names up to a token, without attributes.
fn targets<'a>(tokens: &[Token<'a>], is_end: impl Fn(&Token<'a>) -> bool) -> Vec<&'a str> {
    let end = tokens.iter().position(is_end).unwrap_or(tokens.len());
    let tokens = &tokens[..end];
    let name = |(index, token): (usize, &Token<'a>)| match token {
        Token::Ident(name) if index == 0 || !matches!(tokens[index - 1], Token::Dot) => Some(*name),
        _ => None,
    };
    tokens.iter().enumerate().filter_map(name).collect()
}

/// Names of `a = 1, (b, c) = d`.
fn assigned<'a>(tokens: &[Token<'a>]) -> Vec<&'a str> {
    let (mut names, mut depth, mut begin) = (Vec::new(), 0, Some(0));
    for (index, token) in tokens.iter().enumerate() {
        depth += change(token);
        match (token, begin) {
            (Token::Assign, Some(first)) if depth == 0 => {
                names.extend(targets(&tokens[first..index], |_| false));
                begin = None;
            }
            (Token::Comma, None) if depth == 0 => begin = Some(index + 1),
            _ => {}
        }
    }
    names
}

/// Names of `(a, b = 1)`, at the beginning of the tokens.
fn parameters<'a>(tokens: &[Token<'a>]) -> Vec<&'a str> {
    let (mut names, mut depth) = (Vec::new(), 0);
    for (index, token) in tokens.iter().enumerate() {
        depth += change(token);
        match token {
            _ if depth <= 0 => break,
            Token::Ident(name)
                if depth == 1
                    && index > 0
                    && matches!(tokens[index - 1], Token::ParenOpen | Token::Comma) =>
            {
                names.push(*name);
            }
            _ => {}
        }
    }
    names
}

/// Change of the number of open brackets.
fn change(token: &Token<'_>) -> i32 {
    match token {
        Token::ParenOpen | Token::BracketOpen | Token::BraceOpen => 1,
        Token::ParenClose | Token::BracketClose | Token::BraceClose => -1,
        _ => 0,
    }
}
