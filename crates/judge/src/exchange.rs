//! Sheets for judges without the page: a table (CSV) with a row for each task, blinded, that comes back with its last column filled in.
//!
//! Columns: `task`, `prompt`, `left`, `right` (empty on a scale), `choice` (to be filled in: left, right or equal; or a point of the scale). `task`
//! says which texts of which item stand where, by their places, so that a sheet can be sorted or cut.
//!
//! Texts come from models and the web, and a spreadsheet runs a cell that begins as a formula does. Such cells have an apostrophe before them (OWASP, "CSV
//! injection"), which is taken away again when a sheet is read.

use crate::JudgeError;
use crate::assign::{Judged, Task, TaskKey, next_task};
use crate::store::{Judgement, Store};
use crate::study::{Question, Study};
use bessemer_durable::TextReader;
use std::borrow::Cow;
use std::io::{Read, Write};

const COLUMNS: [&str; 5] = ["task", "prompt", "left", "right", "choice"];

/// Writes a sheet of at most `most` tasks for a judge, in the order in which the page would give them, repetitions left out. Returns how many.
///
/// # Errors
/// A name that is none; errors of the file and of the writer.
pub fn write_sheet(store: &Store, judge: &str, most: usize, out: impl Write) -> Result<usize, JudgeError> {
    store.next(judge)?;
    let study = store.study();
    let all = store.judgements()?;
    let mut judged: Vec<Judged<'_>> = all.iter().map(Judged::from).collect();
    let failed = |e: csv::Error| JudgeError::Setting(format!("the sheet cannot be written: {e}"));
    let mut sheet = csv::Writer::from_writer(out);
    sheet.write_record(COLUMNS).map_err(failed)?;
    let mut rows = 0;
    while rows < most
        && let Some(task) = next_task(study, judge, &judged)
    {
        judged.push(Judged { judge, key: task.key, turned: task.turned, repeated: task.repeated });
        if task.repeated {
            continue;
        }
        let item = &study.items[task.key.item];
        let of = |place: usize| item.texts[place].text.as_str();
        let (first, second) = (of(task.key.first), task.key.second.map_or("", of));
        let (left, right) = if task.turned { (second, first) } else { (first, second) };
        let name = name(task);
        let cells = [name.as_str(), &item.prompt, left, right, ""].map(escaped);
        sheet.write_record(cells.iter().map(|cell| cell.as_bytes())).map_err(failed)?;
        rows += 1;
    }
    sheet.flush().map_err(|e| JudgeError::Setting(format!("the sheet cannot be written: {e}")))?;
    Ok(rows)
}

/// Reads a sheet that a judge has filled in. Rows with an empty choice are left for later. Returns the judgements added, and the rows left out.
///
/// # Errors
/// Names the row: no such task, a choice that is none, a task that this judge has judged. Nothing is added then.
pub fn read_sheet(
    store: &mut Store,
    judge: &str,
    at: i64,
    input: impl Read,
) -> Result<(usize, usize), JudgeError> {
    let (mut all, mut empty) = (Vec::new(), 0);
    let mut sheet = csv::Reader::from_reader(TextReader::buffered(input));
    let wrong = |row: usize, what: String| JudgeError::Judgement(format!("row {row} of the sheet: {what}"));
    let header = sheet.headers().map_err(|e| wrong(1, e.to_string()))?.clone();
    let column = |wanted: &str| {
        header.iter().position(|name| name.trim() == wanted).ok_or_else(|| {
            wrong(
                1,
                format!(
                    "wanted the columns {}, found {:?}",
                    COLUMNS.join(", "),
                    header.iter().collect::<Vec<_>>()
                ),
            )
        })
    };
    let (task_column, choice_column) = (column("task")?, column("choice")?);
    for (number, row) in sheet.records().enumerate() {
        let number = number + 2;
        let row = row.map_err(|e| wrong(number, e.to_string()))?;
        let field = |i: usize| unescaped(row.get(i).unwrap_or_default()).trim();
        if field(choice_column).is_empty() {
            empty += 1;
            continue;
        }
        let task = parse(store.study(), field(task_column)).ok_or_else(|| {
            wrong(number, format!("there is no task {:?} in this study", field(task_column)))
        })?;
        let choice = choice(&store.study().question, task, field(choice_column))
            .map_err(|what| wrong(number, what))?;
        all.push(Judgement { judge: judge.to_owned(), task, choice, seconds: None, at });
    }
    store.add(&all)?;
    Ok((all.len(), empty))
}

/// Whether a spreadsheet may take a cell for a formula, once apostrophes before it are gone.
fn begins_as_formula(cell: &str) -> bool {
    cell.trim_start_matches('\'').starts_with(['=', '+', '-', '@', '\t', '\r', '\n', '＝', '＋', '－', '＠'])
}

/// A cell that a spreadsheet shows as it is.
fn escaped(cell: &str) -> Cow<'_, str> {
    match begins_as_formula(cell) {
        true => format!("'{cell}").into(),
        false => cell.into(),
    }
}

/// The text of a cell of [`escaped`].
fn unescaped(cell: &str) -> &str {
    cell.strip_prefix('\'').filter(|_| begins_as_formula(cell)).unwrap_or(cell)
}

/// The name of a task on a sheet: item, texts from left to right, by their places.
fn name(task: Task) -> String {
    let TaskKey { item, first, second } = task.key;
    match second {
        None => format!("{item}:{first}"),
        Some(second) if task.turned => format!("{item}:{second}:{first}"),
        Some(second) => format!("{item}:{first}:{second}"),
    }
}

fn parse(study: &Study, name: &str) -> Option<Task> {
    let parts: Vec<usize> = name.split(':').map(|part| part.parse().ok()).collect::<Option<_>>()?;
    let texts = study.items.get(*parts.first()?)?.texts.len();
    let pairs = matches!(study.question, Question::Pairs { .. });
    let task = |first, second, turned| Task {
        key: TaskKey { item: parts[0], first, second },
        turned,
        repeated: false,
    };
    match parts[1..] {
        [text] if !pairs && text < texts => Some(task(text, None, false)),
        [left, right] if pairs && left != right && left.max(right) < texts => {
            Some(task(left.min(right), Some(left.max(right)), left > right))
        }
        _ => None,
    }
}

fn choice(question: &Question, task: Task, text: &str) -> Result<f64, String> {
    match question {
        Question::Scale { labels, .. } => text
            .parse()
            .ok()
            .filter(|point: &f64| point.fract() == 0.0 && (1.0..=labels.len() as f64).contains(point))
            .ok_or_else(|| {
                format!("choice: wanted a whole number from 1 to {}, found {text:?}", labels.len())
            }),
        Question::Pairs { .. } => match (text.to_lowercase().as_str(), task.turned) {
            ("equal", _) => Ok(0.5),
            ("left", false) | ("right", true) => Ok(1.0),
            ("right", false) | ("left", true) => Ok(0.0),
            _ => Err(format!("choice: wanted left, right or equal, found {text:?}")),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_that_spreadsheets_would_run_are_escaped_and_come_back() {
        for (cell, wanted) in [
            ("=HYPERLINK(\"http://evil\")", "'=HYPERLINK(\"http://evil\")"),
            ("+1", "'+1"),
            ("-1", "'-1"),
            ("@SUM(1)", "'@SUM(1)"),
            ("\t=1", "'\t=1"),
            ("\r=1", "'\r=1"),
            ("\n=1", "'\n=1"),
            ("＝1", "'＝1"),
            // A text with apostrophes of its own.
            ("'=1", "''=1"),
            ("\'\'=1", "\'\'\'=1"),
            ("'tis", "'tis"),
            ("'", "'"),
            ("", ""),
            ("1 = 1", "1 = 1"),
            ("well - done", "well - done"),
        ] {
            assert_eq!(escaped(cell), wanted, "{cell:?}");
            assert_eq!(unescaped(wanted), cell, "{wanted:?}");
        }
    }
}
