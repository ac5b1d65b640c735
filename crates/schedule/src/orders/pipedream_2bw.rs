//! PipeDream-2BW (Narayanan et al. 2021, arXiv 2006.09503): 1F1B without a flush and with two versions of the weights.
//!
//! Micro-batches of update t read the weights with t-1 updates in them on every stage: `W(t+1) = W(t) - lr grad f(W(t-1))`,
//! a delay of exactly one. No bubble after the pipeline has filled, the activations of 1F1B, one more copy of the weights.
//! An update takes at least p micro-batches, so that the one before it but one is over everywhere when it begins.

use super::one_f_one_b::alternate;
use super::pipedream::asynchronous;
use crate::{Instruction, Pass, Program, ScheduleError, Shape};

pub(crate) fn pipedream_2bw(shape: &Shape) -> Result<Program, ScheduleError> {
    let (p, m) = (shape.ranks, shape.micro_batches);
    let every = shape.update_every.unwrap_or_else(|| (p..m).find(|&n| m.is_multiple_of(n)).unwrap_or(m));
    if every < p {
        let wanted = format!("at least as many micro-batches in an update as there are ranks, {p}");
        let advice = "take more micro-batches, fewer ranks, or pipedream, which keeps more versions";
        return Err(ScheduleError::shape("pipedream-2bw", wanted, every.to_string(), advice));
    }
    let mut program = asynchronous("pipedream-2bw", shape, every)?;
    let pass = |micro: usize| Pass { micro, chunk: 0, version: (micro / every).saturating_sub(1) };
    for (r, list) in program.lists.iter_mut().enumerate() {
        let warm = (p - 1 - r).min(m);
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
