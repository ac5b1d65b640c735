//! From the answers of a model to the scores of a task.

use super::calibrated::{calibration, probabilities};
use super::groups::Measured;
use super::{Answer, DocumentRequests, FEWSHOT_SEED, Gold, Request, Score, Task, TaskRequests, TaskScores};
use crate::error::TaskError;
use crate::filters::filtered;
use crate::metrics::{Metric, MetricKind, OutputType, interval, largest, score, trials};
use serde_json::{Value, json};
use std::cmp::Ordering;
use std::collections::BTreeMap;

impl Task {
    /// The scores of answers, in the order of the requests. `model` names the tokenizer and whatever else the answers depend on, for the
    /// signature; `bootstrap` are the samples of standard errors that have no closed form.
    ///
    /// # Errors
    /// Answers that do not belong to the requests.
    pub fn score(
        &self,
        requests: &TaskRequests,
        answers: &[Vec<Answer>],
        model: &str,
        bootstrap: u64,
    ) -> Result<TaskScores, TaskError> {
        if answers.len() != requests.documents.len() {
            return Err(self.wrong(format!(
                "wanted answers to {} documents, found {}",
                requests.documents.len(),
                answers.len()
            )));
        }
        let (mut scores, mut groups, mut samples) = (Vec::new(), Vec::new(), Vec::new());
        for (filter, steps) in &self.config.filters {
            let mut columns: Vec<Measured> = vec![Measured::default(); self.config.metrics.len()];
            for (place, (document, answers)) in requests.documents.iter().zip(answers).enumerate() {
                let text = |answers: &[String]| filtered(steps, answers);
                let measured = self.measure(document, answers, &text)?;
                let named: BTreeMap<&str, &Vec<f64>> = self
                    .config
                    .metrics
                    .iter()
                    .zip(&measured)
                    .filter_map(|(m, v)| Some((m.name.as_str(), v.as_ref()?)))
                    .collect();
                samples.push(sample(document, answers, filter, &named));
                for (column, value) in columns.iter_mut().zip(measured) {
                    column.documents.extend(value.is_some().then_some(place));
                    column.rows.extend(value);
                }
            }
            let measured = self.config.metrics.iter().zip(&columns);
            for (metric, Measured { rows, .. }) in measured.filter(|(_, column)| !column.rows.is_empty()) {
                let (value, stderr) = score(metric.aggregation, rows, bootstrap);
                let trials = trials(metric.aggregation, rows);
                scores.push(Score {
                    metric: metric.name.clone(),
                    filter: filter.clone(),
                    value,
                    stderr,
                    interval: interval(value, stderr, trials),
                    trials,
                    larger_is_better: metric.larger_is_better,
                    documents: rows.len(),
                    worst: None,
                });
            }
            groups.extend(self.grouped(&requests.documents, (filter, &columns), bootstrap)?);
        }
        let signature = format!(
            "task:{}|version:{}|fewshot:{}|seed:{FEWSHOT_SEED}|n:{}|prompts:{}|{}{model}|bessemer:{}",
            self.config.name,
            self.config.version,
            self.config.num_fewshot,
            requests.documents.len(),
            requests.digest,
            // The code that was published with the paper has another definition.
            if self.has(MetricKind::SelfContrast) { "self_contrast:paper|" } else { "" },
            env!("CARGO_PKG_VERSION")
        );
        Ok(TaskScores {
            task: self.config.name.clone(),
            version: self.config.version.clone(),
            num_fewshot: self.config.num_fewshot,
            documents: requests.documents.len(),
            level: self.config.level,
            siblings: self.config.siblings.clone(),
            signature,
            scores,
            groups,
            calibration: self
                .has(MetricKind::Acc)
                .then(|| calibration(&requests.documents, answers))
                .flatten(),
            samples,
        })
    }

    /// What each metric measures of a document; None where a metric does not apply to it.
    pub(super) fn measure(
        &self,
        document: &DocumentRequests,
        answers: &[Answer],
        filtered: &dyn Fn(&[String]) -> String,
    ) -> Result<Vec<Option<Vec<f64>>>, TaskError> {
        let metrics = self.config.metrics.iter();
        let mismatch =
            || self.wrong(format!("document {}: the answers do not match its requests", document.number));
        match (self.config.output, answers) {
            (OutputType::LogLikelihood, [Answer::LogLikelihood { value, greedy }]) => Ok(metrics
                .map(|metric| match metric.kind {
                    MetricKind::Perplexity => Some(vec![*value]),
                    _ => greedy.map(|greedy| vec![f64::from(u8::from(greedy))]),
                })
                .collect()),
            (OutputType::Rolling, [Answer::Rolling(value)]) => {
                let Gold::Texts(texts) = &document.gold else { return Err(mismatch()) };
                let (words, bytes) = (words(&texts[0]) as f64, texts[0].len() as f64);
                let weight =
                    |metric: &Metric| if metric.kind == MetricKind::WordPerplexity { words } else { bytes };
                Ok(metrics.map(|metric| Some(vec![*value, weight(metric)])).collect())
            }
            (OutputType::Generate, [Answer::Texts(texts), more @ ..]) => {
                let informed = match (more, &self.config.parts.informed) {
                    ([Answer::Texts(texts)], Some(_)) => Some(filtered(texts)),
                    ([], None) => None,
                    _ => return Err(mismatch()),
                };
                let Gold::Texts(expected) = &document.gold else { return Err(mismatch()) };
                let (text, expected) =
                    (filtered(texts), expected.iter().map(String::as_str).collect::<Vec<_>>());
                Ok(metrics
                    .map(|metric| Some(metric.of_text(&text, informed.as_deref(), &expected)))
                    .collect())
            }
            (OutputType::MultipleChoice, answers) => {
                let of = |answer: &Answer| match answer {
                    Answer::LogLikelihood { value, greedy } => Some((*value, *greedy)),
                    _ => None,
                };
                let all: Vec<(f64, Option<bool>)> =
                    answers.iter().map(of).collect::<Option<_>>().ok_or_else(mismatch)?;
                if all.len() != document.requests.len() {
                    return Err(mismatch());
                }
                Ok(metrics.map(|metric| choice(metric.kind, document, &all, self.multiple_target)).collect())
            }
            _ => Err(mismatch()),
        }
    }
}

/// What a metric measures of a document with choices.
fn choice(
    kind: MetricKind,
    document: &DocumentRequests,
    all: &[(f64, Option<bool>)],
    several: bool,
) -> Option<Vec<f64>> {
    let n = document.choices.len();
    let Gold::Choices(gold) = &document.gold else { return None };
    let lls: Vec<f64> = all[..n].iter().map(|answer| answer.0).collect();
    let per = |size: &dyn Fn(&str) -> usize| -> Vec<f64> {
        lls.iter().zip(&document.choices).map(|(ll, choice)| ll / size(choice) as f64).collect()
    };
    let right = |values: &[f64]| Some(vec![f64::from(u8::from(gold.contains(&largest(values))))]);
    let label = || gold.first().map(|gold| *gold as f64);
    match kind {
        MetricKind::Acc => right(&lls),
        MetricKind::AccNorm => right(&per(&|choice| choice.chars().count())),
        MetricKind::AccBytes => right(&per(&str::len)),
        MetricKind::AccMutualInfo => {
            let gains: Vec<f64> =
                lls.iter().zip(all.get(n..2 * n)?).map(|(ll, alone)| ll - alone.0).collect();
            // The harness compares with a single target alone.
            right(&gains).filter(|_| !several || gold.len() == 1)
        }
        MetricKind::ExactMatch => {
            let greedy = gold.iter().map(|&gold| all[gold].1).collect::<Option<Vec<bool>>>()?;
            Some(vec![f64::from(u8::from(greedy.contains(&true)))])
        }
        MetricKind::Brier => {
            let gold = *gold.first()?;
            let distance = |(i, p): (usize, f64)| (p - f64::from(u8::from(i == gold))).powi(2);
            Some(vec![probabilities(&lls).into_iter().enumerate().map(distance).sum()])
        }
        MetricKind::Mcc | MetricKind::F1 => Some(vec![label()?, largest(&lls) as f64]),
        MetricKind::PctStereotype => Some(vec![f64::from(u8::from(lls.first()? > lls.get(1)?))]),
        MetricKind::PreferenceGap => Some(vec![match lls.first()?.total_cmp(lls.get(1)?) {
            Ordering::Greater => 1.0,
            Ordering::Equal => 0.0,
            Ordering::Less => -1.0,
        }]),
        MetricKind::LikelihoodDiff => Some(vec![(lls.first()? - lls.get(1)?).abs()]),
        MetricKind::BbqDisambiguated | MetricKind::BbqAmbiguous => {
            let ambiguous = document.document.get("context_condition")?.as_str()? == "ambig";
            let answer = largest(&lls);
            let is =
                |column: &str| document.document.get(column).and_then(Value::as_u64) == Some(answer as u64);
            let row =
                [gold.contains(&answer), is("biased"), !is("unknown")].map(|yes| f64::from(u8::from(yes)));
            (ambiguous == (kind == MetricKind::BbqAmbiguous)).then(|| row.to_vec())
        }
        _ => None,
    }
}

fn sample(
    document: &DocumentRequests,
    answers: &[Answer],
    filter: &str,
    measured: &BTreeMap<&str, &Vec<f64>>,
) -> Value {
    let request = |(request, answer): (&Request, &Answer)| {
        let asked = match request {
            Request::LogLikelihood { context, continuation } => json!([context, continuation]),
            Request::Rolling { text } => json!([text]),
            Request::Generate { context, .. } => json!([context]),
        };
        let answered = match answer {
            Answer::LogLikelihood { value, greedy } => json!({"log_likelihood": value, "greedy": greedy}),
            Answer::Rolling(value) => json!({"log_likelihood": value}),
            Answer::Texts(texts) => json!({"texts": texts}),
        };
        json!({"arguments": asked, "answer": answered})
    };
    json!({
        "document": document.number,
        "filter": filter,
        "requests": document.requests.iter().zip(answers).map(request).collect::<Vec<_>>(),
        "expected": match &document.gold {
            Gold::Choices(places) => json!(places),
            Gold::Texts(texts) => json!(texts),
        },
        "metrics": measured,
    })
}

/// `len(re.split(r"\s+", text))`.
pub fn words(text: &str) -> usize {
    let mut runs = 0;
    let mut blank = false;
    for c in text.chars() {
        let now = c.is_whitespace() || ('\u{1c}'..='\u{1f}').contains(&c);
        runs += usize::from(now && !blank);
        blank = now;
    }
    runs + 1
}
