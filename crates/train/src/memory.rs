//! Memory is asked for before work: a dry run on the null backend says how much a run will hold.

use crate::TrainError;
use bessemer_arch::Model;
use bessemer_collectives::NullCommunicator;
use bessemer_model::{ActivationConfig, Decoder, Purpose, Shape};
use bessemer_optim::{OptimConfig, OptimParam, Optimizer, OptimizerChoice};
use bessemer_parallel::{Coord, FillChoice, Job, Plan, Worker};
use bessemer_tensor::MemoryUse;
use bessemer_tensor::null::NullBackend;
use bessemer_units::Bytes;

/// What a run will hold, by class.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MemoryPlan {
    /// Buffers of the run; scratch memory of operators is not known to the null backend and comes on top.
    pub buffers: MemoryUse,
}

impl MemoryPlan {
    /// Makes every buffer of a training run on the null backend.
    pub fn new(
        model: &Model,
        shape: Shape,
        activations: ActivationConfig,
        optim: &OptimConfig,
    ) -> Result<MemoryPlan, TrainError> {
        let mut null = NullBackend::new();
        let decoder = Decoder::with_activations(&mut null, model, shape, activations)?;
        if shape.purpose == Purpose::Train {
            Optimizer::new(&mut null, &optim_params(&decoder), optim)?;
        }
        Ok(MemoryPlan { buffers: bessemer_tensor::Backend::memory(&null) })
    }

    /// Makes every buffer of one rank of a job on the null backend, with peers that are not there. Ranks differ by a few
    /// elements, so this is the first, but where whole matrices have owners: there it is the one that holds most.
    ///
    /// # Errors
    /// A job that cannot be.
    pub fn of_rank(job: &Job<'_>) -> Result<MemoryPlan, TrainError> {
        let even = matches!(
            job.optim.optimizer,
            OptimizerChoice::AdamW | OptimizerChoice::Sgd | OptimizerChoice::Lion
        );
        let shards = if even { 1 } else { job.plan.shard() };
        let first = MemoryPlan::of(job, 0)?;
        let at = |pipeline: usize, shard: usize| {
            let coord = Coord { shard, ..job.plan.data_coord(0, pipeline) };
            job.plan.rank(coord)
        };
        let ranks = (0..job.plan.pipeline()).flat_map(|p| (0..shards).map(move |s| at(p, s)));
        ranks.skip(1).try_fold(first, |most, rank| {
            let other = MemoryPlan::of(job, rank)?;
            Ok(if other.buffers.total() > most.buffers.total() { other } else { most })
        })
    }

    fn of(job: &Job<'_>, rank: usize) -> Result<MemoryPlan, TrainError> {
        let mut null = NullBackend::new();
        // Collectives at once or beside the computation: the memory is the same.
        let plan = Plan { overlap: false, ..job.plan.clone() };
        let world = Box::new(NullCommunicator::new("world", rank, plan.ranks()));
        let worker = Worker::new(&mut null, &Job { plan: &plan, ..*job }, world)?;
        let mut planned = MemoryPlan { buffers: bessemer_tensor::Backend::memory(&null) };
        planned.add("values under way", Bytes(worker.staging_bytes()));
        if job.plan.pipe.fill == FillChoice::Checkpoint {
            planned.add("copies for checkpoints", Bytes(worker.snapshot_bytes(job.optim)?));
        }
        Ok(planned)
    }

    /// Counts memory in that the null backend does not see.
    pub fn add(&mut self, class: &'static str, bytes: Bytes) {
        if bytes > Bytes(0) {
            self.buffers.classes.push((class, bytes));
            self.buffers.classes.sort_by_key(|c| std::cmp::Reverse(c.1));
        }
    }

    /// Errors, naming the largest consumers, if the plan does not fit into `available`.
    pub fn fits(&self, available: Bytes) -> Result<(), TrainError> {
        let needed = self.buffers.total();
        if needed <= available {
            return Ok(());
        }
        let largest =
            self.buffers.classes.iter().map(|(class, bytes)| format!("{class} {bytes}")).collect::<Vec<_>>();
        Err(TrainError::Memory { needed, available, largest: largest.join(", ") })
    }
}

/// The optimizer's view of a decoder's parameters.
pub(crate) fn optim_params(decoder: &Decoder) -> Vec<OptimParam> {
    decoder
        .params()
        .iter()
        .map(|p| {
            let grad = p.grad.expect("a decoder made to train holds gradients");
            OptimParam::of(decoder.model(), &p.spec, p.value, grad)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use bessemer_units::ParamStorage;

    #[test]
    fn what_does_not_fit_is_refused_with_its_largest_consumers() {
        let model = bessemer_arch::named("gpt2-124m").expect("a listed name");
        let shape = Shape { sequences: 4, seq: 256, purpose: Purpose::Train };
        let plan =
            MemoryPlan::new(&model, shape, ActivationConfig::default(), &OptimConfig::default()).unwrap();
        let p = 124_439_808 * 4;
        let class = |name| plan.buffers.classes.iter().find(|c| c.0 == name).map(|c| c.1.0);
        assert_eq!(class("weights"), Some(p));
        assert_eq!(class("gradients"), Some(p));
        plan.fits(Bytes(1 << 40)).unwrap();
        let e = plan.fits(Bytes(1 << 30)).unwrap_err().to_string();
        assert!(e.contains("optimizer") && e.contains("1.00 GiB"), "{e}");
    }

    #[test]
    fn a_rank_of_a_job_is_planned_with_its_part() {
        use bessemer_parallel::{ParallelConfig, Stage};
        let model = bessemer_arch::named("gpt2-124m").expect("a listed name");
        let optim = OptimConfig::default();
        let held = |stage, ranks, class: &str| {
            let parallel = ParallelConfig { stage, ..ParallelConfig::default() };
            let layout = Plan::new(&parallel, ranks, &model, optim.optimizer).unwrap();
            let job = Job {
                model: &model,
                shape: Shape { sequences: 1, seq: 64, purpose: Purpose::Train },
                activations: ActivationConfig::default(),
                types: ParamStorage::default(),
                optim: &optim,
                z_loss: 0.0,
                plan: &layout,
                program: &layout.program(1, 1, None).unwrap(),
            };
            let plan = MemoryPlan::of_rank(&job).unwrap();
            plan.buffers.classes.iter().filter(|c| c.0 == class).map(|c| c.1.0).sum::<u64>()
        };
        let p = 124_439_808 * 4;
        assert_eq!(held(Stage::Ddp, 1, "weights"), p);
        assert_eq!(held(Stage::Ddp, 1, "values under way"), 0);
        assert_eq!((held(Stage::Zero1, 4, "weights"), held(Stage::Zero1, 4, "gradients")), (p, p));
        assert_eq!(held(Stage::Zero3, 4, "weights"), p / 4);
        assert!(
            held(Stage::Zero3, 4, "optimizer") < p / 2 + 4096
                && held(Stage::Zero3, 4, "values under way") > 0
        );
    }
}
