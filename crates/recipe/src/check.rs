//! Holds a tree against a schema: unknown keys, wrong types, values out of range, missing keys.
//!
//! Each layer is checked by itself (so that a mistake in a base is found even where the recipe overrides
//! it), but knows the layers below: they may hold the tag that says which variant a table is.

use crate::error::{Diagnostic, Sink, quoted};
use crate::node::{Node, Table, Value};
use crate::schema::{Choice, View};
use bessemer_units::nearest;
use serde_json::Value as Json;

/// Checks to make.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ask {
    /// Everything that is written must be allowed; keys may be missing.
    Layer,
    /// Only what is missing: the layers have been checked.
    Missing,
}

pub(crate) struct Checker<'a> {
    pub(crate) ask: Ask,
    /// Dotted paths of all keys, for suggestions across tables.
    pub(crate) all_keys: &'a [String],
}

impl Checker<'_> {
    pub(crate) fn check<'n>(
        &self,
        node: &'n Node,
        effective: Option<&'n Node>,
        view: &View<'n>,
        path: &str,
        sink: &mut Sink,
    ) {
        let wrong = self.ask == Ask::Layer;
        if let Some(names) = view.names() {
            if wrong {
                check_name(node, &names, path, sink);
            }
            return;
        }
        match view.choose(node, effective) {
            Some(Choice::One(inner)) => return self.check(node, effective, &inner, path, sink),
            Some(Choice::BadTag { key, names, found }) => {
                match found {
                    // A tag from a lower layer has been reported there; one that is missing, here.
                    Some(tag) if wrong && node.get(key).is_some() => {
                        check_name(tag, &names, &join(path, key), sink)
                    }
                    Some(_) => {}
                    None if !wrong => sink.report(|| {
                        Diagnostic::new(
                            format!("missing key {}", quoted(&join(path, key))),
                            node.place.as_ref(),
                        )
                        .help(format!("one of: {}", names.join(", ")))
                    }),
                    None => {}
                }
                return;
            }
            Some(Choice::BadKey { names }) => {
                if wrong {
                    sink.report(|| {
                        Diagnostic::new(
                            format!("{} has none of the keys that it can have", quoted(path)),
                            node.place.as_ref(),
                        )
                        .help(format!("give one of these keys: {}", names.join(", ")))
                    });
                }
                return;
            }
            Some(Choice::Any(views)) => return self.check_any(node, effective, &views, path, sink),
            None => {}
        }
        if wrong && !self.check_type(node, view, path, sink) {
            return;
        }
        match &node.value {
            Value::Table(table) => self.check_table(node, table, effective, view, path, sink),
            Value::Array(items) => {
                if wrong {
                    check_length(node, items.len(), ("minItems", "maxItems"), "elements", view, path, sink);
                }
                for (i, item) in items.iter().enumerate() {
                    if let Some(inner) = view.item(i) {
                        self.check(item, Some(item), &inner, &format!("{path}[{i}]"), sink);
                    }
                }
            }
            Value::Str(s) if wrong => check_length(
                node,
                s.chars().count(),
                ("minLength", "maxLength"),
                "characters",
                view,
                path,
                sink,
            ),
            Value::Int(i) if wrong => check_range(node, *i as f64, Some(*i), view, path, sink),
            Value::Float(x) if wrong => check_range(node, *x, None, view, path, sink),
            _ => {}
        }
    }

    fn check_table<'n>(
        &self,
        node: &'n Node,
        table: &'n Table,
        effective: Option<&'n Node>,
        view: &View<'n>,
        path: &str,
        sink: &mut Sink,
    ) {
        for (key, field) in table {
            let inner = view.property(key).or_else(|| view.map_values());
            match inner {
                Some(inner) => {
                    let below = effective.and_then(|e| e.get(key));
                    self.check(&field.node, below, &inner, &join(path, key), sink);
                }
                None if self.ask == Ask::Layer => {
                    sink.report(|| self.unknown(key, field.key.as_ref(), view, path));
                }
                None => {}
            }
        }
        if self.ask == Ask::Missing {
            for name in view.required().filter(|name| !table.contains_key(*name)) {
                sink.report(|| {
                    Diagnostic::new(format!("missing key {}", quoted(&join(path, name))), node.place.as_ref())
                });
            }
        }
    }

    /// An untagged choice: silent if any alternative accepts the value, else the closest one speaks.
    fn check_any<'n>(
        &self,
        node: &'n Node,
        effective: Option<&'n Node>,
        views: &[View<'n>],
        path: &str,
        sink: &mut Sink,
    ) {
        let mut best: Option<(usize, &View<'n>)> = None;
        for view in views.iter().filter(|v| v.names().is_none_or(|_| node.text().is_some())) {
            if view.names().is_none() && type_error(node, view).is_some() {
                continue;
            }
            let mut trial = Sink::default();
            self.check(node, effective, view, path, &mut trial);
            let mistakes = trial.count();
            if mistakes == 0 {
                return;
            }
            if best.is_none_or(|(fewest, _)| mistakes < fewest) {
                best = Some((mistakes, view));
            }
        }
        match best {
            Some((_, view)) => self.check(node, effective, view, path, sink),
            None if self.ask == Ask::Layer => sink.report(|| {
                let mut wanted: Vec<String> = Vec::new();
                for view in views {
                    let words = match view.names() {
                        Some(names) => {
                            names.iter().map(|n| format!("\"{n}\"")).collect::<Vec<_>>().join(", ")
                        }
                        None => view.types().iter().map(|t| type_words(t)).collect::<Vec<_>>().join(" or "),
                    };
                    if !wanted.contains(&words) {
                        wanted.push(words);
                    }
                }
                let message =
                    format!("{} must be {}, found {}", quoted(path), wanted.join(" or "), node.describe());
                Diagnostic::new(message, node.place.as_ref())
            }),
            None => {}
        }
    }

    fn check_type(&self, node: &Node, view: &View<'_>, path: &str, sink: &mut Sink) -> bool {
        let Some((wanted, help)) = type_error(node, view) else { return true };
        sink.report(|| {
            let what = if path.is_empty() { "the recipe".to_string() } else { quoted(path) };
            let d = Diagnostic::new(
                format!("{what} must be {wanted}, found {}", node.describe()),
                node.place.as_ref(),
            );
            match help {
                Some(help) => d.help(help),
                None => d,
            }
        });
        false
    }

    fn unknown(
        &self,
        key: &str,
        place: Option<&crate::source::Place>,
        view: &View<'_>,
        path: &str,
    ) -> Diagnostic {
        let section = if path.is_empty() { String::new() } else { format!(" in [{path}]") };
        let message = format!("unknown key {}{section}", quoted(key));
        let names: Vec<&str> = view.properties().map(|(k, _)| k).collect();
        let elsewhere =
            || self.all_keys.iter().find(|full| full.rsplit('.').next().is_some_and(|last| last == key));
        let help = if let Some(near) = nearest(key, names.iter().copied()) {
            format!("did you mean `{near}`?")
        } else if let Some(full) = elsewhere() {
            format!("did you mean `{full}`?")
        } else {
            let mut listed = names.clone();
            listed.sort_unstable();
            format!("known keys here: {}", listed.join(", "))
        };
        Diagnostic::new(message, place).help(help)
    }
}

/// `None` if the value's type is allowed, else what was wanted and what to try.
fn type_error(node: &Node, view: &View<'_>) -> Option<(String, Option<String>)> {
    let types = view.types();
    if types.is_empty() {
        return None;
    }
    let fits = |t: &&str| match &node.value {
        Value::Bool(_) => *t == "boolean",
        Value::Int(_) => *t == "integer" || *t == "number",
        Value::Float(_) => *t == "number",
        Value::Str(_) => *t == "string",
        Value::Date(_) => false,
        Value::Array(_) => *t == "array",
        Value::Table(_) => *t == "object",
    };
    if types.iter().any(fits) {
        return None;
    }
    let wanted = types.iter().map(|t| type_words(t)).collect::<Vec<_>>().join(" or ");
    let help = match &node.value {
        Value::Float(x) if types.contains(&"integer") && x.fract() == 0.0 && x.abs() < 9e15 => {
            Some(format!("write it without exponent and fraction: {}", *x as i64))
        }
        Value::Str(s) if types.contains(&"number") && s.parse::<f64>().is_ok() => {
            Some(format!("write it without quotes: {s}"))
        }
        Value::Str(s) if types.contains(&"integer") && s.parse::<i64>().is_ok() => {
            Some(format!("write it without quotes: {s}"))
        }
        Value::Str(s) if types.contains(&"boolean") && (s == "true" || s == "false") => {
            Some(format!("write it without quotes: {s}"))
        }
        _ if types.contains(&"string") && !matches!(node.value, Value::Array(_) | Value::Table(_)) => {
            Some("put it in quotes".to_string())
        }
        _ if types.contains(&"array") && !matches!(node.value, Value::Table(_)) => {
            Some("put it in brackets: [...]".to_string())
        }
        _ => None,
    };
    Some((wanted, help))
}

fn type_words(json_type: &str) -> &str {
    match json_type {
        "boolean" => "true or false",
        "integer" => "an integer",
        "number" => "a number",
        "string" => "a string",
        "array" => "an array",
        "object" => "a table",
        other => other,
    }
}

fn check_name(node: &Node, names: &[&str], path: &str, sink: &mut Sink) {
    if node.text().is_some_and(|text| names.contains(&text)) {
        return;
    }
    sink.report(|| {
        let wanted = names.iter().map(|n| format!("\"{n}\"")).collect::<Vec<_>>().join(", ");
        let found = node.describe();
        let d = Diagnostic::new(
            format!("{} must be one of {wanted}; found {found}", quoted(path)),
            node.place.as_ref(),
        );
        match node.text().and_then(|text| nearest(text, names.iter().copied())) {
            Some(near) => d.help(format!("did you mean \"{near}\"?")),
            None => d,
        }
    });
}

fn check_length(
    node: &Node,
    length: usize,
    keywords: (&str, &str),
    unit: &str,
    view: &View<'_>,
    path: &str,
    sink: &mut Sink,
) {
    let limit = |name: &str| view.keyword(name).and_then(Json::as_u64);
    let (least, most) = (limit(keywords.0), limit(keywords.1));
    if least.is_none_or(|l| length as u64 >= l) && most.is_none_or(|m| length as u64 <= m) {
        return;
    }
    sink.report(|| {
        let wanted = match (least, most) {
            (Some(l), Some(m)) if l == m => format!("{l} {unit}"),
            (Some(l), Some(m)) => format!("{l} to {m} {unit}"),
            (Some(l), None) => format!("at least {l} {unit}"),
            (_, Some(m)) => format!("at most {m} {unit}"),
            (None, None) => unit.to_string(),
        };
        Diagnostic::new(format!("{} must have {wanted}, found {length}", quoted(path)), node.place.as_ref())
    });
}

/// Bounds of a number: from the schema's own keywords, and from the width of its integer type.
fn check_range(node: &Node, value: f64, exact: Option<i128>, view: &View<'_>, path: &str, sink: &mut Sink) {
    if !value.is_finite() {
        sink.report(|| {
            Diagnostic::new(
                format!("{} must be a finite number, found {}", quoted(path), node.describe()),
                node.place.as_ref(),
            )
        });
        return;
    }
    let bound = |name: &str| view.keyword(name).filter(|b| b.is_number());
    let width: Option<(i128, i128)> = match view.keyword("format").and_then(Json::as_str) {
        Some("uint8") => Some((0, u8::MAX.into())),
        Some("uint16") => Some((0, u16::MAX.into())),
        Some("uint32") => Some((0, u32::MAX.into())),
        Some("uint" | "uint64") => Some((0, u64::MAX.into())),
        Some("int8") => Some((i8::MIN.into(), i8::MAX.into())),
        Some("int16") => Some((i16::MIN.into(), i16::MAX.into())),
        Some("int32") => Some((i32::MIN.into(), i32::MAX.into())),
        Some("int" | "int64") => Some((i64::MIN.into(), i64::MAX.into())),
        _ => None,
    };
    let below = |b: &Json| match (exact, b.as_i64()) {
        (Some(v), Some(b)) => v < b.into(),
        _ => b.as_f64().is_some_and(|b| value < b),
    };
    let above = |b: &Json| match (exact, b.as_i64()) {
        (Some(v), Some(b)) => v > b.into(),
        _ => b.as_f64().is_some_and(|b| value > b),
    };
    let equal = |b: &Json| !below(b) && !above(b);
    let mut wanted: Vec<String> = Vec::new();
    let mut broken = false;
    let mut ask = |keyword: &str, words: &str, violated: &dyn Fn(&Json) -> bool| {
        if let Some(b) = bound(keyword) {
            // A bound of 1 may be kept as 1.0; the reader need not know.
            let shown = if b.is_f64() { b.as_f64().unwrap_or(f64::NAN).to_string() } else { b.to_string() };
            wanted.push(format!("{words} {shown}"));
            broken |= violated(b);
        }
    };
    ask("minimum", "at least", &below);
    ask("exclusiveMinimum", "more than", &|b| below(b) || equal(b));
    ask("maximum", "at most", &above);
    ask("exclusiveMaximum", "less than", &|b| above(b) || equal(b));
    if let (Some((least, most)), Some(v)) = (width, exact)
        && !broken
        && !(least..=most).contains(&v)
    {
        broken = true;
        wanted = vec![format!("from {least} to {most}")];
    }
    if broken {
        sink.report(|| {
            Diagnostic::new(
                format!("{} must be {}, found {}", quoted(path), wanted.join(" and "), node.describe()),
                node.place.as_ref(),
            )
        });
    }
}

pub(crate) fn join(path: &str, key: &str) -> String {
    let plain = !key.is_empty() && key.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_' || b == b'-');
    let key = if plain { key.to_string() } else { format!("\"{}\"", key.escape_debug()) };
    if path.is_empty() { key } else { format!("{path}.{key}") }
}
