//! One clock for the traces of all ranks.
//!
//! Ranks of one machine share a clock; those of others may be some milliseconds off. A barrier bounds by how much: no rank
//! leaves it before all ranks have entered. With t the time of a common clock, o its distance to a rank's own and rank 0's
//! distance 0, over several barriers
//!
//! ```text
//! entered_r - left_0  <=  o_r  <=  left_r - entered_0
//! ```
//! If 0 is in this interval it is used (so on one machine times are exact), else the middle.

use crate::TrainError;
use bessemer_parallel::Worker;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

/// Barriers by which clocks are compared.
const ROUNDS: usize = 8;

/// A rank's clock, and the offsets of the other ranks' clocks from that of rank 0.
#[derive(Debug)]
pub(super) struct Clocks {
    base: Instant,
    base_nanos: u64,
    /// Indexed by rank.
    offsets: Vec<i64>,
}

impl Clocks {
    /// Compares the clocks of all ranks. All of them call this.
    pub(super) fn compare(worker: &mut Worker) -> Result<Clocks, TrainError> {
        let since = SystemTime::now().duration_since(UNIX_EPOCH);
        let (base, base_nanos) = (Instant::now(), since.map_or(0, |d| d.as_nanos() as u64));
        let mut clocks = Clocks { base, base_nanos, offsets: vec![0] };
        let ranks = worker.plan().ranks();
        if ranks == 1 {
            return Ok(clocks);
        }
        let mut moments = Vec::with_capacity(2 * ROUNDS);
        for _ in 0..ROUNDS {
            let entered = clocks.nanos(Instant::now());
            worker.world().barrier("clocks").map_err(bessemer_parallel::ParallelError::from)?;
            moments.extend([entered, clocks.nanos(Instant::now())]);
        }
        let all = worker.gather_numbers("clocks", &moments)?;
        let of = |rank: usize| &all[rank * moments.len()..][..moments.len()];
        clocks.offsets = (0..ranks).map(|rank| offset(of(0), of(rank))).collect();
        Ok(clocks)
    }

    /// Nanoseconds of this rank's clock.
    pub(super) fn nanos(&self, at: Instant) -> u64 {
        match at.checked_duration_since(self.base) {
            Some(after) => self.base_nanos + after.as_nanos() as u64,
            None => self.base_nanos.saturating_sub(self.base.duration_since(at).as_nanos() as u64),
        }
    }

    /// Microseconds on the common clock, since this rank's beginning, of a moment of `rank`.
    pub(super) fn common_micros(&self, rank: usize, nanos: u64) -> f64 {
        let offset = self.offsets.get(rank).copied().unwrap_or(0);
        (nanos as i64 - offset - self.base_nanos as i64) as f64 / 1e3
    }
}

/// Offset of a clock from rank 0's; moments are entered, left, entered, left of the same barriers.
fn offset(first: &[u64], other: &[u64]) -> i64 {
    let pairs = || first.as_chunks::<2>().0.iter().zip(other.as_chunks::<2>().0);
    let least = pairs().map(|(f, o)| o[0] as i64 - f[1] as i64).max().unwrap_or(0);
    let most = pairs().map(|(f, o)| o[1] as i64 - f[0] as i64).min().unwrap_or(0);
    match least <= 0 && 0 <= most {
        true => 0,
        false => least.midpoint(most),
    }
}

#[cfg(test)]
mod tests {
    use super::offset;

    #[test]
    fn clocks_are_only_moved_as_far_as_barriers_say() {
        // Entered at 10 and 13, left at 15 and 14.
        assert_eq!(offset(&[10, 15, 30, 34], &[13, 14, 31, 35]), 0);
        // The same moments with a clock that is 1000 ahead: between 1013 - 15 and 1014 - 10, 1031 - 34 and 1035 - 30.
        assert_eq!(offset(&[10, 15, 30, 34], &[1013, 1014, 1031, 1035]), (998 + 1004) / 2);
        assert_eq!(offset(&[1013, 1014, 1031, 1035], &[10, 15, 30, 34]), -(998 + 1004) / 2);
    }
}
