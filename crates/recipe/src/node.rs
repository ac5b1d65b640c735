//! A TOML document as a tree of values, each with the place that it was written at.

use crate::error::{Diagnostic, Sink, quoted};
use crate::source::{Place, Source};
use serde_json::Value as Json;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

/// Deepest nesting of tables and arrays in a recipe.
///
/// Everything that walks a tree recurses, so its depth is bounded where it enters. The parser's own limit
/// (80) counts inline values and the parts of one dotted key separately, and both together can go deeper.
pub(crate) const DEEPEST: usize = 40;

/// Keys whose texts are shown to a model or put into a corpus.
const NO_PATHS: [&str; 2] = ["prompts", "description"];

/// A value with its place; no place means that it is a default.
#[derive(Debug, Clone)]
pub(crate) struct Node {
    pub(crate) value: Value,
    pub(crate) place: Option<Place>,
}

#[derive(Debug, Clone)]
pub(crate) enum Value {
    Bool(bool),
    /// Wide enough for every `i64` and `u64`.
    Int(i128),
    Float(f64),
    Str(String),
    /// Kept as text: no recipe key is a date, so this is always a type error.
    Date(String),
    Array(Vec<Node>),
    Table(Table),
}

pub(crate) type Table = BTreeMap<String, Field>;

/// An entry of a table: where its key stands, and its value.
#[derive(Debug, Clone)]
pub(crate) struct Field {
    pub(crate) key: Option<Place>,
    pub(crate) node: Node,
}

impl Node {
    pub(crate) fn table(&self) -> Option<&Table> {
        match &self.value {
            Value::Table(t) => Some(t),
            _ => None,
        }
    }

    pub(crate) fn get(&self, key: &str) -> Option<&Node> {
        self.table()?.get(key).map(|f| &f.node)
    }

    /// The node at a dotted key.
    pub(crate) fn at(&self, dotted: &str) -> Option<&Node> {
        dotted.split('.').try_fold(self, |node, key| node.get(key))
    }

    /// The entry at a dotted key, to be changed or taken out: its table and its name there.
    pub(crate) fn entry_at<'n, 'k>(&'n mut self, dotted: &'k str) -> Option<(&'n mut Table, &'k str)> {
        let (path, last) = dotted.rsplit_once('.').unwrap_or(("", dotted));
        let within = |node: &'n mut Node, key: &str| match &mut node.value {
            Value::Table(table) => table.get_mut(key).map(|field| &mut field.node),
            _ => None,
        };
        let node = path.split('.').filter(|key| !key.is_empty()).try_fold(self, within)?;
        match &mut node.value {
            Value::Table(table) => Some((table, last)),
            _ => None,
        }
    }

    /// Puts the home directory in the place of `~` at the beginning of every text but those under [`NO_PATHS`].
    pub(crate) fn below_home(&mut self, home: &Path) {
        match &mut self.value {
            Value::Str(text) => {
                if let Some(path) = bessemer_durable::below_home(text, home) {
                    *text = path;
                }
            }
            Value::Array(items) => items.iter_mut().for_each(|item| item.below_home(home)),
            Value::Table(table) => {
                let paths = table.iter_mut().filter(|(key, _)| !NO_PATHS.contains(&key.as_str()));
                paths.for_each(|(_, field)| field.node.below_home(home));
            }
            _ => {}
        }
    }

    pub(crate) fn text(&self) -> Option<&str> {
        match &self.value {
            Value::Str(s) => Some(s),
            _ => None,
        }
    }

    /// The value as an error names it: "the string `abc`".
    pub(crate) fn describe(&self) -> String {
        match &self.value {
            Value::Bool(b) => format!("the boolean {b}"),
            Value::Int(i) => format!("the integer {i}"),
            Value::Float(x) => format!("the float {x:?}"),
            Value::Str(s) => format!("the string {}", quoted(s)),
            Value::Date(d) => format!("the date {}", quoted(d)),
            Value::Array(_) => "an array".into(),
            Value::Table(_) => "a table".into(),
        }
    }

    /// A tree without places from a JSON value. Nulls (unset options) are left out.
    pub(crate) fn from_json(json: &Json) -> Option<Node> {
        let value = match json {
            Json::Null => return None,
            Json::Bool(b) => Value::Bool(*b),
            Json::Number(n) => match (n.as_i64(), n.as_u64()) {
                (Some(i), _) => Value::Int(i.into()),
                (None, Some(u)) => Value::Int(u.into()),
                (None, None) => Value::Float(n.as_f64().unwrap_or(f64::NAN)),
            },
            Json::String(s) => Value::Str(s.clone()),
            Json::Array(items) => Value::Array(items.iter().filter_map(Node::from_json).collect()),
            Json::Object(map) => Value::Table(
                map.iter()
                    .filter_map(|(k, v)| Some((k.clone(), Field { key: None, node: Node::from_json(v)? })))
                    .collect(),
            ),
        };
        Some(Node { value, place: None })
    }
}

/// Parses a source. Syntax errors, duplicate keys and excessive depth go to `sink`; `None` then.
pub(crate) fn parse(source: &Arc<Source>, sink: &mut Sink) -> Option<Node> {
    let (table, errors) = DeTable::parse_recoverable(&source.text);
    if !errors.is_empty() {
        for error in &errors {
            let span = error.span().unwrap_or(0..0);
            sink.report(|| {
                let place = Place::new(source, span);
                Diagnostic::new(
                    format!("malformed TOML: {}", error.message().replace('\n', "; ")),
                    Some(&place),
                )
            });
        }
        dismantle(table.into_inner());
        return None;
    }
    let before = sink.count();
    let span = table.span();
    let node = convert_table(table.into_inner(), source, span, 0, sink);
    (sink.count() == before).then_some(node)
}

fn convert_table(
    table: DeTable<'_>,
    source: &Arc<Source>,
    span: std::ops::Range<usize>,
    depth: usize,
    sink: &mut Sink,
) -> Node {
    let fields = table.into_iter().map(|(key, value)| {
        let place = Place::new(source, key.span());
        let name = key.into_inner().into_owned();
        (name, Field { key: Some(place), node: convert(value, source, depth + 1, sink) })
    });
    Node { value: Value::Table(fields.collect()), place: Some(Place::new(source, span)) }
}

fn convert(value: Spanned<DeValue<'_>>, source: &Arc<Source>, depth: usize, sink: &mut Sink) -> Node {
    let span = value.span();
    let place = Place::new(source, span.clone());
    let value = match value.into_inner() {
        DeValue::Boolean(b) => Value::Bool(b),
        DeValue::String(s) => Value::Str(s.into_owned()),
        DeValue::Datetime(d) => Value::Date(d.to_string()),
        DeValue::Integer(i) => match i128::from_str_radix(i.as_str(), i.radix()) {
            Ok(n) if (i64::MIN.into()..=u64::MAX.into()).contains(&n) => Value::Int(n),
            _ => {
                sink.report(|| {
                    Diagnostic::new(
                        format!("the integer {} does not fit in 64 bits", quoted(i.as_str())),
                        Some(&place),
                    )
                });
                Value::Int(0)
            }
        },
        DeValue::Float(x) => match x.as_str().parse::<f64>() {
            Ok(v) if v.is_finite() || x.as_str().contains("inf") || x.as_str().contains("nan") => {
                Value::Float(v)
            }
            _ => {
                sink.report(|| {
                    Diagnostic::new(
                        format!("the float {} does not fit in a double", quoted(x.as_str())),
                        Some(&place),
                    )
                });
                Value::Float(0.0)
            }
        },
        nested @ (DeValue::Array(_) | DeValue::Table(_)) if depth >= DEEPEST => {
            sink.report(|| {
                Diagnostic::new(format!("tables and arrays nest deeper than {DEEPEST} levels"), Some(&place))
            });
            dismantle_value(nested);
            Value::Bool(false)
        }
        DeValue::Array(items) => {
            Value::Array(items.into_iter().map(|item| convert(item, source, depth + 1, sink)).collect())
        }
        DeValue::Table(table) => return convert_table(table, source, span, depth, sink),
    };
    Node { value, place: Some(place) }
}

fn dismantle(table: DeTable<'_>) {
    dismantle_value(DeValue::Table(table));
}

/// Drops a tree level by level: the compiler's own drop recurses, and a hostile file could exhaust the stack.
fn dismantle_value(value: DeValue<'_>) {
    let mut waiting = vec![value];
    while let Some(value) = waiting.pop() {
        match value {
            DeValue::Array(items) => waiting.extend(items.into_iter().map(Spanned::into_inner)),
            DeValue::Table(table) => waiting.extend(table.into_iter().map(|(_, v)| v.into_inner())),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::Role;

    fn errors(text: &str) -> Vec<String> {
        let mut sink = Sink::default();
        let node = parse(&Source::new("f".into(), text.into(), Role::File), &mut sink);
        let errors: Vec<String> = match sink.finish() {
            Ok(()) => vec![],
            Err(e) => e
                .diagnostics()
                .iter()
                .map(|d| format!("{} {}", d.location.clone().unwrap(), d.message))
                .collect(),
        };
        assert_eq!(node.is_none(), !errors.is_empty());
        errors
    }

    #[test]
    fn duplicates_and_syntax_errors_are_reported_together_with_their_places() {
        let found = errors("a = 1\na = 2\n[t]\nb = \nc = 1\n[t]\n");
        assert!(found.len() >= 3, "{found:#?}");
        assert!(found[0].starts_with("f:2:1 ") && found[0].contains("duplicate key"), "{found:#?}");
        assert!(found.iter().any(|e| e.starts_with("f:4:")), "{found:#?}");
        assert!(found.iter().any(|e| e.starts_with("f:6:")), "{found:#?}");
    }

    #[test]
    fn numbers_that_do_not_fit_are_refused_and_the_largest_that_do_are_kept() {
        assert_eq!(
            errors("a = 18446744073709551615\nb = -9223372036854775808\nc = 0xffff_ffff_ffff_ffff"),
            [""; 0]
        );
        for text in [
            "a = 18446744073709551616",
            "a = -9223372036854775809",
            "a = 1e999",
            "a = 99999999999999999999999999999999999999999999",
        ] {
            assert!(errors(text)[0].contains("does not fit"), "{text}");
        }
        assert_eq!(errors("a = inf\nb = -nan"), [""; 0]);
    }

    #[test]
    fn nesting_is_bounded_whatever_syntax_makes_it() {
        let dotted = vec!["a"; 79].join(".");
        let mut mixed = String::from("1");
        for _ in 0..70 {
            mixed = format!("{{{dotted} = {mixed}}}");
        }
        for text in [
            format!("a = {}", "[".repeat(100_000)),
            format!("a = {}{}", "[".repeat(70), "]".repeat(70)),
            format!("{} = 1", vec!["a"; 100_000].join(".")),
            format!("{dotted} = 1"),
            format!("x = {mixed}"),
            format!("[{dotted}]\n{dotted} = {mixed}"),
        ] {
            assert!(!errors(&text).is_empty());
        }
    }
}
