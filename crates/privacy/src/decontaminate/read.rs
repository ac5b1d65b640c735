//! Reads evaluation sets from JSON lines and Parquet.

use bessemer_corpus_config::decontaminate::EvaluationSource;
use bessemer_documents::JsonRows;
use bessemer_durable::TextReader;
use serde_json::Value;
use std::fs::File;
use std::io::BufRead;
use std::path::{Path, PathBuf};

/// A question with the answers that count as right.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Item {
    /// The question, prompt or context; may be empty.
    pub query: String,
    /// Right answers; may be none.
    pub answers: Vec<String>,
}

/// An evaluation set.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct EvaluationSet {
    /// Its name in reports.
    pub name: String,
    /// Its questions.
    pub items: Vec<Item>,
}

/// An evaluation set could not be read.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// The file could not be read.
    #[error("cannot read evaluation set {}: {cause}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The operating system's answer.
        #[source]
        cause: std::io::Error,
    },
    /// The file is not what its name says.
    #[error("evaluation set {}: {problem}", path.display())]
    Content {
        /// The file.
        path: PathBuf,
        /// The fault and its place.
        problem: String,
    },
}

/// Largest line of a JSON lines file: a question is not longer.
const LONGEST_LINE: u64 = 64 << 20;

/// Reads the file that `source` names, below `folder` if its path is relative.
///
/// # Errors
/// A file that is missing or damaged, a row without the named fields, or a file without rows.
pub fn read(source: &EvaluationSource, folder: &Path) -> Result<EvaluationSet, ReadError> {
    let path = folder.join(&source.path);
    let io = |cause| ReadError::Io { path: path.clone(), cause };
    let content = |problem| ReadError::Content { path: path.clone(), problem };
    let mut items = Vec::new();
    let mut row = |number: usize, value: &Value| {
        let read = item(source, value).map_err(|problem| content(format!("row {number}: {problem}")))?;
        items.push(read);
        Ok(())
    };
    let file = bessemer_durable::open_regular(&path).map_err(io)?;
    match path.extension().and_then(|extension| extension.to_str()) {
        Some("jsonl" | "json" | "ndjson") => json_lines(TextReader::buffered(file), &path, &mut row)?,
        Some("parquet") => parquet_rows(file, &path, &mut row)?,
        _ => return Err(content("expected a name that ends in .jsonl, .json or .parquet".into())),
    }
    if items.is_empty() {
        return Err(content("it holds no question".into()));
    }
    let stem = path.file_stem().unwrap_or_default().to_string_lossy();
    let name = if source.name.is_empty() { stem.into_owned() } else { source.name.clone() };
    Ok(EvaluationSet { name, items })
}

type Row<'a> = dyn FnMut(usize, &Value) -> Result<(), ReadError> + 'a;

fn json_lines(mut file: impl BufRead, path: &Path, row: &mut Row<'_>) -> Result<(), ReadError> {
    let mut line = Vec::new();
    for number in 1.. {
        line.clear();
        let read = std::io::Read::take(&mut file, LONGEST_LINE).read_until(b'\n', &mut line);
        let read = read.map_err(|cause| ReadError::Io { path: path.into(), cause })?;
        if read == 0 {
            break;
        }
        let problem = |problem: String| ReadError::Content { path: path.into(), problem };
        if read as u64 == LONGEST_LINE && line.last() != Some(&b'\n') {
            return Err(problem(format!("line {number} is longer than {} MiB", LONGEST_LINE >> 20)));
        }
        if line.trim_ascii().is_empty() {
            continue;
        }
        let value =
            serde_json::from_slice(&line).map_err(|cause| problem(format!("line {number}: {cause}")))?;
        row(number, &value)?;
    }
    Ok(())
}

fn parquet_rows(file: File, path: &Path, row: &mut Row<'_>) -> Result<(), ReadError> {
    let problem = |problem: String| ReadError::Content { path: path.into(), problem };
    let rows = JsonRows::open(file).map_err(|cause| problem(cause.to_string()))?;
    for (number, fields) in rows.enumerate() {
        row(number + 1, &Value::Object(fields.map_err(problem)?))?;
    }
    Ok(())
}

/// All texts at a path of names; a list gives those of its elements.
fn texts(value: &Value, path: &str) -> Vec<String> {
    match value {
        Value::Array(values) => values.iter().flat_map(|value| texts(value, path)).collect(),
        Value::Object(fields) if !path.is_empty() => {
            let (first, rest) = path.split_once('.').unwrap_or((path, ""));
            fields.get(first).map_or_else(Vec::new, |value| texts(value, rest))
        }
        Value::String(text) if path.is_empty() => vec![text.clone()],
        Value::Number(number) if path.is_empty() => vec![number.to_string()],
        Value::Bool(truth) if path.is_empty() => vec![truth.to_string()],
        _ => Vec::new(),
    }
}

fn item(source: &EvaluationSource, row: &Value) -> Result<Item, String> {
    let Value::Object(fields) = row else { return Err("expected an object".into()) };
    let known = |path: &str| {
        let first = path.split('.').next().unwrap_or_default();
        if fields.contains_key(first) {
            return Ok(());
        }
        let names: Vec<&str> = fields.keys().map(String::as_str).collect();
        Err(format!("it has no field {path:?}; it has: {}", names.join(", ")))
    };
    let mut query = Vec::new();
    for path in &source.query {
        known(path)?;
        query.extend(texts(row, path));
    }
    let mut answers = Vec::new();
    if !source.answer.is_empty() {
        known(&source.answer)?;
        answers = texts(row, &source.answer);
    }
    if !source.choices.is_empty() {
        known(&source.choices)?;
        let choices = texts(row, &source.choices);
        answers = answers.iter().map(|label| chosen(label, &choices)).collect::<Result<_, String>>()?;
    }
    Ok(Item { query: query.join(" "), answers })
}

/// The choice of a number from 0 or of a letter from A.
fn chosen(label: &str, choices: &[String]) -> Result<String, String> {
    let index = match label.trim().as_bytes() {
        [letter @ (b'A'..=b'Z' | b'a'..=b'z')] => Some(usize::from(letter.to_ascii_uppercase() - b'A')),
        _ => label.trim().parse().ok(),
    };
    index.and_then(|index: usize| choices.get(index)).cloned().ok_or_else(|| {
        format!("answer {label:?}: expected a number or letter among {} choices", choices.len())
    })
}
