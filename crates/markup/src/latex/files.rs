//! From the files of an archive to one source: the main file, comments removed, other files in the place of `\input`.

use super::scan::{Finder, command_name, delimited, find_begin_document, name_in_braces, skip_space};
use crate::error::{MarkupError, MarkupLimits};
use std::collections::HashMap;

/// Most files inside each other.
const MOST_INPUT_DEPTH: usize = 16;
/// Most files that one paper reads, each as often as it is named.
const MOST_INPUTS: usize = 1000;
/// Environments whose content is no LaTeX, so `%` begins no comment there.
pub(super) const VERBATIM: &[&str] = &["verbatim", "verbatim*", "lstlisting", "minted", "Verbatim", "alltt"];
/// Commands that read another file.
const INPUTS: &[&str] = &["input", "include", "subfile", "subfileinclude"];

/// The source of the paper's main file with the files that it reads in their places.
pub(super) fn joined(files: &[(String, String)], limits: &MarkupLimits) -> Result<String, MarkupError> {
    limits.check_bytes(files.iter().map(|(_, text)| text.len()).sum())?;
    let clean: HashMap<&str, String> =
        files.iter().map(|(name, text)| (name.as_str(), without_comments(text))).collect();
    let main = main_file(files, &clean).ok_or(MarkupError::NoDocument("no file has \\begin{document}"))?;
    let mut joined = String::new();
    // Files that are being read: name, position.
    let mut open: Vec<(&str, usize)> = vec![(main, 0)];
    let mut inputs = 0;
    while let Some((name, at)) = open.pop() {
        let Some(source) = clean.get(name) else { continue };
        let Some(input) = next_input(source, at) else {
            joined.push_str(&source[at..]);
            limits.check_bytes(joined.len())?;
            continue;
        };
        joined.push_str(&source[at..input.start]);
        limits.check_bytes(joined.len())?;
        open.push((name, input.end));
        let found = resolve(&clean, input.name);
        // A file that reads itself is not read again.
        let found = found.filter(|found| open.iter().all(|(name, _)| name != found));
        if let Some(found) = found
            && open.len() < MOST_INPUT_DEPTH
            && inputs < MOST_INPUTS
        {
            inputs += 1;
            open.push((found, 0));
        }
    }
    Ok(joined)
}

/// A command that reads a file.
struct Input<'a> {
    start: usize,
    end: usize,
    name: &'a str,
}

/// The next command at or behind `from` that reads a file.
fn next_input(source: &str, mut from: usize) -> Option<Input<'_>> {
    while let Some(found) = source[from..].find('\\') {
        let start = from + found;
        let name = command_name(source, start);
        from = start + 1 + name.len();
        if !INPUTS.contains(&name) {
            continue;
        }
        if let Some((name, end)) = name_in_braces(source, from) {
            return Some(Input { start, end, name });
        }
        // TeX's own form: the name ends at white space.
        let begin = skip_space(source, from);
        let length = source[begin..].find(|c: char| c.is_whitespace() || c == '\\' || c == '}').unwrap_or(0);
        if length > 0 {
            return Some(Input { start, end: begin + length, name: &source[begin..begin + length] });
        }
    }
    None
}

/// The file of the archive that a name means, with `.tex` appended or as it is. The end of a path is enough, since papers are
/// packed with and without a folder around them.
fn resolve<'a>(files: &HashMap<&'a str, String>, name: &str) -> Option<&'a str> {
    let name = name.trim_start_matches("./").trim_matches('"');
    for wanted in [format!("{name}.tex"), name.to_string()] {
        let below = format!("/{wanted}");
        let mut found: Vec<&str> =
            files.keys().copied().filter(|file| *file == wanted || file.ends_with(&below)).collect();
        found.sort_unstable_by_key(|file| (file.len(), *file));
        if let Some(found) = found.first() {
            return Some(found);
        }
    }
    None
}

/// The file with `\begin{document}` that no other file reads; of several the longest, of equal ones the first by name.
fn main_file<'a>(files: &'a [(String, String)], clean: &HashMap<&'a str, String>) -> Option<&'a str> {
    let whole = |name: &&str| clean.get(name).is_some_and(|text| find_begin_document(text).is_some());
    let mut candidates: Vec<&str> = files.iter().map(|(name, _)| name.as_str()).filter(whole).collect();
    if candidates.len() > 1 {
        let mut read = Vec::new();
        for text in clean.values() {
            let mut from = 0;
            for _ in 0..MOST_INPUTS {
                let Some(input) = next_input(text, from) else { break };
                read.extend(resolve(clean, input.name));
                from = input.end;
            }
        }
        let unread: Vec<&str> = candidates.iter().copied().filter(|name| !read.contains(name)).collect();
        if !unread.is_empty() {
            candidates = unread;
        }
    }
    candidates
        .into_iter()
        .min_by_key(|name| (std::cmp::Reverse(clean.get(name).map_or(0, String::len)), *name))
}

/// The source without comments: `%` to the end of its line, the line end and the white space that begins the next line.
fn without_comments(source: &str) -> String {
    let source = source.replace("\r\n", "\n").replace('\r', "\n");
    let mut out = String::with_capacity(source.len());
    let mut finder = Finder::default();
    let mut at = 0;
    while let Some(found) = memchr::memchr2(b'%', b'\\', &source.as_bytes()[at..]) {
        let next = at + found;
        out.push_str(&source[at..next]);
        if source.as_bytes()[next] == b'%' {
            let end = source[next..].find('\n').map_or(source.len(), |end| next + end + 1);
            let begins_line = out.is_empty() || out.ends_with('\n');
            at = end;
            let indent = source[at..].bytes().take_while(|b| matches!(b, b' ' | b'\t')).count();
            // An empty line behind a comment still ends the paragraph.
            let paragraph = source.as_bytes().get(at + indent) == Some(&b'\n');
            if !begins_line && paragraph {
                out.push('\n');
            } else if !begins_line {
                at += indent;
            }
            continue;
        }
        let name = command_name(&source, next);
        let mut end = next + 1 + name.len();
        if name == "verb"
            && let Some((_, behind)) = delimited(&source, end)
        {
            end = behind;
        }
        if name == "begin"
            && let Some((environment, _)) = name_in_braces(&source, end)
            && VERBATIM.contains(&environment)
            && let Some(close) = finder.find_end(&source, end, environment)
        {
            end = close;
        }
        out.push_str(&source[next..end]);
        at = end;
    }
    out.push_str(&source[at..]);
    out
}
