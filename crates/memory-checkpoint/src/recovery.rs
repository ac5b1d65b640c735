//! Which copies a restarted run goes on from, and the elements of them that each rank needs.

use crate::Result;
use bessemer_collectives::{Communicator, Parts};

/// A complete copy that a rank can read: its own, or one that its host holds for another rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CopyOffer {
    /// Rank that can read it.
    pub by: usize,
    /// Number of the part whose copy it is: below the number of ranks, what that rank holds itself.
    pub of: usize,
    /// Step of the state.
    pub step: u64,
    /// Launch that wrote it. Copies of different launches are never mixed: a recipe may have changed in between.
    pub launch: u64,
}

impl CopyOffer {
    /// The offers of rank `by` from the numbers of [`CopyOffer::to_numbers`].
    pub fn of_numbers(by: usize, numbers: &[u8]) -> Vec<CopyOffer> {
        let long = |bytes: &[u8]| bytes.try_into().map(u64::from_le_bytes).unwrap_or(0);
        let offer = |n: &[u8]| {
            let (of, step, launch) = (long(&n[..8]) as usize, long(&n[8..16]), long(&n[16..]));
            CopyOffer { by, of, step, launch }
        };
        numbers.chunks_exact(24).map(offer).collect()
    }

    /// Bytes of offers for other ranks.
    pub fn to_numbers(offers: &[CopyOffer]) -> Vec<u8> {
        offers.iter().flat_map(|o| [o.of as u64, o.step, o.launch]).flat_map(u64::to_le_bytes).collect()
    }
}

/// Copies of one step, of all parts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RecoveryPlan {
    /// The step.
    pub step: u64,
    /// The launch that wrote them.
    pub launch: u64,
    /// By part: the rank that reads its copy; of what a rank holds itself, that rank where it can.
    pub from: Vec<usize>,
}

impl RecoveryPlan {
    /// The newest step of which there is a copy of every part.
    pub fn newest(offers: &[CopyOffer], parts: usize) -> Option<RecoveryPlan> {
        let mut states: Vec<(u64, u64)> = offers.iter().map(|offer| (offer.step, offer.launch)).collect();
        states.sort_unstable();
        states.dedup();
        states.into_iter().rev().find_map(|(step, launch)| {
            let of_state = |offer: &&CopyOffer| (offer.step, offer.launch) == (step, launch);
            let reader = |part: usize| {
                let of_part = offers.iter().filter(of_state).filter(|offer| offer.of == part);
                of_part.map(|offer| offer.by).min_by_key(|by| (*by != part, *by))
            };
            let from = (0..parts).map(reader).collect::<Option<Vec<_>>>()?;
            Some(RecoveryPlan { step, launch, from })
        })
    }

    /// Those of the first `ranks` parts that come from another rank's memory.
    pub fn from_peers(&self, ranks: usize) -> usize {
        self.from.iter().take(ranks).enumerate().filter(|(rank, from)| rank != *from).count()
    }
}

/// Parts of which there is no copy at all, of `parts`.
pub fn lost_parts(offers: &[CopyOffer], parts: usize) -> Vec<usize> {
    (0..parts).filter(|part| !offers.iter().any(|offer| offer.of == *part)).collect()
}

/// Elements of a rank's data: (first, how many).
pub type ElementRange = (u64, u64);

/// Reads elements of this rank's data.
pub type ReadData<'a> = dyn FnMut(u64, &mut [f32]) -> Result<()> + 'a;

/// Gives every rank the elements that it wants of the others' data. `wanted` is by rank; so is the result, whose values stand one range after the
/// other. All ranks call this.
///
/// # Errors
/// Errors of `read` or of another rank.
pub fn exchange_elements(
    world: &mut dyn Communicator,
    wanted: &[Vec<ElementRange>],
    read: &mut ReadData<'_>,
) -> Result<Vec<Vec<f32>>> {
    const NAME: &str = "elements of copies";
    let ranks = world.size();
    let one_each = Parts::of(std::iter::repeat_n(1, ranks));
    let counts: Vec<u32> = wanted.iter().map(|list| list.len() as u32).collect();
    let mut asked = vec![0u32; ranks];
    world.all_to_all(NAME, (&counts[..], &one_each), (&mut asked[..], &one_each))?;
    // Four words a range.
    let words =
        |range: &ElementRange| [range.0, range.1].into_iter().flat_map(|n| [n as u32, (n >> 32) as u32]);
    let own: Vec<u32> = wanted.iter().flatten().flat_map(words).collect();
    let parts = |counts: &[u32]| Parts::of(counts.iter().map(|n| 4 * *n as usize));
    let (send, receive) = (parts(&counts), parts(&asked));
    let mut others = vec![0u32; receive.len()];
    world.all_to_all(NAME, (&own[..], &send), (&mut others[..], &receive))?;
    let ranges = |rank: usize| {
        let long = |two: &[u32]| u64::from(two[0]) | u64::from(two[1]) << 32;
        others[receive.range(rank)].chunks_exact(4).map(move |four| (long(&four[..2]), long(&four[2..])))
    };
    let lengths = |rank: usize| ranges(rank).map(|(_, len)| len as usize).sum::<usize>();
    let send = Parts::of((0..ranks).map(lengths));
    let mut values = vec![0f32; send.len()];
    let mut rest = &mut values[..];
    for (first, len) in (0..ranks).flat_map(ranges) {
        let (here, behind) = rest.split_at_mut(len as usize);
        read(first, here)?;
        rest = behind;
    }
    let receive = Parts::of(wanted.iter().map(|list| list.iter().map(|(_, len)| *len as usize).sum()));
    let mut all = vec![0f32; receive.len()];
    world.all_to_all(NAME, (&values[..], &send), (&mut all[..], &receive))?;
    Ok((0..ranks).map(|rank| all[receive.range(rank)].to_vec()).collect())
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a failed unwrap here is a failed test")]
mod tests {
    use super::*;
    use bessemer_collectives::{ThreadCommunicator, ThreadSettings};

    fn offer(by: usize, of: usize, step: u64, launch: u64) -> CopyOffer {
        CopyOffer { by, of, step, launch }
    }

    #[test]
    fn the_newest_step_that_all_ranks_have_is_taken_from_the_nearest_memory() {
        let mut offers = vec![offer(0, 0, 9, 1), offer(0, 0, 10, 1), offer(1, 1, 9, 1), offer(1, 1, 8, 1)];
        let plan = RecoveryPlan::newest(&offers, 2).unwrap();
        assert_eq!(plan, RecoveryPlan { step: 9, launch: 1, from: vec![0, 1] });
        assert_eq!(plan.from_peers(2), 0);
        // Another launch has written the copy of step 10.
        offers.push(offer(1, 1, 10, 2));
        assert_eq!(RecoveryPlan::newest(&offers, 2).unwrap().step, 9);
        // Rank 0 holds it too.
        offers.push(offer(0, 1, 10, 1));
        let plan = RecoveryPlan::newest(&offers, 2).unwrap();
        assert_eq!((plan.step, plan.from.as_slice(), plan.from_peers(2)), (10, &[0, 0][..], 1));
        assert_eq!(RecoveryPlan::newest(&offers, 3), None);
        assert_eq!(lost_parts(&offers, 3), [2]);
        let sent = CopyOffer::to_numbers(&offers[..2]);
        assert_eq!(CopyOffer::of_numbers(0, &sent), offers[..2]);
    }

    /// Rank r has the elements 100 r .. 100 r + 50; each rank wants some of all.
    #[test]
    fn elements_come_from_the_ranks_that_have_them() {
        let settings = ThreadSettings::default();
        for ranks in [1, 3] {
            std::thread::scope(|scope| {
                for (me, world) in
                    ThreadCommunicator::world("world", ranks, &settings).into_iter().enumerate()
                {
                    scope.spawn(move || {
                        let mut world: Box<dyn Communicator> = Box::new(world);
                        let wanted: Vec<Vec<ElementRange>> =
                            (0..ranks as u64).map(|r| vec![(r, 3), (40 - me as u64, 2)]).collect();
                        let mut read = |first: u64, values: &mut [f32]| {
                            let at = |i: usize| (100 * me) as f32 + first as f32 + i as f32;
                            values.iter_mut().enumerate().for_each(|(i, v)| *v = at(i));
                            Ok(())
                        };
                        let found = exchange_elements(&mut *world, &wanted, &mut read).unwrap();
                        for (rank, values) in found.iter().enumerate() {
                            let at = |i: usize| (100 * rank + i) as f32;
                            let wanted = [at(rank), at(rank + 1), at(rank + 2), at(40 - me), at(41 - me)];
                            assert_eq!(values[..], wanted);
                        }
                    });
                }
            });
        }
    }
}
