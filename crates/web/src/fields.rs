//! Named fields as in mail, HTTP and WARC headers: `Name: value`, continued on lines that begin with a blank.

/// Fields in the order in which they were written. Names compare without case.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Fields(Vec<(String, String)>);

impl Fields {
    /// No fields.
    pub fn new() -> Fields {
        Fields::default()
    }

    /// The first value of a field.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.0.iter().find(|(n, _)| n.eq_ignore_ascii_case(name)).map(|(_, v)| v.as_str())
    }

    /// All values of a field.
    pub fn all<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a str> {
        self.0.iter().filter(move |(n, _)| n.eq_ignore_ascii_case(name)).map(|(_, v)| v.as_str())
    }

    /// Adds a field.
    pub fn push(&mut self, name: impl Into<String>, value: impl Into<String>) {
        self.0.push((name.into(), value.into()));
    }

    /// All fields.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(n, v)| (n.as_str(), v.as_str()))
    }

    /// Number of fields.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Takes one line of a header, without its end. False if the line is neither a field nor the continuation of one.
    pub(crate) fn add_line(&mut self, line: &[u8]) -> bool {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes.trim_ascii()).into_owned();
        if line.first().is_some_and(|b| matches!(b, b' ' | b'\t')) {
            let Some((_, value)) = self.0.last_mut() else { return false };
            let more = text(line);
            if !value.is_empty() && !more.is_empty() {
                value.push(' ');
            }
            value.push_str(&more);
            return true;
        }
        match memchr::memchr(b':', line) {
            Some(at) if !line[..at].trim_ascii().is_empty() => {
                self.0.push((text(&line[..at]), text(&line[at + 1..])));
                true
            }
            _ => false,
        }
    }
}

impl<N: Into<String>, V: Into<String>> FromIterator<(N, V)> for Fields {
    fn from_iter<T: IntoIterator<Item = (N, V)>>(pairs: T) -> Self {
        Fields(pairs.into_iter().map(|(n, v)| (n.into(), v.into())).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folded_lines_join_and_names_have_no_case() {
        let mut f = Fields::new();
        assert!(!f.add_line(b" nothing to continue"));
        assert!(f.add_line(b"Content-Type: text/html;"));
        assert!(f.add_line(b"\tcharset=utf-8 "));
        assert!(f.add_line(b"X: \xff"));
        assert!(!f.add_line(b"no colon"));
        assert_eq!(f.get("content-TYPE"), Some("text/html; charset=utf-8"));
        assert_eq!(f.get("x"), Some("\u{fffd}"));
        assert_eq!(f.len(), 2);
    }
}
