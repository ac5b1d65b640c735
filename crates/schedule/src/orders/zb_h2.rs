//! ZB-H2 (Qi et al. 2024, arXiv 2401.10241): twice the forwards before the first backward, more weight parts put off.
//!
//! Bubble `(p-1)(T_F+T_B-2T_W)` as a span: every rank works without a pause but ranks do not begin and end together, so
//! the optimizer's step must be each rank's own. Rank 0 holds `2p-1` micro-batches. For memory to spare.

use super::{straight, synchronous, zb_h1::split};
use crate::{Program, Shape};

pub(crate) fn zb_h2(shape: &Shape) -> Program {
    let (p, m) = (shape.ranks, shape.micro_batches);
    let mut program = synchronous("zb-h2", p, m, vec![straight(p)]);
    for (r, list) in program.lists.iter_mut().enumerate() {
        split(list, (2 * (p - 1 - r)).min(m), 2 * r, m);
    }
    program
}
