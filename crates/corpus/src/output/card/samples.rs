//! Documents that the card shows: of every reason, and of every side that is kept, the few whose names hash lowest. A sample that
//! depends on nothing but the corpus, and that needs no second reading.

use crate::error::Result;
use crate::inspect::named;
use crate::read::CorpusReader;
use bessemer_documents::{Split, head};
use std::collections::BTreeMap;
use xxhash_rust::xxh3::xxh3_64;

/// Documents shown of each reason and each side.
const SHOWN: usize = 3;

/// A document that is shown.
pub(crate) struct Sample {
    pub(crate) id: String,
    pub(crate) detail: Option<String>,
    pub(crate) head: String,
}

/// The lowest so far, by hash and name.
#[derive(Default)]
struct Lowest(BTreeMap<(u64, String), Sample>);

impl Lowest {
    fn offer(&mut self, id: &str, detail: Option<&str>, text: &str) {
        let hash = xxh3_64(id.as_bytes());
        let full = self.0.len() >= SHOWN;
        if full && self.0.last_key_value().is_some_and(|((last, _), _)| *last < hash) {
            return;
        }
        let sample =
            Sample { id: id.to_string(), detail: detail.map(str::to_string), head: head(text).to_string() };
        self.0.insert((hash, id.to_string()), sample);
        if self.0.len() > SHOWN {
            self.0.pop_last();
        }
    }
}

/// Samples of a corpus.
#[derive(Default)]
pub(crate) struct Samples {
    kept: BTreeMap<Split, Lowest>,
    dropped: BTreeMap<String, Lowest>,
}

impl Samples {
    /// Offers a kept document.
    pub(crate) fn keep(&mut self, split: Split, id: &str, text: &str) {
        self.kept.entry(split).or_default().offer(id, None, text);
    }

    /// Offers a dropped document.
    pub(crate) fn drop(&mut self, reason: &str, id: &str, detail: Option<&str>, text: &str) {
        match self.dropped.get_mut(reason) {
            Some(lowest) => lowest.offer(id, detail, text),
            None => self.dropped.entry(reason.to_string()).or_default().offer(id, detail, text),
        }
    }

    /// Writes the ids of the documents that duplicates repeat into their details.
    ///
    /// # Errors
    /// The errors of reading the corpus.
    pub(crate) fn name_duplicates(&mut self, reader: &CorpusReader) -> Result<()> {
        let all =
            || self.dropped.iter().flat_map(|(reason, lowest)| lowest.0.values().map(move |s| (reason, s)));
        let keys =
            all().filter_map(|(reason, s)| named(Some(reason), s.detail.as_deref())).map(|(key, _)| key);
        let found = reader.names_of(keys)?;
        for (reason, lowest) in &mut self.dropped {
            for sample in lowest.0.values_mut() {
                let Some((key, words)) = named(Some(reason), sample.detail.as_deref()) else { continue };
                if let (Some(document), Some(detail)) = (found.get(&key), &mut sample.detail) {
                    *detail = detail.replace(&words, &document.in_words());
                }
            }
        }
        Ok(())
    }

    /// All of them under their titles: what is kept, then each reason.
    pub(super) fn groups(&self) -> impl Iterator<Item = (String, impl Iterator<Item = &Sample>)> {
        let kept = self.kept.iter().map(|(split, lowest)| (format!("Kept for {}", split.name()), lowest));
        let dropped = self.dropped.iter().map(|(reason, lowest)| (format!("Dropped: {reason}"), lowest));
        kept.chain(dropped).map(|(title, lowest)| (title, lowest.0.values()))
    }
}
