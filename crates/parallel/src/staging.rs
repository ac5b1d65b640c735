//! A sum of gradients on the host.

use bessemer_collectives::{Element, ElementType, HostBuffer};
use half::{bf16, f16};
use std::ops::Range;

/// Adds all of `terms` to elements `to` of a buffer of the same float type, in f32, and rounds the sums to it.
pub(crate) fn add(buffer: &mut HostBuffer, to: Range<usize>, terms: &HostBuffer) {
    fn add<T: Element>(buffer: &mut HostBuffer, to: Range<usize>, terms: &HostBuffer, sum: fn(T, T) -> T) {
        let terms = terms.as_slice::<T>();
        buffer.as_mut_slice::<T>()[to].iter_mut().zip(terms).for_each(|(v, t)| *v = sum(*v, *t));
    }
    match buffer.element() {
        ElementType::Bf16 => add(buffer, to, terms, |v: bf16, t| bf16::from_f32(v.to_f32() + t.to_f32())),
        ElementType::F16 => add(buffer, to, terms, |v: f16, t| f16::from_f32(v.to_f32() + t.to_f32())),
        _ => add(buffer, to, terms, |v: f32, t| v + t),
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
