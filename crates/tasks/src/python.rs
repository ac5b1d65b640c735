//! Values as Python writes and reads them: `str`, `repr`, `ast.literal_eval` of texts, numbers and lists. Templates of task files are written for
//! Python, and a list that one prints is read again.

use serde_json::{Number, Value};
use std::fmt::Write;

/// `str(value)`.
pub(crate) fn display(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        _ => repr(value),
    }
}

/// `repr(value)`.
pub(crate) fn repr(value: &Value) -> String {
    let mut out = String::new();
    write_repr(value, &mut out);
    out
}

fn write_repr(value: &Value, out: &mut String) {
    match value {
        Value::Null => out.push_str("None"),
        Value::Bool(true) => out.push_str("True"),
        Value::Bool(false) => out.push_str("False"),
        Value::Number(n) => out.push_str(&number(n)),
        Value::String(text) => write_text(text, out),
        Value::Array(list) => {
            out.push('[');
            for (i, item) in list.iter().enumerate() {
                out.push_str(if i == 0 { "" } else { ", " });
                write_repr(item, out);
            }
            out.push(']');
        }
        Value::Object(map) => {
            out.push('{');
            for (i, (key, item)) in map.iter().enumerate() {
                out.push_str(if i == 0 { "" } else { ", " });
                write_text(key, out);
                out.push_str(": ");
                write_repr(item, out);
            }
            out.push('}');
        }
    }
}

/// A number as Python prints it: the shortest digits that read back, with an exponent below 1e-4 and from 1e16 on.
fn number(n: &Number) -> String {
    let Some(value) = n.as_f64().filter(|_| n.is_f64()) else { return n.to_string() };
    let size = value.abs();
    if size != 0.0 && !(1e-4..1e16).contains(&size) {
        let text = format!("{value:e}");
        let (digits, exponent) = text.split_once('e').unwrap_or((&text, "0"));
        let (sign, exponent) = exponent.strip_prefix('-').map_or(('+', exponent), |rest| ('-', rest));
        return format!("{digits}e{sign}{exponent:0>2}");
    }
    format!("{value:?}")
}

fn write_text(text: &str, out: &mut String) {
    let quote = if text.contains('\'') && !text.contains('"') { '"' } else { '\'' };
    out.push(quote);
    for c in text.chars() {
        match c {
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            c if c == quote => {
                let _ = write!(out, "\\{c}");
            }
            c if (c as u32) < 0x20 || (0x7f..0xa0).contains(&(c as u32)) => {
                let _ = write!(out, "\\x{:02x}", c as u32);
            }
            c => out.push(c),
        }
    }
    out.push(quote);
}

/// `ast.literal_eval(text)` of texts, numbers, True, False, None, lists, tuples (as lists) and dicts with texts as keys. None for anything else.
pub(crate) fn literal(text: &str) -> Option<Value> {
    let mut reader = Literal { rest: text.trim(), depth: 0 };
    let value = reader.value()?;
    reader.blanks();
    reader.rest.is_empty().then_some(value)
}

struct Literal<'a> {
    rest: &'a str,
    depth: usize,
}

impl Literal<'_> {
    fn blanks(&mut self) {
        self.rest = self.rest.trim_start();
    }

    fn takes(&mut self, wanted: &str) -> bool {
        self.blanks();
        match self.rest.strip_prefix(wanted) {
            Some(rest) => {
                self.rest = rest;
                true
            }
            None => false,
        }
    }

    fn value(&mut self) -> Option<Value> {
        self.blanks();
        self.depth += 1;
        let first = self.rest.chars().next().filter(|_| self.depth < 64)?;
        let value = match first {
            '[' => self.list("[", "]").map(Value::Array),
            '(' => self.list("(", ")").map(Value::Array),
            '{' => self.dict(),
            '\'' | '"' => {
                let mut text = self.text()?;
                // Texts side by side are one.
                loop {
                    self.blanks();
                    match self.rest.starts_with(['\'', '"']) {
                        true => text += &self.text()?,
                        false => break Some(Value::String(text)),
                    }
                }
            }
            _ => self.word(),
        };
        self.depth -= 1;
        value
    }

    fn list(&mut self, open: &str, close: &str) -> Option<Vec<Value>> {
        self.takes(open);
        let mut list = Vec::new();
        loop {
            if self.takes(close) {
                return Some(list);
            }
            list.push(self.value()?);
            if !self.takes(",") {
                return self.takes(close).then_some(list);
            }
        }
    }

    fn dict(&mut self) -> Option<Value> {
        self.takes("{");
        let mut map = serde_json::Map::new();
        loop {
            if self.takes("}") {
                return Some(Value::Object(map));
            }
            let Value::String(key) = self.value()? else { return None };
            if !self.takes(":") {
                return None;
            }
            map.insert(key, self.value()?);
            if !self.takes(",") {
                return self.takes("}").then_some(Value::Object(map));
            }
        }
    }

    fn word(&mut self) -> Option<Value> {
        let end = self.rest.find(|c: char| !(c.is_ascii_alphanumeric() || "+-._".contains(c)));
        let (word, rest) = self.rest.split_at(end.unwrap_or(self.rest.len()));
        self.rest = rest;
        match word {
            "True" => return Some(Value::Bool(true)),
            "False" => return Some(Value::Bool(false)),
            "None" => return Some(Value::Null),
            _ => (),
        }
        let digits = word.trim_start_matches(['+', '-']);
        if digits.len() > 1 && digits.starts_with('0') && digits.bytes().all(|b| b.is_ascii_digit()) {
            return None;
        }
        let begins = digits.starts_with(|c: char| c.is_ascii_digit() || c == '.');
        let number = || Number::from_f64(word.parse::<f64>().ok()?).map(Value::Number);
        word.parse::<i64>().ok().map(Value::from).or_else(number).filter(|_| begins)
    }

    fn text(&mut self) -> Option<String> {
        let quote = self.rest.chars().next()?;
        let mut out = String::new();
        let mut chars = self.rest[1..].char_indices();
        while let Some((at, c)) = chars.next() {
            match c {
                c if c == quote => {
                    self.rest = &self.rest[1 + at + 1..];
                    return Some(out);
                }
                '\n' => return None,
                '\\' => match chars.next()?.1 {
                    'n' => out.push('\n'),
                    't' => out.push('\t'),
                    'r' => out.push('\r'),
                    '0' => out.push('\0'),
                    '\n' => (),
                    c @ ('\\' | '\'' | '"') => out.push(c),
                    c @ ('x' | 'u' | 'U') => {
                        let length = if c == 'x' {
                            2
                        } else if c == 'u' {
                            4
                        } else {
                            8
                        };
                        let digits: String = chars.by_ref().take(length).map(|(_, c)| c).collect();
                        let code = u32::from_str_radix(&digits, 16).ok().filter(|_| digits.len() == length);
                        out.push(char::from_u32(code?)?);
                    }
                    // Python keeps what is no escape.
                    c => out.extend(['\\', c]),
                },
                c => out.push(c),
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// Left: the value; right: what CPython 3.11 prints for it.
    #[test]
    fn values_print_as_in_python_and_read_back() {
        let pairs = [
            (json!("it's"), r#""it's""#),
            (json!("it's \"so\""), r#"'it\'s "so"'"#),
            (json!(["a", 1, 2.0, true, null]), "['a', 1, 2.0, True, None]"),
            (json!({"k": [1]}), "{'k': [1]}"),
            (json!(1e16), "1e+16"),
            (json!(1.5e-5), "1.5e-05"),
            (json!(0.0001), "0.0001"),
            (json!(-0.1), "-0.1"),
            (json!("tab\tline\nback\\ \u{1}é"), r"'tab\tline\nback\\ \x01é'"),
            (json!([]), "[]"),
        ];
        for (value, wanted) in pairs {
            assert_eq!(repr(&value), wanted);
            assert_eq!(literal(wanted), Some(value));
        }
        assert_eq!(display(&json!("x")), "x");
        assert_eq!(literal(" ('a', \"b\" 'c',) "), Some(json!(["a", "bc"])));
        assert_eq!(literal(r"'\d\x41'"), Some(json!("\\dA")));
        for wrong in ["", "[1", "a", "[a]", "1 2", "'a", "007", "f(1)", "{1: 2}", "[1,,2]", "nan", "inf"] {
            assert_eq!(literal(wrong), None, "{wrong}");
        }
    }
}
