//! Lower bounds under a limit of memory, by Lagrangian relaxation.
//!
//! For every price λ >= 0 of a byte, `min (seconds + λ memory) - λ limit` is at most the optimum. The largest of these bounds, which is the
//! optimum of the linear programme over all mixtures of solutions and so at least that of the usual relaxation of the integer programme,
//! is found exactly: two solutions, one too large and one that fits, name the λ at which both cost the same; where another one costs
//! less, it takes the place of one of them.

use super::graph::{Price, Weights};

/// A bound, and what was found on the way to it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LowerBound {
    /// Seconds that no solution within the limit takes less than.
    pub seconds: f64,
    /// The price of a byte at which this is so.
    pub rate: f64,
    /// Least seconds of the solutions within the limit that were met.
    pub feasible: f64,
}

/// Rounds after which the best bound so far is taken.
const MOST_ROUNDS: usize = 100;

/// Returns the largest bound on the seconds of solutions that take at most `limit` bytes, or none where no solution does. `minimum` finds the
/// solution of the least weighted price.
///
/// # Errors
/// Errors of `minimum`.
pub fn lower_bound<E>(
    limit: f64,
    mut minimum: impl FnMut(Weights) -> Result<Option<Price>, E>,
) -> Result<Option<LowerBound>, E> {
    let Some(mut large) = minimum(Weights::SECONDS)? else { return Ok(None) };
    if large.memory <= limit {
        return Ok(Some(LowerBound { seconds: large.seconds, rate: 0.0, feasible: large.seconds }));
    }
    let Some(mut small) = minimum(Weights { seconds: 0.0, memory: 1.0 })? else { return Ok(None) };
    if small.memory > limit {
        return Ok(None);
    }
    let mut best = LowerBound { seconds: large.seconds, rate: 0.0, feasible: small.seconds };
    for _ in 0..MOST_ROUNDS {
        let rate = (small.seconds - large.seconds) / (large.memory - small.memory);
        let Some(found) = minimum(Weights { seconds: 1.0, memory: rate })? else { break };
        let cost = |price: Price| price.seconds + rate * price.memory;
        let seconds = cost(found) - rate * limit;
        if seconds > best.seconds {
            (best.seconds, best.rate) = (seconds, rate);
        }
        if found.memory <= limit {
            best.feasible = best.feasible.min(found.seconds);
        }
        if cost(found) >= cost(large) * (1.0 - 1e-12) {
            break;
        }
        if found.memory > limit { large = found } else { small = found }
    }
    Ok(Some(best))
}
