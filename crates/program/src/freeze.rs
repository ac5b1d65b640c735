//! The pass `freeze`: gradients of parameters that are not trained are not made.
//!
//! Operators that make nothing else are removed; where an operator makes another result too (a norm makes the gradient of its
//! input), the gradient of a frozen parameter becomes scratch. Values that only those gradients read are then no longer saved
//! between the passes, which follows from the lists.

use crate::node::Node;
use crate::unit::UnitProgram;
use crate::value::Class;
use bessemer_tensor::op::Access;

/// Rewrites the lists of a unit as the model's code has recorded it. `frozen`: by parameter of the unit.
pub fn freeze(unit: &mut UnitProgram, frozen: &dyn Fn(&str) -> bool) {
    let UnitProgram { values, parameters, lists, .. } = unit;
    let mut dropped = vec![false; values.len()];
    for (value, dropped) in values.iter_mut().zip(&mut dropped) {
        if let Class::Gradient(parameter) = value.class
            && frozen(&parameters[parameter])
        {
            (value.class, value.parameter, *dropped) = (Class::Local, None, true);
        }
    }
    let needed = |node: &Node| {
        let touches = node.touches();
        let mut written = touches.iter().filter(|touch| touch.access != Access::Read);
        written.any(|touch| !dropped[touch.value()])
    };
    lists.iter_mut().for_each(|list| list.retain(needed));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::unit::{Phase, Recorder};
    use bessemer_mesh::Dim;
    use bessemer_tensor::op::{Fill, LinearBackwardInput, LinearBackwardWeight, Op};
    use bessemer_units::DType;

    fn recorded() -> UnitProgram {
        let mut recorder = Recorder::new("layers.0.");
        let dims = |rows, cols| [Dim::plain(rows), Dim::plain(cols)];
        let weight = recorder.parameter("up.weight", DType::F32, dims(6, 4));
        let gradient = recorder.gradient("up.weight", DType::F32, dims(6, 4));
        let table = recorder.gradient("table", DType::F32, dims(3, 4));
        let x = recorder.value("x", Class::StreamIn, DType::F32, dims(2, 4));
        let dx = recorder.value("dx", Class::StreamGradient, DType::F32, dims(2, 4));
        let dy = recorder.value("dy", Class::Local, DType::F32, dims(2, 6));
        recorder.begin(Phase::Backward);
        recorder.launch_first(Fill { dst: table, value: 0.0 });
        recorder.launch(LinearBackwardWeight { x, dy, dweight: gradient, dbias: None, accumulate: false });
        recorder.launch(LinearBackwardInput { dy, weight, activation: None, dx, accumulate: false });
        recorder.finish()
    }

    #[test]
    fn only_operators_that_make_a_frozen_gradient_alone_are_removed() {
        let names = |frozen: &dyn Fn(&str) -> bool| {
            let mut unit = recorded();
            freeze(&mut unit, frozen);
            unit.list(Phase::Backward).iter().filter_map(Node::op).map(Op::name).collect::<Vec<_>>()
        };
        let all = names(&|_| false);
        assert_eq!(all.len(), 3);
        assert_eq!(names(&|name| name == "table"), all[1..]);
        assert_eq!(names(&|name| name == "up.weight"), [all[0], all[2]]);
        assert_eq!(names(&|_| true), [all[2]]);
    }
}
