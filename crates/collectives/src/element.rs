//! Element types that travel, and how slices of them are seen as bytes.

use bessemer_units::DType;
use half::slice::{HalfBitsSliceExt, HalfFloatSliceExt};
use half::{bf16, f16};
use std::convert::identity;

const _: () =
    assert!(cfg!(target_endian = "little"), "values travel as the bytes of a little-endian processor");

/// Type of the elements that a collective moves.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ElementType {
    /// IEEE 754 binary32.
    F32,
    /// bfloat16. Sums are formed in f32.
    Bf16,
    /// IEEE 754 binary16. Sums are formed in f32.
    F16,
    /// Bytes, which are moved and never reduced.
    U8,
    /// Unsigned 32-bit integers. Sums are modulo 2^32.
    U32,
}

impl ElementType {
    /// Every element type, in the order of their codes in frames.
    pub const ALL: [ElementType; 5] =
        [ElementType::F32, ElementType::Bf16, ElementType::F16, ElementType::U32, ElementType::U8];

    /// Bytes of one element.
    pub const fn size(self) -> usize {
        match self {
            ElementType::F32 | ElementType::U32 => 4,
            ElementType::Bf16 | ElementType::F16 => 2,
            ElementType::U8 => 1,
        }
    }

    /// Name in messages: "f32", "bf16", "f16", "u8", "u32".
    pub const fn name(self) -> &'static str {
        match self {
            ElementType::F32 => "f32",
            ElementType::Bf16 => "bf16",
            ElementType::F16 => "f16",
            ElementType::U8 => "u8",
            ElementType::U32 => "u32",
        }
    }
}

impl From<DType> for ElementType {
    fn from(dtype: DType) -> ElementType {
        match dtype {
            DType::F32 => ElementType::F32,
            DType::Bf16 => ElementType::Bf16,
            DType::F16 => ElementType::F16,
            DType::U32 => ElementType::U32,
            DType::U8 => ElementType::U8,
        }
    }
}

/// A Rust type whose slices a collective takes: `f32`, `bf16`, `f16`, `u8`, `u32`.
pub trait Element: Copy + sealed::Bytes {
    /// The type as a value.
    const TYPE: ElementType;
}

pub(crate) mod sealed {
    /// Slices as bytes and back. Nothing outside this crate implements it.
    pub trait Bytes: Sized {
        fn bytes(values: &[Self]) -> &[u8];
        fn bytes_mut(values: &mut [Self]) -> &mut [u8];
        /// The first `len` elements of words, which are aligned for every element type.
        fn of_words(words: &[u32], len: usize) -> &[Self];
        fn of_words_mut(words: &mut [u32], len: usize) -> &mut [Self];
    }
}

/// Implements [`Element`] for a type whose slices become slices of `$plain` by `$to`, and back by `$of`.
macro_rules! element {
    ($type:ty, $value:ident, $plain:ty, $to:expr, $to_mut:expr, $of:expr, $of_mut:expr) => {
        impl Element for $type {
            const TYPE: ElementType = ElementType::$value;
        }

        impl sealed::Bytes for $type {
            fn bytes(values: &[$type]) -> &[u8] {
                bytemuck::cast_slice::<$plain, u8>($to(values))
            }

            fn bytes_mut(values: &mut [$type]) -> &mut [u8] {
                bytemuck::cast_slice_mut::<$plain, u8>($to_mut(values))
            }

            fn of_words(words: &[u32], len: usize) -> &[$type] {
                &$of(bytemuck::cast_slice::<u32, $plain>(words))[..len]
            }

            fn of_words_mut(words: &mut [u32], len: usize) -> &mut [$type] {
                &mut $of_mut(bytemuck::cast_slice_mut::<u32, $plain>(words))[..len]
            }
        }
    };
    ($type:ty, $value:ident) => {
        element!($type, $value, $type, identity, identity, identity, identity);
    };
    (half $type:ty, $value:ident) => {
        element!(
            $type,
            $value,
            u16,
            HalfFloatSliceExt::reinterpret_cast,
            HalfFloatSliceExt::reinterpret_cast_mut,
            HalfBitsSliceExt::reinterpret_cast::<$type>,
            HalfBitsSliceExt::reinterpret_cast_mut::<$type>
        );
    };
}

element!(f32, F32);
element!(half bf16, Bf16);
element!(half f16, F16);
element!(u8, U8);
element!(u32, U32);
