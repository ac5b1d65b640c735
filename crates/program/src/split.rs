//! The pass `split`: splits a backward pass into its input part and its weight part (Qi et al. 2024, Zero Bubble Pipeline
//! Parallelism).
//!
//! The weight part has the gradients of the layers' matrices and their biases, and readers of those of shadows; everything else,
//! other collectives too, is in the input part. Operands of the weight part stay in memory between the two: a value that the input part would
//! overwrite, or that belongs to the residual stream, is copied where the weight part would have read it.

use crate::node::Node;
use crate::unit::{Phase, UnitProgram};
use crate::value::{Class, Value};
use bessemer_tensor::View;
use bessemer_tensor::op::{Access, Copy, Op};
use std::collections::BTreeSet;

/// Fills [`Phase::BackwardInput`] and [`Phase::BackwardWeight`] from [`Phase::Backward`].
pub fn split(unit: &mut UnitProgram) {
    let backward = unit.list(Phase::Backward).to_vec();
    let (mut input, mut weight) = (Vec::with_capacity(backward.len()), Vec::new());
    // Gradients that other nodes of the list read: of shadows, which go to other ranks.
    let mut later: BTreeSet<usize> = BTreeSet::new();
    for (at, node) in backward.iter().enumerate() {
        let touches = || node.touches().into_iter();
        if touches().any(|touch| touch.access == Access::Read && later.contains(&touch.value())) {
            later.extend(touches().filter(|touch| touch.access != Access::Read).map(|touch| touch.value()));
            weight.push(node.clone());
            continue;
        }
        let mut op = match node.op() {
            Some(op @ (Op::LinearBackwardWeight(_) | Op::GroupedLinearBackwardWeight(_))) => op.clone(),
            _ => {
                input.push(node.clone());
                continue;
            }
        };
        let operands = match &mut op {
            Op::LinearBackwardWeight(op) => [&mut op.x, &mut op.dy],
            Op::GroupedLinearBackwardWeight(op) => [&mut op.x, &mut op.dy],
            _ => continue,
        };
        for operand in operands {
            if must_copy(unit, &backward[at..], *operand) {
                let copy = copy_of(unit, *operand);
                input.push(Node::launch(Copy { src: *operand, dst: copy }));
                *operand = copy;
            }
        }
        let operands = op.operands();
        let made = operands.iter().filter(|o| o.access != Access::Read).map(|o| o.view.buffer.id as usize);
        later.extend(made.filter(|id| unit.values[*id].class == Class::Local));
        weight.push(Node::launch(op));
    }
    unit.lists[Phase::BackwardInput.index()] = input;
    unit.lists[Phase::BackwardWeight.index()] = weight;
}

/// Whether the present contents of the view are gone when the weight part reads it.
fn must_copy(unit: &UnitProgram, rest: &[Node], view: View) -> bool {
    let id = view.buffer.id as usize;
    let overwritten = || {
        let mut touches = rest.iter().flat_map(Node::touches);
        touches.any(|t| t.value() == id && t.access != Access::Read)
    };
    unit.values[id].class != Class::Local || overwritten()
}

fn copy_of(unit: &mut UnitProgram, view: View) -> View {
    let source = &unit.values[view.buffer.id as usize];
    let name = format!("{}.kept", source.name);
    let number = (0..).map(|i| if i == 0 { name.clone() } else { format!("{name}.{i}") });
    let name = number.into_iter().find(|n| unit.find(n).is_none()).unwrap_or(name);
    let value = Value { name, class: Class::Local, ..source.clone() };
    unit.add(value)
}
