//! K-FAC in the bubbles of a pipeline: as one rank does it that refreshes its inverses as late.

use bessemer_arch::Model;
use bessemer_collectives::Communicator;
use bessemer_filling::{FillPlan, RankFill, plan_fill};
use bessemer_fixture::{SEQ, Text, model_config, on_ranks, params};
use bessemer_kernels_cpu::CpuBackend;
use bessemer_optim::{Alone, KfacConfig, KfacWork, OptimConfig, OptimParam, Optimizer, OptimizerChoice};
use bessemer_parallel::{
    BatchSource, FillChoice, FillSupplier, Job, ParallelConfig, ParallelError, Plan, Stage, Worker,
};
use bessemer_runtime::{ActivationConfig, Decoder, Purpose, Ranks, Shape, StageRanks};
use bessemer_schedule::{Filler, Instruction, Kind, Limits, Place, verify};
use bessemer_tensor::{Backend, TensorError, View};
use std::collections::BTreeMap;

const SEQUENCES: u64 = 4;

pub(crate) fn model() -> Model {
    model_config("llama", 4, 16).resolve(None).unwrap()
}

fn optim() -> OptimConfig {
    // Steps are limited, so that the sum over all stages matters.
    let kfac = KfacConfig { damping: 1e-2, kl_clip: 1e-4, ..KfacConfig::default() };
    OptimConfig { optimizer: OptimizerChoice::Kfac, lr: 1e-2, kfac, ..OptimConfig::default() }
}

/// The sequences from `first` on, of `all` in a step.
fn text(first: u64, all: u64) -> Text {
    Text { first, sequences: SEQUENCES, all, ..Text::default() }
}

#[derive(Debug, Clone, PartialEq, Default)]
struct Done {
    losses: Vec<f64>,
    params: BTreeMap<String, Vec<f32>>,
    interval: Option<usize>,
    /// For each stage and factor, in which steps of a refresh it is summed and inverted.
    late: Vec<BTreeMap<usize, [usize; 2]>>,
}

#[derive(Debug, Clone)]
struct Layout {
    config: ParallelConfig,
    ranks: usize,
    micro_batches: usize,
    steps: u64,
    /// A step that is left out.
    skip: Option<u64>,
}

impl Layout {
    fn new(kind: Kind, pipeline: usize, micro_batches: usize) -> Layout {
        let config = ParallelConfig {
            pipeline: pipeline as u64,
            schedule: kind.name().into(),
            fill: FillChoice::Kfac.into(),
            ..ParallelConfig::default()
        };
        Layout { config, ranks: pipeline, micro_batches, steps: 9, skip: None }
    }

    fn all(&self) -> u64 {
        let data = self.ranks / (self.config.pipeline * self.config.tensor.ranks()) as usize;
        SEQUENCES * (self.micro_batches * data) as u64
    }
}

fn shape() -> Shape {
    Shape { sequences: SEQUENCES as usize, seq: SEQ, purpose: Purpose::Train }
}

fn cpu() -> CpuBackend {
    crate::instruction_set::cpu(1)
}

fn rank(layout: &Layout, world: Box<dyn Communicator>) -> Result<Done, ParallelError> {
    let (model, optim) = (model(), optim());
    let plan = Plan::new(&layout.config, layout.ranks, &model, optim.optimizer)?;
    let program = plan.program(layout.micro_batches, 1, None)?;
    let job = Job {
        model: &model,
        shape: shape(),
        activations: ActivationConfig::default(),
        types: bessemer_units::ParamStorage::default(),
        optim: &optim,
        losses: &[],
        plan: &plan,
        program: &program,
    };
    let mut cpu = cpu();
    let fill = FillPlan::new(&job, &layout.config.fill, 0)?;
    let supplier = fill.as_ref().map(|fill| fill as &dyn FillSupplier);
    let mut worker = Worker::filled(&mut cpu, &job, supplier, world)?;
    worker.init(&mut cpu, 3)?;
    let share = plan.data_index(worker.coord()) as u64 * layout.all() / plan.data_ranks() as u64;
    let mut done =
        Done { interval: RankFill::of(&worker).and_then(RankFill::refresh_interval), ..Done::default() };
    if done.interval.is_some() {
        let filled = plan_fill(&job)?;
        done.late = vec![BTreeMap::new(); program.stages];
        for (step, program) in filled.programs.iter().enumerate() {
            verify(program, &Limits::default())?;
            for (rank, list) in program.lists.iter().enumerate() {
                for instruction in list {
                    let Instruction::Fill(fill) = instruction else { continue };
                    let which = match fill.filler {
                        Filler::SyncCurvature => 0,
                        Filler::Invert => 1,
                        _ => continue,
                    };
                    // All holders of a stage do so in one step.
                    let stage = program.stage_at(Place { rank, chunk: fill.chunk }).unwrap();
                    let known = done.late[stage].entry(fill.unit).or_insert([usize::MAX; 2]);
                    assert!(known[which] == usize::MAX || known[which] == step, "{fill:?} in two steps");
                    known[which] = step;
                }
            }
        }
    }
    let mut text = text(share, layout.all());
    let mut updates = 0;
    for step in 0..layout.steps {
        text.step = step;
        let sum = worker.gradients(&mut cpu, &mut text)?;
        done.losses.push(worker.sum_over_data(sum)?.mean());
        let norm = worker.grad_norm(&mut cpu)?;
        if layout.skip == Some(step) {
            worker.skip(norm);
            continue;
        }
        updates += 1;
        worker.apply(&mut cpu, updates, optim.lr, norm)?;
    }
    done.params = params(&mut cpu, &mut worker)?;
    Ok(done)
}

fn train(layout: &Layout) -> Done {
    let run = |world| rank(layout, world).unwrap_or_else(|e| panic!("{layout:?}: {e}"));
    let all = on_ranks(layout.ranks, run);
    assert!(all.iter().all(|d| *d == all[0]), "{layout:?}: ranks disagree");
    all.into_iter().next().unwrap()
}

/// What one rank's passes show of their linear maps.
struct Seen<'a> {
    optimizer: &'a mut Optimizer,
    /// By parameter: its factors, and whether they are of outputs. None: what the optimizer takes by itself.
    factors: Option<&'a BTreeMap<usize, Vec<(usize, bool)>>>,
    accumulate: bool,
}

impl StageRanks for Seen<'_> {}

impl Ranks for Seen<'_> {
    fn weight_gradient(
        &mut self,
        backend: &mut dyn Backend,
        param: usize,
        x: View,
        dy: View,
    ) -> Result<(), TensorError> {
        let Some(factors) = self.factors else {
            return self.optimizer.capture(backend, param, (x, dy), self.accumulate);
        };
        for (factor, outputs) in factors.get(&param).into_iter().flatten() {
            let of = if *outputs { dy } else { x };
            self.optimizer.kfac_curvature(backend, *factor, of, self.accumulate).unwrap();
        }
        Ok(())
    }
}

/// One rank, no pipeline, no program: curvature from every step that begins a refresh, each factor's mean and inverse made
/// anew in the steps that `late` names, `interval` steps a refresh.
fn reference(layout: &Layout, interval: usize, late: &[[usize; 2]]) -> Done {
    let (model, optim) = (model(), optim());
    let mut cpu = cpu();
    let mut decoder = Decoder::new(&mut cpu, &model, shape()).unwrap();
    decoder.init(&mut cpu, 3).unwrap();
    let params: Vec<OptimParam> =
        decoder.params().iter().map(|p| OptimParam::of(&model, &p.spec, p.value, p.grad.unwrap())).collect();
    let mut optimizer = Optimizer::new(&mut cpu, &params, &optim).unwrap();
    let micro_batches = layout.all() / SEQUENCES;
    optimizer.plan_capture(&mut cpu, shape().tokens(), bessemer_units::DType::F32).unwrap();
    let units = optimizer.kfac_units(1, shape().tokens());
    let mut factors: BTreeMap<usize, Vec<(usize, bool)>> = BTreeMap::new();
    for unit in &units {
        if let KfacWork::Curvature { factor, param, outputs, .. } = unit.work {
            factors.entry(param).or_default().push((factor, outputs));
        }
    }
    let count: usize = factors.values().map(Vec::len).sum();
    assert_eq!(count, late.len());
    let mut done = Done::default();
    let mut text = text(0, layout.all());
    // None: there is no inverse yet.
    let mut phase: Option<usize> = None;
    let mut updates = 0;
    for step in 0..layout.steps {
        text.step = step;
        let mut sum = bessemer_runtime::LossSum::default();
        let mut ranks =
            Seen { optimizer: &mut optimizer, factors: phase.map(|_| &factors), accumulate: false };
        for micro in 0..micro_batches as usize {
            let (batch, mut ctx) = text.micro_batch(micro).unwrap();
            ctx.accumulate = micro > 0;
            ranks.accumulate = micro > 0;
            let nothing = &mut bessemer_runtime::OneDevice;
            let ranks: &mut dyn StageRanks = if phase.unwrap_or(0) == 0 { &mut ranks } else { nothing };
            sum += decoder.forward_backward_through(&mut cpu, ranks, &batch, &ctx).unwrap();
        }
        done.losses.push(sum.mean());
        if let Some(now) = phase {
            // A layer's factors are all summed before one is inverted.
            for which in 0..2 {
                for factor in (0..count).filter(|f| late[*f][which] == now) {
                    let work = [KfacWork::Sync { factor }, KfacWork::Invert { factor }][which];
                    optimizer.kfac_work(&mut cpu, &mut Alone, work).unwrap();
                }
            }
        }
        if layout.skip == Some(step) {
            // Nothing remains of the curvature of a step that is left out.
            if phase.unwrap_or(0) == 0 {
                let norm = optimizer.grad_norm(&mut cpu).unwrap();
                optimizer.skip(norm);
            } else {
                phase = phase.map(|p| (p + 1) % interval);
            }
            continue;
        }
        updates += 1;
        optimizer.step(&mut cpu, updates, optim.lr).unwrap();
        if phase.is_none() {
            optimizer.refresh_by_units();
        }
        phase = Some(phase.map_or(0, |p| (p + 1) % interval));
    }
    for param in decoder.params() {
        let mut values = vec![0.0; param.value.len()];
        cpu.read_f32(param.value, &mut values).unwrap();
        done.params.insert(param.spec.name.clone(), values);
    }
    done
}

/// Largest relative difference of the losses.
fn apart(a: &Done, b: &Done) -> f64 {
    assert_eq!(a.losses.len(), b.losses.len());
    a.losses.iter().zip(&b.losses).map(|(a, b)| ((a - b) / b).abs()).fold(0.0, f64::max)
}

/// Holds a layout against one rank of the same staleness, and sees that another staleness is another run.
fn check(layout: &Layout) -> Done {
    let found = train(layout);
    let interval = found.interval.unwrap();
    let late: Vec<[usize; 2]> = found.late.iter().flat_map(|stage| stage.values().copied()).collect();
    let same = reference(layout, interval, &late);
    let distance = apart(&found, &same);
    assert!(distance < 1e-5, "{layout:?}: {:?} and {:?}", found.losses, same.losses);
    for (name, values) in &found.params {
        let apart = values.iter().zip(&same.params[name]).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        assert!(apart < 2e-3, "{layout:?}: {name} is {apart} apart");
    }
    if late.iter().any(|[_, step]| *step > 0) && layout.skip.is_none() {
        let fresh = reference(layout, interval, &vec![[0; 2]; late.len()]);
        assert!(apart(&fresh, &same) > 1e-4, "nothing depends on when inverses are made");
    }
    found
}

#[test]
fn fillers_do_what_one_rank_of_the_same_staleness_does() {
    for (kind, ranks, micro_batches) in
        [(Kind::OneFOneB, 2, 2), (Kind::GPipe, 4, 4), (Kind::OneFOneB, 4, 4), (Kind::ZbH1, 4, 4)]
    {
        let layout = Layout::new(kind, ranks, micro_batches);
        let found = check(&layout);
        // The same again, to the bit.
        assert_eq!(train(&layout), found);
    }
}

#[test]
fn ranks_with_several_stages_do_what_one_rank_of_the_same_staleness_does() {
    for (kind, ranks, micro_batches) in [
        (Kind::Interleaved, 2, 4),
        (Kind::ZbV, 2, 4),
        // Mirrored holders of each stage.
        (Kind::Chimera, 2, 4),
        (Kind::DualPipe, 2, 4),
    ] {
        let layout = Layout::new(kind, ranks, micro_batches);
        let found = check(&layout);
        assert_eq!(train(&layout), found);
        // And without fillers those of one rank.
        let mut plain = layout.clone();
        plain.config.fill = FillChoice::None.into();
        let single = Layout { config: ParallelConfig::default(), ranks: 1, ..layout };
        assert!(apart(&train(&plain), &train(&single)) < 1e-5, "{plain:?}");
    }
    let mut layout = Layout::new(Kind::Chimera, 2, 4);
    (layout.ranks, layout.config.stage, layout.config.shard) = (4, Stage::Zero1, 2);
    check(&layout);
}

#[test]
fn a_stage_without_layers_has_no_part_in_it() {
    let mut layout = Layout::new(Kind::OneFOneB, 2, 4);
    layout.config.stages = vec![0, 4];
    check(&layout);
}

#[test]
fn tensor_parallel_ranks_keep_the_operands_of_the_whole_matrix() {
    for sequence in [false, true] {
        let mut layout = Layout::new(Kind::OneFOneB, 2, 2);
        (layout.ranks, layout.config.tensor, layout.config.sequence) = (4, 2.into(), sequence);
        let found = check(&layout);
        assert_eq!(train(&layout), found);
    }
}

#[test]
fn copies_of_the_pipeline_share_the_inversions_out() {
    let mut layout = Layout::new(Kind::OneFOneB, 2, 2);
    layout.ranks = 4;
    check(&layout);
    (layout.config.stage, layout.config.shard) = (Stage::Zero1, 2);
    check(&layout);
}

#[test]
fn nothing_remains_of_the_curvature_of_a_step_that_is_left_out() {
    for skip in [0, 1, 2, 4] {
        check(&Layout { skip: Some(skip), ..Layout::new(Kind::OneFOneB, 2, 2) });
    }
}

#[test]
fn without_fillers_a_pipeline_takes_the_steps_of_one_rank() {
    let mut layout = Layout::new(Kind::OneFOneB, 2, 2);
    layout.config.fill = FillChoice::None.into();
    let piped = train(&layout);
    assert_eq!(piped.interval, None);
    let single = Layout { config: ParallelConfig::default(), ranks: 1, ..layout };
    assert!(apart(&piped, &train(&single)) < 1e-5);
}
