//! One run of a study.

use crate::method::Method;
use crate::start::{StreamGradients, look};
use crate::text::SymbolText;
use bessemer_arch::Model;
use bessemer_optim::OptimConfig;
use bessemer_parallel::{BatchSource, ParallelError};
use bessemer_runlog::study::{StudyRun, StudySettings, StudyVerdict};
use bessemer_runtime::{ActivationConfig, Decoder, LossSum, Purpose, Shape, StepContext, TokenBatch};
use bessemer_tensor::Backend;
use bessemer_train::TrainError;
use bessemer_train::{Runner, StepResult};
use bessemer_units::Recompute;

/// The shape of a study's batches.
pub fn training_shape(settings: &StudySettings) -> Shape {
    Shape { sequences: settings.batch as usize, seq: settings.context as usize, purpose: Purpose::Train }
}

/// Adam alone: nothing that softens a bad start.
fn adam(settings: &StudySettings) -> OptimConfig {
    OptimConfig {
        lr: settings.lr,
        beta1: settings.beta1,
        beta2: settings.beta2,
        weight_decay: 0.0,
        clip: 0.0,
        ..OptimConfig::default()
    }
}

/// Trains one method with one seed on a fresh backend. `on_step` is called before each step with the steps done; false
/// ends the run without a result.
///
/// # Errors
/// A text that is too short, sizes that do not fit together, or an error of a lower layer. Divergence is a result.
pub fn train_one(
    backend: &mut dyn Backend,
    method: &Method,
    settings: &StudySettings,
    text: &SymbolText,
    seed: u64,
    on_step: &mut dyn FnMut(u64) -> bool,
) -> Result<Option<StudyRun>, TrainError> {
    text.require(settings)?;
    let model = method
        .model(settings, text.facts().symbols as usize)
        .map_err(|e| TrainError::Recipe(e.to_string()))?;
    let mut trainee = Trainee::new(backend, &model, settings, seed)?;
    let mut run = StudyRun {
        seed,
        losses: Vec::new(),
        gradient_norms: Vec::new(),
        diverged_at: None,
        final_loss: None,
        verdict: StudyVerdict::Diverged,
        start: Default::default(),
    };
    for step in 0..settings.steps {
        if !on_step(step) {
            return Ok(None);
        }
        let (inputs, targets) = text.batch(settings, seed, step);
        if step == 0 {
            let mut listener = StreamGradients::of(&trainee.probe);
            trainee.copy_to_probe(backend)?;
            let StudyBatch { batch, context } = trainee.batch(&inputs, &targets, step);
            trainee.probe.forward_backward_through(backend, &mut listener, &batch, &context)?;
            run.start = look(backend, &trainee.probe, listener)?;
        }
        let StepResult { loss, stats } = trainee.step(backend, &inputs, &targets, (step, settings.lr))?;
        if !loss.mean().is_finite() || stats.skipped {
            run.diverged_at = Some(step + 1);
            return Ok(Some(run));
        }
        run.losses.push(loss.mean());
        run.gradient_norms.push(stats.grad_norm);
    }
    let loss = trainee.score(backend, text, settings)?;
    run.final_loss = loss.is_finite().then_some(loss);
    run.verdict = StudyVerdict::of(run.final_loss, text.facts());
    Ok(Some(run))
}

/// A network in training, and a decoder of the same sizes whose passes can be observed.
pub(crate) struct Trainee {
    runner: Runner,
    pub(crate) probe: Decoder,
    seed: u64,
}

/// The batch of a step.
pub(crate) struct StudyBatch<'a> {
    batch: TokenBatch<'a>,
    context: StepContext,
}

impl BatchSource for StudyBatch<'_> {
    fn micro_batch(&mut self, _: usize) -> Result<(TokenBatch<'_>, StepContext), ParallelError> {
        Ok((self.batch, self.context))
    }
}

impl Trainee {
    pub(crate) fn new(
        backend: &mut dyn Backend,
        model: &Model,
        settings: &StudySettings,
        seed: u64,
    ) -> Result<Trainee, TrainError> {
        let (shape, activations) = (training_shape(settings), ActivationConfig::default());
        let mut runner = Runner::alone(backend, model, shape, activations.clone(), &adam(settings))?;
        runner.worker.init(backend, seed)?;
        // Statistics of normalisations are looked at after a pass, so they are kept; numbers are the same either way.
        let kept = ActivationConfig { recompute: Recompute::None.into(), ..activations };
        let probe = Decoder::with_activations(backend, model, shape, kept)?;
        Ok(Trainee { runner, probe, seed })
    }

    /// Gives the probe the parameters as they are now.
    pub(crate) fn copy_to_probe(&mut self, backend: &mut dyn Backend) -> Result<(), TrainError> {
        self.runner.copy_params(backend, Some(&self.probe))
    }

    fn batch<'a>(&self, inputs: &'a [u32], targets: &'a [u32], step: u64) -> StudyBatch<'a> {
        let context = StepContext {
            seed: self.seed,
            step,
            first_sequence: 0,
            loss_scale: 1.0 / inputs.len() as f32,
            accumulate: false,
        };
        StudyBatch { batch: TokenBatch { ids: inputs, targets, positions: None }, context }
    }

    /// One step, counted from 0, at a learning rate. The update is skipped if a gradient is not finite.
    pub(crate) fn step(
        &mut self,
        backend: &mut dyn Backend,
        inputs: &[u32],
        targets: &[u32],
        (step, lr): (u64, f64),
    ) -> Result<StepResult, TrainError> {
        let mut source = self.batch(inputs, targets, step);
        self.runner.step(backend, &mut source, step + 1, lr)
    }

    /// Nats a symbol of the validation text.
    fn score(
        &mut self,
        backend: &mut dyn Backend,
        text: &SymbolText,
        settings: &StudySettings,
    ) -> Result<f64, TrainError> {
        let mut sum = LossSum::default();
        for (inputs, targets) in text.validation(settings) {
            let batch = TokenBatch { ids: &inputs, targets: &targets, positions: None };
            sum += self.runner.evaluate(backend, &batch, None)?;
        }
        Ok(sum.mean())
    }
}
