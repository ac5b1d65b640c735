//! `bessemer init`: a first recipe for a text of the user's own.

use crate::cli::InitArgs;
use crate::commands::explain;
use crate::console::{Console, print};
use crate::failure::Failure;
use crate::machine;
use bessemer_corpus::{SourceKind, source_kind_of};
use bessemer_kernels_cpu::{Rung, peak};
use bessemer_recipe::{Budget, Starter, TextFacts};
use bessemer_train::Observer;
use bessemer_units::{Bytes, Tokens, counted};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::io::Read;
use std::path::{Path, PathBuf};

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
    let text = look_at(&args.texts, console)?;
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
    if as_json {
        return Ok(print(
            &json!({
                "recipe": args.out.display().to_string(),
                "source": text.source,
                "files": text.files,
                "bytes": text.bytes,
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
    Ok(print(&format!(
        "wrote {}: {} of text in {} file{}, about {} tokens; {} layers x {}, {} parameters; {} steps of {} tokens, \
         {:.1} passes, about {}\nnext: {command}",
        args.out.display(),
        Bytes(text.bytes),
        text.files,
        if text.files == 1 { "" } else { "s" },
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

/// A path as a word of a shell command.
fn shell_word(text: &str) -> String {
    let plain = |c: char| c.is_alphanumeric() || "-_./+=,@".contains(c);
    if text.chars().all(plain) { text.to_owned() } else { format!("'{}'", text.replace('\'', r"'\''")) }
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

/// What is found at a path: how a recipe reads it, and how much of it there is.
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
            if source == SourceKind::File && !begins_as_text(path) {
                return Err(wrong(
                    "this is no UTF-8 text, and its name does not end in .jsonl, .parquet, .warc or .html",
                ));
            }
            (source, 1, text_bytes(written, metadata.len()), path.to_path_buf())
        }
    };
    let field = match source {
        SourceKind::Jsonl | SourceKind::Parquet => text_field(&first)?,
        _ => None,
    };
    Ok(TextFacts { source, path: written.to_owned(), field, files, bytes })
}

/// The kind of files with the most text below a folder, with their number, bytes, and the first of them. Hidden files and
/// links are passed over.
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
            let Some(kind) = source_kind_of(&name) else {
                others += 1;
                continue;
            };
            let found = kinds.entry(format!("{kind:?}")).or_insert((kind, 0, 0, entry.clone()));
            found.1 += 1;
            found.2 += text_bytes(&name, metadata.len());
        }
        console.progress("looking at files", seen, 0);
    }
    let most = kinds.values().max_by_key(|(_, _, bytes, _)| *bytes).cloned();
    let chosen = most.ok_or_else(|| {
        Failure::new(format!(
            "{}: wanted text, .jsonl, .parquet, .warc or .html files, found {}",
            path.display(),
            counted(others, "other file")
        ))
    })?;
    let rest: u64 = kinds.values().filter(|k| k.0 != chosen.0).map(|k| k.1).sum::<u64>() + others;
    if rest > 0 {
        console.say(&format!(
            "{} of other kinds left out; a recipe reads several kinds as several sources (docs/data.md)",
            counted(rest, "file")
        ));
    }
    Ok(chosen)
}

/// Bytes of text in a file of so many bytes: compressed ones hold about three times theirs.
fn text_bytes(name: &str, bytes: u64) -> u64 {
    let name = name.to_ascii_lowercase();
    let packed = [".gz", ".zst", ".parquet"].iter().any(|ending| name.ends_with(ending));
    if packed { bytes.saturating_mul(3) } else { bytes }
}

fn begins_as_text(path: &Path) -> bool {
    let mut head = Vec::new();
    let read = bessemer_durable::open_regular(path).and_then(|file| file.take(HEAD).read_to_end(&mut head));
    let whole = match std::str::from_utf8(&head) {
        Ok(_) => true,
        // The cut may fall into a character.
        Err(e) => e.error_len().is_none(),
    };
    read.is_ok() && whole && !head.contains(&0)
}

/// The field or column that holds the text, if it is not "text": of the first document, one of the usual names, else the
/// longest string.
fn text_field(file: &Path) -> Result<Option<String>, Failure> {
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
    let length = |value: &Value| value.as_str().map(str::len);
    let longest = columns.iter().filter_map(|(name, value)| Some((length(value)?, name.clone()))).max();
    match named.or(longest.map(|(_, name)| name)) {
        Some(name) => Ok(Some(name)),
        None => Err(Failure::new(format!(
            "{}: wanted a field or column of text in the first document, found {}",
            file.display(),
            columns.keys().cloned().collect::<Vec<_>>().join(", ")
        ))),
    }
}
