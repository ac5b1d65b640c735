//! Evaluation while training and at its end: validation loss and samples of text.

use crate::TrainError;
use crate::input::TrainerInput;
use crate::observer::Observer;
use crate::runner::{RankLosses, Runner};
use bessemer_eval::baseline::ngram_baseline;
use bessemer_eval::generate::{CachedDecoder, NextToken, generate_text};
use bessemer_eval::score::prepared::{ModelLengths, PreparedTasks, TaskScores};
use bessemer_eval::score::rows::OneLength;
use bessemer_eval::score::{EvalReport, check_scored, score_components};
use bessemer_eval::{EvalConfig, EvalError};
use bessemer_loader::{EvaluationWindows, Loader};
use bessemer_parallel::{FillChoice, Worker};
use bessemer_recipe::TrainConfig;
use bessemer_runlog::{Baseline, Eval, EvalComponent, Record, Sample, Task, Warning};
use bessemer_runtime::{ActivationConfig, Cache, CacheShape, Decoder, Purpose, Shape};
use bessemer_tensor::Backend;
use bessemer_tokenizer::Tokenizer;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

mod bubbles;

use bubbles::Ended;
pub(crate) use bubbles::{Bubbles, InBubbles};

/// Batches and programs of evaluation, made while planning.
pub(crate) struct Evaluator {
    windows: Option<EvaluationWindows>,
    /// Those of another run's validation split, and its name.
    former: Option<(String, EvaluationWindows)>,
    byte_lengths: Vec<u32>,
    /// Writer of samples; on the first rank, if text is generated.
    writer: Option<Writer>,
    tasks: PreparedTasks,
    tokenizer: Arc<Tokenizer>,
    config: EvalConfig,
    seed: u64,
    /// Batches that pass bubbles.
    bubbles: Option<Bubbles>,
}

/// Decoder and prompts of the first rank, to generate text.
struct Writer {
    /// The whole model, where ranks have only parts of it.
    whole: Option<Decoder>,
    /// Keys and values.
    cache: Cache,
}

impl Writer {
    fn new(backend: &mut dyn Backend, worker: &Worker, train: &TrainConfig) -> Result<Writer, TrainError> {
        let whole = match worker.plan().keeps_model() {
            true => None,
            false => {
                let shape = Shape { sequences: 1, seq: 1, purpose: Purpose::Score };
                let activations = ActivationConfig { storage: train.storage, ..ActivationConfig::default() };
                Some(Decoder::with_activations(backend, worker.model(), shape, activations)?)
            }
        };
        let decoder = whole.as_ref().unwrap_or(worker.decoder());
        let cache = Cache::new(backend, decoder, CacheShape::one(decoder.model().context))?;
        Ok(Writer { whole, cache })
    }
}

/// A model that continues texts until a request to stop.
struct UntilStopped<'a> {
    model: CachedDecoder<'a>,
    stop: &'a AtomicBool,
}

impl NextToken for UntilStopped<'_> {
    fn capacity(&self) -> usize {
        self.model.capacity()
    }

    fn held(&self) -> usize {
        self.model.held()
    }

    fn truncate(&mut self, len: usize) {
        self.model.truncate(len);
    }

    fn feed(&mut self, ids: &[u32]) -> Result<&[f32], EvalError> {
        match self.stop.load(Ordering::Relaxed) {
            true => Err(EvalError::Stopped),
            false => self.model.feed(ids),
        }
    }
}

/// Returns the text that the first rank has generated, or [`EvalError::Stopped`] on all ranks if that was stopped.
fn stopped_on_root<T>(runner: &mut Runner, generated: Result<T, EvalError>) -> Result<T, TrainError> {
    let stopped = matches!(generated, Err(EvalError::Stopped));
    match runner.worker.broadcast_from_root("stop generating", u64::from(stopped))? {
        0 => Ok(generated?),
        _ => Err(EvalError::Stopped.into()),
    }
}

fn component((name, report): (String, EvalReport)) -> EvalComponent {
    EvalComponent {
        name,
        loss: report.loss,
        bits_per_byte: report.bits_per_byte,
        tokens_scored: report.tokens,
    }
}

fn record(
    (step, tokens): (u64, u64),
    windows: &EvaluationWindows,
    (report, components): (EvalReport, Vec<(String, EvalReport)>),
    seconds: f64,
) -> Record {
    let record = Eval {
        step,
        tokens,
        split: windows.shards().split().into(),
        loss: report.loss,
        perplexity: report.perplexity,
        bits_per_byte: report.bits_per_byte,
        tokens_scored: report.tokens,
        bytes_scored: report.bytes,
        seconds: Some(seconds),
        components: components.into_iter().map(component).collect(),
    };
    record.into()
}

/// The batches of the evaluations while training, where they pass bubbles: with `parallel.fill = "evaluation"`, a validation
/// split and evaluations at all.
pub(crate) fn bubbles(
    input: &TrainerInput,
    shape: Shape,
    data_ranks: usize,
) -> Result<Option<Bubbles>, TrainError> {
    let (recipe, tokenizer) = (&input.recipe, &input.tokenizer);
    let Some(set) = input.validation.as_ref().filter(|_| recipe.parallel.fill.has(FillChoice::Evaluation))
    else {
        return Ok(None);
    };
    if recipe.eval.every_steps == 0 {
        return Ok(None);
    }
    let windows = EvaluationWindows::new(Arc::clone(set), shape.seq, tokenizer.end_of_text())?
        .prefetching(recipe.loader.prefetch_config());
    let ranks = (shape.sequences * data_ranks, shape.seq);
    Bubbles::new(&windows, &tokenizer.byte_lengths(), recipe.eval.max_tokens(), ranks).map(Some)
}

/// Leaves out the samples of a model that generates no text, and returns the warning about it.
pub(crate) fn leave_out_samples(input: &mut TrainerInput) -> Option<&'static str> {
    let (recipe, tokenizer) = (&mut input.recipe, &input.tokenizer);
    let model = recipe.model.resolve_for(tokenizer.vocab_size(), tokenizer.end_of_text()).ok()?;
    if model.is_causal() || !recipe.eval.samples.are_written() {
        return None;
    }
    recipe.eval.samples.prompts.clear();
    Some(
        "no samples are written: with model.experts.chosen_by = \"experts\" a token's experts depend on later tokens, so the model generates \
         no text; eval.samples.prompts = [] leaves this warning out",
    )
}

impl Evaluator {
    pub(crate) fn new(
        backend: &mut dyn Backend,
        worker: &Worker,
        input: &TrainerInput,
        bubbles: Option<Bubbles>,
    ) -> Result<Evaluator, TrainError> {
        let config = input.recipe.eval.clone();
        let windows = match &input.validation {
            Some(set) => {
                let seq_len = worker.decoder().shape().seq;
                let windows =
                    EvaluationWindows::new(Arc::clone(set), seq_len, input.tokenizer.end_of_text())?;
                if config.every_steps > 0 {
                    check_scored(&windows, config.max_tokens())?;
                }
                Some(windows.prefetching(input.recipe.loader.prefetch_config()))
            }
            None => None,
        };
        let former = match &input.former {
            Some((name, set)) => {
                let seq_len = worker.decoder().shape().seq;
                let windows =
                    EvaluationWindows::new(Arc::clone(set), seq_len, input.tokenizer.end_of_text())?;
                check_scored(&windows, config.max_tokens())?;
                Some((name.clone(), windows.prefetching(input.recipe.loader.prefetch_config())))
            }
            None => None,
        };
        let writer = match config.generates() && worker.rank() == 0 {
            true => Some(Writer::new(backend, worker, &input.recipe.train)?),
            false => None,
        };
        let lengths = ModelLengths { longest: worker.decoder().shape().seq, context: worker.model().context };
        let tasks = PreparedTasks::new(&config.tasks, &input.tasks, &input.tokenizer, lengths)?;
        Ok(Evaluator {
            windows,
            former,
            byte_lengths: input.tokenizer.byte_lengths(),
            writer,
            tasks,
            tokenizer: Arc::clone(&input.tokenizer),
            config,
            seed: input.recipe.run.seed,
            bubbles,
        })
    }

    /// Scores the validation split; `whole` or as much as evaluation while training may take. All ranks call this and
    /// have the same result. `stop` on any rank ends it with [`EvalError::Stopped`].
    pub(crate) fn score(
        &mut self,
        backend: &mut dyn Backend,
        runner: &mut Runner,
        (step, tokens): (u64, u64),
        whole: bool,
        (observer, stop): (&mut dyn Observer, &AtomicBool),
    ) -> Result<Option<Record>, TrainError> {
        let Some(windows) = &self.windows else { return Ok(None) };
        let begun = Instant::now();
        let most = if whole { None } else { self.config.max_tokens() };
        let mut model = RankLosses::new(runner, backend, Some(stop));
        let scored = score_components(&mut model, windows, &self.byte_lengths, most, &mut |done, total| {
            observer.progress("validation", done, total);
        });
        let scored = model.with_cause(scored)?;
        Ok(Some(record((step, tokens), windows, scored, begun.elapsed().as_secs_f64())))
    }

    /// Scores the validation split of another run, as [`Evaluator::score`] that of the run.
    pub(crate) fn score_former(
        &mut self,
        backend: &mut dyn Backend,
        runner: &mut Runner,
        whole: bool,
        (observer, stop): (&mut dyn Observer, &AtomicBool),
    ) -> Result<Option<EvalComponent>, TrainError> {
        let Some((name, windows)) = &self.former else { return Ok(None) };
        let most = if whole { None } else { self.config.max_tokens() };
        let mut model = RankLosses::new(runner, backend, Some(stop));
        let scored = score_components(&mut model, windows, &self.byte_lengths, most, &mut |done, total| {
            observer.progress(name, done, total);
        });
        let (report, _) = model.with_cause(scored)?;
        Ok(Some(component((name.clone(), report))))
    }

    /// Whether the validation split of another run is scored too.
    pub(crate) fn has_former(&self) -> bool {
        self.former.is_some()
    }

    /// The scores of the recipe's tasks. All ranks call this; those with generated text are on the first rank alone.
    /// `stop` ends it with [`EvalError::Stopped`]: on any rank, while text is generated on the first one.
    pub(crate) fn tasks(
        &mut self,
        backend: &mut dyn Backend,
        runner: &mut Runner,
        (step, tokens): (u64, u64),
        (observer, stop): (&mut dyn Observer, &AtomicBool),
    ) -> Result<Vec<Record>, TrainError> {
        if self.tasks.is_empty() {
            return Ok(Vec::new());
        }
        let mut model = RankLosses::new(runner, backend, Some(stop));
        let scored = self.tasks.score(&mut OneLength(&mut model), step, &mut |done, all| {
            observer.progress("tasks", done, all);
        });
        let mut scored = model.with_cause(scored)?;
        if self.tasks.generate() {
            scored.extend(self.generated_tasks(backend, runner, step, (observer, stop))?);
        }
        let mut records = Vec::new();
        for task in scored {
            for (name, score) in task.all_scores() {
                records.push(
                    Task {
                        step,
                        tokens,
                        task: name,
                        metric: score.metric,
                        value: score.value,
                        stderr: score.stderr,
                        interval: score.interval,
                        larger_is_better: score.larger_is_better,
                        documents: score.documents as u64,
                        signature: task.signature.clone(),
                        worst: score.worst,
                    }
                    .into(),
                );
            }
        }
        Ok(records)
    }

    /// The scores of tasks with generated text, on the first rank. All ranks call this.
    fn generated_tasks(
        &mut self,
        backend: &mut dyn Backend,
        runner: &mut Runner,
        step: u64,
        (observer, stop): (&mut dyn Observer, &AtomicBool),
    ) -> Result<Vec<TaskScores>, TrainError> {
        let tokenizer = Arc::clone(&self.tokenizer);
        self.gather(backend, runner)?;
        let scored = match &mut self.writer {
            Some(Writer { whole, cache }) => {
                let decoder = whole.as_ref().unwrap_or(runner.worker.decoder());
                let mut model = UntilStopped { model: CachedDecoder::new(decoder, backend, cache)?, stop };
                let mut progress = |done, all| observer.progress("tasks", done, all);
                self.tasks.score_generated(&tokenizer, &mut model, step, &mut progress)
            }
            None => Ok(Vec::new()),
        };
        stopped_on_root(runner, scored)
    }

    /// Gathers the parameters of all ranks in the decoder that generates text, where each rank has only a part of them. All ranks call this.
    fn gather(&self, backend: &mut dyn Backend, runner: &mut Runner) -> Result<(), TrainError> {
        match runner.worker.plan().keeps_model() {
            true => Ok(()),
            false => runner.copy_params(backend, self.writer.as_ref().and_then(|w| w.whole.as_ref())),
        }
    }

    /// The batches that pass bubbles, if any do.
    pub(crate) fn bubbles(&mut self) -> Option<&mut Bubbles> {
        self.bubbles.as_mut()
    }

    /// Ends an evaluation that is pending ([`Bubbles::end`]).
    pub(crate) fn end_in_bubbles(
        &mut self,
        backend: &mut dyn Backend,
        runner: &mut Runner,
        passed: bool,
        stop: Option<&AtomicBool>,
    ) -> Result<Option<Record>, TrainError> {
        let (Some(windows), Some(bubbles)) = (&self.windows, &mut self.bubbles) else { return Ok(None) };
        let Some(ended) = bubbles.end(backend, runner, passed, stop)? else { return Ok(None) };
        let Ended { at, mut known, seconds } = ended;
        let most = self.config.max_tokens();
        let scored = score_components(&mut known, windows, &self.byte_lengths, most, &mut |_, _| ())?;
        Ok(Some(record(at, windows, scored, seconds)))
    }

    /// Continues every prompt of the recipe, on the first rank. All ranks call this: where each has only a part of the
    /// model, they gather it. `stop` on the first rank ends it with [`EvalError::Stopped`].
    pub(crate) fn samples(
        &mut self,
        backend: &mut dyn Backend,
        runner: &mut Runner,
        step: u64,
        stop: &AtomicBool,
    ) -> Result<Vec<Record>, TrainError> {
        if !self.config.samples.are_written() {
            return Ok(Vec::new());
        }
        self.gather(backend, runner)?;
        let records = self.texts(backend, runner, step, stop);
        stopped_on_root(runner, records)
    }

    /// The texts of [`Evaluator::samples`], on the first rank.
    fn texts(
        &mut self,
        backend: &mut dyn Backend,
        runner: &Runner,
        step: u64,
        stop: &AtomicBool,
    ) -> Result<Vec<Record>, EvalError> {
        let Some(Writer { whole, cache }) = &mut self.writer else { return Ok(Vec::new()) };
        let decoder = whole.as_ref().unwrap_or(runner.worker.decoder());
        let mut settings = self.config.samples.generate.clone();
        // Other samples for another run, the same ones when this one is repeated.
        settings.sampling.seed ^= self.seed;
        let mut records = Vec::new();
        for prompt in &self.config.samples.prompts {
            for number in 0..self.config.samples.per_prompt {
                let mut model = UntilStopped { model: CachedDecoder::new(decoder, backend, cache)?, stop };
                let written =
                    generate_text(&mut model, &self.tokenizer, prompt, &settings, number, &mut |_| {
                        ControlFlow::Continue(())
                    });
                let text = match written {
                    Ok(written) => written.text,
                    // A prompt that this tokenizer cannot express is no reason to end a run.
                    Err(e @ (EvalError::Tokenizer(_) | EvalError::PromptTooLong { .. })) => {
                        let message = format!("cannot generate a sample for the prompt {prompt:?}: {e}");
                        records.push(Warning { step: Some(step), topic: "samples".into(), message }.into());
                        break;
                    }
                    Err(e) => return Err(e),
                };
                let temperature = Some(settings.sampling.temperature);
                records.push(Sample { step, prompt: prompt.clone(), text, temperature }.into());
            }
        }
        Ok(records)
    }

    /// Fits the n-gram baseline on exactly the text of the first `samples` samples and scores it on the validation split. Makes none for a
    /// split with a mask: the baseline predicts bytes, all of which it would score.
    /// `stop` ends it with [`EvalError::Stopped`].
    pub(crate) fn baseline(
        &self,
        loader: &Loader,
        samples: u64,
        threads: usize,
        (observer, stop): (&mut dyn Observer, &AtomicBool),
    ) -> Result<Option<Record>, TrainError> {
        let wanted = self.config.ngram.enabled && samples > 0;
        let Some(windows) = self.windows.as_ref().filter(|w| wanted && !w.shards().has_mask()) else {
            return Ok(None);
        };
        let begun = Instant::now();
        let validation = windows.shards();
        let report = ngram_baseline(
            loader.shards(),
            loader.seen(samples)?,
            validation,
            &self.tokenizer,
            &self.config.ngram,
            threads,
            &mut |done, total| {
                observer.progress("n-gram baseline", done, total);
                if stop.load(Ordering::Relaxed) { Err(EvalError::Stopped) } else { Ok(()) }
            },
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
