//! Lists of domains, URLs or words from files of users: one entry a line, `#` begins a comment line, plain or `.gz`.

use bessemer_durable::TextReader;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};

/// Longest line of a list.
const MAX_LINE: usize = 64 << 10;
/// Bytes of all entries of one list.
const MAX_BYTES: usize = 2 << 30;

/// A list that cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum ListError {
    /// The file cannot be opened or read.
    #[error("the list {path}: {source}")]
    Io {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// A line is too long or not text: the file is no list.
    #[error("the list {path}, line {line}: {what}; wanted one entry a line")]
    Line {
        /// The file.
        path: PathBuf,
        /// Number of the line, from 1.
        line: u64,
        /// Description of what was found.
        what: String,
    },
    /// A word list has an entry that no automaton can be built from.
    #[error("the sub-words: {0}")]
    Words(String),
}

/// Reads a list. Entries come trimmed; empty lines and comments are left out.
///
/// # Errors
/// The file cannot be read, a line has more than 64 KiB or is not UTF-8, or all entries together more than 2 GiB.
pub fn read_list(path: &Path, mut entry: impl FnMut(&str)) -> Result<(), ListError> {
    let io = |source| ListError::Io { path: path.to_path_buf(), source };
    let file = BufReader::with_capacity(256 << 10, bessemer_durable::open_regular(path).map_err(io)?);
    let gz = path.extension().is_some_and(|e| e.eq_ignore_ascii_case("gz"));
    let reader: Box<dyn BufRead> = if gz {
        Box::new(BufReader::with_capacity(256 << 10, flate2::bufread::MultiGzDecoder::new(file)))
    } else {
        Box::new(file)
    };
    let mut reader = TextReader::new(reader);
    let mut line = Vec::new();
    let (mut number, mut total) = (0, 0);
    loop {
        line.clear();
        number += 1;
        let wrong = |what: String| ListError::Line { path: path.to_path_buf(), line: number, what };
        let got =
            std::io::Read::take(&mut reader, MAX_LINE as u64 + 1).read_until(b'\n', &mut line).map_err(io)?;
        if got == 0 {
            return Ok(());
        }
        if line.len() > MAX_LINE {
            return Err(wrong(format!("more than {MAX_LINE} bytes")));
        }
        total += got;
        if total > MAX_BYTES {
            return Err(wrong(format!("more than {MAX_BYTES} bytes of entries")));
        }
        let text = std::str::from_utf8(&line).map_err(|_| wrong("bytes that are not UTF-8".into()))?.trim();
        if !text.is_empty() && !text.starts_with('#') {
            entry(text);
        }
    }
}

/// A set of strings in one piece of memory: millions of domains at 4 bytes each beside their letters.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StringSet {
    bytes: String,
    ends: Vec<u32>,
}

impl StringSet {
    /// A set of the given strings.
    pub fn new(mut entries: Vec<String>) -> StringSet {
        entries.sort_unstable();
        entries.dedup();
        let mut set = StringSet::default();
        for e in entries {
            // Readers of lists stop before 2 GiB; entries from a recipe are few.
            let Ok(end) = u32::try_from(set.bytes.len() + e.len()) else { break };
            set.bytes.push_str(&e);
            set.ends.push(end);
        }
        set
    }

    fn get(&self, at: usize) -> &str {
        let start = if at == 0 { 0 } else { self.ends[at - 1] as usize };
        &self.bytes[start..self.ends[at] as usize]
    }

    /// Whether the string is in the set.
    pub fn contains(&self, wanted: &str) -> bool {
        let (mut low, mut high) = (0, self.ends.len());
        while low < high {
            let middle = low.midpoint(high);
            match self.get(middle).cmp(wanted) {
                std::cmp::Ordering::Equal => return true,
                std::cmp::Ordering::Less => low = middle + 1,
                std::cmp::Ordering::Greater => high = middle,
            }
        }
        false
    }

    /// The strings in order.
    pub fn iter(&self) -> impl Iterator<Item = &str> {
        (0..self.ends.len()).map(|i| self.get(i))
    }

    /// Number of strings.
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    #[test]
    fn a_set_holds_what_was_put_in() {
        let set = StringSet::new(["b", "", "abc", "a", "b"].map(String::from).to_vec());
        assert_eq!(set.iter().collect::<Vec<_>>(), ["", "a", "abc", "b"]);
        assert!(set.contains("abc") && set.contains("") && !set.contains("ab") && !set.contains("c"));
        assert!(!StringSet::default().contains("a"));
    }

    #[test]
    fn lists_plain_and_compressed() {
        let folder = tempfile::tempdir().unwrap();
        let text = "# comment\n one.com \n\ntwo.org\r\n#x\nthree.net";
        let plain = folder.path().join("a.txt");
        std::fs::write(&plain, text).unwrap();
        let gz = folder.path().join("a.gz");
        let mut e = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        e.write_all(text.as_bytes()).unwrap();
        std::fs::write(&gz, e.finish().unwrap()).unwrap();
        for path in [&plain, &gz] {
            let mut found = Vec::new();
            read_list(path, |e| found.push(e.to_string())).unwrap();
            assert_eq!(found, ["one.com", "two.org", "three.net"]);
        }
        std::fs::write(&plain, "ok\n\u{ff}\n".repeat(2) + &"x".repeat(100_000)).unwrap();
        let message = read_list(&plain, |_| {}).unwrap_err().to_string();
        assert!(message.contains("line 5") && message.contains("65536"), "{message}");
        std::fs::write(&plain, b"ok\n\xff\n").unwrap();
        assert!(read_list(&plain, |_| {}).unwrap_err().to_string().contains("line 2"));
        let message = read_list(Path::new("/no/such/list"), |_| {}).unwrap_err().to_string();
        assert!(message.contains("/no/such/list"));
    }
}
