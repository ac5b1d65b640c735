//! The memory that is planned against the memory that ranks hold after steps: buffers and workspace of their devices, and the heap of
//! the process. Alone in its file: another test's heap would be counted too.
#![allow(clippy::unwrap_used, reason = "a failed unwrap here is a failed test")]
#![allow(clippy::print_stdout, reason = "the table is what the ignored test is run for")]

use bessemer_arch::{Model, ModelConfig};
use bessemer_collectives::{Communicator, ThreadCommunicator, ThreadSettings};
use bessemer_counting_alloc::{CountingAllocator, live_bytes};
use bessemer_kernels_cpu::{CpuBackend, CpuConfig};
use bessemer_optim::OptimConfig;
use bessemer_parallel::{BatchSource, Job, MemoryPlan, ParallelConfig, ParallelError, Plan, Stage};
use bessemer_recipe::Recipe;
use bessemer_runlog::Record;
use bessemer_runtime::{ActivationConfig, Purpose, Shape, StepContext, TokenBatch};
use bessemer_tensor::Backend;
use bessemer_train::{Observer, Runner, Trainer, TrainerInput, copies_on_host, on_threads, planned_memory};
use bessemer_units::{Bytes, ParamDType, ParamStorage, Recompute, ReduceDType, Storage};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Barrier, Mutex, PoisonError};

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

#[allow(dead_code, reason = "the integration tests take more of it")]
#[path = "integration/place/mod.rs"]
mod place;

/// Lock that serialises the tests: each reads the heap of the process.
static TURN: Mutex<()> = Mutex::new(());

const SEQ: usize = 32;
const VOCAB: usize = 8192;

/// Tokens that are all alike.
struct SameText;

static TOKENS: [u32; SEQ] = [7; SEQ];

impl BatchSource for SameText {
    fn micro_batch(&mut self, _: usize) -> Result<(TokenBatch<'_>, StepContext), ParallelError> {
        let ctx = StepContext { seed: 0, step: 0, first_sequence: 0, loss_scale: 1.0, accumulate: false };
        Ok((TokenBatch { ids: &TOKENS, targets: &TOKENS, positions: None }, ctx))
    }
}

/// A layout of a job of one sequence a micro-batch.
struct Case {
    name: String,
    ranks: usize,
    config: ParallelConfig,
    activations: ActivationConfig,
    types: ParamStorage,
    optim: OptimConfig,
}

fn model() -> Model {
    let config = ModelConfig {
        architecture: "llama".into(),
        vocab_size: VOCAB as u64,
        layers: Some(4),
        width: Some(512),
        heads: Some(8),
        kv_heads: Some(8),
        context: Some(SEQ as u64),
        ..ModelConfig::default()
    };
    config.resolve(None).unwrap()
}

/// Memory that ranks hold.
struct Held {
    planned: u64,
    /// Bytes of the rank whose device holds most: buffers and workspace.
    device: u64,
    /// Heap of a rank, in the mean: staging, slots of collectives, programs.
    heap: u64,
}

impl Held {
    fn error(&self) -> f64 {
        self.planned as f64 / (self.device + self.heap) as f64 - 1.0
    }
}

fn held(case: &Case) -> Held {
    let model = model();
    let plan = Plan::new(&case.config, case.ranks, &model, case.optim.optimizer).unwrap();
    let program = plan.program(4, 1, None).unwrap();
    let job = Job {
        model: &model,
        shape: Shape { sequences: 1, seq: SEQ, purpose: Purpose::Train },
        activations: case.activations.clone(),
        types: case.types,
        optim: &case.optim,
        losses: &[],
        plan: &plan,
        program: &program,
    };
    let backend = || CpuBackend::new(CpuConfig { threads: 1, ..CpuConfig::default() }).unwrap();
    let planned = MemoryPlan::of_rank(&job, None, Some(&mut backend())).unwrap().buffers.total().0;
    let before = live_bytes();
    let worlds = ThreadCommunicator::world("world", case.ranks, &ThreadSettings::default());
    let worlds = worlds.into_iter().map(|world| Box::new(world) as Box<dyn Communicator>).collect();
    let barrier = Barrier::new(case.ranks);
    let ranks = on_threads(worlds, |world| {
        let mut backend = backend();
        let mut runner = Runner::new(&mut backend, &job, world)?;
        runner.worker.init(&mut backend, 0)?;
        for step in 0..2 {
            runner.step(&mut backend, &mut SameText, step + 1, 1e-4)?;
        }
        barrier.wait();
        let heap = live_bytes() - before;
        barrier.wait();
        Ok((backend.memory().total().0, heap))
    });
    let ranks = ranks.unwrap();
    let device = ranks.iter().map(|rank| rank.0).max().unwrap();
    let heap = ranks.iter().map(|rank| rank.1).max().unwrap() / case.ranks as u64;
    Held { planned, device, heap }
}

fn case(name: &str, ranks: usize, set: impl Fn(&mut ParallelConfig)) -> Case {
    let mut config = ParallelConfig::default();
    set(&mut config);
    Case {
        name: name.into(),
        ranks,
        config,
        activations: ActivationConfig::default(),
        types: ParamStorage::default(),
        optim: OptimConfig { clip: 0.0, ..OptimConfig::default() },
    }
}

fn pipeline(name: &str, schedule: &str, ranks: usize, set: impl Fn(&mut ParallelConfig)) -> Case {
    case(name, ranks, |config| {
        (config.pipeline, config.schedule) = (2, schedule.into());
        set(config);
    })
}

fn cases() -> Vec<Case> {
    let stage = |stage| move |config: &mut ParallelConfig| config.stage = stage;
    let none = |_: &mut ParallelConfig| {};
    let mut cases = vec![
        case("one rank", 1, none),
        case("ddp", 2, none),
        case("zero1", 2, stage(Stage::Zero1)),
        case("zero2", 2, stage(Stage::Zero2)),
        case("zero3", 2, stage(Stage::Zero3)),
        case("zero1 of 4", 4, stage(Stage::Zero1)),
        case("zero2 of 4", 4, stage(Stage::Zero2)),
        case("zero3 of 4", 4, stage(Stage::Zero3)),
        case("zero3 in copies", 4, |c| (c.stage, c.shard) = (Stage::Zero3, 2)),
        case("ddp in int8", 2, |c| c.reduce_dtype = ReduceDType::Int8),
        case("zero2 in int8", 2, |c| (c.stage, c.reduce_dtype) = (Stage::Zero2, ReduceDType::Int8)),
        case("tensor", 2, |c| c.tensor = 2.into()),
        case("tensor, blocking", 2, |c| (c.tensor, c.overlap) = (2.into(), false)),
        case("sequence", 2, |c| (c.tensor, c.sequence) = (2.into(), true)),
        case("sequence, zero1", 4, |c| (c.tensor, c.sequence, c.stage) = (2.into(), true, Stage::Zero1)),
        case("sequence, zero3", 4, |c| (c.tensor, c.sequence, c.stage) = (2.into(), true, Stage::Zero3)),
        case("context", 2, |c| c.context = 2),
        case("context, zero1", 4, |c| (c.context, c.stage) = (2, Stage::Zero1)),
        case("context, tensor", 4, |c| (c.context, c.tensor) = (2, 2.into())),
        pipeline("gpipe", "gpipe", 2, none),
        pipeline("1f1b", "1f1b", 2, none),
        pipeline("interleaved", "interleaved", 2, none),
        pipeline("zb-h1", "zb-h1", 2, none),
        pipeline("zb-v", "zb-v", 2, none),
        pipeline("chimera", "chimera", 2, none),
        pipeline("1f1b, zero1", "1f1b", 4, stage(Stage::Zero1)),
        pipeline("1f1b, zero2", "1f1b", 4, stage(Stage::Zero2)),
        pipeline("1f1b, zero3", "1f1b", 4, stage(Stage::Zero3)),
        pipeline("1f1b, sequence", "1f1b", 4, |c| (c.tensor, c.sequence) = (2.into(), true)),
    ];
    let formed = |name: &str, form: &dyn Fn(&mut Case)| {
        let mut case = case(name, 2, |config| config.stage = Stage::Zero1);
        form(&mut case);
        case
    };
    cases.extend([
        formed("zero1, recompute full", &|c| c.activations.recompute = Recompute::Full.into()),
        formed("zero1, recompute none", &|c| c.activations.recompute = Recompute::None.into()),
        formed("zero1, recompute attention", &|c| c.activations.recompute = Recompute::Attention.into()),
        formed("zero1, activations in bf16", &|c| c.activations.storage = Storage::Bf16),
        formed("zero1, weights in bf16", &|c| {
            c.types = ParamStorage { weights: ParamDType::Bf16, gradients: ParamDType::Bf16 };
        }),
        formed("zero1, Muon", &|c| c.optim.optimizer = bessemer_optim::OptimizerChoice::Muon),
    ]);
    cases
}

/// Share by which plan and allocation may differ.
const WITHIN: f64 = 0.005;

fn check(cases: Vec<Case>) {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let mib = |bytes: u64| bytes as f64 / (1 << 20) as f64;
    let mut worst = 0.0f64;
    println!("{:<28} {:>12} {:>12} {:>10} {:>9}", "layout", "planned MiB", "device MiB", "heap MiB", "error");
    for case in &cases {
        let found = held(case);
        let Held { planned, device, heap } = found;
        println!(
            "{:<28} {:>12.3} {:>12.3} {:>10.3} {:>+8.3} %",
            case.name,
            mib(planned),
            mib(device),
            mib(heap),
            100.0 * found.error()
        );
        worst = worst.max(found.error().abs());
    }
    println!("{} layouts, at most {:.3} % apart", cases.len(), 100.0 * worst);
    assert!(worst <= WITHIN, "a plan is {:.3} % from what is allocated", 100.0 * worst);
}

#[test]
fn a_few_layouts_hold_what_is_planned() {
    let few = ["zero2", "sequence", "1f1b"];
    check(cases().into_iter().filter(|case| few.contains(&case.name.as_str())).collect());
}

#[test]
#[ignore = "35 layouts take a minute: cargo test --release -p bessemer-train --test memory -- --ignored --nocapture"]
fn every_layout_holds_what_is_planned() {
    check(cases());
}

/// Reads the heap of the process once all ranks have done the steps before a checkpoint.
struct ReadHeap<'a> {
    barrier: &'a Barrier,
    at: u64,
    heap: u64,
}

impl Observer for ReadHeap<'_> {
    fn record(&mut self, _: &Record) {}

    fn begins(&mut self, _: bessemer_train::Activity, step: u64) {
        if step == self.at && self.heap == 0 {
            self.barrier.wait();
            self.heap = live_bytes();
            self.barrier.wait();
        }
    }

    fn message(&mut self, _: &str) {}

    fn progress(&mut self, _: &str, _: u64, _: u64) {}
}

/// Heap of all ranks of a run after two steps, none of which is saved.
fn heap_of_training(recipe: &Recipe, ranks: usize) -> u64 {
    let directory = tempfile::tempdir().unwrap();
    let (tokenizer, train) = place::data(&directory.path().join("shards"), "train", false);
    let before = live_bytes();
    let worlds = ThreadCommunicator::world("world", ranks, &ThreadSettings::default());
    let worlds = worlds.into_iter().map(|world| Box::new(world) as Box<dyn Communicator>).collect();
    let barrier = Barrier::new(ranks);
    let heaps = on_threads::<u64>(worlds, |world| {
        let input = TrainerInput {
            recipe: recipe.clone(),
            recipe_text: String::new(),
            tokenizer: Arc::clone(&tokenizer),
            train: Arc::clone(&train),
            validation: None,
            former: None,
            tasks: Default::default(),
            directory: bessemer_durable::ConfinedDir::open(directory.path()).unwrap(),
            memory_available: Bytes(4 << 30),
            peak: None,
        };
        let backend = CpuBackend::new(CpuConfig { threads: 1, ..CpuConfig::default() }).unwrap();
        let mut trainer = Trainer::on_rank(input, Box::new(backend), world)?;
        let mut reads = ReadHeap { barrier: &barrier, at: 2, heap: 0 };
        trainer.run(&mut reads, &AtomicBool::new(false))?;
        Ok(reads.heap)
    });
    heaps.unwrap().into_iter().max().unwrap() - before
}

/// Copies of the state for checkpoints that are written during training take the memory that the plan counts for them, on every rank.
#[test]
fn copies_for_checkpoints_take_what_is_planned() {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    for (ranks, layout) in [(1, "parallel.data=ddp"), (2, "parallel.data=zero1"), (2, "parallel.pipeline=2")]
    {
        let of = |asynchronous: &str| {
            let mode = format!("save.async={asynchronous}");
            let model = ["model.layers=4", "model.width=128", "model.heads=4", "model.kv_heads=4"];
            let run = ["train.steps=3", "save.every_steps=100", "save.at_end=false", layout, &mode];
            place::recipe(&[&model[..], &run].concat())
        };
        let [off, on] = ["off", "on"].map(|mode| heap_of_training(&of(mode), ranks));
        let recipe = of("on");
        let model = recipe.model.resolve_for(place::tokenizer().vocab_size(), None).unwrap();
        let plan = planned_memory(&recipe, ranks, &model).unwrap();
        let copies: u64 = copies_on_host(&recipe, ranks, &plan).iter().map(|(_, bytes)| bytes.0).sum();
        let total = plan.buffers.total().0 + copies;
        let found = (on - off) as f64 / ranks as f64;
        let error = (copies as f64 - found) / total as f64;
        println!(
            "{layout}, {ranks} ranks: copies {copies} planned, {found:.0} held, {:+.3} % of the {total} of a rank",
            100.0 * error
        );
        assert!(copies as f64 > 0.2 * total as f64, "{copies} of {total}");
        assert!(error.abs() <= WITHIN, "{layout}: {copies} bytes planned, {found} held");
    }
}
