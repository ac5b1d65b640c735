//! Sums that are wrong are found, right ones are not, and values stay as they are.

use bessemer_collectives::{
    Collective, Communicator, Fault, Faulty, FaultySums, HostBuffer, Memory, Parts, Pattern, Reduce,
    SumCheck, ThreadCommunicator, ThreadSettings,
};
use bessemer_units::DType;

type Wrap<'a> = &'a (dyn Fn(usize, Box<dyn Communicator>) -> Box<dyn Communicator> + Sync);

/// One sum on so many ranks, with and without a check: whether the values agree, and the finding of each rank.
fn run(
    ranks: usize,
    dtype: DType,
    scatter: bool,
    step: &(dyn Fn(usize) -> u64 + Sync),
    wrap: Wrap<'_>,
) -> Vec<(HostBuffer, Option<String>)> {
    let worlds = ThreadCommunicator::world("data", ranks, &ThreadSettings::default());
    std::thread::scope(|scope| {
        let run = |(rank, world): (usize, ThreadCommunicator)| {
            scope.spawn(move || {
                let check = SumCheck::default();
                let mut world = check.wrap(wrap(rank, Box::new(world)));
                check.switch(Some(step(rank)));
                let parts = Parts::of((0..ranks).map(|r| 500 + r));
                let values: Vec<f32> = (0..parts.len())
                    .map(|i| ((i * 7919 + rank * 104_729) as f32).sin() * 3.0 + 1.0)
                    .collect();
                let mut buffer = HostBuffer::with_capacity(dtype.into(), values.len());
                buffer.reset(dtype.into(), values.len());
                match dtype {
                    DType::Bf16 => {
                        let to = buffer.as_mut_slice::<half::bf16>();
                        to.iter_mut().zip(&values).for_each(|(t, v)| *t = half::bf16::from_f32(*v));
                    }
                    DType::F16 => {
                        let to = buffer.as_mut_slice::<half::f16>();
                        to.iter_mut().zip(&values).for_each(|(t, v)| *t = half::f16::from_f32(*v));
                    }
                    _ => buffer.as_mut_slice().copy_from_slice(&values),
                }
                let pattern = match scatter {
                    true => Pattern::ReduceScatter(&parts, Reduce::Sum),
                    false => Pattern::AllReduce(Reduce::Sum),
                };
                world.run(&Collective::new("gradients", pattern), Memory::InPlace(buffer.lend())).unwrap();
                (buffer, check.take())
            })
        };
        let ranks: Vec<_> = worlds.into_iter().enumerate().map(run).collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    })
}

#[test]
fn right_sums_pass_in_every_type() {
    for ranks in [2, 3, 8] {
        for dtype in [DType::F32, DType::Bf16, DType::F16] {
            for scatter in [false, true] {
                let ended = run(ranks, dtype, scatter, &|_| 7, &|_, world| world);
                assert!(
                    ended.iter().all(|(_, found)| found.is_none()),
                    "{ranks} {dtype:?} {scatter}: {ended:?}"
                );
            }
        }
    }
}

#[test]
fn a_flipped_bit_a_missing_sum_and_another_step_are_found_on_every_rank() {
    for scatter in [false, true] {
        let flipped = FaultySums::default();
        flipped.set(1);
        let wrap = |rank: usize, world| if rank == 1 { flipped.wrap(world) } else { world };
        for (_, found) in run(3, DType::F32, scatter, &|_| 7, &wrap) {
            let found = found.unwrap();
            assert!(found.contains("of \"gradients\" in data: the sum of its elements is"), "{found}");
            assert!(scatter || found.contains("on rank 1 of the group"), "{found}");
        }
        // A call that reports success and has done nothing.
        let skips = |_: usize, world| Faulty::new(Fault::Skip, 0).wrap(world);
        for dtype in [DType::F32, DType::Bf16, DType::F16] {
            for (_, found) in run(2, dtype, scatter, &|_| 7, &skips) {
                assert!(found.unwrap().contains("the difference exceeds"), "{dtype:?} {scatter}");
            }
        }
        for (_, found) in run(2, DType::F32, scatter, &|rank| 7 + rank as u64, &|_, world| world) {
            assert!(found.unwrap().contains("rank 0 of the group is at step 7, rank 1 at step 8"));
        }
    }
}

#[test]
fn the_check_changes_no_bit() {
    let with = run(3, DType::F32, false, &|_| 7, &|_, world| world);
    let mut world = ThreadCommunicator::world("data", 1, &ThreadSettings::default()).remove(0);
    let world: &mut dyn Communicator = &mut world;
    // The sum in the order of the ranks, by hand.
    let term = |rank: usize, i: usize| ((i * 7919 + rank * 104_729) as f32).sin() * 3.0 + 1.0;
    let mut wanted: Vec<f32> = (0..1503).map(|i| term(0, i) + term(1, i) + term(2, i)).collect();
    world.all_reduce("alone", &mut wanted, Reduce::Sum).unwrap();
    assert!(with.iter().all(|(values, _)| values.as_slice::<f32>() == wanted));
}
