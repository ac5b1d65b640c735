//! Macros without arguments: their definitions are taken out of the source, and their names replaced by what they stand for.
//!
//! Every macro's full expansion is computed once and bounded, so definitions that double each other's text cost no more than the
//! limit. A macro that leads to itself stays as it is written.

use super::files::VERBATIM;
use super::scan::{Finder, Grouped, command_name, is_word, name_in_braces, skip_space};
use crate::error::{MarkupError, MarkupLimits};
use std::collections::HashMap;

/// Commands that define another one.
const DEFINITIONS: &[&str] = &["newcommand", "renewcommand", "providecommand", "DeclareRobustCommand"];
/// Most macros inside each other.
const MOST_MACRO_DEPTH: usize = 64;
/// Longest list of parameters of `\def`.
const MOST_PARAMETER_BYTES: usize = 100;
/// Most macros of a paper; further definitions are taken out and not expanded.
const MOST_MACROS: usize = 4096;
/// Longest definition that is expanded.
const MOST_MACRO_BYTES: usize = 16 << 10;

/// The source without definitions, macros without arguments expanded.
pub(super) fn expanded(source: &str, limits: &MarkupLimits) -> Result<String, MarkupError> {
    let (source, macros) = without_definitions(source);
    if macros.is_empty() {
        return Ok(source);
    }
    let mut expander = Expander { macros: &macros, whole: HashMap::new(), whole_bytes: 0, limits };
    expander.resolve_all()?;
    expander.expand(&source)
}

/// The source without definitions of commands, and those without arguments by name.
fn without_definitions(source: &str) -> (String, HashMap<String, String>) {
    let mut out = String::with_capacity(source.len());
    let mut macros = HashMap::new();
    let mut finder = Finder::default();
    let grouped = Grouped::new(source);
    let mut at = 0;
    while let Some(found) = memchr::memchr(b'\\', &source.as_bytes()[at..]) {
        let start = at + found;
        out.push_str(&source[at..start]);
        let name = command_name(source, start);
        let end = start + 1 + name.len();
        if let Some(close) = end_of_verbatim(source, end, name, &mut finder) {
            out.push_str(&source[start..close]);
            at = close;
            continue;
        }
        let Some(definition) = definition(&grouped, end, name) else {
            out.push_str(&source[start..end]);
            at = end;
            continue;
        };
        let fits = |body: &String| body.len() <= MOST_MACRO_BYTES && macros.len() < MOST_MACROS;
        if let Some(body) = definition.body.filter(fits) {
            macros.insert(definition.name.to_string(), body);
        } else {
            macros.remove(definition.name);
        }
        at = definition.end;
    }
    out.push_str(&source[at..]);
    (out, macros)
}

/// Where the verbatim environment ends that `\begin` at `end` begins.
fn end_of_verbatim(source: &str, end: usize, name: &str, finder: &mut Finder) -> Option<usize> {
    let (environment, body) = (name == "begin").then(|| name_in_braces(source, end)).flatten()?;
    VERBATIM.contains(&environment).then(|| finder.find_end(source, body, environment)).flatten()
}

/// A definition of a command.
struct Definition<'a> {
    name: &'a str,
    /// What it stands for; none where it takes arguments.
    body: Option<String>,
    end: usize,
}

/// The definition that the command `name`, which ends at `end`, makes.
fn definition<'a>(grouped: &Grouped<'a>, end: usize, name: &str) -> Option<Definition<'a>> {
    let source = grouped.text;
    let is_def = matches!(name, "def" | "gdef" | "edef" | "xdef");
    let operator = name == "DeclareMathOperator";
    if !is_def && !operator && !DEFINITIONS.contains(&name) {
        return None;
    }
    let mut at = end + usize::from(source.as_bytes().get(end) == Some(&b'*'));
    at = skip_space(source, at);
    let defined = match grouped.group(at) {
        Some((inner, behind)) if !is_def => {
            at = behind;
            inner.trim().strip_prefix('\\')?
        }
        _ if source.as_bytes().get(at) == Some(&b'\\') => {
            let name = command_name(source, at);
            at += 1 + name.len();
            name
        }
        _ => return None,
    };
    let mut takes_arguments = false;
    if is_def {
        let parameters = source[at..].bytes().take(MOST_PARAMETER_BYTES).position(|byte| byte == b'{')?;
        let begin = at + parameters;
        takes_arguments = source[at..begin].contains('#');
        at = begin;
    } else {
        at = skip_space(source, at);
        while let Some(behind) = grouped.skip_option(at) {
            takes_arguments = true;
            at = skip_space(source, behind);
        }
    }
    let (body, end) = grouped.argument(at)?;
    let body = if operator { format!("\\operatorname{{{body}}}") } else { body.to_string() };
    Some(Definition { name: defined, body: (!takes_arguments).then_some(body), end })
}

struct Expander<'a> {
    macros: &'a HashMap<String, String>,
    /// Expansions in which no macro is left.
    whole: HashMap<&'a str, String>,
    /// Their bytes.
    whole_bytes: usize,
    limits: &'a MarkupLimits,
}

impl<'a> Expander<'a> {
    /// Expands every macro's body, those that it names first.
    fn resolve_all(&mut self) -> Result<(), MarkupError> {
        let mut names: Vec<&str> = self.macros.keys().map(String::as_str).collect();
        names.sort_unstable();
        for name in names {
            let mut open = vec![name];
            while let Some(&top) = open.last() {
                let body = &self.macros[top];
                let missing =
                    names_in(body).filter_map(|name| self.macros.get_key_value(name)).find(|(name, _)| {
                        !self.whole.contains_key(name.as_str()) && !open.contains(&name.as_str())
                    });
                match missing {
                    Some((name, _)) if open.len() < MOST_MACRO_DEPTH => open.push(name),
                    _ => {
                        let text = self.expand(body)?;
                        self.whole_bytes += text.len();
                        self.limits.check_bytes(self.whole_bytes)?;
                        self.whole.insert(top, text);
                        open.pop();
                    }
                }
            }
        }
        Ok(())
    }

    /// The text with the known expansions in the place of their macros.
    fn expand(&self, source: &str) -> Result<String, MarkupError> {
        let mut out = String::with_capacity(source.len());
        let mut finder = Finder::default();
        let mut at = 0;
        while let Some(found) = memchr::memchr(b'\\', &source.as_bytes()[at..]) {
            let start = at + found;
            out.push_str(&source[at..start]);
            let name = command_name(source, start);
            let mut end = start + 1 + name.len();
            if let Some(close) = end_of_verbatim(source, end, name, &mut finder) {
                out.push_str(&source[start..close]);
                at = close;
                continue;
            }
            match self.whole.get(name) {
                None => out.push_str(&source[start..end]),
                Some(text) => {
                    let keeps_space = text.contains("\\xspace");
                    out.push_str(&text.replace("\\xspace", ""));
                    if source[end..].starts_with("{}") {
                        end += 2;
                    } else if is_word(name) && !keeps_space {
                        end = skip_space(source, end);
                    }
                    // `\alpha` must not become the beginning of a longer name.
                    let last = text.rfind('\\').map_or("", |at| command_name(text, at));
                    let open = is_word(last) && text.ends_with(last);
                    if open && source[end..].starts_with(|c: char| c.is_ascii_alphabetic()) {
                        out.push(' ');
                    }
                    self.limits.check_bytes(out.len())?;
                }
            }
            at = end;
        }
        out.push_str(&source[at..]);
        self.limits.check_bytes(out.len())?;
        Ok(out)
    }
}

/// Names of the commands in a text.
fn names_in(source: &str) -> impl Iterator<Item = &str> {
    memchr::memchr_iter(b'\\', source.as_bytes()).map(|at| command_name(source, at))
}
