//! Scores of tasks: the last of each, beside the first, and the groups of documents that stand worst.

use crate::facts::Facts;
use crate::html::{Align, section, table};
use crate::section::headline::fixed;
use crate::terminal::task_score;
use crate::text::escape;
use bessemer_runlog::Task;

pub(crate) fn tasks(facts: &Facts<'_>) -> String {
    let mut last: Vec<&Task> = Vec::new();
    for task in &facts.tasks {
        match last.iter_mut().find(|other| other.task == task.task && other.metric == task.metric) {
            Some(other) if other.step <= task.step => *other = task,
            Some(_) => {}
            None => last.push(task),
        }
    }
    let row = |task: &&Task| {
        let same = facts.tasks.iter().filter(|other| other.task == task.task && other.metric == task.metric);
        let first = same.min_by_key(|other| other.step).filter(|first| first.step < task.step);
        vec![
            task.task.clone(),
            format!("{} {}", task.metric, if task.larger_is_better { "↑" } else { "↓" }),
            task_score(task),
            task.step.to_string(),
            first.map_or(String::new(), |first| format!("{} at step {}", fixed(first.value), first.step)),
            task.documents.to_string(),
        ]
    };
    let rows: Vec<Vec<String>> = last.iter().map(row).collect();
    if rows.is_empty() {
        return String::new();
    }
    let align = [Align::Left, Align::Left, Align::Right, Align::Right, Align::Right, Align::Right];
    let head = ["task", "metric", "score", "step", "first", "documents"];
    let note = "<p class=\"note\">In parentheses: the 95 % interval, Wilson's of a share of the documents. ± is 1.96 standard errors.</p>\n";
    section("tasks", "Tasks", &(table(&head, &align, &rows) + note + &groups(&last)))
}

/// The worst group and the largest gap of each grouped score.
fn groups(last: &[&Task]) -> String {
    let item = |gap: &&Task| {
        let worst = gap.worst.as_ref()?;
        let (task, column) = gap.task.rsplit_once(" by ")?;
        let metric = gap.metric.strip_suffix(" gap").unwrap_or(&gap.metric);
        let group = format!("{task} {column}={worst}");
        let score = last.iter().find(|other| other.task == group && other.metric == metric);
        let score = score.map_or(String::new(), |score| format!(" with {}", fixed(score.value)));
        let text =
            format!("{metric} of {}: worst group {worst}{score}, largest gap {}", gap.task, fixed(gap.value));
        Some(format!("<li>{}</li>\n", escape(&text)))
    };
    let items: String = last.iter().filter_map(item).collect();
    if items.is_empty() { items } else { format!("<ul class=\"note\">\n{items}</ul>\n") }
}
