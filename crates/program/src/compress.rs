//! The pass `compress`: activations that are stored between the forward and the backward pass in fewer bits.
//!
//! A value that a backward list reads as stored is compressed after the last node of the forward list that touches it, and
//! decompressed before the first node of each backward list that does. The compressed value is stored; the value itself
//! lives within one list, in scratch. The residual stream that enters a unit is compressed when the unit begins, so the
//! memory between units is free for the next one.
//!
//! Bits of forward passes, and so losses, are kept; gradients are those of backward passes that read the rounded values. Each value is
//! near the original: within 2^-9 of itself in bf16, within 1/254 of its block's largest magnitude in 8 bits, or 1/127 if it is smaller than
//! 1/254 of that, with the right sign. Statistics (of normalisations and of softmax) are stored unchanged: they are few, and errors in them
//! would not stay small.

use crate::experts::has_counted_rows;
use crate::node::Node;
use crate::unit::UnitProgram;
use crate::value::{Class, Value};
use bessemer_mesh::{Axis, Dim, Form, Placement};
use bessemer_tensor::View;
use bessemer_tensor::op::{Copy, Dequantise, Op, Quantise};
use bessemer_tensor::quantise::ACTIVATION_BLOCK;
use bessemer_units::{Compression, CompressionPlan, DType};

/// An unknown name in a plan: the unit has no such value.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("compression in {unit}: no value has the name {name:?}; expected one of {known}, or a prefix of one")]
pub struct CompressionError {
    /// The unit.
    pub unit: String,
    /// The name that was given.
    pub name: String,
    /// The values that are stored and may be compressed.
    pub known: String,
}

/// Compresses stored activations of a unit that is otherwise finished: after it only [`crate::offload()`] adds nodes.
///
/// # Errors
/// An unknown name in the plan: the unit has no such value.
pub fn compress(unit: &mut UnitProgram, plan: &CompressionPlan) -> Result<(), Box<CompressionError>> {
    if plan.form == Compression::None {
        return Ok(());
    }
    let stored: Vec<usize> = (0..unit.values.len()).filter(|id| is_stored_activation(unit, *id)).collect();
    let begins = |id: usize, name: &str| {
        let rest = unit.values[id].name.strip_prefix(name);
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
    };
    if let Some(name) = plan.values.iter().find(|name| !(0..unit.values.len()).any(|id| begins(id, name))) {
        let known = stored.iter().map(|id| unit.values[*id].name.as_str()).collect::<Vec<_>>().join(", ");
        return Err(Box::new(CompressionError { unit: unit.name.clone(), name: name.clone(), known }));
    }
    let named = |id: &usize| plan.values.is_empty() || plan.values.iter().any(|name| begins(*id, name));
    let wanted: Vec<usize> = stored.into_iter().filter(named).collect();
    for id in wanted {
        let Some(packed) = Packed::of(unit, id, plan.form) else { continue };
        unit.put_away(id, "restored", |src| packed.pack(src), |dst| packed.unpack(dst));
    }
    Ok(())
}

/// Returns whether a value is stored between the forward and backward lists unchanged and is read by activation operands only.
fn is_stored_activation(unit: &UnitProgram, id: usize) -> bool {
    let activation = |node: &Node| match node.op() {
        // Collectives and copies move a value, whatever it is.
        None | Some(Op::Copy(_)) => true,
        Some(op) => {
            let operands = op.operands();
            operands.iter().filter(|o| o.view.buffer.id as usize == id).all(|o| op.is_activation(o.name))
        }
    };
    let touches = |node: &&Node| node.touches().iter().any(|t| t.value() == id);
    let partial = |axis: &Axis| matches!(unit.values[id].placement(*axis), Placement::Partial { .. });
    // Terms of a sum are rounded once, after it; of rows that are counted on the device only some are there.
    unit.is_stored(id)
        && !Axis::ALL.iter().any(partial)
        && !has_counted_rows(unit, id)
        && unit.values[id].dtype.is_float()
        && unit.lists.iter().flatten().filter(touches).all(activation)
}

/// A compressed value.
enum Packed {
    Bf16(View),
    Int8 { codes: View, scales: View },
}

impl Packed {
    /// Makes the values that are stored in place of value `id`; nothing if they take as many bytes.
    fn of(unit: &mut UnitProgram, id: usize, form: Compression) -> Option<Packed> {
        let value = unit.values[id].clone();
        let like = |suffix: &str| Value {
            name: format!("{}.{suffix}", value.name),
            class: Class::Local,
            ..value.clone()
        };
        match form {
            Compression::Bf16 if value.dtype == DType::F32 => {
                Some(Packed::Bf16(unit.add(Value { dtype: DType::Bf16, ..like("bf16") })))
            }
            Compression::None | Compression::Bf16 => None,
            Compression::Int8 => {
                let block = (1..=ACTIVATION_BLOCK).rev().find(|len| value.cols.is_multiple_of(*len))?;
                let blocks = value.cols / block;
                let codes = Value { dtype: DType::U8, ..like("codes") };
                let dims = vec![value.form.dims[0].clone(), Dim::plain(blocks)];
                let scales = Value { dtype: DType::F32, form: Form { dims }, cols: blocks, ..like("scales") };
                (codes.bytes() + scales.bytes() < value.bytes())
                    .then(|| Packed::Int8 { codes: unit.add(codes), scales: unit.add(scales) })
            }
        }
    }

    fn pack(&self, src: View) -> Node {
        match *self {
            Packed::Bf16(dst) => Node::launch(Copy { src, dst }),
            Packed::Int8 { codes, scales } => Node::launch(Quantise { src, codes, scales, keep_sign: true }),
        }
    }

    fn unpack(&self, dst: View) -> Node {
        match *self {
            Packed::Bf16(src) => Node::launch(Copy { src, dst }),
            Packed::Int8 { codes, scales } => {
                Node::launch(Dequantise { codes, scales, dst, accumulate: false })
            }
        }
    }
}
