//! A job in one layout, on ranks of this process.

use crate::paced::paced;
use crate::{Job, LayoutCase, MeasureError, RandomText, SEED, machine};
use bessemer_collectives::{Communicator, Delayed};
use bessemer_kernels_cpu::{CpuBackend, CpuConfig};
use bessemer_parallel::{MemoryPlan, ParallelError, Plan};
use bessemer_runtime::{ActivationConfig, Shape};
use bessemer_schedule::Program;
use bessemer_sim::Link;
use bessemer_tensor::Backend;
use bessemer_train::{Runner, TrainError, give_second_memory, on_threads, recorded_threads};
use bessemer_units::ParamStorage;
use std::path::Path;
use std::time::{Duration, Instant};

/// Size of a step.
#[derive(Debug, Clone, Copy)]
pub enum StepSize {
    /// Micro-batches of each rank.
    MicroBatches(usize),
    /// Sequences of all data-parallel ranks together, so that layouts do the same work.
    Sequences(usize),
}

/// Settings that all layouts of a job share.
#[derive(Clone, Copy)]
pub struct Bench<'a> {
    /// The step.
    pub job: &'a Job,
    /// Types of parameters and gradients.
    pub types: ParamStorage,
    /// Ranks of this process.
    pub ranks: usize,
    /// Threads of all ranks together.
    pub threads: usize,
    /// Micro-batches or sequences of a step.
    pub size: StepSize,
    /// How long a rank waits in a collective.
    pub timeout: Duration,
    /// Rate of devices that only take time, in floating-point operations a second.
    pub paced: Option<f64>,
    /// s: initial router weights of expert i, counted from 1, are multiplied by i^-s, so that the first experts get more tokens.
    pub router_skew: f64,
}

/// A layout of a step.
pub struct Setup<'a> {
    pub(crate) bench: Bench<'a>,
    /// What the ranks share.
    pub plan: Plan,
    program: Program,
    shape: Shape,
    activations: ActivationConfig,
    /// Threads of one rank.
    threads: usize,
    micro_batches: usize,
}

impl<'a> Setup<'a> {
    /// A layout of a step.
    ///
    /// # Errors
    /// Ranks that do not divide the step, or do not fit into the memory of this process.
    pub fn new(bench: &Bench<'a>, case: &LayoutCase) -> Result<Setup<'a>, MeasureError> {
        let Bench { job, ranks, .. } = *bench;
        let plan =
            Plan::new(&case.config, ranks, &job.model, job.optim.optimizer).map_err(MeasureError::request)?;
        let shape = Shape { sequences: case.sequences.unwrap_or(job.shape.sequences), ..job.shape };
        let mut activations = job.activations.clone();
        if let Some(recompute) = case.recompute {
            activations.recompute = recompute.into();
        }
        let micro_batches = match bench.size {
            StepSize::MicroBatches(number) => number,
            StepSize::Sequences(all) => {
                let once = plan.data_ranks() * shape.sequences;
                if all == 0 || !all.is_multiple_of(once) {
                    return Err(MeasureError::request(format!(
                        "{}: {all} sequences of a step are not divided by {} data-parallel ranks with micro-batches of {}",
                        case.name,
                        plan.data_ranks(),
                        shape.sequences
                    )));
                }
                all / once
            }
        };
        let program = plan.program(micro_batches, 1, None).map_err(MeasureError::request)?;
        let threads = (bench.threads / ranks).max(1);
        let setup = Setup { bench: *bench, plan, program, shape, activations, threads, micro_batches };
        if bench.paced.is_none() {
            MemoryPlan::of_rank(&setup.described(), None, None)?.fits(ranks, machine::available_memory())?;
        }
        Ok(setup)
    }

    /// Job that the ranks are made for.
    pub fn described(&self) -> bessemer_parallel::Job<'_> {
        bessemer_parallel::Job {
            model: &self.bench.job.model,
            shape: self.shape,
            activations: self.activations.clone(),
            types: self.bench.types,
            optim: &self.bench.job.optim,
            losses: &[],
            plan: &self.plan,
            program: &self.program,
        }
    }

    pub(crate) fn backend(&self) -> Result<Box<dyn Backend>, TrainError> {
        if let Some(rate) = self.bench.paced {
            return Ok(Box::new(paced(rate)));
        }
        let matmul = self.bench.job.matmul;
        let config = CpuConfig { threads: self.threads, matmul, ..CpuConfig::default() };
        let backend = CpuBackend::new(config).map_err(|e| TrainError::Recipe(e.to_string()))?;
        Ok(Box::new(backend))
    }

    /// Gives a rank its initial weights, if it computes with them.
    pub(crate) fn init(&self, runner: &mut Runner, backend: &mut dyn Backend) -> Result<(), TrainError> {
        match self.bench.paced {
            Some(_) => Ok(()),
            None => {
                runner.worker.init(backend, SEED)?;
                self.skew_routers(runner, backend)
            }
        }
    }

    fn skew_routers(&self, runner: &mut Runner, backend: &mut dyn Backend) -> Result<(), TrainError> {
        let (Bench { job, router_skew: skew, .. }, worker) = (self.bench, &mut runner.worker);
        if skew == 0.0 {
            return Ok(());
        }
        for tensor in worker.params().iter().filter(|tensor| tensor.name.ends_with("router.weight")) {
            let mut values = vec![0.0; tensor.len()];
            worker.read(backend, tensor, &mut values)?;
            for (expert, row) in values.chunks_mut(job.model.width).enumerate() {
                let scale = (expert as f64 + 1.0).powf(-skew) as f32;
                row.iter_mut().for_each(|weight| *weight *= scale);
            }
            worker.write(backend, tensor, &values)?;
        }
        Ok(())
    }

    /// Choices of the experts of each layer in the first step.
    ///
    /// # Errors
    /// A step that fails.
    pub fn loads(&self) -> Result<Vec<Vec<u64>>, MeasureError> {
        let model = &self.bench.job.model;
        let most = model.experts.map_or(1, |experts| experts.count);
        let ranks = on_threads(self.worlds(), |world| {
            let mut backend = self.backend()?;
            let (mut runner, mut text) = self.rank(&mut *backend, world)?;
            self.init(&mut runner, &mut *backend)?;
            runner.passes(&mut *backend, &mut text)?;
            let loads = runner.worker.sum_loads()?;
            let of_layer = |(layer, loads): (usize, &[u32])| {
                let here = model.experts_of(layer).map_or(0, |experts| experts.count);
                loads[..here].iter().map(|count| u64::from(*count)).collect()
            };
            Ok(loads.choices.chunks(most).enumerate().map(of_layer).collect())
        })?;
        Ok(ranks.into_iter().next().unwrap_or_default())
    }

    /// Whether a progress thread has a core for itself.
    pub fn spare_cores(&self) -> bool {
        self.bench.paced.is_some() || 2 * self.plan.ranks() * self.threads <= machine::threads(0)
    }

    /// A rank without initial weights, and its tokens.
    pub(crate) fn rank(
        &self,
        backend: &mut dyn Backend,
        world: Box<dyn Communicator>,
    ) -> Result<(Runner, RandomText), TrainError> {
        let job = self.bench.job;
        let mut runner = Runner::new(backend, &self.described(), world)?;
        give_second_memory(&mut runner.worker, &job.offload_dir, Path::new("."))?;
        let sequences = self.micro_batches * self.shape.sequences;
        let first = self.plan.data_index(runner.worker.coord()) * sequences;
        let tokens = self.shape.tokens() * self.micro_batches * self.plan.data_ranks();
        Ok((runner, RandomText::new(job, tokens, self.shape, first)))
    }

    /// The communicators of all ranks.
    pub(crate) fn worlds(&self) -> Vec<Box<dyn Communicator>> {
        recorded_threads(self.plan.ranks(), self.bench.timeout).1
    }

    /// Seconds of `steps` steps, after `warmup` others.
    ///
    /// # Errors
    /// A step that fails.
    pub fn steps(&self, warmup: u64, steps: u64, link: Option<Link>) -> Result<Vec<f64>, MeasureError> {
        let slow = |world: Box<dyn Communicator>| match link {
            Some(Link { latency, bandwidth }) => {
                Delayed { latency: Duration::from_secs_f64(latency), bandwidth }.wrap(world)
            }
            None => world,
        };
        let worlds = self.worlds().into_iter().map(slow).collect();
        let ranks = on_threads(worlds, |world| {
            let mut backend = self.backend()?;
            let (mut runner, mut text) = self.rank(&mut *backend, world)?;
            self.init(&mut runner, &mut *backend)?;
            let mut seconds = Vec::new();
            for step in 0..warmup + steps {
                text.step = step;
                runner.worker.world().barrier("step").map_err(ParallelError::from)?;
                let begun = Instant::now();
                runner.step(&mut *backend, &mut text, step + 1, self.bench.job.optim.lr)?;
                seconds.push(begun.elapsed().as_secs_f64());
            }
            Ok(seconds)
        })?;
        // A step is over when the last rank is.
        let last = |step: usize| ranks.iter().map(|rank| rank[step]).fold(0.0, f64::max);
        Ok((warmup as usize..(warmup + steps) as usize).map(last).collect())
    }
}
