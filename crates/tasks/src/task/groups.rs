//! Scores of groups of documents: of one type of bias, of one category, of one kind of question.

use super::{DocumentRequests, Score, Task};
use crate::error::TaskError;
use crate::metrics::{Metric, MetricKind, interval, score, trials};
use crate::python;
use serde::Serialize;
use serde_json::Value;
use std::collections::BTreeMap;

/// Most groups that a column may form: a column with more is no grouping.
const MOST_GROUPS: usize = 1000;
/// Samples of standard errors of a group that have no closed form, at most.
const BOOTSTRAP: u64 = 1000;

/// A metric of the groups that a column of the documents forms.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct GroupedScore {
    /// The column.
    pub column: String,
    /// The metric.
    pub metric: String,
    /// The pipeline of filters, "none" without one.
    pub filter: String,
    /// Whether a larger score is better.
    pub larger_is_better: bool,
    /// The score of each group, in the order of their names.
    pub groups: Vec<GroupScore>,
    /// The group with the worst score: the smallest or largest, or, of a score whose ideal lies between, the farthest from it.
    pub worst: String,
    /// Largest score less smallest.
    pub gap: f64,
}

/// The score of a group.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct GroupScore {
    /// The value of the column.
    pub group: String,
    /// The score.
    pub value: f64,
    /// Standard error, where there are two documents or more.
    pub stderr: Option<f64>,
    /// The 95 % interval, as of [`Score`].
    pub interval: Option<[f64; 2]>,
    /// Documents.
    pub documents: usize,
}

impl GroupedScore {
    /// The score of a group as one of a task.
    pub(super) fn score(&self, group: &GroupScore) -> Score {
        Score {
            metric: self.metric.clone(),
            filter: self.filter.clone(),
            value: group.value,
            stderr: group.stderr,
            interval: group.interval,
            trials: None,
            larger_is_better: self.larger_is_better,
            documents: group.documents,
            worst: None,
        }
    }

    /// The gap as a score of a task.
    pub(super) fn gap_score(&self) -> Score {
        Score {
            metric: format!("{} gap", self.metric),
            filter: self.filter.clone(),
            value: self.gap,
            stderr: None,
            interval: None,
            trials: None,
            larger_is_better: false,
            documents: self.groups.iter().map(|group| group.documents).sum(),
            worst: Some(self.worst.clone()),
        }
    }
}

/// What a metric measured of the documents to which it applies.
#[derive(Debug, Clone, Default)]
pub(super) struct Measured {
    /// Values of each of these documents.
    pub(super) rows: Vec<Vec<f64>>,
    /// Their places among all documents.
    pub(super) documents: Vec<usize>,
}

impl Task {
    /// The groups of each column that the task names, by metric.
    ///
    /// # Errors
    /// A column that a document lacks, or that forms more than [`MOST_GROUPS`] groups.
    pub(super) fn grouped(
        &self,
        documents: &[DocumentRequests],
        (filter, measured): (&str, &[Measured]),
        bootstrap: u64,
    ) -> Result<Vec<GroupedScore>, TaskError> {
        let mut all = Vec::new();
        for column in &self.config.group_by {
            let names: Vec<String> = documents
                .iter()
                .map(|document| match document.document.get(column) {
                    Some(value) => Ok(python::display(value)),
                    None => {
                        let found = document.document.keys().cloned().collect::<Vec<_>>().join(", ");
                        let number = document.number;
                        Err(self.wrong(format!(
                            "document {number}: group_by: wanted a column {column}, found {found}"
                        )))
                    }
                })
                .collect::<Result<_, _>>()?;
            for (metric, measured) in self.config.metrics.iter().zip(measured) {
                let mut rows: BTreeMap<&str, Vec<Vec<f64>>> = BTreeMap::new();
                for (row, &document) in measured.rows.iter().zip(&measured.documents) {
                    rows.entry(&names[document]).or_default().push(row.clone());
                }
                if rows.len() > MOST_GROUPS {
                    return Err(self.wrong(format!(
                        "group_by: wanted a column of at most {MOST_GROUPS} different values, found {} in {column}",
                        rows.len()
                    )));
                }
                let groups = rows.iter().map(|(name, rows)| group(metric, name, rows, bootstrap)).collect();
                all.extend(compared(metric, column, filter, groups));
            }
        }
        Ok(all)
    }
}

fn group(metric: &Metric, name: &str, rows: &[Vec<f64>], bootstrap: u64) -> GroupScore {
    let (value, stderr) = score(metric.aggregation, rows, bootstrap.min(BOOTSTRAP));
    let interval = interval(value, stderr, trials(metric.aggregation, rows));
    GroupScore { group: name.to_owned(), value, stderr, interval, documents: rows.len() }
}

/// Worst group and largest gap. None without groups.
fn compared(metric: &Metric, column: &str, filter: &str, groups: Vec<GroupScore>) -> Option<GroupedScore> {
    let badness = |group: &&GroupScore| match metric.kind {
        MetricKind::PctStereotype => (group.value - 0.5).abs(),
        MetricKind::BbqDisambiguated | MetricKind::BbqAmbiguous | MetricKind::PreferenceGap => {
            group.value.abs()
        }
        _ if metric.larger_is_better => -group.value,
        _ => group.value,
    };
    // The first of equals.
    let worst = groups.iter().rev().max_by(|a, b| badness(a).total_cmp(&badness(b)))?.group.clone();
    let values = || groups.iter().map(|group| group.value);
    let gap = values().fold(f64::NEG_INFINITY, f64::max) - values().fold(f64::INFINITY, f64::min);
    Some(GroupedScore {
        column: column.to_owned(),
        metric: metric.name.clone(),
        filter: filter.to_owned(),
        larger_is_better: metric.larger_is_better,
        groups,
        worst,
        gap,
    })
}

/// The columns of `group_by` in a task file.
///
/// # Errors
/// Anything but a text or a list of texts.
pub(crate) fn columns(value: Option<Value>) -> Result<Vec<String>, String> {
    let wrong =
        |value: &Value| format!("group_by: wanted the name of a column, or a list of such, found {value}");
    match value {
        None => Ok(Vec::new()),
        Some(Value::String(one)) => Ok(vec![one]),
        Some(Value::Array(list)) => {
            list.iter().map(|one| one.as_str().map(str::to_owned).ok_or_else(|| wrong(one))).collect()
        }
        Some(other) => Err(wrong(&other)),
    }
}
