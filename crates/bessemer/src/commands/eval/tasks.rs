//! `bessemer eval --tasks`: questions that a model answers.

use super::kola;
use super::robust::{self, RobustTask, Robustness};
use super::{window, with_model};
use crate::cli::EvalArgs;
use crate::commands::saved_model::SavedModel;
use crate::console::{Console, print};
use crate::failure::Failure;
use crate::run_dir::RunDir;
use crate::task_data::parquet_rows;
use bessemer_eval::generate::CachedDecoder;
use bessemer_eval::score::answers::{TaskRows, generated_answers};
use bessemer_eval::score::rows::LengthDecoders;
use bessemer_runtime::{Cache, CacheShape};
use bessemer_tasks::{Answer, Catalog, GroupScores, Score, TaskRequests, TaskScores};
use bessemer_train::Observer;
use serde_json::{Value, json};
use std::fmt::Write;

pub(super) fn run(args: &EvalArgs, as_json: bool, console: &mut Console) -> Result<(), Failure> {
    let catalog = Catalog {
        folders: args.task_dir.clone(),
        data: args.task_data.clone(),
        num_fewshot: args.fewshot,
        parquet: Some(parquet_rows),
    };
    let selection = catalog.load(&args.tasks)?;
    let robustness = Robustness::new(args)?;
    // What is wrong with templates and documents is found before the model is read.
    let requests =
        selection.tasks.iter().map(|task| task.requests(args.limit)).collect::<Result<Vec<_>, _>>()?;
    if let Some(robustness) = &robustness {
        robustness.check(&selection.tasks)?;
    }
    if let Some(file) = &args.facts {
        kola::write_facts(file)?;
    }
    let mut table_of_models = args.kola.as_deref().map(kola::Table::open).transpose()?;
    let saved = SavedModel::open(&args.run, console)?;
    let longest = window(args, &saved)?;
    let writes = selection.tasks.iter().any(|task| !task.is_scored());
    let sequences = (args.batch_tokens / longest).max(1);
    let cached = writes.then_some(CacheShape::one(longest));
    let tokenizer = &saved.tokenizer;
    let signature =
        format!("tok:{}|window:{longest}|step:{}", &tokenizer.fingerprint()[..16], saved.state.step);
    let batch = (sequences, longest);
    let (scores, robust) = with_model(&saved, args, batch, cached, |mut backend, decoder| {
        let mut model = LengthDecoders::new(&mut backend, decoder);
        let mut cache = match writes {
            true => {
                let (decoder, backend) = model.parts();
                Some(Cache::new(backend, decoder, CacheShape::one(longest))?)
            }
            false => None,
        };
        let (mut scores, mut robust) = (Vec::with_capacity(requests.len()), Vec::new());
        for (task, requests) in selection.tasks.iter().zip(&requests) {
            let mut answer = |shown: &str, requests: &TaskRequests| -> Result<Vec<Vec<Answer>>, Failure> {
                let mut progress = |done, all| console.progress(shown, done, all);
                Ok(match &mut cache {
                    Some(cache) if !task.is_scored() => {
                        let (decoder, backend) = model.parts();
                        let mut model = CachedDecoder::new(decoder, backend, cache)?;
                        generated_answers(requests, tokenizer, &mut model, &mut progress)?
                    }
                    _ => TaskRows::new(requests, tokenizer, longest)?.answers(
                        requests,
                        &mut model,
                        &mut progress,
                    )?,
                })
            };
            let answers = answer(task.name(), requests)?;
            if let Some(robustness) = &robustness {
                let original = (requests, answers.as_slice());
                robust.push(robustness.run(task, original, &signature, args.bootstrap, &mut answer)?);
            }
            scores.push(task.score(requests, &answers, &signature, args.bootstrap)?);
        }
        Ok((scores, robust))
    })?;
    let groups: Vec<GroupScores> = selection.groups.iter().map(|group| group.scores(&scores)).collect();
    if let Some(file) = &args.samples {
        let mut lines = String::new();
        for (task, sample) in
            scores.iter().flat_map(|task| task.samples.iter().map(move |sample| (task, sample)))
        {
            let mut sample = sample.clone();
            sample["task"] = Value::from(task.task.as_str());
            let _ = writeln!(lines, "{sample}");
        }
        for sample in robust.iter().flat_map(RobustTask::samples) {
            let _ = writeln!(lines, "{sample}");
        }
        bessemer_durable::write(file, lines.as_bytes())
            .map_err(|e| Failure::new(format!("--samples: {}: {e}", file.display())))?;
    }
    let levels = kola::levels(&scores);
    let standardised = match &mut table_of_models {
        Some(table) => {
            let name = args
                .kola_name
                .clone()
                .unwrap_or_else(|| format!("{}@{}", RunDir::new(&args.run.run).name(), saved.state.step));
            table.set(&name, &scores)?;
            Some(table.write()?)
        }
        None => None,
    };
    if as_json {
        let mut all = json!({"step": saved.state.step, "tasks": scores, "groups": groups});
        if !levels.is_empty() {
            all["levels"] = levels.iter().map(kola::LevelScore::json).collect();
        }
        if let Some((value, _)) = &standardised {
            all["kola"] = value.clone();
        }
        if robustness.is_some() {
            all["robustness"] = robust.iter().map(RobustTask::json).collect();
        }
        return Ok(print(&serde_json::to_string(&all)?)?);
    }
    let mut text = table(&scores, &groups);
    if !levels.is_empty() {
        text += &kola::text(&levels);
    }
    if let Some((_, words)) = &standardised {
        let _ = write!(text, "\n\n{words}");
    }
    if args.calibration {
        text += &calibration(&scores);
    }
    if let Some(robustness) = &robustness {
        let _ = write!(text, "\n\n{}", robust::table(&robust, robustness));
    }
    Ok(print(&text)?)
}

/// How far the probabilities of the answers are to be believed, of the tasks that tell.
fn calibration(tasks: &[TaskScores]) -> String {
    let mut text = String::from("\n\ncalibration:");
    for task in tasks {
        let _ = match &task.calibration {
            Some(c) => write!(
                text,
                "\n{}: ECE {:.4} (10 bins of equal width), {:.4} (of equal mass), Brier {:.4}, selective accuracy {:.4}, of the surest tenth {:.4}",
                task.task,
                c.ece_equal_width,
                c.ece_equal_mass,
                c.brier,
                c.selective_accuracy,
                c.accuracy_of_surest_tenth
            ),
            None => write!(text, "\n{}: none; it needs choices and the metric acc", task.task),
        };
    }
    text
}

/// Scores with what a mean may be off by, and under which signatures they compare.
fn table(tasks: &[TaskScores], groups: &[GroupScores]) -> String {
    let of_groups =
        groups.iter().flat_map(|group| group.scores.iter().map(|score| (group.group.clone(), score.clone())));
    let rows: Vec<(String, Score)> = tasks.iter().flat_map(TaskScores::all_scores).chain(of_groups).collect();
    let width = |of: &dyn Fn(&(String, Score)) -> usize, least: usize| {
        rows.iter().map(of).max().unwrap_or(0).max(least)
    };
    let (task, metric, filter) = (
        width(&|row| row.0.chars().count(), 4),
        width(&|row| row.1.metric.chars().count() + 2, 6),
        width(&|row| row.1.filter.chars().count(), 6),
    );
    let mut text = format!(
        "{:task$}  {:filter$}  {:metric$}  {:>9}  {:>8}  {:>18}  {:>9}\n",
        "task", "filter", "metric", "score", "error", "95 % interval", "documents"
    );
    for (name, score) in rows {
        let better = format!("{} {}", score.metric, if score.larger_is_better { '↑' } else { '↓' });
        let error = score.stderr.map_or("–".to_owned(), |s| format!("{s:.4}"));
        let interval =
            score.interval.map_or("–".to_owned(), |[low, high]| format!("{low:.4} to {high:.4}"));
        let _ = writeln!(
            text,
            "{name:task$}  {:filter$}  {better:metric$}  {:>9.4}  {error:>8}  {interval:>18}  {:>9}",
            score.filter, score.value, score.documents
        );
    }
    for grouped in tasks.iter().flat_map(|task| &task.groups) {
        let (metric, column, groups) = (&grouped.metric, &grouped.column, grouped.groups.len());
        let (worst, gap) = (&grouped.worst, grouped.gap);
        let _ = write!(text, "\n{metric} by {column}: worst of {groups} is {worst}, largest gap {gap:.4}");
    }
    for task in tasks {
        let _ = write!(text, "\n{}", task.signature);
    }
    text
}
