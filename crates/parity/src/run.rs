//! One layout, trained for some steps.

use crate::layouts::Layout;
use crate::text::tokens;
use bessemer_arch::Model;
use bessemer_collectives::{Communicator, FlightRecorder, ThreadCommunicator, ThreadSettings};
use bessemer_optim::OptimConfig;
use bessemer_parallel::{BatchSource, Job, ParallelError, Plan, Worker};
use bessemer_runtime::{ActivationConfig, Purpose, Shape, StepContext, TokenBatch};
use bessemer_tensor::Backend;
use bessemer_train::TrainError;
use bessemer_train::{Passes, Runner, on_threads};

/// Collectives that are remembered of each rank, for the message of a time-out.
const REMEMBERED: usize = 32;

/// Training run that every layout repeats.
#[derive(Debug, Clone, PartialEq)]
pub struct ParityJob {
    /// The model.
    pub model: Model,
    /// The optimizer.
    pub optim: OptimConfig,
    /// How activations are kept.
    pub activations: ActivationConfig,
    /// Sequences of a step, over all ranks.
    pub sequences: usize,
    /// Tokens of a sequence.
    pub seq: usize,
    /// Steps.
    pub steps: u64,
    /// Seed of initial values and dropout.
    pub seed: u64,
}

impl ParityJob {
    /// The learning rate of step `t`, counted from 1. It falls, so that an update under another step's number shows.
    pub(super) fn rate(&self, t: u64) -> f64 {
        self.optim.lr / (1.0 + t as f64 / 64.0)
    }

    /// The first steps (from 0) and the numbers of updates of a layout's programs, one after the other.
    pub(super) fn programs(&self, layout: &Layout) -> impl Iterator<Item = (u64, usize)> + use<> {
        let (steps, most) = (self.steps, if layout.asynchronous() { layout.parallel.window } else { 1 });
        (0..steps).step_by(most as usize).map(move |first| (first, most.min(steps - first) as usize))
    }

    /// The plan of a layout, and its micro-batches.
    pub(super) fn plan(&self, layout: &Layout) -> Result<(Plan, Shape), TrainError> {
        let plan = Plan::new(&layout.parallel, layout.ranks, &self.model, self.optim.optimizer)?;
        let pieces = plan.data_ranks() * layout.accumulation;
        if !self.sequences.is_multiple_of(pieces) || self.sequences == 0 {
            return Err(TrainError::Recipe(format!(
                "{} sequences of a step are not {} data-parallel ranks times {} micro-batches",
                self.sequences,
                plan.data_ranks(),
                layout.accumulation
            )));
        }
        let shape = Shape { sequences: self.sequences / pieces, seq: self.seq, purpose: Purpose::Train };
        Ok((plan, shape))
    }
}

/// Result of a layout's run.
#[derive(Debug, Default, Clone, PartialEq)]
pub struct Trajectory {
    /// Mean loss of every step, in nats.
    pub losses: Vec<f64>,
    /// Norm of the gradient of every step.
    pub norms: Vec<f64>,
    /// The gradients of the first step, whole, with their names; none with an asynchronous schedule.
    pub gradients: Vec<(String, Vec<f32>)>,
    /// The parameters after the last step, whole, with their names.
    pub params: Vec<(String, Vec<f32>)>,
}

/// Step of the biases of gates that have some: large enough for choices to change.
const BIAS_RATE: f32 = 0.01;

/// Trains one rank of a layout: all ranks of `world` call this with the same job.
///
/// # Errors
/// A layout that the job does not allow, or an error of a lower layer or another rank.
pub fn trajectory(
    backend: &mut dyn Backend,
    job: &ParityJob,
    layout: &Layout,
    world: Box<dyn Communicator>,
) -> Result<Trajectory, TrainError> {
    let (plan, shape) = job.plan(layout)?;
    let updates = job.programs(layout).next().map_or(1, |(_, updates)| updates);
    let program = &plan.program(layout.accumulation, updates, None)?;
    let described = Job {
        model: &job.model,
        shape,
        activations: job.activations.clone(),
        types: layout.types,
        optim: &job.optim,
        losses: &[],
        plan: &plan,
        program,
    };
    let mut runner = Runner::new(backend, &described, world)?;
    runner.worker.init(backend, job.seed)?;
    let mut text = Text::new(job, layout, shape, plan.data_index(runner.worker.coord()));
    let mut t = Trajectory::default();
    for (first, updates) in job.programs(layout) {
        text.step = first;
        if layout.asynchronous() {
            // Each stage steps as soon as it can, so there is no moment at which a step's gradients are there.
            runner.set_window(layout.accumulation, updates)?;
            for update in runner.window(backend, &mut text, first + 1, &|t| job.rate(t))? {
                t.losses.push(update.loss.mean());
                t.norms.push(update.grad_norm);
            }
            continue;
        }
        let Passes { loss, grad_norm } = runner.passes(backend, &mut text)?;
        t.losses.push(loss.mean());
        t.norms.push(grad_norm);
        if first == 0 {
            t.gradients = whole(backend, &mut runner.worker, true)?;
        }
        runner.update(backend, first + 1, job.rate(first + 1), grad_norm)?;
        if job.model.experts.is_some() {
            runner.worker.sum_loads()?;
            runner.worker.set_routing_state(backend, BIAS_RATE)?;
        }
    }
    t.params = whole(backend, &mut runner.worker, false)?;
    Ok(t)
}

/// The made-up text of a program, for one rank.
pub(super) struct Text<'a> {
    job: &'a ParityJob,
    /// The program's first step.
    pub(super) step: u64,
    /// Micro-batches of a step.
    every: usize,
    /// Ordinal of this rank's first sequence within a step.
    first: usize,
    /// Sequences of a micro-batch.
    micro: usize,
    ids: Vec<u32>,
    targets: Vec<u32>,
}

impl<'a> Text<'a> {
    /// Returns the text of data-parallel rank `index`.
    pub(super) fn new(job: &'a ParityJob, layout: &Layout, shape: Shape, index: usize) -> Text<'a> {
        let (every, micro) = (layout.accumulation, shape.sequences);
        let first = index * every * micro;
        Text { job, step: 0, every, first, micro, ids: Vec::new(), targets: Vec::new() }
    }
}

impl BatchSource for Text<'_> {
    fn micro_batch(&mut self, micro: usize) -> Result<(TokenBatch<'_>, StepContext), ParallelError> {
        let job = self.job;
        let (step, within) = (self.step + (micro / self.every) as u64, micro % self.every);
        let first = (self.first + within * self.micro) as u64;
        self.ids.clear();
        self.targets.clear();
        for sequence in first..first + self.micro as u64 {
            let text = tokens(step, sequence, job.seq, job.model.vocab_size, job.model.document_end);
            self.ids.extend(&text[..job.seq]);
            self.targets.extend(&text[1..]);
        }
        let ctx = StepContext {
            seed: job.seed,
            step,
            first_sequence: first,
            loss_scale: 1.0 / (job.sequences * job.seq) as f32,
            accumulate: false,
        };
        Ok((TokenBatch { ids: &self.ids, targets: &self.targets, positions: None }, ctx))
    }
}

/// Every gradient or every parameter, whole.
fn whole(
    backend: &mut dyn Backend,
    worker: &mut Worker,
    gradients: bool,
) -> Result<Vec<(String, Vec<f32>)>, TrainError> {
    let list = if gradients { worker.gradients_of_params() } else { worker.params() };
    let mut out = Vec::with_capacity(list.len());
    worker.read_all(backend, &list, &mut |_, i, values| {
        out.push((list[i].name.clone(), values.to_vec()));
        Ok(())
    })?;
    Ok(out)
}

/// As [`trajectory`], with the ranks as threads of this process, each on a backend of its own; what rank 0 saw.
///
/// # Errors
/// As [`trajectory`]; of several ranks' errors the first that is not about another rank.
pub fn in_process(
    job: &ParityJob,
    layout: &Layout,
    settings: &ThreadSettings,
    backend: &(dyn Fn() -> Result<Box<dyn Backend>, TrainError> + Sync),
) -> Result<Trajectory, TrainError> {
    let recorder = FlightRecorder::new(layout.ranks, REMEMBERED);
    let worlds = ThreadCommunicator::world("world", layout.ranks, settings).into_iter().enumerate();
    let worlds = worlds.map(|(rank, world)| recorder.wrap(rank, Box::new(world)));
    let mut ranks = on_threads(worlds.collect(), |world| trajectory(&mut *backend()?, job, layout, world))?;
    Ok(ranks.swap_remove(0))
}
