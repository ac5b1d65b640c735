//! A warm step of several ranks allocates no memory, on no thread of any rank. Alone in its file: another test's allocations
//! would be counted too.
#![allow(clippy::unwrap_used, reason = "a failed unwrap here is a failed test")]

use bessemer_arch::{Experts, Model, ModelConfig};
use bessemer_collectives::{
    ChannelTransport, Communicator, FlightRecorder, Ledger, MessageCommunicator, MessageSettings,
    ThreadCommunicator, ThreadSettings,
};
use bessemer_counting_alloc::{CountingAllocator, allocations};
use bessemer_kernels_cpu::{CpuBackend, CpuConfig};
use bessemer_optim::{KfacConfig, OptimConfig, OptimizerChoice};
use bessemer_parallel::{
    BatchSource, ContextMethod, Job, ParallelConfig, ParallelError, Plan, SecondMemory, Stage, Worker,
};
use bessemer_runtime::{ActivationConfig, Purpose, Shape, StepContext, TokenBatch};
use bessemer_test_tier::part;
use bessemer_units::{Offload, ParamDType, ParamStorage, ReduceDType};
use std::io;
use std::sync::{Arc, Mutex};

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

const RANKS: usize = 4;
/// Rows of a micro-batch: so many that products on the tensor axis are computed and sent in pieces.
const SEQ: usize = 128;
const VOCABULARY: u32 = 48;
const MICRO_BATCHES: usize = 4;
/// Rounds at most; see the test.
const ROUNDS: usize = 32;
/// Rounds that may allocate memory.
const WARM: usize = 4;

fn model() -> Model {
    let config = ModelConfig {
        architecture: "llama".into(),
        vocab_size: u64::from(VOCABULARY),
        layers: Some(2),
        width: Some(32),
        heads: Some(4),
        context: Some(SEQ as u64),
        ..ModelConfig::default()
    };
    config.resolve(None).unwrap()
}

/// Threads with the wrappers that a run has, or messages.
fn world(messages: bool) -> Vec<Box<dyn Communicator>> {
    let recorder = FlightRecorder::new(RANKS, 64);
    let wrapped = |rank: usize, inner: Box<dyn Communicator>| recorder.wrap(rank, Ledger::new().wrap(inner));
    if messages {
        let over = |t| MessageCommunicator::world("world", Arc::new(t), &MessageSettings::default());
        let boxed = |(r, t)| wrapped(r, Box::new(over(t)) as Box<dyn Communicator>);
        return ChannelTransport::world(RANKS).into_iter().enumerate().map(boxed).collect();
    }
    let boxed = |(r, c)| wrapped(r, Box::new(c) as Box<dyn Communicator>);
    let world = ThreadCommunicator::world("world", RANKS, &ThreadSettings::default());
    world.into_iter().enumerate().map(boxed).collect()
}

/// Lengths of the micro-batches of a step, where there are several.
const LENGTHS: [usize; MICRO_BATCHES] = [32, 64, SEQ, 32];

/// One micro-batch again and again, or the beginnings of it.
struct Same<'a> {
    ids: &'a [u32],
    ctx: StepContext,
    several: bool,
}

impl BatchSource for Same<'_> {
    fn micro_batch(&mut self, micro: usize) -> Result<(TokenBatch<'_>, StepContext), ParallelError> {
        let ids = &self.ids[..self.length(micro)?.unwrap_or(SEQ)];
        Ok((TokenBatch { ids, targets: ids, positions: None }, self.ctx))
    }

    fn length(&mut self, micro: usize) -> Result<Option<usize>, ParallelError> {
        Ok(self.several.then_some(LENGTHS[micro]))
    }
}

/// A second memory in memory.
struct HostMemory(Vec<u8>);

impl SecondMemory for HostMemory {
    fn name(&self) -> String {
        "host memory".into()
    }

    fn write_at(&mut self, at: u64, bytes: &[u8]) -> io::Result<()> {
        self.0[at as usize..][..bytes.len()].copy_from_slice(bytes);
        Ok(())
    }

    fn read_at(&mut self, at: u64, bytes: &mut [u8]) -> io::Result<()> {
        bytes.copy_from_slice(&self.0[at as usize..][..bytes.len()]);
        Ok(())
    }
}

/// Properties that differ from job to job besides the layout.
#[derive(Debug, Clone, Copy)]
struct Settings {
    optimizer: OptimizerChoice,
    types: ParamStorage,
    /// Micro-batches have several lengths.
    several: bool,
    offload: Offload,
}

/// Whether the last two rounds, both warm, allocated nothing.
fn is_quiet(counts: &[u64]) -> bool {
    counts.len() >= WARM + 2 && counts.ends_with(&[0, 0])
}

/// Allocations of all ranks in each of some steps, until they are quiet.
fn rank(
    model: &Model,
    (config, settings): (&ParallelConfig, Settings),
    world: Box<dyn Communicator>,
    counts: &Mutex<Vec<u64>>,
) {
    let Settings { optimizer, types, several, offload } = settings;
    let kfac = KfacConfig { inverse_every: 1, ..KfacConfig::default() };
    let optim = OptimConfig { optimizer, kfac, ..OptimConfig::default() };
    let experts = Experts::top_k([4, 2, 16], true);
    let model = &Model { experts: (config.experts > 1).then_some(experts), ..model.clone() };
    let plan = Plan::new(config, RANKS, model, optim.optimizer).unwrap();
    let mut cpu = CpuBackend::new(CpuConfig { threads: 1, ..CpuConfig::default() }).unwrap();
    let job = Job {
        model,
        shape: Shape { sequences: 1, seq: SEQ, purpose: Purpose::Train },
        activations: ActivationConfig {
            lengths: if several { LENGTHS.to_vec() } else { Vec::new() },
            offload: offload.into(),
            ..ActivationConfig::default()
        },
        types,
        optim: &optim,
        losses: &[],
        plan: &plan,
        program: &plan.program(MICRO_BATCHES, 1, None).unwrap(),
    };
    let mut worker = Worker::new(&mut cpu, &job, world).unwrap();
    if offload != Offload::None {
        let bytes = vec![0; worker.second_memory_bytes() as usize];
        worker.set_second_memory(Box::new(HostMemory(bytes))).unwrap();
    }
    worker.init(&mut cpu, 1).unwrap();
    let ids: Vec<u32> = (0..SEQ as u32).map(|i| i % VOCABULARY).collect();
    let scale = 1.0 / (MICRO_BATCHES * SEQ * plan.data_ranks()) as f32;
    for round in 0..ROUNDS as u64 {
        // Recording once costs nothing later.
        worker.keep_notes(round == 1);
        worker.world().barrier("start").unwrap();
        let before = allocations();
        worker.world().barrier("counted").unwrap();
        let ctx =
            StepContext { seed: 1, step: round, first_sequence: 0, loss_scale: scale, accumulate: false };
        let sum = worker.gradients(&mut cpu, &mut Same { ids: &ids, ctx, several }).unwrap();
        worker.sum_over_data(sum).unwrap();
        let norm = worker.grad_norm(&mut cpu).unwrap();
        worker.apply(&mut cpu, round + 1, 1e-3, norm).unwrap();
        assert_eq!(worker.broadcast_from_root("stop", round).unwrap(), round);
        worker.world().barrier("end").unwrap();
        if round == 1 {
            let pieces = worker.take_notes().calls.iter().any(|call| call.name.contains("some rows"));
            // Ranks that share the sequence have too few rows for pieces.
            let wanted = config.tensor.ranks() > 1 && config.overlap && config.context == 1;
            assert_eq!(pieces, wanted, "rows in pieces: {config:?}");
        }
        let asked = allocations() - before;
        worker.world().barrier("all have counted").unwrap();
        let mut enough = false;
        if worker.rank() == 0 {
            let mut counts = counts.lock().unwrap();
            counts.push(asked);
            enough = is_quiet(&counts);
        }
        if worker.broadcast_from_root("quiet", u64::from(enough)).unwrap() == 1 {
            break;
        }
    }
}

/// Two warm rounds in a row allocate nothing, sooner or later: a thread that the system starts late allocates its name in one
/// round, and how many messages are in flight at once, each in a buffer of a pool, depends on timing; but a step's own
/// allocations are in each round.
#[test]
fn a_warm_step_of_several_ranks_asks_for_no_memory() {
    let model = model();
    let (ddp, tensor) = (Stage::Ddp, 2);
    let of = |stage, tensor: u64, sequence, overlap| ParallelConfig {
        stage,
        tensor: tensor.into(),
        sequence,
        overlap,
        ..ParallelConfig::default()
    };
    let pipe =
        |pipeline, schedule: &str, config| ParallelConfig { pipeline, schedule: schedule.into(), ..config };
    let int8 = |config| ParallelConfig { reduce_dtype: ReduceDType::Int8, ..config };
    let spread = |experts, config| ParallelConfig { experts, ..config };
    let shared = |context, context_method, config| ParallelConfig { context, context_method, ..config };
    let layouts = [
        shared(2, ContextMethod::AllGather, of(ddp, 1, false, true)),
        shared(4, ContextMethod::Ulysses, of(ddp, 1, false, true)),
        of(ddp, 1, false, true),
        of(ddp, tensor, false, false),
        of(Stage::Zero1, tensor, true, true),
        of(Stage::Zero2, 1, false, false),
        of(Stage::Zero3, tensor, true, true),
        ParallelConfig { shard: 2, ..of(Stage::Zero3, 1, false, true) },
        pipe(2, "1f1b", of(ddp, tensor, true, true)),
        pipe(2, "zb-v", of(Stage::Zero1, 1, false, true)),
        pipe(2, "chimera", of(ddp, 1, false, true)),
        pipe(4, "zb-h1", of(ddp, 1, false, false)),
        shared(4, ContextMethod::Ring, of(ddp, 1, false, true)),
        shared(4, ContextMethod::LightSeq, of(ddp, 1, false, false)),
        shared(2, ContextMethod::Ring, of(ddp, tensor, true, true)),
        shared(2, ContextMethod::Ulysses, of(ddp, tensor, false, true)),
        spread(2, of(ddp, 1, false, true)),
        spread(4, of(Stage::Zero3, 1, false, true)),
        spread(2, of(Stage::Zero2, tensor, true, true)),
        int8(of(ddp, 1, false, true)),
        int8(of(Stage::Zero2, tensor, true, false)),
        int8(ParallelConfig { shard: 2, ..of(Stage::Zero3, 1, false, true) }),
        int8(pipe(2, "chimera", of(ddp, 1, false, true))),
    ];
    let mut wrong = Vec::new();
    use OptimizerChoice::{Adafactor, AdamW, Kfac, Muon};
    let (wide, narrow) = (ParamStorage::default(), ParamStorage::both(ParamDType::Bf16));
    let of = |optimizer, types, several| Settings { optimizer, types, several, offload: Offload::None };
    let element_wise = layouts.iter().map(|l| (l, of(AdamW, wide, false)));
    let short = layouts.iter().map(|l| (l, of(AdamW, narrow, false)));
    // Excludes context parallelism, and schedules that split backward passes.
    let several = [2, 3, 4, 6, 8, 10].map(|at| (&layouts[at], of(AdamW, wide, true)));
    let disk = |settings: Settings| Settings { offload: Offload::Disk, ..settings };
    let away = layouts
        .iter()
        .map(|l| (l, disk(of(AdamW, wide, false))))
        .chain([(&layouts[2], disk(of(AdamW, wide, true)))]);
    // Matrices that are owned and cut.
    let whole =
        [Muon, Adafactor, Kfac].into_iter().flat_map(|o| [2, 4].map(|at| (&layouts[at], of(o, wide, false))));
    let all: Vec<_> = element_wise.chain(whole).chain(short).chain(several).chain(away).collect();
    for messages in [false, true] {
        // Each in one of the two ways, in a soak in both.
        for &(config, settings) in part(&all, usize::from(messages), 2) {
            let counts = Mutex::new(Vec::with_capacity(ROUNDS));
            std::thread::scope(|scope| {
                for c in world(messages) {
                    let (model, counts) = (&model, &counts);
                    scope.spawn(move || rank(model, (config, settings), c, counts));
                }
            });
            let counts = counts.into_inner().unwrap();
            if !is_quiet(&counts) {
                wrong.push(format!("messages: {messages}, {settings:?}, {config:?}: {counts:?}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
