//! How much of a program is comment: a walk over the text that knows comments and strings of a family of languages.
//!
//! ```text
//! c        // to the end of the line, /* */;  strings in " ' and `          C, Java, JavaScript, Go, Rust, ...
//! hash     # to the end of the line;          strings in " and '           shell, Ruby, R, YAML, TOML, ...
//! python   hash, and strings in triple quotes that begin a line (docstrings), without their quotes
//! sql      -- to the end of the line, /* */;  strings in " and '
//! ```
//!
//! No parser: a division that looks like the end of a comment in a string of a language with other strings is seen as such.

use bessemer_text::unicode::char_count;

/// A family of languages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Syntax {
    C,
    Hash,
    Python,
    Sql,
}

impl Syntax {
    pub(crate) const ALL: [Syntax; 4] = [Syntax::C, Syntax::Hash, Syntax::Python, Syntax::Sql];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Syntax::C => "c",
            Syntax::Hash => "hash",
            Syntax::Python => "python",
            Syntax::Sql => "sql",
        }
    }

    fn line_mark(self) -> &'static str {
        match self {
            Syntax::C => "//",
            Syntax::Hash | Syntax::Python => "#",
            Syntax::Sql => "--",
        }
    }

    fn has_blocks(self) -> bool {
        matches!(self, Syntax::C | Syntax::Sql)
    }

    fn quotes(self) -> &'static [u8] {
        match self {
            Syntax::C => b"\"'`",
            Syntax::Hash | Syntax::Python | Syntax::Sql => b"\"'",
        }
    }
}

/// Characters of comments, their marks included; of docstrings without the quotes.
pub(crate) fn comment_chars(text: &str, syntax: Syntax) -> u64 {
    let bytes = text.as_bytes();
    let (mut found, mut at, mut line_start) = (0, 0, true);
    // Where a quote has no other one to close it, no further one of its kind is looked at up to here.
    let mut open_until = 0;
    while at < bytes.len() {
        let rest = &text[at..];
        let byte = bytes[at];
        if rest.starts_with(syntax.line_mark()) {
            let end = memchr::memchr(b'\n', rest.as_bytes()).unwrap_or(rest.len());
            found += char_count(&rest[..end]) as u64;
            at += end;
        } else if syntax.has_blocks() && rest.starts_with("/*") {
            let end = rest[2..].find("*/").map_or(rest.len(), |end| end + 4);
            found += char_count(&rest[..end]) as u64;
            at += end;
        } else if syntax == Syntax::Python && (rest.starts_with("\"\"\"") || rest.starts_with("'''")) {
            let inner = rest[3..].find(&rest[..3]).map_or(&rest[3..], |end| &rest[3..3 + end]);
            found += if line_start { char_count(inner) as u64 } else { 0 };
            at += (inner.len() + 6).min(rest.len());
            line_start = false;
        } else if at >= open_until && syntax.quotes().contains(&byte) {
            line_start = false;
            match string(rest.as_bytes(), byte) {
                Ok(length) => at += length,
                Err(looked_at) => {
                    open_until = at + looked_at;
                    at += 1;
                }
            }
        } else {
            line_start = byte == b'\n' || (line_start && byte.is_ascii_whitespace());
            at += rest.chars().next().map_or(1, char::len_utf8);
        }
    }
    found
}

/// Length of the string at the beginning of `bytes`, or how far no end of it was found: then it is no string (an
/// apostrophe). Strings in `"` and `'` end with their line.
fn string(bytes: &[u8], quote: u8) -> Result<usize, usize> {
    let mut at = 1;
    while let Some(&byte) = bytes.get(at) {
        match byte {
            b'\\' => at += 1,
            b'\n' if quote != b'`' => return Err(at),
            _ if byte == quote => return Ok(at + 1),
            _ => {}
        }
        at += 1;
    }
    Err(bytes.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_of_each_family() {
        for (syntax, text, expected) in [
            (Syntax::C, "int a; // sum\n", "// sum".len()),
            (Syntax::C, "/* a\n b */ x = \"// no\" + '/*'; // yes", "/* a\n b */// yes".len()),
            (Syntax::C, "let s = `//\n//`; don't /* é", "/* ".len() + 1),
            (Syntax::C, "\"a \\\" // b\"", 0),
            (Syntax::C, "/*/ still */ x", "/*/ still */".len()),
            (Syntax::Hash, "x = 1 # one\n# two\ny = '#'", "# one# two".len()),
            (
                Syntax::Python,
                "def f():\n    \"\"\"Doc.\n\n    More.\"\"\"\n    return 1  # one\n",
                "Doc.\n\n    More.# one".len(),
            ),
            (Syntax::Python, "x = \"\"\"# no\n\"\"\"\n'''yes'''", "yes".len()),
            (Syntax::Python, "\"\"\"never ended", "never ended".len()),
            (Syntax::Sql, "SELECT '--' -- all\n/* b */", "-- all/* b */".len()),
            (Syntax::C, "", 0),
        ] {
            assert_eq!(comment_chars(text, syntax), expected as u64, "{}: {text:?}", syntax.name());
        }
    }

    #[test]
    fn unending_strings_and_marks_take_linear_time() {
        for piece in ["\"", "'", "/*", "\"\"\"", "\\", "`", "/", "`\\", "'\\", "'\"`"] {
            for syntax in Syntax::ALL {
                comment_chars(&piece.repeat(400_000 / piece.len()), syntax);
            }
        }
    }
}
