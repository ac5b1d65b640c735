//! Rows of other formats as lines of JSON: arrays of objects (`.json`), comma- and tab-separated values with a line of names
//! (`.csv`, `.tsv`). Each row becomes one line, so the number of a line is that of the row.

use super::compressed::{self, inner_name};
use super::folder::FileEntry;
use crate::error::Result;
use std::io::{self, BufRead, Read};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Endings of these files, before that of a compressed file.
const ENDINGS: &[&str] = &["json", "csv", "tsv"];

fn ending(name: &str) -> String {
    let name = inner_name(name);
    name.rsplit_once('.').map_or("", |(_, ending)| ending).to_ascii_lowercase()
}

/// Whether a file name is that of rows that are no JSON lines.
pub(crate) fn holds_rows(name: &str) -> bool {
    ENDINGS.contains(&ending(name).as_str())
}

/// Opens a file of rows as lines of JSON, decompressed on the way. A row of more than `max_row` bytes of comma-separated values
/// ends the file with an error. Values under `text` stay texts; elsewhere numbers become numbers.
pub(super) fn open(file: &FileEntry, text: &str, max_row: u64) -> Result<Box<dyn BufRead + Send>> {
    Ok(as_lines(compressed::open(file)?, &file.relative, text, max_row))
}

/// Opens a file of JSON lines, of a JSON array, or of comma- or tab-separated values as lines of JSON; compressed files are
/// decompressed on the way. Values of a table under `text` stay texts, elsewhere numbers become numbers.
///
/// # Errors
/// Errors of [`open_compressed`](super::open_compressed).
pub fn open_json_lines(path: &Path, text: &str) -> io::Result<Box<dyn BufRead + Send>> {
    const MAX_ROW: u64 = 16 << 20;
    Ok(as_lines(compressed::open_compressed(path)?, &path.to_string_lossy(), text, MAX_ROW))
}

fn as_lines(
    reader: Box<dyn BufRead + Send>,
    name: &str,
    text: &str,
    max_row: u64,
) -> Box<dyn BufRead + Send> {
    match ending(name).as_str() {
        "json" => Box::new(ArrayLines { inner: reader, state: State::Start, out: Vec::new(), at: 0 }),
        "csv" => Box::new(TableLines::new(reader, b',', text, max_row)),
        "tsv" => Box::new(TableLines::new(reader, b'\t', text, max_row)),
        _ => reader,
    }
}

/// Place in a file that may hold an array.
#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Start,
    /// The file holds lines of JSON, or the array has ended.
    Lines,
    Array {
        depth: u64,
        in_string: bool,
        escaped: bool,
    },
}

/// Elements of a JSON array as lines; lines of JSON stay as they are.
struct ArrayLines {
    inner: Box<dyn BufRead + Send>,
    state: State,
    out: Vec<u8>,
    at: usize,
}

impl ArrayLines {
    /// Passes over white space up to the first other byte.
    fn begin(&mut self) -> io::Result<()> {
        loop {
            let block = self.inner.fill_buf()?;
            let blank = block.iter().take_while(|byte| byte.is_ascii_whitespace()).count();
            let first = block.get(blank).copied();
            let is_empty = block.is_empty();
            self.inner.consume(blank);
            match first {
                Some(b'[') => {
                    self.inner.consume(1);
                    self.state = State::Array { depth: 0, in_string: false, escaped: false };
                    return Ok(());
                }
                None if !is_empty => {}
                _ => {
                    self.state = State::Lines;
                    return Ok(());
                }
            }
        }
    }

    /// Takes the next block of the array.
    fn elements(&mut self) -> io::Result<()> {
        let block = self.inner.fill_buf()?;
        if block.is_empty() {
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the JSON array is not closed"));
        }
        let mut used = 0;
        while used < block.len()
            && let State::Array { depth, in_string, escaped } = &mut self.state
        {
            let byte = block[used];
            used += 1;
            // A line break between tokens is a blank; a string has none.
            let given = if matches!(byte, b'\n' | b'\r') { b' ' } else { byte };
            if *in_string {
                (*escaped, *in_string) = (!*escaped && byte == b'\\', *escaped || byte != b'"');
                self.out.push(given);
                continue;
            }
            match (byte, *depth) {
                (b']', 0) => self.state = State::Lines,
                (b',', 0) => self.out.push(b'\n'),
                (byte, 0) if byte.is_ascii_whitespace() => {}
                (byte, _) => {
                    match byte {
                        b'"' => *in_string = true,
                        b'{' | b'[' => *depth += 1,
                        b'}' | b']' => *depth = depth.saturating_sub(1),
                        _ => {}
                    }
                    self.out.push(given);
                }
            }
        }
        if self.state == State::Lines {
            self.out.push(b'\n');
        }
        self.inner.consume(used);
        Ok(())
    }
}

impl BufRead for ArrayLines {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        while self.at == self.out.len() {
            self.out.clear();
            self.at = 0;
            match self.state {
                State::Start => self.begin()?,
                State::Lines => return self.inner.fill_buf(),
                State::Array { .. } => self.elements()?,
            }
        }
        Ok(&self.out[self.at..])
    }

    fn consume(&mut self, used: usize) {
        match self.at < self.out.len() {
            true => self.at += used,
            false => self.inner.consume(used),
        }
    }
}

impl Read for ArrayLines {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let read = self.fill_buf()?.read(out)?;
        self.consume(read);
        Ok(read)
    }
}

/// Reader that gives an error beyond a number of bytes, which each row sets anew.
struct PerRow {
    inner: Box<dyn BufRead + Send>,
    left: Arc<AtomicU64>,
}

impl Read for PerRow {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let left = self.left.load(Ordering::Relaxed);
        if left == 0 {
            let problem = "a row is longer than the longest that is read; a quotation mark may be left open";
            return Err(io::Error::new(io::ErrorKind::InvalidData, problem));
        }
        let most = out.len().min(usize::try_from(left).unwrap_or(usize::MAX));
        let read = self.inner.read(&mut out[..most])?;
        self.left.store(left - read as u64, Ordering::Relaxed);
        Ok(read)
    }
}

/// Rows of a table as objects of its names.
struct TableLines {
    rows: csv::Reader<PerRow>,
    left: Arc<AtomicU64>,
    max_row: u64,
    /// The column that holds the text.
    text: String,
    names: Option<Vec<String>>,
    record: csv::ByteRecord,
    out: Vec<u8>,
    at: usize,
}

impl TableLines {
    fn new(inner: Box<dyn BufRead + Send>, delimiter: u8, text: &str, max_row: u64) -> TableLines {
        let left = Arc::new(AtomicU64::new(max_row));
        let reader = PerRow { inner, left: left.clone() };
        let rows = csv::ReaderBuilder::new()
            .delimiter(delimiter)
            .flexible(true)
            .has_headers(false)
            .from_reader(reader);
        let (record, out) = (csv::ByteRecord::new(), Vec::new());
        TableLines { rows, left, max_row, text: text.into(), names: None, record, out, at: 0 }
    }

    /// Reads a record; false at the end.
    fn next(&mut self) -> io::Result<bool> {
        self.left.store(self.max_row, Ordering::Relaxed);
        Ok(self.rows.read_byte_record(&mut self.record)?)
    }

    /// Makes the line of the next row; false at the end.
    fn line(&mut self) -> io::Result<bool> {
        if self.names.is_none() {
            if !self.next()? {
                return Ok(false);
            }
            let names = self.record.iter().map(|name| String::from_utf8_lossy(name).trim().to_string());
            self.names = Some(names.collect());
        }
        if !self.next()? {
            return Ok(false);
        }
        let names = self.names.as_deref().unwrap_or_default();
        for (index, (name, field)) in names.iter().zip(&self.record).enumerate() {
            self.out.push(if index == 0 { b'{' } else { b',' });
            serde_json::to_writer(&mut self.out, name)?;
            self.out.push(b':');
            match std::str::from_utf8(field) {
                Ok(field)
                    if *name != self.text && serde_json::from_str::<serde_json::Number>(field).is_ok() =>
                {
                    self.out.extend_from_slice(field.trim().as_bytes());
                }
                Ok(field) => serde_json::to_writer(&mut self.out, field)?,
                // Left as it is: the row is refused, with its number, where it is read as JSON.
                Err(_) => self.out.extend([b"\"", field, b"\""].concat().iter().map(|byte| match byte {
                    b'\n' | b'\r' => b' ',
                    byte => *byte,
                })),
            }
        }
        self.out.extend_from_slice(if self.out.is_empty() { b"{}\n" } else { b"}\n" });
        Ok(true)
    }
}

impl BufRead for TableLines {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        if self.at == self.out.len() {
            self.out.clear();
            self.at = 0;
            self.line()?;
        }
        Ok(&self.out[self.at..])
    }

    fn consume(&mut self, used: usize) {
        self.at += used;
    }
}

impl Read for TableLines {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let read = self.fill_buf()?.read(out)?;
        self.consume(read);
        Ok(read)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(name: &str, content: &str) -> io::Result<Vec<String>> {
        let mut all = Vec::new();
        for capacity in [1, 4096] {
            let reader = io::BufReader::with_capacity(capacity, io::Cursor::new(content.as_bytes().to_vec()));
            let found = as_lines(Box::new(reader), name, "text", 64).lines();
            let found: Vec<String> = found.collect::<io::Result<_>>()?;
            all.push(found.into_iter().filter(|line| !line.is_empty()).collect::<Vec<_>>());
        }
        assert_eq!(all[0], all[1]);
        Ok(all.swap_remove(0))
    }

    #[test]
    fn elements_of_an_array_are_lines_and_lines_stay() {
        let array = "\n [ {\"a\": \"x],\\\"\",\r\n  \"b\": [1, {\"c\": 2}]} ,\n{\"a\":\"\\\\\"}\n]\n";
        assert_eq!(
            lines("x.json", array).unwrap(),
            ["{\"a\": \"x],\\\"\",    \"b\": [1, {\"c\": 2}]}", "{\"a\":\"\\\\\"}"]
        );
        let same = "{\"a\": 1}\n{\"a\": 2}";
        assert_eq!(lines("x.json", same).unwrap(), ["{\"a\": 1}", "{\"a\": 2}"]);
        assert!(lines("x.JSON.gz", "[]").unwrap().is_empty());
        assert!(lines("x.json", "").unwrap().is_empty());
        assert!(lines("x.json", "[{\"a\": 1}, {\"a\"").unwrap_err().to_string().contains("not closed"));
        assert_eq!(lines("x.jsonl", "[1]\n").unwrap(), ["[1]"]);
    }

    #[test]
    fn rows_of_a_table_are_objects_of_its_names() {
        let table = "text,score,id\n\"two\nlines, \"\"quoted\"\"\",0.5,007\n12,-3,\nshort\n";
        let wanted = [
            "{\"text\":\"two\\nlines, \\\"quoted\\\"\",\"score\":0.5,\"id\":\"007\"}",
            "{\"text\":\"12\",\"score\":-3,\"id\":\"\"}",
            "{\"text\":\"short\"}",
        ];
        assert_eq!(lines("x.csv", table).unwrap(), wanted);
        assert_eq!(lines("x.tsv", "a\tb\n1\tx,y\n").unwrap(), ["{\"a\":1,\"b\":\"x,y\"}"]);
        assert!(lines("x.csv", "text\n").unwrap().is_empty());
        let open = format!("text\n\"{}", "a\n".repeat(100));
        assert!(lines("x.csv", &open).unwrap_err().to_string().contains("quotation mark"));
    }
}
