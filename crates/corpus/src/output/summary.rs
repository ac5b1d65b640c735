//! `corpus.json`: what was read, kept and dropped, by reason and by source. It is written last and lists the
//! other files with their hashes, so its presence means that the corpus is complete. It holds no time and no
//! machine's name: the same input and configuration give the same bytes.

use crate::evaluate::Evaluation;
use crate::source::SkippedFiles;
use bessemer_documents::Split;
use bessemer_privacy::decontaminate::SetCount;
use bessemer_units::Bytes;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Version of the output directory's format.
pub const FORMAT_VERSION: u32 = 1;
/// Name of the file.
pub const SUMMARY_FILE: &str = "corpus.json";
/// Name of the list of dropped documents.
pub const DROPPED_FILE: &str = "dropped.parquet";
/// Name of the data card.
pub const CARD_FILE: &str = "card.html";
/// Name of the list of sources with their licences.
pub const ATTRIBUTION_FILE: &str = "ATTRIBUTION.md";

/// Documents and their bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Count {
    /// Documents.
    pub documents: u64,
    /// Bytes: as stored in the source for read and dropped documents, of the text for kept ones.
    pub bytes: u64,
}

impl Count {
    /// Counts a document.
    pub(crate) fn add(&mut self, bytes: u64) {
        self.documents += 1;
        self.bytes += bytes;
    }

    /// Counts a document under a name.
    pub(crate) fn add_to(counts: &mut BTreeMap<String, Count>, name: &str, bytes: u64) {
        match counts.get_mut(name) {
            Some(count) => count.add(bytes),
            None => {
                counts.insert(name.to_string(), Count { documents: 1, bytes });
            }
        }
    }
}

impl std::ops::AddAssign for Count {
    fn add_assign(&mut self, other: Count) {
        self.documents += other.documents;
        self.bytes += other.bytes;
    }
}

impl<'a> std::iter::Sum<&'a Count> for Count {
    fn sum<I: Iterator<Item = &'a Count>>(counts: I) -> Count {
        counts.fold(Count::default(), |mut all, count| {
            all += *count;
            all
        })
    }
}

/// Names with their counts, most documents first, then by name.
pub(crate) fn most_documents_first(counts: &BTreeMap<String, Count>) -> Vec<(&str, Count)> {
    let mut all: Vec<(&str, Count)> = counts.iter().map(|(name, count)| (name.as_str(), *count)).collect();
    all.sort_by(|a, b| b.1.documents.cmp(&a.1.documents).then_with(|| a.0.cmp(b.0)));
    all
}

/// One side of the split.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SplitSummary {
    /// Kept documents.
    pub documents: u64,
    /// Bytes of their text.
    pub bytes: u64,
    /// Sources with at least one kept document here; versions count apart.
    pub sources: u64,
}

/// One source: a version of a crate, a top folder, a file.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SourceSummary {
    /// Its name.
    pub name: String,
    /// Its version, where it has one.
    pub version: Option<String>,
    /// Its licence as an SPDX expression, where it is known.
    pub licence: Option<String>,
    /// Documents read.
    pub read: Count,
    /// Documents kept, on either side.
    pub kept: Count,
    /// Kept for training.
    pub train: Count,
    /// Kept for validation.
    pub validation: Count,
    /// Count of what they lost.
    pub dropped: BTreeMap<String, Count>,
}

/// What training weighs by itself: a source of several, or a slice of one.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ComponentSummary {
    /// Its name: `SOURCE`, or `SOURCE.SLICE`.
    pub name: String,
    /// Kept for training.
    pub train: Count,
    /// Kept for validation.
    pub validation: Count,
    /// Dropped documents by reason. Those that were dropped before slices are cut count for their source.
    pub dropped: BTreeMap<String, Count>,
}

/// A file of the corpus.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileSummary {
    /// Its name in the directory.
    pub name: String,
    /// Its bytes.
    pub bytes: u64,
    /// XXH3-128 of its bytes, in hexadecimal.
    pub xxh3_128: String,
}

/// How a score is distributed over the kept documents.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct ScoreSummary {
    /// Kept documents that have it.
    pub documents: u64,
    /// Kept documents that do not.
    pub missing: u64,
    /// For numbers: the quantiles 0, 5, ..., 100 per cent, each right to half a per cent of its value.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub quantiles: Vec<f64>,
    /// For names: documents and bytes of the hundred most frequent.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub values: BTreeMap<String, Count>,
    /// Documents and bytes of the other names.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub other_values: Option<Count>,
}

/// How a corpus was made.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct BuiltWith {
    /// Name and version of the program.
    pub program: String,
    /// Keys of `[corpus]` that differ from their defaults, without paths, memory and weights.
    pub config: serde_json::Value,
}

/// Sources that lost nearly all of their bytes, most of them for the same reason.
pub(crate) struct Loss<'a> {
    pub(crate) reason: &'a str,
    pub(crate) sources: Vec<&'a SourceSummary>,
    /// Count of what they lost.
    pub(crate) lost: Count,
}

/// Share of a source's bytes whose loss deserves a remark.
const LOSS_SHARE: f64 = 0.9;
/// Bytes below which a source's loss is not worth a remark, and the share of all that was read.
const LOSS_BYTES: (u64, u64) = (100_000, 1000);
/// Sources that a remark names.
const LOSS_NAMES: usize = 3;

impl Loss<'_> {
    pub(crate) fn in_words(&self) -> String {
        let name = |source: &SourceSummary| match &source.version {
            Some(version) => format!("{} {version}", source.name),
            None => source.name.clone(),
        };
        let named: Vec<String> = self.sources.iter().take(LOSS_NAMES).map(|source| name(source)).collect();
        let more = self.sources.len().saturating_sub(LOSS_NAMES);
        let more = if more > 0 { format!(" and {more} more") } else { String::new() };
        format!(
            "{}{more} lost over {:.0} % of {} bytes, most of them as {} ({} in all)",
            named.join(", "),
            100.0 * LOSS_SHARE,
            if self.sources.len() == 1 { "its" } else { "their" },
            self.reason,
            Bytes(self.lost.bytes)
        )
    }
}

/// Summary of a corpus.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct CorpusSummary {
    /// [`FORMAT_VERSION`].
    pub format_version: u32,
    /// Hash of configuration and input listing: the same key means that nothing has to be done.
    pub key: String,
    /// Hash of the kept documents in order, with their names and sides: the identity of the text itself.
    pub fingerprint: String,
    /// Where the text came from: cargo, folder, jsonl, parquet, warc, file, python or embedded.
    pub source: String,
    /// What the split followed: source, document, or position in a single file.
    pub split_by: String,
    /// Number of files in the listing of the source.
    pub listed_files: u64,
    /// Their bytes as stored.
    pub listed_bytes: u64,
    /// The stand-in for the source that the configuration asks for, with the reason; `None` without one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fallback: Option<String>,
    /// Files left out by extension, by being hidden, or by the exclude list.
    pub skipped_files: u64,
    /// The same by kind: an extension with its dot, "no extension", "hidden", "excluded", "link out of the root", ...
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub skipped: BTreeMap<String, SkippedFiles>,
    /// Documents read.
    pub read: Count,
    /// Documents kept.
    pub kept: Count,
    /// Documents dropped.
    pub dropped: Count,
    /// Count of what they lost.
    pub dropped_by_reason: BTreeMap<String, Count>,
    /// Train and validation.
    pub splits: BTreeMap<Split, SplitSummary>,
    /// E-mail addresses replaced in kept documents.
    pub emails_replaced: u64,
    /// IP addresses replaced in kept documents.
    pub ips_replaced: u64,
    /// Lines removed from kept documents.
    pub lines_removed: u64,
    /// Phone, card and account numbers replaced in kept documents.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub numbers_replaced: u64,
    /// Keys and tokens replaced in kept documents.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub secrets_replaced: u64,
    /// By evaluation set: documents dropped for it, kept documents that it was cut out of, places in these.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub decontaminated: BTreeMap<String, SetCount>,
    /// Distributions of the scores, by column.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub scores: BTreeMap<String, ScoreSummary>,
    /// What a sample of the kept documents showed when the corpus was built, if that was asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub evaluation: Option<Evaluation>,
    /// Digest of the list of tombstones that the corpus answers to, if documents were deleted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tombstones: Option<String>,
    /// How often documents go into the shards of the training split, by their `copies` (`dedup.rehydrate`); empty: once.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub rehydrate: Vec<[u64; 2]>,
    /// By component, where there are several sources.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub components: Vec<ComponentSummary>,
    /// Kept documents by the length of their texts: the key is the power of two at or below the bytes.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub lengths: BTreeMap<u32, Count>,
    /// Program and configuration that made the corpus.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub built_with: Option<BuiltWith>,
    /// By source, in row order.
    pub sources: Vec<SourceSummary>,
    /// What the user should know: fallbacks taken, sources that lost nearly everything.
    pub remarks: Vec<String>,
    /// The other files of the directory.
    pub files: Vec<FileSummary>,
}

impl ScoreSummary {
    /// Quartiles of a number, the most frequent values of a name.
    pub fn in_words(&self) -> String {
        let mut words = match self.quantiles.as_slice() {
            [] => {
                let mut values: Vec<(&String, &Count)> = self.values.iter().collect();
                values.sort_by_key(|(name, count)| (std::cmp::Reverse(count.documents), name.as_str()));
                let named: Vec<String> = values
                    .iter()
                    .take(8)
                    .map(|(name, count)| format!("{name} {}", count.documents))
                    .collect();
                let more = if values.len() > 8 { ", ..." } else { "" };
                format!("{}{more}", named.join(", "))
            }
            all => {
                let at = |share: f64| all[((all.len() - 1) as f64 * share).round() as usize];
                let (low, middle, high) = (at(0.25), at(0.5), at(0.75));
                format!("quartiles {low:.4}, {middle:.4}, {high:.4}, from {:.4} to {:.4}", at(0.0), at(1.0))
            }
        };
        if self.missing > 0 {
            words += &format!("; {} documents without", self.missing);
        }
        words
    }
}

// serde gives a reference.
#[allow(clippy::trivially_copy_pass_by_ref)]
fn is_zero(count: &u64) -> bool {
    *count == 0
}

impl CorpusSummary {
    /// Kept bytes and documents of a side.
    pub fn split(&self, split: Split) -> SplitSummary {
        self.splits.get(&split).copied().unwrap_or_default()
    }

    /// Larger sources that lost nearly all of their bytes, by the worst reason; the largest loss first.
    pub(crate) fn losses(&self) -> Vec<Loss<'_>> {
        let least = LOSS_BYTES.0.max(self.read.bytes / LOSS_BYTES.1);
        let mut losses: BTreeMap<&str, Loss<'_>> = BTreeMap::new();
        for source in &self.sources {
            let lost: u64 = source.dropped.values().map(|count| count.bytes).sum();
            let worst = source.dropped.iter().max_by_key(|(_, count)| count.bytes);
            let Some((reason, _)) = worst.filter(|_| lost as f64 > LOSS_SHARE * source.read.bytes as f64)
            else {
                continue;
            };
            let loss = Loss { reason, sources: Vec::new(), lost: Count::default() };
            let loss = losses.entry(reason).or_insert(loss);
            loss.sources.push(source);
            loss.lost.documents += source.dropped.values().map(|count| count.documents).sum::<u64>();
            loss.lost.bytes += lost;
        }
        let mut losses: Vec<Loss<'_>> =
            losses.into_values().filter(|loss| loss.lost.bytes >= least).collect();
        for loss in &mut losses {
            loss.sources.sort_by_key(|source| std::cmp::Reverse(source.read.bytes));
        }
        losses.sort_by_key(|loss| (std::cmp::Reverse(loss.lost.bytes), loss.reason));
        losses
    }

    /// Dropped documents by reason in words, most documents first.
    pub fn reasons_in_words(&self) -> String {
        let mut reasons: Vec<(&String, &Count)> = self.dropped_by_reason.iter().collect();
        reasons.sort_by_key(|(reason, count)| (std::cmp::Reverse(count.documents), reason.as_str()));
        let words: Vec<String> =
            reasons.iter().map(|(reason, count)| format!("{reason} {}", count.documents)).collect();
        words.join(", ")
    }
}
