//! Staging buffers: host memory in which values wait for a collective, in the type in which they travel.
//!
//! f32 travels as f32 and bf16 as bf16, whose sums collectives form in f32 and round once. f16 travels as f32.

use bessemer_collectives::Buffer;
use bessemer_tensor::{Backend, TensorError, View};
use bessemer_units::DType;
use half::bf16;
use half::slice::HalfFloatSliceExt;
use std::ops::Range;

/// An empty buffer for values of type `dtype`, with room for `most`.
pub(crate) fn buffer(dtype: DType, most: usize) -> Buffer {
    match dtype {
        DType::Bf16 => Buffer::Bf16(Vec::with_capacity(most)),
        _ => Buffer::F32(Vec::with_capacity(most)),
    }
}

/// Bytes that a buffer has room for.
pub(crate) fn bytes(buffer: &Buffer) -> u64 {
    match buffer {
        Buffer::F32(v) => 4 * v.capacity() as u64,
        Buffer::Bf16(v) => 2 * v.capacity() as u64,
    }
}

/// Makes a buffer `len` elements long.
pub(crate) fn resize(buffer: &mut Buffer, len: usize) {
    match buffer {
        Buffer::F32(v) => v.resize(len, 0.0),
        Buffer::Bf16(v) => v.resize(len, bf16::ZERO),
    }
}

/// Copies a view from the device to elements `to` of a buffer.
pub(crate) fn read(
    backend: &mut dyn Backend,
    from: View,
    buffer: &mut Buffer,
    to: Range<usize>,
) -> Result<(), TensorError> {
    match buffer {
        Buffer::F32(v) => backend.read_f32(from, &mut v[to]),
        Buffer::Bf16(v) => backend.read_bits(from, v[to].reinterpret_cast_mut()),
    }
}

/// Copies elements `from` of a buffer to a view on the device.
pub(crate) fn write(
    backend: &mut dyn Backend,
    to: View,
    buffer: &Buffer,
    from: Range<usize>,
) -> Result<(), TensorError> {
    match buffer {
        Buffer::F32(v) => backend.write_f32(to, &v[from]),
        Buffer::Bf16(v) => backend.write_bits(to, v[from].reinterpret_cast()),
    }
}

/// Adds all of `terms` to elements `to` of a buffer of the same type, rounded to it.
pub(crate) fn add(buffer: &mut Buffer, to: Range<usize>, terms: &Buffer) {
    match (buffer, terms) {
        (Buffer::F32(v), Buffer::F32(t)) => v[to].iter_mut().zip(t).for_each(|(v, t)| *v += t),
        (Buffer::Bf16(v), Buffer::Bf16(t)) => {
            let sum = |(v, t): (&mut bf16, &bf16)| *v = bf16::from_f32(v.to_f32() + t.to_f32());
            v[to].iter_mut().zip(t).for_each(sum);
        }
        _ => unreachable!("a stretch's staging buffers are of one type"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_are_rounded_to_the_type_in_which_they_travel() {
        for (dtype, wanted) in [(DType::F32, 1.003_906_3), (DType::F16, 1.003_906_3), (DType::Bf16, 1.0)] {
            let [mut a, mut b] = [buffer(dtype, 3), buffer(dtype, 1)];
            resize(&mut a, 3);
            resize(&mut b, 1);
            match (&mut a, &mut b) {
                (Buffer::F32(a), Buffer::F32(b)) => (a[1], b[0]) = (1.0, 0.003_906_25),
                (Buffer::Bf16(a), Buffer::Bf16(b)) => {
                    (a[1], b[0]) = (bf16::ONE, bf16::from_f32(0.003_906_25));
                }
                _ => panic!("two types"),
            }
            add(&mut a, 1..2, &b);
            let found = match a {
                Buffer::F32(a) => a,
                Buffer::Bf16(a) => a.iter().map(|x| x.to_f32()).collect(),
            };
            assert_eq!(found, [0.0, wanted, 0.0], "{dtype}");
        }
    }
}
