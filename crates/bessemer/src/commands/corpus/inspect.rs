//! `bessemer corpus inspect` and `bessemer corpus export`: documents of a finished corpus.

use crate::cli::{ExportArgs, InspectArgs};
use crate::console::{Console, print};
use crate::escape;
use crate::failure::Failure;
use bessemer_corpus::{CorpusReader, InspectFilter, Inspected, Split};
use bessemer_durable::NewFile;
use bessemer_units::{Bytes, counted, did_you_mean};
use serde_json::json;
use std::io::{BufWriter, Write};
use std::path::Path;

/// Rows whose duplicates are named at once: each time costs a reading of the corpus' names.
const NAMED_AT_ONCE: usize = 4096;
/// Characters of a text that are shown without `--full`.
const HEAD_CHARS: usize = 160;

fn split_named(flag: &str, name: Option<&str>) -> Result<Option<Split>, Failure> {
    let Some(name) = name else { return Ok(None) };
    let found = Split::ALL.into_iter().find(|split| split.name() == name);
    found.map(Some).ok_or_else(|| Failure::usage(format!("{flag} {name}: wanted train or validation")))
}

/// Rows that the arguments select: dropped ones, kept ones of a split, or both where an id is given.
fn rows(
    reader: &CorpusReader,
    args: &InspectArgs,
) -> Result<Box<dyn Iterator<Item = bessemer_corpus::Result<Inspected>>>, Failure> {
    let split = split_named("--kept", args.kept.as_deref())?;
    let filter = |kept| InspectFilter {
        reason: args.reason.clone(),
        source: args.source.clone(),
        id: args.id.clone(),
        kept,
        whole: args.full,
        ..InspectFilter::default()
    };
    if let Some(split) = split {
        let is_wanted = move |row: &bessemer_corpus::Result<Inspected>| match row {
            Ok(row) => row.split == Some(split),
            Err(_) => true,
        };
        return Ok(Box::new(reader.inspect(filter(true)).filter(is_wanted)));
    }
    let dropped = reader.inspect(filter(false));
    if args.id.is_some() && args.reason.is_none() {
        return Ok(Box::new(dropped.chain(reader.inspect(filter(true)))));
    }
    Ok(Box::new(dropped))
}

pub(super) fn inspect(
    folder: &Path,
    args: &InspectArgs,
    as_json: bool,
    console: &mut Console,
) -> Result<(), Failure> {
    let reader = CorpusReader::open(folder)?;
    let mut rows = rows(&reader, args)?;
    let mut shown = 0;
    while shown < args.limit {
        let some = rows.by_ref().take(NAMED_AT_ONCE.min(args.limit - shown));
        let mut some = some.collect::<bessemer_corpus::Result<Vec<Inspected>>>()?;
        if some.is_empty() {
            break;
        }
        reader.name_duplicates(&mut some)?;
        shown += some.len();
        for row in &some {
            print(&if as_json { serde_json::to_string(row)? } else { in_words(row, args.full) })?;
        }
        // Nothing else can have this id.
        if args.id.is_some() {
            return Ok(());
        }
    }
    if let (Some(id), 0) = (&args.id, shown) {
        return Err(Failure::new(format!(
            "no document with the id {id:?} in {}; `bessemer corpus inspect` and `bessemer corpus inspect --kept train` print \
             ids",
            folder.display()
        )));
    }
    if let (Some(reason), 0) = (&args.reason, shown) {
        let known = reader.summary().dropped_by_reason.keys().map(String::as_str);
        console.say(&format!(
            "no document was dropped for the reason {reason:?}{}",
            did_you_mean(reason, known)
        ));
    }
    if let (Some(source), 0) = (&args.source, shown) {
        let known = reader.summary().sources.iter().map(|source| source.name.as_str());
        console.say(&format!("no such document of the source {source:?}{}", did_you_mean(source, known)));
    }
    if !as_json && rows.next().is_some() {
        console.say(&format!("{shown} shown; more with --limit"));
    }
    Ok(())
}

fn in_words(row: &Inspected, full: bool) -> String {
    let why = match (&row.reason, &row.detail) {
        (Some(reason), Some(detail)) => format!("{reason} ({detail})"),
        (Some(reason), None) => reason.clone(),
        (None, _) => row.split.map_or("kept".into(), |split| format!("kept for {}", split.name())),
    };
    let first = format!("{}  {}  {why}", row.id, Bytes(row.bytes));
    match &row.text {
        Some(text) => format!("{first}\n{text}\n"),
        None if full => {
            format!("{first}\n{}\n(only the beginning of a dropped document is stored)", row.head)
        }
        None => {
            let head = row.head.chars().map(|c| if c.is_control() { ' ' } else { c });
            format!("{first}\n    {}", head.take(HEAD_CHARS).collect::<String>().trim())
        }
    }
}

/// Writes kept documents as JSON lines: to a file, which appears whole, or to standard output.
pub(super) fn export(
    folder: &Path,
    args: &ExportArgs,
    as_json: bool,
    console: &mut Console,
) -> Result<(), Failure> {
    let split = split_named("--split", args.split.as_deref())?;
    let reader = CorpusReader::open(folder)?;
    let Some(path) = &args.out else {
        let mut out = BufWriter::new(std::io::stdout().lock());
        lines(&reader, split, args, &mut |line| out.write_all(escape::controls(line).as_bytes()))?;
        return Ok(out.flush()?);
    };
    let failed = |e: std::io::Error| Failure::new(format!("--out {}: {e}", path.display()));
    let mut out = NewFile::create(path).map_err(failed)?;
    let documents = lines(&reader, split, args, &mut |line| out.write_all(line.as_bytes()))?;
    out.commit().map_err(failed)?;
    console.say(&format!("wrote {} to {}", counted(documents, "document"), path.display()));
    if as_json {
        print(&json!({ "out": path.display().to_string(), "documents": documents }).to_string())?;
    }
    Ok(())
}

/// Hands every wanted document to `write` as a line of JSON; returns their number.
fn lines(
    reader: &CorpusReader,
    split: Option<Split>,
    args: &ExportArgs,
    write: &mut dyn FnMut(&str) -> std::io::Result<()>,
) -> Result<u64, Failure> {
    let mut documents = 0;
    for side in Split::ALL.into_iter().filter(|side| split.is_none_or(|split| split == *side)) {
        for document in reader.documents(side) {
            let document = document?;
            if args.source.as_ref().is_some_and(|source| *source != document.source) {
                continue;
            }
            let object = json!({
                "id": document.id, "source": document.source, "version": document.version,
                "licence": document.licence, "path": document.path, "split": side.name(), "text": document.text,
            });
            write(&format!("{object}\n"))?;
            documents += 1;
        }
    }
    Ok(documents)
}
