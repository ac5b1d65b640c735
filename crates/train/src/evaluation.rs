//! Evaluation while training and at its end: validation loss and samples of text.

use crate::TrainError;
use crate::input::TrainerInput;
use crate::observer::Observer;
use bessemer_eval::baseline::ngram_baseline;
use bessemer_eval::generate::{CachedDecoder, generate_text};
use bessemer_eval::score::{DecoderLosses, score};
use bessemer_eval::{EvalConfig, EvalError};
use bessemer_loader::{EvaluationWindows, Loader};
use bessemer_model::{Cache, Decoder};
use bessemer_runlog::{Baseline, Eval, Record, Sample, Warning};
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
            for number in 0..self.config.samples.per_prompt {
                let mut model = CachedDecoder::new(decoder, backend, cache)?;
                let written =
                    generate_text(&mut model, &self.tokenizer, prompt, &settings, number, &mut |_| {
                        ControlFlow::Continue(())
                    });
                let text = match written {
                    Ok(written) => written.text,
                    // A prompt that this tokenizer cannot express is no reason to end a run.
                    Err(e @ (EvalError::Tokenizer(_) | EvalError::PromptTooLong { .. })) => {
                        let message = format!("no sample of prompt {prompt:?}: {e}");
                        records.push(Warning { step: Some(step), topic: "samples".into(), message }.into());
                        break;
                    }
                    Err(e) => return Err(e.into()),
                };
                let temperature = Some(settings.sampling.temperature);
                records.push(Sample { step, prompt: prompt.clone(), text, temperature }.into());
            }
        }
        Ok(records)
    }

    /// Fits the n-gram baseline on exactly the text of the first `samples` samples and scores it on the validation split.
    pub(crate) fn baseline(
        &self,
        loader: &Loader,
        samples: u64,
        threads: usize,
        observer: &mut dyn Observer,
    ) -> Result<Option<Record>, TrainError> {
        let Some(windows) = self.windows.as_ref().filter(|_| self.config.ngram.enabled && samples > 0) else {
            return Ok(None);
        };
        // Later epochs bring no text that the first has not, but for its cut-off ends: two epochs cover those as well.
        let length = loader.seq_len() as u64 + 1;
        let seen = (0..samples.min(2 * loader.samples_per_epoch())).map(|k| {
            let start = loader.sample(k).token;
            start..start + length
        });
        let begun = Instant::now();
        let validation = windows.shards();
        let report = ngram_baseline(
            loader.shards(),
            seen,
            validation,
            &self.tokenizer,
            &self.config.ngram,
            threads,
            &mut |done, total| observer.progress("n-gram baseline", done, total),
        )?;
        let record = Baseline {
            name: format!("byte {}-gram, modified Kneser-Ney", report.order),
            split: validation.split().into(),
            bits_per_byte: report.score.bits_per_byte,
            bytes_fitted: report.bytes_fitted,
            bytes_scored: report.score.bytes,
            seconds: Some(begun.elapsed().as_secs_f64()),
        };
        Ok(Some(record.into()))
    }
}
