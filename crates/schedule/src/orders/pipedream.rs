//! PipeDream (Harlap et al. 2018, arXiv 1806.03377): 1F1B without a flush, each update taken as soon as it can be.
//!
//! No bubble after the pipeline has filled. A forward reads the newest weights, and its backward the same ones: rank r
//! keeps up to `p-r` versions (weight stashing), and gradients are up to `p-1-r` updates old. Where weights are small beside
//! activations and some staleness is bearable. An update takes `update_every` micro-batches, 1 in the paper.

use super::{one_f_one_b::alternate, straight, synchronous};
use crate::{Instruction, Pass, Program, ScheduleError, Shape};

pub(crate) fn pipedream(shape: &Shape) -> Result<Program, ScheduleError> {
    let every = shape.update_every.unwrap_or(1);
    let mut program = asynchronous("pipedream", shape, every)?;
    let (p, m) = (shape.ranks, shape.micro_batches);
    for (r, list) in program.lists.iter_mut().enumerate() {
        let warm = (p - 1 - r).min(m);
        // As many backwards are over when a forward begins.
        let version = |micro: usize| micro.saturating_sub(warm) / every;
        let pass = |micro| Pass { micro, chunk: 0, version: version(micro) };
        alternate(
            list,
            warm,
            m,
            |micro| Instruction::Forward(pass(micro)),
            |micro| Instruction::Backward(pass(micro)),
        );
    }
    Ok(program)
}

/// An empty program with an update for every `every` micro-batches.
pub(super) fn asynchronous(name: &str, shape: &Shape, every: usize) -> Result<Program, ScheduleError> {
    let (p, m) = (shape.ranks, shape.micro_batches);
    if every == 0 || !m.is_multiple_of(every) {
        let wanted = "a number of micro-batches in every update that divides them all";
        let found = format!("updates of {every} from {m} micro-batches");
        let advice = match m.checked_next_multiple_of(every) {
            Some(fits) if every > 0 => format!("take {fits} micro-batches, or updates of {m}"),
            _ => format!("take updates of {m}"),
        };
        return Err(ScheduleError::shape(name, wanted, found, advice));
    }
    let mut program = synchronous(name, p, m, vec![straight(p)]);
    program.updates = m / every;
    program.update_of = (0..m).map(|micro| micro / every).collect();
    Ok(program)
}
