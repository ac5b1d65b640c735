//! How often a text is copied between its source and the Parquet files: the buffers of the text column behind every stage of
//! the plan are distinguished by their addresses.

use arrow_array::cast::AsArray;
use arrow_array::{ArrayRef, RecordBatch};
use bessemer_corpus::*;
use bessemer_corpus_config::dedup::Method;
use bessemer_corpus_config::*;
use bessemer_dataflow::{BatchMap, Batches, Executor, Plan, Result, Sink, Stage};
use bessemer_durable::ConfinedDir;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};
use tempfile::TempDir;

/// Buffers of text columns by address, with their bytes. The columns are kept, so that no address is used twice.
#[derive(Default)]
struct Buffers {
    bytes: BTreeMap<usize, usize>,
    kept: Vec<ArrayRef>,
}

/// Notes the text columns that pass it.
struct Tap(Arc<Mutex<Buffers>>);

impl BatchMap for Tap {
    fn name(&self) -> &str {
        "tap"
    }

    fn apply(&self, batch: RecordBatch) -> Result<RecordBatch> {
        let column = batch.column_by_name("text").unwrap();
        let values = match column.as_string_opt::<i32>() {
            Some(texts) => texts.values(),
            None => column.as_binary::<i32>().values(),
        };
        let mut buffers = self.0.lock().unwrap();
        buffers.bytes.insert(values.data_ptr().as_ptr() as usize, values.len());
        buffers.kept.push(column.clone());
        Ok(batch)
    }
}

/// Runs plans on this machine, with a tap behind each stage.
#[derive(Default)]
struct Traced {
    /// Bytes of texts in the source, and in all buffers after it.
    found: Mutex<(usize, usize)>,
}

impl Engine for Traced {
    fn run(&self, text: &str, folder: &Path, sink: &mut dyn Sink) -> Result<()> {
        let plan = RemotePlan::of(text, &Access::default()).unwrap();
        let mut batches = Vec::new();
        for part in 0..plan.count() {
            let mut scan = plan.scan(part)?;
            while let Some(morsel) = scan.next()? {
                batches.push(morsel()?);
            }
        }
        let (read, made) =
            (Arc::new(Mutex::new(Buffers::default())), Arc::new(Mutex::new(Buffers::default())));
        batches.iter().for_each(|batch| drop(Tap(read.clone()).apply(batch.clone())));
        let tapped =
            plan.stages().iter().flat_map(|stage| [stage.clone(), Stage::Map(Arc::new(Tap(made.clone())))]);
        let plan = Plan { source: Arc::new(Batches::new("read", batches)), stages: tapped.collect() };
        let stop = AtomicBool::new(false);
        std::fs::create_dir_all(folder).unwrap();
        Executor::new(2, 256 << 20, &ConfinedDir::create_named(folder).unwrap(), &stop, &|| ())
            .run(&plan, sink)?;
        let (read, mut made): (Buffers, Buffers) =
            (std::mem::take(&mut *read.lock().unwrap()), std::mem::take(&mut *made.lock().unwrap()));
        made.bytes.retain(|address, _| !read.bytes.contains_key(address));
        *self.found.lock().unwrap() = (read.bytes.values().sum(), made.bytes.values().sum());
        Ok(())
    }
}

/// Text number `index`: prose that the rules keep, with an e-mail address in every tenth.
fn text(index: u64) -> String {
    const WORDS: [&str; 14] = [
        "furnace", "river", "people", "said", "that", "steel", "the", "and", "have", "bridges", "with",
        "cheap", "be", "of",
    ];
    let mut state = index.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut text = if index.is_multiple_of(10) {
        String::from("Write to jane.doe@mail.de soon.\n")
    } else {
        String::new()
    };
    for number in 0..600 {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        text += WORDS[(state >> 33) as usize % WORDS.len()];
        text += if number % 12 == 11 { ".\n" } else { " " };
    }
    text
}

/// A build with rules, privacy and MinHash: what all buffers behind the source hold, as a multiple of the source's texts.
#[test]
fn a_text_is_copied_at_most_three_times_on_its_way_to_parquet() {
    let folder = TempDir::new().unwrap();
    let input = folder.path().join("texts.jsonl");
    // Every eighth text is there twice.
    let lines = (0..800).map(|index| serde_json::json!({"text": text(index - index % 8 / 7)}).to_string());
    std::fs::write(&input, lines.collect::<Vec<_>>().join("\n")).unwrap();
    let mut config = CorpusConfig {
        source: SourceKind::Jsonl,
        path: input.display().to_string(),
        ..CorpusConfig::default()
    };
    config.rules.profiles = vec!["gopher-quality".into()];
    config.dedup.methods = vec![Method::Minhash];
    let (engine, stop) = (Traced::default(), AtomicBool::new(false));
    let context = BuildContext { threads: 2, memory_budget: 256 << 20, progress: &|_| {}, stop: &stop };
    let built = build_on(&config, &folder.path().join("corpus"), &context, Some(&engine)).unwrap();
    assert_eq!((built.summary.read.documents, built.summary.kept.documents), (800, 700));
    assert_eq!(built.summary.emails_replaced, 80);

    let (read, made) = *engine.found.lock().unwrap();
    assert!(read > 2 << 20);
    // The sink gathers the texts of a row group: one copy more.
    let copies = made as f64 / read as f64 + 1.0;
    assert!(copies <= 3.0, "{copies:.2} copies");
}
