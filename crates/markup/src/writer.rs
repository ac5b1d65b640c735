//! Plain text that grows by words, lines and paragraphs.

/// White space that precedes the next word.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
enum Gap {
    #[default]
    None,
    Space,
    Line,
    Paragraph,
}

/// Collects text; runs of white space become one space, and gaps are written only between words.
#[derive(Debug, Default)]
pub(crate) struct TextWriter {
    out: String,
    gap: Gap,
}

impl TextWriter {
    /// Adds words; white space in `text` separates words and nothing else.
    pub(crate) fn words(&mut self, text: &str) {
        for c in text.chars() {
            self.char(c);
        }
    }

    /// Adds a character of running text.
    pub(crate) fn char(&mut self, c: char) {
        if c.is_whitespace() {
            self.gap = self.gap.max(Gap::Space);
        } else if c != '\0' && c != '\u{feff}' && c != '\u{ad}' {
            self.fill_gap();
            self.out.push(c);
        }
    }

    /// Adds text as it is, with its white space.
    pub(crate) fn verbatim(&mut self, text: &str) {
        if !text.is_empty() {
            self.fill_gap();
            self.out.push_str(text);
        }
    }

    /// Begins a new line before the next word.
    pub(crate) fn line(&mut self) {
        self.gap = self.gap.max(Gap::Line);
    }

    /// Begins a new paragraph before the next word.
    pub(crate) fn paragraph(&mut self) {
        self.gap = Gap::Paragraph;
    }

    /// Forgets the space before the next word, as a tie before a removed citation leaves it.
    pub(crate) fn drop_space(&mut self) {
        if self.gap == Gap::Space {
            self.gap = Gap::None;
        }
    }

    /// Bytes so far.
    pub(crate) fn len(&self) -> usize {
        self.out.len()
    }

    /// Text from `start`, a length that [`Self::len`] returned.
    pub(crate) fn from(&self, start: usize) -> &str {
        self.out.get(start..).unwrap_or_default()
    }

    /// Removes the text behind a length that [`Self::len`] returned; the gap before that text stays.
    pub(crate) fn truncate(&mut self, length: usize) {
        let gap = match self.from(length) {
            removed if removed.starts_with("\n\n") => Gap::Paragraph,
            removed if removed.starts_with('\n') => Gap::Line,
            removed if removed.starts_with(' ') => Gap::Space,
            _ => Gap::None,
        };
        self.out.truncate(length);
        self.gap = self.gap.max(gap);
    }

    /// The text.
    pub(crate) fn finish(mut self) -> String {
        self.out.truncate(self.out.trim_end().len());
        self.out
    }

    fn fill_gap(&mut self) {
        if !self.out.is_empty() {
            match self.gap {
                Gap::None => {}
                Gap::Space => self.out.push(' '),
                Gap::Line => self.out.push('\n'),
                Gap::Paragraph => self.out.push_str("\n\n"),
            }
        }
        self.gap = Gap::None;
    }
}
