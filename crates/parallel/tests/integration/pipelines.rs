//! Every synchronous schedule trains as one rank does: same losses, norms and parameters, on ranks that are threads.

use bessemer_arch::Model;
use bessemer_collectives::Communicator;
use bessemer_fixture::{SEQ, Text, on_ranks, params};
use bessemer_optim::OptimConfig;
use bessemer_parallel::{BatchSource, Job, ParallelConfig, ParallelError, ParamGroups, Plan, Stage, Worker};
use bessemer_runtime::{ActivationConfig, Purpose, Shape, WeighedLoss};
use bessemer_schedule::Kind;
use bessemer_units::ParamStorage;
use std::collections::BTreeMap;

pub(crate) const STEPS: u64 = 3;

/// Eight layers, tied tables and dropout, or neither.
pub(crate) fn model(tied: bool) -> Model {
    bessemer_fixture::model(tied, 8, 16)
}

/// Results of a job: loss and norm of each step, the parameters after the last.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Done {
    pub(crate) losses: Vec<f64>,
    pub(crate) norms: Vec<f64>,
    /// Means of the auxiliary losses of each step.
    pub(crate) auxiliary: Vec<[f64; LOSSES.len()]>,
    pub(crate) params: BTreeMap<String, Vec<f32>>,
    /// Loss of an evaluated batch at the end, on the rank that has it.
    pub(crate) evaluated: Option<f64>,
}

#[derive(Debug, Clone)]
pub(crate) struct Layout {
    pub(crate) config: ParallelConfig,
    pub(crate) ranks: usize,
    pub(crate) micro_batches: usize,
    pub(crate) groups: ParamGroups,
    pub(crate) activations: ActivationConfig,
}

/// The losses other than the z-loss exist in the jobs of [`crate::auxiliary`] and of [`crate::experts`] alone.
const LOSSES: [WeighedLoss; 4] = [
    WeighedLoss::z_loss(1e-3),
    WeighedLoss::new(crate::auxiliary::NAME, 0.5),
    WeighedLoss::new(bessemer_model::BALANCE_LOSS, 0.01),
    WeighedLoss::new(bessemer_model::ROUTER_Z_LOSS, 1e-3),
];

fn rank(
    model: &Model,
    layout: &Layout,
    all: u64,
    world: Box<dyn Communicator>,
) -> Result<Done, ParallelError> {
    let optim = OptimConfig { lr: 1e-2, ..OptimConfig::default() };
    let mut plan = Plan::new(&layout.config, layout.ranks, model, optim.optimizer)?;
    if !layout.groups.is_single() {
        plan.groups = layout.groups.clone();
    }
    let per_rank = all / plan.data_ranks() as u64;
    let sequences = per_rank / layout.micro_batches as u64;
    let program = plan.program(layout.micro_batches, 1, None)?;
    let shape = Shape { sequences: sequences as usize, seq: SEQ, purpose: Purpose::Train };
    let job = Job {
        model,
        shape,
        activations: layout.activations.clone(),
        types: ParamStorage::default(),
        optim: &optim,
        losses: &LOSSES,
        plan: &plan,
        program: &program,
    };
    let mut cpu = crate::instruction_set::cpu(1);
    let mut worker = Worker::new(&mut cpu, &job, world)?;
    worker.init(&mut cpu, 3)?;
    let first = plan.data_index(worker.coord()) as u64 * per_rank;
    let mut done = Done {
        losses: Vec::new(),
        norms: Vec::new(),
        auxiliary: Vec::new(),
        params: BTreeMap::new(),
        evaluated: None,
    };
    let mut text = Text { first, sequences, all, ..Text::default() };
    for step in 0..STEPS {
        text.step = step;
        let sum = worker.gradients(&mut cpu, &mut text)?;
        let sum = worker.sum_over_data(sum)?;
        done.losses.push(sum.mean());
        done.auxiliary.push(std::array::from_fn(|number| sum.mean_auxiliary(number)));
        let norm = worker.grad_norm(&mut cpu)?;
        done.norms.push(norm);
        worker.apply(&mut cpu, step + 1, optim.lr, norm)?;
        worker.sum_loads()?;
        worker.set_routing_state(&mut cpu, 0.05)?;
    }
    text.first = 0;
    let (batch, _) = text.micro_batch(0)?;
    let loss = worker.loss(&mut cpu, &batch, None)?;
    if worker.has_losses(worker.coord().pipeline) {
        done.evaluated = Some(loss.mean());
    }
    done.params = params(&mut cpu, &mut worker)?;
    Ok(done)
}

pub(crate) fn train(model: &Model, layout: &Layout, all: u64) -> Vec<Done> {
    let results = on_ranks(layout.ranks, |world| rank(model, layout, all, world));
    // The first to fail is why the others do.
    let errors: Vec<String> =
        results.iter().filter_map(|result| Some(result.as_ref().err()?.to_string())).collect();
    assert!(errors.is_empty(), "{layout:?}: {errors:#?}");
    results.into_iter().map(Result::unwrap).collect()
}

pub(crate) fn single() -> Layout {
    let (groups, activations) = (ParamGroups::default(), ActivationConfig::default());
    Layout { config: ParallelConfig::default(), ranks: 1, micro_batches: 1, groups, activations }
}

/// Holds a layout against one rank: losses within 1e-5, as the schedules promise, parameters within what sums in another
/// order make of them in three steps.
pub(crate) fn check(model: &Model, layout: &Layout, all: u64) {
    let (groups, passes) = (layout.groups.clone(), layout.activations.passes.clone());
    let activations = ActivationConfig { passes, ..ActivationConfig::default() };
    let reference = &train(model, &Layout { groups, activations, ..single() }, all)[0];
    let ranks = train(model, layout, all);
    let found = &ranks[0];
    for other in &ranks[1..] {
        let told = |of: &Done| (of.losses.clone(), of.norms.clone(), of.auxiliary.clone());
        assert_eq!(told(other), told(found), "{layout:?}");
        assert!(other.params == found.params, "{layout:?}: ranks disagree about parameters");
    }
    for (a, b) in found.losses.iter().zip(&reference.losses) {
        assert!(
            ((a - b) / b).abs() < 1e-5,
            "{layout:?}: losses {:?}, one rank {:?}",
            found.losses,
            reference.losses
        );
    }
    for (a, b) in found.auxiliary.iter().flatten().zip(reference.auxiliary.iter().flatten()) {
        assert!(
            (a - b).abs() <= 1e-5 * b,
            "{layout:?}: auxiliary losses {:?}, one rank {:?}",
            found.auxiliary,
            reference.auxiliary
        );
    }
    for (a, b) in found.norms.iter().zip(&reference.norms) {
        assert!(
            ((a - b) / b).abs() < 1e-4,
            "{layout:?}: norms {:?}, one rank {:?}",
            found.norms,
            reference.norms
        );
    }
    for (name, values) in &found.params {
        let apart =
            values.iter().zip(&reference.params[name]).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        // A step of AdamW moves an element by about the learning rate, 1e-2.
        assert!(apart < 2e-3, "{layout:?}: {name} is {apart} apart");
    }
    let evaluated: Vec<f64> = ranks.iter().filter_map(|r| r.evaluated).collect();
    assert!(!evaluated.is_empty());
    if layout.config.tensor == 1 {
        let sequences = all as usize / layout.micro_batches;
        assert!(sequences > 0 && evaluated.iter().all(|e| e.is_finite()));
    }
}

const SYNCHRONOUS: [Kind; 10] = [
    Kind::GPipe,
    Kind::OneFOneB,
    Kind::Interleaved,
    Kind::BreadthFirst,
    Kind::Chimera,
    Kind::ZbH1,
    Kind::ZbH2,
    Kind::ZbV,
    Kind::DualPipe,
    Kind::DualPipeV,
];

pub(crate) fn pipelined(kind: Kind, ranks: usize, micro_batches: usize) -> Layout {
    let config =
        ParallelConfig { pipeline: ranks as u64, schedule: kind.name().into(), ..ParallelConfig::default() };
    Layout { config, ranks, micro_batches, ..single() }
}

impl Layout {
    /// Multiplies the ranks for data by `copies`; their optimizer state is whole or cut.
    pub(crate) fn with_data(mut self, copies: usize, stage: Stage, shard: u64) -> Layout {
        (self.config.stage, self.config.shard) = (stage, shard);
        self.ranks *= copies;
        self
    }

    /// Cuts every layer over two ranks.
    pub(crate) fn with_tensor(mut self, sequence: bool) -> Layout {
        (self.config.tensor, self.config.sequence) = (2.into(), sequence);
        self.ranks *= 2;
        self
    }

    /// Sets the number of layers of each stage.
    fn split(mut self, layers: &[u64]) -> Layout {
        self.config.stages = layers.to_vec();
        self
    }
}

#[test]
fn every_schedule_gives_the_losses_of_one_rank() {
    for tied in [true, false] {
        let model = model(tied);
        for kind in SYNCHRONOUS {
            for ranks in [2, 4] {
                check(&model, &pipelined(kind, ranks, 8), 8);
            }
        }
    }
}

#[test]
fn eight_stages_give_the_losses_of_one_rank() {
    for tied in [true, false] {
        let model = model(tied);
        for kind in [Kind::GPipe, Kind::OneFOneB, Kind::Chimera, Kind::ZbH1, Kind::ZbH2, Kind::DualPipe] {
            check(&model, &pipelined(kind, 8, 16), 16);
        }
        // Two chunks a rank make sixteen stages of ten units.
        for kind in [Kind::Interleaved, Kind::ZbV, Kind::DualPipeV] {
            check(&model, &pipelined(kind, 4, 16), 16);
        }
    }
}

#[test]
fn pipelines_go_with_data_parallelism_and_zero_1() {
    for tied in [true, false] {
        let model = model(tied);
        for kind in SYNCHRONOUS {
            check(&model, &pipelined(kind, 2, 4).with_data(2, Stage::Ddp, 0), 8);
            check(&model, &pipelined(kind, 2, 4).with_data(2, Stage::Zero1, 0), 8);
        }
        // Copies of a cut state, mirrored or not.
        for kind in [Kind::OneFOneB, Kind::Chimera, Kind::ZbV] {
            check(&model, &pipelined(kind, 2, 2).with_data(4, Stage::Zero1, 2), 8);
        }
    }
}

/// Schedules with whole backward passes, mirrored or not.
#[test]
fn pipelines_go_with_zero_2_and_3() {
    for tied in [true, false] {
        let model = model(tied);
        for stage in [Stage::Zero2, Stage::Zero3] {
            for kind in [Kind::GPipe, Kind::OneFOneB, Kind::Interleaved, Kind::BreadthFirst, Kind::Chimera] {
                check(&model, &pipelined(kind, 2, 4).with_data(2, stage, 0), 8);
            }
            check(&model, &pipelined(Kind::OneFOneB, 2, 2).with_data(4, stage, 2), 8);
            check(&model, &pipelined(Kind::Chimera, 2, 2).with_data(4, stage, 2), 8);
            let tensor = pipelined(Kind::OneFOneB, 2, 4).with_tensor(true).with_data(2, stage, 0);
            check(&model, &tensor.split(&[3, 5]), 8);
        }
    }
}

#[test]
fn pipelines_go_with_tensor_and_sequence_parallelism() {
    for tied in [true, false] {
        let model = model(tied);
        for kind in SYNCHRONOUS {
            check(&model, &pipelined(kind, 2, 4).with_tensor(false), 4);
            check(&model, &pipelined(kind, 2, 4).with_tensor(true), 4);
        }
        let all = pipelined(Kind::ZbV, 2, 4).with_tensor(true).with_data(2, Stage::Zero1, 0);
        check(&model, &all, 8);
    }
}

#[test]
fn stages_may_be_uneven() {
    for tied in [true, false] {
        let model = model(tied);
        check(&model, &pipelined(Kind::OneFOneB, 4, 8).split(&[0, 5, 3, 0]), 8);
        check(&model, &pipelined(Kind::ZbH1, 2, 4).split(&[7, 1]), 4);
        check(&model, &pipelined(Kind::Interleaved, 2, 4).split(&[1, 3, 4, 0]), 4);
        check(&model, &pipelined(Kind::DualPipe, 4, 8).split(&[2, 1, 4, 1]), 8);
        check(&model, &pipelined(Kind::ZbV, 2, 4).split(&[0, 3, 4, 1]).with_tensor(true), 4);
    }
}
