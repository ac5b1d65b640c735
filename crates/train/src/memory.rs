//! Refuses recipes that cannot run or cannot fit, before any data is read.

use crate::TrainError;
use crate::preferences;
use crate::trainer::{check_layout, step_program};
use bessemer_arch::{ExpertLayers, Experts, LayerRule, Model};
use bessemer_checkpoint::{AsyncChoice, MemoryKeep, MemoryOverflow};
use bessemer_collectives::NullCommunicator;
use bessemer_filling::FillPlan;
use bessemer_memory_checkpoint::{NOTES_ROOM, SlotKey};
use bessemer_model::{BALANCE_LOSS, DISTILLATION_LOSS, ROUTER_Z_LOSS, Z_LOSS};
use bessemer_parallel::{
    FillSupplier, Job, MemoryPlan, MemoryShortage, ParallelConfig, ParallelError, Pipeline, Plan, Worker,
};
use bessemer_recipe::{BatchPlan, Recipe, TrainConfig};
use bessemer_runtime::{ActivationConfig, Purpose, Shape, WeighedLoss};
use bessemer_tensor::Backend;
use bessemer_tensor::null::NullBackend;
use bessemer_tokenizer::TokenizerKind;
use bessemer_units::{Bytes, RecomputePlan, RecomputePolicy};
use std::collections::BTreeMap;
use std::ops::Range;

/// Memory of one class.
#[derive(Debug, Default, Clone, Copy)]
struct ClassEstimate {
    /// Bytes of everything but the layers.
    besides: u64,
    /// Bytes of all layers.
    layers: u64,
}

impl ClassEstimate {
    fn total(&self) -> u64 {
        self.besides.saturating_add(self.layers)
    }

    /// Adds further layers.
    fn add(&mut self, other: ClassEstimate) {
        self.besides = self.besides.max(other.besides);
        self.layers = self.layers.saturating_add(other.layers);
    }
}

/// Class of the values that passes keep and the scratch that they share.
const ACTIVATIONS: &str = "activations";

/// Layout of a recipe's ranks.
///
/// # Errors
/// Degrees that do not fit the ranks or the model, work in bubbles that the layout cannot have, or a teacher that the layout does not support.
pub fn layout(recipe: &Recipe, ranks: usize, model: &Model) -> Result<Plan, ParallelError> {
    let mut plan = Plan::new(&recipe.parallel, ranks, model, recipe.optim.optimizer)?;
    plan.train_only(model, &recipe.train.trained)?;
    bessemer_filling::check(&plan, &recipe.parallel.fill, recipe.optim.optimizer)?;
    check_layout(recipe, &plan)?;
    preferences::check_layout(recipe, &plan)?;
    Ok(plan)
}

/// Storage of a run's activations, and the lengths that it is planned for.
pub fn activations(train: &TrainConfig) -> ActivationConfig {
    ActivationConfig {
        storage: train.storage,
        recompute: train.recompute_plan(),
        lengths: train.shorter_lengths().into_iter().map(|length| length as usize).collect(),
        compression: train.compression_plan(),
        offload: train.offload_plan(),
        // Holds where a step has one micro-batch.
        in_gradients: true,
        ..ActivationConfig::default()
    }
}

/// Auxiliary losses of a run, in the order of [`LossSum::auxiliary`](bessemer_runtime::LossSum::auxiliary).
pub fn losses(recipe: &Recipe) -> Vec<WeighedLoss> {
    let experts = recipe.model.expert_training();
    let teacher = &recipe.train.teacher;
    let distillation = if teacher.is_on() { teacher.weight } else { 0.0 };
    let all = [
        WeighedLoss::new(Z_LOSS, recipe.train.z_loss),
        WeighedLoss::new(BALANCE_LOSS, experts.balance),
        WeighedLoss::new(ROUTER_Z_LOSS, experts.z_loss),
        WeighedLoss { until: teacher.until(), ..WeighedLoss::new(DISTILLATION_LOSS, distillation) },
    ];
    all.into_iter().filter(|loss| loss.weight > 0.0).collect()
}

/// Layers of a stage that represent all of them where only their kinds matter.
const FEW_LAYERS: usize = 2;

/// Refuses a recipe that `ranks` ranks cannot run, before any data is read and without listing the model's layers: the programs of the
/// first, of an inner and of the last pipeline rank are made on a backend that holds nothing, with a few layers of each stage. What
/// depends on the data, such as the number of micro-batches that documents make, is found when they are known.
///
/// # Errors
/// [`TrainError::Recipe`]: the settings that conflict, and a remedy.
pub fn refuse_what_cannot_run(recipe: &Recipe, ranks: usize) -> Result<(), TrainError> {
    let wrong = |e: ParallelError| TrainError::Recipe(e.to_string());
    // A character vocabulary may be smaller: whether its rows suffice is found when it is known.
    let Ok(mut model) = recipe.model.resolve(Some(recipe.tokenizer.vocab_size as usize)) else {
        return Ok(());
    };
    model.document_end = recipe.model.document_mask.then_some(0);
    let plan = layout(recipe, ranks, &model).map_err(wrong)?;
    let batch = batch(recipe, &plan)?;
    let program = match step_program(recipe, &plan, &batch) {
        Err(_) if recipe.train.has_documents() => return Ok(()),
        program => program?,
    };
    let spans = plan.spans(&model, program.stages).map_err(wrong)?;
    let mut activations = activations(&recipe.train);
    let (model, plan) = match plan.annotations.0.is_empty() && model.expert_counts.is_empty() {
        // Annotations name layers, and lists of experts have a number for each.
        false => (model, plan),
        true => {
            let layers: Vec<usize> =
                spans.iter().map(|span| span.layers.len().clamp(1, FEW_LAYERS)).collect();
            // Two of them are of both kinds.
            let expert_layers = match model.layer_kinds().len() > 1 {
                true => ExpertLayers::Rule(LayerRule::Alternate),
                false => model.expert_layers.clone(),
            };
            let few = Model { layers: layers.iter().sum(), expert_layers, ..model };
            let pipe = Pipeline { layers, ..plan.pipe.clone() };
            (few, Plan { pipe, ..plan })
        }
    };
    // The budget is that of all layers.
    activations.recompute.activation_memory = activations.recompute.budget().map(|_| Bytes(u64::MAX));
    let shape = shape(&batch);
    let (optim, types, losses) = (&recipe.optim, recipe.train.types(), &*losses(recipe));
    let (plan, program) = (&plan, &program);
    let job = Job { model: &model, shape, activations, types, optim, losses, plan, program };
    let fill = FillPlan::new(&job, &recipe.parallel.fill, 0).map_err(wrong)?;
    let fill = fill.as_ref().map(|fill| fill as &dyn FillSupplier);
    let mut pipeline_ranks = vec![0, 1.min(plan.pipeline() - 1), plan.pipeline() - 1];
    pipeline_ranks.dedup();
    for pipeline_rank in pipeline_ranks {
        let rank = plan.rank(plan.data_coord(0, pipeline_rank));
        let world = Box::new(NullCommunicator::new("world", rank, plan.ranks()));
        Worker::dry(&mut NullBackend::new(), &job, fill, world).map_err(wrong)?;
    }
    Ok(())
}

/// The batch before the data are known.
fn batch(recipe: &Recipe, layout: &Plan) -> Result<BatchPlan, TrainError> {
    let tokens = recipe.train.batch_tokens.max(recipe.train.seq_len);
    recipe.batch(layout.data_ranks() as u64, Some(tokens)).map_err(TrainError::Recipe)
}

/// A micro-batch of the longest sequences.
fn shape(batch: &BatchPlan) -> Shape {
    Shape { sequences: batch.micro_batch as usize, seq: batch.seq_len as usize, purpose: Purpose::Train }
}

/// Refuses a recipe whose `ranks` ranks cannot partition the batch, or that needs more memory than `available`, before any data
/// is read and without listing the model's layers.
///
/// The memory is a lower bound: that of one rank with a micro-batch of the job, because the ranks together hold at least
/// one copy of everything. Layers of one policy of recomputation and one kind of feed-forward block are alike, so the memory of one more
/// of them is the difference between models of two and of three layers: from two layers on, layers may alternate in the same memory.
/// `beside` is the additional memory of the process, by class. [`MemoryPlan::of_rank`] is the exact plan, made when the data are known.
///
/// # Errors
/// [`TrainError::Recipe`] with the numbers that do not fit; [`TrainError::Memory`] with the consumers by class.
pub fn refuse_what_cannot_fit(
    recipe: &Recipe,
    ranks: usize,
    beside: &[(&'static str, Bytes)],
    available: Bytes,
) -> Result<(), TrainError> {
    // A vocabulary that the tokenizer has yet to find: bytes reach the requested size, characters may be few.
    let vocabulary = match recipe.tokenizer.kind {
        TokenizerKind::ByteBpe => recipe.tokenizer.vocab_size as usize,
        TokenizerKind::Char => 2,
    };
    // Errors that depend on the data, such as a vocabulary that ranks cannot partition, are found when the data are known.
    let Ok(model) = recipe.model.resolve(Some(vocabulary)) else { return Ok(()) };
    let Ok(layout) = layout(recipe, ranks, &model) else { return Ok(()) };
    let batch = batch(recipe, &layout)?;
    let shape = shape(&batch);
    let of_layers = |layers: usize, experts: Option<Experts>, policy: &RecomputePolicy| {
        let model = Model {
            layers,
            experts,
            expert_layers: ExpertLayers::default(),
            expert_counts: Vec::new(),
            ..model.clone()
        };
        let plan = Plan::new(&ParallelConfig::default(), 1, &model, recipe.optim.optimizer)
            .map_err(|e| TrainError::Recipe(e.to_string()))?;
        let program = plan.program(1, 1, None).map_err(|e| TrainError::Recipe(e.to_string()))?;
        let recompute = RecomputePlan { default: policy.clone(), ..RecomputePlan::default() };
        let job = Job {
            model: &model,
            shape,
            activations: ActivationConfig {
                recompute,
                lengths: Vec::new(),
                // Offloads all layers, even if some stay: a lower bound.
                offload: recipe.train.offload.into(),
                in_gradients: batch.accumulation == 1,
                ..activations(&recipe.train)
            },
            types: recipe.train.types(),
            optim: &recipe.optim,
            losses: &losses(recipe),
            plan: &plan,
            program: &program,
        };
        Ok::<_, TrainError>(MemoryPlan::of_rank(&job, None, None)?)
    };
    let recompute = recipe.train.recompute_plan();
    let stages = match stages(&layout, &model, batch.accumulation as usize) {
        Ok(stages) => stages,
        // A layout without a schedule is refused where the schedule is made.
        Err(_) if recompute.layers.count_stages() => return Ok(()),
        Err(_) => std::iter::once(0..model.layers).collect(),
    };
    let mut estimate: BTreeMap<&'static str, ClassEstimate> = BTreeMap::new();
    for (policy, layers) in recompute.counts(&stages) {
        let mut activations: Option<ClassEstimate> = None;
        for kind in model.layer_kinds() {
            let of = |layers| of_layers(layers, model.experts_of(kind), policy);
            let [one, two, three] = [of(1)?, of(2)?, of(3)?];
            for (class, _) in &two.buffers.classes {
                let layer = three.class(class).0.saturating_sub(two.class(class).0);
                let besides = one.class(class).0.saturating_sub(layer);
                // Which of the policy's layers have experts is left open, and activations of one kind may be in memory of another's
                // gradients.
                let count = match *class {
                    ACTIVATIONS => layers,
                    _ => layers.saturating_mul(model.layers_like(kind)) / model.layers,
                };
                let found = ClassEstimate { besides, layers: layer.saturating_mul(count as u64) };
                match *class {
                    ACTIVATIONS => {
                        activations = activations.into_iter().chain([found]).min_by_key(ClassEstimate::total)
                    }
                    class => estimate.entry(class).or_default().add(found),
                }
            }
        }
        activations.into_iter().for_each(|found| estimate.entry(ACTIVATIONS).or_default().add(found));
    }
    let mut classes = beside.to_vec();
    for (class, bytes) in estimate {
        if classes.iter().all(|(name, _)| *name != class) {
            classes.push((class, Bytes(bytes.total())));
        }
    }
    let needed = Bytes(classes.iter().fold(0, |sum: u64, (_, bytes)| sum.saturating_add(bytes.0)));
    match needed <= available {
        true => Ok(()),
        false => {
            let shortage = MemoryShortage::new(needed, available, &classes);
            Err(shortage.of_experts(&model, &layout, shape, recipe.train.storage).into())
        }
    }
}

/// Plans by a dry run the memory of the rank of a job that needs most, for batches of whole sequences.
///
/// # Errors
/// A layout that does not fit the ranks, the model or the batch.
pub fn planned_memory(recipe: &Recipe, ranks: usize, model: &Model) -> Result<MemoryPlan, TrainError> {
    planned_memory_on(recipe, ranks, model, None)
}

/// Plans as [`planned_memory`] does, with the workspace that operators take on a device.
///
/// # Errors
/// Same errors as [`planned_memory`].
pub fn planned_memory_on(
    recipe: &Recipe,
    ranks: usize,
    model: &Model,
    device: Option<&mut dyn Backend>,
) -> Result<MemoryPlan, TrainError> {
    with_job(recipe, ranks, model, |job| Ok(MemoryPlan::of_rank(job, None, device)?))
}

/// Hands on the job that a recipe means over `ranks` ranks, with batches of whole sequences.
pub(crate) fn with_job<T>(
    recipe: &Recipe,
    ranks: usize,
    model: &Model,
    use_job: impl FnOnce(&Job<'_>) -> Result<T, TrainError>,
) -> Result<T, TrainError> {
    let plan = &layout(recipe, ranks, model)?;
    let batch = batch(recipe, plan)?;
    let program = &step_program(recipe, plan, &batch)?;
    let (optim, types, losses) = (&recipe.optim, recipe.train.types(), &*losses(recipe));
    let activations = activations(&recipe.train);
    use_job(&Job { model, shape: shape(&batch), activations, types, optim, losses, plan, program })
}

/// Class of copies of the state that are written while training continues (`save.async`).
pub const COPIES: &str = "copies for checkpoints";
/// Class of slots in shared memory (`save.memory`).
const SLOTS: &str = "copies in shared memory";

/// Host memory that copies of the state take on each of `ranks` ranks, by class, if they fit: two for checkpoints that are written
/// concurrently with training, and two slots of `save.memory` for the rank itself and for each rank whose copies it keeps, or the most that
/// they may take if the rest is stored elsewhere.
pub fn copies_on_host(recipe: &Recipe, ranks: usize, plan: &MemoryPlan) -> Vec<(&'static str, Bytes)> {
    let (save, mut classes) = (&recipe.save, Vec::new());
    if save.asynchronous != AsyncChoice::Off && save.is_on_the_way() {
        classes.push((COPIES, Bytes(2 * plan.copy.0)));
    }
    let others = match save.memory.keep {
        MemoryKeep::None => return classes,
        MemoryKeep::Peers if ranks > 1 => save.memory.peer_copies(),
        MemoryKeep::Peers | MemoryKeep::Own => 0,
    };
    let slots = 2 * (1 + others) * (SlotKey::overhead(NOTES_ROOM) + plan.copy.0);
    let most = match (save.memory.overflow, save.memory.limit_mib) {
        (MemoryOverflow::None, _) | (_, 0) => u64::MAX,
        (_, mib) => mib << 20,
    };
    classes.push((SLOTS, Bytes(slots.min(most))));
    classes
}

/// The layers of each pipeline stage.
fn stages(layout: &Plan, model: &Model, micro_batches: usize) -> Result<Vec<Range<usize>>, ParallelError> {
    let stages = layout.program(micro_batches, 1, None)?.stages;
    Ok(layout.spans(model, stages)?.into_iter().map(|span| span.layers).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A recipe of the small Llama with these further settings.
    fn recipe(sets: &[&str]) -> Recipe {
        let text =
            "[model]\narchitecture = 'llama'\n[train]\nsteps = 5\nbatch_tokens = 2048\nseq_len = 128\n";
        let sets: Vec<String> = sets.iter().map(|s| s.to_string()).collect();
        bessemer_recipe::parse_recipe("r.toml", text, &sets).unwrap().value
    }

    /// The model, and all bytes that one rank will hold.
    fn planned(recipe: &Recipe) -> (Model, Bytes) {
        let model = recipe.model.resolve(Some(4096)).unwrap();
        let layout = Plan::new(&recipe.parallel, 1, &model, recipe.optim.optimizer).unwrap();
        let job = Job {
            model: &model,
            shape: Shape { sequences: 16, seq: 128, purpose: Purpose::Train },
            activations: activations(&recipe.train),
            types: recipe.train.types(),
            optim: &recipe.optim,
            losses: &[],
            plan: &layout,
            program: &layout.program(1, 1, None).unwrap(),
        };
        let exact = MemoryPlan::of_rank(&job, None, None).unwrap().buffers.total();
        (model, exact)
    }

    #[test]
    fn the_bound_before_any_data_is_the_plan_of_one_rank() {
        for sets in [
            &["model.layers=1"][..],
            &["model.layers=6"],
            &["model.layers=5", "train.weights=bf16"],
            &["model.layers=5", "train.recompute=full"],
            &["model.layers=5", "train.recompute_layers.'0-1'=full", "train.recompute_layers.3=none"],
            &["model.layers=5", "train.recompute_layers.'stage 0-1'=full"],
        ] {
            let recipe = recipe(sets);
            let (_, exact) = planned(&recipe);
            refuse_what_cannot_fit(&recipe, 1, &[], exact).unwrap();
            let e =
                refuse_what_cannot_fit(&recipe, 1, &[("arenas", Bytes(1))], exact).unwrap_err().to_string();
            for class in ["parameters", "gradients", "optimizer state", "activations", "arenas"] {
                assert!(e.contains(class), "{class} is missing in {e}");
            }
        }
    }

    /// All layers offload in the bound, where in the run some stay: a run that fits is never refused.
    #[test]
    fn the_bound_before_any_data_is_at_most_the_plan_of_offloaded_layers() {
        for sets in [&["train.offload=disk"][..], &["train.offload=disk", "train.offload_layers=2"]] {
            let recipe = recipe(&[&["model.layers=6"], sets].concat());
            let (_, exact) = planned(&recipe);
            refuse_what_cannot_fit(&recipe, 1, &[], exact).unwrap();
            refuse_what_cannot_fit(&recipe, 1, &[], Bytes(exact.0 / 2)).unwrap_err();
        }
    }

    /// Scratch memory counts the kind of layer that needs most, and which layers a policy has is left open.
    #[test]
    fn the_bound_before_any_data_is_at_most_the_plan_of_layers_of_two_kinds() {
        for sets in [
            &["model.experts.layers=alternate"][..],
            &["model.experts.count=[2,2,4,4,4,8,8]"],
            &["model.experts.layers=[0,1,5]", "model.ffn_width=96", "train.recompute_layers.'0-1'=full"],
        ] {
            let recipe = recipe(&[&["model.layers=7", "model.experts.width=512"], sets].concat());
            let (_, exact) = planned(&recipe);
            refuse_what_cannot_fit(&recipe, 1, &[], exact).unwrap();
            refuse_what_cannot_fit(&recipe, 1, &[], Bytes(exact.0 * 2 / 3)).unwrap_err();
        }
    }

    /// Layers whose input is compressed alternate in the memory of the residual stream: two stretches for all layers, of which the bound counts one.
    #[test]
    fn the_bound_before_any_data_is_at_most_the_plan_of_compressed_layers() {
        for form in ["bf16", "int8"] {
            let recipe = recipe(&["model.layers=6", &format!("train.compress={form}")]);
            let (model, exact) = planned(&recipe);
            refuse_what_cannot_fit(&recipe, 1, &[], exact).unwrap();
            let turn = 4 * 16 * 128 * model.width as u64;
            refuse_what_cannot_fit(&recipe, 1, &[], Bytes(exact.0 - turn - 1)).unwrap_err();
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
}
