//! Answers of a model to the requests of tasks, made exactly as the lm-evaluation-harness makes them.
//!
//! Blanks at the end of a context move to the continuation; both are encoded together and cut after as many tokens as the context has by itself. An empty
//! context is the end-of-text token. What is too long loses its beginning.

use crate::error::EvalError;
use crate::generate::{ContextLimit, GenerateConfig, NextToken, generate, prompt_tokens};
use crate::sampling::SamplingConfig;
use crate::score::rows::{Row, RowModel, RowScore, rolling_rows, score_rows};
use crate::utf8_stream::Utf8Stream;
use bessemer_tasks::{Answer, Generation, Request, TaskRequests};
use bessemer_tokenizer::Tokenizer;
use std::ops::{ControlFlow, Range};

/// The row of a context and its continuation for a model that reads at most `longest` tokens.
///
/// # Errors
/// [`EvalError::Request`] for a continuation without tokens or longer than the model's context; [`EvalError::Tokenizer`].
pub fn encode_pair(
    tokenizer: &Tokenizer,
    context: &str,
    continuation: &str,
    longest: usize,
) -> Result<Row, EvalError> {
    let kept = context.trim_end();
    let (mut tokens, before) = if kept.is_empty() {
        let prefix = prefix(tokenizer)?;
        let tokens = tokenizer.encode_with_special([context, continuation].concat().as_bytes())?;
        // A continuation that begins with the prefix is not given it twice.
        match tokens.first() == Some(&prefix) && tokens.len() > 1 {
            true => (tokens, 1),
            false => (std::iter::once(prefix).chain(tokens).collect(), 1),
        }
    } else {
        let before = tokenizer.encode_with_special(kept.as_bytes())?.len();
        (tokenizer.encode_with_special([context, continuation].concat().as_bytes())?, before)
    };
    let scored = tokens.len().saturating_sub(before);
    if scored == 0 || scored > longest {
        let what = format!(
            "a continuation of 1 to {longest} tokens, found {scored}: {continuation:?} after {context:?}"
        );
        return Err(EvalError::Request(format!("wanted {what}")));
    }
    tokens.drain(..tokens.len().saturating_sub(longest + 1));
    Ok(Row { tokens, scored })
}

/// The token that stands before a text: the end-of-text token, if the tokenizer has one.
///
/// # Errors
/// [`EvalError::Tokenizer`].
pub fn prefix(tokenizer: &Tokenizer) -> Result<u32, EvalError> {
    prompt_tokens(tokenizer, "")?.first().copied().ok_or(EvalError::EmptyPrompt)
}

/// The requests of a task as rows of tokens.
#[derive(Debug, Clone)]
pub struct TaskRows {
    rows: Vec<Row>,
    /// The rows of each request.
    spans: Vec<Range<usize>>,
}

impl TaskRows {
    /// The rows of requests for log-likelihoods ([`bessemer_tasks::Task::is_scored`]), for a model that reads at most `longest` tokens.
    ///
    /// # Errors
    /// [`EvalError::Request`] for what this model cannot answer; [`EvalError::Tokenizer`].
    pub fn new(
        requests: &TaskRequests,
        tokenizer: &Tokenizer,
        longest: usize,
    ) -> Result<TaskRows, EvalError> {
        let prefix = prefix(tokenizer)?;
        let (mut rows, mut spans) = (Vec::new(), Vec::new());
        for request in requests.documents.iter().flat_map(|document| &document.requests) {
            let before = rows.len();
            match request {
                Request::LogLikelihood { context, continuation } => {
                    rows.push(encode_pair(tokenizer, context, continuation, longest)?);
                }
                Request::Rolling { text } => {
                    let tokens = tokenizer.encode_with_special(text.as_bytes())?;
                    rows.extend(rolling_rows(prefix, &tokens, longest as u64, 1)?);
                }
                Request::Generate { .. } => {
                    return Err(EvalError::Request(
                        "wanted requests for log-likelihoods, found one for a text".into(),
                    ));
                }
            }
            spans.push(before..rows.len());
        }
        Ok(TaskRows { rows, spans })
    }

    /// The answers of a model to the requests that the rows were made of. `progress` is called with (rows done, rows).
    ///
    /// # Errors
    /// Errors of the model.
    pub fn answers(
        &self,
        requests: &TaskRequests,
        model: &mut dyn RowModel,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<Vec<Vec<Answer>>, EvalError> {
        let scores = score_rows(model, &self.rows, requests.wants_greedy, progress)?;
        let mut spans = self.spans.iter();
        let mut answer = |request: &Request| {
            let scores: &[RowScore] =
                spans.next().and_then(|span| scores.get(span.clone())).unwrap_or_default();
            let value = scores.iter().map(|row| row.log_likelihood).sum();
            match request {
                Request::Rolling { .. } => Answer::Rolling(value),
                _ => Answer::LogLikelihood { value, greedy: scores.first().and_then(|row| row.greedy) },
            }
        };
        let documents = requests.documents.iter();
        Ok(documents.map(|document| document.requests.iter().map(&mut answer).collect()).collect())
    }
}

/// Generated answers to all requests of a task. `progress` is called with (texts done, texts).
///
/// # Errors
/// As [`TaskRows::new`]; [`EvalError::Request`] for more tokens than the model's context leaves.
pub fn generated_answers(
    requests: &TaskRequests,
    tokenizer: &Tokenizer,
    model: &mut dyn NextToken,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<Vec<Vec<Answer>>, EvalError> {
    let all = requests.documents.len() as u64;
    let mut answers = Vec::with_capacity(requests.documents.len());
    for document in &requests.documents {
        let mut of = Vec::with_capacity(document.requests.len());
        for request in &document.requests {
            let Request::Generate { context, generation, repeats } = request else {
                return Err(EvalError::Request(
                    "wanted requests for texts, found one for log-likelihoods".into(),
                ));
            };
            let number = |repeat: u64| document.number as u64 * repeats + repeat;
            let texts =
                (0..*repeats).map(|repeat| text(model, tokenizer, context, generation, number(repeat)));
            of.push(Answer::Texts(texts.collect::<Result<_, _>>()?));
        }
        answers.push(of);
        progress(answers.len() as u64, all);
    }
    Ok(answers)
}

/// One generated text: what follows the last tokens of the context, cut before the first stop string.
fn text(
    model: &mut dyn NextToken,
    tokenizer: &Tokenizer,
    context: &str,
    generation: &Generation,
    sample: u64,
) -> Result<String, EvalError> {
    let capacity = model.capacity();
    let room = capacity.saturating_sub(generation.max_tokens as usize);
    if room == 0 {
        return Err(EvalError::Request(format!(
            "wanted {} tokens of text (max_gen_toks) and a context before them, and the model's context has {capacity}",
            generation.max_tokens
        )));
    }
    let mut prompt = tokenizer.encode_with_special(context.as_bytes())?;
    if prompt.is_empty() {
        prompt.push(prefix(tokenizer)?);
    }
    prompt.drain(..prompt.len().saturating_sub(room));
    let config = GenerateConfig {
        max_tokens: generation.max_tokens,
        context_limit: ContextLimit::Stop,
        stop: Vec::new(),
        sampling: SamplingConfig {
            temperature: generation.temperature,
            top_k: generation.top_k,
            top_p: generation.top_p,
            ..SamplingConfig::default()
        },
        ..GenerateConfig::default()
    };
    let (mut stream, mut text) = (Utf8Stream::default(), String::new());
    let mut cut = None;
    generate(model, &prompt, tokenizer.end_of_text(), &config, sample, &mut |token| {
        // A row of the vocabulary that only rounds its size up stands for no text, and ends it.
        let Some(bytes) = tokenizer.token_bytes(token) else { return ControlFlow::Break(()) };
        stream.push(bytes, &mut text);
        cut = generation.until.iter().filter_map(|stop| text.find(stop.as_str())).min();
        if cut.is_some() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    })?;
    match cut {
        Some(at) => text.truncate(at),
        None => stream.finish(&mut text),
    }
    Ok(text)
}

#[cfg(test)]
mod tests;
