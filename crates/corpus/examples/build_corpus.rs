//! Builds a corpus and prints what was kept and dropped, with time and speed:
//! `cargo run --release -p bessemer-corpus --example build_corpus -- OUT [SOURCE] [PATH] [THREADS] [BUDGET_MIB]`
#![allow(clippy::print_stdout)] // A program for a terminal.

use bessemer_corpus::{BuildContext, Split, build};
use bessemer_corpus_config::CorpusConfig;
use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::time::Instant;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let argument = |index: usize, default: &str| arguments.get(index).cloned().unwrap_or(default.into());
    let source = argument(1, "auto");
    let config: CorpusConfig =
        serde_json::from_value(serde_json::json!({ "source": source, "path": argument(2, "") }))?;
    let context = BuildContext {
        threads: argument(3, "2").parse()?,
        memory_budget: argument(4, "1024").parse::<usize>()? << 20,
        progress: &|_| {},
        stop: &AtomicBool::new(false),
    };
    let begun = Instant::now();
    let built = build(&config, Path::new(&argument(0, "corpus")), &context)?;
    let seconds = begun.elapsed().as_secs_f64();
    let summary = &built.summary;
    println!("{} sources of kind {}, reused: {}", summary.sources.len(), summary.source, built.reused);
    println!("read    {:>7} documents {:>11} bytes", summary.read.documents, summary.read.bytes);
    println!("kept    {:>7} documents {:>11} bytes", summary.kept.documents, summary.kept.bytes);
    for split in Split::ALL {
        let part = summary.split(split);
        let (name, sources) = (split.name(), part.sources);
        println!(
            "  {name:<21} {:>7} documents {:>11} bytes from {sources} sources",
            part.documents, part.bytes
        );
    }
    println!("dropped {:>7} documents {:>11} bytes", summary.dropped.documents, summary.dropped.bytes);
    for (reason, count) in &summary.dropped_by_reason {
        println!("  {reason:<21} {:>7} documents {:>11} bytes", count.documents, count.bytes);
    }
    let (emails, ips, lines) = (summary.emails_replaced, summary.ips_replaced, summary.lines_removed);
    println!("replaced {emails} e-mail and {ips} IP addresses, removed {lines} lines");
    for remark in &summary.remarks {
        println!("remark: {remark}");
    }
    let speed = summary.read.bytes as f64 / 1e6 / seconds;
    println!(
        "{seconds:.2} s, {speed:.1} MB/s, {} bytes spilled, {}",
        built.spilled_bytes, summary.fingerprint
    );
    Ok(())
}
