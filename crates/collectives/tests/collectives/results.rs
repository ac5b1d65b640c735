//! Every collective, both types, one to eight ranks (and sixteen), parts of all kinds.

use crate::world::{ENGINES, Engine, LONG, bits, each, narrow, values, world};
use bessemer_collectives::{Communicator, Kind, Message, Parts, Reduce, Source, Values};
use half::bf16;
use proptest::prelude::*;

/// Values of either type.
#[derive(Debug, Clone)]
pub(crate) enum Owned {
    F32(Vec<f32>),
    Bf16(Vec<bf16>),
}

impl Owned {
    fn new(seed: u64, rank: usize, len: usize, half: bool) -> Owned {
        let v = values(seed, rank, len);
        if half { Owned::Bf16(narrow(&v)) } else { Owned::F32(v) }
    }

    fn lend(&mut self) -> Values<'_> {
        match self {
            Owned::F32(v) => Values::F32(v),
            Owned::Bf16(v) => Values::Bf16(v),
        }
    }

    fn show(&self) -> Source<'_> {
        match self {
            Owned::F32(v) => Source::F32(v),
            Owned::Bf16(v) => Source::Bf16(v),
        }
    }

    fn wide(&self) -> Vec<f32> {
        match self {
            Owned::F32(v) => v.clone(),
            Owned::Bf16(v) => v.iter().map(|x| x.to_f32()).collect(),
        }
    }

    /// The bits of `wide` values in this type.
    fn bits_of(&self, wide: &[f32]) -> Vec<u32> {
        match self {
            Owned::F32(_) => bits(wide),
            Owned::Bf16(_) => bits(&narrow(wide)),
        }
    }

    fn bits(&self) -> Vec<u32> {
        match self {
            Owned::F32(v) => bits(v),
            Owned::Bf16(v) => bits(v),
        }
    }
}

/// Reduction over the ranks, rank 0 first, as plainly as it can be written.
fn reduced(ranks: &[Owned], reduce: Reduce) -> Vec<f32> {
    let mut sum = ranks[0].wide();
    for other in &ranks[1..] {
        for (s, o) in sum.iter_mut().zip(other.wide()) {
            *s = match reduce {
                Reduce::Sum => *s + o,
                Reduce::Max if s.is_nan() || o.is_nan() => f32::NAN,
                Reduce::Max => s.max(o),
            };
        }
    }
    sum
}

/// One call that all ranks make.
#[derive(Debug, Clone)]
struct Step {
    kind: Kind,
    half: bool,
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
    fn own(&self, r: usize) -> Owned {
        Owned::new(self.seed, r, self.parts.iter().sum(), self.half)
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
    all: Vec<Owned>,
    reduced: Vec<f32>,
}

impl Expected {
    fn of(step: &Step) -> Expected {
        let all: Vec<Owned> = (0..step.parts.len()).map(|r| step.own(r)).collect();
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
        Kind::AllReduce => {
            c.all_reduce(name, own.lend(), step.reduce).unwrap();
            assert_eq!(own.bits(), own.bits_of(reduced), "{name}");
        }
        Kind::ReduceScatter => {
            c.reduce_scatter(name, own.lend(), &parts, step.reduce).unwrap();
            let want = own.bits_of(&reduced[parts.range(rank)]);
            assert_eq!(own.bits()[parts.range(rank)], want, "{name}");
        }
        Kind::AllGather => {
            c.all_gather(name, own.lend(), &parts).unwrap();
            let want = (0..n).flat_map(|r| all[r].bits()[parts.range(r)].to_vec());
            assert_eq!(own.bits(), want.collect::<Vec<_>>(), "{name}");
        }
        Kind::AllToAll => {
            let sends = Parts::of((0..n).map(|to| step.pair(rank, to)));
            let receives = Parts::of((0..n).map(|from| step.pair(from, rank)));
            let send = Owned::new(step.seed, rank, sends.len(), step.half);
            let mut receive = Owned::new(0, 0, receives.len(), step.half);
            c.all_to_all(name, (send.show(), &sends), (receive.lend(), &receives)).unwrap();
            let want = (0..n).flat_map(|from| {
                let theirs = Parts::of((0..n).map(|to| step.pair(from, to)));
                Owned::new(step.seed, from, theirs.len(), step.half).bits()[theirs.range(rank)].to_vec()
            });
            assert_eq!(receive.bits(), want.collect::<Vec<_>>(), "{name}");
        }
        Kind::Broadcast => {
            c.broadcast(name, step.root, own.lend()).unwrap();
            assert_eq!(own.bits(), all[step.root].bits(), "{name}");
        }
        // A ring: to the next, from the one before.
        Kind::Send | Kind::Receive if n > 1 => {
            let before = (rank + n - 1) % n;
            c.send(Message::new(name, step.seed, (rank + 1) % n), own.show()).unwrap();
            c.receive(Message::new(name, step.seed, before), own.lend()).unwrap();
            assert_eq!(own.bits(), all[before].bits(), "{name}");
        }
        Kind::Send | Kind::Receive | Kind::Barrier => c.barrier(name).unwrap(),
    }
}

const KINDS: [Kind; 7] = [
    Kind::AllReduce,
    Kind::ReduceScatter,
    Kind::AllGather,
    Kind::AllToAll,
    Kind::Broadcast,
    Kind::Send,
    Kind::Barrier,
];

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
            for (half, reduce) in [(false, Reduce::Sum), (true, Reduce::Sum), (false, Reduce::Max)] {
                let seed = steps.len() as u64;
                steps.push(Step { kind, half, reduce, parts: parts.clone(), root: ranks - 1, seed });
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

/// The sum of these in any other order is another number.
#[test]
fn sums_are_formed_in_the_order_of_the_ranks() {
    let terms = [1e8f32, 1.0, -1e8, 1.0];
    for engine in ENGINES {
        // Small values take another way than long ones.
        for len in [1, 50_000] {
            let sums = each(world(engine, 4, LONG), |mut c| {
                let mut v = vec![terms[c.rank()]; len];
                c.all_reduce("order", Values::F32(&mut v), Reduce::Sum).unwrap();
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
            c.all_reduce("rounding", Values::Bf16(&mut v), Reduce::Sum).unwrap();
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
            c.all_reduce("max", Values::F32(&mut v), Reduce::Max).unwrap();
            v
        });
        assert!(found.iter().all(|v| v[0] == 2.0 && v[1].is_nan()), "{engine:?}: {found:?}");
    }
}

fn step(ranks: usize) -> impl Strategy<Value = Step> {
    let part = prop_oneof![Just(0usize), 1usize..40, 900usize..5000];
    let parts = prop::collection::vec(part, ranks);
    (0..KINDS.len(), any::<bool>(), any::<bool>(), parts, 0..ranks, any::<u64>()).prop_map(
        |(kind, half, max, parts, root, seed)| Step {
            kind: KINDS[kind],
            half,
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
