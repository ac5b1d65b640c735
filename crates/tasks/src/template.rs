//! Templates of task files: Jinja with Python's methods of texts, values printed as Python prints them, an unknown name an error.

use crate::python;
use bessemer_jinja::{BoundedTemplate, WhiteSpace, bounded, environment};
use minijinja::value::{Serde, Value as Jinja, ValueKind};
use minijinja::{Environment, Error, ErrorKind, State, UndefinedBehavior};
use serde_json::{Map, Value};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

/// Steps that the pattern of one `regex_replace` takes, beside those of the text that it makes.
const PATTERN_STEPS: u64 = 1_000;
/// Most bytes of a compiled pattern.
const PATTERN_BYTES: usize = 1 << 20;

/// Renders templates, each read once.
pub(crate) struct Templates {
    environment: Environment<'static>,
    read: Mutex<HashMap<String, Arc<BoundedTemplate>>>,
}

impl std::fmt::Debug for Templates {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Templates")
    }
}

impl Templates {
    pub(crate) fn new() -> Templates {
        let mut env = environment(WhiteSpace { trim_statements: false, keep_last_line_break: true });
        env.set_undefined_behavior(UndefinedBehavior::Strict);
        env.set_unknown_method_callback(method);
        env.set_formatter(|out, state, value| {
            if value.is_undefined() {
                return Err(Error::from(ErrorKind::UndefinedError));
            }
            bounded(state, value)?;
            match value.as_str() {
                Some(text) => out.write_str(text)?,
                None => out.write_str(&python::display(&json(value)?))?,
            }
            Ok(())
        });
        env.add_filter("regex_replace", regex_replace);
        Templates { environment: env, read: Mutex::default() }
    }

    fn template(&self, template: &str) -> Result<Arc<BoundedTemplate>, Error> {
        let read = || self.read.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = read().get(template) {
            return Ok(known.clone());
        }
        let new = Arc::new(BoundedTemplate::new(self.environment.clone(), template)?);
        read().insert(template.to_owned(), new.clone());
        Ok(new)
    }

    /// The text of a template for a document.
    ///
    /// # Errors
    /// A sentence with the template and its fault.
    pub(crate) fn render(&self, template: &str, document: &Map<String, Value>) -> Result<String, String> {
        let rendered = self.template(template).and_then(|read| read.render(Jinja::from(Serde(document))));
        rendered.map_err(|e| {
            let detail = e.detail().map(|detail| format!(" ({detail})")).unwrap_or_default();
            let names: Vec<&str> = document.keys().map(String::as_str).collect();
            let shown: String = template.chars().take(200).collect();
            format!(
                "template {shown:?}: {}{detail}; the document has the columns {}",
                e.kind(),
                names.join(", ")
            )
        })
    }

    /// The columns that a template reads, in the order of their names. None if it is no template.
    pub(crate) fn columns(&self, template: &str) -> Option<std::collections::BTreeSet<String>> {
        self.template(template).ok()?.undeclared().ok()
    }
}

/// Replaces what a pattern finds. The steps are paid before a text grows.
fn regex_replace(state: &State<'_, '_>, text: &str, pattern: &str, by: &str) -> Result<String, Error> {
    state.consume_fuel(PATTERN_STEPS)?;
    let pattern = regex::RegexBuilder::new(pattern)
        .size_limit(PATTERN_BYTES)
        .build()
        .map_err(|e| Error::new(ErrorKind::InvalidOperation, format!("regex_replace: {e}")))?;
    let references = by.bytes().filter(|byte| *byte == b'$').count();
    let (mut out, mut end) = (String::with_capacity(text.len()), 0);
    for found in pattern.captures_iter(text) {
        let whole = found.get_match();
        let most = by.len().saturating_add(references.saturating_mul(whole.len()));
        state.consume_fuel(1 + most as u64 / 64)?;
        out.push_str(&text[end..whole.start()]);
        found.expand(by, &mut out);
        end = whole.end();
    }
    out.push_str(&text[end..]);
    Ok(out)
}

fn json(value: &Jinja) -> Result<Value, Error> {
    let failed = |e| {
        Error::new(ErrorKind::BadSerialization, format!("{value} is not a text, number or list"))
            .with_source(e)
    };
    serde_json::to_value(value).map_err(failed)
}

/// Methods of Python's values that templates call.
fn method(state: &mut State<'_, '_>, value: &Jinja, name: &str, args: &[Jinja]) -> Result<Jinja, Error> {
    match (name, value.kind(), args) {
        ("index", ValueKind::Seq | ValueKind::Iterable, [wanted]) => {
            let place = value.try_iter()?.position(|item| item == *wanted);
            place.map(Jinja::from).ok_or_else(|| {
                Error::new(
                    ErrorKind::InvalidOperation,
                    format!("{} is not in the list", python::repr(&json(wanted).unwrap_or_default())),
                )
            })
        }
        ("index", ValueKind::String, [wanted]) => {
            let (text, wanted) = (value.as_str().unwrap_or_default(), wanted.as_str().unwrap_or_default());
            let place = text.find(wanted).map(|at| Jinja::from(text[..at].chars().count()));
            place.ok_or_else(|| {
                Error::new(ErrorKind::InvalidOperation, format!("{wanted:?} is not in the text"))
            })
        }
        _ => bessemer_jinja::method(state, value, name, args),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// Right: what Jinja2 3.1 prints with the harness's settings.
    #[test]
    fn templates_print_what_jinja2_prints() {
        let document = json!({
            "q": "What?", "choices": {"text": ["a b", "it's"], "label": ["A", "B"]}, "key": "B", "n": 3, "x": 0.5, "yes": true, "text": "The cat sat",
        });
        let document = document.as_object().unwrap();
        let pairs = [
            ("Question: {{q}}\nAnswer:\n", "Question: What?\nAnswer:\n"),
            ("{{choices.text}}", "['a b', \"it's\"]"),
            ("{{choices.label.index(key)}}", "1"),
            ("{{[q, n, x, yes]}}", "['What?', 3, 0.5, True]"),
            ("{{text.split(' ')[:-1]|join(' ')}}", "The cat"),
            ("{{' '+text.split(' ')[-1]}}", " sat"),
            ("{{text.strip().lower()|replace('cat', 'dog')}}", "the dog sat"),
            ("{{yes}} {{n + 1}} {{n / 2}}", "True 4 1.5"),
            ("{% for c in choices.text %}{{loop.index}}. {{c}}\n{% endfor %}", "1. a b\n2. it's\n"),
            ("{% if n == 3 %}three{% else %}other{% endif %}", "three"),
            ("{{q[0]}}{{text.index('c')}}", "W4"),
            ("{{text|regex_replace('[aeiou]', '')}}", "Th ct st"),
            ("<b>{{'<&>'}}", "<b><&>"),
        ];
        let templates = Templates::new();
        for (template, wanted) in pairs {
            assert_eq!(templates.render(template, document).unwrap(), wanted, "{template}");
        }
        let e = templates.render("{{nothing}}", document).unwrap_err();
        assert!(e.contains("{{nothing}}") && e.contains("choices"), "{e}");
        assert!(templates.render("{{q", document).is_err());
        assert!(
            templates
                .render("{{choices.label.index('Z')}}", document)
                .unwrap_err()
                .contains("'Z' is not in the list")
        );
        assert!(
            templates
                .render(
                    "{% for i in range(9999) %}{% for j in range(9999) %}{% endfor %}{% endfor %}",
                    document
                )
                .is_err()
        );
        let grown = "{% set x = 'x' * 100000 %}{{ x|regex_replace('x', x) }}{{ x|regex_replace('.*', '$0' * 100000) }}";
        assert!(templates.render(grown, document).unwrap_err().contains("fuel"));
        let error = templates.render(&format!("{{{{ 1{} }}}}", "+1".repeat(30_000)), document).unwrap_err();
        assert!(error.contains("tokens in a tag") && error.len() < 1000, "{error}");
    }
}
