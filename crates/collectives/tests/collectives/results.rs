//! Every kind of collective, every element type, one to eight ranks (and sixteen), parts of all kinds.

use crate::world::{ENGINES, Engine, LONG, each, values, world};
use bessemer_collectives::{
    CollectiveKind, Communicator, ElementType, HostBuffer, Message, NullCommunicator, Parts, Reduce,
};
use half::{bf16, f16};
use proptest::prelude::*;

/// Values of any type, from the magnitudes of [`values`].
fn owned(seed: u64, rank: usize, len: usize, element: ElementType) -> HostBuffer {
    let v = values(seed, rank, len);
    match element {
        ElementType::F32 => HostBuffer::of(&v),
        ElementType::Bf16 => HostBuffer::of(&v.iter().map(|x| bf16::from_f32(*x)).collect::<Vec<_>>()),
        ElementType::F16 => HostBuffer::of(&v.iter().map(|x| f16::from_f32(*x)).collect::<Vec<_>>()),
        ElementType::U32 => HostBuffer::of(&v.iter().map(|x| x.to_bits()).collect::<Vec<_>>()),
        ElementType::U8 => HostBuffer::of(&v.iter().map(|x| (x.to_bits() >> 8) as u8).collect::<Vec<_>>()),
    }
}

/// Bits, which unlike values compare as NaN and zero are.
fn bits(buffer: &HostBuffer) -> Vec<u32> {
    match buffer.element() {
        ElementType::F32 => buffer.as_slice::<f32>().iter().map(|x| x.to_bits()).collect(),
        ElementType::Bf16 => buffer.as_slice::<bf16>().iter().map(|x| x.to_bits().into()).collect(),
        ElementType::F16 => buffer.as_slice::<f16>().iter().map(|x| x.to_bits().into()).collect(),
        ElementType::U32 => buffer.as_slice::<u32>().to_vec(),
        ElementType::U8 => buffer.as_slice::<u8>().iter().map(|x| u32::from(*x)).collect(),
    }
}

/// Reduction over the ranks, rank 0 first, as plainly as it can be written.
fn reduced(ranks: &[HostBuffer], reduce: Reduce) -> HostBuffer {
    fn fold<T: Copy>(ranks: &[&[T]], add: impl Fn(T, T) -> T) -> Vec<T> {
        let mut sum = ranks[0].to_vec();
        for other in &ranks[1..] {
            sum.iter_mut().zip(*other).for_each(|(s, o)| *s = add(*s, *o));
        }
        sum
    }
    let add = |s: f32, o: f32| match reduce {
        Reduce::Sum => s + o,
        Reduce::Max if s.is_nan() || o.is_nan() => f32::NAN,
        Reduce::Max => s.max(o),
    };
    let wide = |each: fn(&HostBuffer) -> Vec<f32>| {
        let all: Vec<Vec<f32>> = ranks.iter().map(each).collect();
        fold(&all.iter().map(Vec::as_slice).collect::<Vec<_>>(), add)
    };
    match ranks[0].element() {
        ElementType::F32 => HostBuffer::of(&wide(|b| b.as_slice::<f32>().to_vec())),
        ElementType::Bf16 => {
            let sum = wide(|b| b.as_slice::<bf16>().iter().map(|x| x.to_f32()).collect());
            HostBuffer::of(&sum.into_iter().map(bf16::from_f32).collect::<Vec<_>>())
        }
        ElementType::F16 => {
            let sum = wide(|b| b.as_slice::<f16>().iter().map(|x| x.to_f32()).collect());
            HostBuffer::of(&sum.into_iter().map(f16::from_f32).collect::<Vec<_>>())
        }
        ElementType::U32 => {
            let all: Vec<&[u32]> = ranks.iter().map(|b| b.as_slice::<u32>()).collect();
            HostBuffer::of(&match reduce {
                Reduce::Sum => fold(&all, u32::wrapping_add),
                Reduce::Max => fold(&all, u32::max),
            })
        }
        // Bytes are not reduced.
        ElementType::U8 => ranks[0].clone(),
    }
}

/// One call that all ranks make.
#[derive(Debug, Clone)]
struct Step {
    kind: CollectiveKind,
    element: ElementType,
    reduce: Reduce,
    parts: Vec<usize>,
    root: usize,
    seed: u64,
}

impl Step {
    fn parts(&self) -> Parts {
        Parts::of(self.parts.iter().copied())
    }

    /// What rank `r` brings.
    fn own(&self, r: usize) -> HostBuffer {
        owned(self.seed, r, self.parts.iter().sum(), self.element)
    }

    /// All-to-all: what rank `from` sends to rank `to`.
    fn pair(&self, from: usize, to: usize) -> usize {
        let n = self.parts.len();
        self.parts[(from + 2 * to) % n] / (1 + (from * n + to) % 3)
    }
}

/// A call, what every rank brings, and the plain result: made once for all ranks, because that is most of a test's work.
struct Expected {
    step: Step,
    name: String,
    all: Vec<HostBuffer>,
    reduced: HostBuffer,
}

impl Expected {
    fn of(step: &Step) -> Expected {
        let all: Vec<HostBuffer> = (0..step.parts.len()).map(|r| step.own(r)).collect();
        let reduced = reduced(&all, step.reduce);
        Expected { name: format!("{step:?}"), step: step.clone(), all, reduced }
    }
}

/// Makes the call on one rank and compares the result with the plain one.
fn check(c: &mut dyn Communicator, expected: &Expected) {
    let (rank, n) = (c.rank(), c.size());
    let Expected { step, name, all, reduced } = expected;
    let mut own = all[rank].clone();
    let parts = step.parts();
    match step.kind {
        CollectiveKind::AllReduce => {
            c.all_reduce(name, own.lend(), step.reduce).unwrap();
            assert_eq!(bits(&own), bits(reduced), "{name}");
        }
        CollectiveKind::ReduceScatter => {
            c.reduce_scatter(name, own.lend(), &parts, step.reduce).unwrap();
            let part = parts.range(rank);
            assert_eq!(bits(&own)[part.clone()], bits(reduced)[part], "{name}");
        }
        CollectiveKind::AllGather => {
            c.all_gather(name, own.lend(), &parts).unwrap();
            let want = (0..n).flat_map(|r| bits(&all[r])[parts.range(r)].to_vec());
            assert_eq!(bits(&own), want.collect::<Vec<_>>(), "{name}");
        }
        CollectiveKind::AllToAll => {
            let sends = Parts::of((0..n).map(|to| step.pair(rank, to)));
            let receives = Parts::of((0..n).map(|from| step.pair(from, rank)));
            let mut send = owned(step.seed, rank, sends.len(), step.element);
            let mut receive = owned(0, 0, receives.len(), step.element);
            c.all_to_all(name, (send.lend().into_slice(), &sends), (receive.lend(), &receives)).unwrap();
            let want = (0..n).flat_map(|from| {
                let theirs = Parts::of((0..n).map(|to| step.pair(from, to)));
                bits(&owned(step.seed, from, theirs.len(), step.element))[theirs.range(rank)].to_vec()
            });
            assert_eq!(bits(&receive), want.collect::<Vec<_>>(), "{name}");
        }
        CollectiveKind::Broadcast => {
            c.broadcast(name, step.root, own.lend()).unwrap();
            assert_eq!(bits(&own), bits(&all[step.root]), "{name}");
        }
        // A ring: to the next, from the one before.
        CollectiveKind::Send | CollectiveKind::Receive if n > 1 => {
            let before = (rank + n - 1) % n;
            c.send(Message::new(name, step.seed, (rank + 1) % n), own.lend().into_slice()).unwrap();
            c.receive(Message::new(name, step.seed, before), own.lend()).unwrap();
            assert_eq!(bits(&own), bits(&all[before]), "{name}");
        }
        CollectiveKind::Send | CollectiveKind::Receive | CollectiveKind::Barrier => c.barrier(name).unwrap(),
    }
}

const KINDS: [CollectiveKind; 7] = [
    CollectiveKind::AllReduce,
    CollectiveKind::ReduceScatter,
    CollectiveKind::AllGather,
    CollectiveKind::AllToAll,
    CollectiveKind::Broadcast,
    CollectiveKind::Send,
    CollectiveKind::Barrier,
];

/// Whether a collective reduces bytes, which is refused.
fn reduces_bytes(kind: CollectiveKind, element: ElementType) -> bool {
    matches!(kind, CollectiveKind::AllReduce | CollectiveKind::ReduceScatter) && element == ElementType::U8
}

/// Lengths of the parts: even, uneven, some or all empty, short, many pieces long.
fn lengths(ranks: usize) -> Vec<Vec<usize>> {
    let even = |len: usize| (0..ranks).map(|r| len / ranks + usize::from(r < len % ranks)).collect();
    let mut alone = vec![0; ranks];
    alone[ranks / 2] = 3001;
    vec![even(1), even(17), even(9_000), (0..ranks).map(|r| 1 + 700 * r).collect(), alone, vec![0; ranks]]
}

fn steps(ranks: usize) -> Vec<Step> {
    let mut steps = Vec::new();
    for kind in KINDS {
        for parts in lengths(ranks) {
            for element in ElementType::ALL.into_iter().filter(|e| !reduces_bytes(kind, *e)) {
                for reduce in [Reduce::Sum, Reduce::Max] {
                    let reduces = matches!(kind, CollectiveKind::AllReduce | CollectiveKind::ReduceScatter);
                    if reduce == Reduce::Max
                        && !(reduces && matches!(element, ElementType::F32 | ElementType::U32))
                    {
                        continue;
                    }
                    let seed = steps.len() as u64;
                    steps.push(Step { kind, element, reduce, parts: parts.clone(), root: ranks - 1, seed });
                }
            }
        }
    }
    steps
}

fn all_steps(engine: Engine, ranks: usize) {
    let steps = steps(ranks);
    // A kind at a time, so that what is expected of all of them need not be in memory.
    for steps in steps.chunk_by(|a, b| a.kind == b.kind) {
        let expected: Vec<Expected> = steps.iter().map(Expected::of).collect();
        each(world(engine, ranks, LONG), |mut c| {
            assert_eq!((c.size(), c.label()), (ranks, "world"));
            expected.iter().for_each(|expected| check(c.as_mut(), expected));
        });
    }
}

#[test]
fn every_collective_gives_the_plain_result_for_one_to_eight_ranks_and_sixteen() {
    for engine in ENGINES {
        for ranks in (1..=8).chain([16]) {
            all_steps(engine, ranks);
        }
    }
}

/// A dry run of one rank checks every call and leaves its values as they were.
#[test]
fn the_null_communicator_takes_every_collective_and_changes_nothing() {
    for step in steps(3) {
        let mut null = NullCommunicator::new("world", 1, 3);
        let c: &mut dyn Communicator = &mut null;
        let (mut own, parts) = (step.own(1), step.parts());
        let before = bits(&own);
        match step.kind {
            CollectiveKind::AllReduce => c.all_reduce("x", own.lend(), step.reduce),
            CollectiveKind::ReduceScatter => c.reduce_scatter("x", own.lend(), &parts, step.reduce),
            CollectiveKind::AllGather => c.all_gather("x", own.lend(), &parts),
            CollectiveKind::AllToAll => {
                let mut send = step.own(1);
                c.all_to_all("x", (send.lend().into_slice(), &parts), (own.lend(), &parts))
            }
            CollectiveKind::Broadcast => c.broadcast("x", step.root, own.lend()),
            CollectiveKind::Send | CollectiveKind::Receive => {
                c.send(Message::new("x", 0, 2), own.lend().into_slice()).unwrap();
                assert!(c.arrived(Message::new("x", 0, 0)).unwrap());
                c.receive(Message::new("x", 0, 0), own.lend())
            }
            CollectiveKind::Barrier => c.barrier("x"),
        }
        .unwrap();
        assert_eq!(bits(&own), before, "{step:?}");
        let wrong = Parts::of([1, 2]);
        assert!(c.all_gather("x", own.lend(), &wrong).is_err(), "two parts for three ranks");
    }
}

#[test]
fn a_sum_of_bytes_is_refused() {
    for engine in ENGINES {
        let errors = each(world(engine, 2, LONG), |mut c| {
            c.all_reduce("bytes", &mut [1u8; 3], Reduce::Sum).unwrap_err().to_string()
        });
        assert!(errors[0].contains("u8 values are bytes"), "{engine:?}: {errors:?}");
    }
}

/// The sum of these in any other order is another number.
#[test]
fn sums_are_formed_in_the_order_of_the_ranks() {
    let terms = [1e8f32, 1.0, -1e8, 1.0];
    for engine in ENGINES {
        // Small values take another way than long ones.
        for len in [1, 50_000] {
            let sums = each(world(engine, 4, LONG), |mut c| {
                let mut v = vec![terms[c.rank()]; len];
                c.all_reduce("order", &mut v, Reduce::Sum).unwrap();
                v
            });
            let want = ((terms[0] + terms[1]) + terms[2]) + terms[3];
            assert_ne!(want, (terms[0] + terms[2]) + (terms[1] + terms[3]));
            assert!(sums.iter().flatten().all(|s| *s == want), "{engine:?} {len}: {want} {:?}", sums[0][0]);
        }
    }
}

/// In bf16, 256 + 1 is 256, so a sum rounded at every step would stay there.
#[test]
fn bf16_sums_are_rounded_once() {
    for engine in ENGINES {
        let sums = each(world(engine, 8, LONG), |mut c| {
            let mut v = vec![bf16::from_f32(if c.rank() == 0 { 256.0 } else { 1.0 }); 9];
            c.all_reduce("rounding", &mut v, Reduce::Sum).unwrap();
            v
        });
        let want = bf16::from_f32(263.0);
        assert!(sums.iter().flatten().all(|s| *s == want), "{engine:?}: {want} {sums:?}");
    }
}

#[test]
fn the_largest_of_values_with_nan_is_nan() {
    for engine in ENGINES {
        let found = each(world(engine, 3, LONG), |mut c| {
            let mut v = [c.rank() as f32, if c.rank() == 1 { f32::NAN } else { 5.0 }];
            c.all_reduce("max", &mut v, Reduce::Max).unwrap();
            v
        });
        assert!(found.iter().all(|v| v[0] == 2.0 && v[1].is_nan()), "{engine:?}: {found:?}");
    }
}

fn step(ranks: usize) -> impl Strategy<Value = Step> {
    let part = prop_oneof![Just(0usize), 1usize..40, 900usize..5000];
    let parts = prop::collection::vec(part, ranks);
    let kind_and_element = (0..KINDS.len(), 0..ElementType::ALL.len())
        .prop_map(|(kind, element)| (KINDS[kind], ElementType::ALL[element]))
        .prop_filter("bytes are not reduced", |(kind, element)| !reduces_bytes(*kind, *element));
    (kind_and_element, any::<bool>(), parts, 0..ranks, any::<u64>()).prop_map(
        |((kind, element), max, parts, root, seed)| Step {
            kind,
            element,
            reduce: if max { Reduce::Max } else { Reduce::Sum },
            parts,
            root,
            seed,
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    #[test]
    fn any_sequence_of_collectives_gives_the_plain_results(
        steps in (1usize..6).prop_flat_map(|ranks| prop::collection::vec(step(ranks), 1..20)),
    ) {
        let expected: Vec<Expected> = steps.iter().map(Expected::of).collect();
        for engine in ENGINES {
            each(world(engine, steps[0].parts.len(), LONG), |mut c| {
                expected.iter().for_each(|expected| check(c.as_mut(), expected));
            });
        }
    }
}
