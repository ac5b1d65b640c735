//! Instruction sets: the kernel variants of every operator.

use std::fmt;

/// An instruction set that kernels are compiled for. Later ones compute the same formula faster; [`Rung::Reference`] is the reference.
///
/// Results have the same bits for any number of threads with one instruction set; different ones add in different orders and agree
/// within rounding.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Rung {
    /// Plain loops with sums in f64.
    Reference,
    /// Packed and blocked, in code that any target's compiler vectorises.
    Portable,
    /// NEON, of 64-bit Arm: 4 lanes.
    Neon,
    /// AVX2, FMA and F16C: 8 lanes.
    Avx2,
    /// AVX-512 F, BW, DQ, VL: 16 lanes.
    Avx512,
}

impl Rung {
    /// All instruction sets, slowest first.
    pub const ALL: [Rung; 5] = [Rung::Reference, Rung::Portable, Rung::Neon, Rung::Avx2, Rung::Avx512];

    /// The fastest instruction set that this processor can run.
    pub fn detect() -> Rung {
        #[cfg(target_arch = "x86_64")]
        {
            use std::arch::is_x86_feature_detected as has;
            let avx2 = has!("avx2") && has!("fma") && has!("f16c");
            if avx2 && has!("avx512f") && has!("avx512bw") && has!("avx512dq") && has!("avx512vl") {
                return Rung::Avx512;
            }
            if avx2 {
                return Rung::Avx2;
            }
        }
        if cfg!(target_arch = "aarch64") { Rung::Neon } else { Rung::Portable }
    }

    /// True if this processor has the instruction set.
    pub fn available(self) -> bool {
        match self {
            Rung::Reference | Rung::Portable => true,
            Rung::Neon => cfg!(target_arch = "aarch64"),
            Rung::Avx2 | Rung::Avx512 => self <= Rung::detect(),
        }
    }

    /// Lower-case name.
    pub fn name(self) -> &'static str {
        match self {
            Rung::Reference => "reference",
            Rung::Portable => "portable",
            Rung::Neon => "neon",
            Rung::Avx2 => "avx2",
            Rung::Avx512 => "avx512",
        }
    }
}

impl fmt::Display for Rung {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}
