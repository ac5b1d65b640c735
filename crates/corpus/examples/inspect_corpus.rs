//! Lists dropped documents: `cargo run -p bessemer-corpus --example inspect_corpus -- CORPUS [REASON]`
#![allow(clippy::print_stdout)] // A program for a terminal.

use bessemer_corpus::{CorpusReader, InspectFilter};
use std::path::Path;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let folder = arguments.next().ok_or("usage: inspect_corpus CORPUS [REASON]")?;
    let reader = CorpusReader::open(Path::new(&folder))?;
    reader.verify()?;
    let filter = InspectFilter { reason: arguments.next(), ..InspectFilter::default() };
    for row in reader.inspect(filter) {
        let row = row?;
        let (reason, detail) = (row.reason.unwrap_or_default(), row.detail.unwrap_or_default());
        println!("{:>9} {reason} {} ({detail})", row.bytes, row.id);
    }
    Ok(())
}
