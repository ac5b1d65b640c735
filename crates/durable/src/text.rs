//! Text from outside: UTF-8 with or without a byte order mark, and UTF-16 with one.
//!
//! Editors and exports on Windows write a byte order mark before UTF-8 (RFC 3629, section 6, and RFC 8259, section 8.1, let a
//! reader skip it), and PowerShell and spreadsheets write UTF-16. Every reader of a file that a user names goes through
//! [`read_to_string`](crate::read_to_string), [`decode_text`] or [`TextReader`].

use std::io::{self, BufRead, BufReader, Read};

/// The byte order mark in UTF-8.
const UTF8_MARK: &[u8] = b"\xef\xbb\xbf";
/// The byte order mark in UTF-32, little-endian; it begins like that of UTF-16.
const UTF32_MARK: &[u8] = b"\xff\xfe\0\0";
/// Bytes of UTF-16 that are decoded at once.
const BLOCK: usize = 16 << 10;

/// The text of these bytes, without a byte order mark.
///
/// # Errors
/// [`io::ErrorKind::InvalidData`] with the offset of the first byte that is not of the encoding.
pub fn decode_text(mut bytes: Vec<u8>) -> io::Result<String> {
    if form_of(&bytes).is_some_and(|form| form != Form::Utf8) {
        let mut text = Vec::with_capacity(bytes.len());
        TextReader::new(&bytes[..]).read_to_end(&mut text)?;
        bytes = text;
    } else if bytes.starts_with(UTF8_MARK) {
        bytes.drain(..UTF8_MARK.len());
    }
    String::from_utf8(bytes).map_err(|error| {
        let at = error.utf8_error().valid_up_to();
        let byte = error.as_bytes().get(at).copied().unwrap_or_default();
        invalid(format!(
            "wanted text in UTF-8, or in UTF-16 with a byte order mark; found byte {byte:#04x} at offset {at}"
        ))
    })
}

/// A text without a byte order mark at its beginning, where it was decoded elsewhere.
pub fn without_mark(text: &str) -> &str {
    text.strip_prefix('\u{feff}').unwrap_or(text)
}

fn invalid(problem: impl Into<String>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, problem.into())
}

/// Encoding of a text, recognised by its first bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Form {
    Utf8,
    /// UTF-16 with the more significant byte of a unit first, or second.
    Utf16 {
        big_endian: bool,
    },
    Utf32,
}

/// The encoding that a byte order mark names.
fn form_of(head: &[u8]) -> Option<Form> {
    match head {
        _ if head.starts_with(UTF32_MARK) => Some(Form::Utf32),
        [0xff, 0xfe, ..] => Some(Form::Utf16 { big_endian: false }),
        [0xfe, 0xff, ..] => Some(Form::Utf16 { big_endian: true }),
        _ if head.starts_with(UTF8_MARK) => Some(Form::Utf8),
        _ => None,
    }
}

/// Reader of a text that gives UTF-8 without a byte order mark, whatever the mark of the text names. Bytes of a text without
/// a mark, or in UTF-8, pass as they are; in UTF-16 a half of a surrogate pair becomes U+FFFD.
///
/// ```
/// use std::io::BufRead;
///
/// let lines = bessemer_durable::TextReader::new(&b"\xff\xfea\0\n\0b\0"[..]).lines();
/// assert_eq!(lines.collect::<Result<Vec<_>, _>>()?, ["a", "b"]);
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Debug)]
pub struct TextReader<R> {
    inner: R,
    /// Encoding; none before the first byte is read.
    form: Option<Form>,
    /// Bytes to give before those of `inner`: `made[at..]`.
    made: Vec<u8>,
    at: usize,
    /// First byte of a unit of UTF-16 whose second is not read yet.
    half: Option<u8>,
    /// First half of a surrogate pair whose second is not read yet.
    surrogate: Option<u16>,
}

impl<R: Read> TextReader<BufReader<R>> {
    /// A reader with a buffer.
    pub fn buffered(inner: R) -> Self {
        TextReader::new(BufReader::new(inner))
    }
}

impl<R: BufRead> TextReader<R> {
    /// A reader of what `inner` gives.
    pub fn new(inner: R) -> Self {
        TextReader { inner, form: None, made: Vec::new(), at: 0, half: None, surrogate: None }
    }

    /// Reads the mark. Other first bytes are given later.
    fn begin(&mut self) -> io::Result<Form> {
        while self.made.len() < UTF32_MARK.len() {
            let block = match self.inner.fill_buf() {
                Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
                block => block?,
            };
            let used = block.len().min(UTF32_MARK.len() - self.made.len());
            if used == 0 {
                break;
            }
            self.made.extend_from_slice(&block[..used]);
            self.inner.consume(used);
        }
        let form = form_of(&self.made);
        match form {
            Some(Form::Utf8) => self.at = UTF8_MARK.len(),
            Some(Form::Utf16 { .. }) => {
                let head = std::mem::take(&mut self.made);
                self.units(&head[2..], form == Some(Form::Utf16 { big_endian: true }));
            }
            Some(Form::Utf32) | None => {}
        }
        Ok(form.unwrap_or(Form::Utf8))
    }

    /// Decodes bytes of UTF-16.
    fn units(&mut self, bytes: &[u8], big_endian: bool) {
        for &byte in bytes {
            let Some(first) = self.half.take() else {
                self.half = Some(byte);
                continue;
            };
            let pair = [first, byte];
            let unit = if big_endian { u16::from_be_bytes(pair) } else { u16::from_le_bytes(pair) };
            match (self.surrogate.take(), unit) {
                (Some(high), 0xDC00..=0xDFFF) => {
                    let code = 0x10000 + (u32::from(high - 0xD800) << 10) + u32::from(unit - 0xDC00);
                    self.push(char::from_u32(code));
                }
                (before, _) => {
                    if before.is_some() {
                        self.push(None);
                    }
                    match unit {
                        0xD800..=0xDBFF => self.surrogate = Some(unit),
                        _ => self.push(char::from_u32(u32::from(unit))),
                    }
                }
            }
        }
    }

    /// Gives a character, or U+FFFD for none.
    fn push(&mut self, character: Option<char>) {
        let character = character.unwrap_or(char::REPLACEMENT_CHARACTER);
        self.made.extend_from_slice(character.encode_utf8(&mut [0; 4]).as_bytes());
    }

    /// Decodes the next bytes of UTF-16; false at the end.
    fn decode(&mut self, big_endian: bool) -> io::Result<bool> {
        self.made.clear();
        self.at = 0;
        let block = self.inner.fill_buf()?;
        let used = block.len().min(BLOCK);
        if used == 0 {
            if self.half.take().is_some() {
                return Err(invalid("a text in UTF-16 ends inside a character"));
            }
            if self.surrogate.take().is_some() {
                self.push(None);
            }
            return Ok(!self.made.is_empty());
        }
        let bytes = block[..used].to_vec();
        self.inner.consume(used);
        self.units(&bytes, big_endian);
        Ok(true)
    }
}

impl<R: BufRead> BufRead for TextReader<R> {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        loop {
            let form = match self.form {
                Some(form) => form,
                None => {
                    let form = self.begin()?;
                    *self.form.insert(form)
                }
            };
            if self.at < self.made.len() {
                return Ok(&self.made[self.at..]);
            }
            match form {
                Form::Utf8 => return self.inner.fill_buf(),
                Form::Utf16 { big_endian } => {
                    if !self.decode(big_endian)? {
                        return Ok(&[]);
                    }
                }
                Form::Utf32 => {
                    return Err(invalid("the text is in UTF-32, which is not read; write it as UTF-8"));
                }
            }
        }
    }

    fn consume(&mut self, used: usize) {
        match self.at < self.made.len() {
            true => self.at += used,
            false => self.inner.consume(used),
        }
    }
}

impl<R: BufRead> Read for TextReader<R> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let read = self.fill_buf()?.read(out)?;
        self.consume(read);
        Ok(read)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Gives one byte at a time.
    struct Single<'a>(&'a [u8]);

    impl Read for Single<'_> {
        fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
            let most = out.len().min(1);
            self.0.read(&mut out[..most])
        }
    }

    fn utf16(text: &str, big_endian: bool) -> Vec<u8> {
        let bytes = |unit: u16| if big_endian { unit.to_be_bytes() } else { unit.to_le_bytes() };
        "\u{feff}".encode_utf16().chain(text.encode_utf16()).flat_map(bytes).collect()
    }

    #[test]
    fn every_form_of_a_text_gives_the_same_text_whole_and_in_pieces() {
        let long = "line é 雨 🦀\n".repeat(5000);
        for text in ["", "a", "ab", "abc", "é\n🦀", "\u{feff}twice", &long] {
            let marked = [UTF8_MARK, text.as_bytes()].concat();
            for bytes in [text.as_bytes().to_vec(), marked, utf16(text, false), utf16(text, true)] {
                let plain = bytes == text.as_bytes();
                let wanted = if plain { without_mark(text) } else { text };
                assert_eq!(decode_text(bytes.clone()).unwrap(), wanted);
                let (mut whole, mut pieces) = (String::new(), String::new());
                TextReader::new(&bytes[..]).read_to_string(&mut whole).unwrap();
                TextReader::new(BufReader::with_capacity(1, Single(&bytes)))
                    .read_to_string(&mut pieces)
                    .unwrap();
                assert_eq!((whole.as_str(), pieces.as_str()), (wanted, wanted));
                let lines: Vec<String> =
                    TextReader::buffered(&bytes[..]).lines().map(Result::unwrap).collect();
                assert_eq!(lines, wanted.lines().collect::<Vec<_>>());
            }
        }
    }

    #[test]
    fn faults_are_named_and_halves_of_pairs_replaced() {
        let error = |bytes: &[u8]| decode_text(bytes.to_vec()).unwrap_err().to_string();
        assert!(error(b"ab\xff").contains("byte 0xff at offset 2"), "{}", error(b"ab\xff"));
        assert!(error(b"\xff\xfea").contains("ends inside a character"));
        assert!(error(b"\xff\xfe\0\0a\0\0\0").contains("UTF-32"));
        let units = [0xfeff, 0xd83e, 0xd83e, 0xdd80, 0xdd80, 0x61, 0xd83e];
        let bytes: Vec<u8> = units.iter().flat_map(|unit: &u16| unit.to_le_bytes()).collect();
        assert_eq!(decode_text(bytes).unwrap(), "\u{fffd}🦀\u{fffd}a\u{fffd}");
    }
}
