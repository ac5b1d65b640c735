//! LaTeX without comments and definitions as plain text.

use super::commands::{Command, Environment, command, environment, is_citation};
use super::scan::{Finder, Grouped, command_name, delimited, is_word, name_in_braces, skip_space};
use crate::error::{MarkupError, MarkupLimits};
use crate::writer::TextWriter;
use unicode_normalization::char::compose;

/// An open group or environment.
struct Frame<'a> {
    /// The environment's name; none for a group in braces.
    environment: Option<&'a str>,
    /// Its text is shown.
    shown: bool,
    /// Action at its end.
    end: FrameEnd,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum FrameEnd {
    Nothing,
    Paragraph,
    Parenthesis,
}

struct Renderer<'a> {
    grouped: Grouped<'a>,
    source: &'a str,
    at: usize,
    writer: TextWriter,
    frames: Vec<Frame<'a>>,
    finder: Finder,
    /// End of the paragraph of the last formula.
    paragraph_end: usize,
    limits: &'a MarkupLimits,
}

/// The text of a piece of LaTeX, up to `\end{document}`.
pub(super) fn text(source: &str, limits: &MarkupLimits) -> Result<String, MarkupError> {
    let mut renderer = Renderer {
        grouped: Grouped::new(source),
        source,
        at: 0,
        writer: TextWriter::default(),
        frames: Vec::new(),
        finder: Finder::default(),
        paragraph_end: 0,
        limits,
    };
    while renderer.step()? {}
    Ok(renderer.writer.finish())
}

impl<'a> Renderer<'a> {
    fn shown(&self) -> bool {
        self.frames.last().is_none_or(|frame| frame.shown)
    }

    fn push(&mut self, environment: Option<&'a str>, shown: bool, end: FrameEnd) -> Result<(), MarkupError> {
        self.frames.push(Frame { environment, shown, end });
        self.limits.check_depth(self.frames.len())
    }

    fn pop(&mut self) {
        let Some(frame) = self.frames.pop() else { return };
        match frame.end {
            FrameEnd::Paragraph if frame.shown => self.writer.paragraph(),
            FrameEnd::Parenthesis if frame.shown => self.writer.char(')'),
            _ => {}
        }
    }

    fn words(&mut self, text: &str) {
        if self.shown() {
            self.writer.words(text);
        }
    }

    fn verbatim(&mut self, text: &str) {
        if self.shown() {
            self.writer.verbatim(text);
        }
    }

    fn paragraph(&mut self) {
        if self.shown() {
            self.writer.paragraph();
        }
    }

    /// Reads one character, command or formula; false at the end.
    fn step(&mut self) -> Result<bool, MarkupError> {
        let rest = &self.source[self.at..];
        let Some(c) = rest.chars().next() else { return Ok(false) };
        match c {
            '\\' => return self.command(),
            '{' => {
                let shown = self.shown();
                self.push(None, shown, FrameEnd::Nothing)?;
            }
            '}' => {
                if self.frames.last().is_some_and(|frame| frame.environment.is_none()) {
                    self.pop();
                }
            }
            '$' => {
                self.dollars();
                return Ok(true);
            }
            '\n' => {
                let blank = rest.bytes().take_while(u8::is_ascii_whitespace).count();
                if rest[..blank].bytes().filter(|byte| *byte == b'\n').count() > 1 {
                    self.paragraph();
                } else {
                    self.words(" ");
                }
                self.at += blank;
                return Ok(true);
            }
            '~' => self.words(" "),
            '&' => self.words(" "),
            '`' | '\'' | '-' => {
                let (length, text) = typography(rest);
                self.words(text);
                self.at += length;
                return Ok(true);
            }
            _ => {
                let length =
                    rest.find(['\\', '{', '}', '$', '\n', '~', '&', '`', '\'', '-']).unwrap_or(rest.len());
                self.words(&rest[..length]);
                self.at += length;
                return Ok(true);
            }
        }
        self.at += c.len_utf8();
        Ok(true)
    }

    /// A formula between dollars; a dollar without its partner in the paragraph is a character.
    fn dollars(&mut self) {
        let rest = &self.source[self.at..];
        let mark = if rest.starts_with("$$") { "$$" } else { "$" };
        if self.paragraph_end <= self.at {
            self.paragraph_end = rest.find("\n\n").map_or(self.source.len(), |end| self.at + end);
        }
        let paragraph = self.paragraph_end - self.at;
        let mut from = mark.len();
        while let Some(found) = rest[..paragraph].get(from..).and_then(|text| text.find(['$', '\\'])) {
            let at = from + found;
            if rest.as_bytes()[at] == b'\\' {
                from = at + 1 + command_name(rest, at).len();
            } else if rest[at..].starts_with(mark) {
                let end = at + mark.len();
                self.formula(self.at + end, mark == "$$");
                return;
            } else {
                from = at + 1;
            }
        }
        self.words(mark);
        self.at += mark.len();
    }

    /// Adds the source up to `end` as it is.
    fn formula(&mut self, end: usize, display: bool) {
        let text = &self.source[self.at..end];
        if display {
            self.paragraph();
        }
        self.verbatim(text.trim());
        if display {
            self.paragraph();
        }
        self.at = end;
    }

    fn command(&mut self) -> Result<bool, MarkupError> {
        let name = command_name(self.source, self.at);
        let behind = self.at + 1 + name.len();
        match name {
            "begin" => return self.begin(behind),
            "end" => return Ok(self.end(behind)),
            "(" | "[" => {
                let close = if name == "(" { "\\)" } else { "\\]" };
                match self.finder.find(self.source, behind, close) {
                    Some(found) => self.formula(found + close.len(), name == "["),
                    None => self.at = behind,
                }
                return Ok(true);
            }
            _ => {}
        }
        if is_citation(name) {
            if self.shown() {
                self.writer.drop_space();
            }
            self.drop_arguments(behind, 1);
            return Ok(true);
        }
        match command(name) {
            Some(known) => self.known(name, known, behind)?,
            // Its options go, its arguments stay.
            None => {
                self.at = self.grouped.skip_options(behind);
                if self.at == behind && is_word(name) {
                    self.at = skip_space(self.source, behind);
                }
            }
        }
        Ok(true)
    }

    fn known(&mut self, name: &str, known: Command, behind: usize) -> Result<(), MarkupError> {
        self.at = behind;
        match known {
            Command::Heading => {
                self.paragraph();
                self.open_argument(self.shown(), FrameEnd::Paragraph)?;
            }
            Command::Caption => {
                // Only figures and tables hide text, and their captions are shown.
                self.writer.paragraph();
                if name == "captionof" {
                    self.drop_arguments(behind, 1);
                }
                self.open_argument(true, FrameEnd::Paragraph)?;
            }
            Command::Aside => {
                self.words(" (");
                self.open_argument(self.shown(), FrameEnd::Parenthesis)?;
            }
            Command::Drop(count) => {
                if matches!(name, "ref" | "eqref" | "autoref" | "cref" | "Cref" | "pageref") && self.shown() {
                    self.writer.drop_space();
                }
                self.drop_arguments(behind, count);
            }
            Command::Unwrap(count) => self.drop_arguments(behind, count),
            Command::Is(text) => {
                self.words(text);
                if is_word(name) {
                    self.at = skip_space(self.source, behind);
                }
            }
            Command::Accent(mark) => self.accent(mark, is_word(name)),
            Command::Line => {
                self.at = self.grouped.skip_options(behind);
                if self.shown() {
                    self.writer.line();
                }
            }
            Command::Paragraph => self.paragraph(),
            Command::Item => {
                if self.shown() {
                    self.writer.line();
                }
                self.words("- ");
            }
            Command::Verbatim => self.inline_code(behind),
        }
        Ok(())
    }

    /// Enters the argument behind star and options; nothing where there is none.
    fn open_argument(&mut self, shown: bool, end: FrameEnd) -> Result<(), MarkupError> {
        let start = skip_space(self.source, self.grouped.skip_options(skip_space(self.source, self.at)));
        if self.grouped.group(start).is_some() {
            self.at = start + 1;
            self.push(None, shown, end)?;
        } else if end == FrameEnd::Parenthesis {
            self.words(")");
        }
        Ok(())
    }

    /// Goes behind star, options and `count` arguments.
    fn drop_arguments(&mut self, behind: usize, count: usize) {
        self.at = self.grouped.skip_options(behind);
        for _ in 0..count {
            match self.grouped.argument(self.at) {
                Some((_, end)) => self.at = self.grouped.skip_options(end),
                None => return,
            }
        }
    }

    /// Puts a mark on the next letter.
    fn accent(&mut self, mark: char, word: bool) {
        let mut at = if word { skip_space(self.source, self.at) } else { self.at };
        let braced = self.grouped.group(at).filter(|(inner, _)| inner.len() <= 8);
        let letter = match braced {
            Some((inner, end)) => {
                at = end;
                inner.trim()
            }
            None => {
                let rest = &self.source[at..];
                let length = match rest.chars().next() {
                    Some('\\') => 1 + command_name(rest, 0).len(),
                    Some(c) if c.is_alphabetic() => c.len_utf8(),
                    _ => 0,
                };
                at += length;
                &rest[..length]
            }
        };
        // \'\i is an accent over a dotless letter, and Unicode's letter has the dot for itself.
        let letter = match letter {
            "\\i" => "i",
            "\\j" => "j",
            letter => letter,
        };
        let mut chars = letter.chars();
        match chars.next() {
            Some(base) if base != '\\' => {
                match compose(base, mark) {
                    Some(composed) => self.words(composed.encode_utf8(&mut [0; 4])),
                    None => self.words(&format!("{base}{mark}")),
                }
                let rest = chars.as_str().to_string();
                self.words(&rest);
            }
            _ => {}
        }
        self.at = at;
    }

    /// `\verb|code|`, and `\lstinline{code}`.
    fn inline_code(&mut self, behind: usize) {
        let at = self.grouped.skip_options(behind);
        if let Some((code, end)) = self.grouped.group(at) {
            self.verbatim(code);
            self.at = end;
            return;
        }
        if let Some((code, end)) = delimited(self.source, at) {
            self.verbatim(code);
            self.at = end;
        }
    }

    fn begin(&mut self, behind: usize) -> Result<bool, MarkupError> {
        let Some((name, end)) = name_in_braces(self.source, behind) else {
            self.at = behind;
            return Ok(true);
        };
        match environment(name) {
            Environment::Drop => {
                self.at =
                    self.finder.find_end(self.source, end, name).map_or(end, |found| found + name.len() + 6);
            }
            Environment::Math => match self.finder.find_end(self.source, end, name) {
                Some(found) => self.formula(found + name.len() + 6, true),
                None => self.at = end,
            },
            Environment::Verbatim => match self.finder.find_end(self.source, end, name) {
                Some(found) => {
                    let mut start = self.grouped.skip_options(end);
                    if name == "minted" {
                        start = self.grouped.argument(start).map_or(start, |(_, end)| end);
                    }
                    self.paragraph();
                    self.verbatim(
                        self.source.get(start..found).unwrap_or_default().trim_matches('\n').trim_end(),
                    );
                    self.paragraph();
                    self.at = found + name.len() + 6;
                }
                None => self.at = end,
            },
            Environment::Float => {
                self.at = self.grouped.skip_options(end);
                self.push(Some(name), false, FrameEnd::Nothing)?;
            }
            Environment::Text(arguments) => {
                self.paragraph();
                self.drop_arguments(end, arguments);
                let shown = self.shown();
                self.push(Some(name), shown, FrameEnd::Paragraph)?;
                if name == "abstract" {
                    self.words("Abstract");
                    self.paragraph();
                }
            }
        }
        Ok(true)
    }

    /// Closes the environment; false at the end of the document.
    fn end(&mut self, behind: usize) -> bool {
        let Some((name, end)) = name_in_braces(self.source, behind) else {
            self.at = behind;
            return true;
        };
        self.at = end;
        if name == "document" {
            return false;
        }
        if let Some(open) = self.frames.iter().rposition(|frame| frame.environment == Some(name)) {
            while self.frames.len() > open {
                self.pop();
            }
        }
        true
    }
}

/// Quotes and dashes as TeX sets them: the bytes that they take, and their character.
fn typography(rest: &str) -> (usize, &'static str) {
    match rest.as_bytes() {
        [b'`', b'`', ..] | [b'\'', b'\'', ..] => (2, "\""),
        [b'-', b'-', b'-', ..] => (3, "—"),
        [b'-', b'-', ..] => (2, "–"),
        [b'`' | b'\'', ..] => (1, "'"),
        _ => (1, "-"),
    }
}
