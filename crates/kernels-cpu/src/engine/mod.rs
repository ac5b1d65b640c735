//! Engines of matrix products: the arithmetic of the sums.
//!
//! [`MatmulPrecision`] sets the least exactness of products; [`Engine::fastest`] is the fastest engine of a processor that
//! reaches it. The blocking of f32 multiply-adds and the epilogues of all engines are in [`crate::gemm`].

#[cfg(target_arch = "x86_64")]
pub(crate) mod amx;
pub(crate) mod fma;
#[cfg(target_arch = "x86_64")]
pub(crate) mod fp16;

use crate::Rung;
use crate::gemm::Shape;
use bessemer_units::MatmulPrecision;
use std::fmt;

/// Products with fewer rows, columns or k than this stay with f32 multiply-adds.
#[cfg(target_arch = "x86_64")]
const SMALLEST: usize = 8;

/// Arithmetic of matrix products.
///
/// Results have the same bits for any number of threads with one engine; different engines round differently.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Engine {
    /// f32 multiply-adds of the instruction set.
    Fma,
    /// fp16 multiply-adds (AVX512-FP16), operands rounded to fp16 at a scale of their own for each row, sums of at most 128
    /// products in fp16.
    Fp16,
    /// Tile unit (Intel AMX), operands rounded to bf16: 8 bits.
    Amx,
    /// Tile unit, operands in two bf16 parts, three products: 16 bits.
    Amx3,
    /// Tile unit, operands in three bf16 parts, six products: the 24 bits of f32.
    Amx6,
}

impl Engine {
    /// All engines.
    pub const ALL: [Engine; 5] = [Engine::Fma, Engine::Fp16, Engine::Amx, Engine::Amx3, Engine::Amx6];

    /// The fastest engine of this processor on `rung` that is at least as exact.
    pub fn fastest(rung: Rung, precision: MatmulPrecision) -> Engine {
        let fastest_first: &[Engine] = match precision {
            MatmulPrecision::Highest => &[Engine::Amx6],
            MatmulPrecision::High => &[Engine::Amx3],
            MatmulPrecision::Medium => &[Engine::Amx, Engine::Fp16],
        };
        fastest_first.iter().copied().find(|e| e.available(rung)).unwrap_or(Engine::Fma)
    }

    /// True if this processor can run the engine on `rung`.
    pub fn available(self, rung: Rung) -> bool {
        match self {
            Engine::Fma => rung.available(),
            Engine::Fp16 => rung == Rung::detect() && fp16_available(),
            Engine::Amx | Engine::Amx3 | Engine::Amx6 => rung == Rung::detect() && amx_available(),
        }
    }

    /// Lower-case name.
    pub fn name(self) -> &'static str {
        match self {
            Engine::Fma => "fma",
            Engine::Fp16 => "fp16",
            Engine::Amx => "amx",
            Engine::Amx3 => "amx3",
            Engine::Amx6 => "amx6",
        }
    }

    /// True if a product is computed with fp16 multiply-adds.
    #[cfg(target_arch = "x86_64")]
    pub(crate) fn takes_fp16(self, shape: &Shape) -> bool {
        self == Engine::Fp16 && shape.smallest() >= SMALLEST
    }

    /// bf16 parts that an f32 operand is split into for the tile unit; `None` if the engine does not use it.
    #[cfg(target_arch = "x86_64")]
    pub(crate) fn tile_parts(self) -> Option<usize> {
        match self {
            Engine::Fma | Engine::Fp16 => None,
            Engine::Amx => Some(1),
            Engine::Amx3 => Some(2),
            Engine::Amx6 => Some(3),
        }
    }

    /// Parts that the operands of a product are split into for the tile unit; `None` if it does not take it.
    #[cfg(target_arch = "x86_64")]
    pub(crate) fn parts(self, shape: &Shape) -> Option<Parts> {
        let parts = self.tile_parts()?;
        // Below one tile, most of the unit's work is discarded.
        if shape.smallest() < SMALLEST {
            return None;
        }
        let of = |dtype| if dtype == bessemer_units::DType::Bf16 { 1 } else { parts };
        Some(Parts { a: of(shape.a), b: of(shape.b) })
    }

    /// Longest k that is summed in one pass. Half of it in blocks of a product: more rows of A fit a cache, and B is read from
    /// memory for all of them at once.
    pub(crate) fn k_part(self, shape: &Shape) -> usize {
        let part = self.longest_k_part(shape);
        if shape.whole.is_some() { part / 2 } else { part }
    }

    fn longest_k_part(self, shape: &Shape) -> usize {
        #[cfg(target_arch = "x86_64")]
        if let Some(parts) = self.parts(shape) {
            return amx::k_part(parts);
        }
        #[cfg(target_arch = "x86_64")]
        if self.takes_fp16(shape) {
            return fp16::K_PART;
        }
        let _ = shape;
        fma::K_PART
    }
}

/// Parts of A and of B.
#[cfg(target_arch = "x86_64")]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Parts {
    pub(crate) a: usize,
    pub(crate) b: usize,
}

#[cfg(target_arch = "x86_64")]
fn amx_available() -> bool {
    amx::tile::available()
}

#[cfg(not(target_arch = "x86_64"))]
fn amx_available() -> bool {
    false
}

#[cfg(target_arch = "x86_64")]
fn fp16_available() -> bool {
    fp16::tile::available()
}

#[cfg(not(target_arch = "x86_64"))]
fn fp16_available() -> bool {
    false
}

impl fmt::Display for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}
