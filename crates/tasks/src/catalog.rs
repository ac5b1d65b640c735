//! Names of tasks: shipped families, data formats, task files, and tasks, groups and tags in folders of task files.

use crate::config::TaskConfig;
use crate::data::{self, ParquetReader, Splits};
use crate::error::TaskError;
use crate::metrics::interval;
use crate::task::{Score, Task, TaskScores};
use crate::{families, formats, kola, yaml};
use serde::Serialize;
use serde_json::{Map, Value};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// Folders of task files and data, and what is changed in the tasks.
#[derive(Debug, Clone, Default)]
pub struct Catalog {
    /// Folders of task files, in which names are found.
    pub folders: Vec<PathBuf>,
    /// Folder of data sets, each in a folder of its name.
    pub data: Option<PathBuf>,
    /// Examples before each question; what a task file says without it.
    pub num_fewshot: Option<usize>,
    /// Reader of Parquet files; without one they are refused.
    pub parquet: Option<ParquetReader>,
}

/// Tasks that were asked for.
#[derive(Debug, Default)]
pub struct Selection {
    /// The tasks, each once.
    pub tasks: Vec<Task>,
    /// The groups that they belong to, as far as these were asked for.
    pub groups: Vec<Group>,
}

/// A score over several tasks.
#[derive(Debug, Clone, PartialEq)]
struct GroupMetric {
    metric: String,
    by_size: bool,
    /// Pipelines of filters; all that have the metric if there is none.
    filters: Vec<String>,
}

/// A group of tasks with a score of its own.
#[derive(Debug, Clone, PartialEq)]
pub struct Group {
    /// Its name.
    pub name: String,
    members: Vec<String>,
    metrics: Vec<GroupMetric>,
}

/// The scores of a group.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct GroupScores {
    /// The group.
    pub group: String,
    /// Its tasks.
    pub tasks: Vec<String>,
    /// Means over the tasks.
    pub scores: Vec<Score>,
}

/// Groups within groups.
const DEEPEST: usize = 16;
/// Files of a folder that are looked at.
const MOST_FILES: usize = 200_000;

impl Catalog {
    /// The tasks of these names: a family ([`families::NAMES`]; `families`: all), a task of [`kola::NAMES`] ([`kola::ALL`]: all, and every task file of the
    /// folders that has a level), `FORMAT:FILE` ([`formats::NAMES`]), a task file, or the name of a
    /// task, a group or a tag in the folders.
    ///
    /// # Errors
    /// Names that are not there, and what is wrong with files and data.
    pub fn load(&self, names: &[String]) -> Result<Selection, TaskError> {
        let mut selection = Selection::default();
        for name in names {
            self.add(name, None, &mut selection, 0)?;
        }
        Ok(selection)
    }

    /// Adds what a name stands for, and returns the names of its tasks. `beside`: the folder of the file that names it.
    fn add(
        &self,
        name: &str,
        beside: Option<&Path>,
        to: &mut Selection,
        depth: usize,
    ) -> Result<Vec<String>, TaskError> {
        if depth > DEEPEST {
            return Err(TaskError::Unknown(format!(
                "group {name}: wanted at most {DEEPEST} groups within each other"
            )));
        }
        if name == "families" {
            let mut members = Vec::new();
            for name in families::NAMES {
                members.extend(self.add(name, None, to, depth + 1)?);
            }
            return Ok(members);
        }
        if name == kola::ALL {
            let mut members = Vec::new();
            for name in kola::NAMES {
                members.extend(self.add(name, None, to, depth + 1)?);
            }
            for path in self.folders.iter().flat_map(|folder| task_files(folder)) {
                let map = load_yaml(&path, &mut Vec::new());
                let has = |map: &Map<String, Value>, key| map.get(key).is_some_and(Value::is_string);
                if map.is_ok_and(|map| has(&map, "level") && has(&map, "task")) {
                    members.extend(self.add_file(&path, to, depth + 1)?);
                }
            }
            return Ok(members);
        }
        if let Some((config, documents)) = families::family(name).or_else(|| kola::task(name)) {
            let splits = Splits::from([("test".to_owned(), documents)]);
            return self.add_task(config, Path::new("a shipped family"), Some(splits), to);
        }
        if let Some((format, file)) =
            name.split_once(':').filter(|(format, _)| formats::NAMES.contains(format))
        {
            let (config, documents) = formats::format(format, Path::new(file), self.parquet)?;
            let splits = Splits::from([("test".to_owned(), documents)]);
            return self.add_task(config, Path::new(file), Some(splits), to);
        }
        let path = Path::new(name);
        if path.extension().is_some_and(|extension| extension == "yaml" || extension == "yml") {
            return self.add_file(path, to, depth);
        }
        let folders: Vec<&Path> =
            beside.into_iter().chain(self.folders.iter().map(PathBuf::as_path)).collect();
        let mut tagged = Vec::new();
        for folder in &folders {
            for path in task_files(folder) {
                let Ok(text) = bessemer_durable::read_to_string(&path) else { continue };
                if !text.contains(name) {
                    continue;
                }
                // A file that does not concern the name may be broken.
                let Ok(map) = load_yaml(&path, &mut Vec::new()) else { continue };
                let is = |key: &str| map.get(key).and_then(Value::as_str) == Some(name);
                if is("task") || is("group") && map.get("task").is_some_and(Value::is_array) {
                    return self.add_file(&path, to, depth);
                }
                let has = |key: &str| match map.get(key) {
                    Some(Value::String(tag)) => tag == name,
                    Some(Value::Array(tags)) => tags.iter().any(|tag| tag.as_str() == Some(name)),
                    _ => false,
                };
                if (has("tag") || has("group")) && map.get("task").is_some_and(Value::is_string) {
                    tagged.push(path);
                }
            }
        }
        if tagged.is_empty() {
            let shown =
                folders.iter().map(|folder| folder.display().to_string()).collect::<Vec<_>>().join(", ");
            let stems: Vec<String> = folders
                .iter()
                .flat_map(|folder| task_files(folder))
                .filter_map(|path| Some(path.file_stem()?.to_string_lossy().into_owned()))
                .collect();
            let known = families::NAMES.into_iter().chain(["families", kola::ALL]).chain(kola::NAMES);
            let known = known.chain(stems.iter().map(String::as_str));
            let near = bessemer_units::did_you_mean(name, known);
            return Err(TaskError::Unknown(format!(
                "there is no task {name}{near}: wanted one of {}, families or {}, {}:FILE, a file that ends with .yaml, or the name of a task, group or tag in a folder \
                 of task files{}",
                families::NAMES.join(", "),
                kola::ALL,
                formats::NAMES.join(":FILE, "),
                if shown.is_empty() { String::new() } else { format!(" ({shown})") }
            )));
        }
        let mut members = Vec::new();
        for path in tagged {
            members.extend(self.add_file(&path, to, depth)?);
        }
        Ok(members)
    }

    fn add_file(&self, path: &Path, to: &mut Selection, depth: usize) -> Result<Vec<String>, TaskError> {
        let map = load_yaml(path, &mut Vec::new())?;
        let wrong = |what: String| TaskError::File { path: path.into(), what };
        let folder = path.parent().unwrap_or(Path::new(""));
        let Some(Value::Array(list)) = map.get("task") else {
            return self.add_task(map, path, None, to);
        };
        let name = map.get("group").and_then(Value::as_str);
        let name = name.ok_or_else(|| wrong("wanted the name of the group of these tasks".into()))?;
        let mut members = Vec::new();
        for member in list {
            match member {
                Value::String(member) => members.extend(self.add(member, Some(folder), to, depth + 1)?),
                Value::Object(own) if own.get("task").is_some_and(Value::is_string) => {
                    // A task of its own, or another with changes.
                    let named = own.get("task").and_then(Value::as_str).unwrap_or_default();
                    let other = self.find(named, folder);
                    let mut merged = match &other {
                        Some(path) => load_yaml(path, &mut Vec::new())?,
                        None => Map::new(),
                    };
                    merged.extend(own.clone());
                    members.extend(self.add_task(merged, other.as_deref().unwrap_or(path), None, to)?);
                }
                other => return Err(wrong(format!("task: wanted names of tasks, found {other}"))),
            }
        }
        let metrics = group_metrics(map.get("aggregate_metric_list")).map_err(wrong)?;
        to.groups.push(Group { name: name.to_owned(), members: members.clone(), metrics });
        Ok(members)
    }

    /// The file of a task in the folder that names it and in the others.
    fn find(&self, name: &str, folder: &Path) -> Option<PathBuf> {
        let folders = std::iter::once(folder).chain(self.folders.iter().map(PathBuf::as_path));
        folders.flat_map(task_files).find(|path| {
            let map = load_yaml(path, &mut Vec::new());
            map.is_ok_and(|map| map.get("task").and_then(Value::as_str) == Some(name))
        })
    }

    fn add_task(
        &self,
        map: Map<String, Value>,
        path: &Path,
        splits: Option<Splits>,
        to: &mut Selection,
    ) -> Result<Vec<String>, TaskError> {
        let mut config = TaskConfig::new(map, path)?;
        let name = config.name.clone();
        if to.tasks.iter().any(|task| task.name() == name) {
            return Ok(vec![name]);
        }
        if let Some(k) = self.num_fewshot {
            config.num_fewshot = k;
        }
        let splits = match splits {
            Some(splits) => splits,
            None => data::load(&config, path.parent().unwrap_or(Path::new("")), self)?,
        };
        to.tasks.push(Task::new(config, splits)?);
        Ok(vec![name])
    }
}

fn group_metrics(list: Option<&Value>) -> Result<Vec<GroupMetric>, String> {
    let Some(list) = list.filter(|list| !list.is_null()) else { return Ok(Vec::new()) };
    let entries = match list {
        Value::Array(entries) => entries.clone(),
        entry => vec![entry.clone()],
    };
    let entry = |entry: &Value| {
        let metric = entry["metric"]
            .as_str()
            .ok_or_else(|| format!("aggregate_metric_list: wanted a metric, found {entry}"))?;
        if entry["aggregation"].as_str().is_some_and(|aggregation| aggregation != "mean") {
            return Err(format!(
                "aggregate_metric_list: {metric}: wanted the aggregation mean, found {}",
                entry["aggregation"]
            ));
        }
        let filters = match &entry["filter_list"] {
            Value::Array(list) => list.iter().map(crate::python::display).collect(),
            Value::String(one) => vec![one.clone()],
            _ => Vec::new(),
        };
        let by_size = entry["weight_by_size"].as_bool().unwrap_or(true);
        Ok(GroupMetric { metric: metric.into(), by_size, filters })
    };
    entries.iter().map(entry).collect()
}

impl Group {
    /// The scores over the tasks of the group.
    ///
    /// ```text
    /// by size:   mean = sum n_i m_i / sum n_i      stderr^2 = sum (n_i - 1) s_i^2 n_i / (sum n_i - k) / sum n_i
    /// else:      mean = sum m_i / k                stderr^2 = sum s_i^2 / k^2
    /// ```
    pub fn scores(&self, tasks: &[TaskScores]) -> GroupScores {
        let members = || tasks.iter().filter(|task| self.members.contains(&task.task));
        let mut scores = Vec::new();
        for GroupMetric { metric, by_size, filters } in &self.metrics {
            let of_metric = members().flat_map(|task| &task.scores).filter(|score| score.metric == *metric);
            let known: BTreeSet<String> = of_metric.map(|score| score.filter.clone()).collect();
            let known: Vec<String> = known.into_iter().collect();
            for filter in if filters.is_empty() { &known } else { filters } {
                let found: Vec<&Score> = members()
                    .flat_map(|task| &task.scores)
                    .filter(|score| score.metric == *metric && score.filter == *filter)
                    .collect();
                let Some(first) = found.first() else { continue };
                let k = found.len() as f64;
                let size = |score: &Score| if *by_size { score.documents as f64 } else { 1.0 };
                let all: f64 = found.iter().map(|score| size(score)).sum();
                let errors: Option<Vec<f64>> = found.iter().map(|score| score.stderr).collect();
                let stderr = errors.map(|errors| match by_size {
                    true => {
                        let pairs = found.iter().zip(&errors);
                        let sum: f64 =
                            pairs.map(|(score, s)| (size(score) - 1.0) * s * s * size(score)).sum();
                        (sum / (all - k) / all).sqrt()
                    }
                    false => errors.iter().map(|s| s * s).sum::<f64>().sqrt() / k,
                });
                let value = found.iter().map(|score| score.value * size(score)).sum::<f64>() / all;
                // Of shares with weights w: the trials of one share with the same variance.
                let spread = |score: &&Score| Some((size(score) / all).powi(2) / score.trials?);
                let trials = found.iter().map(spread).sum::<Option<f64>>().map(f64::recip);
                scores.push(Score {
                    metric: metric.clone(),
                    filter: filter.clone(),
                    value,
                    stderr,
                    interval: interval(value, stderr, trials),
                    trials,
                    larger_is_better: first.larger_is_better,
                    documents: found.iter().map(|score| score.documents).sum(),
                    worst: None,
                });
            }
        }
        GroupScores {
            group: self.name.clone(),
            tasks: members().map(|task| task.task.clone()).collect(),
            scores,
        }
    }
}

/// Task files below a folder, in the order of their names.
fn task_files(folder: &Path) -> Vec<PathBuf> {
    let (mut found, mut folders) = (Vec::new(), vec![folder.to_owned()]);
    while let Some(folder) = folders.pop() {
        let Ok(entries) = bessemer_durable::read_dir(&folder) else { continue };
        for entry in entries.flatten() {
            // Links are not followed: a folder may hold itself.
            let Ok(kind) = entry.file_type() else { continue };
            let path = entry.path();
            if kind.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "yaml" || extension == "yml") {
                found.push(path);
            }
        }
        if found.len() > MOST_FILES {
            break;
        }
    }
    found.sort();
    found
}

/// The mapping of a task file, with those that it includes below it.
fn load_yaml(path: &Path, seen: &mut Vec<PathBuf>) -> Result<Map<String, Value>, TaskError> {
    let wrong = |what: String| TaskError::File { path: path.into(), what };
    if seen.len() > DEEPEST || seen.iter().any(|other| other == path) {
        return Err(wrong("it includes itself".into()));
    }
    let text = bessemer_durable::read_input_to_string(path)
        .map_err(|source| TaskError::Io { path: path.into(), source })?;
    let value = yaml::parse(&text).map_err(wrong)?;
    let Value::Object(mut map) = value else { return Err(wrong("wanted a mapping of fields".into())) };
    let includes = match map.remove("include") {
        None | Some(Value::Null) => return Ok(map),
        Some(Value::String(one)) => vec![Value::String(one)],
        Some(Value::Array(list)) => list,
        Some(other) => return Err(wrong(format!("include: wanted a file, found {other}"))),
    };
    seen.push(path.to_owned());
    let mut merged = Map::new();
    for include in &includes {
        let include =
            include.as_str().ok_or_else(|| wrong(format!("include: wanted a file, found {include}")))?;
        let mut included = load_yaml(&path.parent().unwrap_or(Path::new("")).join(include), seen)?;
        included.remove("task_list");
        merged.extend(included);
    }
    seen.pop();
    merged.extend(map);
    Ok(merged)
}

#[cfg(test)]
mod tests;
