//! `bessemer init`: a first recipe for a text of the user's own.

use crate::cli::InitArgs;
use crate::commands::{explain, init_chats};
use crate::console::{Console, print};
use crate::escape::shell_word;
use crate::failure::Failure;
use crate::machine;
use bessemer_corpus::{begins_as_text, sample, source_kind_of};
use bessemer_corpus_config::{CorpusConfig, SourceKind};
use bessemer_kernels_cpu::{Rung, peak};
use bessemer_recipe::{Budget, Starter, TextFacts};
use bessemer_train::Observer;
use bessemer_units::{Bytes, Tokens, counted};
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;

/// Most files that are looked at; a larger folder is sized by these.
const MOST_FILES: u64 = 1_000_000;
/// Beginning of a text file that must be text.
const HEAD: u64 = 1 << 16;

pub(crate) fn run(args: &InitArgs, as_json: bool, console: &mut Console) -> Result<(), Failure> {
    let name = run_name(&args.out)?;
    if args.out.symlink_metadata().is_ok() {
        return Err(Failure::new(format!(
            "--out {}: the file exists and is not replaced; name another one, or remove it",
            args.out.display()
        )));
    }
    if let Some(chats) = &args.chats {
        return init_chats::run(args, &name, chats, as_json, console);
    }
    let Some(texts) = &args.texts else {
        return Err(Failure::usage("wanted a text, or --from MODEL --chats FILE"));
    };
    let found = look_at(texts, console)?;
    let (kept, rules) = kept_bytes(&found, console)?;
    let text = TextFacts { bytes: kept, ..found.clone() };
    let budget = Budget {
        peak_flops_per_s: peak::flops_per_s(Rung::detect(), machine::threads(0))?,
        hours: args.hours,
        memory: machine::available_memory(),
    };
    let starter = Starter::new(&text, budget).map_err(Failure::new)?;
    let command = format!("bessemer run {}", shell_word(&args.out.display().to_string()));
    let recipe = starter.to_toml(&name, &text, args.hours, &command).map_err(|problems| {
        Failure::usage(problems.into_iter().map(|p| p.message).collect::<Vec<_>>().join("; "))
    })?;
    bessemer_durable::write(&args.out, recipe.as_bytes())
        .map_err(|e| Failure::new(format!("--out {}: {e}", args.out.display())))?;
    let model = &starter.model;
    if starter.passes() > 100.0 {
        console.say(&format!(
            "warning: {} of text are too few to train on: the shortest training reads them {:.0} times; add text",
            Bytes(text.bytes),
            starter.passes()
        ));
    }
    if as_json {
        return Ok(print(
            &json!({
                "recipe": args.out.display().to_string(),
                "source": text.source,
                "files": text.files,
                "bytes": found.bytes,
                "kept_bytes": text.bytes,
                "text_tokens": starter.text_tokens,
                "parameters": model.parameters(),
                "steps": starter.steps,
                "batch_tokens": starter.batch_tokens,
                "seconds": starter.time.0,
                "next": command,
            })
            .to_string(),
        )?);
    }
    // As far as rounding to whole steps lets the passes come near to four.
    let reason = match starter.passes() > 3.8 {
        true => "more passes over this text stop helping".to_owned(),
        false => format!("limited by --hours {}", args.hours),
    };
    Ok(print(&format!(
        "found: {}, {} in {}, about {} tokens{rules}\n\
         chose: {} layers x {} ({} parameters), {} steps of {} tokens, {:.1} passes, about {}: {reason}\n\
         next:  {command}",
        source_in_words(text.source),
        Bytes(found.bytes),
        counted(text.files, "file"),
        Tokens(starter.text_tokens),
        model.layers,
        model.width,
        Tokens(model.parameters() as u64),
        starter.steps,
        Tokens(starter.batch_tokens),
        starter.passes(),
        starter.time,
    ))?)
}

/// The kind of a source as a user calls it.
fn source_in_words(source: SourceKind) -> &'static str {
    match source {
        SourceKind::Folder => "texts of a folder",
        SourceKind::Html => "web pages",
        SourceKind::Jsonl => "rows of text",
        SourceKind::Parquet => "Parquet rows",
        SourceKind::Warc => "web archives",
        SourceKind::Papers => "papers",
        SourceKind::Wikipedia => "a dump of Wikipedia",
        SourceKind::StackExchange => "a dump of Stack Exchange",
        SourceKind::File | SourceKind::Auto | SourceKind::Cargo | SourceKind::Embedded => "one text",
    }
}

/// Bytes of text that the rules of the new recipe keep, estimated from a sample; and a phrase about what they drop.
fn kept_bytes(text: &TextFacts, console: &mut Console) -> Result<(u64, String), Failure> {
    // A single text is kept byte for byte.
    if text.source == SourceKind::File {
        return Ok((text.bytes, String::new()));
    }
    let mut config = CorpusConfig { source: text.source, path: text.path.clone(), ..CorpusConfig::default() };
    config.text = text.field.clone().unwrap_or(config.text);
    let stop = AtomicBool::new(false);
    console.progress("looking at a sample of the text", 0, 0);
    let sample = sample(&config, machine::threads(0), &std::env::temp_dir(), &stop)?;
    let (read, kept) = (sample.read, sample.kept_of(text.bytes));
    let mut reasons: Vec<(&String, u64)> =
        sample.dropped.iter().map(|(reason, count)| (reason, count.documents)).collect();
    reasons.sort_by_key(|(reason, documents)| (std::cmp::Reverse(*documents), reason.as_str()));
    let reasons: Vec<String> =
        reasons.iter().take(4).map(|(reason, documents)| format!("{reason} {documents}")).collect();
    let of = if sample.is_whole { "" } else { " of a sample" };
    if kept == 0 {
        console.say(&format!(
            "warning: the recipe's rules keep none of the {} documents{of}; dropped: {}; see [corpus.clean] and [corpus.rules] in \
             docs/recipes.md",
            read.documents,
            reasons.join(", ")
        ));
        return Ok((text.bytes, String::new()));
    }
    let dropped = match reasons.is_empty() {
        true => String::new(),
        false => format!(
            "; the rules keep {} of {} documents{of} (dropped: {})",
            sample.kept.documents,
            read.documents,
            reasons.join(", ")
        ),
    };
    Ok((kept, dropped))
}

/// The run is called like the recipe's file.
fn run_name(out: &Path) -> Result<String, Failure> {
    let name = out.file_stem().and_then(|name| name.to_str()).unwrap_or_default().to_owned();
    let config = bessemer_recipe::RunConfig { name: name.clone(), ..Default::default() };
    match (config.check(), out.extension().is_some_and(|e| e == "toml")) {
        (Ok(()), true) => Ok(name),
        (Err(problem), true) => Err(Failure::usage(format!("--out {}: {problem}", out.display()))),
        (_, false) => {
            Err(Failure::usage(format!("--out {}: wanted a name that ends in .toml", out.display())))
        }
    }
}

/// Source kind, number of files and bytes of text found at a path.
fn look_at(path: &Path, console: &mut Console) -> Result<TextFacts, Failure> {
    let wrong = |what: &str| Failure::new(format!("{}: {what}", path.display()));
    let Some(written) = path.to_str() else {
        return Err(wrong("a recipe can only name paths that are UTF-8; rename it"));
    };
    if written.contains("://") {
        return Err(wrong("init looks at files of this machine; see docs/data.md for object stores"));
    }
    let metadata = path.metadata().map_err(|e| wrong(&e.to_string()))?;
    let (source, files, bytes, first) = match metadata.is_dir() {
        true => look_at_folder(path, console)?,
        false => {
            bessemer_durable::open_regular(path).map_err(|e| wrong(&e.to_string()))?;
            let source = match source_kind_of(written) {
                Some(kind) if kind != SourceKind::Folder => kind,
                _ => SourceKind::File,
            };
            if source == SourceKind::File {
                check_text(path)?;
            }
            (source, 1, text_bytes(written, metadata.len()), path.to_path_buf())
        }
    };
    let field = match source {
        SourceKind::Jsonl | SourceKind::Parquet => text_field(&first, console)?,
        _ => None,
    };
    Ok(TextFacts { source, path: written.to_owned(), field, files, bytes })
}

/// How the files below a folder are read, with their number, bytes, and the first of them: texts and pages as a folder of texts
/// where they are more than the others, in bytes or in number; else the kind with the most bytes. Hidden files and links are
/// passed over.
fn look_at_folder(path: &Path, console: &mut Console) -> Result<(SourceKind, u64, u64, PathBuf), Failure> {
    let mut kinds: BTreeMap<String, (SourceKind, u64, u64, PathBuf)> = BTreeMap::new();
    let (mut others, mut seen, mut folders) = (0_u64, 0_u64, vec![path.to_path_buf()]);
    while let Some(folder) = folders.pop() {
        let mut entries = bessemer_durable::list(&folder)?;
        entries.sort();
        for entry in entries {
            let name = entry.file_name().unwrap_or_default().to_string_lossy().into_owned();
            let Ok(metadata) = entry.symlink_metadata() else { continue };
            if name.starts_with('.') || seen == MOST_FILES {
                continue;
            }
            if metadata.is_dir() {
                folders.push(entry);
                continue;
            }
            if !metadata.is_file() {
                continue;
            }
            seen += 1;
            // A .json beside other files is seldom one of rows.
            let kind = source_kind_of(&name).filter(|_| !name.to_ascii_lowercase().ends_with(".json"));
            let kind = kind.or_else(|| holds_text(&name, &entry).then_some(SourceKind::Folder));
            let Some(kind) = kind else {
                others += 1;
                continue;
            };
            let found = kinds.entry(format!("{kind:?}")).or_insert((kind, 0, 0, entry.clone()));
            found.1 += 1;
            found.2 += text_bytes(&name, metadata.len());
        }
        console.progress("looking at files", seen, 0);
    }
    // A folder of texts holds saved pages too.
    let is_text = |kind: SourceKind| matches!(kind, SourceKind::Folder | SourceKind::Html);
    let sum = |is_counted: &dyn Fn(SourceKind) -> bool| {
        let counted = kinds.values().filter(|found| is_counted(found.0));
        counted.fold((0, 0), |(files, bytes), found| (files + found.1, bytes + found.2))
    };
    let (texts, rows) = (sum(&is_text), sum(&|kind| !is_text(kind)));
    let most = kinds.values().filter(|found| !is_text(found.0)).max_by_key(|(_, _, bytes, _)| *bytes);
    let pages = kinds.values().find(|found| found.0 == SourceKind::Html && found.1 == texts.0);
    let first = kinds.values().find(|found| is_text(found.0));
    let chosen = match (first, most) {
        (Some(_), None) if pages.is_some() => pages.cloned(),
        (Some((_, _, _, first)), most) if most.is_none() || texts.1 >= rows.1 || texts.0 > rows.0 => {
            Some((SourceKind::Folder, texts.0, texts.1, first.clone()))
        }
        (_, most) => most.cloned(),
    };
    let chosen = chosen.ok_or_else(|| {
        Failure::new(format!(
            "{}: wanted text, .jsonl, .csv, .parquet, .warc or .html files, found {}",
            path.display(),
            counted(others, "other file")
        ))
    })?;
    let rest = texts.0 + rows.0 + others - chosen.1;
    if rest > 0 {
        let kind = serde_json::to_value(chosen.0).unwrap_or_default();
        console.say(&format!(
            "the folder holds several kinds of files: the recipe reads {} as corpus.source = {kind} and leaves out {rest}; a recipe \
             reads several kinds as several sources (docs/data.md)",
            chosen.1
        ));
    }
    Ok(chosen)
}

/// Whether a file without an extension is text, as a folder reads it.
fn holds_text(name: &str, path: &Path) -> bool {
    !name.contains('.') && begins_with_text(path)
}

/// Bytes of text in a file of so many bytes: compressed ones hold about three times theirs.
fn text_bytes(name: &str, bytes: u64) -> u64 {
    let name = name.to_ascii_lowercase();
    let packed = [".gz", ".zst", ".parquet"].iter().any(|ending| name.ends_with(ending));
    if packed { bytes.saturating_mul(3) } else { bytes }
}

fn begins_with_text(path: &Path) -> bool {
    let mut head = Vec::new();
    let read = bessemer_durable::open_regular(path).and_then(|file| file.take(HEAD).read_to_end(&mut head));
    read.is_ok() && begins_as_text(&head)
}

/// Refuses a file that a run could not read as one text, which is kept byte for byte.
fn check_text(path: &Path) -> Result<(), Failure> {
    let wrong = |what: &str| Err(Failure::new(format!("{}: {what}", path.display())));
    let mut head = Vec::new();
    let read = bessemer_durable::open_regular(path).and_then(|file| file.take(HEAD).read_to_end(&mut head));
    // The cut may fall into a character.
    let is_utf8 = std::str::from_utf8(&head).map_or_else(|error| error.error_len().is_none(), |_| true);
    match read.is_ok() && begins_as_text(&head) {
        true if is_utf8 => Ok(()),
        true => {
            wrong("not UTF-8 text; put it into a folder of its own and name that: its encoding is found then")
        }
        false => wrong("not UTF-8 text, and its name does not end in .jsonl, .csv, .parquet, .warc or .html"),
    }
}

/// Names under which sets of instructions and questions hold the two sides of an example.
const PROMPTS: [&str; 9] =
    ["instruction", "prompt", "question", "query", "input", "problem", "context", "system", "system_prompt"];
const ANSWERS: [&str; 9] =
    ["output", "completion", "response", "answer", "answers", "chosen", "solution", "target", "reply"];

/// The field or column that holds the text, if it is not "text": of the first document, one of the usual names, else the
/// longest string.
fn text_field(file: &Path, console: &mut Console) -> Result<Option<String>, Failure> {
    let Some(columns) = explain::first_columns(file)? else { return Ok(None) };
    if columns.get("text").is_some_and(Value::is_string) {
        return Ok(None);
    }
    // Chats in JSON lines need no name: their turns are found.
    let is_jsonl = source_kind_of(&file.to_string_lossy()) == Some(SourceKind::Jsonl);
    if is_jsonl
        && ["messages", "conversations"].iter().any(|name| columns.get(*name).is_some_and(Value::is_array))
    {
        return Ok(None);
    }
    let usual = ["content", "body", "article", "document", "raw_content"].into_iter();
    let named =
        usual.filter(|name| columns.get(*name).is_some_and(Value::is_string)).map(str::to_owned).next();
    let found = strings(&columns);
    let longest = found.iter().max_by_key(|(name, length)| (*length, std::cmp::Reverse(name)));
    let Some(field) = named.or(longest.map(|(name, _)| name.clone())) else {
        return Err(Failure::new(format!(
            "{}: wanted a field or column of text in the first document, found {}",
            file.display(),
            columns.keys().cloned().collect::<Vec<_>>().join(", ")
        )));
    };
    let has = |names: &[&str]| names.iter().any(|name| columns.get(*name).is_some());
    if has(&PROMPTS) && has(&ANSWERS) {
        let is_left = |name: &&String| {
            **name != field && (PROMPTS.contains(&name.as_str()) || ANSWERS.contains(&name.as_str()))
        };
        let left: Vec<&str> = columns.keys().filter(is_left).map(String::as_str).collect();
        console.say(&format!(
            "instruction data: only the field {field:?} becomes text; left out: {}. To train on whole examples, write each as turns in \
             a field \"messages\" (docs/data.md) or as one text",
            left.join(", ")
        ));
    }
    Ok(Some(field))
}

/// Strings of a document with their lengths, by their names; those inside of objects by paths of names.
fn strings(columns: &Map<String, Value>) -> Vec<(String, usize)> {
    const DEEPEST: usize = 8;
    let mut found = Vec::new();
    let mut open: Vec<(String, &Map<String, Value>)> = vec![(String::new(), columns)];
    while let Some((prefix, object)) = open.pop() {
        for (name, value) in object {
            let path = format!("{prefix}{name}");
            match value {
                Value::String(text) => found.push((path, text.len())),
                Value::Object(inner) if path.matches('.').count() < DEEPEST => {
                    open.push((format!("{path}."), inner))
                }
                _ => {}
            }
        }
    }
    found
}
