//! Substrings, lines and sentences as stages of a plan.

use arrow_array::{ArrayRef, RecordBatch, StringArray, UInt8Array, UInt32Array, UInt64Array};
use arrow_schema::{DataType, Field, Schema};
use bessemer_corpus_config::dedup::{LineUnit, LinesConfig, SubstringConfig};
use bessemer_dataflow::{Batches, Executor, Plan, Result, Sink, Stage, column, optional};
use bessemer_dedup::{lines, substring};
use bessemer_durable::ConfinedDir;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// One row: its split, why it was dropped, its text.
type Row = (u8, Option<String>, String);

fn row(split: u8, text: &str) -> Row {
    (split, None, text.to_string())
}

/// Rows in batches of two, numbered within one file.
fn batches(rows: &[Row]) -> Vec<RecordBatch> {
    let schema = Arc::new(Schema::new(vec![
        Field::new("file", DataType::UInt32, false),
        Field::new("row", DataType::UInt64, false),
        Field::new("split", DataType::UInt8, true),
        Field::new("reason", DataType::Utf8, true),
        Field::new("detail", DataType::Utf8, true),
        Field::new("text", DataType::Utf8, false),
    ]));
    let batch = |(number, rows): (usize, &[Row])| {
        let columns: Vec<ArrayRef> = vec![
            Arc::new(UInt32Array::from(vec![0; rows.len()])),
            Arc::new(UInt64Array::from_iter_values((0..rows.len()).map(|i| (2 * number + i) as u64))),
            Arc::new(UInt8Array::from_iter_values(rows.iter().map(|row| row.0))),
            Arc::new(rows.iter().map(|row| row.1.clone()).collect::<StringArray>()),
            Arc::new(StringArray::new_null(rows.len())),
            Arc::new(StringArray::from_iter_values(rows.iter().map(|row| &row.2))),
        ];
        RecordBatch::try_new(schema.clone(), columns).unwrap()
    };
    rows.chunks(2).enumerate().map(batch).collect()
}

#[derive(Default)]
struct Rows(Vec<(Option<String>, String)>);

impl Sink for Rows {
    fn write(&mut self, batch: &RecordBatch) -> Result<()> {
        let reasons: &StringArray = column("test", batch, "reason")?;
        let texts: &StringArray = column("test", batch, "text")?;
        let rows = (0..batch.num_rows())
            .map(|i| (optional(reasons, i).map(str::to_string), texts.value(i).to_string()));
        self.0.extend(rows);
        Ok(())
    }
}

/// What comes out, the same for any number of threads and any memory.
fn run(rows: &[Row], stages: &[Stage]) -> Vec<(Option<String>, String)> {
    let mut expected = None;
    for (threads, memory) in [(1, 64 << 20), (3, 64 << 20), (2, 0)] {
        let folder = tempfile::tempdir().unwrap();
        let stop = AtomicBool::new(false);
        let plan = Plan { source: Arc::new(Batches::new("rows", batches(rows))), stages: stages.to_vec() };
        let mut sink = Rows::default();
        Executor::new(threads, memory, &ConfinedDir::open(folder.path()).unwrap(), &stop, &|| {})
            .run(&plan, &mut sink)
            .unwrap();
        match &expected {
            None => expected = Some(sink.0),
            Some(expected) => assert_eq!(&sink.0, expected, "{threads} threads, {memory} bytes"),
        }
    }
    expected.unwrap()
}

fn kept(text: &str) -> (Option<String>, String) {
    (None, text.to_string())
}

#[test]
fn a_repeated_passage_stays_once_in_training_first() {
    let passage = "this passage of some length stands in several documents of the corpus";
    let rows = [
        row(1, &format!("Validation begins. {passage} Validation ends here.")),
        row(0, &format!("Train é {passage} é train goes on.")),
        (0, Some("too-short".into()), passage.to_string()),
        row(0, &format!("Another one: {passage}")),
        row(0, passage),
    ];
    let config = SubstringConfig { length: 40, min_bytes_left: 10 };
    config.check("substring").unwrap();
    let found = run(&rows, &substring::stages(&config));
    assert_eq!(found[0], kept("Validation begins.Validation ends here."));
    assert_eq!(found[1], kept(&rows[1].2), "the first of the training documents stays whole");
    assert_eq!(found[2], (Some("too-short".into()), passage.into()), "dropped rows take no part");
    assert_eq!(found[3], kept("Another one:"));
    assert_eq!(found[4].0.as_deref(), Some("repeated-substrings"));
    assert!(
        SubstringConfig { length: 3, ..config }.check("substring").unwrap_err().contains("substring.length")
    );
}

#[test]
fn lines_stay_where_they_stood_first() {
    let rows = [
        row(0, "Share this page!\nA first text of its own.\n\n"),
        row(0, "share THIS page!\nSecond text 17.\n\nSecond text 23."),
        row(0, "Share this page!\n"),
        (0, Some("generated".into()), "Third text.".into()),
        row(1, "Third text.\nA first text of its own."),
    ];
    let config =
        LinesConfig { unit: LineUnit::Lines, min_words: 0, min_sentences: 1, ..LinesConfig::default() };
    let found = run(&rows, &lines::stages(&config));
    assert_eq!(found[0], kept(&rows[0].2));
    assert_eq!(found[1], kept("Second text 17.\n"), "digits do not tell lines apart, blank lines stay");
    assert_eq!(found[2].0.as_deref(), Some("repeated-lines"));
    assert_eq!(found[3], (Some("generated".into()), "Third text.".into()));
    assert_eq!(found[4], kept("Third text."));
}

/// The cases of datatrove's test_sd on texts of our own: a span in the middle, a document that ends with another one, one
/// that begins with one.
#[test]
fn spans_of_three_sentences_stay_where_they_stood_first() {
    let base = "Steel is made from iron. It takes much heat! Is it strong? It is, and it lasts.";
    let rows = [
        row(0, base),
        row(0, "It takes much heat. Is it strong? It is and it lasts! This is new?If you ask."),
        row(0, &format!("{base} KQ71!")),
        row(0, &format!("KQ71! {base} ZP02!")),
        row(0, "Is it strong? It is, and it lasts. But two sentences make no span."),
    ];
    let config =
        LinesConfig { unit: LineUnit::Sentences, min_words: 0, min_sentences: 0, ..LinesConfig::default() };
    let found = run(&rows, &lines::stages(&config));
    assert_eq!(found[0], kept(base));
    assert_eq!(found[1], kept("This is new?If you ask."));
    assert_eq!(found[2], kept("KQ71!"));
    assert_eq!(found[3], kept("KQ71! ZP02!"));
    assert_eq!(found[4], kept(&rows[4].2));
    let strict = LinesConfig { min_sentences: 3, ..config.clone() };
    let found = run(&rows, &lines::stages(&strict));
    assert_eq!(found[2].0.as_deref(), Some("repeated-lines"));
    assert_eq!(found[4], kept(&rows[4].2), "limits hold for documents that were cut only");
    assert!(LinesConfig { span: 0, ..config }.check("lines").unwrap_err().contains("lines.span"));
}

#[test]
fn nothing_repeats_in_no_rows() {
    assert_eq!(run(&[], &lines::stages(&LinesConfig::default())), []);
    assert_eq!(run(&[], &substring::stages(&SubstringConfig::default())), []);
}
