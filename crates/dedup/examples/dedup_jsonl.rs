//! Deduplicates a JSONL file of {"text": …} and reports time and memory:
//! `cargo run --release -p bessemer-dedup --example dedup_jsonl -- IN.jsonl DROPPED.txt [THREADS] [MEMORY_MIB] [CONFIG]`
//!
//! CONFIG is the JSON of `DedupConfig`, for example `{"methods": ["minhash"], "minhash": {"profile": "fineweb"}}`.
//! DROPPED.txt gets a line for each dropped document: its row, the row that is kept instead (-1 where only text was
//! removed), and the detail.
#![allow(clippy::print_stdout)] // A program for a terminal.

use arrow_array::{Array, RecordBatch, StringArray, UInt32Array, UInt64Array};
use arrow_schema::{DataType, Field, Schema};
use bessemer_corpus_config::dedup::DedupConfig;
use bessemer_dataflow::{Error, Executor, Morsel, Plan, Result, Scan, Sink, Source, column};
use bessemer_dedup::stages;
use bessemer_durable::ConfinedDir;
use std::borrow::Cow;
use std::fs::File;
use std::io::{BufRead, BufReader, BufWriter, Write};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Instant;

/// Bytes of lines that are parsed together.
const MORSEL_BYTES: usize = 1 << 20;

struct Lines(PathBuf);

struct LineScan {
    reader: BufReader<File>,
    path: PathBuf,
    row: u64,
}

#[derive(serde::Deserialize)]
struct Document<'a> {
    #[serde(borrow)]
    text: Cow<'a, str>,
}

impl Source for Lines {
    fn describe(&self) -> String {
        format!("JSON lines of {}", self.0.display())
    }

    fn scan(&self) -> Result<Box<dyn Scan>> {
        let file = File::open(&self.0).map_err(Error::io("open", &self.0))?;
        let reader = BufReader::with_capacity(1 << 18, file);
        Ok(Box::new(LineScan { reader, path: self.0.clone(), row: 0 }))
    }
}

impl Scan for LineScan {
    fn next(&mut self) -> Result<Option<Morsel>> {
        let (mut bytes, mut ends) = (Vec::with_capacity(MORSEL_BYTES + (1 << 16)), Vec::new());
        while bytes.len() < MORSEL_BYTES {
            let read = self.reader.read_until(b'\n', &mut bytes).map_err(Error::io("read", &self.path))?;
            if read == 0 {
                break;
            }
            ends.push(bytes.len());
        }
        let first = self.row;
        self.row += ends.len() as u64;
        Ok((!ends.is_empty()).then(|| Box::new(move || parse(&bytes, &ends, first)) as Morsel))
    }
}

fn parse(bytes: &[u8], ends: &[usize], first: u64) -> Result<RecordBatch> {
    let mut texts = arrow_array::builder::StringBuilder::with_capacity(ends.len(), bytes.len());
    let mut start = 0;
    for &end in ends {
        let document: Document<'_> = serde_json::from_slice(&bytes[start..end]).map_err(Error::other)?;
        texts.append_value(document.text);
        start = end;
    }
    let none = vec![None::<&str>; ends.len()];
    let schema = Schema::new(vec![
        Field::new("file", DataType::UInt32, false),
        Field::new("row", DataType::UInt64, false),
        Field::new("reason", DataType::Utf8, true),
        Field::new("detail", DataType::Utf8, true),
        Field::new("text", DataType::Utf8, false),
    ]);
    Ok(RecordBatch::try_new(
        Arc::new(schema),
        vec![
            Arc::new(UInt32Array::from(vec![0; ends.len()])),
            Arc::new((first..first + ends.len() as u64).collect::<UInt64Array>()),
            Arc::new(StringArray::from(none.clone())),
            Arc::new(StringArray::from(none)),
            Arc::new(texts.finish()),
        ],
    )?)
}

struct Dropped {
    out: BufWriter<File>,
    path: PathBuf,
    documents: u64,
    dropped: u64,
    bytes: u64,
}

impl Sink for Dropped {
    fn write(&mut self, batch: &RecordBatch) -> Result<()> {
        let rows: &UInt64Array = column("write", batch, "row")?;
        let reasons: &StringArray = column("write", batch, "reason")?;
        let details: &StringArray = column("write", batch, "detail")?;
        let texts: &StringArray = column("write", batch, "text")?;
        self.documents += batch.num_rows() as u64;
        for row in 0..batch.num_rows() {
            if reasons.is_null(row) {
                self.bytes += texts.value(row).len() as u64;
                continue;
            }
            let detail = details.value(row);
            let first = detail.split(" row ").nth(1).and_then(|rest| rest.split(' ').next()).unwrap_or("-1");
            self.dropped += 1;
            writeln!(self.out, "{}\t{first}\t{detail}", rows.value(row))
                .map_err(Error::io("write", &self.path))?;
        }
        Ok(())
    }
}

fn main() -> std::result::Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [input, output, options @ ..] = arguments.as_slice() else {
        return Err("usage: dedup_jsonl IN.jsonl DROPPED.txt [THREADS] [MEMORY_MIB] [CONFIG]".into());
    };
    let option = |index: usize, default: &str| options.get(index).cloned().unwrap_or(default.into());
    let config: DedupConfig = serde_json::from_str(&option(2, r#"{"methods": ["minhash"]}"#))?;
    config.check()?;
    let threads = option(0, "1").parse()?;
    let memory = option(1, "2048").parse::<usize>()? << 20;
    let spill = tempfile::tempdir()?;
    let stop = AtomicBool::new(false);
    let executor = Executor::new(threads, memory, &ConfinedDir::open(spill.path())?, &stop, &|| ());
    let plan = Plan { source: Arc::new(Lines(input.into())), stages: stages(&config) };
    let mut sink = Dropped {
        out: BufWriter::new(File::create(output)?),
        path: output.into(),
        documents: 0,
        dropped: 0,
        bytes: 0,
    };
    let megabytes = std::fs::metadata(input)?.len() as f64 / 1e6;
    let start = Instant::now();
    executor.run(&plan, &mut sink)?;
    sink.out.flush()?;
    let seconds = start.elapsed().as_secs_f64();
    println!(
        "{} documents, {} dropped, {} bytes kept, {seconds:.3} s, {:.1} MB/s, {} MB spilled",
        sink.documents,
        sink.dropped,
        sink.bytes,
        megabytes / seconds,
        executor.spilled_bytes() / 1_000_000
    );
    Ok(())
}
