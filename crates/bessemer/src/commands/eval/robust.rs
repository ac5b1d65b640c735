//! `bessemer eval --tasks --perturb`: what perturbed questions cost.

use crate::cli::EvalArgs;
use crate::failure::Failure;
use bessemer_metrics::robustness::{PairedDrop, paired_drop, worst_case};
use bessemer_perturb::Perturbation;
use bessemer_tasks::{Answer, DocumentValues, Task, TaskRequests, TaskScores};
use serde_json::{Value, json};
use std::fmt::Write;

/// The answers of a model to requests; the text names them in the progress.
type Ask<'a> = dyn FnMut(&str, &TaskRequests) -> Result<Vec<Vec<Answer>>, Failure> + 'a;

/// The name of the line about the worst form of each document.
const WORST: &str = "worst case";

/// Perturbations that were asked for.
pub(super) struct Robustness {
    perturbations: Vec<Perturbation>,
    fields: Vec<String>,
    seed: u64,
}

/// A task before and after every perturbation.
pub(super) struct RobustTask {
    task: String,
    columns: Vec<String>,
    /// Why it was not perturbed.
    skipped: Option<String>,
    runs: Vec<PerturbedRun>,
    rows: Vec<Row>,
}

/// The answers to one perturbation.
struct PerturbedRun {
    perturbation: Perturbation,
    label: String,
    /// Places of changed documents.
    changed: Vec<usize>,
    values: Vec<DocumentValues>,
    /// `None` where no document changed.
    scores: Option<TaskScores>,
}

/// A line of the table.
struct Row {
    metric: String,
    filter: String,
    larger_is_better: bool,
    perturbation: String,
    /// The score of all documents, of which those that did not change keep theirs.
    all: f64,
    /// Over changed documents; over all of them for the worst case.
    drop: Option<PairedDrop>,
}

impl Robustness {
    /// Perturbations named by `--perturb`; `None` without the flag.
    pub(super) fn new(args: &EvalArgs) -> Result<Option<Robustness>, Failure> {
        if args.perturb.is_empty() {
            return Ok(None);
        }
        let perturbations = Perturbation::list(&args.perturb).map_err(|e| Failure::usage(e.to_string()))?;
        Ok(Some(Robustness { perturbations, fields: args.perturb_fields.clone(), seed: args.perturb_seed }))
    }

    /// Finds before the model is read whether there is something to perturb.
    pub(super) fn check(&self, tasks: &[Task]) -> Result<(), Failure> {
        let mut refusals = Vec::new();
        for task in tasks {
            match task.perturbed_columns(&self.fields) {
                Ok(_) => return Ok(()),
                Err(e) => refusals.push(e.to_string()),
            }
        }
        Err(Failure::new(format!("--perturb: {} (--perturb-fields names columns)", refusals.join("; "))))
    }

    /// Asks a task again after every perturbation.
    pub(super) fn run(
        &self,
        task: &Task,
        original: (&TaskRequests, &[Vec<Answer>]),
        signature: &str,
        bootstrap: u64,
        answer: &mut Ask<'_>,
    ) -> Result<RobustTask, Failure> {
        let (requests, answers) = original;
        let mut robust = RobustTask {
            task: task.name().to_owned(),
            columns: Vec::new(),
            skipped: None,
            runs: Vec::new(),
            rows: Vec::new(),
        };
        match task.perturbed_columns(&self.fields) {
            Ok(columns) => robust.columns = columns,
            Err(e) => {
                robust.skipped = Some(e.to_string());
                return Ok(robust);
            }
        }
        let before = task.document_values(requests, answers)?;
        for perturbation in &self.perturbations {
            let label = perturbation.label();
            let perturbed = task.perturbed_requests(requests, &robust.columns, perturbation, self.seed)?;
            let mut run = PerturbedRun {
                perturbation: *perturbation,
                label,
                changed: perturbed.changed,
                values: Vec::new(),
                scores: None,
            };
            if !run.changed.is_empty() {
                let answers = answer(&run.label, &perturbed.requests)?;
                run.values = task.document_values(&perturbed.requests, &answers)?;
                let how = format!(
                    "{signature}|perturb:{}|perturb_seed:{}|fields:{}",
                    run.label,
                    self.seed,
                    robust.columns.join("+")
                );
                run.scores = Some(task.score(&perturbed.requests, &answers, &how, bootstrap)?);
            }
            robust.runs.push(run);
        }
        robust.rows = before.iter().flat_map(|metric| rows(metric, &robust.runs)).collect();
        Ok(robust)
    }
}

/// The lines of a metric: one for each perturbation, one for the worst case if there are several.
fn rows(before: &DocumentValues, runs: &[PerturbedRun]) -> Vec<Row> {
    let mut forms: Vec<Vec<f64>> =
        before.values.iter().map(|value| value.iter().copied().collect()).collect();
    let row = |perturbation: &str, all: Vec<f64>, drop| Row {
        metric: before.metric.clone(),
        filter: before.filter.clone(),
        larger_is_better: before.larger_is_better,
        perturbation: perturbation.to_owned(),
        all: bessemer_units::stats::mean(&all),
        drop,
    };
    let mut rows = Vec::new();
    for run in runs {
        let is_same = |one: &&DocumentValues| one.metric == before.metric && one.filter == before.filter;
        let after = run.values.iter().find(is_same);
        let (mut pairs, mut all) = (Vec::new(), before.values.clone());
        for (i, place) in run.changed.iter().enumerate() {
            let value = after.and_then(|after| after.values.get(i).copied().flatten());
            if let (Some(before), Some(after)) = (before.values[*place], value) {
                pairs.push((before, after));
                all[*place] = Some(after);
                forms[*place].push(after);
            }
        }
        let drop = paired_drop(&pairs, before.larger_is_better);
        rows.push(row(&run.label, all.into_iter().flatten().collect(), drop));
    }
    if runs.len() > 1 {
        let pairs: Vec<(f64, f64)> = forms
            .iter()
            .filter_map(|forms| {
                let worst = worst_case(forms.iter().copied(), before.larger_is_better)?;
                Some((*forms.first()?, worst))
            })
            .collect();
        let all = pairs.iter().map(|pair| pair.1).collect();
        rows.push(row(WORST, all, paired_drop(&pairs, before.larger_is_better)));
    }
    rows
}

impl RobustTask {
    /// The lines of `--samples`.
    pub(super) fn samples(&self) -> impl Iterator<Item = Value> {
        self.runs.iter().flat_map(|run| {
            let samples = run.scores.iter().flat_map(|scores| &scores.samples);
            samples.map(|sample| {
                let mut sample = sample.clone();
                sample["task"] = Value::from(self.task.as_str());
                sample["perturbation"] = Value::from(run.label.as_str());
                sample
            })
        })
    }

    pub(super) fn json(&self) -> Value {
        let row = |row: &Row| {
            let drop = row.drop;
            json!({
                "metric": row.metric,
                "filter": row.filter,
                "larger_is_better": row.larger_is_better,
                "perturbation": row.perturbation,
                "value": row.all,
                "compared": drop.map_or(0, |drop| drop.instances),
                "before": drop.map(|drop| drop.before),
                "after": drop.map(|drop| drop.after),
                "drop": drop.map(|drop| drop.drop),
                "drop_stderr": drop.and_then(|drop| drop.stderr),
            })
        };
        let signature = |run: &PerturbedRun| {
            let signature = run.scores.as_ref().map(|scores| scores.signature.as_str());
            json!({
                "perturbation": run.label,
                "aspect": run.perturbation.aspect().name(),
                "origin": run.perturbation.origin(),
                "does": run.perturbation.does(),
                "changed": run.changed.len(),
                "signature": signature,
            })
        };
        json!({
            "task": self.task,
            "fields": self.columns,
            "skipped": self.skipped,
            "perturbations": self.runs.iter().map(signature).collect::<Vec<_>>(),
            "scores": self.rows.iter().map(row).collect::<Vec<_>>(),
        })
    }
}

/// The table of all tasks.
pub(super) fn table(tasks: &[RobustTask], seed: &Robustness) -> String {
    let rows: Vec<(&str, &Row)> =
        tasks.iter().flat_map(|task| task.rows.iter().map(move |row| (task.task.as_str(), row))).collect();
    let width =
        |of: &dyn Fn(&(&str, &Row)) -> usize, least: usize| rows.iter().map(of).max().unwrap_or(0).max(least);
    let (task, metric, name) = (
        width(&|row| row.0.chars().count(), 4),
        width(&|row| metric_of(row.1).chars().count(), 6),
        width(&|row| row.1.perturbation.chars().count(), 12),
    );
    let mut text = format!(
        "{:task$}  {:metric$}  {:name$}  {:>8}  {:>8}  {:>8}  {:>8}  {:>18}  {:>8}\n",
        "task", "metric", "perturbation", "changed", "before", "after", "drop", "95 % interval", "all"
    );
    for (of, row) in rows {
        let number = |value: Option<f64>| value.map_or("–".to_owned(), |value| format!("{value:.4}"));
        // Where no pair differs, the differences say nothing of their spread.
        let interval = match row.drop.map(|drop| (drop.drop, drop.stderr)) {
            Some((_, Some(0.0))) => "no pair differs".to_owned(),
            Some((drop, Some(stderr))) => {
                format!("{:.4} to {:.4}", drop - 1.96 * stderr, drop + 1.96 * stderr)
            }
            _ => "–".to_owned(),
        };
        let _ = writeln!(
            text,
            "{of:task$}  {:metric$}  {:name$}  {:>8}  {:>8}  {:>8}  {:>8}  {interval:>18}  {:>8.4}",
            metric_of(row),
            row.perturbation,
            row.drop.map_or(0, |drop| drop.instances),
            number(row.drop.map(|drop| drop.before)),
            number(row.drop.map(|drop| drop.after)),
            number(row.drop.map(|drop| drop.drop)),
            row.all
        );
    }
    for task in tasks {
        let _ = match &task.skipped {
            Some(why) => write!(text, "\nnot perturbed: {why}"),
            None => write!(
                text,
                "\n{}: perturbed columns {}; seed {}",
                task.task,
                task.columns.join(", "),
                seed.seed
            ),
        };
    }
    text
}

fn metric_of(row: &Row) -> String {
    let arrow = if row.larger_is_better { '↑' } else { '↓' };
    match row.filter.as_str() {
        "none" => format!("{} {arrow}", row.metric),
        filter => format!("{} ({filter}) {arrow}", row.metric),
    }
}
