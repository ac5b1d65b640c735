//! Macros without arguments: their definitions are taken out of the source, and their names replaced by what they stand for.
//!
//! Every macro's full expansion is computed once and bounded, so definitions that double each other's text cost no more than the
//! limit. A macro that leads to itself stays as it is written.

use super::files::VERBATIM;
use super::scan::{Finder, Grouped, command_name, is_word, name_in_braces, name_with_at, skip_space};
use crate::error::{MarkupError, MarkupLimits};
use std::collections::HashMap;

/// Commands that define another one.
const DEFINITIONS: &[&str] = &["newcommand", "renewcommand", "providecommand", "DeclareRobustCommand"];
/// Most macros inside each other.
pub(super) const MOST_MACRO_DEPTH: usize = 64;
/// Longest list of parameters of `\def`.
const MOST_PARAMETER_BYTES: usize = 100;
/// Most macros of a paper; further definitions are taken out and not expanded.
pub(super) const MOST_MACROS: usize = 4096;
/// Longest definition that is expanded.
pub(super) const MOST_MACRO_BYTES: usize = 16 << 10;

/// A macro.
#[derive(Debug, Clone)]
pub(super) struct Macro {
    /// Number of its arguments; none where text delimits them.
    pub(super) arguments: Option<usize>,
    /// Value of its first argument where that may be left out.
    pub(super) default: Option<String>,
    pub(super) body: String,
    /// In its body `@` is a letter.
    pub(super) letter: bool,
    /// Its expansion holds a condition, or changes one.
    pub(super) conditional: bool,
}

/// The source without definitions and conditionals, macros without arguments expanded.
pub(super) fn expanded(source: &str, limits: &MarkupLimits) -> Result<String, MarkupError> {
    let (source, macros) = super::resolve::resolved(source, limits)?;
    if macros.is_empty() {
        return Ok(source);
    }
    let mut expander = Expander { macros: &macros, whole: HashMap::new(), whole_bytes: 0, limits };
    expander.resolve_all()?;
    expander.expand(&source)
}

/// Where the verbatim environment ends that `\begin` at `end` begins.
fn end_of_verbatim(source: &str, end: usize, name: &str, finder: &mut Finder) -> Option<usize> {
    let (environment, body) = (name == "begin").then(|| name_in_braces(source, end)).flatten()?;
    VERBATIM.contains(&environment).then(|| finder.find_end(source, body, environment)).flatten()
}

/// A definition of a command.
pub(super) struct Definition<'a> {
    pub(super) name: &'a str,
    pub(super) defined: Macro,
    pub(super) end: usize,
}

/// The definition that the command `name`, which ends at `end`, makes. `letter`: `@` is a letter.
pub(super) fn definition<'a>(
    grouped: &Grouped<'a>,
    end: usize,
    name: &str,
    letter: bool,
) -> Option<Definition<'a>> {
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
            let name = name_with_at(source, at, letter);
            at += 1 + name.len();
            name
        }
        _ => return None,
    };
    let mut arguments = Some(0);
    let mut default = None;
    if is_def {
        let length = source[at..].bytes().take(MOST_PARAMETER_BYTES).position(|byte| byte == b'{')?;
        let parameters = source[at..at + length].trim();
        let marks = parameters.matches('#').count();
        arguments = (parameters.len() == 2 * marks).then_some(marks);
        at += length;
    } else {
        at = skip_space(source, at);
        let mut options = 0;
        while let Some(behind) = grouped.skip_option(at) {
            let option = &source[at + 1..behind - 1];
            match options {
                0 => arguments = option.trim().parse().ok(),
                1 => default = Some(option.to_string()),
                _ => arguments = None,
            }
            options += 1;
            at = skip_space(source, behind);
        }
    }
    let (body, end) = grouped.argument(at)?;
    let body = if operator { format!("\\operatorname{{{body}}}") } else { body.to_string() };
    Some(Definition {
        name: defined,
        defined: Macro { arguments, default, body, letter, conditional: false },
        end,
    })
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
