//! Files to samples: neighbours with the same key belong together (the WebDataset convention).

use super::RawSample;
use std::collections::HashSet;
use xxhash_rust::xxh3::xxh3_64;

/// Item of a source.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// A sample.
    Sample(RawSample),
    /// A file or a sample that is left out.
    Failed {
        /// Its key, or the path where it has none.
        key: String,
        /// A short word for counting.
        reason: &'static str,
        /// For people.
        detail: String,
    },
}

/// Groups files by key. A key is the path up to the first dot of its last part, the extension is what follows that dot.
#[derive(Debug)]
pub struct Grouper {
    limit: u64,
    current: Option<RawSample>,
    /// A reason why the current group is no sample.
    broken: Option<(&'static str, String)>,
    /// Hashes of the keys of groups that are done.
    seen: HashSet<u64>,
}

/// Key and extension of a path; `None` for hidden files and files without either.
fn split(path: &str) -> Option<(&str, String)> {
    let base = path.rfind('/').map_or(0, |i| i + 1);
    let dot = base + path[base..].find('.')?;
    let extension = &path[dot + 1..];
    (dot > base && !extension.is_empty()).then(|| (&path[..dot], extension.to_ascii_lowercase()))
}

impl Grouper {
    /// A grouper that refuses samples of more than `limit` bytes.
    pub fn new(limit: u64) -> Grouper {
        Grouper { limit, current: None, broken: None, seen: HashSet::new() }
    }

    /// Takes the next file; a finished group comes out.
    pub fn push(&mut self, path: &str, bytes: Vec<u8>) -> Vec<Event> {
        let Some((key, extension)) = split(path) else {
            let detail = "wanted a name of a key, a dot and an extension".to_owned();
            return vec![Event::Failed { key: path.to_owned(), reason: "no-key", detail }];
        };
        let mut events = Vec::new();
        if self.current.as_ref().is_none_or(|c| c.key != key) {
            events.extend(self.close());
            if self.seen.contains(&xxh3_64(key.as_bytes())) {
                let detail =
                    "the key occurs again after other keys: the files of a sample must be next to each other"
                        .to_owned();
                self.broken = Some(("unordered-key", detail));
            }
            self.current = Some(RawSample { key: key.to_owned(), members: Vec::new() });
        }
        let current = self.current.as_mut().expect("a group was just begun");
        if self.broken.is_some() {
            return events;
        }
        if current.members.iter().any(|(e, _)| *e == extension) {
            self.broken = Some(("duplicate-member", format!("two files with the extension {extension}")));
        } else if current.bytes().saturating_add(bytes.len() as u64) > self.limit {
            self.broken = Some(("too-large", format!("the files of the sample exceed {} bytes", self.limit)));
        } else {
            current.members.push((extension, bytes));
        }
        if self.broken.is_some() {
            current.members.clear();
        }
        events
    }

    /// Notes a file that the source refused. A sample that it belongs to is incomplete.
    pub fn refuse(&mut self, path: &str, reason: &'static str, detail: String) -> Vec<Event> {
        let mut events = Vec::new();
        match split(path) {
            Some((key, _)) if matches!(reason, "too-large") => {
                let key = key.to_owned();
                if self.current.as_ref().is_none_or(|c| c.key != key) {
                    events.extend(self.close());
                    self.current = Some(RawSample { key, members: Vec::new() });
                }
                if self.broken.is_none() {
                    self.broken = Some((reason, detail));
                }
            }
            _ => events.push(Event::Failed { key: path.to_owned(), reason, detail }),
        }
        events
    }

    fn close(&mut self) -> Option<Event> {
        let sample = self.current.take()?;
        self.seen.insert(xxh3_64(sample.key.as_bytes()));
        Some(match self.broken.take() {
            Some((reason, detail)) => Event::Failed { key: sample.key, reason, detail },
            None => Event::Sample(sample),
        })
    }

    /// Forgets the group that is not finished.
    pub fn abandon(&mut self) {
        self.current = None;
        self.broken = None;
    }

    /// The last group.
    pub fn finish(&mut self) -> Option<Event> {
        self.close()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_end_at_the_first_dot_of_the_last_part() {
        assert_eq!(split("a.b/c.d.TXT"), Some(("a.b/c", "d.txt".into())));
        assert_eq!(split("x.jpg"), Some(("x", "jpg".into())));
        for none in ["x", ".hidden", "a/.x.jpg", "x.", ""] {
            assert_eq!(split(none), None, "{none}");
        }
    }

    #[test]
    fn neighbours_are_samples_and_what_breaks_the_rule_is_told() {
        let mut g = Grouper::new(10);
        let mut events = Vec::new();
        for (path, n) in [
            ("a.jpg", 3),
            ("a.txt", 2),
            ("b.jpg", 1),
            ("a.json", 1),
            ("c.jpg", 1),
            ("c.jpg", 1),
            ("d.jpg", 11),
            ("e", 1),
        ] {
            events.extend(g.push(path, vec![0; n]));
        }
        events.extend(g.finish());
        let shown: Vec<String> = events
            .iter()
            .map(|e| match e {
                Event::Sample(s) => format!("{} {}", s.key, s.members.len()),
                Event::Failed { key, reason, .. } => format!("{key} {reason}"),
            })
            .collect();
        assert_eq!(shown, ["a 2", "b 1", "a unordered-key", "c duplicate-member", "e no-key", "d too-large"]);
    }
}
