//! A task: its documents become requests; `scoring`: the answers to these become scores; `groups`, `calibrated`: what else they say.

mod calibrated;
mod groups;
mod perturbed;
mod scoring;

pub use calibrated::Calibration;
pub use groups::{GroupScore, GroupedScore};
pub use perturbed::{DocumentValues, PerturbedRequests};
pub use scoring::words;

pub(crate) use groups::columns;

use crate::config::{Generation, Level, Parts, Sampling, Source, TaskConfig};
use crate::data::{Document, Splits};
use crate::error::TaskError;
use crate::metrics::{MetricKind, OutputType};
use crate::python;
use crate::template::Templates;
use bessemer_mersenne::PythonRandom as Random;
use serde::Serialize;
use serde_json::Value;
use std::borrow::Cow;

/// Seed of the examples, that of the harness.
pub const FEWSHOT_SEED: u64 = 1234;

/// A request to a model.
#[derive(Debug, Clone, PartialEq)]
pub enum Request {
    /// The log-likelihood of a continuation after a context.
    LogLikelihood {
        /// What stands before; empty: the beginning of a document.
        context: String,
        /// The text that is scored.
        continuation: String,
    },
    /// The log-likelihood of a whole text, through rolling windows.
    Rolling {
        /// The text.
        text: String,
    },
    /// A text that follows a context.
    Generate {
        /// The text before it.
        context: String,
        /// How it is made.
        generation: Generation,
        /// How often.
        repeats: u64,
    },
}

/// The answer of a model to a [`Request`].
#[derive(Debug, Clone, PartialEq)]
pub enum Answer {
    /// To [`Request::LogLikelihood`].
    LogLikelihood {
        /// Natural logarithm of the probability.
        value: f64,
        /// Whether each token is the most probable one; None: not computed ([`TaskRequests::wants_greedy`]).
        greedy: Option<bool>,
    },
    /// To [`Request::Rolling`]: natural logarithm of the probability.
    Rolling(f64),
    /// To [`Request::Generate`]: a text for each repeat.
    Texts(Vec<String>),
}

/// The requests of one document.
#[derive(Debug, Clone)]
pub struct DocumentRequests {
    /// Number of the document in its split.
    pub number: usize,
    /// The requests.
    pub requests: Vec<Request>,
    choices: Vec<String>,
    gold: Gold,
    document: Document,
}

/// The expected answer.
#[derive(Debug, Clone, PartialEq)]
enum Gold {
    /// Places of choices; none: outside them.
    Choices(Vec<usize>),
    /// Texts.
    Texts(Vec<String>),
}

/// The requests of a task.
#[derive(Debug, Clone)]
pub struct TaskRequests {
    /// By document.
    pub documents: Vec<DocumentRequests>,
    /// Whether a metric asks for the most probable tokens.
    pub wants_greedy: bool,
    /// Digest of all requests.
    pub digest: String,
}

/// A score of a task.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Score {
    /// The metric.
    pub metric: String,
    /// The pipeline of filters, "none" without one.
    pub filter: String,
    /// The score.
    pub value: f64,
    /// Standard error, where there are two documents or more.
    pub stderr: Option<f64>,
    /// The 95 % interval: Wilson's of a share of the documents, 1.96 standard errors to both sides of other means.
    pub interval: Option<[f64; 2]>,
    /// Trials of the share that the score is; `None` of other scores.
    #[serde(skip)]
    pub trials: Option<f64>,
    /// Whether a larger score is better.
    pub larger_is_better: bool,
    /// Documents.
    pub documents: usize,
    /// Of a gap between groups: the group with the worst score.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub worst: Option<String>,
}

/// The scores of a task.
#[derive(Debug, Clone, Serialize)]
pub struct TaskScores {
    /// The task.
    pub task: String,
    /// Version of the task file.
    pub version: String,
    /// Examples before each question.
    pub num_fewshot: usize,
    /// Documents.
    pub documents: usize,
    /// Cognitive level, if the task has one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub level: Option<Level>,
    /// Name that tasks share whose scores are standardised together.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub siblings: Option<String>,
    /// What ran; scores compare only under one signature.
    pub signature: String,
    /// The scores.
    pub scores: Vec<Score>,
    /// The scores of groups of documents, where the task names a column that forms them.
    pub groups: Vec<GroupedScore>,
    /// Calibration of the answers, of multiple-choice tasks with the metric acc.
    pub calibration: Option<Calibration>,
    /// Each document, with what was asked, answered and measured.
    #[serde(skip)]
    pub samples: Vec<Value>,
}

impl TaskScores {
    /// The score of a metric after the first pipeline that has it.
    pub fn get(&self, metric: &str) -> Option<&Score> {
        self.scores.iter().find(|score| score.metric == metric)
    }

    /// The scores, those of groups of documents and the gaps between these, each with the name of what was scored.
    pub fn all_scores(&self) -> Vec<(String, Score)> {
        let mut all: Vec<(String, Score)> =
            self.scores.iter().map(|score| (self.task.clone(), score.clone())).collect();
        for grouped in &self.groups {
            all.extend(grouped.groups.iter().map(|group| {
                (format!("{} {}={}", self.task, grouped.column, group.group), grouped.score(group))
            }));
            all.push((format!("{} by {}", self.task, grouped.column), grouped.gap_score()));
        }
        all
    }
}

/// A task with its documents.
#[derive(Debug)]
pub struct Task {
    config: TaskConfig,
    documents: Vec<Document>,
    examples: Vec<Document>,
    templates: Templates,
    /// Whether each choice is a context, and the target what follows.
    multiple_input: bool,
    multiple_target: bool,
}

impl Task {
    /// A task over the splits of its data.
    ///
    /// # Errors
    /// Splits that are not there; templates that do not go with the first document.
    pub(crate) fn new(config: TaskConfig, mut splits: Splits) -> Result<Task, TaskError> {
        let evaluated = config.test_split.as_ref().or(config.validation_split.as_ref()).cloned();
        let wrong = |what: String| TaskError::task(&config.name, what);
        let evaluated = evaluated.ok_or_else(|| wrong("wanted test_split or validation_split".into()))?;
        let names = splits.keys().cloned().collect::<Vec<_>>().join(", ");
        let missing = |split: &str| wrong(format!("its data has no split {split}; it has {names}"));
        let examples = match (&config.fewshot_split, &config.fewshot_samples) {
            (Some(split), _) => splits.get(split).cloned().ok_or_else(|| missing(split))?,
            (None, Some(samples)) => samples.clone(),
            (None, None) if config.num_fewshot == 0 => Vec::new(),
            (None, None) => {
                let split =
                    config.training_split.as_ref().or(config.validation_split.as_ref()).unwrap_or(&evaluated);
                splits.get(split).cloned().ok_or_else(|| missing(split))?
            }
        };
        let documents = splits.remove(&evaluated).ok_or_else(|| missing(&evaluated))?;
        let first = documents
            .first()
            .cloned()
            .ok_or_else(|| wrong(format!("split {evaluated} holds no document")))?;
        let mut task = Task {
            config,
            documents,
            examples,
            templates: Templates::new(),
            multiple_input: false,
            multiple_target: false,
        };
        let text = task.text(&first, &task.config.parts)?;
        task.multiple_input = task.config.parts.choice.is_some() && index(&text).is_some();
        task.multiple_target = task.target(&first, &task.config.parts)?.is_array();
        Ok(task)
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.config.name
    }

    /// Whether a model answers it by log-likelihoods alone, without generating text.
    pub fn is_scored(&self) -> bool {
        self.config.output != OutputType::Generate
    }

    fn wrong(&self, what: impl Into<String>) -> TaskError {
        TaskError::task(&self.config.name, what)
    }

    /// A source that is a column or a template.
    fn of_source<'a>(
        &self,
        source: &'a Source,
        document: &'a Document,
    ) -> Result<(Cow<'a, Value>, bool), TaskError> {
        match source {
            Source::Fixed(value) => Ok((Cow::Borrowed(value), false)),
            Source::Text(name) => match document.get(name) {
                Some(value) => Ok((Cow::Borrowed(value), false)),
                None => {
                    let text = self.templates.render(name, document).map_err(|what| self.wrong(what))?;
                    Ok((Cow::Owned(Value::String(text)), true))
                }
            },
        }
    }

    fn text(&self, document: &Document, parts: &Parts) -> Result<Value, TaskError> {
        let (value, rendered) = self.of_source(&parts.text, document)?;
        let number = value.as_str().filter(|_| rendered && parts.choice.is_some()).and_then(digits);
        Ok(number.map_or_else(|| value.into_owned(), Value::from))
    }

    fn target(&self, document: &Document, parts: &Parts) -> Result<Value, TaskError> {
        let (value, rendered) = self.of_source(&parts.target, document)?;
        let Some(text) = value.as_str().filter(|_| rendered) else { return Ok(value.into_owned()) };
        if let Some(number) = digits(text).filter(|_| parts.choice.is_some()) {
            return Ok(Value::from(number));
        }
        let list =
            (text.len() >= 2 && text.starts_with('[') && text.ends_with(']')).then(|| python::literal(text));
        Ok(list.flatten().unwrap_or_else(|| value.into_owned()))
    }

    fn choices(&self, document: &Document, parts: &Parts) -> Result<Vec<String>, TaskError> {
        let Some(source) = &parts.choice else { return Ok(Vec::new()) };
        let (value, rendered) = self.of_source(source, document)?;
        let value = match value.as_str().filter(|_| rendered) {
            Some(text) => Cow::Owned(python::literal(text).ok_or_else(|| {
                self.wrong(format!("doc_to_choice: wanted a list in Python's form, found {text:?}"))
            })?),
            None => value,
        };
        let texts = value.as_array().filter(|list| !list.is_empty()).and_then(|list| {
            list.iter().map(|choice| choice.as_str().map(str::to_owned)).collect::<Option<Vec<_>>>()
        });
        texts.ok_or_else(|| {
            self.wrong(format!("doc_to_choice: wanted a list of texts, found {}", python::repr(&value)))
        })
    }

    fn choice_at(&self, choices: &[String], place: usize) -> Result<String, TaskError> {
        choices.get(place).cloned().ok_or_else(|| {
            self.wrong(format!(
                "doc_to_target: wanted the place of one of {} choices, found {place}",
                choices.len()
            ))
        })
    }

    fn prefix(&self, document: &Document, parts: &Parts) -> Result<String, TaskError> {
        let Some(prefix) = &parts.prefix else { return Ok(String::new()) };
        let (value, _) =
            self.of_source(&Source::Text(prefix.clone()), document).map(|(v, r)| (v.into_owned(), r))?;
        Ok(python::display(&value))
    }

    /// A question and, of an example, its answer.
    fn turn(
        &self,
        document: &Document,
        parts: &Parts,
        with_answer: bool,
        question: &str,
    ) -> Result<String, TaskError> {
        let prefix = self.prefix(document, parts)?;
        let mut turn = question.to_owned();
        let delimiter = match (with_answer && prefix.is_empty(), meet(question, &prefix)) {
            (true, _) => &parts.target_delimiter,
            (false, true) if !prefix.is_empty() && !question.is_empty() => &parts.target_delimiter,
            _ => "",
        };
        if !with_answer {
            return Ok(turn + delimiter + &prefix);
        }
        let answer = self.target(document, parts)?;
        let answer = match (&answer, index(&answer)) {
            (_, Some(place)) if parts.choice.is_some() => {
                self.choice_at(&self.choices(document, parts)?, place)?
            }
            (Value::Array(list), _) => python::display(list.first().unwrap_or(&Value::Null)),
            (Value::String(text), _) => text.clone(),
            (other, _) => {
                return Err(self.wrong(format!(
                    "doc_to_target: wanted a text as the answer of an example, found {other}"
                )));
            }
        };
        if answer.is_empty() {
            return Ok(turn);
        }
        turn += delimiter;
        turn += &prefix;
        if !prefix.is_empty() && meet(&prefix, &answer) {
            turn.push(' ');
        }
        Ok(turn + &answer + &parts.fewshot_delimiter)
    }

    /// What stands before each question: description and examples.
    fn preamble(&self, document: &Document, random: &mut Random) -> Result<String, TaskError> {
        let config = &self.config;
        let description = match config.description.as_str() {
            "" => String::new(),
            text => python::display(&self.of_source(&Source::Text(text.to_owned()), document)?.0),
        };
        let mut preamble = description;
        let k = config.num_fewshot;
        if k == 0 {
            return Ok(preamble);
        }
        // The harness leaves the document itself out where examples come from the split that is evaluated.
        let own = config.fewshot_split == config.test_split;
        let pool: Cow<'_, [Document]> = Cow::Borrowed(&self.examples);
        let others = |pool: &[Document]| {
            pool.iter().filter(|example| *example != document).cloned().collect::<Vec<_>>()
        };
        let few = || {
            let (found, wanted) = (self.examples.len(), k + usize::from(own));
            self.wrong(format!(
                "num_fewshot: wanted {k} examples, which takes {wanted} documents, found {found}"
            ))
        };
        let chosen: Vec<Document> = match config.fewshot_sampling {
            Sampling::First => {
                let pool = if own { others(&pool) } else { pool.into_owned() };
                pool.get(..k).ok_or_else(few)?.to_vec()
            }
            Sampling::Random => {
                let drawn = k + usize::from(own);
                if drawn > pool.len() {
                    return Err(few());
                }
                let mut chosen: Vec<Document> =
                    random.sample(pool.len(), drawn).into_iter().map(|i| pool[i].clone()).collect();
                if own {
                    chosen = others(&chosen);
                    chosen.truncate(k);
                    if chosen.len() < k {
                        let pool = others(&pool);
                        if pool.len() < k {
                            return Err(few());
                        }
                        chosen = random.sample(pool.len(), k).into_iter().map(|i| pool[i].clone()).collect();
                    }
                }
                chosen
            }
        };
        let chosen = self.without_question(chosen, document);
        for example in &chosen {
            let parts = &config.fewshot_parts;
            let text = self.text(example, parts)?;
            let question = match index(&text).filter(|_| self.multiple_input) {
                Some(place) => self.choices(example, parts)?.get(place).cloned().unwrap_or_default(),
                None => self.question(&text)?,
            };
            let plain = Parts { choice: None, ..parts.clone() };
            preamble +=
                &self.turn(example, if self.multiple_input { &plain } else { parts }, true, &question)?;
        }
        Ok(preamble)
    }

    /// The examples, with those that ask what the document asks replaced by others of their split, in its order. The harness keeps them where its
    /// configuration names different splits, and keeps copies of a question; prompts without them are the harness's.
    fn without_question(&self, chosen: Vec<Document>, document: &Document) -> Vec<Document> {
        let same = |example: &Document| self.asks_the_same(example, document);
        if !chosen.iter().any(same) {
            return chosen;
        }
        let replaced = |same: &dyn Fn(&Document) -> bool| {
            let mut kept: Vec<Document> = chosen.iter().filter(|example| !same(example)).cloned().collect();
            for example in &self.examples {
                if kept.len() < chosen.len() && !kept.contains(example) && !same(example) {
                    kept.push(example.clone());
                }
            }
            kept
        };
        let kept = replaced(&same);
        // A task whose question is a fixed text asks the same of all documents.
        if kept.is_empty() { replaced(&|example| example == document) } else { kept }
    }

    /// Whether two documents are equal, or give the same question and choices.
    fn asks_the_same(&self, one: &Document, other: &Document) -> bool {
        let asked = |document: &Document, parts: &Parts| {
            let (text, choices) = (self.text(document, parts).ok()?, self.choices(document, parts).ok()?);
            (text.as_str() != Some("") || !choices.is_empty()).then_some((text, choices))
        };
        let same =
            |parts: &Parts| asked(one, parts).is_some_and(|of_one| Some(of_one) == asked(other, parts));
        one == other || same(&self.config.parts) || same(&self.config.fewshot_parts)
    }

    fn question(&self, text: &Value) -> Result<String, TaskError> {
        text.as_str()
            .map(str::to_owned)
            .ok_or_else(|| self.wrong(format!("doc_to_text: wanted a text, found {text}")))
    }

    /// The requests of the first `limit` documents.
    ///
    /// # Errors
    /// Documents that do not go with the templates, by number.
    pub fn requests(&self, limit: Option<usize>) -> Result<TaskRequests, TaskError> {
        let asked = limit.unwrap_or(usize::MAX).min(self.documents.len());
        self.requests_of(&self.documents[..asked])
    }

    /// The requests of the first documents, which are shown as `shown`; examples are chosen as for the documents themselves.
    fn requests_of(&self, shown: &[Document]) -> Result<TaskRequests, TaskError> {
        let mut random = Random::new(FEWSHOT_SEED);
        let mut digest = blake3::Hasher::new();
        let mut documents = Vec::new();
        for (number, document) in shown.iter().enumerate() {
            let requests = self.of_document(number, document, &mut random).map_err(|e| match e {
                TaskError::Task { task, what } => {
                    TaskError::Task { task, what: format!("document {number}: {what}") }
                }
                other => other,
            })?;
            for request in &requests.requests {
                let (kind, a, b) = match request {
                    Request::LogLikelihood { context, continuation } => (0, context, continuation),
                    Request::Rolling { text } => (1, text, &String::new()),
                    Request::Generate { context, generation, .. } => (2, context, &format!("{generation:?}")),
                };
                digest.update(&[kind]);
                for text in [a, b] {
                    digest.update(&(text.len() as u64).to_le_bytes());
                    digest.update(text.as_bytes());
                }
            }
            documents.push(requests);
        }
        let wants_greedy = self.config.output == OutputType::LogLikelihood && self.has(MetricKind::Acc)
            || self.config.output == OutputType::MultipleChoice && self.has(MetricKind::ExactMatch);
        Ok(TaskRequests { documents, wants_greedy, digest: digest.finalize().to_hex()[..16].to_owned() })
    }

    fn has(&self, kind: MetricKind) -> bool {
        self.config.metrics.iter().any(|metric| metric.kind == kind)
    }

    fn of_document(
        &self,
        number: usize,
        document: &Document,
        random: &mut Random,
    ) -> Result<DocumentRequests, TaskError> {
        let parts = &self.config.parts;
        let preamble = self.preamble(&self.documents[number], random)?;
        let text = self.text(document, parts)?;
        let choices = self.choices(document, parts)?;
        let target = self.target(document, parts)?;
        let context = |question: &str| {
            Ok::<String, TaskError>(preamble.clone() + &self.turn(document, parts, false, question)?)
        };
        let delimiter = &parts.target_delimiter;
        let texts = |value: &Value| match value {
            Value::Array(list) => list.iter().map(python::display).collect(),
            value => vec![python::display(value)],
        };
        let (mut requests, mut gold) = (Vec::new(), Gold::Choices(Vec::new()));
        match self.config.output {
            OutputType::LogLikelihood => {
                let Value::String(continuation) = target else {
                    return Err(self.wrong(format!("doc_to_target: wanted a text, found {target}")));
                };
                requests
                    .push(Request::LogLikelihood { context: context(&self.question(&text)?)?, continuation });
            }
            OutputType::Rolling => {
                let Value::String(text) = target else {
                    return Err(self.wrong(format!("doc_to_target: wanted a text, found {target}")));
                };
                gold = Gold::Texts(vec![text.clone()]);
                requests.push(Request::Rolling { text });
            }
            OutputType::Generate => {
                let question = self.question(&text)?;
                gold = Gold::Texts(match index(&target).filter(|_| parts.choice.is_some()) {
                    Some(place) => vec![self.choice_at(&choices, place)?],
                    None => texts(&target),
                });
                let mut questions = vec![question];
                if let Some(informed) = &parts.informed {
                    questions.push(self.question(&self.of_source(informed, document)?.0)?);
                }
                for question in questions {
                    requests.push(Request::Generate {
                        context: context(&question)?,
                        generation: self.config.generation.clone(),
                        repeats: self.config.repeats,
                    });
                }
            }
            OutputType::MultipleChoice => {
                let label = if self.multiple_input { &text } else { &target };
                let place = |value: &Value| {
                    let place = index(value).or_else(|| {
                        choices.iter().position(|choice| Some(choice.as_str()) == value.as_str())
                    });
                    place.filter(|place| *place < choices.len())
                };
                gold = Gold::Choices(match label {
                    Value::Array(list) => list.iter().filter_map(place).collect(),
                    value => place(value).into_iter().collect(),
                });
                if self.multiple_input {
                    let continuation = delimiter.clone() + &python::display(&target);
                    for choice in &choices {
                        let context = context(choice)?;
                        requests.push(Request::LogLikelihood { context, continuation: continuation.clone() });
                    }
                } else {
                    let context = context(&self.question(&text)?)?;
                    let of = |choice: &String| (context.clone(), delimiter.clone() + choice);
                    for (context, continuation) in choices.iter().map(of) {
                        requests.push(Request::LogLikelihood { context, continuation });
                    }
                }
                if self.has(MetricKind::AccMutualInfo) {
                    let alone = |choice: &String| Request::LogLikelihood {
                        context: String::new(),
                        continuation: delimiter.clone() + choice,
                    };
                    requests.extend(choices.iter().map(alone));
                }
            }
        }
        Ok(DocumentRequests { number, requests, choices, gold, document: document.clone() })
    }
}

/// `text.isdigit()` and its value.
fn digits(text: &str) -> Option<u64> {
    let all = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    text.parse().ok().filter(|_| all && (text == "0" || !text.starts_with('0')))
}

/// A value that is the place of a choice; true and false are 1 and 0, as in Python.
fn index(value: &Value) -> Option<usize> {
    match value {
        Value::Bool(yes) => Some(usize::from(*yes)),
        value => value.as_u64().map(|place| place as usize),
    }
}

/// Whether two texts meet without a blank.
fn meet(a: &str, b: &str) -> bool {
    !(a.ends_with(char::is_whitespace) || b.starts_with(char::is_whitespace))
}

#[cfg(test)]
mod tests;
