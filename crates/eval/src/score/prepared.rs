//! Tasks that a model answers again and again while it is trained.

use crate::config::TasksConfig;
use crate::error::EvalError;
use crate::score::answers::TaskRows;
use crate::score::rows::RowModel;
use bessemer_tasks::{Catalog, Task, TaskRequests, TaskScores};
use bessemer_tokenizer::Tokenizer;

/// Samples of standard errors that have no closed form: fewer than after a training, where they cost nothing.
const BOOTSTRAP: u64 = 1000;

/// Tasks, read and encoded.
#[derive(Debug)]
pub struct PreparedTasks {
    tasks: Vec<(Task, TaskRequests, TaskRows)>,
    /// Tokenizer and longest input.
    model: String,
}

impl PreparedTasks {
    /// The tasks of a recipe for a model that reads at most `longest` tokens; none if it will answer none.
    ///
    /// # Errors
    /// [`EvalError::Task`] for names, files and documents; [`EvalError::Request`] for a task that generates text or does not fit the model;
    /// [`EvalError::Tokenizer`].
    pub fn new(
        config: &TasksConfig,
        tokenizer: &Tokenizer,
        longest: usize,
    ) -> Result<PreparedTasks, EvalError> {
        let names: &[String] = if config.are_answered() { &config.names } else { &[] };
        let limit = (config.limit > 0).then_some(config.limit as usize);
        let prepare = |task: Task| {
            if !task.is_scored() {
                return Err(EvalError::Request(format!(
                    "eval.tasks.names: task {} generates text; wanted tasks that are answered by log-likelihoods",
                    task.name()
                )));
            }
            let requests = task.requests(limit)?;
            let rows = TaskRows::new(&requests, tokenizer, longest)?;
            Ok((task, requests, rows))
        };
        Ok(PreparedTasks {
            tasks: Catalog::default()
                .load(names)?
                .tasks
                .into_iter()
                .map(prepare)
                .collect::<Result<_, _>>()?,
            model: format!("tok:{}|window:{longest}", &tokenizer.fingerprint()[..16]),
        })
    }

    /// Whether there is no task.
    pub fn is_empty(&self) -> bool {
        self.tasks.is_empty()
    }

    /// The scores of a model after `step` steps. A metric that asks for the most probable tokens is left out where the model does not tell them.
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
        let mut scores = Vec::with_capacity(self.tasks.len());
        for (task, requests, rows) in &self.tasks {
            let answers = rows.answers(requests, model, &mut |_, _| ())?;
            scores.push(task.score(requests, &answers, &signature, BOOTSTRAP)?);
            progress(scores.len() as u64, self.tasks.len() as u64);
        }
        Ok(scores)
    }
}
