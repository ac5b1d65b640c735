//! The Bloom rule as stages of a plan: hashes of n-grams in parallel, the filter in order, edits in parallel.

use super::SHARDS;
use super::filter::{Filter, Size, shard_of};
use crate::keys::{check, names, with_keys, words};
use crate::minhash::shingle::uax_words;
use crate::verdict::without;
use arrow_array::builder::BinaryBuilder;
use arrow_array::{Array, ArrayRef, BinaryArray, Float32Array, RecordBatch, UInt32Array, UInt64Array};
use arrow_schema::{DataType, Field, Schema, SchemaRef};
use bessemer_corpus_config::dedup::{BloomConfig, BloomScope};
use bessemer_dataflow::{
    BatchMap, BreakerContext, Error, Input, Output, PipelineBreaker, Result, Stage, column, side_rows,
};
use bessemer_documents::{Verdict, edit};
use bessemer_external_sort::for_each_on_threads;
use bessemer_text::hash::xxh3_seeded;
use bessemer_text::ngram::Joined;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// N-grams that are looked up at once, so that threads have something to share.
const WINDOW: usize = 1 << 16;

/// The stages of the Bloom rule.
pub(crate) fn stages(config: &BloomConfig) -> Vec<Stage> {
    vec![
        Stage::SideJoin {
            name: "bloom".into(),
            project: names(&["file", "row", "reason", "text"]),
            side: vec![
                Stage::Map(Arc::new(Grams { config: config.clone() })),
                Stage::PipelineBreaker(Arc::new(Seen { config: config.clone() })),
            ],
            adds: adds(),
        },
        Stage::Map(Arc::new(RemoveRepeats { config: config.clone() })),
    ]
}

/// The repeated lines of a document as little-endian words, and the share of its n-grams that were seen before.
fn adds() -> SchemaRef {
    Arc::new(Schema::new(vec![
        Field::new("repeated", DataType::Binary, true),
        Field::new("repeated_share", DataType::Float32, true),
    ]))
}

/// Replaces the text by `grams`: for each line the number of its n-grams and their hashes, all as little-endian words; null for
/// documents that are dropped already.
struct Grams {
    config: BloomConfig,
}

impl BatchMap for Grams {
    fn name(&self) -> &str {
        "bloom-grams"
    }

    fn apply(&self, batch: RecordBatch) -> Result<RecordBatch> {
        let (mut joined, mut hashes) = (Joined::new(), Vec::new());
        let batch = with_keys(self.name(), &batch, "grams", None, |_, text, bytes| {
            push_grams(text, &self.config, &mut joined, &mut hashes, bytes);
            true
        })?;
        without(&batch, &["text"])
    }
}

/// Appends, for each line of a text, the number of its n-grams and their hashes.
fn push_grams(
    text: &str,
    config: &BloomConfig,
    joined: &mut Joined,
    hashes: &mut Vec<u64>,
    bytes: &mut Vec<u8>,
) {
    for line in text.split('\n') {
        line_grams(line, config, joined, hashes);
        bytes.extend((hashes.len() as u64).to_le_bytes());
        bytes.extend(hashes.iter().flat_map(|hash| hash.to_le_bytes()));
    }
}

/// Hashes of the n-grams of a line: of all its words where there are fewer than n, of nothing where there is none.
fn line_grams(line: &str, config: &BloomConfig, joined: &mut Joined, hashes: &mut Vec<u64>) {
    hashes.clear();
    joined.fill(" ", uax_words(line));
    let length = config.ngram.min(joined.words());
    if length > 0 {
        hashes.extend(joined.hashes(length, |gram| xxh3_seeded(gram, config.seed)));
    }
}

/// Looks n-grams up and inserts them.
struct Seen {
    config: BloomConfig,
}

/// Documents whose n-grams wait to be looked up.
#[derive(Default)]
struct Window {
    rows: Vec<(u32, u64)>,
    /// Lines of each document.
    lines: Vec<usize>,
    /// End in `keys` of each line.
    ends: Vec<usize>,
    keys: Vec<u64>,
}

impl Window {
    fn push(&mut self, file: u32, row: u64, grams: &[u8]) {
        self.rows.push((file, row));
        let mut words = words(grams);
        let mut lines = 0;
        while let Some(count) = words.next() {
            self.keys.extend(words.by_ref().take(count as usize));
            self.ends.push(self.keys.len());
            lines += 1;
        }
        self.lines.push(lines);
    }

    /// Which keys were there before their line. Each shard's keys are looked up line by line, in order.
    fn look_up(&self, filter: &mut Filter, threads: usize) -> Vec<bool> {
        // (line, key) of each shard, in order.
        let mut of_shard: Vec<Vec<(u32, u32)>> = vec![Vec::new(); SHARDS];
        let mut start = 0;
        for (line, &end) in self.ends.iter().enumerate() {
            for at in start..end {
                of_shard[shard_of(self.keys[at])].push((line as u32, at as u32));
            }
            start = end;
        }
        let work: Vec<_> = filter.shards().into_iter().zip(&of_shard).collect();
        let seen: Vec<AtomicBool> = (0..self.keys.len()).map(|_| AtomicBool::new(false)).collect();
        for_each_on_threads(work, threads, |(mut shard, keys)| {
            for line in keys.chunk_by(|a, b| a.0 == b.0) {
                let key = |at: u32| self.keys[at as usize];
                for place in line.iter().filter(|place| shard.contains(key(place.1))) {
                    seen[place.1 as usize].store(true, Ordering::Relaxed);
                }
                line.iter().for_each(|place| shard.insert(key(place.1)));
            }
        });
        seen.into_iter().map(AtomicBool::into_inner).collect()
    }

    /// One row for each document with repeated n-grams: its repeated lines and its share.
    fn decide(&mut self, config: &BloomConfig, filter: &mut Filter, threads: usize) -> Result<RecordBatch> {
        let seen = self.look_up(filter, threads);
        let (mut ids, mut shares) = (Vec::new(), Vec::new());
        let mut repeated = BinaryBuilder::new();
        let (mut line, mut start) = (0, 0);
        for (&id, &lines) in self.rows.iter().zip(&self.lines) {
            let first = start;
            let mut bytes = Vec::new();
            for index in 0..lines {
                let end = self.ends[line];
                let count = seen[start..end].iter().filter(|seen| **seen).count();
                if count > 0 && count as f64 >= config.threshold * (end - start) as f64 {
                    bytes.extend((index as u64).to_le_bytes());
                }
                start = end;
                line += 1;
            }
            let count = seen[first..start].iter().filter(|seen| **seen).count();
            if count > 0 {
                ids.push(id);
                repeated.append_value(&bytes);
                shares.push((count as f64 / (start - first) as f64) as f32);
            }
        }
        *self = Window::default();
        let columns: [ArrayRef; 2] = [Arc::new(repeated.finish()), Arc::new(Float32Array::from(shares))];
        side_rows(ids, &adds(), columns)
    }
}

impl PipelineBreaker for Seen {
    fn name(&self) -> &str {
        "bloom"
    }

    fn run(
        &self,
        input: &mut Input<'_>,
        context: &BreakerContext<'_>,
        output: &mut Output<'_>,
    ) -> Result<()> {
        let size = Size::for_keys(self.config.expected, self.config.false_positives);
        if size.bits / 8 > context.memory as u64 {
            return Err(Error::plan(
                self.name(),
                format!(
                    "a filter for {} n-grams with {} false positives needs {} MiB, and {} MiB are available; \
                     raise corpus.memory, lower dedup.bloom.expected or raise dedup.bloom.false_positives",
                    self.config.expected,
                    self.config.false_positives,
                    size.bits >> 23,
                    context.memory >> 20
                ),
            ));
        }
        let mut filter = Filter::new(size);
        let mut window = Window::default();
        while let Some(batch) = input()? {
            check(context.stop)?;
            let files: &UInt32Array = column(self.name(), &batch, "file")?;
            let rows: &UInt64Array = column(self.name(), &batch, "row")?;
            let grams: &BinaryArray = column(self.name(), &batch, "grams")?;
            for row in (0..batch.num_rows()).filter(|&row| !grams.is_null(row)) {
                window.push(files.value(row), rows.value(row), grams.value(row));
                if window.keys.len() >= WINDOW {
                    output(window.decide(&self.config, &mut filter, context.threads)?)?;
                }
            }
        }
        output(window.decide(&self.config, &mut filter, context.threads)?)
    }
}

/// Removes repeated lines and drops documents, as the scope says.
struct RemoveRepeats {
    config: BloomConfig,
}

impl BatchMap for RemoveRepeats {
    fn name(&self) -> &str {
        "remove-repeats"
    }

    fn apply(&self, batch: RecordBatch) -> Result<RecordBatch> {
        let repeated: &BinaryArray = column(self.name(), &batch, "repeated")?;
        let shares: &Float32Array = column(self.name(), &batch, "repeated_share")?;
        let batch = edit(self.name(), &batch, |document| {
            let (row, text) = (document.index(), document.text());
            if shares.is_null(row) {
                return Ok(Verdict::Keep);
            }
            let whole = f64::from(shares.value(row)) >= self.config.threshold
                && self.config.scope != BloomScope::Paragraphs;
            let edited = match self.config.scope {
                BloomScope::Documents => text.to_string(),
                BloomScope::Paragraphs | BloomScope::Both => without_lines(text, repeated.value(row)),
            };
            if whole || (edited.trim().is_empty() && !text.trim().is_empty()) {
                let percent = 100.0 * shares.value(row);
                let detail = format!("{percent:.1} % of its n-grams were seen before");
                return Ok(Verdict::drop("repeated-text", detail));
            }
            document.set_text(edited);
            Ok(Verdict::Keep)
        })?;
        without(&batch, &["repeated", "repeated_share"])
    }
}

/// A text without some of its lines.
fn without_lines(text: &str, lines: &[u8]) -> String {
    let mut gone = words(lines).peekable();
    let mut kept = Vec::new();
    for (index, line) in text.split('\n').enumerate() {
        if gone.peek() == Some(&(index as u64)) {
            gone.next();
        } else {
            kept.push(line);
        }
    }
    kept.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decide(texts: &[&str], config: &BloomConfig, threads: usize) -> Vec<(u64, Vec<u64>, f32)> {
        let mut filter = Filter::new(Size::for_keys(1000, 0.001));
        let mut window = Window::default();
        let (mut joined, mut hashes) = (Joined::new(), Vec::new());
        for (row, text) in texts.iter().enumerate() {
            let mut bytes = Vec::new();
            push_grams(text, config, &mut joined, &mut hashes, &mut bytes);
            window.push(0, row as u64, &bytes);
        }
        let batch = window.decide(config, &mut filter, threads).unwrap();
        let rows: &UInt64Array = column("test", &batch, "row").unwrap();
        let repeated: &BinaryArray = column("test", &batch, "repeated").unwrap();
        let shares: &Float32Array = column("test", &batch, "repeated_share").unwrap();
        (0..batch.num_rows())
            .map(|row| (rows.value(row), words(repeated.value(row)).collect(), shares.value(row)))
            .collect()
    }

    #[test]
    fn the_rule_of_bff() {
        let config = BloomConfig { ngram: 3, ..BloomConfig::default() };
        let texts = [
            "one two three four five six\nshort line",
            // The first line has 3 of 4 n-grams seen; the second is a whole n-gram seen.
            "one two three four five seven\nshort line\nnew words are here",
            // Both lines of itself: a line does not see its own n-grams, but the next line does.
            "zebra yak xerus\nzebra yak xerus",
            "",
        ];
        for threads in [1, 2, 5] {
            let found = decide(&texts, &config, threads);
            assert_eq!(found.len(), 2);
            assert_eq!((found[0].0, &found[0].1), (1, &vec![1]));
            assert!((found[0].2 - 4.0 / 7.0).abs() < 1e-6);
            assert_eq!(found[1], (2, vec![1], 0.5));
        }
        assert_eq!(
            without_lines(texts[1], &1_u64.to_le_bytes()),
            "one two three four five seven\nnew words are here"
        );
    }
}
