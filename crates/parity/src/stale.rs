//! One process that reads weights as old as a pipeline with an asynchronous schedule does: what such a schedule is held
//! against, bit by bit.
//!
//! ```text
//! of every update:  of every data-parallel rank:  of every micro-batch:
//!                       each stage of a whole model is given the version of the weights that the program names for it
//!                       forward, backward
//!                   gradients of the ranks are added in their order; one step of the newest weights
//! ```
//! There is no pipeline, no communicator and no stash: versions are whole copies in host memory.

use crate::layouts::Layout;
use crate::run::{ParityJob, Text, Trajectory};
use bessemer_arch::ParamId;
use bessemer_optim::{OptimParam, Optimizer};
use bessemer_parallel::BatchSource;
use bessemer_runtime::{ActivationConfig, Decoder, LossSum, StepContext};
use bessemer_schedule::{Instruction, Place, Program};
use bessemer_tensor::{Backend, View};
use bessemer_train::TrainError;
use bessemer_units::ParamStorage;

/// Every parameter with its identity.
type Values = Vec<(ParamId, Vec<f32>)>;

/// The version that each stage's forward pass reads, by micro-batch and stage.
fn versions(program: &Program) -> Vec<Vec<usize>> {
    let mut versions = vec![vec![0; program.stages]; program.micro_batches()];
    for (rank, list) in program.lists.iter().enumerate() {
        for instruction in list {
            if let Instruction::Forward(pass) = *instruction
                && let Some(stage) = program.stage_at(Place { rank, chunk: pass.chunk })
            {
                versions[pass.micro][stage] = pass.version;
            }
        }
    }
    versions
}

/// A whole model.
struct Whole<'a> {
    backend: &'a mut dyn Backend,
    decoder: Decoder,
    gradients: Vec<View>,
}

impl Whole<'_> {
    fn values(&mut self) -> Result<Values, TrainError> {
        let tensors = self.decoder.read_params(self.backend)?;
        let ids = self.decoder.params().iter().map(|p| p.spec.id);
        Ok(ids.zip(tensors).map(|(id, t)| (id, t.values)).collect())
    }

    fn take<'v>(&mut self, values: impl Iterator<Item = &'v (ParamId, Vec<f32>)>) -> Result<(), TrainError> {
        for (id, values) in values {
            self.decoder.write_param(self.backend, &id.to_string(), values)?;
        }
        Ok(())
    }

    /// Adds the gradients at hand to `sum`, or makes them its beginning.
    fn add_gradients(&mut self, sum: &mut Vec<Vec<f32>>) -> Result<(), TrainError> {
        let begins = sum.is_empty();
        for (i, view) in self.gradients.iter().enumerate() {
            let mut values = vec![0.0; view.len()];
            self.backend.read_f32(*view, &mut values)?;
            match begins {
                true => sum.push(values),
                false => sum[i].iter_mut().zip(values).for_each(|(s, v)| *s += v),
            }
        }
        Ok(())
    }
}

/// The losses and parameters of a layout with an asynchronous schedule, from one process; no gradients, as the layout has
/// none to show. Also of how many updates ago the oldest weights were that a micro-batch of an update read.
///
/// # Errors
/// A layout that the job does not allow, another type of parameters than f32, or an error of a lower layer.
pub fn stale_reference(
    backend: &mut dyn Backend,
    job: &ParityJob,
    layout: &Layout,
) -> Result<(Trajectory, usize), TrainError> {
    if layout.types != ParamStorage::default() {
        let text = format!("{}: the reference with old weights keeps parameters in f32", layout.name);
        return Err(TrainError::Recipe(text));
    }
    let (plan, shape) = job.plan(layout)?;
    // Micro-batches add to the gradients here, whatever the layout does.
    let activations = ActivationConfig { in_gradients: false, ..job.activations.clone() };
    let decoder = Decoder::with_activations(backend, &job.model, shape, activations)?;
    decoder.init(backend, job.seed)?;
    let trained: Vec<_> = decoder.params().iter().filter_map(|p| Some((p, p.grad?))).collect();
    let params: Vec<_> =
        trained.iter().map(|(p, grad)| OptimParam::of(&job.model, &p.spec, p.value, *grad)).collect();
    let gradients = trained.iter().map(|(_, grad)| *grad).collect();
    let mut optimizer = Optimizer::new(backend, &params, &job.optim)?;
    let mut whole = Whole { backend, decoder, gradients };

    let (mut t, mut oldest, every) = (Trajectory::default(), 0, layout.accumulation);
    let mut newest = whole.values()?;
    for (first, updates) in job.programs(layout) {
        let program = plan.program(every, updates, None)?;
        let (versions, spans) = (versions(&program), plan.spans(&job.model, program.stages)?);
        let mut history = vec![newest];
        for update in 0..updates {
            let (mut loss, mut sum) = (LossSum::default(), Vec::new());
            for index in 0..plan.data_ranks() {
                let mut text = Text::new(job, layout, shape, index);
                text.step = first;
                let mut of_rank = LossSum::default();
                for within in 0..every {
                    let micro = update * every + within;
                    for (version, span) in versions[micro].iter().zip(&spans) {
                        oldest = oldest.max(update - version);
                        whole.take(history[*version].iter().filter(|(id, _)| span.owns(*id)))?;
                    }
                    let (batch, ctx) = text.micro_batch(micro)?;
                    let ctx = StepContext { accumulate: within > 0, ..ctx };
                    of_rank += whole.decoder.forward_backward(whole.backend, &batch, &ctx)?;
                }
                loss += of_rank;
                whole.add_gradients(&mut sum)?;
            }
            for (view, values) in whole.gradients.iter().zip(&sum) {
                whole.backend.write_f32(*view, values)?;
            }
            whole.take(history[update].iter())?;
            let norm = sum.iter().flatten().map(|v| f64::from(*v).powi(2)).sum::<f64>().sqrt();
            let step = first + update as u64 + 1;
            optimizer.apply(whole.backend, step, job.rate(step), norm)?;
            t.losses.push(loss.mean());
            t.norms.push(norm);
            history.push(whole.values()?);
        }
        newest = history.swap_remove(updates);
    }
    t.params = newest.into_iter().map(|(id, values)| (id.to_string(), values)).collect();
    Ok((t, oldest))
}
