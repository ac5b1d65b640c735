//! Judges that are models.
//!
//! Each task of a comparison is asked twice, with the texts in both orders, because models prefer a place (Wang et al. 2023, Zheng et al. 2023). A text has won
//! only if both orders say so; otherwise the task is a tie ([`combined`]). How often the orders agree, and how often the model agrees with people, is in
//! [`ModelFacts`].

mod facts;
mod openai;
mod template;

pub use facts::{Agreement, ModelFacts, PeopleAgreement, combined, model_facts};
pub use openai::{Endpoint, OpenAi};
pub use template::{JudgeTemplate, Method, SHIPPED};

use crate::JudgeError;
use crate::assign::{TaskKey, tasks};
use crate::store::Store;
use crate::verdicts::{ModelJudge, Verdict};
use std::collections::{BTreeMap, BTreeSet};

/// Prompts that go to the model at a time. The verdicts on them are on the disk before the next ones are asked.
const BATCH: usize = 16;

/// A model's answer to one prompt, or why it refuses that prompt, such as one that is too long for it.
pub type Reply<T> = Result<T, String>;

/// A model that can be asked for a judgement.
pub trait JudgingModel {
    /// The most probable text after each prompt, of at most `max_tokens` tokens, which ends before any of `stop`.
    ///
    /// # Errors
    /// What concerns all prompts: a model that cannot be reached or fails.
    fn write(
        &mut self,
        prompts: &[String],
        max_tokens: u64,
        stop: &[String],
    ) -> Result<Vec<Reply<String>>, JudgeError>;

    /// The log-likelihood of each continuation after each prompt.
    ///
    /// # Errors
    /// As [`JudgingModel::write`].
    fn log_likelihoods(
        &mut self,
        prompts: &[String],
        continuations: &[String],
    ) -> Result<Vec<Reply<Vec<f64>>>, JudgeError>;
}

/// Questions of one run to a model.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Asked {
    /// Prompts that were answered.
    pub answered: usize,
    /// Of these, answers that hold no verdict.
    pub unparsed: usize,
    /// Prompts that the model refused; they are asked again in the next run.
    pub refused: usize,
    /// Why it refused the first of these.
    pub refusal: Option<String>,
}

/// One prompt: a task in one order.
struct Question {
    key: TaskKey,
    turned: bool,
    prompt: String,
}

/// Asks a model about all tasks that it has not judged, at most `most` of them; those first about which people have said the most. `now`: seconds since 1970.
/// `progress` is called with (prompts done, prompts).
///
/// # Errors
/// A template that does not fit the study, a judge's name that another model has, a model that fails or refuses all of the first prompts, errors of the file.
/// Verdicts until then are kept.
pub fn ask(
    store: &mut Store,
    (name, model_name): (&str, &str),
    (template, method): (&JudgeTemplate, Method),
    model: &mut dyn JudgingModel,
    most: Option<usize>,
    now: &dyn Fn() -> i64,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<Asked, JudgeError> {
    template.check(store.study(), method)?;
    let continuations = match method {
        Method::Likelihood => template.continuations(store.study())?,
        Method::Generate => Vec::new(),
    };
    let judge = ModelJudge {
        name: name.to_owned(),
        model: model_name.to_owned(),
        method: method.name().to_owned(),
        template: template.text().to_owned(),
    };
    store.check_model_judge(&judge)?;
    let questions = questions(store, name, template, method, most)?;
    let mut asked = Asked::default();
    for batch in questions.chunks(BATCH) {
        let prompts: Vec<String> = batch.iter().map(|question| question.prompt.clone()).collect();
        let replies = replies(model, template, method, &prompts, &continuations)?;
        let mut verdicts = Vec::new();
        for (question, reply) in batch.iter().zip(replies) {
            match reply {
                Ok(answer) => {
                    let verdict = answer.verdict(store, template, name, question, now());
                    asked.answered += 1;
                    asked.unparsed += usize::from(verdict.choice.is_none());
                    verdicts.push(verdict);
                }
                Err(why) => {
                    asked.refused += 1;
                    asked.refusal.get_or_insert(why);
                }
            }
        }
        if let (0, Some(why)) = (asked.answered, &asked.refusal) {
            return Err(JudgeError::Model(format!(
                "the model refused the first {} prompts: {why}",
                asked.refused
            )));
        }
        // A model that never answers leaves nothing behind.
        store.add_model_judge(&judge)?;
        store.add_verdicts(&verdicts)?;
        progress((asked.answered + asked.refused) as u64, questions.len() as u64);
    }
    Ok(asked)
}

/// The prompts about tasks that a judge has not judged in that order.
fn questions(
    store: &Store,
    name: &str,
    template: &JudgeTemplate,
    method: Method,
    most: Option<usize>,
) -> Result<Vec<Question>, JudgeError> {
    let study = store.study();
    let had: BTreeSet<(TaskKey, bool)> = store
        .verdicts()?
        .into_iter()
        .filter(|one| one.judge == name)
        .map(|one| (one.key, one.turned))
        .collect();
    let mut people: BTreeMap<TaskKey, usize> = BTreeMap::new();
    for one in store.judgements()?.iter().filter(|one| !one.task.repeated) {
        *people.entry(one.task.key).or_default() += 1;
    }
    let mut keys = tasks(study);
    keys.sort_by_key(|key| std::cmp::Reverse(people.get(key).copied().unwrap_or(0)));
    let orders = |key: &TaskKey| if key.second.is_some() { &[false, true][..] } else { &[false][..] };
    let open = |key: &TaskKey| orders(key).iter().any(|turned| !had.contains(&(*key, *turned)));
    let mut questions = Vec::new();
    for key in keys.iter().filter(|key| open(key)).take(most.unwrap_or(usize::MAX)) {
        for &turned in orders(key).iter().filter(|turned| !had.contains(&(*key, **turned))) {
            let prompt = template.prompt(study, *key, turned, method)?;
            questions.push(Question { key: *key, turned, prompt });
        }
    }
    Ok(questions)
}

enum Answer {
    Text(String),
    Scores(Vec<f64>),
}

fn replies(
    model: &mut dyn JudgingModel,
    template: &JudgeTemplate,
    method: Method,
    prompts: &[String],
    continuations: &[String],
) -> Result<Vec<Reply<Answer>>, JudgeError> {
    Ok(match method {
        Method::Generate => {
            let (max_tokens, stop) = template.generation();
            let texts = model.write(prompts, max_tokens, stop)?;
            texts.into_iter().map(|text| text.map(Answer::Text)).collect()
        }
        Method::Likelihood => {
            let scores = model.log_likelihoods(prompts, continuations)?;
            scores.into_iter().map(|scores| scores.map(Answer::Scores)).collect()
        }
    })
}

impl Answer {
    fn verdict(
        self,
        store: &Store,
        template: &JudgeTemplate,
        judge: &str,
        question: &Question,
        at: i64,
    ) -> Verdict {
        let study = store.study();
        let (shown, scores, answer) = match self {
            Answer::Text(text) => (template.verdict(study, &text), None, Some(text)),
            Answer::Scores(scores) => (template.most_probable(study, &scores), Some(scores), None),
        };
        let turned = question.turned;
        let choice = shown.map(|choice| if turned { 1.0 - choice } else { choice });
        Verdict { judge: judge.to_owned(), key: question.key, turned, choice, scores, answer, at }
    }
}
