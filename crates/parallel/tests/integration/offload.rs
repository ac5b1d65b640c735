//! Offloaded activations in jobs: every layout has the bits that it has without, moves the bytes that its programs state, and ends with
//! an error where the second memory fails.

use crate::pipelines::{STEPS, model};
use bessemer_arch::Model;
use bessemer_collectives::{Communicator, ThreadCommunicator, ThreadSettings};
use bessemer_fixture::{SEQ, Text, params};
use bessemer_mesh::ContextMethod;
use bessemer_optim::OptimConfig;
use bessemer_parallel::{
    Job, OffloadTraffic, ParallelConfig, ParallelError, Plan, SecondMemory, Stage, Worker,
};
use bessemer_runtime::{ActivationConfig, Purpose, Shape, WeighedLoss};
use bessemer_tensor::Backend;
use bessemer_units::{Compression, Offload, OffloadPlan, ParamStorage, Recompute, Storage};
use std::collections::BTreeMap;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Micro-batches of a step, and sequences of them all.
const MICRO_BATCHES: usize = 4;
const SEQUENCES: u64 = 16;

/// A copy that fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    Write(u64),
    Read(u64),
    /// The memory panics when it is written so many times.
    Panic(u64),
}

/// A second memory in memory, and the bytes that have come and gone.
struct HostMemory {
    bytes: Vec<u8>,
    fault: Option<Fault>,
    copies: (u64, u64),
    moved: &'static (AtomicU64, AtomicU64),
}

impl SecondMemory for HostMemory {
    fn name(&self) -> String {
        "host memory".into()
    }

    fn write_at(&mut self, at: u64, bytes: &[u8]) -> io::Result<()> {
        self.copies.0 += 1;
        match self.fault {
            Some(Fault::Write(number)) if number == self.copies.0 => {
                return Err(io::Error::from(io::ErrorKind::StorageFull));
            }
            Some(Fault::Panic(number)) if number == self.copies.0 => panic!("the memory breaks"),
            _ => {}
        }
        self.moved.0.fetch_add(bytes.len() as u64, Ordering::Relaxed);
        self.bytes[at as usize..][..bytes.len()].copy_from_slice(bytes);
        Ok(())
    }

    fn read_at(&mut self, at: u64, bytes: &mut [u8]) -> io::Result<()> {
        self.copies.1 += 1;
        if self.fault == Some(Fault::Read(self.copies.1)) {
            return Err(io::Error::from(io::ErrorKind::UnexpectedEof));
        }
        self.moved.1.fetch_add(bytes.len() as u64, Ordering::Relaxed);
        bytes.copy_from_slice(&self.bytes[at as usize..][..bytes.len()]);
        Ok(())
    }
}

/// Results of a rank: losses and norms of the steps, its parameters after the last.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Done {
    pub(crate) losses: Vec<u64>,
    norms: Vec<u64>,
    params: BTreeMap<String, Vec<f32>>,
}

/// One rank of a job. `fault`: of the second memory of rank 0.
fn rank(
    model: &Model,
    config: &ParallelConfig,
    (activations, optim): (ActivationConfig, OptimConfig),
    fault: Option<Fault>,
    world: Box<dyn Communicator>,
    device: &mut dyn Backend,
) -> Result<Done, ParallelError> {
    let plan = Plan::new(config, world.size(), model, optim.optimizer)?;
    let per_rank = SEQUENCES / plan.data_ranks() as u64;
    let micro_batches = if config.one_sequence() { per_rank as usize } else { MICRO_BATCHES };
    let sequences = per_rank / micro_batches as u64;
    let job = Job {
        model,
        shape: Shape { sequences: sequences as usize, seq: SEQ, purpose: Purpose::Train },
        activations,
        types: ParamStorage::default(),
        optim: &optim,
        losses: &[WeighedLoss::z_loss(1e-3)],
        plan: &plan,
        program: &plan.program(micro_batches, 1, None)?,
    };
    let mut worker = Worker::new(device, &job, world)?;
    let moved: &'static (AtomicU64, AtomicU64) = Box::leak(Box::default());
    let bytes = worker.second_memory_bytes();
    assert_eq!(bytes > 0, job.activations.offload.is_on());
    if bytes > 0 {
        let fault = fault.filter(|_| worker.rank() == 0);
        worker.set_second_memory(Box::new(HostMemory {
            bytes: vec![0; bytes as usize],
            fault,
            copies: (0, 0),
            moved,
        }))?;
    }
    worker.init(device, 3)?;
    let first = plan.data_index(worker.coord()) as u64 * per_rank;
    let mut done = Done { losses: Vec::new(), norms: Vec::new(), params: BTreeMap::new() };
    let mut text = Text { first, sequences, all: SEQUENCES, ..Text::default() };
    for step in 0..STEPS {
        text.step = step;
        let sum = worker.gradients(device, &mut text)?;
        done.losses.push(worker.sum_over_data(sum)?.mean().to_bits());
        let norm = worker.grad_norm(device)?;
        done.norms.push(norm.to_bits());
        worker.apply(device, step + 1, optim.lr, norm)?;
        let (stated, steps) = (worker.step_offload_traffic(), step + 1);
        let stated = OffloadTraffic { written: steps * stated.written, read: steps * stated.read };
        assert_eq!(worker.offloaded(), stated);
        assert_eq!(
            (moved.0.load(Ordering::Relaxed), moved.1.load(Ordering::Relaxed)),
            (stated.written, stated.read)
        );
    }
    done.params = params(device, &mut worker)?;
    Ok(done)
}

fn train(
    model: &Model,
    ranks: usize,
    config: &ParallelConfig,
    activations: &ActivationConfig,
    fault: Option<Fault>,
) -> Vec<Result<Done, ParallelError>> {
    let mut devices: Vec<_> = (0..ranks).map(|_| crate::instruction_set::cpu(1)).collect();
    let optim = OptimConfig { lr: 1e-2, ..OptimConfig::default() };
    train_on(&mut devices, model, config, (activations, &optim), fault)
}

/// A rank on each device.
pub(crate) fn train_on<B: Backend>(
    devices: &mut [B],
    model: &Model,
    config: &ParallelConfig,
    (activations, optim): (&ActivationConfig, &OptimConfig),
    fault: Option<Fault>,
) -> Vec<Result<Done, ParallelError>> {
    let settings = ThreadSettings { patience: Duration::from_secs(60), ..ThreadSettings::default() };
    let worlds = ThreadCommunicator::world("world", devices.len(), &settings);
    std::thread::scope(|scope| {
        let mut ranks = Vec::new();
        for (world, device) in worlds.into_iter().zip(devices) {
            let settings = (activations.clone(), optim.clone());
            ranks.push(scope.spawn(move || rank(model, config, settings, fault, Box::new(world), device)));
        }
        ranks.into_iter().map(|r| r.join().unwrap()).collect()
    })
}

pub(crate) fn pipeline(ranks: u64, schedule: &str) -> ParallelConfig {
    ParallelConfig { pipeline: ranks, schedule: schedule.into(), ..ParallelConfig::default() }
}

fn layouts() -> Vec<(usize, ParallelConfig)> {
    let alone = ParallelConfig::default();
    let tensor = |sequence, partition_activations| ParallelConfig {
        tensor: 2.into(),
        sequence,
        partition_activations,
        ..alone.clone()
    };
    let context = |context_method| ParallelConfig { context: 2, context_method, ..alone.clone() };
    vec![
        (1, alone.clone()),
        (2, tensor(false, false)),
        (2, tensor(false, true)),
        (2, ParallelConfig { overlap: true, ..tensor(true, false) }),
        (2, context(ContextMethod::Ulysses)),
        (2, context(ContextMethod::Ring)),
        (2, ParallelConfig { stage: Stage::Zero3, overlap: true, ..alone.clone() }),
        (2, pipeline(2, "gpipe")),
        (2, pipeline(2, "1f1b")),
        (2, ParallelConfig { chunks: 2, ..pipeline(2, "interleaved") }),
        (2, pipeline(2, "zb-h1")),
        (2, pipeline(2, "zb-v")),
        (2, pipeline(2, "chimera")),
        (2, pipeline(2, "dualpipe")),
        (4, ParallelConfig { tensor: 2.into(), sequence: true, stage: Stage::Zero1, ..pipeline(2, "1f1b") }),
    ]
}

#[test]
fn every_layout_has_the_bits_that_it_has_without() {
    let policies = [
        (Storage::F32, Compression::None, Recompute::Selective, 0),
        (Storage::Bf16, Compression::Int8, Recompute::None, 0),
        (Storage::F32, Compression::None, Recompute::Full, 1),
    ];
    for layout in layouts() {
        for (storage, form, recompute, layers) in policies {
            let model = model(layout.1.pipeline == 1);
            let config = |offload: OffloadPlan| ActivationConfig {
                storage,
                recompute: recompute.into(),
                compression: form.into(),
                offload,
                ..ActivationConfig::default()
            };
            let run = |offload| -> Vec<Done> {
                let ranks = train(&model, layout.0, &layout.1, &config(offload), None);
                ranks.into_iter().map(|rank| rank.unwrap_or_else(|e| panic!("{layout:?}: {e}"))).collect()
            };
            let here = run(OffloadPlan::default());
            let away = run(OffloadPlan { to: Offload::Disk, layers });
            assert!(here == away, "{layout:?} {storage} {form} {recompute} {layers}");
        }
    }
}

/// Whichever copy fails, all ranks end, and rank 0 reports the reason.
#[test]
fn a_second_memory_that_fails_ends_the_job_with_its_error() {
    let activations = ActivationConfig { offload: Offload::Disk.into(), ..ActivationConfig::default() };
    for layout in [(1, ParallelConfig::default()), (2, pipeline(2, "1f1b"))] {
        for (fault, wanted) in [
            (Fault::Write(1), "write of"),
            (Fault::Write(17), "write of"),
            (Fault::Read(1), "read of"),
            (Fault::Read(23), "read of"),
            (Fault::Panic(5), "the thread that copies to the second memory ended"),
        ] {
            let ranks = train(&model(false), layout.0, &layout.1, &activations, Some(fault));
            assert!(ranks.iter().all(Result::is_err), "{layout:?} {fault:?}");
            let e = ranks[0].as_ref().unwrap_err().to_string();
            let advice = wanted.starts_with("the thread")
                || e.contains("host memory") && e.contains("train.offload_dir");
            assert!(e.contains(wanted) && advice, "{layout:?} {fault:?}: {e}");
        }
    }
}

#[test]
fn a_job_without_its_second_memory_says_so() {
    let (model, plan, optim) = (model(false), Plan::single(), OptimConfig::default());
    let job = Job {
        model: &model,
        shape: Shape { sequences: 2, seq: SEQ, purpose: Purpose::Train },
        activations: ActivationConfig { offload: Offload::Disk.into(), ..ActivationConfig::default() },
        types: ParamStorage::default(),
        optim: &optim,
        losses: &[],
        plan: &plan,
        program: &plan.program(1, 1, None).unwrap(),
    };
    let mut cpu = crate::instruction_set::cpu(1);
    let world = ThreadCommunicator::world("world", 1, &ThreadSettings::default()).remove(0);
    let mut worker = Worker::new(&mut cpu, &job, Box::new(world)).unwrap();
    let mut text = Text { sequences: 2, all: 2, ..Text::default() };
    let e = worker.gradients(&mut cpu, &mut text).unwrap_err().to_string();
    assert!(e.contains("Worker::set_second_memory"), "{e}");
}
