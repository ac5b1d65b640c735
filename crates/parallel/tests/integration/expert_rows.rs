//! Scoring and decoding with experts over ranks: the bits of one rank, whatever the number of ranks, and no hang when a rank ends.

use crate::experts::{gates, mixture};
use bessemer_arch::{Model, SharedExpert, TensorShard};
use bessemer_collectives::{Communicator, Fault, Faulty};
use bessemer_kernels_cpu::CpuBackend;
use bessemer_parallel::{ExpertPeers, MemoryPlan, compute_rows};
use bessemer_runtime::{
    Cache, CacheShape, Decoder, ExpertRows, NextPosition, Param, Peers, PrefixCache, Purpose, Shape, Stream,
    TokenBatch,
};
use bessemer_tensor::Backend;
use std::sync::Mutex;

const SEQ: usize = 16;
const SEQUENCES: usize = 3;

fn shape() -> Shape {
    Shape { sequences: SEQUENCES, seq: SEQ, purpose: Purpose::Score }
}

/// All parameters of a model, by name.
type Whole = Vec<(String, Vec<f32>)>;

fn whole(model: &Model) -> (CpuBackend, Decoder, Whole) {
    let mut cpu = crate::instruction_set::cpu(2);
    let decoder = Decoder::new(&mut cpu, model, shape()).unwrap();
    decoder.init(&mut cpu, 5).unwrap();
    let read = |param: &Param| {
        let mut values = vec![0.0; param.value.len()];
        cpu.read_f32(param.value, &mut values).unwrap();
        (param.spec.name.clone(), values)
    };
    let params = decoder.params().iter().map(read).collect();
    (cpu, decoder, params)
}

fn write(cpu: &mut CpuBackend, params: &[Param], part: &TensorShard, whole: &Whole) {
    let shards = part.params();
    for param in params {
        let shard = shards.iter().find(|shard| shard.name() == param.spec.name).unwrap();
        let all = &whole.iter().find(|(name, _)| *name == param.spec.name).unwrap().1;
        let values: Vec<f32> =
            shard.runs().iter().flat_map(|run| &all[run.whole..][..run.len]).copied().collect();
        cpu.write_f32(param.value, &values).unwrap();
    }
}

fn ids(sequence: usize, positions: usize) -> Vec<u32> {
    (0..positions).map(|t| ((t * t + 7 * sequence + 3) % 37) as u32).collect()
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

/// Bits of everything that evaluation, generation and a server compute: losses, logits, prompts in pieces, rows of several sequences, and
/// continuations of common beginnings.
fn results(cpu: &mut CpuBackend, decoder: &mut Decoder) -> Vec<Vec<u32>> {
    let mut all = Vec::new();
    let batch: Vec<u32> = (0..SEQUENCES).flat_map(|s| ids(s, SEQ)).collect();
    let targets: Vec<u32> = batch.iter().map(|id| (id * 5 + 1) % 37).collect();
    let batch = TokenBatch { ids: &batch, targets: &targets, positions: None };
    let mut losses = vec![0.0; targets.len()];
    decoder.loss(cpu, &batch, Some(&mut losses)).unwrap();
    all.push(bits(&losses));
    decoder.logits(cpu, &batch, |_, row| all.push(bits(row))).unwrap();
    if decoder.model().experts.is_some_and(|experts| !experts.gate.is_causal()) {
        return all;
    }
    let mut cache = Cache::new(cpu, decoder, CacheShape::slots(3, SEQ)).unwrap();
    for slot in 0..3 {
        decoder.prefill(cpu, &mut cache, slot, &ids(slot, 2 * slot + 1)).unwrap();
        all.push(bits(decoder.decode(cpu, &mut cache, slot, &[9, 4]).unwrap()));
    }
    for slots in [&[0, 1, 2][..], &[2], &[1, 2]] {
        let rows: Vec<NextPosition> =
            slots.iter().map(|slot| NextPosition { slot: *slot, id: 7 + *slot as u32 }).collect();
        all.push(bits(decoder.decode_rows(cpu, &mut cache, &rows).unwrap()));
    }
    let prefix = PrefixCache::new(cpu, decoder.model(), SEQUENCES, SEQ).unwrap();
    let of_half = Shape { seq: SEQ / 2, ..shape() };
    let mut half = decoder.after_prefix(cpu, of_half, &prefix).unwrap();
    for past in [0, SEQ / 2] {
        half.set_past(past).unwrap();
        let part = |of: &[u32]| -> Vec<u32> {
            of.chunks(SEQ).flat_map(|sequence| &sequence[past..][..SEQ / 2]).copied().collect()
        };
        let (ids, targets) = (part(batch.ids), part(batch.targets));
        let batch = TokenBatch { ids: &ids, targets: &targets, positions: None };
        let mut losses = vec![0.0; ids.len()];
        half.loss(cpu, &batch, Some(&mut losses)).unwrap();
        all.push(bits(&losses));
    }
    all
}

/// Runs `lead` on the first of several ranks, the others of which hold the other experts; returns its result and how the others ended.
fn over_ranks<T: Send>(
    model: &Model,
    ranks: usize,
    whole: &Whole,
    wrap: impl Fn(usize, Box<dyn Communicator>) -> Box<dyn Communicator> + Sync,
    lead: impl FnOnce(&mut CpuBackend, Decoder) -> T + Send,
) -> (T, Vec<Result<(), String>>) {
    let lead = Mutex::new(Some(lead));
    let mut ended = bessemer_fixture::on_ranks(ranks, |world: Box<dyn Communicator>| {
        let rank = world.rank();
        let (world, part) = (wrap(rank, world), model.expert_shard(ranks, rank).unwrap());
        let mut cpu = crate::instruction_set::cpu(1);
        if rank > 0 {
            let mut rows = ExpertRows::new(&mut cpu, &part, SEQUENCES * SEQ).unwrap();
            write(&mut cpu, rows.params(), &part, whole);
            return (None, compute_rows(world, &part, &mut rows, &mut cpu).map_err(|e| e.to_string()));
        }
        let mut decoder =
            Decoder::of_tensor_shard(&mut cpu, &part, Stream::WHOLE, shape(), Default::default(), None)
                .unwrap();
        decoder.verify().unwrap();
        write(&mut cpu, decoder.params(), &part, whole);
        decoder.set_peers(Peers::new(ExpertPeers::new(world, &decoder).unwrap()));
        let lead = lead.lock().unwrap().take().unwrap();
        (Some(lead(&mut cpu, decoder)), Ok(()))
    });
    let first = ended.remove(0).0.unwrap();
    (first, ended.into_iter().map(|(_, end)| end).collect())
}

/// A mixture whose context holds two passes of continuations.
fn long(model: Model) -> Model {
    Model { context: SEQ, ..model }
}

fn models() -> Vec<(&'static str, Model)> {
    let shared = Some(SharedExpert { width: 8, gate: true, mixed: false });
    let mut models = gates();
    models.push(("raw", mixture(false)));
    models.push(("shared", Model { shared_expert: shared, ..mixture(true) }));
    models.into_iter().map(|(label, model)| (label, long(model))).collect()
}

#[test]
fn experts_over_ranks_score_and_decode_with_the_bits_of_one_rank() {
    for (label, model) in models() {
        let (mut cpu, mut decoder, whole) = whole(&model);
        let wanted = results(&mut cpu, &mut decoder);
        let count =
            (0..model.layers).filter_map(|layer| model.experts_of(layer)).map(|of| of.count).min().unwrap();
        for ranks in [2, 4].into_iter().filter(|ranks| count % ranks == 0) {
            let (found, ended) = over_ranks(
                &model,
                ranks,
                &whole,
                |_, world| world,
                |cpu, mut decoder| results(cpu, &mut decoder),
            );
            assert!(found == wanted, "{label}, {ranks} ranks");
            assert!(ended.iter().all(Result::is_ok), "{label}, {ranks} ranks: {ended:?}");
        }
    }
}

/// Every rank holds its part of the experts, the others nothing else, and memory is as it was planned.
#[test]
fn a_rank_holds_its_part_of_the_experts_and_planned_memory() {
    let model = long(mixture(true));
    let cached = Some(CacheShape::slots(3, SEQ));
    for ranks in [2, 4] {
        let part = model.expert_shard(ranks, 1).unwrap();
        let stacks = model.params().into_iter().filter(|spec| spec.name.contains(".mlp.experts."));
        let stacked: usize = stacks.map(|spec| spec.shape.iter().product::<usize>()).sum();
        let mut cpu = crate::instruction_set::cpu(1);
        let planned = MemoryPlan::of_expert_rows(&part, SEQUENCES * SEQ, Some(&mut cpu)).unwrap();
        assert_eq!(planned.class("weights").0 as usize, 4 * stacked / ranks);
        ExpertRows::new(&mut cpu, &part, SEQUENCES * SEQ).unwrap();
        assert_eq!(cpu.memory().workspace, planned.buffers.workspace);
        let mut cpu = crate::instruction_set::cpu(1);
        let first = model.expert_shard(ranks, 0).unwrap();
        let planned = MemoryPlan::of_part(&first, shape(), cached, Some(&mut cpu)).unwrap();
        let all: usize = model.params().iter().map(|spec| spec.shape.iter().product::<usize>()).sum();
        assert_eq!(planned.class("weights").0 as usize, 4 * (all - stacked + stacked / ranks));
        assert!(planned.class("cache").0 > 0);
    }
}

/// A rank that fails, at any of its collectives, ends the passes of the others; no pass follows, and no rank waits.
#[test]
fn a_rank_that_fails_ends_all_others() {
    let model = long(mixture(true));
    let (.., whole) = whole(&model);
    for at in [1, 2, 3, 4, 9] {
        let fails = |rank: usize, world: Box<dyn Communicator>| match rank {
            1 => Faulty::new(Fault::Drop, at).wrap(world),
            _ => world,
        };
        let (errors, ended) = over_ranks(&model, 4, &whole, fails, |cpu, decoder| {
            let mut cache = Cache::new(cpu, &decoder, CacheShape::one(SEQ)).unwrap();
            let mut decode = || decoder.decode(cpu, &mut cache, 0, &[1]).map(drop).map_err(|e| e.to_string());
            let mut errors: Vec<String> = (0..4).filter_map(|_| decode().err()).collect();
            errors.dedup();
            errors
        });
        assert!(errors.last().is_some_and(|e| e.contains("no pass can follow")), "{at}: {errors:?}");
        assert!(ended.iter().all(Result::is_err), "{at}: {ended:?}");
    }
}
