//! Dumps of Stack Exchange (`Posts.xml`, unpacked): a document for each question that has an answer.
//!
//! A thread's answers stand anywhere behind its question, so a file is read twice: once for an index of the answers (32 bytes each),
//! once for the questions, whose answers are then read at their places. Where a site has more than a million answers, its
//! questions are taken in runs, each with an index of its own, so memory stays below 64 MiB however large the dump is. Questions without an answer are
//! dropped rows; posts that are no part of a thread leave no row.

use super::files::{ByFile, FileSource};
use super::folder::FileEntry;
use super::location::{Opened, SourceLocation};
use super::{MORSEL_BYTES, max_page_bytes};
use crate::dialogue;
use crate::error::Result;
use arrow_array::RecordBatch;
use bessemer_corpus_config::DialogueConfig;
use bessemer_documents::{HEAD_BYTES, Origin, RowBuilder};
use bessemer_markup::MarkupLimits;
use bessemer_markup::stack_exchange::{Post, PostKind};
use bessemer_web::extract::{Extractor, Plain};
use bessemer_web::html::HtmlLimits;
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom};
use std::sync::Arc;

/// Answers of an index.
const INDEX_ANSWERS: usize = 1 << 20;
/// Bytes read at once.
const BUFFER: usize = 256 << 10;

/// Whether a file name is that of a dump of posts.
pub(crate) fn is_posts(name: &str) -> bool {
    name.rsplit('/').next() == Some("Posts.xml")
}

#[derive(Clone)]
pub(super) struct StackExchange {
    reading: Arc<Reading>,
}

/// How threads become rows.
struct Reading {
    dialogue: DialogueConfig,
    limits: MarkupLimits,
    /// Answers of an index.
    index_answers: usize,
}

/// Opens the dumps.
pub(super) fn open(
    place: &SourceLocation<'_>,
    max_bytes: u64,
    dialogue: &DialogueConfig,
) -> Result<FileSource<StackExchange>> {
    let (files, listing) = place.find("stack-exchange", is_posts)?;
    let limits = MarkupLimits { max_bytes: max_page_bytes(max_bytes) as usize, ..MarkupLimits::default() };
    let reading = Reading { dialogue: dialogue.clone(), limits, index_answers: INDEX_ANSWERS };
    Ok(FileSource::new(place, files, listing, StackExchange { reading: Arc::new(reading) }))
}

/// Position of an answer in its file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct AnswerEntry {
    question: u64,
    /// Negated, so that the best answer comes first.
    score: i32,
    id: u32,
    offset: u64,
    length: u32,
}

/// Answers of a run of questions, in order.
pub(super) struct AnswerIndex {
    entries: Vec<AnswerEntry>,
    /// The last question of the run.
    last_question: u64,
}

/// A line of a dump.
struct Line {
    offset: u64,
    number: u64,
    bytes: Vec<u8>,
    /// Bytes of the line in the file.
    length: u64,
}

/// Reads lines, of a long one only the beginning.
pub(super) struct Lines {
    reader: BufReader<Opened>,
    offset: u64,
    number: u64,
    max_bytes: usize,
}

impl Lines {
    fn open(file: &FileEntry, max_bytes: usize) -> io::Result<Lines> {
        let reader = BufReader::with_capacity(BUFFER, file.open()?);
        Ok(Lines { reader, offset: 0, number: 0, max_bytes })
    }

    fn next(&mut self) -> io::Result<Option<Line>> {
        let mut bytes = Vec::new();
        let mut length =
            self.reader.by_ref().take(self.max_bytes as u64).read_until(b'\n', &mut bytes)? as u64;
        if length == 0 {
            return Ok(None);
        }
        if length == self.max_bytes as u64 && bytes.last() != Some(&b'\n') {
            length += super::jsonl::skip_line(&mut self.reader)?;
        }
        let offset = self.offset;
        self.offset += length;
        self.number += 1;
        Ok(Some(Line { offset, number: self.number, bytes, length }))
    }
}

/// A number that an attribute of a row states, found without reading the row as XML.
fn attribute(line: &[u8], name: &str) -> Option<i64> {
    let mark = format!(" {name}=\"");
    let at = line.windows(mark.len()).position(|window| window == mark.as_bytes())? + mark.len();
    let length = line[at..].iter().position(|byte| *byte == b'"')?;
    std::str::from_utf8(&line[at..at + length]).ok()?.parse().ok()
}

impl AnswerIndex {
    /// The index of as many questions from `first_question` on as have at most `most` answers together.
    fn read(file: &FileEntry, first_question: u64, most: usize, max_bytes: usize) -> io::Result<AnswerIndex> {
        let mut lines = Lines::open(file, max_bytes)?;
        let mut index = AnswerIndex { entries: Vec::new(), last_question: u64::MAX };
        while let Some(line) = lines.next()? {
            if line.length > line.bytes.len() as u64 || attribute(&line.bytes, "PostTypeId") != Some(2) {
                continue;
            }
            let number = |name: &str| attribute(&line.bytes, name);
            let (Some(question), Some(id)) = (number("ParentId"), number("Id")) else { continue };
            let (question, id) = (question as u64, u32::try_from(id).unwrap_or(u32::MAX));
            if question < first_question || question > index.last_question {
                continue;
            }
            let score = -(number("Score").unwrap_or(0).clamp(-1 << 30, 1 << 30) as i32);
            let length = line.length as u32;
            index.entries.push(AnswerEntry { question, score, id, offset: line.offset, length });
            if index.entries.len() >= 2 * most {
                index.cut(most);
            }
        }
        index.cut(most);
        index.entries.shrink_to_fit();
        Ok(index)
    }

    /// Keeps the answers of the first questions, at most `most` unless one question alone has more.
    fn cut(&mut self, most: usize) {
        self.entries.sort_unstable();
        if self.entries.len() > most {
            let first = self.entries[0].question;
            let beyond = self.entries[most].question;
            self.last_question = if beyond > first { beyond - 1 } else { first };
            let last = self.last_question;
            self.entries.retain(|entry| entry.question <= last);
            // Of a question with this many answers nobody wants the last ones.
            self.entries.truncate(most);
        }
    }

    /// The answers to take of a question, the accepted one first.
    fn of(&self, question: u64, accepted: Option<u64>, most: usize) -> Vec<AnswerEntry> {
        let start = self.entries.partition_point(|entry| entry.question < question);
        let all = &self.entries[start..];
        let all = &all[..all.partition_point(|entry| entry.question == question)];
        let is_accepted = |entry: &&AnswerEntry| accepted == Some(u64::from(entry.id));
        let first = all.iter().filter(is_accepted);
        let others = all.iter().filter(|entry| !is_accepted(entry));
        first.chain(others).take(most).copied().collect()
    }
}

/// A dump that is being read.
pub(super) struct Dump {
    index: AnswerIndex,
    /// First question of the run.
    first_question: u64,
    lines: Lines,
}

/// A question with where its answers stand, or what stands in its place.
pub(super) enum Item {
    Thread {
        line: Vec<u8>,
        answers: Vec<AnswerEntry>,
    },
    /// Reason, detail, beginning of the line.
    Fault(&'static str, String, Vec<u8>),
}

impl StackExchange {
    /// The dump from `first_question` on.
    fn dump(&self, file: &FileEntry, first_question: u64) -> io::Result<Dump> {
        let max_bytes = self.reading.limits.max_bytes;
        let index = AnswerIndex::read(file, first_question, self.reading.index_answers, max_bytes)?;
        Ok(Dump { index, first_question, lines: Lines::open(file, max_bytes)? })
    }

    /// The items of the next morsel, and whether the last run of questions ends with them.
    fn items(&self, file: &FileEntry, dump: &mut Dump) -> io::Result<(Vec<(u64, Item)>, bool)> {
        let (mut items, mut bytes) = (Vec::new(), 0);
        while bytes < MORSEL_BYTES {
            let Some(line) = dump.lines.next()? else {
                let last = dump.index.last_question;
                if last < u64::MAX {
                    *dump = self.dump(file, last + 1)?;
                }
                return Ok((items, last == u64::MAX));
            };
            let run = dump.first_question..=dump.index.last_question;
            let id = attribute(&line.bytes, "Id").map(|id| id as u64);
            let is_row = line.bytes.trim_ascii_start().starts_with(b"<row ");
            if !is_row {
                continue;
            }
            // What is damaged or too long has no number that counts: it is counted in the first run.
            let in_run = id.map_or(dump.first_question == 0, |id| run.contains(&id));
            let kind = attribute(&line.bytes, "PostTypeId");
            if !in_run || !matches!(kind, Some(1) | None) {
                continue;
            }
            let head = || line.bytes[..line.bytes.len().min(HEAD_BYTES)].to_vec();
            let item = if line.length > line.bytes.len() as u64 {
                let detail =
                    format!("a post of {} bytes, at most {}", line.length, self.reading.limits.max_bytes);
                Item::Fault("too-large", detail, head())
            } else {
                let answers = match (id, kind) {
                    (Some(id), Some(_)) => {
                        let accepted = attribute(&line.bytes, "AcceptedAnswerId").map(|id| id as u64);
                        dump.index.of(id, accepted, self.reading.dialogue.answers as usize)
                    }
                    _ => Vec::new(),
                };
                bytes +=
                    line.bytes.len() + answers.iter().map(|answer| answer.length as usize).sum::<usize>();
                Item::Thread { line: line.bytes, answers }
            };
            items.push((line.number, item));
        }
        Ok((items, false))
    }
}

/// The item of a dump that cannot be read.
fn unreadable(cause: &io::Error) -> Vec<(u64, Item)> {
    vec![(0, Item::Fault("unreadable", cause.to_string(), Vec::new()))]
}

impl ByFile for StackExchange {
    const FILES: &'static str = "Stack Exchange dumps";
    type Reader = Dump;
    type Chunk = Vec<(u64, Item)>;

    fn open(&self, file: &FileEntry) -> std::result::Result<Dump, Self::Chunk> {
        self.dump(file, 0).map_err(|cause| unreadable(&cause))
    }

    fn next(&self, file: &FileEntry, dump: &mut Dump) -> (Option<Self::Chunk>, bool) {
        let read = self.items(file, dump);
        let (items, has_ended) = read.unwrap_or_else(|cause| (unreadable(&cause), true));
        ((!items.is_empty()).then_some(items), has_ended)
    }

    fn rows(
        &self,
        file: &FileEntry,
        ordinal: usize,
        items: Self::Chunk,
    ) -> bessemer_dataflow::Result<RecordBatch> {
        rows(file, ordinal, items, &self.reading)
    }
}

fn rows(
    file: &FileEntry,
    ordinal: usize,
    items: Vec<(u64, Item)>,
    reading: &Reading,
) -> bessemer_dataflow::Result<RecordBatch> {
    let name = &file.relative;
    let mut rows = RowBuilder::with_capacity(items.len(), MORSEL_BYTES);
    let mut opened = None;
    for (row, item) in items {
        let id = format!("{name}#{row}");
        let mut origin = file.origin(ordinal, row, &id);
        let (line, answers) = match item {
            Item::Thread { line, answers } => (line, answers),
            Item::Fault(reason, detail, head) => {
                rows.refuse(&origin, reason, &format!("{name}:{row}: {detail}"), &head);
                continue;
            }
        };
        origin.bytes = line.len() as u64 + answers.iter().map(|answer| u64::from(answer.length)).sum::<u64>();
        let head = &line[..line.len().min(HEAD_BYTES)];
        match thread(file, &line, &answers, reading, &mut opened) {
            Ok(Thread { text, created }) => {
                rows.push(&Origin { fetched: created.as_deref(), ..origin }, text.as_bytes());
            }
            Err((reason, detail)) => rows.refuse(&origin, reason, &format!("{name}:{row}: {detail}"), head),
        }
    }
    rows.finish()
}

struct Thread {
    text: String,
    created: Option<String>,
}

/// The text of a thread, or why there is none: reason and detail.
fn thread(
    file: &FileEntry,
    line: &[u8],
    answers: &[AnswerEntry],
    reading: &Reading,
    opened: &mut Option<Opened>,
) -> std::result::Result<Thread, (&'static str, String)> {
    let question = post(line, reading)?;
    let PostKind::Question { .. } = question.kind else {
        return Err(("bad-xml", "a row without a known kind of post".into()));
    };
    let mut texts = Vec::with_capacity(answers.len());
    for answer in answers {
        let bytes = read_at(file, answer, opened).map_err(|cause| ("unreadable", cause.to_string()))?;
        // An answer that is damaged is as good as none.
        if let Ok(answer) = post(&bytes, reading)
            && let Ok(text) = text_of(&answer.body)
            && !text.is_empty()
        {
            texts.push(text);
        }
    }
    if texts.is_empty() {
        return Err(("no-answer", question.title));
    }
    let text = dialogue::thread(&reading.dialogue, &question.title, &text_of(&question.body)?, &texts);
    Ok(Thread { text, created: question.created })
}

fn post(line: &[u8], reading: &Reading) -> std::result::Result<Post, (&'static str, String)> {
    let line =
        std::str::from_utf8(line).map_err(|_| ("invalid-utf8", "a post that is not UTF-8".to_string()))?;
    let post = Post::parse(line, &reading.limits).map_err(|error| (error.reason(), error.to_string()))?;
    post.ok_or_else(|| ("bad-xml", "no row of a post".into()))
}

/// The text of a post's HTML.
fn text_of(html: &str) -> std::result::Result<String, (&'static str, String)> {
    let found = Plain.extract(html, &HtmlLimits::default());
    found.map(|found| found.text).map_err(|error| (error.verdict(), error.to_string()))
}

fn read_at(file: &FileEntry, answer: &AnswerEntry, opened: &mut Option<Opened>) -> io::Result<Vec<u8>> {
    if opened.is_none() {
        *opened = Some(file.open()?);
    }
    let Some(opened) = opened else { return Ok(Vec::new()) };
    opened.seek(SeekFrom::Start(answer.offset))?;
    let mut bytes = vec![0; answer.length as usize];
    opened.read_exact(&mut bytes)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::Source;
    use arrow_array::cast::AsArray;

    const POSTS: &str = r#"<?xml version="1.0" encoding="utf-8"?>
<posts>
  <row Id="1" PostTypeId="1" AcceptedAnswerId="4" Score="5" Title="How hot?" Body="&lt;p&gt;How &lt;b&gt;hot&lt;/b&gt; is it?&lt;/p&gt;" CreationDate="2020-01-01T00:00:00" />
  <row Id="2" PostTypeId="2" ParentId="1" Score="9" Body="&lt;p&gt;Very.&lt;/p&gt;" />
  <row Id="3" PostTypeId="1" Score="0" Title="Nobody?" Body="&lt;p&gt;x&lt;/p&gt;" />
  <row Id="4" PostTypeId="2" ParentId="1" Score="1" Body="&lt;p&gt;1600 °C.&lt;/p&gt;" />
  <row Id="5" PostTypeId="2" ParentId="1" Score="12" Body="&lt;p&gt;Too hot.&lt;/p&gt;" />
  <row Id="6" PostTypeId="5" Body="a tag" />
  <row Id="7" PostTypeId="1" Title="Why" Body="y" damaged
  <row Id="8" PostTypeId="1" Title="And cold?" Body="z" />
  <row Id="9" PostTypeId="2" ParentId="8" Score="-2" Body="0" />
</posts>
"#;

    fn read(posts: &str, index_answers: usize) -> Vec<(String, Option<String>, String)> {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("Posts.xml"), posts).unwrap();
        let place = SourceLocation::on_disk(folder.path(), &[]);
        let mut source =
            open(&place, 1 << 20, &DialogueConfig { answers: 2, ..DialogueConfig::default() }).unwrap();
        Arc::get_mut(&mut source.format.reading).unwrap().index_answers = index_answers;
        let mut scan = source.scan_files(0..1).unwrap();
        let mut found = Vec::new();
        while let Some(morsel) = scan.next().unwrap() {
            let batch = morsel().unwrap();
            let (id, reason) = (batch["id"].as_string::<i32>(), batch["reason"].as_string::<i32>());
            let text = batch["text"].as_binary::<i32>();
            for row in 0..batch.num_rows() {
                let reason = reason.iter().nth(row).flatten().map(String::from);
                found.push((
                    id.value(row).to_string(),
                    reason,
                    String::from_utf8_lossy(text.value(row)).into_owned(),
                ));
            }
        }
        found
    }

    #[test]
    fn threads_are_questions_with_their_accepted_and_best_answers() {
        let all = read(POSTS, INDEX_ANSWERS);
        let reasons: Vec<(&str, Option<&str>)> =
            all.iter().map(|(id, reason, _)| (id.as_str(), reason.as_deref())).collect();
        assert_eq!(
            reasons,
            [
                ("Posts.xml#3", None),
                ("Posts.xml#5", Some("no-answer")),
                ("Posts.xml#9", Some("bad-xml")),
                ("Posts.xml#10", None)
            ]
        );
        assert_eq!(all[0].2, "Question: How hot?\n\nHow hot is it?\n\nAnswer: 1600 °C.\n\nAnswer: Too hot.");
        // With room for few answers the questions are taken in runs, to the same end.
        let mut runs = read(POSTS, 3);
        runs.sort();
        let mut wanted = all;
        wanted.sort();
        assert_eq!(runs, wanted);
    }
}
