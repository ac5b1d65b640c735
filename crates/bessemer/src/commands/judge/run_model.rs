//! The model of a run directory as a judge, and as the one whose probabilities HUSE takes.

use crate::cli::RunArgs;
use crate::commands::saved_model::SavedModel;
use crate::console::Console;
use crate::failure::Failure;
use bessemer_eval::generate::{CachedDecoder, ContextLimit, GenerateConfig, generate_text, prompt_tokens};
use bessemer_eval::sampling::SamplingConfig;
use bessemer_eval::score::rows::{LengthDecoders, Row, RowScore, score_rows};
use bessemer_judge::model::{JudgingModel, Reply};
use bessemer_judge::{Item, JudgeError};
use bessemer_kernels_cpu::CpuBackend;
use bessemer_runtime::{Cache, CacheShape, Decoder};
use bessemer_tokenizer::Tokenizer;
use bessemer_train::Observer;
use bessemer_units::Bytes;
use std::path::Path;

/// Tokens that go through the model at a time.
const BATCH_TOKENS: usize = 4096;
/// Texts whose probabilities are asked for at a time.
const TEXTS: usize = 64;

/// The model of a run directory.
pub(super) struct RunModel<'a> {
    tokenizer: &'a Tokenizer,
    model: LengthDecoders<'a>,
    /// For generated verdicts.
    cache: Option<Cache>,
    context: usize,
}

/// Decoder and backend of a saved model, with space for a cache if it will write.
pub(super) fn decoder(
    saved: &SavedModel,
    writes: bool,
    threads: usize,
) -> Result<(CpuBackend, Decoder), Failure> {
    let context = saved.model().context;
    let shape = ((BATCH_TOKENS / context).max(1), context);
    saved.decoder(shape, writes.then_some(CacheShape::one(context)), threads, Bytes(0))
}

impl<'a> RunModel<'a> {
    /// A model over what [`decoder`] gave.
    pub(super) fn new(
        saved: &'a SavedModel,
        (backend, decoder): (&'a mut CpuBackend, Decoder),
        writes: bool,
    ) -> Result<RunModel<'a>, Failure> {
        let context = saved.model().context;
        let mut model = LengthDecoders::new(backend, decoder);
        let cache = match writes {
            true => {
                let (decoder, backend) = model.parts();
                Some(Cache::new(backend, decoder, CacheShape::one(context))?)
            }
            false => None,
        };
        Ok(RunModel { tokenizer: &saved.tokenizer, model, cache, context })
    }

    /// The row of a continuation, as the beginning of a document: the end-of-text token stands before the prompt, whose blanks at the end move to the
    /// continuation. The inner error is a refusal: together they are too long.
    fn row(&self, prompt: &str, continuation: &str) -> Result<Reply<Row>, JudgeError> {
        let before = self.tokens(prompt.trim_end())?.len();
        let tokens = self.tokens(&[prompt, continuation].concat())?;
        let scored = tokens.len().saturating_sub(before);
        Ok(match (scored, tokens.len() - 1) {
            (0, _) => Err(format!("the continuation {continuation:?} adds no token to the prompt")),
            (_, input) if input > self.context => {
                Err(format!("{input} tokens of input exceed the model's context of {}", self.context))
            }
            _ => Ok(Row { tokens, scored }),
        })
    }

    fn tokens(&self, text: &str) -> Result<Vec<u32>, JudgeError> {
        prompt_tokens(self.tokenizer, text).map_err(failed)
    }

    /// Scores of the rows that were not refused, in their places.
    fn scores(&mut self, rows: Vec<Reply<Row>>) -> Result<Vec<Reply<(RowScore, usize)>>, JudgeError> {
        let fitting: Vec<Row> = rows.iter().flatten().cloned().collect();
        let scores = score_rows(&mut self.model, &fitting, false, &mut |_, _| ()).map_err(failed)?;
        let mut scores = scores.into_iter().zip(fitting).map(|(score, row)| (score, row.scored));
        let lost = || JudgeError::Model("the model returned fewer rows than were requested".into());
        rows.into_iter()
            .map(|row| match row {
                Ok(_) => scores.next().map(Ok).ok_or_else(lost),
                Err(why) => Ok(Err(why)),
            })
            .collect()
    }
}

fn failed(e: impl std::fmt::Display) -> JudgeError {
    JudgeError::Model(e.to_string())
}

impl JudgingModel for RunModel<'_> {
    fn write(
        &mut self,
        prompts: &[String],
        max_tokens: u64,
        stop: &[String],
    ) -> Result<Vec<Reply<String>>, JudgeError> {
        let config = GenerateConfig {
            max_tokens,
            context_limit: ContextLimit::Stop,
            stop: stop.to_vec(),
            sampling: SamplingConfig::greedy(),
            ..GenerateConfig::default()
        };
        let mut texts = Vec::with_capacity(prompts.len());
        for prompt in prompts {
            let tokens = self.tokens(prompt)?.len();
            if tokens as u64 + max_tokens > self.context as u64 {
                texts.push(Err(format!(
                    "a prompt of {tokens} tokens and an answer of {max_tokens} exceed the model's context of \
                     {}",
                    self.context
                )));
                continue;
            }
            let (decoder, backend) = self.model.parts();
            let cache = self.cache.as_mut().ok_or_else(|| {
                failed(
                    "the model was opened for scoring and \
                                                                  cannot generate",
                )
            })?;
            let mut model = CachedDecoder::new(decoder, backend, cache).map_err(failed)?;
            let flow = &mut |_: &str| std::ops::ControlFlow::Continue(());
            let text = generate_text(&mut model, self.tokenizer, prompt, &config, 0, flow).map_err(failed)?;
            texts.push(Ok(text.text));
        }
        Ok(texts)
    }

    fn log_likelihoods(
        &mut self,
        prompts: &[String],
        continuations: &[String],
    ) -> Result<Vec<Reply<Vec<f64>>>, JudgeError> {
        let pairs = prompts.iter().flat_map(|prompt| continuations.iter().map(move |one| (prompt, one)));
        let rows = pairs.map(|(prompt, one)| self.row(prompt, one)).collect::<Result<Vec<_>, _>>()?;
        let scores = self.scores(rows)?;
        let of_prompt = |scores: &[Reply<(RowScore, usize)>]| -> Reply<Vec<f64>> {
            scores.iter().cloned().map(|score| score.map(|(score, _)| score.log_likelihood)).collect()
        };
        Ok(scores.chunks(continuations.len().max(1)).map(of_prompt).collect())
    }
}

/// Gives every text the mean logarithm of the probability that the model of a run gives its tokens after the prompt.
pub(super) fn add_probabilities(
    run: &Path,
    between: &str,
    threads: usize,
    items: &mut [Item],
    console: &mut Console,
) -> Result<(), Failure> {
    let saved = SavedModel::open(&RunArgs { run: run.to_owned(), step: None }, console)?;
    let (mut backend, decoder) = decoder(&saved, false, threads)?;
    let mut model = RunModel::new(&saved, (&mut backend, decoder), false)?;
    let mut texts: Vec<_> = Vec::new();
    for item in items.iter_mut() {
        if !item.turns.is_empty() {
            return Err(Failure::new(format!(
                "--probabilities-of: item {}: wanted a single text after a prompt, found a dialogue",
                item.id
            )));
        }
        let prompt = if item.prompt.is_empty() { String::new() } else { item.prompt.clone() + between };
        texts.extend(item.texts.iter_mut().map(|text| (item.id.clone(), prompt.clone(), text)));
    }
    let (mut done, all) = (0, texts.len() as u64);
    for batch in texts.chunks_mut(TEXTS) {
        let rows = batch.iter().map(|(_, prompt, text)| model.row(prompt, &text.text));
        let rows = rows.collect::<Result<Vec<_>, _>>().map_err(Failure::new)?;
        for ((id, _, text), score) in batch.iter_mut().zip(model.scores(rows).map_err(Failure::new)?) {
            let (score, tokens) = score.map_err(|why| {
                Failure::new(format!("--probabilities-of: item {id}, text of {}: {why}", text.system))
            })?;
            text.log_probability = Some(score.log_likelihood / tokens as f64);
            done += 1;
        }
        console.progress("probabilities", done, all);
    }
    Ok(())
}
