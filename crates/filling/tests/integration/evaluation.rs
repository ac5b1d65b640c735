//! Evaluated batches in the bubbles of training steps: the bits of an evaluation before the step, and of the training without.

use bessemer_arch::Model;
use bessemer_collectives::{Communicator, NullCommunicator};
use bessemer_filling::plan_evaluations;
use bessemer_fixture::{SEQ, Text, on_ranks, params};
use bessemer_optim::OptimConfig;
use bessemer_parallel::{BatchSource, Job, ParallelConfig, ParallelError, Plan, Stage, Worker};
use bessemer_runtime::{ActivationConfig, Purpose, Shape, WeighedLoss};
use bessemer_schedule::{Fill, Filler, Instruction, Place, Program};
use bessemer_tensor::null::NullBackend;
use bessemer_units::ParamStorage;
use std::collections::BTreeMap;

const Z_LOSS: [WeighedLoss; 1] = [WeighedLoss::z_loss(1e-3)];
const STEPS: u64 = 3;
const SHAPE: Shape = Shape { sequences: 1, seq: SEQ, purpose: Purpose::Train };

fn model(tied: bool) -> Model {
    bessemer_fixture::model(tied, 8, 16)
}

#[derive(Debug, PartialEq, Default)]
struct Done {
    losses: Vec<f64>,
    params: BTreeMap<String, Vec<f32>>,
    /// By step and batch.
    evaluated: Vec<BTreeMap<usize, Vec<f32>>>,
}

#[derive(Debug, Clone)]
pub(crate) struct Layout {
    pub(crate) config: ParallelConfig,
    pub(crate) ranks: usize,
    pub(crate) micro_batches: usize,
}

pub(crate) fn layout(schedule: &str, pipeline: usize, micro_batches: usize) -> Layout {
    let config =
        ParallelConfig { pipeline: pipeline as u64, schedule: schedule.into(), ..ParallelConfig::default() };
    Layout { config, ranks: pipeline, micro_batches }
}

fn optim() -> OptimConfig {
    OptimConfig { lr: 1e-2, ..OptimConfig::default() }
}

fn job<'a>(model: &'a Model, optim: &'a OptimConfig, plan: &'a Plan, program: &'a Program) -> Job<'a> {
    let (activations, types) = (ActivationConfig::default(), ParamStorage::default());
    Job { model, shape: SHAPE, activations, types, optim, losses: &Z_LOSS, plan, program }
}

/// A program whose bubbles have no space that evaluates so many batches all the same, right before its update.
fn evaluating(plain: &Program, batches: usize) -> Program {
    let mut program = plain.clone();
    for (rank, list) in program.lists.iter_mut().enumerate() {
        let update = list.iter().position(|i| matches!(i, Instruction::Step { .. })).unwrap();
        let places = plain.routes[0].iter().filter(|place| place.rank == rank);
        let of = |unit| {
            let pass = move |place: &Place| {
                Instruction::Fill(Fill { filler: Filler::Evaluate, chunk: place.chunk, unit })
            };
            places.clone().map(pass)
        };
        let passes: Vec<_> = (0..batches).flat_map(of).collect();
        list.splice(update..update, passes);
    }
    program
}

/// `filled`: in the second step's bubbles and those after it, else before each of these steps.
fn rank(
    model: &Model,
    layout: &Layout,
    filled: bool,
    world: Box<dyn Communicator>,
) -> Result<(Done, usize), ParallelError> {
    let optim = optim();
    let plan = Plan::new(&layout.config, layout.ranks, model, optim.optimizer)?;
    let plain = plan.program(layout.micro_batches, 1, None)?;
    let (mut program, mut batches) = plan_evaluations(&job(model, &optim, &plan, &plain), 64)?;
    if batches == 0 && (0..plain.ranks()).any(|rank| plain.chunks(rank) > 1) {
        (program, batches) = (evaluating(&plain, 2), 2);
    }
    let mut cpu = crate::instruction_set::cpu(1);
    let made_for = if filled { &program } else { &plain };
    let mut worker = Worker::new(&mut cpu, &job(model, &optim, &plan, made_for), world)?;
    worker.init(&mut cpu, 3)?;
    let first = (plan.data_index(worker.coord()) * layout.micro_batches) as u64;
    let all = (plan.data_ranks() * layout.micro_batches) as u64;
    let mut text = Text { first, sequences: 1, all, ..Text::default() };
    let mut done = Done::default();
    for step in 0..STEPS {
        text.step = step;
        if !filled && step > 0 {
            for unit in 0..batches {
                let mut losses = vec![0.0; SEQ];
                let batch = text.evaluation(unit)?;
                worker.loss(&mut cpu, &batch, Some(&mut losses))?;
                if worker.has_losses(worker.coord().pipeline) {
                    text.evaluated(unit, &losses);
                }
            }
        }
        if filled {
            worker.set_program(if step > 0 { &program } else { &plain })?;
        }
        let sum = worker.gradients(&mut cpu, &mut text)?;
        done.losses.push(worker.sum_over_data(sum)?.mean());
        let norm = worker.grad_norm(&mut cpu)?;
        worker.apply(&mut cpu, step + 1, optim.lr, norm)?;
        done.evaluated.push(std::mem::take(&mut text.evaluated));
    }
    done.params = params(&mut cpu, &mut worker)?;
    Ok((done, batches))
}

fn train(model: &Model, layout: &Layout, filled: bool) -> Vec<(Done, usize)> {
    on_ranks(layout.ranks, |world| {
        rank(model, layout, filled, world).unwrap_or_else(|e| panic!("{layout:?}: {e}"))
    })
}

#[test]
fn evaluation_in_bubbles_has_the_bits_of_evaluation_before_the_step() {
    let mut layouts = Vec::new();
    for schedule in ["gpipe", "1f1b", "zb-h1", "zb-h2"] {
        layouts.extend([layout(schedule, 2, 4), layout(schedule, 4, 8)]);
        let mut both = layout(schedule, 2, 4);
        (both.ranks, both.config.stage) = (4, Stage::Zero1);
        layouts.push(both);
    }
    // Several stages a rank: neighbours in turn, in the form of a V, in two directions.
    for schedule in ["interleaved", "zb-v", "chimera", "dualpipe"] {
        layouts.push(layout(schedule, 2, 4));
    }
    layouts.push(layout("interleaved", 4, 8));
    let mut cut = layout("1f1b", 2, 4);
    (cut.ranks, cut.config.tensor, cut.config.sequence) = (4, 2.into(), true);
    layouts.push(cut);
    let mut room = 0;
    for tied in [true, false] {
        let model = model(tied);
        for layout in &layouts {
            let (plain, filled) = (train(&model, layout, false), train(&model, layout, true));
            for (rank, (a, b)) in plain.iter().zip(&filled).enumerate() {
                assert_eq!(a.1, b.1);
                room += a.1;
                assert_eq!(a.0.losses, b.0.losses, "{layout:?}, rank {rank}");
                assert!(a.0.params == b.0.params, "{layout:?}, rank {rank}: other parameters");
                assert_eq!(a.0.evaluated, b.0.evaluated, "{layout:?}, rank {rank}");
            }
            let told: usize = filled.iter().flat_map(|f| &f.0.evaluated).map(BTreeMap::len).sum();
            let lines = layout.ranks / layout.config.pipeline as usize;
            assert_eq!(told, lines * filled[0].1 * (STEPS as usize - 1), "{layout:?}");
        }
    }
    assert!(room > 0, "no bubble had room");
}

fn planned(layout: &Layout, wanted: usize) -> Result<(Program, usize), String> {
    let (model, optim) = (model(false), optim());
    let plan = Plan::new(&layout.config, layout.ranks, &model, optim.optimizer).map_err(|e| e.to_string())?;
    let updates = if plan.pipe.asynchronous() { 2 } else { 1 };
    let program = plan.program(layout.micro_batches, updates, None).map_err(|e| e.to_string())?;
    plan_evaluations(&job(&model, &optim, &plan, &program), wanted).map_err(|e| e.to_string())
}

#[test]
fn as_many_are_planned_as_fit_before_the_update() {
    for schedule in ["gpipe", "1f1b"] {
        let (program, most) = planned(&layout(schedule, 4, 8), 64).unwrap();
        assert!(most > 0 && most < 64, "{schedule}: {most}");
        assert_eq!(planned(&layout(schedule, 4, 8), 1).unwrap().1, 1);
        for list in &program.lists {
            let evaluates =
                |i: &Instruction| matches!(i, Instruction::Fill(f) if f.filler == Filler::Evaluate);
            assert_eq!(list.iter().filter(|i| evaluates(i)).count(), most);
            let step = list.iter().position(|i| matches!(i, Instruction::Step { .. })).unwrap();
            assert!(!list[step..].iter().any(evaluates));
        }
    }
}

#[test]
fn what_cannot_evaluate_is_refused_with_its_reason() {
    let refused = |schedule: &str, ranks, words: &str| {
        let e = planned(&layout(schedule, ranks, 4), 4).unwrap_err();
        assert!(e.contains(words), "{e}");
    };
    refused("1f1b", 1, "no pipeline");
    refused("pipedream", 2, "different steps");

    // Programs that somebody else made.
    let (model, optim, layout) = (model(false), optim(), layout("1f1b", 2, 4));
    let plan = Plan::new(&layout.config, 2, &model, optim.optimizer).unwrap();
    let (good, _) = planned(&layout, 1).unwrap();
    let made = |program: &Program| {
        let world = Box::new(NullCommunicator::new("world", 0, 2));
        let worker = Worker::new(&mut NullBackend::new(), &job(&model, &optim, &plan, program), world);
        worker.map(drop).map_err(|e| e.to_string())
    };
    made(&good).unwrap();
    let at = |list: &[Instruction]| list.iter().position(|i| matches!(i, Instruction::Fill(_))).unwrap();
    let mut once = good.clone();
    let place = at(&once.lists[1]);
    once.lists[1].remove(place);
    assert!(made(&once).unwrap_err().contains("does not pass each stage"));
    let mut late = good.clone();
    let place = at(&late.lists[0]);
    let unit = late.lists[0].remove(place);
    late.lists[0].push(unit);
    assert!(made(&late).unwrap_err().contains("after an update"));
}
