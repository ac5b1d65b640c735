//! DualPipeV (published with DualPipe; the "cut in half" of Sea AI Lab): the program of DualPipe on half the ranks, each
//! holding stages r and 2R-1-r, so that the way back takes the place of the second direction.
//!
//! Bubble `(R-1)(F&B+T_F-2T_W)` in times of one chunk, R ranks; `2R+1` chunks' activations held on every rank; one copy
//! of the weights, twice the messages of DualPipe per rank. Needs m >= 2R.

use super::{dualpipe::Rank, synchronous, vee};
use crate::{Program, ScheduleError, Shape};

pub(crate) fn dualpipev(shape: &Shape) -> Result<Program, ScheduleError> {
    let (ranks, m) = (shape.ranks, shape.micro_batches);
    if m < 2 * ranks {
        let wanted = format!("at least twice as many micro-batches as the {ranks} ranks");
        let advice = format!("take {} micro-batches, or zb-v, which takes any number", 2 * ranks);
        return Err(ScheduleError::shape("dualpipev", wanted, m.to_string(), advice));
    }
    let mut program = synchronous("dualpipev", ranks, m, vec![vee(ranks)]);
    for (r, list) in program.lists.iter_mut().enumerate() {
        Rank::new([0, 1], [0, 0]).fill(list, ranks, r, m);
    }
    Ok(program)
}
