//! Texts that a recipe was read from, and places in them.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

/// Longest part of a source line that an error shows, in characters.
const SHOWN_LINE: usize = 110;

/// What role a text plays in the layering: later ones override earlier ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    /// The file named by `base = "…"`.
    Base,
    /// The recipe file itself.
    File,
    /// One `--set key=value`.
    Set,
    /// One key that a plan of the layout chose.
    Plan,
}

/// One text: a file or the argument of one `--set`.
#[derive(Debug, Clone)]
pub(crate) struct Source {
    /// Path as given, or the `--set` argument.
    pub(crate) name: String,
    pub(crate) text: String,
    pub(crate) role: Role,
    /// Part of the program, not a file.
    pub(crate) is_builtin: bool,
    line_starts: Vec<usize>,
}

impl Source {
    pub(crate) fn new(name: String, text: String, role: Role) -> Arc<Source> {
        let line_starts = std::iter::once(0)
            .chain(text.bytes().enumerate().filter(|(_, b)| *b == b'\n').map(|(i, _)| i + 1));
        Arc::new(Source { line_starts: line_starts.collect(), name, text, role, is_builtin: false })
    }

    /// A recipe that the program carries.
    pub(crate) fn builtin(name: String, text: String, role: Role) -> Arc<Source> {
        let source = Source::new(name, text, role);
        Arc::new(Source { is_builtin: true, ..Arc::unwrap_or_clone(source) })
    }

    /// One-based line of a byte offset.
    fn line(&self, offset: usize) -> usize {
        self.line_starts.partition_point(|&start| start <= offset).max(1)
    }

    fn line_text(&self, line: usize) -> (usize, &str) {
        let start = self.line_starts[line - 1];
        let end = self.line_starts.get(line).copied().unwrap_or(self.text.len());
        (start, self.text[start..end].trim_end_matches(['\n', '\r']))
    }
}

/// A span of bytes in a source.
#[derive(Debug, Clone)]
pub(crate) struct Place {
    pub(crate) source: Arc<Source>,
    pub(crate) span: Range<usize>,
}

impl Place {
    pub(crate) fn new(source: &Arc<Source>, span: Range<usize>) -> Place {
        Place { source: Arc::clone(source), span }
    }

    pub(crate) fn line(&self) -> usize {
        self.source.line(self.span.start)
    }

    /// The place as a user meets it.
    pub(crate) fn location(&self) -> Location {
        let text = &self.source.text;
        let floor = |mut i: usize| {
            i = i.min(text.len());
            while !text.is_char_boundary(i) {
                i -= 1;
            }
            i
        };
        let start = floor(self.span.start);
        let line = self.source.line(start);
        let (line_start, line_text) = self.source.line_text(line);
        let in_line = (start - line_start).min(line_text.len());
        let end = floor(self.span.end).saturating_sub(line_start).clamp(in_line, line_text.len());
        let before = line_text[..in_line].chars().count();
        let marked = line_text[in_line..end].chars().count().max(1);
        // A long line is shown as a window that begins a little before the mark.
        let skip = if before + marked > SHOWN_LINE { before.saturating_sub(20) } else { 0 };
        // Control characters and marks that change the direction of text could make a terminal lie.
        let harmful =
            |c: char| c.is_control() || matches!(c, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
        let shown = line_text.chars().skip(skip).take(SHOWN_LINE).map(|c| if harmful(c) { ' ' } else { c });
        let shown: String = shown.collect();
        Location {
            file: self.source.name.clone(),
            line,
            column: before + 1,
            shown,
            caret: before - skip,
            width: marked.min(SHOWN_LINE.saturating_sub(before - skip)).max(1),
            is_set: self.source.role == Role::Set,
        }
    }
}

/// Where in a text something stands, with the line itself, ready to be shown.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Location {
    /// The file's path, or the argument of `--set`.
    pub file: String,
    /// Line, counted from one.
    pub line: usize,
    /// Column in characters, counted from one.
    pub column: usize,
    /// The line's text (a window of it if it is long), control characters replaced by spaces.
    pub shown: String,
    /// Characters of `shown` before the mark.
    pub caret: usize,
    /// Characters marked, at least one.
    pub width: usize,
    /// True when the text is the argument of `--set` and no file.
    pub is_set: bool,
}

impl fmt::Display for Location {
    /// `file:line:column`, or `--set` and the column.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_set {
            write!(f, "--set:{}", self.column)
        } else {
            write!(f, "{}:{}:{}", self.file, self.line, self.column)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str, span: Range<usize>) -> Location {
        Place::new(&Source::new("f.toml".into(), text.into(), Role::File), span).location()
    }

    #[test]
    fn lines_and_columns_count_from_one_in_characters() {
        let text = "a = 1\nµé = 2\r\nlast";
        let second = text.find('é').unwrap();
        let l = at(text, second..second + 2);
        assert_eq!((l.line, l.column, l.width, l.shown.as_str()), (2, 2, 1, "µé = 2"));
        let l = at(text, text.len()..text.len());
        assert_eq!((l.line, l.column, l.width), (3, 5, 1));
    }

    #[test]
    fn spans_out_of_range_or_inside_a_character_do_not_panic() {
        for text in ["", "\n", "é", "ab\ncd", "\u{1F600}x"] {
            for start in 0..8 {
                for end in start..9 {
                    let l = at(text, start..end);
                    assert!(l.line >= 1 && l.column >= 1 && l.width >= 1);
                }
            }
        }
    }

    #[test]
    fn a_long_line_is_shown_as_a_window_around_the_mark() {
        let text = format!("{}MARK{}", "x".repeat(5000), "y".repeat(5000));
        let l = at(&text, 5000..5004);
        assert_eq!(l.column, 5001);
        assert_eq!(l.shown.chars().skip(l.caret).take(l.width).collect::<String>(), "MARK");
        assert!(l.shown.chars().count() <= SHOWN_LINE);
    }
}
