//! Reductions in 8 bits between ranks as threads, held against a plain form bit by bit, and against sums in f64 within the bound that
//! follows from the code.

use super::*;
use crate::exchange::{DataGroups, Exchange};
use crate::flat::FlatUnit;
use crate::groups::on_device;
use crate::memory::{ParamMemory, Stretch};
use bessemer_collectives::{
    ChannelTransport, Communicator, HostStaging, Ledger, MessageCommunicator, MessageSettings,
    ThreadCommunicator, ThreadSettings,
};
use bessemer_kernels_cpu::{CpuBackend, CpuConfig};
use bessemer_mesh::{Layout, Placement};
use bessemer_program::{DataProgram, DataRank, FlatParameter, PiecesInFlight, Residence, Transfer};
use bessemer_units::ReduceDType;
use std::sync::Arc;

/// Lengths of flat units: shorter than a block, than the ranks, whole blocks, and some.
const UNITS: [usize; 6] = [1, 5, 256, 257, 1536, 70_001];

#[derive(Debug, Clone, Copy)]
struct Case {
    shards: usize,
    replicas: usize,
    dtype: DType,
    threads: usize,
    overlap: bool,
    messages: bool,
}

impl Case {
    const fn of(shards: usize, replicas: usize) -> Case {
        Case { shards, replicas, dtype: DType::F32, threads: 1, overlap: true, messages: false }
    }

    fn ranks(&self) -> usize {
        self.shards * self.replicas
    }

    fn world(&self) -> Vec<Box<dyn Communicator>> {
        if self.messages {
            let over = |t| MessageCommunicator::world("world", Arc::new(t), &MessageSettings::default());
            let boxed = |t| Box::new(over(t)) as Box<dyn Communicator>;
            return ChannelTransport::world(self.ranks()).into_iter().map(boxed).collect();
        }
        let world = ThreadCommunicator::world("world", self.ranks(), &ThreadSettings::default());
        world.into_iter().map(|c| Box::new(c) as Box<dyn Communicator>).collect()
    }
}

/// This rank's part of each unit's gradients after the reductions; replicas have the parts of each other.
type Reduced = Vec<Vec<f32>>;

/// One rank; `terms` gives its gradients of each unit.
fn rank(case: Case, mut world: Box<dyn Communicator>, terms: &dyn Fn(usize, usize) -> Vec<f32>) -> Reduced {
    let me = world.rank();
    let (shard, replica) = (me % case.shards, me / case.shards);
    let (ledger, staging) = (Ledger::new(), HostStaging::default());
    let mut group = |label: &str, ranks: Vec<usize>| {
        let group = world.group(label, &ranks).unwrap();
        on_device(ledger.wrap(group), case.overlap, &staging, &staging).unwrap()
    };
    let shards = group("shard", (0..case.shards).map(|s| replica * case.shards + s).collect());
    let replicas = group("replicate", (0..case.replicas).map(|r| r * case.shards + shard).collect());
    let config = CpuConfig { threads: case.threads, ..CpuConfig::default() };
    let mut backend = CpuBackend::new(config).unwrap();
    let unit = |(number, len): (usize, &usize)| {
        FlatUnit::new(format!("{number}"), None, (0, case.shards), &[(0, *len)], None)
    };
    let units: Vec<FlatUnit> = UNITS.iter().enumerate().map(unit).collect();
    let parts: Vec<Parts> = units.iter().map(|unit| unit.parts()).collect();
    let mut stretch = |class, dtype, unit: usize| {
        let spec = BufferSpec { class, name: "unit", dtype, len: UNITS[unit] };
        let whole = backend.alloc(spec).unwrap().vector();
        let own = parts[unit].range(shard);
        Stretch { whole, own: whole.columns(own.start, own.len()) }
    };
    let gradients: Vec<Stretch> = (0..UNITS.len()).map(|u| stretch("gradients", case.dtype, u)).collect();
    let values = (0..UNITS.len()).map(|u| stretch("weights", DType::F32, u)).collect();
    for (number, stretch) in gradients.iter().enumerate() {
        backend.write_f32(stretch.whole, &terms(me, number)).unwrap();
    }
    let kept = gradients.iter().copied().map(Some).collect();
    let memory = ParamMemory { values, gradients: kept, parts, term: None, params: Vec::new() };
    let data = data_program(case, &memory, (shard, replica));
    let mut exchange = Exchange::new(
        &mut backend,
        (vec![DataGroups { shard: shards, replicate: replicas }], staging),
        &units,
        &memory,
        data.reduce_dtype,
        PiecesInFlight::DEFAULT,
    )
    .unwrap();
    let all = || 0..UNITS.len();
    let first: Vec<Transfer> = all().filter_map(|unit| data.first_reduction(unit)).collect();
    let second: Vec<Transfer> = all().filter_map(|unit| data.second_reduction(unit)).collect();
    first.iter().for_each(|t| exchange.start(&mut backend, *t).unwrap());
    first.iter().for_each(|t| exchange.wait(&mut backend, *t).unwrap());
    for transfer in &second {
        exchange.start(&mut backend, *transfer).unwrap();
        exchange.wait(&mut backend, *transfer).unwrap();
    }
    for (label, axis) in [("shard", Axis::Shard), ("replicate", Axis::Replicate)] {
        let of_axis = first.iter().chain(&second).filter(|transfer| transfer.axis == axis);
        let listed: u64 = of_axis.map(|t| t.bytes_sent(&data.flats[t.flat], data.rank(t.flat))).sum();
        assert_eq!(ledger.of(label).volume.sent, listed, "{case:?}, rank {me}, {label}");
    }
    let read = |stretch: &Stretch| {
        let mut values = vec![0.0; stretch.own.len()];
        backend.read_f32(stretch.own, &mut values).unwrap();
        values
    };
    gradients.iter().map(read).collect()
}

fn data_program(case: Case, memory: &ParamMemory, at: (usize, usize)) -> DataProgram {
    let whole = Layout::replicated();
    let updated = match case.shards {
        1 => whole,
        _ => whole.with(Axis::Shard, Placement::Shard { dim: 0 }),
    };
    let residence = |dtype, place| Residence { dtype, layout: whole, place };
    let flat = |(number, parts): (usize, &Parts)| FlatParameter {
        name: format!("{number}"),
        parts: (0..parts.count()).map(|rank| parts.range(rank).len()).collect(),
        values: residence(DType::F32, number),
        group: 0,
        gradients: Some(residence(case.dtype, number)),
        updated,
        partial: 0,
    };
    DataProgram {
        flats: memory.parts.iter().enumerate().map(flat).collect(),
        groups: vec![DataRank { shard: (case.shards, at.0), replicate: (case.replicas, at.1) }],
        reduce_dtype: ReduceDType::Int8,
    }
}

/// Indexed by rank.
fn run(case: Case, terms: &(dyn Fn(usize, usize) -> Vec<f32> + Sync)) -> Vec<Reduced> {
    std::thread::scope(|scope| {
        let start = |c| scope.spawn(move || rank(case, c, terms));
        let ranks: Vec<_> = case.world().into_iter().map(start).collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    })
}

fn rounded(dtype: DType, x: f32) -> f32 {
    match dtype {
        DType::Bf16 => half::bf16::from_f32(x).to_f32(),
        DType::F16 => half::f16::from_f32(x).to_f32(),
        _ => x,
    }
}

/// A part as it is after it was encoded and decoded.
fn coded(part: &[f32]) -> Vec<f32> {
    let block = |block: &[f32]| -> Vec<f32> {
        let largest = block.iter().fold(0.0f32, |m, x| m.max(x.abs()));
        if block.iter().any(|x| !x.is_finite()) {
            return vec![f32::NAN; block.len()];
        }
        if largest < 2f32.powi(-100) {
            return vec![0.0; block.len()];
        }
        // Integers have no negative zero.
        let integer = |x: f32| (x * (127.0 / largest)).round_ties_even() + 0.0;
        block.iter().map(|x| integer(*x) * (largest / 127.0)).collect()
    };
    part.chunks(GRADIENT_BLOCK).flat_map(block).collect()
}

fn sum(terms: &[Vec<f32>]) -> Vec<f32> {
    let mut sum = terms[0].clone();
    for term in &terms[1..] {
        sum.iter_mut().zip(term).for_each(|(s, x)| *s += x);
    }
    sum
}

/// Plain form of the quantised all-reduce.
fn all_reduced(dtype: DType, terms: &[Vec<f32>]) -> Vec<f32> {
    let (len, ranks) = (terms[0].len(), terms.len());
    if ranks == 1 {
        return terms[0].clone();
    }
    let of_rank = |rank| {
        let part = even(len, ranks, rank);
        let terms: Vec<_> = terms.iter().map(|t| coded(&t[part.start..part.end()])).collect();
        coded(&sum(&terms)).into_iter().map(|x| rounded(dtype, x)).collect::<Vec<_>>()
    };
    (0..ranks).flat_map(of_rank).collect()
}

/// Plain form of the part that rank `me` has of a unit.
fn plain(case: Case, me: usize, terms: &dyn Fn(usize) -> Vec<f32>) -> Vec<f32> {
    let shard = me % case.shards;
    let of_replica = |replica: usize| {
        let all: Vec<_> = (0..case.shards).map(|s| terms(replica * case.shards + s)).collect();
        let part = even(all[0].len(), case.shards, shard);
        let own = |term: &Vec<f32>| term[part.start..part.end()].to_vec();
        if case.shards == 1 {
            return own(&all[0]);
        }
        let own: Vec<_> = all.iter().map(|term| coded(&own(term))).collect();
        sum(&own).into_iter().map(|x| rounded(case.dtype, x)).collect()
    };
    let replicas: Vec<_> = (0..case.replicas).map(of_replica).collect();
    all_reduced(case.dtype, &replicas)
}

/// Numbers around 0 of very different size, some of them zeros, as gradients are.
fn gradient(rank: usize, unit: usize) -> Vec<f32> {
    let mut bits = (rank * 7919 + unit * 104_729 + 1) as u32;
    let mut next = || {
        bits = bits.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (bits >> 8) as f32 / (1 << 23) as f32 - 1.0
    };
    let mut value = |i: usize| if i.is_multiple_of(17) { 0.0 } else { next() * next() * next() * 1e-3 };
    (0..UNITS[unit]).map(&mut value).collect()
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|x| if x.is_nan() { f32::NAN.to_bits() } else { x.to_bits() }).collect()
}

fn held(case: Case, what: &str, terms: &(dyn Fn(usize, usize) -> Vec<f32> + Sync)) {
    let found = run(case, terms);
    for (me, found) in found.iter().enumerate() {
        for (unit, found) in found.iter().enumerate() {
            let term = |rank| terms(rank, unit).into_iter().map(|x| rounded(case.dtype, x)).collect();
            let wanted = plain(case, me, &term);
            assert!(bits(found) == bits(&wanted), "{what}, {case:?}, rank {me}, unit {unit}");
        }
    }
}

/// Shards and replicas.
const GROUPS: [(usize, usize); 9] = [(1, 1), (2, 1), (3, 1), (5, 1), (1, 2), (1, 3), (1, 7), (2, 2), (3, 2)];

#[test]
fn every_group_has_the_bits_of_the_plain_form() {
    for (shards, replicas) in GROUPS {
        for dtype in [DType::F32, DType::Bf16, DType::F16] {
            held(Case { dtype, ..Case::of(shards, replicas) }, "gradients", &gradient);
        }
    }
}

#[test]
fn bits_depend_on_no_thread_and_on_no_engine() {
    for (shards, replicas) in [(3, 1), (1, 3), (2, 2)] {
        for (threads, overlap, messages) in
            [(3, true, false), (2, false, false), (1, true, true), (1, false, true)]
        {
            let case = Case { threads, overlap, messages, ..Case::of(shards, replicas) };
            held(case, "gradients", &gradient);
        }
    }
}

#[test]
fn one_rank_rounds_nothing() {
    let found = run(Case::of(1, 1), &gradient);
    for (unit, found) in found[0].iter().enumerate() {
        assert_eq!(bits(found), bits(&gradient(0, unit)));
    }
}

/// Values of a block that a code of 8 bits finds hard.
fn hostile(rank: usize, unit: usize) -> Vec<f32> {
    let value = |i: usize| match (i / GRADIENT_BLOCK + rank) % 5 {
        0 => 0.0,
        1 => 1e-41 * (i % 7) as f32,
        2 if i % GRADIENT_BLOCK == 3 => -1e30,
        2 => 1.0 + i as f32,
        3 => -0.0,
        _ => 3e37 * if i.is_multiple_of(2) { 1.0 } else { -1.0 },
    };
    (0..UNITS[unit]).map(value).collect()
}

/// Returns per element a sum in f64, and the largest allowed distance of the ranks' results from it.
fn bounded(case: Case, me: usize, unit: usize, terms: &dyn Fn(usize, usize) -> Vec<f32>) -> Vec<(f64, f64)> {
    // One code is off by half a unit and 2^-13 of that; a sum by 2^-24 of itself; a block below 2^-100 is zero.
    let code = |m: f64| m / 254.0 * (1.0 + 2f64.powi(-13)) + 2f64.powi(-100);
    let largest = |part: &[(f64, f64)]| part.iter().fold(0.0f64, |m, (x, off)| m.max(x.abs() + off));
    let coded = |part: &[(f64, f64)]| -> Vec<(f64, f64)> {
        let block = |b: &[(f64, f64)]| {
            let off = code(largest(b));
            b.iter().map(move |(x, before)| (*x, before + off)).collect::<Vec<_>>()
        };
        part.chunks(GRADIENT_BLOCK).flat_map(block).collect()
    };
    let sum = |terms: &[Vec<(f64, f64)>]| -> Vec<(f64, f64)> {
        let at = |i: usize| {
            let sum: f64 = terms.iter().map(|t| t[i].0).sum();
            let off: f64 =
                terms.iter().map(|t| t[i].1 + 2f64.powi(-24) * terms.len() as f64 * t[i].0.abs()).sum();
            (sum, off * (1.0 + 2f64.powi(-20)))
        };
        (0..terms[0].len()).map(at).collect()
    };
    let exact =
        |rank| -> Vec<(f64, f64)> { terms(rank, unit).iter().map(|x| (f64::from(*x), 0.0)).collect() };
    let shard = me % case.shards;
    let of_replica = |replica: usize| {
        let all: Vec<_> = (0..case.shards).map(|s| exact(replica * case.shards + s)).collect();
        let part = even(all[0].len(), case.shards, shard);
        let own: Vec<_> = all.iter().map(|term| coded(&term[part.start..part.end()])).collect();
        if case.shards == 1 { all[0].clone() } else { sum(&own) }
    };
    let replicas: Vec<_> = (0..case.replicas).map(of_replica).collect();
    if case.replicas == 1 {
        return replicas[0].clone();
    }
    let of_rank = |rank| {
        let part = even(replicas[0].len(), case.replicas, rank);
        let terms: Vec<_> = replicas.iter().map(|t| coded(&t[part.start..part.end()])).collect();
        coded(&sum(&terms))
    };
    (0..case.replicas).flat_map(of_rank).collect()
}

#[test]
fn sums_are_within_the_bound_of_the_code() {
    for (shards, replicas) in GROUPS {
        let case = Case::of(shards, replicas);
        for (what, terms) in [("gradients", gradient as fn(usize, usize) -> Vec<f32>), ("hostile", hostile)] {
            held(case, what, &terms);
            let mut worst = 0.0f64;
            for (me, found) in run(case, &terms).iter().enumerate() {
                for (unit, found) in found.iter().enumerate() {
                    for (found, (wanted, bound)) in found.iter().zip(bounded(case, me, unit, &terms)) {
                        let off = (f64::from(*found) - wanted).abs();
                        assert!(off <= bound, "{what}, {case:?}: {found} for {wanted}, bound {bound}");
                        worst = worst.max(off / bound.max(f64::MIN_POSITIVE));
                    }
                }
            }
            // The bound is not far from the error of gradients.
            let near = worst > 0.3 || case.ranks() == 1 || what == "hostile";
            assert!(near, "{what}, {case:?}: at most {worst} of the bound");
        }
    }
}

/// A value that is not finite on one rank spoils its block on every rank that has its sum, and nothing else.
#[test]
fn what_is_not_finite_is_seen() {
    for (shards, replicas) in [(2, 1), (3, 1), (1, 3), (2, 2)] {
        let case = Case::of(shards, replicas);
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            for at in 0..case.ranks() {
                let terms = |rank: usize, unit: usize| {
                    let mut values = gradient(rank, unit);
                    if rank == at && unit == 5 {
                        values[777] = bad;
                    }
                    values
                };
                held(case, "not finite", &terms);
                let found = run(case, &terms);
                let broken = |rank: &Reduced| rank.iter().flatten().filter(|x| !x.is_finite()).count();
                // The rank whose part has element 777, and its replicas.
                for (rank, found) in found.iter().enumerate() {
                    let spoiled = broken(found);
                    let seen = rank % shards == 0;
                    assert_eq!(spoiled > 0, seen, "{case:?}, {bad} on rank {at}: {spoiled} on rank {rank}");
                    assert!(spoiled <= GRADIENT_BLOCK, "{case:?}: {spoiled}");
                    assert!(!seen || found[5].iter().any(|x| x.is_nan()));
                }
            }
        }
    }
}
