//! Tasks that a model answers again and again while it is trained.

use crate::config::TasksConfig;
use crate::error::EvalError;
use crate::generate::NextToken;
use crate::score::answers::{TaskRows, generated_answers};
use crate::score::rows::RowModel;
pub use bessemer_tasks::{Catalog, TaskScores};
use bessemer_tasks::{Request, Task, TaskRequests};
use bessemer_tokenizer::Tokenizer;

/// Samples of standard errors that have no closed form: fewer than after a training, where they cost nothing.
const BOOTSTRAP: u64 = 1000;

/// Lengths that a model has, tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ModelLengths {
    /// Longest input that is scored.
    pub longest: usize,
    /// Positions that a generated text may have with its prompt.
    pub context: usize,
}

/// Tasks, read and encoded.
#[derive(Debug)]
pub struct PreparedTasks {
    scored: Vec<(Task, TaskRequests, TaskRows)>,
    generated: Vec<(Task, TaskRequests)>,
    /// Tokenizer and longest input.
    model: String,
    /// The bound on generated answers, for signatures.
    max_generated: u64,
}

impl PreparedTasks {
    /// The tasks of a recipe, found in a catalog, for a model of these lengths; none if it will answer none.
    ///
    /// # Errors
    /// [`EvalError::Task`] for names, files and documents; [`EvalError::Request`] for a task that generates text without a bound, or does not fit the model;
    /// [`EvalError::Tokenizer`].
    pub fn new(
        config: &TasksConfig,
        catalog: &Catalog,
        tokenizer: &Tokenizer,
        lengths: ModelLengths,
    ) -> Result<PreparedTasks, EvalError> {
        let names: &[String] = if config.are_answered() { &config.names } else { &[] };
        let limit = (config.limit > 0).then_some(config.limit as usize);
        let ModelLengths { longest, .. } = lengths;
        let mut prepared = PreparedTasks {
            scored: Vec::new(),
            generated: Vec::new(),
            model: format!("tok:{}|window:{longest}", &tokenizer.fingerprint()[..16]),
            max_generated: config.max_generated_tokens,
        };
        for task in catalog.load(names)?.tasks {
            let mut requests = task.requests(limit)?;
            if task.is_scored() {
                let rows = TaskRows::new(&requests, tokenizer, longest)?;
                prepared.scored.push((task, requests, rows));
            } else {
                bound(&task, &mut requests, config, tokenizer, lengths.context)?;
                prepared.generated.push((task, requests));
            }
        }
        Ok(prepared)
    }

    /// Whether there is no task.
    pub fn is_empty(&self) -> bool {
        self.scored.is_empty() && !self.generate()
    }

    /// Whether there is a task that generates text.
    pub fn generate(&self) -> bool {
        !self.generated.is_empty()
    }

    /// The scores of a model after `step` steps, of tasks without generated text. A metric that asks for the most probable tokens is left out where the model does not tell them.
    /// `progress` is called with (tasks done, tasks).
    ///
    /// # Errors
    /// Errors of the model.
    pub fn score(
        &self,
        model: &mut dyn RowModel,
        step: u64,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<Vec<TaskScores>, EvalError> {
        let signature = format!("{}|step:{step}", self.model);
        let mut scores = Vec::with_capacity(self.scored.len());
        for (task, requests, rows) in &self.scored {
            let answers = rows.answers(requests, model, &mut |_, _| ())?;
            scores.push(task.score(requests, &answers, &signature, BOOTSTRAP)?);
            progress(scores.len() as u64, self.scored.len() as u64);
        }
        Ok(scores)
    }

    /// The scores of a model after `step` steps, of tasks with generated text. `progress` is called with (texts done, texts) of each task.
    ///
    /// # Errors
    /// Errors of the model.
    pub fn score_generated(
        &self,
        tokenizer: &Tokenizer,
        model: &mut dyn NextToken,
        step: u64,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<Vec<TaskScores>, EvalError> {
        let signature = format!("{}|gen:{}|step:{step}", self.model, self.max_generated);
        let mut scores = Vec::with_capacity(self.generated.len());
        for (task, requests) in &self.generated {
            let answers = generated_answers(requests, tokenizer, model, progress)?;
            scores.push(task.score(requests, &answers, &signature, BOOTSTRAP)?);
        }
        Ok(scores)
    }
}

/// Bounds the generated answers of a task, and checks that the tokenizer and the context can have them.
fn bound(
    task: &Task,
    requests: &mut TaskRequests,
    config: &TasksConfig,
    tokenizer: &Tokenizer,
    context: usize,
) -> Result<(), EvalError> {
    let name = task.name();
    let most = config.max_generated_tokens;
    if most == 0 {
        return Err(EvalError::Request(format!(
            "eval.tasks.names: task {name} generates text; wanted a bound on its answers, such as eval.tasks.max_generated_tokens = 64, or tasks \
             that are answered by log-likelihoods"
        )));
    }
    for request in requests.documents.iter_mut().flat_map(|document| &mut document.requests) {
        let Request::Generate { context: prompt, generation, .. } = request else { continue };
        generation.max_tokens = generation.max_tokens.min(most);
        if generation.max_tokens >= context as u64 {
            return Err(EvalError::Request(format!(
                "eval.tasks.max_generated_tokens = {most}: task {name} needs {} tokens for the answer plus a \
                 prompt; the model's context has {context}",
                generation.max_tokens
            )));
        }
        tokenizer.encode_with_special(prompt.as_bytes())?;
    }
    Ok(())
}
