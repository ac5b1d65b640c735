//! Memory that ranks take while they train, against the memory that a dry run on the null backend predicts. Alone in its file:
//! another test's allocations would be counted too.
#![allow(clippy::unwrap_used, reason = "a failed unwrap here is a failed test")]

use bessemer_arch::{Model, ModelConfig};
use bessemer_collectives::{Communicator, NullCommunicator, ThreadCommunicator, ThreadSettings};
use bessemer_fixture::Repeated;
use bessemer_kernels_cpu::{CpuBackend, CpuConfig};
use bessemer_optim::{OptimConfig, StateChoice};
use bessemer_parallel::{ContextMethod, Job, ParallelConfig, Plan, SecondMemory, Worker};
use bessemer_runtime::{ActivationConfig, Purpose, Shape, StepContext};
use bessemer_tensor::Backend;
use bessemer_tensor::null::NullBackend;
use bessemer_test_tier::part;
use bessemer_units::{Bytes, Compression, Offload, ParamStorage, Recompute, RecomputePlan, Storage};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::process::Command;
use std::sync::Barrier;

const SHAPE: Shape = Shape { sequences: 16, seq: 128, purpose: Purpose::Train };
/// Programs, lists and stacks of a rank, which no plan counts.
const HOST: u64 = 2 << 20;
const VOCABULARY: u32 = 64;
const MICRO_BATCHES: usize = 4;
/// A micro-batch of ranks that share one sequence.
const LONG: Shape = Shape { sequences: 1, seq: 4096, purpose: Purpose::Train };
/// Activations of a rank, less than if everything is kept.
const BUDGET: Bytes = Bytes(12 << 20);

fn model(context: usize) -> Model {
    let config = ModelConfig {
        architecture: "gpt2".into(),
        vocab_size: u64::from(VOCABULARY),
        layers: Some(4),
        width: Some(64),
        heads: Some(4),
        context: Some(context as u64),
        dropout: 0.1,
        ..ModelConfig::default()
    };
    config.resolve(None).unwrap()
}

/// A second memory without a name.
struct Unnamed(File);

impl Unnamed {
    fn create(rank: usize) -> Unnamed {
        let path = std::env::temp_dir().join(format!("offload-{}-{rank}", std::process::id()));
        let file = File::options().read(true).write(true).create_new(true).open(&path).unwrap();
        std::fs::remove_file(path).unwrap();
        Unnamed(file)
    }
}

impl SecondMemory for Unnamed {
    fn name(&self) -> String {
        "a file".into()
    }

    fn write_at(&mut self, at: u64, bytes: &[u8]) -> io::Result<()> {
        self.0.write_all_at(bytes, at)
    }

    fn read_at(&mut self, at: u64, bytes: &mut [u8]) -> io::Result<()> {
        self.0.read_exact_at(bytes, at)
    }
}

/// Memory of all ranks, in bytes.
#[derive(Debug, Default, Clone, Copy)]
struct Held {
    activations: u64,
    /// Parameters, gradients, optimizer state, buffers of collectives.
    rest: u64,
}

fn predicted(job: &Job<'_>) -> Held {
    let mut held = Held::default();
    for rank in 0..job.plan.ranks() {
        let mut null = NullBackend::new();
        let world = Box::new(NullCommunicator::new("world", rank, job.plan.ranks()));
        let worker = Worker::new(&mut null, job, world).unwrap();
        held.rest += worker.staging_bytes();
        for (class, bytes) in null.memory().classes {
            *(if class == "activations" { &mut held.activations } else { &mut held.rest }) += bytes.0;
        }
    }
    held
}

/// Bytes of memory of the process that something has been written to.
#[cfg(target_os = "linux")]
fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10
}

/// Number of the one case that a process measures.
const ALONE: &str = "BESSEMER_MEASURED_CASE";

/// Measures a case in a process of its own. Returns its output, as an error if it has failed.
fn in_a_process(case: usize) -> Result<String, String> {
    let mut test = Command::new(std::env::current_exe().unwrap());
    let done = test.args(["--exact", NAME, "--nocapture"]).env(ALONE, case.to_string()).output().unwrap();
    let text = String::from_utf8_lossy(&done.stderr).into_owned();
    let ran = String::from_utf8_lossy(&done.stdout).contains("1 passed");
    if done.status.success() && ran { Ok(text) } else { Err(text) }
}

/// Name of the test.
const NAME: &str = "activations_take_the_predicted_memory_under_every_policy";

/// Memory of one step of all ranks.
#[derive(Debug, Default)]
struct Measured {
    /// Activations in the arenas of the devices.
    activations: u64,
    workspace: u64,
    /// Growth of resident memory.
    touched: u64,
}

fn measured(job: &Job<'_>) -> Measured {
    let before = resident();
    let ranks = job.plan.ranks();
    let world = ThreadCommunicator::world("world", ranks, &ThreadSettings::default());
    let done = Barrier::new(ranks);
    let rank = |world: Box<dyn Communicator>| {
        let mut cpu = CpuBackend::new(CpuConfig { threads: 1, ..CpuConfig::default() }).unwrap();
        let mut worker = Worker::new(&mut cpu, job, world).unwrap();
        worker.init(&mut cpu, 1).unwrap();
        if worker.second_memory_bytes() > 0 {
            worker.set_second_memory(Box::new(Unnamed::create(worker.rank()))).unwrap();
        }
        let planned = cpu.memory();
        let ctx = StepContext { seed: 1, step: 0, first_sequence: 0, loss_scale: 1e-4, accumulate: false };
        let ids = (0..job.shape.tokens() as u32).map(|i| i % VOCABULARY).collect();
        worker.gradients(&mut cpu, &mut Repeated { ids, ctx }).unwrap();
        worker.apply(&mut cpu, 1, 1e-3, 1.0).unwrap();
        assert_eq!(cpu.memory(), planned, "a step asks for no memory");
        done.wait();
        let touched = resident() - before;
        done.wait();
        let activations = planned.classes.iter().find(|c| c.0 == "activations").unwrap().1.0;
        Measured { activations, workspace: planned.workspace.0, touched }
    };
    std::thread::scope(|scope| {
        let rank = &rank;
        let ranks: Vec<_> = world.into_iter().map(|c| scope.spawn(move || rank(Box::new(c)))).collect();
        let mut all = Measured::default();
        for found in ranks.into_iter().map(|rank| rank.join().unwrap()) {
            all.activations += found.activations;
            all.workspace += found.workspace;
            all.touched = all.touched.max(found.touched);
        }
        all
    })
}

#[test]
fn activations_take_the_predicted_memory_under_every_policy() {
    let (models, optim) = ([SHAPE, LONG].map(|shape| model(shape.seq)), OptimConfig::default());
    let tensor = |sequence, partition_activations| ParallelConfig {
        tensor: 2.into(),
        sequence,
        partition_activations,
        ..ParallelConfig::default()
    };
    let pipeline = |schedule: &str, chunks| ParallelConfig {
        pipeline: 2,
        schedule: schedule.into(),
        chunks,
        ..ParallelConfig::default()
    };
    // Rings between two groups of two ranks that exchange heads.
    let rings = ParallelConfig {
        context: 4,
        context_heads: 2,
        context_method: ContextMethod::Ring,
        ..ParallelConfig::default()
    };
    // Ranks, layout, and whether every policy is measured.
    let layouts = [
        (1, ParallelConfig::default(), true),
        (2, tensor(false, false), false),
        (2, tensor(false, true), false),
        (2, tensor(true, false), true),
        (2, pipeline("1f1b", 0), true),
        (2, pipeline("interleaved", 2), false),
        (2, pipeline("zb-h1", 0), false),
        (4, rings, false),
    ];
    let policies = [
        Recompute::None,
        Recompute::Selective,
        Recompute::Attention,
        Recompute::AttentionOutput,
        Recompute::Full,
    ];
    let policies = policies.map(RecomputePlan::from).into_iter();
    // One of two micro-batches in flight keeps everything.
    let policies = policies.chain([RecomputePlan { stored_micro_batches: 1, ..Recompute::Full.into() }]);
    // Layers that recompute under a budget, for micro-batches of two lengths.
    let budget = RecomputePlan { activation_memory: Some(BUDGET), ..Recompute::InputAware.into() };
    let policies = policies.chain([budget.clone()]);
    // Compression of stored activations, and the moments of the optimizer.
    let (none, f32, here) = (Compression::None, StateChoice::F32, Offload::None);
    let mut cases = Vec::new();
    for (ranks, config, every) in &layouts {
        let policies = policies.clone().map(|policy| (policy, Storage::F32));
        for (recompute, storage) in policies.chain([(Recompute::None.into(), Storage::Bf16)]) {
            let named = [Recompute::None, Recompute::Full].map(RecomputePlan::from);
            if *every || named.contains(&recompute) {
                cases.push((*ranks, config, recompute, storage, none, f32, here));
            }
        }
        // Layers store the same in all layouts but those that share sequences.
        if !*every && config.context == 1 {
            continue;
        }
        for (recompute, storage, form, state) in [
            (Recompute::None, Storage::F32, Compression::Bf16, StateChoice::Int8),
            (Recompute::None, Storage::F32, Compression::Int8, f32),
            (Recompute::Selective, Storage::Bf16, Compression::Int8, StateChoice::Int8Embeddings),
        ] {
            cases.push((*ranks, config, recompute.into(), storage, form, state, here));
        }
        for (recompute, storage, form) in [
            (Recompute::None, Storage::F32, none),
            (Recompute::Full, Storage::F32, none),
            (Recompute::Selective, Storage::Bf16, Compression::Int8),
        ] {
            cases.push((*ranks, config, recompute.into(), storage, form, f32, Offload::Disk));
        }
        if *every {
            cases.push((*ranks, config, budget.clone(), Storage::F32, none, f32, Offload::Disk));
        }
    }
    // Buffers that the system's allocator keeps after they are dropped would hide those of the next case, so each case with offloaded
    // activations is a process of its own.
    let alone: Option<usize> = std::env::var(ALONE).ok().map(|case| case.parse().unwrap());
    let mut wrong = Vec::new();
    for (number, case) in part(cases.into_iter().enumerate(), 0, 2) {
        let (ranks, config, recompute, storage, form, state, offload) = case;
        let apart = offload != Offload::None;
        if alone.is_some_and(|alone| alone != number) {
            continue;
        }
        if apart && alone.is_none() {
            match in_a_process(number) {
                Ok(text) => eprint!("{text}"),
                Err(text) => wrong.push(text),
            }
            continue;
        }
        let optim = OptimConfig { state, ..optim.clone() };
        let (shape, model) = if config.context > 1 { (LONG, &models[1]) } else { (SHAPE, &models[0]) };
        let plan = Plan::new(config, ranks, model, optim.optimizer).unwrap();
        let several = recompute.budget().is_some();
        let lengths = if several { vec![32] } else { Vec::new() };
        let activations = ActivationConfig {
            storage,
            recompute: recompute.clone(),
            lengths,
            compression: form.into(),
            offload: offload.into(),
            in_gradients: true,
            ..ActivationConfig::default()
        };
        let job = Job {
            model,
            shape,
            activations,
            types: ParamStorage::default(),
            optim: &optim,
            losses: &[],
            plan: &plan,
            program: &plan.program(if config.pipeline > 1 { MICRO_BATCHES } else { 1 }, 1, None).unwrap(),
        };
        let (wanted, found) = (predicted(&job), measured(&job));
        let planned = wanted.activations + wanted.rest + found.workspace;
        let line = format!(
            "{} {recompute} {storage} {form} {offload} {state:?}: planned {wanted:?}, found {found:?}",
            plan.summary()
        );
        eprintln!("{line} {:.4}", found.touched as f64 / planned as f64);
        // Ranks as threads hold copies of the matrices that travel between them: of a ring keys, values and the sums of their gradients, with
        // the sender, on the way and with the receiver, and some that wait.
        let rows = (4 * shape.tokens() * model.width) as u64;
        let travel = match (config.tensor > 1, config.context) {
            (true, _) => 6 * rows,
            (false, 1) => 0,
            (false, ranks) => 16 * rows / ranks,
        };
        let beside = ranks as u64 * (HOST + travel);
        let most = 1.02 * planned as f64 + beside as f64;
        // A schedule that splits its backward passes uses fewer of the sets that it may need, and of the buffers of both parts.
        let least = if config.schedule == "zb-h1" { 0.8 } else { 0.98 } * planned as f64;
        if several && found.activations > ranks as u64 * BUDGET.0 {
            wrong.push(format!("{line}: above the budget"));
        }
        if found.activations != wanted.activations || !(least..most).contains(&(found.touched as f64)) {
            wrong.push(line);
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
