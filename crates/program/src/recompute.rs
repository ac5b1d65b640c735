//! The pass `recompute`: values that are cheap to make again are not saved, but made in the backward pass.
//!
//! The operator that makes such a value again stands before its first reader. What it reads must be kept: parameters,
//! inputs, the residual stream and saved values. Bits are unchanged, as an operator gives the same bits every time.

use crate::node::Node;
use crate::unit::{Phase, UnitProgram};

/// Makes every value that the unit says can be made again in its backward pass, instead of saving it.
pub fn recompute(unit: &mut UnitProgram) {
    for again in unit.again.clone() {
        if !unit.reads_first(Phase::Backward, again.value) {
            continue;
        }
        let list = &mut unit.lists[Phase::Backward.index()];
        let reader = list.iter().position(|n| n.touches().iter().any(|t| t.value() == again.value));
        list.insert(reader.unwrap_or(0), Node::launch(again.op));
    }
}
