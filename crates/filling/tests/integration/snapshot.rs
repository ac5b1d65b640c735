//! Copies of the state in bubbles: what a save before the step would have read, bit by bit, while training goes on.

use bessemer_arch::Model;
use bessemer_collectives::{Communicator, NullCommunicator};
use bessemer_filling::{PlannedCopies, give_snapshot_memory, plan_copies, plan_snapshot, take_snapshot};
use bessemer_fixture::{SEQ, Text, on_ranks};
use bessemer_kernels_cpu::CpuBackend;
use bessemer_optim::{OptimConfig, OptimizerChoice};
use bessemer_parallel::{
    Job, OwnSlice, ParallelConfig, ParallelError, Plan, Stage, StateCopy, StateTensor, Worker, whole_states,
};
use bessemer_runtime::{ActivationConfig, Purpose, Shape};
use bessemer_schedule::{Filler, Instruction, Program};
use bessemer_test_tier::part;
use bessemer_units::{ParamDType, ParamStorage};
use std::ops::Range;
use std::sync::Arc;

const STEPS: u64 = 4;
const SHAPE: Shape = Shape { sequences: 1, seq: SEQ, purpose: Purpose::Train };

/// Wide enough for several pieces of a stage.
fn model(tied: bool) -> Model {
    bessemer_fixture::model(tied, 8, 48)
}

#[derive(Debug, Clone)]
struct Layout {
    config: ParallelConfig,
    ranks: usize,
    micro_batches: usize,
    types: ParamStorage,
    optimizer: OptimizerChoice,
}

fn layout(schedule: &str, pipeline: usize) -> Layout {
    let config =
        ParallelConfig { pipeline: pipeline as u64, schedule: schedule.into(), ..ParallelConfig::default() };
    let types = ParamStorage::default();
    Layout { config, ranks: pipeline, micro_batches: 2 * pipeline, types, optimizer: OptimizerChoice::AdamW }
}

impl Layout {
    fn optim(&self) -> OptimConfig {
        OptimConfig { lr: 1e-2, optimizer: self.optimizer, ..OptimConfig::default() }
    }

    fn job<'a>(
        &self,
        model: &'a Model,
        optim: &'a OptimConfig,
        plan: &'a Plan,
        program: &'a Program,
    ) -> Job<'a> {
        let (activations, types) = (ActivationConfig::default(), self.types);
        Job { model, shape: SHAPE, activations, types, optim, losses: &[], plan, program }
    }

    fn planned(&self, model: &Model, updates: usize) -> Result<(Program, PlannedCopies), ParallelError> {
        let optim = self.optim();
        let plan = Plan::new(&self.config, self.ranks, model, optim.optimizer)?;
        let plain = plan.program(self.micro_batches, updates, None)?;
        let copies = plan_copies(&self.job(model, &optim, &plan, &plain))?;
        Ok((plain, copies))
    }
}

/// Every tensor of the state by its name.
pub(crate) type State = Vec<(String, Vec<f32>)>;

/// What a rank saw: the state between the steps (read if `reads`), copies of it, the losses, and the state at the end.
#[derive(Debug, Default, PartialEq)]
struct Done {
    read: Vec<State>,
    /// This rank's part of the copies, and on the first rank the copies.
    parts: Vec<Vec<Part>>,
    copied: Vec<State>,
    losses: Vec<f64>,
    last: State,
}

fn state(worker: &mut Worker, cpu: &mut CpuBackend, tensors: &[StateTensor]) -> Result<State, ParallelError> {
    let mut state = State::new();
    for tensor in tensors {
        let mut values = vec![0.0; tensor.len()];
        worker.read(cpu, tensor, &mut values)?;
        state.push((tensor.name.clone(), values));
    }
    Ok(state)
}

/// A box of a tensor that a rank has copied: the tensor, its elements there, and their values.
pub(crate) type Part = (usize, Vec<Range<usize>>, Vec<f32>);

/// What a copy holds.
pub(crate) fn parts(copy: &StateCopy, shapes: &[Vec<usize>]) -> Vec<Part> {
    let part =
        |slice: &OwnSlice| (slice.tensor, slice.elements(&shapes[slice.tensor]), copy.values(slice).to_vec());
    copy.slices().iter().map(part).collect()
}

/// Whole tensors from the parts of all ranks, which have each element once.
pub(crate) fn assemble<'a>(
    names: &[String],
    shapes: &[Vec<usize>],
    parts: impl Iterator<Item = &'a Part>,
) -> State {
    let lens = shapes.iter().map(|shape| shape.iter().product::<usize>());
    let mut whole: Vec<Vec<Option<f32>>> = lens.map(|len| vec![None; len]).collect();
    for (tensor, runs, values) in parts {
        for (element, value) in runs.iter().flat_map(Clone::clone).zip(values) {
            let before = whole[*tensor][element].replace(*value);
            assert!(before.is_none(), "{:?} is copied twice", names[*tensor]);
        }
    }
    let tensor = |(name, values): (&String, Vec<Option<f32>>)| {
        let lacks = || panic!("elements of {name:?} are not copied");
        (name.clone(), values.into_iter().map(|v| v.unwrap_or_else(lacks)).collect())
    };
    names.iter().zip(whole).map(tensor).collect()
}

/// Trains; with `copies` each step but the first copies the state.
fn rank(
    model: &Model,
    layout: &Layout,
    copies: bool,
    world: Box<dyn Communicator>,
) -> Result<Done, ParallelError> {
    let optim = layout.optim();
    let plan = Plan::new(&layout.config, layout.ranks, model, optim.optimizer)?;
    let (plain, planned) = layout.planned(model, 1)?;
    let mut cpu = crate::instruction_set::cpu(1);
    let mut worker = Worker::new(&mut cpu, &layout.job(model, &optim, &plan, &plain), world)?;
    worker.init(&mut cpu, 3)?;
    let tensors = worker.tensors(&optim)?;
    let slices = Arc::new(worker.own_slices(&tensors)?);
    plan_snapshot(&mut worker, Arc::clone(&slices), &planned.program)?;
    give_snapshot_memory(&mut worker, vec![0.0; slices.elements()]);
    let shapes: Vec<Vec<usize>> = tensors.iter().map(|t| t.shape.clone()).collect();
    let first = (plan.data_index(worker.coord()) * layout.micro_batches) as u64;
    let all = (plan.data_ranks() * layout.micro_batches) as u64;
    let mut text = Text { first, sequences: 1, all, ..Text::default() };
    let mut done = Done::default();
    let mut taken = None;
    for step in 0..STEPS {
        text.step = step;
        if !copies && step > 0 {
            done.read.push(state(&mut worker, &mut cpu, &tensors)?);
        }
        let copying = copies && step > 0;
        worker.set_program(if copying { &planned.program } else { &plain })?;
        let sum = worker.gradients(&mut cpu, &mut text)?;
        if copying {
            taken = Some(take_snapshot(&mut worker)?);
        }
        done.losses.push(worker.sum_over_data(sum)?.mean());
        let norm = worker.grad_norm(&mut cpu)?;
        worker.apply(&mut cpu, step + 1, optim.lr, norm)?;
        if let Some(copy) = taken.take() {
            done.parts.push(parts(&copy, &shapes));
            give_snapshot_memory(&mut worker, copy.into_memory());
        }
    }
    done.last = state(&mut worker, &mut cpu, &tensors)?;
    Ok(done)
}

fn train(model: &Model, layout: &Layout, copies: bool) -> Vec<Done> {
    let run = |world| rank(model, layout, copies, world).unwrap_or_else(|e| panic!("{layout:?}: {e}"));
    let mut done = on_ranks(layout.ranks, run);
    let shapes = shapes(model, layout);
    let names: Vec<String> = done[0].last.iter().map(|t| t.0.clone()).collect();
    let copied = (0..done[0].parts.len())
        .map(|step| assemble(&names, &shapes, done.iter().flat_map(|d| &d.parts[step])));
    done[0].copied = copied.collect();
    done
}

/// Shapes of the tensors of the state.
fn shapes(model: &Model, layout: &Layout) -> Vec<Vec<usize>> {
    let params = model.params();
    let states = whole_states(model, &layout.optim()).unwrap();
    let states = states.into_iter().map(|s| s.shape);
    params.into_iter().map(|p| p.shape).chain(states).collect()
}

fn layouts() -> Vec<Layout> {
    let mut layouts: Vec<Layout> = ["gpipe", "1f1b", "zb-h1", "zb-v", "chimera", "dualpipev", "interleaved"]
        .map(|s| layout(s, 2))
        .into();
    layouts.extend(["1f1b", "dualpipe"].map(|s| layout(s, 4)));
    for (schedule, stage, ranks, tensor) in
        [("1f1b", Stage::Zero1, 4, 1), ("chimera", Stage::Ddp, 4, 1), ("gpipe", Stage::Zero1, 8, 2)]
    {
        let mut both = layout(schedule, 2);
        (both.ranks, both.config.stage, both.config.tensor) = (ranks, stage, tensor.into());
        layouts.push(both);
    }
    for types in [ParamStorage::both(ParamDType::Bf16), ParamStorage::weights(ParamDType::Bf16)] {
        let mut bf16 = layout("1f1b", 2);
        (bf16.ranks, bf16.config.stage, bf16.types) = (4, Stage::Zero1, types);
        layouts.push(bf16);
    }
    // K-FAC's curvature is gathered during passes, into memory that no checkpoint holds.
    for optimizer in [OptimizerChoice::Muon, OptimizerChoice::Adafactor, OptimizerChoice::Kfac] {
        let mut whole = layout("1f1b", 2);
        (whole.ranks, whole.config.stage, whole.optimizer) = (4, Stage::Zero1, optimizer);
        layouts.push(whole);
    }
    layouts
}

#[test]
fn a_copy_made_in_bubbles_is_the_state_before_the_step() {
    for tied in [true, false] {
        let model = model(tied);
        // Each layout with one of the two models, in a soak with both.
        for layout in part(layouts(), usize::from(tied), 2) {
            let (plain, copied) = (train(&model, &layout, false), train(&model, &layout, true));
            for (rank, (a, b)) in plain.iter().zip(&copied).enumerate() {
                assert_eq!(a.losses, b.losses, "{layout:?}, rank {rank}");
                assert!(a.last == b.last, "{layout:?}, rank {rank}: another state at the end");
            }
            let (wanted, found) = (&plain[0].read, &copied[0].copied);
            assert_eq!((wanted.len(), found.len()), (STEPS as usize - 1, STEPS as usize - 1));
            for (step, (wanted, found)) in wanted.iter().zip(found).enumerate() {
                for ((name, wanted), (_, found)) in wanted.iter().zip(found) {
                    assert!(wanted == found, "{layout:?}, step {}: other bits in {name:?}", step + 1);
                }
            }
            assert!(found[0] != found[1], "{layout:?}: the state does not change");
        }
    }
}

fn copies(list: &[Instruction]) -> Vec<usize> {
    let at = |(i, of): (usize, &Instruction)| match of {
        Instruction::Fill(fill) if fill.filler == Filler::Copy => Some(i),
        _ => None,
    };
    list.iter().enumerate().filter_map(at).collect()
}

#[test]
fn pieces_stand_in_bubbles_and_all_of_them_before_the_update() {
    for schedule in ["gpipe", "1f1b", "zb-v", "dualpipev"] {
        for ranks in [2, 4] {
            let (plain, planned) = layout(schedule, ranks).planned(&model(false), 1).unwrap();
            for (list, before) in planned.program.lists.iter().zip(&plain.lists) {
                let at = copies(list);
                let step = list.iter().position(|i| matches!(i, Instruction::Step { .. })).unwrap();
                assert!(!at.is_empty() && at.iter().all(|i| *i < step), "{schedule} {ranks}: {at:?}");
                let without: Vec<_> = list.iter().filter(|i| !matches!(i, Instruction::Fill(_))).collect();
                assert!(without.into_iter().eq(before), "{schedule} {ranks}: another order");
            }
        }
    }
    // With bubbles that are long enough no step is longer: large micro-batches, which take longer than copies.
    let (_, small) = layout("1f1b", 4).planned(&model(false), 1).unwrap();
    let wide = Layout { micro_batches: 4, ..layout("gpipe", 4) };
    let (model, optim) = (model(false), wide.optim());
    let plan = Plan::new(&wide.config, 4, &model, optim.optimizer).unwrap();
    let plain = plan.program(4, 1, None).unwrap();
    let shape = Shape { sequences: 64, ..SHAPE };
    let large = plan_copies(&Job { shape, ..wide.job(&model, &optim, &plan, &plain) }).unwrap();
    assert!(
        large.lengthening < 1e-9 && small.lengthening > 0.0,
        "{} {}",
        large.lengthening,
        small.lengthening
    );
    let first = |list: &[Instruction]| copies(list)[0];
    assert!(large.program.lists.iter().any(|list| first(list) + copies(list).len() < list.len() - 2));
}

#[test]
fn what_cannot_copy_is_refused_with_its_reason() {
    let refused = |layout: &Layout, updates: usize, words: &str| {
        let e = layout.planned(&model(false), updates).unwrap_err().to_string();
        assert!(e.contains(words), "{e}");
    };
    refused(&layout("1f1b", 1), 1, "no pipeline");
    refused(&layout("pipedream", 2), 2, "different steps");

    // A copy that was not made is not taken, and a program that copies nothing is none.
    let (model, layout) = (model(false), layout("1f1b", 2));
    let optim = layout.optim();
    let plan = Plan::new(&layout.config, 2, &model, optim.optimizer).unwrap();
    let (plain, planned) = layout.planned(&model, 1).unwrap();
    let mut null = bessemer_tensor::null::NullBackend::new();
    let world = Box::new(NullCommunicator::new("world", 0, 2));
    let mut worker = Worker::new(&mut null, &layout.job(&model, &optim, &plan, &plain), world).unwrap();
    let tensors = worker.tensors(&optim).unwrap();
    assert!(worker.own_slices(&tensors).unwrap().elements() > model.parameters());
    let e = take_snapshot(&mut worker).unwrap_err().to_string();
    assert!(e.contains("copied 0 of 0"), "{e}");
    let programs = [&plain, &planned.program];
    let refusals = on_ranks(2, |world| {
        let program = programs[world.rank()];
        let mut cpu = crate::instruction_set::cpu(1);
        let mut worker = Worker::new(&mut cpu, &layout.job(&model, &optim, &plan, &plain), world).unwrap();
        let tensors = worker.tensors(&optim).unwrap();
        let slices = Arc::new(worker.own_slices(&tensors).unwrap());
        plan_snapshot(&mut worker, slices, program)
            .and_then(|()| take_snapshot(&mut worker).map(drop))
            .unwrap_err()
            .to_string()
    });
    assert!(refusals[0].contains("copies nothing of chunk 0"), "{}", refusals[0]);
    assert!(refusals[1].contains("has copied 0 of"), "{}", refusals[1]);
}
