//! The errors and warnings that the programs can print, found in the sources, and faults of style among them.
//!
//! A string literal is a message if it is the text of an `#[error]` attribute, an argument of a function that makes errors
//! (`Err`, `wrong`, `MediaError::damaged`), part of a variable, field or function with a name such as `problem` or `advice`,
//! part of an error's `Display`, or begins as messages do ("wanted …").

use crate::words::{code_lines, contains_word, sources};
use std::fs;
use std::path::Path;

/// Functions, macros and closures whose arguments are messages.
const MAKERS: &str = "Err bail complain corrupt damaged de_error error errors fail failed invalid map_err misuse ok_or \
                      ok_or_else outside problem refuse refused refusal reject unusable warn wrong";
/// Ends of the names of types whose values are messages.
const TYPES: [&str; 4] = ["Diagnostic", "Error", "Failure", "Refusal"];
/// Parts of the names of variables, fields, functions and lists whose literals are messages.
const NAMES: &str = "advice cause detail error found hint message problem reason refus remark remedy unusable wanted warning \
                     why wrong";
/// Beginnings of literals that are messages, wherever they are.
const BEGINNINGS: [&str; 3] = ["cannot ", "wanted ", "warning: "];
/// Functions and macros whose literals are no messages, wherever they are.
const OTHERS: &str = "assert assert_eq assert_ne contains debug_assert debug_assert_eq ends_with expect expect_err join panic \
                      replace split starts_with strip_prefix strip_suffix unreachable";
/// Words that a message does not begin with: the noun or the verb that the reader looks for comes first.
const OPENINGS: &str = "what of that those as who whoever whose such nothing nobody none";
/// Verbs of people, which programs and files do not do, and figures of speech.
const WORDS: &str = "says, said, asks, asked, knows, told, tells, speaks, wants, nobody, anew, stands, lies, goes on, on its way, \
                     is there already, is no";
/// Debug forms of enums.
const ENUMS: &str = "{kind:?} {state:?} {mode:?} {phase:?} {method:?}";
/// Parts of messages that look like a fault: an address of either kind, a phrase after the name of an operand, a kind that is
/// a string, the border of two WARC records.
const EXCEPTIONS: [&str; 4] = ["http(s)", "that of {} heads", "a record of kind {kind:?}", "WARC/1."];

/// An error or a warning, or a part of one.
struct Message {
    file: String,
    line: usize,
    kind: &'static str,
    text: String,
}

enum Token {
    Word(String),
    Text(String),
    Mark(char),
}

/// Length of the beginning of `source` whose characters pass.
fn run_of(source: &[char], pass: impl Fn(char) -> bool) -> usize {
    source.iter().take_while(|c| pass(**c)).count()
}

/// The value of the literal whose opening quote is at `*at`, which moves past it. `hashes` is `None` for an escaped one.
fn literal(source: &[char], at: &mut usize, hashes: Option<usize>) -> String {
    let mut text = String::new();
    *at += 1;
    while let Some(&c) = source.get(*at) {
        *at += 1;
        match (c, hashes) {
            ('"', None) => break,
            ('"', Some(n)) if run_of(&source[*at..], |c| c == '#') >= n => {
                *at += n;
                break;
            }
            ('\\', None) => {
                let escaped = source.get(*at).copied().unwrap_or(' ');
                *at += 1;
                match escaped {
                    '\n' => *at += run_of(&source[*at..], char::is_whitespace),
                    'n' => text.push('\n'),
                    other => text.push(other),
                }
            }
            (c, _) => text.push(c),
        }
    }
    text
}

/// Tokens of a source with their lines from 1, without comments, byte strings, characters and lifetimes.
fn tokens(source: &str) -> Vec<(usize, Token)> {
    let source: Vec<char> = source.chars().collect();
    let (mut found, mut at, mut line, mut counted) = (Vec::new(), 0, 1, 0);
    while at < source.len() {
        line += source[counted..at].iter().filter(|c| **c == '\n').count();
        counted = at;
        let rest = &source[at..];
        match rest {
            ['/', '/', ..] => at += run_of(rest, |c| c != '\n'),
            ['\'', '\\', _, after @ ..] => at += 3 + run_of(after, |c| c != '\'') + 1,
            ['\'', _, '\'', ..] => at += 3,
            ['"', ..] => found.push((line, Token::Text(literal(&source, &mut at, None)))),
            [c, ..] if c.is_alphanumeric() || *c == '_' => {
                let length = run_of(rest, |c| c.is_alphanumeric() || c == '_');
                let word: String = rest[..length].iter().collect();
                at += length;
                let hashes = run_of(&source[at..], |c| c == '#');
                if ["r", "br"].contains(&word.as_str()) && source.get(at + hashes) == Some(&'"') {
                    at += hashes;
                    found.push((line, Token::Text(literal(&source, &mut at, Some(hashes)))));
                } else if word == "b" && source.get(at) == Some(&'"') {
                    literal(&source, &mut at, None);
                } else {
                    found.push((line, Token::Word(word)));
                }
            }
            [c, ..] => {
                found.extend((!c.is_whitespace() && *c != '\'').then_some((line, Token::Mark(*c))));
                at += 1;
            }
            [] => {}
        }
    }
    found
}

/// A pair of brackets that is open.
#[derive(Default)]
struct Bracket {
    /// If literals inside are messages, as far as the words before the bracket decide.
    messages: Option<bool>,
    /// If literals up to the next comma or semicolon are messages: those of a variable or a field.
    named: bool,
    /// If messages inside are warnings.
    warns: bool,
}

fn is_message_name(name: &str) -> bool {
    let name = name.to_lowercase();
    NAMES.split(' ').any(|part| name.contains(part))
}

/// If the path before a bracket (`MediaError::damaged`, `self.warn`, the name of a macro) makes its literals messages.
fn maker(path: &str) -> Option<bool> {
    let is_type = |part: &str| TYPES.iter().any(|name| part.ends_with(name));
    let last = path.rsplit(['.', ':']).next().unwrap_or_default();
    if OTHERS.split(' ').any(|name| name == last) {
        return Some(false);
    }
    let listed = path.strip_suffix(".push").is_some_and(is_message_name);
    (listed || path.split("::").any(is_type) || MAKERS.split(' ').any(|name| name == last)).then_some(true)
}

/// If the words of an item (`fn problem`, `impl Display for MediaError`) make the literals of its body messages.
fn body(item: &[String]) -> Option<bool> {
    let last = item.last().map_or("", String::as_str);
    let display = item.iter().any(|word| word == "Display") && TYPES.iter().any(|name| last.ends_with(name));
    let function = item[0] == "fn" && item.get(1).is_some_and(|name| is_message_name(name));
    (display || function).then_some(true)
}

/// The messages of a source.
fn messages(file: &str, source: &str) -> Vec<Message> {
    let (mut found, mut open) = (Vec::new(), vec![Bracket::default()]);
    // The path directly before a token, and the words of an item whose body has not begun, with its depth.
    let (mut path, mut item, mut binds) = (String::new(), None::<(usize, Vec<String>)>, false);
    let tokens = tokens(source);
    for (index, (line, token)) in tokens.iter().enumerate() {
        let depth = open.len();
        let mark =
            |n: usize, mark: char| matches!(tokens.get(index + n), Some((_, Token::Mark(c))) if *c == mark);
        let top = open.last_mut().expect("the outermost is never closed");
        match token {
            Token::Word(word) => {
                match word.as_str() {
                    "fn" | "impl" => item = Some((depth, vec![word.clone()])),
                    "let" | "const" | "static" => binds = true,
                    "mut" | "Some" | "Ok" => {}
                    _ => {
                        let field = depth > 1 && mark(1, ':') && !mark(2, ':');
                        top.named |= (std::mem::take(&mut binds) || field) && is_message_name(word);
                        item.iter_mut().for_each(|(_, words)| words.push(word.clone()));
                    }
                }
                path = if path.ends_with([':', '.']) { path + word } else { word.clone() };
                continue;
            }
            Token::Mark(c @ (':' | '.')) if !path.is_empty() => {
                path.push(*c);
                continue;
            }
            Token::Mark('!') => continue,
            Token::Mark(c @ ('(' | '[' | '{')) => {
                let begun = item.take_if(|(at, _)| *c == '{' && *at == depth);
                let messages = begun.map_or_else(|| maker(&path), |(_, words)| body(&words));
                let warns = path.contains("warn") || path.contains("remark");
                open.push(Bracket { messages, named: false, warns });
            }
            Token::Mark(')' | ']' | '}') => open.truncate((depth - 1).max(1)),
            Token::Mark(c) => {
                if matches!(c, ';' | ',') {
                    (top.named, binds) = (false, false);
                }
                item.take_if(|(at, _)| *c == ';' && *at == depth);
            }
            Token::Text(text) => {
                let words =
                    text.split_whitespace().filter(|word| word.chars().any(char::is_alphabetic)).count();
                let begins =
                    || BEGINNINGS.iter().any(|b| text.starts_with(b) || text.contains(&format!(": {b}")));
                let decided = open.iter().rev().find_map(|b| if b.named { Some(true) } else { b.messages });
                if words > 1 && decided.unwrap_or_else(begins) {
                    let warns = text.starts_with("warning: ") || open.iter().any(|b| b.warns);
                    let kind = if warns { "warning" } else { "error" };
                    found.push(Message { file: file.into(), line: *line, kind, text: text.clone() });
                }
            }
        }
        path.clear();
    }
    found
}

/// The messages of all crates, by file.
fn all(root: &Path) -> Vec<Message> {
    let mut files = Vec::new();
    sources(&root.join("crates"), &mut files);
    files.sort();
    let mut found = Vec::new();
    for file in files {
        let shown = file.strip_prefix(root).unwrap_or(&file).to_string_lossy().into_owned();
        // The pages of the report are prose.
        let page = shown.starts_with("crates/report/") && !shown.ends_with("/error.rs");
        let test = !shown.contains("/src/") || shown.ends_with("tests.rs") || shown.contains("/tests/");
        if page || test || shown == "crates/bessemer/src/commands/report.rs" {
            continue;
        }
        let text = fs::read_to_string(&file).unwrap_or_default();
        let mut code = vec![""; text.lines().count()];
        code_lines(&text).for_each(|(number, line)| code[number] = line);
        found.extend(messages(&shown, &code.join("\n")));
    }
    found
}

/// Fault of a message, as far as its words show it.
fn fault(text: &str) -> Option<String> {
    let text = text.strip_prefix("warning: ").unwrap_or(text).trim();
    let first = text.split(|c: char| c.is_whitespace() || ":;,'".contains(c)).next().unwrap_or_default();
    let mut letters = first.chars();
    let capital = letters.next().is_some_and(char::is_uppercase) && letters.all(char::is_lowercase);
    if EXCEPTIONS.iter().any(|part| text.contains(part)) {
        return None;
    }
    if capital && first != "Parquet" {
        return Some(format!("begins with the capital letter of {first:?}"));
    }
    if OPENINGS.split(' ').any(|word| word == first) {
        return Some(format!("begins with {first:?}"));
    }
    if text.ends_with('.') {
        return Some("ends with a full stop".into());
    }
    if text.contains("(s)") || text.contains("{} others") {
        return Some("disagrees with the number 1 (see `units::counted`)".into());
    }
    if let Some(name) = ENUMS.split(' ').find(|name| text.contains(name)) {
        return Some(format!("prints an enum as {name}"));
    }
    let words: String = text.split('}').map(|part| part.split('{').next().unwrap_or_default()).collect();
    let words = words.replace("there is no", "").replace("is no longer", "");
    WORDS.split(", ").find(|word| contains_word(&words, word)).map(|word| format!("contains {word:?}"))
}

/// One line for each message with a fault.
pub(crate) fn check(root: &Path) -> Vec<String> {
    let line = |m: &Message| Some(format!("{}:{}: {} in {:?}", m.file, m.line, fault(&m.text)?, m.text));
    all(root).iter().filter_map(line).collect()
}

/// `cargo xtask messages`: the messages whose paths or texts contain every one of `parts`.
pub(crate) fn run(root: &Path, parts: &[String]) -> Result<(), String> {
    let mut found = all(root);
    found.retain(|m| parts.iter().all(|part| m.file.contains(part) || m.text.contains(part)));
    for m in &found {
        println!("{}:{}: {}: {}", m.file, m.line, m.kind, m.text.replace('\n', "\\n"));
    }
    println!("{} messages", found.len());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_found_by_who_makes_them() {
        let source = r##"
            #[error("cannot open {path}")]
            impl Display for TarError { fn fmt(&self) { write!(f, "byte {}: too long") } }
            fn f<'a>(c: char) -> Result<()> {
                // Err("a comment is not found")
                let text = "other prose is not found";
                let why = if c == '"' { "no such file" } else { "a directory" };
                remarks.push("the file \
                              ends early");
                let seen = value.expect("a value that is there").map(|x| x == "two words");
                println!("warning: low memory");
                Err(format!(r#"in {}: "quoted" text"#))
            }"##;
        let found: Vec<_> = messages("f", source).into_iter().map(|m| (m.line, m.kind, m.text)).collect();
        let wanted = [
            (2, "error", "cannot open {path}"),
            (3, "error", "byte {}: too long"),
            (7, "error", "no such file"),
            (7, "error", "a directory"),
            (8, "warning", "the file ends early"),
            (11, "warning", "warning: low memory"),
            (12, "error", "in {}: \"quoted\" text"),
        ];
        assert_eq!(found, wanted.map(|(line, kind, text)| (line, kind, text.to_owned())));
    }

    #[test]
    fn faults_are_named() {
        for text in [
            "{path} is no directory",
            "Cannot open it",
            "no such file.",
            "found {} byte(s)",
            "none of them fits",
        ] {
            assert!(fault(text).is_some(), "{text}");
        }
        for text in ["MPI has ended", "no such file", "there is no rank {asked}", "cannot open {path}: {e}"] {
            assert_eq!(fault(text), None, "{text}");
        }
    }
}
