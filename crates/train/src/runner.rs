//! One optimizer step, and the losses of one batch, on one rank.
//!
//! Trainer, evaluation, parity runs, studies and benchmarks all step through [`Runner`], so that a benchmark measures what
//! trains. Records, checkpoints and spike detection are the trainer's, around it.

use crate::TrainError;
use bessemer_arch::Model;
use bessemer_collectives::{Communicator, FlightRecorder, ThreadCommunicator, ThreadSettings};
use bessemer_optim::{OptimConfig, StepStats};
use bessemer_parallel::{BatchSource, FillSupplier, Job, ParallelError, Plan, Update, Worker};
use bessemer_runtime::{ActivationConfig, Decoder, LossSum, Shape, TokenBatch};
use bessemer_tensor::Backend;
use bessemer_units::ParamStorage;
use std::time::Duration;

mod losses;

pub(crate) use losses::RankLosses;

/// Forward and backward passes of a step, before its update.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Passes {
    /// Loss over all ranks; the same bits on every rank.
    pub loss: LossSum,
    /// Global norm of the gradient, without the loss scale.
    pub grad_norm: f64,
}

/// Result of a finished optimizer step.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct StepResult {
    /// Loss over all ranks, with the parameters before the update.
    pub loss: LossSum,
    /// Result of the optimizer's update.
    pub stats: StepStats,
}

/// One rank of a job, with its parameters and optimizer state on a device. All ranks make the same calls in the same order.
#[derive(Debug)]
pub struct Runner {
    /// The rank.
    pub worker: Worker,
}

impl Runner {
    /// Makes this rank's buffers.
    ///
    /// # Errors
    /// A job that the model, the ranks or the device do not allow.
    pub fn new(
        backend: &mut dyn Backend,
        job: &Job<'_>,
        world: Box<dyn Communicator>,
    ) -> Result<Runner, TrainError> {
        Runner::filled(backend, job, None, world)
    }

    /// [`Runner::new`] with the work that `fill` supplies in bubbles.
    ///
    /// # Errors
    /// Same errors as [`Runner::new`].
    pub fn filled(
        backend: &mut dyn Backend,
        job: &Job<'_>,
        fill: Option<&dyn FillSupplier>,
        world: Box<dyn Communicator>,
    ) -> Result<Runner, TrainError> {
        Ok(Runner { worker: Worker::filled(backend, job, fill, world)? })
    }

    /// The only rank of a job of one micro-batch a step, with parameters and gradients in f32.
    ///
    /// # Errors
    /// Same errors as [`Runner::new`].
    pub fn alone(
        backend: &mut dyn Backend,
        model: &Model,
        shape: Shape,
        activations: ActivationConfig,
        optim: &OptimConfig,
    ) -> Result<Runner, TrainError> {
        let (plan, types) = (&Plan::single(), ParamStorage::default());
        let program = &plan.program(1, 1, None)?;
        let job = Job { model, shape, activations, types, optim, losses: &[], plan, program };
        Runner::new(backend, &job, world_of_one())
    }

    /// Runs the passes of every micro-batch of a step. The gradients are then complete, over all ranks.
    ///
    /// # Errors
    /// Errors of the batch source, of the device or of another rank.
    pub fn passes(
        &mut self,
        backend: &mut dyn Backend,
        source: &mut dyn BatchSource,
    ) -> Result<Passes, TrainError> {
        let sum = self.worker.gradients(backend, source)?;
        let loss = self.worker.sum_over_data(sum)?;
        let grad_norm = self.worker.grad_norm(backend)?;
        Ok(Passes { loss, grad_norm })
    }

    /// Takes update `t`, counted from 1, at learning rate `lr`, after [`Runner::passes`] found `grad_norm`. A gradient that is
    /// not finite changes nothing and is reported as skipped; the next update then has the same `t`.
    ///
    /// # Errors
    /// An error of the device or of another rank.
    pub fn update(
        &mut self,
        backend: &mut dyn Backend,
        t: u64,
        lr: f64,
        grad_norm: f64,
    ) -> Result<StepStats, TrainError> {
        let stats = self.worker.apply(backend, t, lr, grad_norm)?;
        backend.sync()?;
        Ok(stats)
    }

    /// A whole step: [`Runner::passes`], then [`Runner::update`].
    ///
    /// # Errors
    /// Same errors as [`Runner::passes`] and [`Runner::update`].
    pub fn step(
        &mut self,
        backend: &mut dyn Backend,
        source: &mut dyn BatchSource,
        t: u64,
        lr: f64,
    ) -> Result<StepResult, TrainError> {
        let Passes { loss, grad_norm } = self.passes(backend, source)?;
        Ok(StepResult { loss, stats: self.update(backend, t, lr, grad_norm)? })
    }

    /// Makes the program of the next steps one of `updates` steps of `micro_batches` micro-batches each, for an asynchronous
    /// schedule.
    ///
    /// # Errors
    /// A number of steps that the schedule does not allow, or more memory than was planned.
    pub fn set_window(&mut self, micro_batches: usize, updates: usize) -> Result<(), TrainError> {
        if self.worker.program().updates != updates {
            let program = self.worker.plan().program(micro_batches, updates, None)?;
            self.worker.set_program(&program)?;
        }
        Ok(())
    }

    /// Runs the steps of one program of an asynchronous schedule ([`Runner::set_window`]), the first of which makes update
    /// `t`, counted from 1. `rate` is the learning rate of an update.
    ///
    /// # Errors
    /// Errors of the batch source, of the device or of another rank.
    pub fn window(
        &mut self,
        backend: &mut dyn Backend,
        source: &mut dyn BatchSource,
        t: u64,
        rate: &dyn Fn(u64) -> f64,
    ) -> Result<Vec<Update>, TrainError> {
        let updates = self.worker.window(backend, source, t, rate)?;
        backend.sync()?;
        Ok(updates)
    }

    /// Gathers the parameters of all ranks, into `whole` if this rank has a decoder for them. All ranks call this.
    ///
    /// # Errors
    /// An error of the device or of another rank.
    pub fn copy_params(
        &mut self,
        backend: &mut dyn Backend,
        whole: Option<&Decoder>,
    ) -> Result<(), TrainError> {
        let params = self.worker.params();
        self.worker.read_all(backend, &params, &mut |backend, i, values| match whole {
            Some(whole) => Ok(backend.write_f32(whole.params()[i].value, values)?),
            None => Ok(()),
        })?;
        Ok(())
    }

    /// Loss of one batch of this rank, without dropout; of every token in `per_token` if given. Known on the ranks that have
    /// the head.
    ///
    /// # Errors
    /// An error of the device or of another rank.
    pub fn evaluate(
        &mut self,
        backend: &mut dyn Backend,
        batch: &TokenBatch<'_>,
        per_token: Option<&mut [f32]>,
    ) -> Result<LossSum, ParallelError> {
        self.worker.loss(backend, batch, per_token)
    }
}

/// The communicator of a job of one rank.
pub(crate) fn world_of_one() -> Box<dyn Communicator> {
    Box::new(ThreadCommunicator::world("world", 1, &ThreadSettings::default()).swap_remove(0))
}

/// Collectives that a [`FlightRecorder`] remembers of each rank.
pub const REMEMBERED_COLLECTIVES: usize = 32;

/// Communicators of ranks that are threads, whose time-outs report the last collectives of all.
pub fn recorded_threads(count: usize, timeout: Duration) -> (FlightRecorder, Vec<Box<dyn Communicator>>) {
    let settings = ThreadSettings { patience: timeout, ..ThreadSettings::default() };
    let recorder = FlightRecorder::new(count, REMEMBERED_COLLECTIVES);
    let worlds = ThreadCommunicator::world("world", count, &settings);
    let wrap = |(rank, world)| recorder.wrap(rank, Box::new(world) as Box<dyn Communicator>);
    let worlds = worlds.into_iter().enumerate().map(wrap).collect();
    (recorder, worlds)
}

/// Runs every rank of a job on a thread of its own, with its communicator; results in the order of the ranks.
///
/// # Errors
/// The first error that is not about another rank, if several ranks fail.
pub fn on_threads<T: Send>(
    worlds: Vec<Box<dyn Communicator>>,
    rank: impl Fn(Box<dyn Communicator>) -> Result<T, TrainError> + Sync,
) -> Result<Vec<T>, TrainError> {
    let rank = &rank;
    let joined: Vec<_> = std::thread::scope(|scope| {
        let ranks: Vec<_> = worlds.into_iter().map(|world| scope.spawn(move || rank(world))).collect();
        ranks.into_iter().map(|rank| rank.join()).collect()
    });
    let panicked = |_| Err(TrainError::Recipe("a rank panicked".into()));
    let mut results: Vec<Result<T, TrainError>> =
        joined.into_iter().map(|result| result.unwrap_or_else(panicked)).collect();
    let own = |e: &TrainError| !matches!(e, TrainError::Parallel(ParallelError::Collective(_)));
    let cause = |e: &TrainError| !e.is_secondary();
    let wanted = [&own as &dyn Fn(&TrainError) -> bool, &cause];
    if let Some(at) = wanted.iter().find_map(|w| results.iter().position(|r| r.as_ref().is_err_and(w))) {
        results.swap(0, at);
    }
    results.into_iter().collect()
}
