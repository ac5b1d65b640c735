//! Documents of a task: JSON lines, a JSON list, CSV or Parquet on this machine. Nothing is downloaded.

use crate::catalog::Catalog;
use crate::config::TaskConfig;
use crate::error::TaskError;
use bessemer_durable::TextReader;
use serde_json::{Map, Value};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

/// A document: columns by name.
pub type Document = Map<String, Value>;

/// Reader of the rows of a Parquet file. A program passes one: this crate is compiled without Parquet.
pub type ParquetReader = fn(File) -> Result<Vec<Document>, String>;

/// Largest file of documents that is read.
const MOST_BYTES: u64 = 4 << 30;

/// Splits of a data set by name.
pub(crate) type Splits = BTreeMap<String, Vec<Document>>;

/// The documents of a task. Files are looked for in `folder`, that of the task file, and in that of the catalog's data sets.
pub(crate) fn load(config: &TaskConfig, folder: &Path, catalog: &Catalog) -> Result<Splits, TaskError> {
    let files = match files_of(config, folder)? {
        Some(files) => files,
        None => named_data_set(config, folder, catalog.data.as_deref())?,
    };
    let mut splits = Splits::new();
    for (split, files) in files {
        let mut rows = Vec::new();
        for file in files {
            rows.extend(read(&file, catalog.parquet)?);
        }
        same_columns(&mut rows);
        splits.insert(split, rows);
    }
    Ok(splits)
}

/// Every document gets every column, null where its file has none.
fn same_columns(rows: &mut [Document]) {
    let mut columns: Vec<String> = Vec::new();
    for key in rows.iter().flat_map(Document::keys) {
        if !columns.contains(key) {
            columns.push(key.clone());
        }
    }
    for row in rows.iter_mut().filter(|row| row.len() < columns.len()) {
        for column in &columns {
            row.entry(column.clone()).or_insert(Value::Null);
        }
    }
}

type Files = BTreeMap<String, Vec<PathBuf>>;

/// The files that `dataset_kwargs.data_files` names, by split.
fn files_of(config: &TaskConfig, folder: &Path) -> Result<Option<Files>, TaskError> {
    let Some(named) = &config.data_files else { return Ok(None) };
    let wrong = || {
        let what = format!(
            "dataset_kwargs.data_files: wanted a file, a list of files, or these by split, found {named}"
        );
        TaskError::task(&config.name, what)
    };
    let one = |value: &Value| -> Result<PathBuf, TaskError> {
        let path = Path::new(value.as_str().ok_or_else(wrong)?);
        let beside = folder.join(path);
        if beside.is_file() || path.is_absolute() {
            return Ok(beside);
        }
        // The harness takes them from the working directory.
        if path.is_file() {
            return Ok(path.into());
        }
        let what = format!(
            "there is no file {} of documents, neither beside the task file ({}) nor in the working directory",
            path.display(),
            beside.display()
        );
        Err(TaskError::task(&config.name, what))
    };
    let several = |value: &Value| match value {
        Value::Array(list) => list.iter().map(one).collect::<Result<Vec<_>, _>>(),
        value => Ok(vec![one(value)?]),
    };
    Ok(Some(match named {
        Value::Object(map) => map
            .iter()
            .map(|(split, files)| Ok((split.clone(), several(files)?)))
            .collect::<Result<_, TaskError>>()?,
        other => Files::from([("train".to_owned(), several(other)?)]),
    }))
}

/// The files of a data set that stands in a folder under its name.
fn named_data_set(config: &TaskConfig, folder: &Path, data: Option<&Path>) -> Result<Files, TaskError> {
    let Some(path) = &config.dataset_path else {
        return Err(TaskError::task(
            &config.name,
            "wanted dataset_path or dataset_kwargs.data_files, found neither",
        ));
    };
    let subset = config.dataset_name.as_deref();
    let mut tried = Vec::new();
    for root in data.into_iter().chain([folder, Path::new("")]) {
        let set = root.join(path);
        let places = subset.map(|subset| set.join(subset)).into_iter().chain([set.clone()]);
        for place in places.flat_map(|place| [place.clone(), place.join("data")]) {
            let found = splits_in(&place);
            if !found.is_empty() {
                return Ok(found);
            }
            tried.push(place.display().to_string());
        }
    }
    let what = format!(
        "its data set {path}{} is not on this machine, and nothing is downloaded: save its splits as files such as test.jsonl, validation.csv or \
         train-00000-of-00001.parquet in one of {}",
        subset.map(|name| format!(" ({name})")).unwrap_or_default(),
        tried.join(", ")
    );
    Err(TaskError::task(&config.name, what))
}

/// Files of documents in a folder, by the split that their names begin with.
fn splits_in(folder: &Path) -> Files {
    let mut found = Files::new();
    let Ok(entries) = bessemer_durable::read_dir(folder) else { return found };
    let mut paths: Vec<PathBuf> = entries.filter_map(|entry| Some(entry.ok()?.path())).collect();
    paths.sort();
    for path in paths {
        let stem = path.file_stem().and_then(|stem| stem.to_str()).unwrap_or_default();
        let split = match stem.split(['-', '_', '.']).next().unwrap_or_default() {
            "train" | "training" => "train",
            "validation" | "valid" | "val" | "dev" => "validation",
            "test" | "testing" => "test",
            _ => continue,
        };
        if path.is_file() && matches!(extension(&path), "jsonl" | "json" | "csv" | "tsv" | "parquet") {
            found.entry(split.to_owned()).or_default().push(path);
        }
    }
    found
}

fn extension(path: &Path) -> &str {
    path.extension().and_then(|extension| extension.to_str()).unwrap_or_default()
}

/// The documents of a file, by its ending.
///
/// # Errors
/// A file that cannot be read, with the line; a Parquet file without a reader.
pub fn read(path: &Path, parquet: Option<ParquetReader>) -> Result<Vec<Document>, TaskError> {
    let wrong = |what: String| TaskError::File { path: path.into(), what };
    let open =
        || bessemer_durable::open_regular(path).map_err(|source| TaskError::Io { path: path.into(), source });
    match extension(path) {
        "parquet" => match parquet {
            Some(read) => read(open()?).map_err(wrong),
            None => {
                Err(wrong("Parquet is not supported for tasks; convert the file to .jsonl or .csv".into()))
            }
        },
        kind @ ("csv" | "tsv") => {
            let delimiter = if kind == "csv" { b',' } else { b'\t' };
            csv_rows(
                csv::ReaderBuilder::new().delimiter(delimiter).from_reader(TextReader::buffered(open()?)),
            )
            .map_err(|e| wrong(e.to_string()))
        }
        "json" | "jsonl" => {
            let mut text = String::new();
            let read = TextReader::buffered(open()?).take(MOST_BYTES + 1).read_to_string(&mut text);
            read.map_err(|source| TaskError::Io { path: path.into(), source })?;
            if text.len() as u64 > MOST_BYTES {
                return Err(wrong(format!("wanted at most {MOST_BYTES} bytes of documents; split the file")));
            }
            json_rows(&text).map_err(wrong)
        }
        other => Err(wrong(format!(
            "wanted a file that ends with .jsonl, .json, .csv, .tsv or .parquet, found {other:?}"
        ))),
    }
}

/// JSON lines, or one list of objects.
fn json_rows(text: &str) -> Result<Vec<Document>, String> {
    if text.trim_start().starts_with('[') {
        return serde_json::from_str(text).map_err(|e| format!("wanted a list of objects: {e}"));
    }
    let lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
    let row = |(i, line): (usize, &str)| {
        serde_json::from_str(line).map_err(|e| format!("line {}: wanted an object: {e}", i + 1))
    };
    lines.map(row).collect()
}

/// Rows under a line of names. A column whose fields are all whole numbers, or all numbers, holds numbers, as pandas reads it.
fn csv_rows<R: Read>(mut reader: csv::Reader<R>) -> Result<Vec<Document>, csv::Error> {
    let names = reader.headers()?.clone();
    let records = reader.records().collect::<Result<Vec<_>, _>>()?;
    let fields = |i: usize| {
        records.iter().map(move |record| record.get(i).unwrap_or_default()).filter(|f| !f.is_empty())
    };
    let plain =
        |f: &str| !f.starts_with('+') && f.bytes().all(|b| b.is_ascii_digit() || b"-.eE+".contains(&b));
    let kinds: Vec<[bool; 2]> = (0..names.len())
        .map(|i| {
            let whole = fields(i).all(|f| plain(f) && f.parse::<i64>().is_ok());
            [whole, fields(i).all(|f| plain(f) && f.parse::<f64>().is_ok())]
                .map(|all| all && fields(i).next().is_some())
        })
        .collect();
    let value = |i: usize, field: &str| match (field, kinds[i]) {
        ("", _) => Value::Null,
        (field, [true, _]) => field.parse::<i64>().map_or(Value::Null, Value::from),
        (field, [_, true]) => field.parse::<f64>().map_or(Value::Null, Value::from),
        (field, _) => Value::from(field),
    };
    let row = |record: &csv::StringRecord| {
        let columns = names.iter().enumerate();
        columns.map(|(i, name)| (name.to_owned(), value(i, record.get(i).unwrap_or_default()))).collect()
    };
    Ok(records.iter().map(row).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use std::fs;

    #[test]
    fn rows_of_every_format_are_documents() {
        let wanted = json!([{"q": "a,b", "label": 1}, {"q": "c\nd", "label": 0}]);
        let wanted: Vec<Document> = serde_json::from_value(wanted).unwrap();
        let dir = tempfile::tempdir().unwrap();
        let files = [
            ("x.jsonl", "{\"q\": \"a,b\", \"label\": 1}\n\n{\"q\": \"c\\nd\", \"label\": 0}\n"),
            ("x.json", "[{\"q\": \"a,b\", \"label\": 1}, {\"q\": \"c\\nd\", \"label\": 0}]"),
            ("x.csv", "q,label\n\"a,b\",1\n\"c\nd\",0\n"),
            ("x.tsv", "q\tlabel\na,b\t1\n\"c\nd\"\t0\n"),
        ];
        for (name, text) in files {
            fs::write(dir.path().join(name), text).unwrap();
            assert_eq!(read(&dir.path().join(name), None).unwrap(), wanted, "{name}");
        }
        fs::write(dir.path().join("bad.jsonl"), "{}\n[1]\n").unwrap();
        assert!(read(&dir.path().join("bad.jsonl"), None).unwrap_err().to_string().contains("line 2"));
        fs::write(dir.path().join("bad.txt"), "").unwrap();
        assert!(read(&dir.path().join("bad.txt"), None).unwrap_err().to_string().contains(".parquet"));
        let rows = dir.path().join("x.parquet");
        fs::write(&rows, "rows").unwrap();
        let reader: ParquetReader = |file| match std::io::read_to_string(file) {
            Ok(text) => Ok(vec![Document::from_iter([("q".to_owned(), text.into())])]),
            Err(error) => Err(error.to_string()),
        };
        assert_eq!(Value::from(read(&rows, Some(reader)).unwrap().remove(0)), json!({"q": "rows"}));
        assert!(read(&rows, None).unwrap_err().to_string().contains("Parquet is not supported for tasks"));
        fs::write(dir.path().join("bad.csv"), "a,b\n1\n").unwrap();
        assert!(read(&dir.path().join("bad.csv"), None).is_err());
    }
}
