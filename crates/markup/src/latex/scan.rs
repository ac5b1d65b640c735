//! Positions in LaTeX source: commands, groups, arguments, ends of environments. Each answer takes constant or logarithmic time,
//! or one search of the source for each mark that does not occur.

use std::collections::HashSet;

/// Longest name of an environment or a file.
const NAME_BYTES: usize = 256;
/// Longest optional argument.
const OPTION_BYTES: usize = 400;

/// The name of the command whose backslash is at `at`: letters, or one other character. Empty at the end of the source.
pub(super) fn command_name(source: &str, at: usize) -> &str {
    let rest = &source[at + 1..];
    let letters = rest.bytes().take_while(u8::is_ascii_alphabetic).count();
    let length = if letters > 0 { letters } else { rest.chars().next().map_or(0, char::len_utf8) };
    &rest[..length]
}

/// Name of the command whose backslash is at `at`; `@` is a letter where `letter` holds, as behind `\makeatletter`.
pub(super) fn name_with_at(source: &str, at: usize, letter: bool) -> &str {
    let name = command_name(source, at);
    if !letter || !(is_word(name) || name == "@") {
        return name;
    }
    let rest = &source[at + 1..];
    &rest[..rest.bytes().take_while(|byte| byte.is_ascii_alphabetic() || *byte == b'@').count()]
}

/// Whether a command has a name of letters: the white space that follows such a name separates nothing.
pub(super) fn is_word(name: &str) -> bool {
    name.as_bytes().first().is_some_and(u8::is_ascii_alphabetic)
}

/// The code between two equal characters at `at` on one line, as in `\verb|code|`, and the position after the second one.
pub(super) fn delimited(source: &str, at: usize) -> Option<(&str, usize)> {
    let rest = &source[at..source.floor_char_boundary(at + OPTION_BYTES)];
    let line = rest.split('\n').next().unwrap_or(rest);
    let mark = line.chars().next().filter(|mark| !mark.is_alphanumeric() && !mark.is_whitespace())?;
    let start = mark.len_utf8();
    let length = line[start..].find(mark)?;
    Some((&line[start..start + length], at + 2 * start + length))
}

/// The position after white space that holds at most one line end.
pub(super) fn skip_space(source: &str, mut at: usize) -> usize {
    let mut lines = 0;
    while let Some(&byte) = source.as_bytes().get(at) {
        lines += usize::from(byte == b'\n');
        if !byte.is_ascii_whitespace() || lines > 1 {
            break;
        }
        at += 1;
    }
    at
}

/// A name in braces at `at`, as `\begin` and `\input` take it, and the position after the closing brace.
pub(super) fn name_in_braces(source: &str, at: usize) -> Option<(&str, usize)> {
    let start = skip_space(source, at);
    let rest = source[start..].strip_prefix('{')?;
    let length = rest.bytes().take(NAME_BYTES).position(|byte| matches!(byte, b'{' | b'}' | b'\n'))?;
    rest[length..].starts_with('}').then(|| (rest[..length].trim(), start + length + 2))
}

/// Start and end of `\begin{document}`.
pub(super) fn find_begin_document(source: &str) -> Option<(usize, usize)> {
    let mut from = 0;
    while let Some(found) = source[from..].find("\\begin") {
        let at = from + found;
        from = at + "\\begin".len();
        if let Some(("document", end)) = name_in_braces(source, from) {
            return Some((at, end));
        }
    }
    None
}

/// Source whose groups in braces are known.
pub(super) struct Grouped<'a> {
    pub(super) text: &'a str,
    /// Positions of `{` and of the `}` that closes it, in order.
    groups: Vec<(usize, usize)>,
}

impl<'a> Grouped<'a> {
    /// Finds the groups of a source.
    pub(super) fn new(text: &'a str) -> Grouped<'a> {
        let (mut groups, mut open) = (Vec::new(), Vec::new());
        let mut escaped_until = 0;
        for at in memchr::memchr3_iter(b'{', b'}', b'\\', text.as_bytes()) {
            if at < escaped_until {
                continue;
            }
            match text.as_bytes()[at] {
                b'\\' => escaped_until = at + 2,
                b'{' => open.push(at),
                _ => groups.extend(open.pop().map(|start| (start, at))),
            }
        }
        groups.sort_unstable();
        Grouped { text, groups }
    }

    /// The content of the group at `at`, and the position after the group.
    pub(super) fn group(&self, at: usize) -> Option<(&'a str, usize)> {
        let found = self.groups.binary_search_by_key(&at, |(start, _)| *start).ok()?;
        let (start, end) = self.groups[found];
        Some((&self.text[start + 1..end], end + 1))
    }

    /// The content of the group that follows white space at `at`, and the position after the group.
    pub(super) fn argument(&self, at: usize) -> Option<(&'a str, usize)> {
        self.group(skip_space(self.text, at))
    }

    /// Returns the position after the optional argument `[...]` that begins at `at`, or `None` if none begins there.
    pub(super) fn skip_option(&self, at: usize) -> Option<usize> {
        if self.text.as_bytes().get(at) != Some(&b'[') {
            return None;
        }
        let mut position = at + 1;
        while position < at + OPTION_BYTES {
            match self.text.as_bytes().get(position)? {
                b']' => return Some(position + 1),
                b'{' => position = self.group(position)?.1,
                b'\\' => position += 2,
                // A bracket of running text is no argument.
                b'\n' if self.text.as_bytes().get(position + 1) == Some(&b'\n') => return None,
                _ => position += 1,
            }
        }
        None
    }

    /// The position after a star and optional arguments.
    pub(super) fn skip_options(&self, mut at: usize) -> usize {
        at += usize::from(self.text.as_bytes().get(at) == Some(&b'*'));
        while let Some(end) = self.skip_option(at) {
            at = end;
        }
        at
    }

    /// The argument in braces of the first command of this name.
    pub(super) fn argument_of(&self, name: &str) -> Option<&'a str> {
        let mut from = 0;
        while let Some(found) = self.text[from..].find('\\') {
            let at = from + found;
            let found = command_name(self.text, at);
            from = at + 1 + found.len();
            if found == name {
                return self.argument(self.skip_options(from)).map(|(argument, _)| argument);
            }
        }
        None
    }
}

/// Looks for marks, and remembers those that do not come any more: a source of many beginnings without an end is searched once.
#[derive(Default)]
pub(super) struct Finder {
    absent: HashSet<String>,
}

impl Finder {
    /// Position of the next `mark` at or after `at`.
    pub(super) fn find(&mut self, source: &str, at: usize, mark: &str) -> Option<usize> {
        if self.absent.contains(mark) {
            return None;
        }
        let found = source[at..].find(mark).map(|found| at + found);
        if found.is_none() {
            self.absent.insert(mark.to_string());
        }
        found
    }

    /// Position of the `\end` of the environment `name`.
    pub(super) fn find_end(&mut self, source: &str, at: usize, name: &str) -> Option<usize> {
        self.find(source, at, &format!("\\end{{{name}}}"))
    }
}
