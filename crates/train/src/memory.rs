//! Memory is asked for before work: a dry run on the null backend says how much a run will hold.

use crate::TrainError;
use bessemer_arch::Model;
use bessemer_collectives::NullCommunicator;
use bessemer_model::{ActivationConfig, Decoder, Purpose, Shape};
use bessemer_optim::{OptimConfig, OptimParam, Optimizer, OptimizerChoice};
use bessemer_parallel::{Coord, FillChoice, Job, ParallelConfig, Plan, Worker};
use bessemer_recipe::Recipe;
use bessemer_tensor::MemoryUse;
use bessemer_tensor::null::NullBackend;
use bessemer_tokenizer::TokenizerKind;
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
        Err(TrainError::Memory { needed, available, largest: in_words(&self.buffers.classes) })
    }
}

/// Memory by class, the largest first.
fn in_words(classes: &[(&str, Bytes)]) -> String {
    let mut classes = classes.to_vec();
    classes.sort_by_key(|(_, bytes)| std::cmp::Reverse(*bytes));
    let name = |class| match class {
        "weights" => "parameters",
        "optimizer" => "optimizer state",
        other => other,
    };
    classes.iter().map(|(class, bytes)| format!("{} {bytes}", name(class))).collect::<Vec<_>>().join(", ")
}

/// Refuses a recipe whose `ranks` ranks cannot share the batch, or that needs more memory than `available`, before any data
/// is read and without listing the model's layers.
///
/// The memory is a lower bound: that of one rank with a micro-batch of the job, because the ranks together hold at least
/// one copy of everything. Layers are alike, so what one more layer takes is the difference between models of one and of
/// two layers. `beside` is what the process takes besides, by class. [`MemoryPlan::of_rank`] is the exact plan, made when the data are known.
///
/// # Errors
/// [`TrainError::Recipe`] with the numbers that do not fit; [`TrainError::Memory`] with the consumers by class.
pub fn refuse_what_cannot_fit(
    recipe: &Recipe,
    ranks: usize,
    beside: &[(&'static str, Bytes)],
    available: Bytes,
) -> Result<(), TrainError> {
    // A vocabulary that the tokenizer has yet to find: bytes reach the size asked for, characters may be few.
    let vocabulary = match recipe.tokenizer.kind {
        TokenizerKind::ByteBpe => recipe.tokenizer.vocab_size as usize,
        TokenizerKind::Char => 2,
    };
    // What depends on the data, such as a vocabulary that ranks cannot share, is found when they are known.
    let Ok(model) = recipe.model.resolve(Some(vocabulary)) else { return Ok(()) };
    let Ok(layout) = Plan::new(&recipe.parallel, ranks, &model, recipe.optim.optimizer) else {
        return Ok(());
    };
    let tokens = recipe.train.batch_tokens.max(recipe.train.seq_len);
    let batch = recipe.train.resolve(layout.data_ranks() as u64, Some(tokens)).map_err(TrainError::Recipe)?;
    let shape =
        Shape { sequences: batch.micro_batch as usize, seq: batch.seq_len as usize, purpose: Purpose::Train };
    let of_layers = |layers: usize| {
        let model = Model { layers, ..model.clone() };
        let plan = Plan::new(&ParallelConfig::default(), 1, &model, recipe.optim.optimizer)
            .map_err(|e| TrainError::Recipe(e.to_string()))?;
        let program = plan.program(1, 1, None).map_err(|e| TrainError::Recipe(e.to_string()))?;
        MemoryPlan::of_rank(&Job {
            model: &model,
            shape,
            activations: ActivationConfig {
                storage: recipe.train.storage,
                recompute: recipe.train.recompute,
            },
            types: recipe.train.types(),
            optim: &recipe.optim,
            z_loss: recipe.train.z_loss as f32,
            plan: &plan,
            program: &program,
        })
    };
    let (one, two) = (of_layers(1)?.buffers.classes, of_layers(2)?.buffers.classes);
    let of_class = |class: &str, classes: &[(&'static str, Bytes)]| {
        classes.iter().filter(|(name, _)| *name == class).map(|(_, bytes)| bytes.0).sum::<u64>()
    };
    let mut classes = beside.to_vec();
    for (class, _) in &two {
        if classes.iter().all(|(name, _)| name != class) {
            let (first, second) = (of_class(class, &one), of_class(class, &two));
            let more = second.saturating_sub(first).saturating_mul(model.layers as u64 - 1);
            classes.push((class, Bytes(first.saturating_add(more))));
        }
    }
    let needed = Bytes(classes.iter().fold(0, |sum: u64, (_, bytes)| sum.saturating_add(bytes.0)));
    match needed <= available {
        true => Ok(()),
        false => Err(TrainError::Memory { needed, available, largest: in_words(&classes) }),
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

    /// A recipe of the small Llama with these further settings.
    fn recipe(sets: &[&str]) -> Recipe {
        let text =
            "[model]\narchitecture = 'llama'\n[train]\nsteps = 5\nbatch_tokens = 2048\nseq_len = 128\n";
        let sets: Vec<String> = sets.iter().map(|s| s.to_string()).collect();
        bessemer_recipe::parse_recipe("r.toml", text, &sets).unwrap().value
    }

    #[test]
    fn the_bound_before_any_data_is_the_plan_of_one_rank() {
        for sets in [&["model.layers=1"][..], &["model.layers=6"], &["model.layers=5", "train.weights=bf16"]]
        {
            let recipe = recipe(sets);
            let model = recipe.model.resolve(Some(4096)).unwrap();
            let layout = Plan::new(&recipe.parallel, 1, &model, recipe.optim.optimizer).unwrap();
            let plan = MemoryPlan::of_rank(&Job {
                model: &model,
                shape: Shape { sequences: 16, seq: 128, purpose: Purpose::Train },
                activations: ActivationConfig {
                    storage: recipe.train.storage,
                    recompute: recipe.train.recompute,
                },
                types: recipe.train.types(),
                optim: &recipe.optim,
                z_loss: 0.0,
                plan: &layout,
                program: &layout.program(1, 1, None).unwrap(),
            })
            .unwrap();
            let exact = plan.buffers.total();
            refuse_what_cannot_fit(&recipe, 1, &[], exact).unwrap();
            let e =
                refuse_what_cannot_fit(&recipe, 1, &[("arenas", Bytes(1))], exact).unwrap_err().to_string();
            for class in ["parameters", "gradients", "optimizer state", "activations", "arenas"] {
                assert!(e.contains(class), "{class} is missing in {e}");
            }
        }
    }

    #[test]
    fn huge_recipes_are_refused_without_being_listed() {
        let begun = std::time::Instant::now();
        for sets in [
            &["model.layers=10000"][..],
            &["model.context=16777216", "train.seq_len=16777216", "train.batch_tokens=16777216"],
            &["model.layers=10000", "model.width=8192", "model.heads=64"],
        ] {
            let e = refuse_what_cannot_fit(&recipe(sets), 1, &[], Bytes(1 << 32)).unwrap_err().to_string();
            assert!(e.contains("4.00 GiB are available") && e.contains("activations"), "{e}");
        }
        let e = refuse_what_cannot_fit(&recipe(&[]), 64, &[], Bytes(1 << 40)).unwrap_err().to_string();
        assert!(e.contains("64 data-parallel ranks") && e.contains("8192"), "{e}");
        assert!(begun.elapsed().as_secs() < 20, "it listed the layers");
    }

    #[test]
    fn a_rank_of_a_job_is_planned_with_its_part() {
        use bessemer_parallel::Stage;
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
