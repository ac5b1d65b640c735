//! Reading predicates: tokens, then recursive descent with a limited depth.

use super::{Compare, Expression, Function, Value};
use crate::error::{Error, Result};
use bessemer_units::did_you_mean;
use std::borrow::Cow;

/// Longest predicate in bytes.
const MAX_SOURCE: usize = 16 << 10;
/// Deepest nesting.
const MAX_DEPTH: usize = 64;
/// Largest compiled pattern in bytes.
const MAX_PATTERN: usize = 1 << 20;

#[derive(Debug, Clone, PartialEq)]
enum Token {
    Number(f64),
    Text(String),
    Name(String),
    /// A name between backquotes: never a keyword.
    Column(String),
    Sign(&'static str),
    End,
}

impl Token {
    fn shown(&self) -> String {
        match self {
            Token::Number(number) => number.to_string(),
            Token::Text(text) => format!("{text:?}"),
            Token::Name(name) => name.clone(),
            Token::Column(name) => format!("`{name}`"),
            Token::Sign(sign) => format!("{sign:?}"),
            Token::End => "the end".into(),
        }
    }
}

/// Longer signs first.
const SIGNS: [&str; 15] = ["==", "!=", "<=", ">=", "&&", "||", "<", ">", "!", "(", ")", "[", "]", ",", "-"];

struct Parser<'s> {
    source: &'s str,
    tokens: Vec<(Token, usize)>,
    next: usize,
    depth: usize,
    columns: Vec<(String, usize)>,
}

/// The expression, and the columns with their positions.
pub(super) fn parse(source: &str) -> Result<(Expression, Vec<(String, usize)>)> {
    if source.len() > MAX_SOURCE {
        return Err(Error::new(format!(
            "a predicate of {} bytes: at most {MAX_SOURCE} are read",
            source.len()
        )));
    }
    let tokens = tokens(source)?;
    let mut parser = Parser { source, tokens, next: 0, depth: 0, columns: Vec::new() };
    let expression = parser.or()?;
    if *parser.peek() != Token::End {
        return Err(parser.wanted("an operator or the end"));
    }
    Ok((expression, parser.columns))
}

fn fault(source: &str, byte: usize, message: &str) -> Error {
    let position = source[..byte].chars().count() + 1;
    Error::new(format!("{source:?}, character {position}: {message}"))
}

fn tokens(source: &str) -> Result<Vec<(Token, usize)>> {
    let mut found = Vec::new();
    let mut at = 0;
    while let Some(c) = source[at..].chars().next() {
        let rest = &source[at..];
        if c.is_whitespace() {
            at += c.len_utf8();
        } else if c.is_ascii_digit() || (c == '.' && rest[1..].starts_with(|c: char| c.is_ascii_digit())) {
            let len = number_len(rest);
            let number = rest[..len].parse().map_err(|_| fault(source, at, "wanted a number"))?;
            found.push((Token::Number(number), at));
            at += len;
        } else if c == '"' || c == '\'' {
            let (text, len) = quoted(rest, c).map_err(|message| fault(source, at, message))?;
            found.push((Token::Text(text), at));
            at += len;
        } else if c == '`' {
            let Some(end) = rest[1..].find('`') else {
                return Err(fault(source, at, "a name between backquotes does not end: wanted a backquote"));
            };
            found.push((Token::Column(rest[1..=end].to_owned()), at));
            at += end + 2;
        } else if c.is_alphabetic() || c == '_' {
            let len =
                rest.find(|c: char| !(c.is_alphanumeric() || matches!(c, '_' | '.'))).unwrap_or(rest.len());
            found.push((Token::Name(rest[..len].to_owned()), at));
            at += len;
        } else if let Some(sign) = SIGNS.iter().find(|sign| rest.starts_with(**sign)) {
            found.push((Token::Sign(sign), at));
            at += sign.len();
        } else {
            let hint = match c {
                '=' => "\"=\" is not an operator: write \"==\" for equality".to_owned(),
                '&' | '|' => format!("{c:?} is not an operator: wanted \"{c}{c}\""),
                c => format!("unexpected {c:?}"),
            };
            return Err(fault(source, at, &hint));
        }
    }
    found.push((Token::End, source.len()));
    Ok(found)
}

fn number_len(text: &str) -> usize {
    let bytes = text.as_bytes();
    let digits = |from: usize| bytes[from..].iter().take_while(|b| b.is_ascii_digit()).count();
    let mut len = digits(0);
    if bytes.get(len) == Some(&b'.') {
        len += 1 + digits(len + 1);
    }
    if matches!(bytes.get(len), Some(b'e' | b'E')) {
        let sign = usize::from(matches!(bytes.get(len + 1), Some(b'+' | b'-')));
        let exponent = digits((len + 1 + sign).min(bytes.len()));
        if exponent > 0 {
            len += 1 + sign + exponent;
        }
    }
    len
}

/// The text of a string and its length with quotes.
fn quoted(text: &str, quote: char) -> std::result::Result<(String, usize), &'static str> {
    let mut out = String::new();
    let mut chars = text.char_indices().skip(1);
    while let Some((at, c)) = chars.next() {
        if c == quote {
            return Ok((out, at + 1));
        }
        if c != '\\' {
            out.push(c);
            continue;
        }
        match chars.next() {
            Some((_, 'n')) => out.push('\n'),
            Some((_, 't')) => out.push('\t'),
            Some((_, c @ ('"' | '\'' | '\\'))) => out.push(c),
            // Patterns are full of backslashes: those that mean nothing here stay.
            Some((_, c)) => out.extend(['\\', c]),
            None => break,
        }
    }
    Err("a string does not end: wanted its closing quote")
}

impl Parser<'_> {
    fn peek(&self) -> &Token {
        &self.tokens[self.next].0
    }

    fn wanted(&self, what: &str) -> Error {
        let (token, at) = &self.tokens[self.next];
        fault(self.source, *at, &format!("wanted {what}, found {}", token.shown()))
    }

    fn take(&mut self, sign: &str) -> bool {
        let found = matches!(self.peek(), Token::Sign(found) if *found == sign);
        self.next += usize::from(found);
        found
    }

    fn word(&mut self, word: &str) -> bool {
        let found = matches!(self.peek(), Token::Name(name) if name == word);
        self.next += usize::from(found);
        found
    }

    fn expect(&mut self, sign: &str) -> Result<()> {
        if self.take(sign) { Ok(()) } else { Err(self.wanted(&format!("{sign:?}"))) }
    }

    fn or(&mut self) -> Result<Expression> {
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            return Err(self.wanted(&format!("at most {MAX_DEPTH} parentheses within each other")));
        }
        let mut parts = vec![self.and()?];
        while self.take("||") || self.word("or") {
            parts.push(self.and()?);
        }
        self.depth -= 1;
        Ok(if parts.len() == 1 { parts.remove(0) } else { Expression::Or(parts) })
    }

    fn and(&mut self) -> Result<Expression> {
        let mut parts = vec![self.not()?];
        while self.take("&&") || self.word("and") {
            parts.push(self.not()?);
        }
        Ok(if parts.len() == 1 { parts.remove(0) } else { Expression::And(parts) })
    }

    fn not(&mut self) -> Result<Expression> {
        let mut negated = false;
        while self.take("!") || self.word("not") {
            negated = !negated;
        }
        let inner = self.comparison()?;
        Ok(if negated { Expression::Not(Box::new(inner)) } else { inner })
    }

    fn comparison(&mut self) -> Result<Expression> {
        let left = self.value()?;
        let how = match self.peek() {
            Token::Sign("==") => Compare::Equal,
            Token::Sign("!=") => Compare::NotEqual,
            Token::Sign("<") => Compare::Less,
            Token::Sign("<=") => Compare::AtMost,
            Token::Sign(">") => Compare::Greater,
            Token::Sign(">=") => Compare::AtLeast,
            Token::Name(name) if matches!(name.as_str(), "in" | "not" | "matches") => {
                return self.membership(left);
            }
            _ => return Ok(left),
        };
        self.next += 1;
        let right = self.value()?;
        if matches!(self.peek(), Token::Sign("==" | "!=" | "<" | "<=" | ">" | ">=")) {
            return Err(self.wanted("\"&&\" between two comparisons: comparisons do not chain"));
        }
        Ok(Expression::Compare(how, Box::new(left), Box::new(right)))
    }

    /// `in`, `not in` and `matches` after a value.
    fn membership(&mut self, left: Expression) -> Result<Expression> {
        if self.word("matches") {
            let at = self.tokens[self.next].1;
            let Token::Text(pattern) = self.peek().clone() else {
                return Err(self.wanted("a pattern between quotes"));
            };
            self.next += 1;
            let compiled = regex::RegexBuilder::new(&pattern)
                .size_limit(MAX_PATTERN)
                .dfa_size_limit(MAX_PATTERN)
                .build();
            let compiled =
                compiled.map_err(|error| fault(self.source, at, &format!("the pattern: {error}")))?;
            return Ok(Expression::Matches(Box::new(left), compiled));
        }
        let negated = self.word("not");
        if !self.word("in") {
            return Err(self.wanted("\"in\""));
        }
        self.expect("[")?;
        let mut list = Vec::new();
        while !self.take("]") {
            if !list.is_empty() {
                self.expect(",")?;
            }
            list.push(self.value()?);
        }
        let within = Expression::In(Box::new(left), list);
        Ok(if negated { Expression::Not(Box::new(within)) } else { within })
    }

    fn value(&mut self) -> Result<Expression> {
        let (token, at) = self.tokens[self.next].clone();
        self.next += 1;
        match token {
            Token::Number(number) => Ok(Expression::Literal(Value::Number(number))),
            Token::Sign("-") => match self.peek() {
                Token::Number(number) => {
                    let number = -number;
                    self.next += 1;
                    Ok(Expression::Literal(Value::Number(number)))
                }
                _ => Err(self.wanted("a number after the sign")),
            },
            Token::Text(text) => Ok(Expression::Literal(Value::Text(Cow::Owned(text)))),
            Token::Sign("(") => {
                let inner = self.or()?;
                self.expect(")")?;
                Ok(inner)
            }
            Token::Name(name) => match name.as_str() {
                "true" => Ok(Expression::Literal(Value::Bool(true))),
                "false" => Ok(Expression::Literal(Value::Bool(false))),
                "null" => Ok(Expression::Literal(Value::Null)),
                "and" | "or" | "not" | "in" | "matches" => {
                    self.next -= 1;
                    Err(self.wanted("a value"))
                }
                _ if matches!(self.peek(), Token::Sign("(")) => self.call(&name, at),
                _ => Ok(self.column(name, at)),
            },
            Token::Column(name) => Ok(self.column(name, at)),
            _ => {
                self.next -= 1;
                Err(self.wanted("a value"))
            }
        }
    }

    fn column(&mut self, name: String, at: usize) -> Expression {
        self.columns.push((name.clone(), self.source[..at].chars().count() + 1));
        Expression::Column(name)
    }

    fn call(&mut self, name: &str, at: usize) -> Result<Expression> {
        let Some(&(_, function, takes)) = Function::ALL.iter().find(|(known, _, _)| *known == name) else {
            let near = did_you_mean(name, Function::ALL.iter().map(|(known, _, _)| *known));
            let all: Vec<&str> = Function::ALL.iter().map(|(known, _, _)| *known).collect();
            let message = format!("no function has the name {name:?}{near}; there are {}", all.join(", "));
            return Err(fault(self.source, at, &message));
        };
        self.expect("(")?;
        let mut arguments = Vec::new();
        while !self.take(")") {
            if !arguments.is_empty() {
                self.expect(",")?;
            }
            arguments.push(self.or()?);
        }
        if arguments.len() != takes {
            let message = format!("{name} takes {takes} values, found {}", arguments.len());
            return Err(fault(self.source, at, &message));
        }
        Ok(Expression::Call(function, arguments))
    }
}

#[cfg(test)]
mod tests {
    use crate::predicate::{Predicate, Row, Value};
    use proptest::prelude::*;
    use std::borrow::Cow;

    struct Columns(Vec<(&'static str, Value<'static>)>);

    impl Row for Columns {
        fn value(&self, column: &str) -> Option<Value<'_>> {
            self.0.iter().find(|(name, _)| *name == column).map(|(_, value)| value.clone())
        }

        fn names(&self) -> Vec<&str> {
            self.0.iter().map(|(name, _)| *name).collect()
        }
    }

    fn row() -> Columns {
        Columns(vec![
            ("lang", Value::Text(Cow::Borrowed("en"))),
            ("quality", Value::Number(0.4)),
            ("spam", Value::Bool(false)),
            ("url", Value::Text(Cow::Borrowed("https://Example.org/a"))),
            ("odd name", Value::Number(1.0)),
            ("none", Value::Null),
        ])
    }

    #[test]
    fn values() {
        for (source, expected) in [
            (r#"lang == "en" && quality > 0.3"#, Some(true)),
            (r#"lang == 'de' || quality >= .4 and !spam"#, Some(true)),
            ("not spam and not (quality > 1e3)", Some(true)),
            (r#"lang in ["de", "en"]"#, Some(true)),
            (r#"lang not in ["de", "fr"]"#, Some(true)),
            ("quality in []", Some(false)),
            (r#"url matches "^https?://[a-zA-Z.]+/" && !(url matches "\\d")"#, Some(true)),
            (r#"len(url) == 21 && contains(lower(url), "example") && starts_with(url, "https")"#, Some(true)),
            (r#"ends_with(url, "b")"#, Some(false)),
            ("`odd name` == 1 && -1 < quality", Some(true)),
            ("none == null", Some(true)),
            ("lang != null && none == null && missing == null", Some(true)),
            ("none > 1", None),
            ("none > 1 || true", Some(true)),
            ("none > 1 && false", Some(false)),
            ("!(none > 1)", None),
            ("quality == 'x'", None),
            ("none in [1, 2]", None),
            ("lang", None),
            ("spam", Some(false)),
            ("len(quality) > 1", None),
        ] {
            let predicate = Predicate::parse(source).unwrap_or_else(|error| panic!("{error}"));
            assert_eq!(predicate.holds(&row()), expected, "{source}");
        }
    }

    #[test]
    fn errors_have_a_position() {
        for (source, says) in [
            ("lang = 'en'", "character 6: \"=\" is not an operator: write \"==\" for equality"),
            ("lang == ", "character 9: wanted a value, found the end"),
            ("é == 1 1", "character 8: wanted an operator or the end, found 1"),
            ("a & b", "wanted \"&&\""),
            ("(a", "wanted \")\", found the end"),
            ("a in 1", "wanted \"[\", found 1"),
            ("a matches b", "wanted a pattern between quotes, found b"),
            ("a matches '('", "character 11: the pattern"),
            ("a matches '(\\\\w{1000}){1000}'", "the pattern"),
            ("1 < a < 2", "comparisons do not chain"),
            ("lenn(a)", "did you mean \"len\""),
            ("len(a, b)", "len takes 1 values, found 2"),
            ("'x", "does not end"),
            ("`x", "does not end"),
            ("a == §", "unexpected '§'"),
            ("a == and", "wanted a value, found and"),
            ("-a", "a number after the sign"),
        ] {
            let message = Predicate::parse(source).unwrap_err().to_string();
            assert!(message.contains(says), "{source}: {message}");
        }
        let deep = format!("{}a{}", "(".repeat(1000), ")".repeat(1000));
        assert!(Predicate::parse(&deep).unwrap_err().to_string().contains("at most 64"));
        let deep = format!("{}true", "!".repeat(10_001));
        assert_eq!(Predicate::parse(&deep).map(|p| p.holds(&row())), Ok(Some(false)));
        assert!(Predicate::parse(&"a".repeat(20_000)).is_err());
    }

    #[test]
    fn unknown_columns_have_a_nearest() {
        let predicate = Predicate::parse("lang == 'en' && qualty > 1").expect("it parses");
        let message = predicate.check_columns(row().names()).unwrap_err().to_string();
        assert!(
            message.contains("character 17") && message.contains("did you mean \"quality\""),
            "{message}"
        );
        assert_eq!(predicate.columns().collect::<Vec<_>>(), ["lang", "qualty"]);
    }

    proptest! {
        #[test]
        fn any_text_is_read_or_refused(source in "\\PC{0,40}|([a-z]|[0-9.e]|[()\\[\\]!<>=&|,'\"`-]| in | matches | not |null){0,30}") {
            if let Ok(predicate) = Predicate::parse(&source) {
                predicate.holds(&row());
            }
        }
    }
}
