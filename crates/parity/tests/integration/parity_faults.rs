//! Faults that the comparison of layouts must notice: what its bounds allow is rounding, and nothing else.

use crate::device::{Device, Launch};
use crate::instruction_set;
use crate::parity::{job, problem};
use bessemer_collectives::{Fault, Faulty, ThreadCommunicator, ThreadSettings};
use bessemer_parallel::Stage;
use bessemer_parity::{
    Layout, ParityJob, Reference, References, Style, Trajectory, in_process, pairwise, trajectory,
};
use bessemer_tensor::Backend;
use bessemer_tensor::op::{self, Op};
use bessemer_test_tier::{either, part};
use bessemer_train::TrainError;
use std::sync::atomic::{AtomicUsize, Ordering};

const STEPS: u64 = 5;

fn healthy() -> Result<Box<dyn Backend>, TrainError> {
    Ok(Box::new(instruction_set::cpu(1)))
}

fn reference(job: &ParityJob, layout: &Layout) -> Reference {
    References::new(&ThreadSettings::default(), &healthy).of(job, layout).expect("the reference runs").clone()
}

/// A fault of the product that makes a weight's gradient, on one rank: what it does instead.
type Wrong = fn(
    &mut dyn Backend,
    bessemer_tensor::Stream,
    &op::LinearBackwardWeight,
) -> Result<(), bessemer_tensor::TensorError>;

/// The last token's term is left out of the sum.
const DROPPED: Wrong = |device, stream, product| {
    let mut part = *product;
    part.x.rows -= 1;
    part.dy.rows -= 1;
    device.launch(stream, &part.into())
};

/// This rank's part of the gradient is twice as large.
const DOUBLED: Wrong = |device, stream, product| {
    device.launch(stream, &(*product).into())?;
    device.launch(stream, &op::LinearBackwardWeight { accumulate: true, ..*product }.into())
};

/// `wrong` in the first product for a weight's gradient of every step from `from` (0: the first) on.
fn launch(from: usize, wrong: Wrong) -> Launch {
    let (mut step, mut done, mut updating) = (0, false, false);
    Box::new(move |device, stream, op| match op {
        Op::LinearBackwardWeight(product) if step >= from && !done => {
            (done, updating) = (true, false);
            wrong(device, stream, product)
        }
        Op::AdamW(_) => {
            step += usize::from(!updating);
            (done, updating) = (false, true);
            device.launch(stream, op)
        }
        Op::LinearBackwardWeight(_) => {
            updating = false;
            device.launch(stream, op)
        }
        _ => device.launch(stream, op),
    })
}

#[test]
fn a_wrong_gradient_on_one_rank_is_noticed_whenever_it_begins() {
    for style in Style::ALL {
        let job = job(style, STEPS);
        let layouts = [
            Layout::of(Stage::Ddp, (1, 1), (2, false), 1),
            Layout::of(Stage::Ddp, (1, 1), (4, true), 2),
            Layout::of(Stage::Zero2, (1, 2), (1, false), 1),
        ];
        for layout in part(layouts, usize::from(style != Style::ALL[0]), 2) {
            let reference = reference(&job, &layout);
            for (what, wrong) in [("a dropped term", DROPPED), ("a doubled shard", DOUBLED)] {
                for from in [0, 1, STEPS as usize - 1] {
                    let made = AtomicUsize::new(0);
                    let faulty = || -> Result<Box<dyn Backend>, TrainError> {
                        if made.fetch_add(1, Ordering::Relaxed) > 0 {
                            return healthy();
                        }
                        Ok(Box::new(Device { inner: healthy()?, launch: launch(from, wrong) }))
                    };
                    let found =
                        in_process(&job, &layout, &ThreadSettings::default(), &faulty).expect("it runs");
                    let problem = problem(&job, &found, &reference);
                    assert!(
                        problem.is_some(),
                        "{} {}: {what} from step {from} on",
                        style.name(),
                        layout.name
                    );
                }
            }
        }
    }
}

/// Trains a layout whose ranks all leave out their collective number `skipped`; what each saw.
fn without_collective(job: &ParityJob, layout: &Layout, skipped: u64) -> Vec<Result<Trajectory, TrainError>> {
    let worlds = ThreadCommunicator::world("world", layout.ranks, &ThreadSettings::default());
    std::thread::scope(|scope| {
        let rank = |world| {
            let world = Faulty::new(Fault::Skip, skipped).wrap(Box::new(world));
            scope.spawn(move || trajectory(&mut *healthy()?, job, layout, world))
        };
        let ranks: Vec<_> = worlds.into_iter().map(rank).collect();
        ranks.into_iter().map(|rank| rank.join().expect("no panic")).collect()
    })
}

/// Collectives of a rank in all, found by halving: from there on nothing is left out.
fn collectives(job: &ParityJob, layout: &Layout, whole: &Trajectory) -> u64 {
    let changes = |at| without_collective(job, layout, at)[0].as_ref().is_ok_and(|found| found == whole);
    let (mut below, mut above) = (0, 4096);
    assert!(changes(above), "more collectives than expected");
    while above - below > 1 {
        let middle = (below + above) / 2;
        if changes(middle) { above = middle } else { below = middle }
    }
    above
}

#[test]
fn a_collective_that_is_left_out_is_noticed() {
    let plain = ParityJob { steps: 3, ..job(Style::Gpt2, 3) };
    // Sums of the gradients of QK-norm and of key and value heads that several ranks hold.
    let mut variant = pairwise(4).swap_remove(0);
    (variant.variant.qk_norm, variant.variant.kv_heads) = (true, 1);
    let shared = variant.job(1, 3).expect("a model that fits together");
    for (job, layout) in [
        (&plain, Layout::of(Stage::Ddp, (1, 1), (2, true), 1)),
        (&plain, Layout::of(Stage::Zero2, (1, 2), (1, false), 1)),
        (&shared, Layout::of(Stage::Ddp, (1, 1), (4, false), 1)),
    ] {
        let reference = reference(job, &layout);
        let whole = in_process(job, &layout, &ThreadSettings::default(), &healthy).expect("the layout runs");
        assert_eq!(problem(job, &whole, &reference), None);
        let count = collectives(job, &layout, &whole);
        assert!(count > 30, "{}: {count}", layout.name);
        let mut unnoticed = Vec::new();
        for skipped in (0..count).step_by((count / either(8, 24)).max(1) as usize) {
            let found = without_collective(job, &layout, skipped);
            let noticed = found.iter().any(|rank| match rank {
                Ok(found) => problem(job, found, &reference).is_some(),
                Err(_) => true,
            });
            if !noticed {
                unnoticed.push(skipped);
            }
        }
        assert!(unnoticed.is_empty(), "{}: collectives {unnoticed:?} of {count}", layout.name);
    }
}
