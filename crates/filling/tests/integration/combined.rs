//! Several kinds of work in the bubbles of the same steps: each has the bits that it has without the others.

use crate::evaluation::{Layout, layout};
use crate::fill::model;
use crate::snapshot::{Part, assemble, parts};
use bessemer_arch::Model;
use bessemer_collectives::{Communicator, NullCommunicator};
use bessemer_filling::{FillPlan, RankFill, StepFill, give_snapshot_memory, plan_snapshot, take_snapshot};
use bessemer_fixture::{SEQ, Text, on_ranks};
use bessemer_optim::{KfacConfig, OptimConfig, OptimizerChoice};
use bessemer_parallel::{
    BatchSource, FillChoice, FillConfig, FillSupplier, Job, ParallelError, Plan, Stage, Worker, whole_states,
};
use bessemer_runtime::{ActivationConfig, Purpose, Shape, TokenBatch, WeighedLoss};
use bessemer_schedule::{Filler, Instruction, Program};
use bessemer_tensor::null::NullBackend;
use bessemer_test_tier::part;
use bessemer_units::ParamStorage;
use std::collections::BTreeMap;
use std::sync::Arc;

use FillChoice::{Checkpoint, Evaluation, Kfac};

const Z_LOSS: [WeighedLoss; 1] = [WeighedLoss::z_loss(1e-3)];
/// Batches of an evaluation.
const BATCHES: usize = 3;
const SHAPE: Shape = Shape { sequences: 8, seq: SEQ, purpose: Purpose::Train };

/// Every tensor of the state by its name.
type State = Vec<(String, Vec<f32>)>;

/// What a rank saw.
#[derive(Debug, Default, PartialEq)]
struct Done {
    losses: Vec<f64>,
    evaluated: BTreeMap<u64, BTreeMap<usize, Vec<f32>>>,
    /// This rank's part of copies of the state.
    parts: BTreeMap<u64, Vec<Part>>,
    /// The state before some steps, on rank 0.
    states: BTreeMap<u64, State>,
    last: State,
    /// Batches that passed bubbles.
    in_bubbles: usize,
}

fn optim(fill: &FillConfig) -> OptimConfig {
    let kfac = KfacConfig { damping: 1e-2, kl_clip: 1e-4, ..KfacConfig::default() };
    let optimizer = if fill.has(Kfac) { OptimizerChoice::Kfac } else { OptimizerChoice::AdamW };
    OptimConfig { optimizer, lr: 1e-2, kfac, ..OptimConfig::default() }
}

fn job<'a>(model: &'a Model, optim: &'a OptimConfig, plan: &'a Plan, program: &'a Program) -> Job<'a> {
    let (activations, types) = (ActivationConfig::default(), ParamStorage::default());
    Job { model, shape: SHAPE, activations, types, optim, losses: &Z_LOSS, plan, program }
}

fn plan(layout: &Layout, optimizer: OptimizerChoice) -> Result<Plan, ParallelError> {
    Plan::new(&layout.config, layout.ranks, &model(), optimizer)
}

fn supplier(plan: &Option<FillPlan>) -> Option<&dyn FillSupplier> {
    plan.as_ref().map(|plan| plan as &dyn FillSupplier)
}

/// Trains with `fill`; every third step evaluates, and every step that may copies the state: in bubbles, or before the step.
fn rank(layout: &Layout, fill: &FillConfig, world: Box<dyn Communicator>) -> Result<Done, ParallelError> {
    let (model, optim) = (model(), optim(fill));
    let plan = plan(layout, optim.optimizer)?;
    let program = plan.program(layout.micro_batches, 1, None)?;
    let mut cpu = crate::instruction_set::cpu(1);
    let job = job(&model, &optim, &plan, &program);
    let planned = FillPlan::new(&job, fill, BATCHES)?;
    let mut worker = Worker::filled(&mut cpu, &job, supplier(&planned), world)?;
    worker.init(&mut cpu, 3)?;
    let tensors = worker.tensors(&optim)?;
    let shapes: Vec<Vec<usize>> = tensors.iter().map(|t| t.shape.clone()).collect();
    if let Some(program) = planned.as_ref().and_then(FillPlan::copying_program) {
        let slices = Arc::new(worker.own_slices(&tensors)?);
        plan_snapshot(&mut worker, Arc::clone(&slices), program)?;
        give_snapshot_memory(&mut worker, vec![0.0; slices.elements()]);
    }
    let read = |worker: &mut Worker, cpu: &mut bessemer_kernels_cpu::CpuBackend| {
        let mut all = State::new();
        for tensor in worker.tensors(&optim)? {
            let mut values = vec![0.0; tensor.len()];
            worker.read(cpu, &tensor, &mut values)?;
            all.push((tensor.name.clone(), values));
        }
        Ok::<_, ParallelError>(if worker.rank() == 0 { all } else { State::new() })
    };
    let local = (layout.micro_batches * SHAPE.sequences) as u64;
    let (first, all) = (plan.data_index(worker.coord()) as u64 * local, plan.data_ranks() as u64 * local);
    let mut text = Text { first, sequences: SHAPE.sequences as u64, all, ..Text::default() };
    let mut done = Done::default();
    // Two refreshes, and the beginning of a third.
    let steps = RankFill::of(&worker)
        .and_then(RankFill::refresh_interval)
        .map_or(8, |interval| 2 * interval as u64 + 3);
    for step in 0..steps {
        text.step = step;
        let (evaluates, copies) = (step % 3 == 1, step > 0 && worker.at_rest());
        let asked =
            StepFill { evaluates: evaluates && fill.has(Evaluation), copies: copies && fill.has(Checkpoint) };
        if evaluates {
            let of = RankFill::of(&worker).filter(|_| asked.evaluates);
            let fitting = of.map_or(0, RankFill::fitting_evaluations);
            done.in_bubbles += fitting;
            for unit in fitting..BATCHES {
                let mut losses = vec![0.0; SHAPE.tokens()];
                let batch = text.evaluation(unit)?;
                let (ids, targets) = (batch.ids.to_vec(), batch.targets.to_vec());
                let batch = TokenBatch { ids: &ids, targets: &targets, positions: None };
                worker.loss(&mut cpu, &batch, Some(&mut losses))?;
                if worker.has_losses(worker.coord().pipeline) {
                    text.evaluated(unit, &losses);
                }
            }
        }
        if copies && !asked.copies {
            done.states.insert(step, read(&mut worker, &mut cpu)?);
        }
        RankFill::of_mut(&mut worker).map_or(Ok(()), |fill| fill.set_step(asked))?;
        let sum = worker.gradients(&mut cpu, &mut text)?;
        if asked.copies {
            let copy = take_snapshot(&mut worker)?;
            done.parts.insert(step, parts(&copy, &shapes));
            // The first rank's is put together from all of them.
            done.states.insert(step, State::new());
            give_snapshot_memory(&mut worker, copy.into_memory());
        }
        done.losses.push(worker.sum_over_data(sum)?.mean());
        let norm = worker.grad_norm(&mut cpu)?;
        worker.apply(&mut cpu, step + 1, optim.lr, norm)?;
        if evaluates {
            done.evaluated.insert(step, std::mem::take(&mut text.evaluated));
        }
    }
    done.last = read(&mut worker, &mut cpu)?;
    Ok(done)
}

fn train(layout: &Layout, fill: &FillConfig) -> Vec<Done> {
    let run = |world| rank(layout, fill, world).unwrap_or_else(|e| panic!("{layout:?}, {fill}: {e}"));
    let mut done = on_ranks(layout.ranks, run);
    let names: Vec<String> = done[0].last.iter().map(|t| t.0.clone()).collect();
    let states = whole_states(&model(), &optim(fill)).unwrap();
    let params = model().params().into_iter().map(|p| p.shape);
    let shapes: Vec<_> = params.chain(states.into_iter().map(|s| s.shape)).collect();
    for step in done[0].parts.keys().copied().collect::<Vec<_>>() {
        let state = assemble(&names, &shapes, done.iter().flat_map(|d| &d.parts[&step]));
        done[0].states.insert(step, state);
    }
    done
}

fn layouts() -> Vec<Layout> {
    let mut tensor = layout("1f1b", 2, 4);
    (tensor.ranks, tensor.config.tensor, tensor.config.sequence) = (4, 2.into(), true);
    let mut zero = layout("zb-h1", 2, 4);
    (zero.ranks, zero.config.stage) = (4, Stage::Zero1);
    let mut settled = layout("interleaved", 2, 4);
    (settled.ranks, settled.config.stage) = (4, Stage::Zero3);
    vec![
        settled,
        layout("1f1b", 2, 4),
        layout("gpipe", 4, 4),
        layout("interleaved", 2, 4),
        layout("chimera", 2, 4),
        tensor,
        zero,
    ]
}

#[test]
fn every_combination_has_the_bits_of_its_parts() {
    let sets = [
        vec![Evaluation, Checkpoint],
        vec![Kfac, Checkpoint],
        vec![Kfac, Evaluation],
        vec![Checkpoint, Kfac, Evaluation],
    ];
    let mut in_bubbles = 0;
    for (number, layout) in layouts().into_iter().enumerate() {
        // All three kinds of work, and two of them in turn; in a soak every two.
        let pairs = part(&sets[..3], number % 3, 3);
        let sets: Vec<_> = pairs.into_iter().chain(&sets[3..]).collect();
        let (none, alone): (FillConfig, FillConfig) = (FillChoice::None.into(), Kfac.into());
        for kfac in [false, true] {
            let plain = train(&layout, if kfac { &alone } else { &none });
            assert!(plain[0].states.len() > 2, "{layout:?}: {} states", plain[0].states.len());
            for set in sets.iter().filter(|set| set.contains(&Kfac) == kfac) {
                let fill = FillConfig::Several(set.to_vec());
                for (rank, (found, wanted)) in train(&layout, &fill).iter().zip(&plain).enumerate() {
                    let what = format!("{layout:?}, {fill}, rank {rank}");
                    assert_eq!(found.losses, wanted.losses, "{what}");
                    assert_eq!(found.evaluated, wanted.evaluated, "{what}");
                    assert!(found.states.keys().eq(wanted.states.keys()), "{what}: copies of other steps");
                    for ((step, found), wanted) in found.states.iter().zip(wanted.states.values()) {
                        let other = found.iter().zip(wanted).find(|(a, b)| a != b);
                        let other = other.map(|(a, _)| &a.0);
                        assert!(found == wanted, "{what}: other bits in the copy of step {step}: {other:?}");
                    }
                    assert!(found.last == wanted.last, "{what}: another state at the end");
                    in_bubbles += found.in_bubbles;
                }
            }
        }
    }
    assert!(in_bubbles > 0, "no bubble had room");
}

/// Which kinds of work stand in a program.
fn kinds(program: &Program) -> [bool; 3] {
    let has = |filler: Filler| {
        program.lists.iter().flatten().any(|i| matches!(i, Instruction::Fill(fill) if fill.filler == filler))
    };
    [has(Filler::Curvature), has(Filler::Evaluate), has(Filler::Copy)]
}

#[test]
fn the_first_step_of_a_refresh_may_hold_all_three() {
    let (layout, fill) = (layout("gpipe", 4, 4), FillConfig::Several(vec![Kfac, Evaluation, Checkpoint]));
    let (model, optim) = (model(), optim(&fill));
    let plan = plan(&layout, optim.optimizer).unwrap();
    let program = plan.program(4, 1, None).unwrap();
    let planned = FillPlan::new(&job(&model, &optim, &plan, &program), &fill, BATCHES).unwrap().unwrap();
    let all = planned.steps[1].programs[3].as_ref().unwrap();
    assert_eq!(kinds(all), [true, planned.steps[1].evaluations > 0, true]);
    // In the middle of a refresh there is no state to copy.
    assert!(planned.steps.len() > 2 && planned.steps[2..].iter().all(|s| s.programs[2].is_none()));
    assert!(planned.steps.iter().all(|s| s.programs[0].is_some() && s.programs[1].is_some()));
    assert!(planned.steps[0].evaluations > 0 && planned.lengthening > 0.0);

    // What was not planned is refused.
    let fill: FillConfig = Evaluation.into();
    let plan = self::plan(&layout, OptimizerChoice::AdamW).unwrap();
    let optim = self::optim(&fill);
    let world = Box::new(NullCommunicator::new("world", 0, 4));
    let job = job(&model, &optim, &plan, &program);
    let planned = FillPlan::new(&job, &fill, BATCHES).unwrap();
    let mut worker = Worker::filled(&mut NullBackend::new(), &job, supplier(&planned), world).unwrap();
    let filling = RankFill::of_mut(&mut worker).unwrap();
    let copies = StepFill { copies: true, ..StepFill::default() };
    let e = filling.set_step(copies).unwrap_err().to_string();
    assert!(e.contains("no program for") && e.contains("parallel.fill"), "{e}");
    filling.set_step(StepFill { evaluates: true, ..StepFill::default() }).unwrap();
}
