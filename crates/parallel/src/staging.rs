//! Staging buffers: host memory in which values wait for a collective, in the type in which they travel.
//!
//! f32 travels as f32 and bf16 as bf16, whose sums collectives form in f32 and round once. f16 travels as f32.

use bessemer_collectives::{ElementType, HostBuffer};
use bessemer_tensor::{Backend, TensorError, View};
use bessemer_units::DType;
use half::bf16;
use half::slice::HalfFloatSliceExt;
use std::ops::Range;

/// The type in which values of a type travel.
pub(crate) fn travels_as(dtype: DType) -> ElementType {
    if dtype == DType::Bf16 { ElementType::Bf16 } else { ElementType::F32 }
}

/// An empty buffer for values of type `dtype`, with room for `most`.
pub(crate) fn buffer(dtype: DType, most: usize) -> HostBuffer {
    HostBuffer::with_capacity(travels_as(dtype), most)
}

/// Copies a view from the device to elements `to` of a buffer.
pub(crate) fn read(
    backend: &mut dyn Backend,
    from: View,
    buffer: &mut HostBuffer,
    to: Range<usize>,
) -> Result<(), TensorError> {
    match buffer.element() {
        ElementType::Bf16 => {
            backend.read_bits(from, buffer.as_mut_slice::<bf16>()[to].reinterpret_cast_mut())
        }
        _ => backend.read_f32(from, &mut buffer.as_mut_slice()[to]),
    }
}

/// Copies elements `from` of a buffer to a view on the device.
pub(crate) fn write(
    backend: &mut dyn Backend,
    to: View,
    buffer: &HostBuffer,
    from: Range<usize>,
) -> Result<(), TensorError> {
    match buffer.element() {
        ElementType::Bf16 => backend.write_bits(to, buffer.as_slice::<bf16>()[from].reinterpret_cast()),
        _ => backend.write_f32(to, &buffer.as_slice()[from]),
    }
}

/// Adds all of `terms` to elements `to` of a buffer of the same type, rounded to it.
pub(crate) fn add(buffer: &mut HostBuffer, to: Range<usize>, terms: &HostBuffer) {
    if buffer.element() == ElementType::Bf16 {
        let sum = |(v, t): (&mut bf16, &bf16)| *v = bf16::from_f32(v.to_f32() + t.to_f32());
        buffer.as_mut_slice()[to].iter_mut().zip(terms.as_slice()).for_each(sum);
    } else {
        let terms = terms.as_slice::<f32>();
        buffer.as_mut_slice::<f32>()[to].iter_mut().zip(terms).for_each(|(v, t)| *v += t);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_are_rounded_to_the_type_in_which_they_travel() {
        let mut a = HostBuffer::of(&[0.0f32, 1.0, 0.0]);
        add(&mut a, 1..2, &HostBuffer::of(&[0.003_906_25f32]));
        assert_eq!(a.as_slice::<f32>(), [0.0, 1.003_906_3, 0.0]);
        let mut a = HostBuffer::of(&[bf16::ZERO, bf16::ONE, bf16::ZERO]);
        add(&mut a, 1..2, &HostBuffer::of(&[bf16::from_f32(0.003_906_25)]));
        assert_eq!(a.as_slice::<bf16>(), [bf16::ZERO, bf16::ONE, bf16::ZERO]);
    }
}
