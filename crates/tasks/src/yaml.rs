//! YAML as PyYAML reads task files: YAML 1.1 scalars (`yes` is true), anchors, merge keys. A tag `!function` becomes an object with the one key
//! [`FUNCTION`], so that an error can name the key that holds it.

use saphyr_parser::{Event, Parser, ScalarStyle, StrInput, Tag};
use serde_json::{Map, Number, Value};
use std::borrow::Cow;
use std::collections::HashMap;

/// Key of the object that stands for a Python function.
pub(crate) const FUNCTION: &str = "!function";

/// Nodes that a file may have, aliases counted as what they stand for.
const MOST_NODES: usize = 1_000_000;
/// Lists and mappings within each other.
const DEEPEST: usize = 64;

struct Reader<'a> {
    parser: Parser<'a, StrInput<'a>>,
    anchors: HashMap<usize, Value>,
    nodes: usize,
}

/// Parses the first document of a file.
///
/// # Errors
/// A sentence with the line.
pub(crate) fn parse(text: &str) -> Result<Value, String> {
    let mut reader = Reader { parser: Parser::new_from_str(text), anchors: HashMap::new(), nodes: 0 };
    loop {
        match reader.next()? {
            (Event::StreamStart | Event::DocumentStart(_) | Event::Nothing, _) => (),
            (Event::StreamEnd | Event::DocumentEnd, _) => return Ok(Value::Null),
            (event, line) => return reader.node(event, line, 0),
        }
    }
}

impl<'a> Reader<'a> {
    fn next(&mut self) -> Result<(Event<'a>, usize), String> {
        match self.parser.next() {
            Some(Ok((event, span))) => Ok((event, span.start.line())),
            Some(Err(e)) => Err(format!("wanted YAML: {e}")),
            None => Err("wanted YAML, found its end".into()),
        }
    }

    fn node(&mut self, event: Event<'a>, line: usize, depth: usize) -> Result<Value, String> {
        self.nodes += 1;
        if depth > DEEPEST || self.nodes > MOST_NODES {
            return Err(format!("line {line}: wanted at most {DEEPEST} levels and {MOST_NODES} nodes"));
        }
        let (value, anchor) = match event {
            Event::Scalar(text, style, anchor, tag) => (scalar(&text, style, tag.as_deref(), line)?, anchor),
            Event::Alias(anchor) => {
                let known = self.anchors.get(&anchor).cloned();
                let value = known.ok_or_else(|| format!("line {line}: an alias is inside its own anchor"))?;
                self.nodes += nodes(&value);
                return Ok(value);
            }
            Event::SequenceStart(anchor, _) => {
                let mut list = Vec::new();
                loop {
                    match self.next()? {
                        (Event::SequenceEnd, _) => break (Value::Array(list), anchor),
                        (event, line) => list.push(self.node(event, line, depth + 1)?),
                    }
                }
            }
            Event::MappingStart(anchor, _) => (self.mapping(depth)?, anchor),
            _ => return Err(format!("line {line}: wanted a value, found none")),
        };
        if anchor != 0 {
            self.anchors.insert(anchor, value.clone());
        }
        Ok(value)
    }

    fn mapping(&mut self, depth: usize) -> Result<Value, String> {
        let (mut map, mut merged) = (Map::new(), Map::new());
        loop {
            let (event, line) = self.next()?;
            let plain = matches!(&event, Event::Scalar(_, ScalarStyle::Plain, _, _));
            let key = match event {
                Event::MappingEnd => break,
                Event::Scalar(text, ..) => text.into_owned(),
                Event::Alias(anchor) => match self.anchors.get(&anchor) {
                    Some(Value::String(key)) => key.clone(),
                    _ => return Err(format!("line {line}: wanted a text as key")),
                },
                _ => return Err(format!("line {line}: wanted a text as key, found a list or a mapping")),
            };
            let (event, at) = self.next()?;
            let value = self.node(event, at, depth + 1)?;
            match (plain && key == "<<", value) {
                (false, value) => {
                    map.insert(key, value);
                }
                (true, Value::Object(from)) => merged.extend(from),
                (true, Value::Array(list)) => {
                    // An earlier mapping wins over a later one.
                    for from in list.into_iter().rev() {
                        let Value::Object(from) = from else {
                            return Err(format!("line {line}: wanted mappings to merge"));
                        };
                        merged.extend(from);
                    }
                }
                (true, _) => return Err(format!("line {line}: wanted a mapping to merge")),
            }
        }
        for (key, value) in merged {
            map.entry(key).or_insert(value);
        }
        Ok(Value::Object(map))
    }
}

fn nodes(value: &Value) -> usize {
    match value {
        Value::Array(list) => 1 + list.iter().map(nodes).sum::<usize>(),
        Value::Object(map) => 1 + map.values().map(nodes).sum::<usize>(),
        _ => 1,
    }
}

fn scalar(text: &str, style: ScalarStyle, tag: Option<&Tag>, line: usize) -> Result<Value, String> {
    if let Some(tag) = tag {
        return match (tag.handle.as_str(), tag.suffix.as_str()) {
            ("!", "function") => {
                Ok(Value::Object(Map::from_iter([(FUNCTION.to_owned(), Value::from(text))])))
            }
            (_, "str") if tag.is_yaml_core_schema() => Ok(Value::from(text)),
            (_, "null" | "bool" | "int" | "float") if tag.is_yaml_core_schema() => Ok(resolved(text)),
            (handle, suffix) => {
                Err(format!("line {line}: wanted no tag but !function, found {handle}{suffix}"))
            }
        };
    }
    Ok(if style == ScalarStyle::Plain { resolved(text) } else { Value::from(text) })
}

/// A plain scalar by the rules of YAML 1.1 that PyYAML has.
fn resolved(text: &str) -> Value {
    match text {
        "" | "~" | "null" | "Null" | "NULL" => return Value::Null,
        "yes" | "Yes" | "YES" | "true" | "True" | "TRUE" | "on" | "On" | "ON" => return Value::from(true),
        "no" | "No" | "NO" | "false" | "False" | "FALSE" | "off" | "Off" | "OFF" => {
            return Value::from(false);
        }
        _ => (),
    }
    integer(text)
        .map(Value::from)
        .or_else(|| float(text).map(Value::Number))
        .unwrap_or_else(|| Value::from(text))
}

fn integer(text: &str) -> Option<i64> {
    let (negative, digits) = match text.as_bytes().first()? {
        b'-' => (true, &text[1..]),
        b'+' => (false, &text[1..]),
        _ => (false, text),
    };
    let bare: Cow<'_, str> =
        if digits.contains('_') { digits.replace('_', "").into() } else { digits.into() };
    let first = digits.as_bytes().first()?;
    let value = match (bare.get(..2), first) {
        (Some("0x"), _) => i64::from_str_radix(&bare[2..], 16).ok()?,
        (Some("0b"), _) => i64::from_str_radix(&bare[2..], 2).ok()?,
        _ if bare == "0" => 0,
        (_, b'0') => i64::from_str_radix(&bare[1..], 8).ok()?,
        (_, b'1'..=b'9') if bare.bytes().all(|b| b.is_ascii_digit()) => bare.parse().ok()?,
        _ => return None,
    };
    Some(if negative { -value } else { value })
}

/// A number with a point; without one `1e5` is a text.
fn float(text: &str) -> Option<Number> {
    let digits = text.trim_start_matches(['-', '+']);
    let begins = digits.starts_with(|c: char| c.is_ascii_digit() || c == '.');
    let allowed = |c: char| c.is_ascii_digit() || matches!(c, '.' | '_' | 'e' | 'E' | '-' | '+');
    let fits =
        begins && text.len() - digits.len() <= 1 && digits.contains('.') && digits.chars().all(allowed);
    Number::from_f64(text.replace('_', "").parse().ok().filter(|_| fits)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_task_file_is_read_as_pyyaml_reads_it() {
        let text = "task: demo\nnum_fewshot: 0\nyes_is: yes\nfew: 1_000\nversion: 1.0\nbig: 1e5\noct: 010\nnone: null\nempty:\n\
                    text: \"Q: {{q}}\\nA:\"\nraw: '{{a}}'\nblock: |\n  one\n  two\nfolded: >-\n  a\n  b\n\
                    metric_list:\n  - metric: acc\n    higher_is_better: true\n  - {metric: f1}\n\
                    process_docs: !function utils.process\n";
        let wanted = json!({
            "task": "demo", "num_fewshot": 0, "yes_is": true, "few": 1000, "version": 1.0, "big": "1e5", "oct": 8, "none": null,
            "empty": null, "text": "Q: {{q}}\nA:", "raw": "{{a}}", "block": "one\ntwo\n", "folded": "a b",
            "metric_list": [{"metric": "acc", "higher_is_better": true}, {"metric": "f1"}],
            "process_docs": {"!function": "utils.process"},
        });
        assert_eq!(parse(text).unwrap(), wanted);
    }

    #[test]
    fn anchors_are_merged_and_mistakes_are_errors() {
        let text = "base: &b {a: 1, b: 2}\nuse:\n  <<: *b\n  b: 3\nlist: [*b, 'x']\n";
        let value = parse(text).unwrap();
        assert_eq!(value["use"], json!({"b": 3, "a": 1}));
        assert_eq!(value["list"], json!([{"a": 1, "b": 2}, "x"]));
        assert_eq!(parse("# nothing\n").unwrap(), Value::Null);
        for wrong in ["a: [1", "a: b: c", "a: !python/object x", "? [1]\n: 2", "\"", "a: *b"] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
        let deep = "[".repeat(100) + &"]".repeat(100);
        assert!(parse(&deep).unwrap_err().contains("64 levels"));
        let bomb: String = (0..12)
            .map(|i| match i {
                0 => "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n".to_owned(),
                _ => format!("a{i}: &a{i} [{}]\n", vec![format!("*a{}", i - 1); 10].join(", ")),
            })
            .collect();
        assert!(parse(&bomb).unwrap_err().contains("nodes"));
    }
}
