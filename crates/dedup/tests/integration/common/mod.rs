//! Runs stages over documents in memory.
#![allow(dead_code, unreachable_pub, clippy::unwrap_used)] // each test file uses a part of it

use arrow_array::{Array, RecordBatch, StringArray, UInt8Array, UInt32Array, UInt64Array};
use arrow_schema::{DataType, Field, Schema};
use bessemer_dataflow::{Batches, Executor, Plan, Result, Sink, Stage, column};
use bessemer_durable::ConfinedDir;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// How a plan is run.
#[derive(Debug, Clone, Copy)]
pub struct Run {
    pub threads: usize,
    pub memory: usize,
    pub batch: usize,
}

/// One thread, all in memory.
pub const PLAIN: Run = Run { threads: 1, memory: 1 << 30, batch: 1000 };

/// The verdict on a document, and its text.
#[derive(Debug, Clone, PartialEq)]
pub struct Fate {
    pub text: String,
    pub reason: Option<String>,
    pub detail: Option<String>,
    pub copies: Option<u64>,
}

impl Fate {
    /// Row of the document that is kept instead, where one is.
    pub fn first(&self) -> Option<usize> {
        let words: Vec<&str> = self.detail.as_deref()?.split(' ').collect();
        let at = words.iter().position(|word| *word == "row")?;
        words.get(at + 1)?.parse().ok()
    }
}

struct Collect(Vec<RecordBatch>);

impl Sink for Collect {
    fn write(&mut self, batch: &RecordBatch) -> Result<()> {
        self.0.push(batch.clone());
        Ok(())
    }
}

/// Documents as rows of file 0.
pub fn batches(texts: &[String], splits: &[u8], size: usize) -> Vec<RecordBatch> {
    let schema = Arc::new(Schema::new(vec![
        Field::new("file", DataType::UInt32, false),
        Field::new("row", DataType::UInt64, false),
        Field::new("split", DataType::UInt8, true),
        Field::new("reason", DataType::Utf8, true),
        Field::new("detail", DataType::Utf8, true),
        Field::new("text", DataType::Utf8, false),
    ]));
    let rows: Vec<usize> = (0..texts.len()).collect();
    rows.chunks(size)
        .map(|rows| {
            let none = vec![None::<&str>; rows.len()];
            RecordBatch::try_new(
                schema.clone(),
                vec![
                    Arc::new(UInt32Array::from(vec![0; rows.len()])),
                    Arc::new(rows.iter().map(|row| *row as u64).collect::<UInt64Array>()),
                    Arc::new(rows.iter().map(|row| splits.get(*row).copied()).collect::<UInt8Array>()),
                    Arc::new(StringArray::from(none.clone())),
                    Arc::new(StringArray::from(none)),
                    Arc::new(rows.iter().map(|row| Some(texts[*row].as_str())).collect::<StringArray>()),
                ],
            )
            .unwrap()
        })
        .collect()
}

/// Runs stages over batches; gives back the batches at the end and the bytes that were spilled.
pub fn run_batches(batches: Vec<RecordBatch>, stages: Vec<Stage>, run: Run) -> (Vec<RecordBatch>, u64) {
    let folder = tempfile::tempdir().unwrap();
    let stop = AtomicBool::new(false);
    let executor =
        Executor::new(run.threads, run.memory, &ConfinedDir::open(folder.path()).unwrap(), &stop, &|| ());
    let plan = Plan { source: Arc::new(Batches::new("documents", batches)), stages };
    let mut sink = Collect(Vec::new());
    executor.run(&plan, &mut sink).unwrap();
    (sink.0, executor.spilled_bytes())
}

/// The verdicts on documents, in order.
pub fn fates(batches: &[RecordBatch]) -> Vec<Fate> {
    let mut fates = Vec::new();
    for batch in batches {
        let texts: &StringArray = column("test", batch, "text").unwrap();
        let reasons: &StringArray = column("test", batch, "reason").unwrap();
        let details: &StringArray = column("test", batch, "detail").unwrap();
        let copies = batch.column_by_name("copies");
        let copies = copies.and_then(|copies| copies.as_any().downcast_ref::<UInt64Array>());
        for row in 0..batch.num_rows() {
            let word = |array: &StringArray| (!array.is_null(row)).then(|| array.value(row).to_string());
            fates.push(Fate {
                text: texts.value(row).to_string(),
                reason: word(reasons),
                detail: word(details),
                copies: copies.map(|copies| copies.value(row)),
            });
        }
    }
    fates
}

/// Runs stages over texts.
pub fn run(texts: &[String], stages: Vec<Stage>, how: Run) -> Vec<Fate> {
    fates(&run_batches(batches(texts, &[], how.batch), stages, how).0)
}

/// Rows that are kept.
pub fn kept(fates: &[Fate]) -> Vec<usize> {
    (0..fates.len()).filter(|&row| fates[row].reason.is_none()).collect()
}

/// Every way of running must give what the plain one gives.
pub fn same_however_it_runs(texts: &[String], stages: &dyn Fn() -> Vec<Stage>) -> Vec<Fate> {
    let expected = run(texts, stages(), PLAIN);
    let small = 1 << 14;
    for how in [
        Run { threads: 2, ..PLAIN },
        Run { threads: 1, memory: small, batch: 1000 },
        Run { threads: 2, memory: small, batch: 7 },
        Run { threads: 3, memory: 1 << 20, batch: 64 },
    ] {
        assert!(run(texts, stages(), how) == expected, "{how:?}");
    }
    expected
}

/// A stream of numbers.
pub fn random(seed: u64, index: u64) -> u64 {
    let mut x =
        seed.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(index.wrapping_mul(0xd1b5_4a32_d192_ed03));
    x = (x ^ (x >> 32)).wrapping_mul(0xd6e8_feb8_6659_fd93);
    x = (x ^ (x >> 32)).wrapping_mul(0xd6e8_feb8_6659_fd93);
    x ^ (x >> 32)
}

/// Words that no other (seed, from) has.
pub fn words(seed: u64, from: u64, count: u64) -> Vec<String> {
    (from..from + count).map(|i| format!("{:x}", random(seed, i))).collect()
}

/// Two texts whose sets of words have `common` words in common and `own` each for itself.
pub fn pair(seed: u64, common: u64, own: u64) -> [String; 2] {
    let shared = words(seed, 0, common);
    [0, 1].map(|side| {
        let mut all = [shared.clone(), words(seed, 1_000_000 * (side + 1), own)].concat();
        all.sort();
        all.join(" ")
    })
}
