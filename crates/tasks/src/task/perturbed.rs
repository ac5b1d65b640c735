//! Perturbed documents: the same questions in other words or with errors, and what each answer to them is worth.

use super::{Answer, Document, Task, TaskRequests};
use crate::config::Source;
use crate::error::TaskError;
use crate::filters::filtered;
use crate::metrics::{Aggregation, OutputType};
use bessemer_perturb::{Perturbation, PythonRandom, of_document};
use serde_json::Value;
use std::collections::BTreeSet;

/// Requests about documents that a perturbation changed.
#[derive(Debug, Clone)]
pub struct PerturbedRequests {
    /// Those of the changed documents alone. The digest is that of all documents as they were shown.
    pub requests: TaskRequests,
    /// Places of these documents among those of the original requests.
    pub changed: Vec<usize>,
}

/// What a metric that is a mean measures of each document.
#[derive(Debug, Clone, PartialEq)]
pub struct DocumentValues {
    /// The metric.
    pub metric: String,
    /// The pipeline of filters, "none" without one.
    pub filter: String,
    /// Whether a larger value is better.
    pub larger_is_better: bool,
    /// By document; None where the metric does not apply.
    pub values: Vec<Option<f64>>,
}

impl Task {
    /// The columns of a document that are perturbed. `asked`: these, as far as the documents have them. Without: columns with text that the question is
    /// made of (`doc_to_text`), and neither the choices nor the answer (`doc_to_choice`, `doc_to_target`).
    ///
    /// # Errors
    /// A task that has no such column.
    pub fn perturbed_columns(&self, asked: &[String]) -> Result<Vec<String>, TaskError> {
        let first = self.documents.first();
        let has_text = |column: &str| first.and_then(|first| first.get(column)).is_some_and(has_text);
        let known = || {
            let names = first.into_iter().flat_map(|first| first.keys()).map(String::as_str);
            names.filter(|column| has_text(column)).collect::<Vec<_>>().join(", ")
        };
        if !asked.is_empty() {
            let found: Vec<String> = asked.iter().filter(|column| has_text(column)).cloned().collect();
            return match found.is_empty() {
                true => Err(self.wrong(format!(
                    "wanted a column with text among {}, found {}",
                    asked.join(", "),
                    known()
                ))),
                false => Ok(found),
            };
        }
        let parts = &self.config.parts;
        let mut answers = self.columns_of(&parts.target);
        answers.extend(parts.choice.iter().flat_map(|choice| self.columns_of(choice)));
        let questions = self.columns_of(&parts.text).into_iter();
        let found: Vec<String> =
            questions.filter(|column| has_text(column) && !answers.contains(column)).collect();
        match found.is_empty() {
            true => Err(self.wrong(format!(
                "no column is only the question, so name the columns to perturb; columns with text: {}",
                known()
            ))),
            false => Ok(found),
        }
    }

    fn columns_of(&self, source: &Source) -> BTreeSet<String> {
        match source {
            Source::Fixed(_) => BTreeSet::new(),
            Source::Text(name) if self.documents.first().is_some_and(|first| first.contains_key(name)) => {
                BTreeSet::from([name.clone()])
            }
            Source::Text(template) => self.templates.columns(template).unwrap_or_default(),
        }
    }

    /// The requests about the documents of `original` whose columns a perturbation changes. Examples stay as they are, and so do the expected answers.
    /// The random numbers of a document follow from `seed` and its number, and go from column to column.
    ///
    /// # Errors
    /// Perturbed documents that do not go with the templates.
    pub fn perturbed_requests(
        &self,
        original: &TaskRequests,
        columns: &[String],
        perturbation: &Perturbation,
        seed: u64,
    ) -> Result<PerturbedRequests, TaskError> {
        let shown = |(number, document): (usize, &Document)| {
            let mut random = of_document(seed, number);
            let mut document = document.clone();
            for column in columns {
                if let Some(value) = document.get_mut(column) {
                    perturb(value, perturbation, &mut random);
                }
            }
            document
        };
        let documents = self.documents.iter().enumerate().take(original.documents.len());
        let all = self.requests_of(&documents.map(shown).collect::<Vec<_>>())?;
        let is_rolling = self.config.output == OutputType::Rolling;
        let (mut changed, mut documents) = (Vec::new(), Vec::new());
        for (place, (before, mut after)) in original.documents.iter().zip(all.documents).enumerate() {
            if before.requests == after.requests {
                continue;
            }
            if !is_rolling {
                after.gold = before.gold.clone();
            }
            changed.push(place);
            documents.push(after);
        }
        Ok(PerturbedRequests { requests: TaskRequests { documents, ..all }, changed })
    }

    /// What each metric that is a mean over documents measures of each of them, after each pipeline of filters.
    ///
    /// # Errors
    /// Answers that do not belong to the requests.
    pub fn document_values(
        &self,
        requests: &TaskRequests,
        answers: &[Vec<Answer>],
    ) -> Result<Vec<DocumentValues>, TaskError> {
        let means: Vec<usize> = (0..self.config.metrics.len())
            .filter(|place| self.config.metrics[*place].aggregation == Aggregation::Mean)
            .collect();
        let mut all = Vec::new();
        for (filter, steps) in &self.config.filters {
            let mut columns: Vec<Vec<Option<f64>>> = vec![Vec::new(); means.len()];
            for (document, answers) in requests.documents.iter().zip(answers) {
                let measured = self.measure(document, answers, &|texts| filtered(steps, texts))?;
                for (column, place) in columns.iter_mut().zip(&means) {
                    column.push(measured[*place].as_ref().and_then(|values| values.first().copied()));
                }
            }
            all.extend(means.iter().zip(columns).map(|(place, values)| {
                let metric = &self.config.metrics[*place];
                let (name, larger_is_better) = (metric.name.clone(), metric.larger_is_better);
                DocumentValues { metric: name, filter: filter.clone(), larger_is_better, values }
            }));
        }
        all.retain(|one| one.values.iter().any(Option::is_some));
        Ok(all)
    }
}

fn has_text(value: &Value) -> bool {
    match value {
        Value::String(text) => !text.is_empty(),
        Value::Array(list) => list.iter().any(has_text),
        Value::Object(map) => map.values().any(has_text),
        _ => false,
    }
}

/// Perturbs a text, and the texts within lists and mappings.
fn perturb(value: &mut Value, perturbation: &Perturbation, random: &mut PythonRandom) {
    match value {
        Value::String(text) => *text = perturbation.apply(text, random),
        Value::Array(list) => list.iter_mut().for_each(|value| perturb(value, perturbation, random)),
        Value::Object(map) => map.values_mut().for_each(|value| perturb(value, perturbation, random)),
        _ => (),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::task::{DocumentRequests, Gold};
    use crate::{Catalog, Request};
    use serde_json::json;

    fn task(yaml: &str, rows: &[Value]) -> (tempfile::TempDir, Task) {
        let dir = tempfile::tempdir().unwrap();
        let lines: String = rows.iter().map(|row| format!("{row}\n")).collect();
        std::fs::write(dir.path().join("rows.jsonl"), lines).unwrap();
        let data = "dataset_path: json\ndataset_kwargs: {data_files: {test: rows.jsonl}}\ntest_split: test\n";
        let file = dir.path().join("t.yaml");
        std::fs::write(&file, format!("task: t\n{data}{yaml}")).unwrap();
        let names = [file.display().to_string()];
        let task = Catalog::default().load(&names).unwrap().tasks.remove(0);
        (dir, task)
    }

    fn named(name: &str) -> Perturbation {
        Perturbation::list(&[name.to_owned()]).unwrap()[0]
    }

    const CHOICE: &str = "output_type: multiple_choice\ndoc_to_text: \"{{passage}} Q: {{q}} A: {{choices[0]}}, B: {{choices[1]}}\"\ndoc_to_choice: choices\ndoc_to_target: gold\n";

    fn rows() -> Vec<Value> {
        vec![
            json!({"passage": "He is here.", "q": "Who?", "choices": ["He is", "She is"], "gold": 1, "id": "x is y"}),
            json!({"passage": "none.", "q": "What?", "choices": ["a", "b"], "gold": 0, "id": "it is z"}),
        ]
    }

    #[test]
    fn questions_are_perturbed_and_choices_are_not() {
        let (_dir, task) = task(CHOICE, &rows());
        assert_eq!(task.perturbed_columns(&[]).unwrap(), ["passage", "q"]);
        let original = task.requests(None).unwrap();
        let columns = task.perturbed_columns(&[]).unwrap();
        let found = task.perturbed_requests(&original, &columns, &named("contraction"), 0).unwrap();
        assert_eq!(found.changed, [0], "the second document has nothing to contract");
        let Request::LogLikelihood { context, continuation } = &found.requests.documents[0].requests[0]
        else {
            panic!("a choice is scored");
        };
        assert_eq!(context, "He's here. Q: Who? A: He is, B: She is");
        assert_eq!(continuation, " He is");
        // Unless it is asked for.
        let columns = task.perturbed_columns(&["choices".into(), "nothing".into()]).unwrap();
        assert_eq!(columns, ["choices"]);
        let found = task.perturbed_requests(&original, &columns, &named("lowercase"), 0).unwrap();
        let Request::LogLikelihood { continuation, .. } = &found.requests.documents[0].requests[1] else {
            panic!("a choice is scored");
        };
        assert_eq!(continuation, " she is");
        assert_eq!(found.requests.documents[0].gold, Gold::Choices(vec![1]));
        let e = task.perturbed_columns(&["nothing".into()]).unwrap_err().to_string();
        assert!(e.contains("nothing") && e.contains("passage, q, choices, id"), "{e}");
    }

    #[test]
    fn examples_are_those_of_the_original() {
        let rows: Vec<Value> =
            (0..6).map(|i| json!({"q": format!("He is {i}."), "a": format!("{i}")})).collect();
        let yaml = "output_type: generate_until\ndoc_to_text: q\ndoc_to_target: a\nfewshot_split: test\nnum_fewshot: 2\nmetric_list: [{metric: exact_match}]\n";
        let (_dir, task) = task(yaml, &rows);
        let original = task.requests(None).unwrap();
        let columns = task.perturbed_columns(&[]).unwrap();
        let found = task.perturbed_requests(&original, &columns, &named("contraction"), 0).unwrap();
        assert_eq!(found.changed.len(), 6);
        for (before, after) in original.documents.iter().zip(&found.requests.documents) {
            let text = |document: &DocumentRequests| match &document.requests[0] {
                Request::Generate { context, .. } => context.clone(),
                other => panic!("{other:?}"),
            };
            let (before, after) = (text(before), text(after));
            let (examples, question) = before.rsplit_once("He is ").unwrap();
            assert_eq!(after, format!("{examples}He's {question}"));
        }
        assert_ne!(original.digest, found.requests.digest);
        let answer = |text: &str| vec![Answer::Texts(vec![text.to_owned()])];
        let answers: Vec<_> = ["0", "1", "x", "3", "x", "x"].iter().map(|text| answer(text)).collect();
        let values = task.document_values(&found.requests, &answers).unwrap();
        assert_eq!(values.len(), 1);
        assert_eq!((values[0].metric.as_str(), values[0].larger_is_better), ("exact_match", true));
        assert_eq!(values[0].values, [1.0, 1.0, 0.0, 1.0, 0.0, 0.0].map(Some));
    }

    #[test]
    fn a_task_whose_text_holds_its_answer_is_not_perturbed() {
        let yaml = "output_type: loglikelihood\ndoc_to_text: \"{{text.split(' ')[:-1]|join(' ')}}\"\ndoc_to_target: \"{{' '+text.split(' ')[-1]}}\"\n";
        let (_dir, task) = task(yaml, &[json!({"text": "the cat is here"})]);
        let e = task.perturbed_columns(&[]).unwrap_err().to_string();
        assert!(e.contains("only the question") && e.contains("text"), "{e}");
    }
}
