//! Evaluation while training and at its end: validation loss and samples of text.

use crate::TrainError;
use crate::observer::Observer;
use crate::trainer::TrainerInput;
use bessemer_eval::generate::{CachedDecoder, generate};
use bessemer_eval::score::{DecoderLosses, score};
use bessemer_eval::{EvalConfig, Utf8Stream};
use bessemer_loader::EvaluationWindows;
use bessemer_model::{Cache, Decoder};
use bessemer_runlog::{Eval, Record, Sample, Warning};
use bessemer_tensor::Backend;
use bessemer_tokenizer::Tokenizer;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Instant;

/// What evaluation needs, made while planning.
pub(crate) struct Evaluator {
    windows: Option<EvaluationWindows>,
    byte_lengths: Vec<u32>,
    /// Keys and values of generated text.
    cache: Option<Cache>,
    tokenizer: Arc<Tokenizer>,
    config: EvalConfig,
    seed: u64,
}

impl Evaluator {
    pub(crate) fn new(
        backend: &mut dyn Backend,
        decoder: &Decoder,
        input: &TrainerInput,
    ) -> Result<Evaluator, TrainError> {
        let config = input.recipe.eval.clone();
        let windows = match &input.validation {
            Some(set) => Some(EvaluationWindows::new(
                Arc::clone(set),
                decoder.shape().seq,
                input.tokenizer.end_of_text(),
            )?),
            None => None,
        };
        let samples =
            (config.samples.every_steps > 0 || config.samples.at_end) && !config.samples.prompts.is_empty();
        let cache = match samples {
            true => Some(Cache::new(backend, decoder, 1, decoder.model().context)?),
            false => None,
        };
        Ok(Evaluator {
            windows,
            byte_lengths: input.tokenizer.byte_lengths(),
            cache,
            tokenizer: Arc::clone(&input.tokenizer),
            config,
            seed: input.recipe.run.seed,
        })
    }

    /// Scores the validation split; `whole` or as much as evaluation while training may take.
    pub(crate) fn score(
        &mut self,
        backend: &mut dyn Backend,
        decoder: &mut Decoder,
        (step, tokens): (u64, u64),
        whole: bool,
        observer: &mut dyn Observer,
    ) -> Result<Option<Record>, TrainError> {
        let Some(windows) = &self.windows else { return Ok(None) };
        let begun = Instant::now();
        let most = if whole { None } else { self.config.max_tokens() };
        let mut model = DecoderLosses { decoder, backend };
        let report = score(&mut model, windows, &self.byte_lengths, most, &mut |done, total| {
            observer.progress("validation", done, total);
        })?;
        let record = Eval {
            step,
            tokens,
            split: windows.shards().split().into(),
            loss: report.loss,
            perplexity: report.perplexity,
            bits_per_byte: report.bits_per_byte,
            tokens_scored: report.tokens,
            bytes_scored: report.bytes,
            seconds: Some(begun.elapsed().as_secs_f64()),
        };
        Ok(Some(record.into()))
    }

    /// Continues every prompt of the recipe.
    pub(crate) fn samples(
        &mut self,
        backend: &mut dyn Backend,
        decoder: &Decoder,
        step: u64,
    ) -> Result<Vec<Record>, TrainError> {
        let Some(cache) = &mut self.cache else { return Ok(Vec::new()) };
        let mut settings = self.config.samples.generate.clone();
        // Other samples for another run, the same ones when this one is repeated.
        settings.sampling.seed ^= self.seed;
        let mut records = Vec::new();
        for prompt in &self.config.samples.prompts {
            let ids = match prompt_tokens(&self.tokenizer, prompt) {
                Ok(ids) => ids,
                Err(message) => {
                    records.push(Warning { step: Some(step), topic: "samples".into(), message }.into());
                    continue;
                }
            };
            for number in 0..self.config.samples.per_prompt {
                let (mut text, mut bytes) = (String::new(), Utf8Stream::default());
                let mut model = CachedDecoder::new(decoder, backend, cache)?;
                generate(&mut model, &ids, self.tokenizer.end_of_text(), &settings, number, &mut |token| {
                    bytes.push(self.tokenizer.token_bytes(token).unwrap_or_default(), &mut text);
                    ControlFlow::Continue(())
                })?;
                bytes.finish(&mut text);
                let temperature = Some(settings.sampling.temperature);
                records.push(Sample { step, prompt: prompt.clone(), text, temperature }.into());
            }
        }
        Ok(records)
    }
}

/// Tokens that a text begins with: the end of the document before it, if the tokenizer has one, then the prompt.
///
/// # Errors
/// A sentence, if the tokenizer cannot express the prompt, or there is nothing to begin with.
pub fn prompt_tokens(tokenizer: &Tokenizer, prompt: &str) -> Result<Vec<u32>, String> {
    let mut ids: Vec<u32> = tokenizer.end_of_text().into_iter().collect();
    // A tokenizer without an end of text needs some first token; a new line begins a text most naturally.
    let prompt = if ids.is_empty() && prompt.is_empty() { "\n" } else { prompt };
    ids.extend(tokenizer.encode(prompt.as_bytes()).map_err(|e| format!("prompt {prompt:?}: {e}"))?);
    Ok(ids)
}
