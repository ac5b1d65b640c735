//! Tasks with a cognitive level (KoLA): their mean by level, and a table of the scores of several models.

use crate::commands::metric::standardised;
use crate::failure::Failure;
use crate::task_data::read_documents;
use bessemer_tasks::{Document, Level, TaskScores, kola};
use serde_json::{Value, json};
use std::fmt::Write;
use std::path::{Path, PathBuf};

/// Columns of a table that are no models.
const COLUMNS: [&str; 3] = ["task", "level", "siblings"];

/// Mean score of a level.
pub(super) struct LevelScore {
    level: Level,
    /// Mean of the first metric of each task.
    value: f64,
    tasks: Vec<String>,
}

impl LevelScore {
    pub(super) fn json(&self) -> Value {
        json!({ "level": self.level, "value": self.value, "tasks": self.tasks })
    }
}

/// Score of a task: that of its first metric.
fn score(task: &TaskScores) -> Option<f64> {
    task.scores.first().map(|score| score.value)
}

/// The levels that the tasks have, by rising level.
pub(super) fn levels(tasks: &[TaskScores]) -> Vec<LevelScore> {
    let of = |level: Level| {
        let found: Vec<(&str, f64)> = tasks
            .iter()
            .filter(|task| task.level == Some(level))
            .filter_map(|task| Some((task.task.as_str(), score(task)?)))
            .collect();
        let value = found.iter().map(|(_, value)| value).sum::<f64>() / found.len() as f64;
        let tasks: Vec<String> = found.into_iter().map(|(name, _)| name.to_owned()).collect();
        (!tasks.is_empty()).then_some(LevelScore { level, value, tasks })
    };
    Level::ALL.into_iter().filter_map(of).collect()
}

/// A line for each level.
pub(super) fn text(levels: &[LevelScore]) -> String {
    let mut text = String::from("\n\nlevel     mean  tasks");
    for LevelScore { level, value, tasks } in levels {
        let _ = write!(text, "\n{:5}  {value:>7.4}  {}", level.name(), tasks.join(", "));
    }
    text
}

/// Writes the facts that the generated tasks ask about.
pub(super) fn write_facts(file: &Path) -> Result<(), Failure> {
    let lines: String = kola::facts().iter().map(|text| format!("{}\n", json!({ "text": text }))).collect();
    bessemer_durable::write(file, lines.as_bytes())
        .map_err(|e| Failure::new(format!("--facts: {}: {e}", file.display())))
}

/// A table of scores, a row for each task.
pub(super) struct Table {
    path: PathBuf,
    rows: Vec<Document>,
}

impl Table {
    /// The table in a file; an empty one if there is none.
    pub(super) fn open(path: &Path) -> Result<Table, Failure> {
        if path.extension().is_none_or(|extension| extension != "jsonl") {
            return Err(Failure::usage(format!(
                "--kola {}: wanted a file that ends with .jsonl",
                path.display()
            )));
        }
        let rows = match path.exists() {
            true => read_documents(path).map_err(|e| Failure::new(format!("--kola: {e}")))?,
            false => Vec::new(),
        };
        Ok(Table { path: path.into(), rows })
    }

    /// Sets the column of a model.
    pub(super) fn set(&mut self, model: &str, tasks: &[TaskScores]) -> Result<(), Failure> {
        let wrong = |what: String| Failure::new(format!("--kola {}: {what}", self.path.display()));
        if COLUMNS.contains(&model) {
            return Err(Failure::usage(format!(
                "--kola-name {model}: wanted another name than {}",
                COLUMNS.join(", ")
            )));
        }
        let with_level: Vec<(&TaskScores, Level, f64)> =
            tasks.iter().filter_map(|task| Some((task, task.level?, score(task)?))).collect();
        if with_level.is_empty() {
            return Err(wrong(
                "wanted a task with a level (level: KM, KU, KA or KC in its file), found none".into(),
            ));
        }
        let name = |row: &Document| row.get("task").and_then(Value::as_str).unwrap_or_default().to_owned();
        if self.rows.is_empty() {
            self.rows = with_level
                .iter()
                .map(|(task, level, _)| {
                    let siblings = task.siblings.as_ref().unwrap_or(&task.task);
                    let pairs =
                        [("task", task.task.as_str()), ("level", level.name()), ("siblings", siblings)];
                    pairs.into_iter().map(|(key, value)| (key.to_owned(), json!(value))).collect()
                })
                .collect();
        }
        let (mut wanted, mut found): (Vec<String>, Vec<String>) = (
            self.rows.iter().map(name).collect(),
            with_level.iter().map(|(task, ..)| task.task.clone()).collect(),
        );
        wanted.sort();
        found.sort();
        if wanted != found {
            return Err(wrong(format!(
                "wanted the tasks of the table ({}), found {}; name the same tasks or another file",
                wanted.join(", "),
                found.join(", ")
            )));
        }
        for row in &mut self.rows {
            let task = row.get("task").and_then(Value::as_str).unwrap_or_default();
            let value = with_level.iter().find(|(one, ..)| one.task == task).map(|(.., value)| *value);
            row.insert(model.to_owned(), json!(value));
        }
        Ok(())
    }

    /// Writes the table and returns its standardised scores, as JSON and in words.
    pub(super) fn write(&self) -> Result<(Value, String), Failure> {
        let mut lines = String::new();
        for row in &self.rows {
            let _ = writeln!(lines, "{}", serde_json::to_string(row)?);
        }
        let result = standardised(&self.path, &self.rows)?;
        bessemer_durable::write(&self.path, lines.as_bytes())
            .map_err(|e| Failure::new(format!("--kola: {}: {e}", self.path.display())))?;
        Ok(result)
    }
}
