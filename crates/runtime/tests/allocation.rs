//! A warm step allocates nothing, on no thread. Alone in its file: another test's allocations would be counted too.
#![allow(clippy::unwrap_used, reason = "a failed unwrap here is a failed test")]

#[path = "../../kernels-cpu/tests/instruction_set/mod.rs"]
mod instruction_set;
#[path = "integration/tiny/mod.rs"]
mod tiny;

use bessemer_arch::Model;
use bessemer_counting_alloc::{CountingAllocator, allocations};
use bessemer_optim::OptimConfig;
use bessemer_runtime::{
    ActivationConfig, Cache, CacheShape, Decoder, NextPosition, OneDevice, Purpose, Shape, StageConfig,
    StepContext, Stream, Teacher, TokenBatch, WeighedLoss,
};
use bessemer_tensor::Backend;
use bessemer_tensor::null::NullBackend;
use bessemer_units::{Bytes, Recompute, RecomputePlan};
use tiny::{SEQ, adamw, context, cpu, decoder, models, scored, tokens};

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

fn allocations_of(work: impl FnOnce()) -> u64 {
    let before = allocations();
    work();
    allocations() - before
}

/// The model in two stages.
fn stages(b: &mut dyn Backend, model: &Model) -> Vec<Decoder> {
    let tensor_shard = model.tensor_shard(1, 0).unwrap();
    let shape = Shape { sequences: 2, seq: SEQ, purpose: Purpose::Train };
    let config = ActivationConfig::default();
    let make = |span| {
        let stage = StageConfig { span, slots: 2, pending: 1, overlap: false, shadowing: None };
        Decoder::of_stage(b, &tensor_shard, Stream::WHOLE, shape, config.clone(), &stage, None).unwrap()
    };
    model.split(2).unwrap().into_iter().map(make).collect()
}

/// Runs a micro-batch through the stages, with a whole backward pass and with a split one. (The messages between the stages do
/// not matter here.)
fn pipeline(b: &mut dyn Backend, stages: &mut [Decoder], batch: &TokenBatch<'_>, ctx: &StepContext) {
    for stage in stages {
        for slot in [0, 1] {
            stage.stage_forward(b, &mut OneDevice, slot, batch, Some(ctx)).unwrap();
        }
        let (_, pending) = stage.stage_backward_input(b, &mut OneDevice, 1, false).unwrap();
        stage.stage_backward_weight(b, &mut OneDevice, pending, false).unwrap();
        stage.stage_backward(b, &mut OneDevice, 0, true).unwrap();
    }
}

/// A decoder of micro-batches of several lengths under a budget of activations, and such micro-batches.
struct Lengths {
    decoder: Decoder,
    batches: Vec<(Vec<u32>, Vec<u32>)>,
}

impl Lengths {
    fn new(b: &mut dyn Backend, model: &Model) -> Lengths {
        let shape = Shape { sequences: 2, seq: SEQ, purpose: Purpose::Train };
        let recompute =
            RecomputePlan { activation_memory: Some(Bytes(1 << 20)), ..Recompute::InputAware.into() };
        let config = ActivationConfig { recompute, lengths: vec![4, 10], ..ActivationConfig::default() };
        let decoder = Decoder::with_activations(b, model, shape, config).unwrap();
        let (ids, targets) = tokens(5, 2);
        let batches = [4, SEQ, 10].map(|seq| (ids[..2 * seq].to_vec(), targets[..2 * seq].to_vec()));
        Lengths { decoder, batches: batches.to_vec() }
    }

    fn step(&mut self, b: &mut dyn Backend, step: u64) {
        for (ids, targets) in &self.batches {
            let batch = TokenBatch { ids, targets, positions: None };
            self.decoder.forward_backward(b, &batch, &context(step, scored(targets))).unwrap();
        }
    }
}

/// A student of a teacher of its own kind.
fn student(b: &mut dyn Backend, model: &Model) -> Decoder {
    let shape = Shape { sequences: 2, seq: SEQ, purpose: Purpose::Train };
    let teacher = Teacher::new(b, model, shape, 2.0).unwrap();
    let config = ActivationConfig { teacher: Some(teacher.operands()), ..ActivationConfig::default() };
    let mut student = Decoder::with_activations(b, model, shape, config).unwrap();
    student.weigh_losses(&[WeighedLoss::new(bessemer_model::DISTILLATION_LOSS, 1.0)]).unwrap();
    student.set_teacher(teacher).unwrap();
    student
}

/// Allocations of a warm round of training, in one piece and in stages, of scoring and decoding: the least of five, because a thread of the backend
/// that the system starts late allocates its name in one of them, while a step's own allocations are in each.
fn warm_rounds(b: &mut dyn Backend, model: &Model) -> u64 {
    let mut d = decoder(b, model, 2, Purpose::Train);
    let mut optimizer = adamw(b, &d, &OptimConfig::default());
    let mut cache = Cache::new(b, &d, CacheShape::slots(2, 16)).unwrap();
    let (ids, targets) = tokens(5, 2);
    let batch = TokenBatch { ids: &ids, targets: &targets, positions: None };
    let mut per_token = vec![0.0; ids.len()];
    let mut stages = stages(b, model);
    let mut lengths = Lengths::new(b, model);
    let mut student = student(b, model);
    let mut round = |step: u64| {
        pipeline(b, &mut stages, &batch, &context(step, scored(&targets)));
        lengths.step(b, step);
        student.forward_backward(b, &batch, &context(step, scored(&targets))).unwrap();
        for accumulate in [false, true] {
            let ctx = StepContext { accumulate, ..context(step, scored(&targets)) };
            d.forward_backward(b, &batch, &ctx).unwrap();
        }
        optimizer.step(b, step + 1, 1e-3).unwrap();
        d.loss(b, &batch, Some(&mut per_token)).unwrap();
        (0..2).for_each(|slot| cache.truncate(slot, 0));
        d.decode(b, &mut cache, 0, &ids[..10]).unwrap();
        d.decode_each(b, &mut cache, 1, &ids[..3], &mut |_, _| {}).unwrap();
        let row = |slot| NextPosition { slot, id: ids[slot] };
        d.decode_rows(b, &mut cache, &[row(1), row(0)]).unwrap();
    };
    round(0);
    (1..=5).map(|step| allocations_of(|| round(step))).min().unwrap()
}

#[test]
fn warm_steps_scoring_and_decoding_allocate_nothing() {
    assert_eq!(allocations_of(|| drop(std::hint::black_box(vec![0u8; 10]))), 1, "the counter counts");
    for (label, model) in models() {
        let model = Model { dropout: 0.1, ..model };
        assert_eq!(warm_rounds(&mut NullBackend::new(), &model), 0, "{label} on the null backend");
        assert_eq!(warm_rounds(&mut cpu(2), &model), 0, "{label} on the CPU");
    }
}
