//! One run of a study.

use super::method::Method;
use super::start::{StreamGradients, look};
use super::text::SymbolText;
use crate::error::TrainError;
use bessemer_arch::Model;
use bessemer_model::{Decoder, LossSum, Purpose, Seams, Shape, StepContext, TokenBatch};
use bessemer_optim::{OptimConfig, OptimParam, Optimizer, StepStats};
use bessemer_runlog::study::{StudyRun, StudySettings, StudyVerdict};
use bessemer_tensor::Backend;

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
/// A text that is too short, sizes that do not fit together, or what lower floors answer. Divergence is a result.
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
        let mut listener = StreamGradients::default();
        let loss = if step == 0 {
            let loss = trainee.gradients(backend, &mut listener, &inputs, &targets, step)?;
            run.start = look(backend, &trainee.decoder, listener)?;
            loss
        } else {
            trainee.gradients(backend, &mut bessemer_model::OneDevice, &inputs, &targets, step)?
        };
        let update = trainee.update(backend, step + 1, settings.lr)?;
        if !loss.is_finite() || update.skipped {
            run.diverged_at = Some(step + 1);
            return Ok(Some(run));
        }
        run.losses.push(loss);
        run.gradient_norms.push(update.grad_norm);
    }
    let loss = trainee.score(backend, text, settings)?;
    run.final_loss = loss.is_finite().then_some(loss);
    run.verdict = StudyVerdict::of(run.final_loss, text.facts());
    Ok(Some(run))
}

/// A decoder and its optimizer.
pub(crate) struct Trainee {
    pub(crate) decoder: Decoder,
    adam: Optimizer,
    seed: u64,
}

impl Trainee {
    pub(crate) fn new(
        backend: &mut dyn Backend,
        model: &Model,
        settings: &StudySettings,
        seed: u64,
    ) -> Result<Trainee, TrainError> {
        let decoder = Decoder::new(backend, model, training_shape(settings))?;
        decoder.init(backend, seed)?;
        let param = |p: &bessemer_model::Param| Some(OptimParam::of(model, &p.spec, p.value, p.grad?));
        let params: Vec<OptimParam> = decoder.params().iter().filter_map(param).collect();
        let adam = Optimizer::new(backend, &params, &adam(settings))?;
        Ok(Trainee { decoder, adam, seed })
    }

    /// Mean loss of a batch, and its gradients on the device.
    pub(crate) fn gradients(
        &mut self,
        backend: &mut dyn Backend,
        seams: &mut dyn Seams,
        inputs: &[u32],
        targets: &[u32],
        step: u64,
    ) -> Result<f64, TrainError> {
        let batch = TokenBatch { ids: inputs, targets, positions: None };
        let context = StepContext {
            seed: self.seed,
            step,
            first_sequence: 0,
            loss_scale: 1.0 / inputs.len() as f32,
            accumulate: false,
        };
        Ok(self.decoder.forward_backward_through(backend, seams, &batch, &context)?.mean())
    }

    /// One update, which is skipped if a gradient is not finite.
    pub(crate) fn update(
        &mut self,
        backend: &mut dyn Backend,
        step: u64,
        lr: f64,
    ) -> Result<StepStats, TrainError> {
        Ok(self.adam.step(backend, step, lr)?)
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
            sum += self.decoder.loss(backend, &batch, None)?;
        }
        Ok(sum.mean())
    }
}
