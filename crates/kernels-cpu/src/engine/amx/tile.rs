//! Intel AMX: the tile instructions of bf16 matrix products, in inline assembly, because the compiler
//! has no stable intrinsics for them.
//!
//! A tile is 16 rows of 64 bytes. [`mul_add`] takes A as `[16 rows][32 k]` bf16, B as `[16 pairs of k][16 columns][2]`
//! bf16 and adds their product to C, `[16 rows][16 columns]` f32. Within one instruction sums are those of Intel's
//! manual: even and odd k apart, each by fused multiply-adds in f32, denormal operands and results as zeros.
//!
//! Invariants: no tile instruction runs on a thread without [`Configured`], and no function of this module runs on a processor for
//! which [`available`] has not returned true. The compiler's register allocator does not use tile registers, so their values live from
//! one of these functions to the next; no other part of the program touches them.
#![allow(unsafe_code)] // instructions

use std::arch::asm;

/// Bytes of a tile.
pub(crate) const TILE: usize = 1024;
/// Rows of a tile.
pub(crate) const ROWS: usize = 16;
/// Elements of k that one product of tiles sums over.
pub(crate) const DEPTH: usize = 32;

/// True if the processor has AMX with bf16 and the system lets this process use it. Requests the permission from the system,
/// which then holds for all threads of the process; repeated requests change nothing.
pub(crate) fn available() -> bool {
    use std::arch::x86_64::{__cpuid, __cpuid_count, _xgetbv};
    /// Tile data, as a bit of XCR0 and as the state number in the system call.
    const TILE_DATA: u32 = 18;
    let has = std::arch::is_x86_feature_detected!("avx512bw")
        && std::arch::is_x86_feature_detected!("avx512bf16")
        && std::arch::is_x86_feature_detected!("avx512dq")
        && std::arch::is_x86_feature_detected!("avx512vl")
        && __cpuid(0).eax >= 7;
    if !has {
        return false;
    }
    // CPUID leaf 7: amx-bf16 is bit 22, amx-tile bit 24 of EDX.
    let edx = __cpuid_count(7, 0).edx;
    if edx & (1 << 22) == 0 || edx & (1 << 24) == 0 {
        return false;
    }
    // SAFETY: AVX-512 was detected, so the system has enabled XGETBV.
    let enabled = unsafe { _xgetbv(0) };
    // Bits 17 and 18: tile configuration and tile data.
    enabled & (3 << 17) == 3 << 17 && permitted(TILE_DATA)
}

/// Requests from Linux the use of a processor state that is available only on request.
#[cfg(target_os = "linux")]
fn permitted(state: u32) -> bool {
    /// `arch_prctl`
    const SYSCALL: i64 = 158;
    const ARCH_REQ_XCOMP_PERM: u64 = 0x1023;
    let result: i64;
    // SAFETY: this call of the system reads and writes no memory of ours; it clobbers rcx and r11 as all do.
    unsafe {
        asm!(
            "syscall",
            inlateout("rax") SYSCALL => result,
            in("rdi") ARCH_REQ_XCOMP_PERM,
            in("rsi") u64::from(state),
            lateout("rcx") _,
            lateout("r11") _,
            options(nostack),
        );
    }
    result == 0
}

#[cfg(not(target_os = "linux"))]
fn permitted(_: u32) -> bool {
    false
}

/// Operand of LDTILECFG.
#[repr(C, align(64))]
struct Config {
    palette: u8,
    start_row: u8,
    reserved: [u8; 14],
    row_bytes: [u16; 16],
    rows: [u8; 16],
}

/// All eight tiles of the calling thread are whole ones of 16 x 64 bytes until this is dropped.
pub(crate) struct Configured(std::marker::PhantomData<*const ()>);

impl Configured {
    /// # Safety
    /// [`available`], and no other `Configured` of this thread is alive.
    #[inline]
    pub(crate) unsafe fn new() -> Configured {
        let mut config =
            Config { palette: 1, start_row: 0, reserved: [0; 14], row_bytes: [0; 16], rows: [0; 16] };
        config.row_bytes[..8].fill(64);
        config.rows[..8].fill(16);
        // SAFETY: 64 bytes in the form of palette 1.
        unsafe {
            asm!("ldtilecfg [{}]", in(reg) &raw const config, options(nostack, readonly, preserves_flags));
        }
        Configured(std::marker::PhantomData)
    }
}

impl Drop for Configured {
    fn drop(&mut self) {
        // SAFETY: tiles were configured by `new` on this thread (the value cannot change threads).
        unsafe { asm!("tilerelease", options(nostack, nomem, preserves_flags)) }
    }
}

/// Tile T becomes zeros.
///
/// # Safety
/// A [`Configured`] is alive on this thread.
#[inline(always)]
pub(crate) unsafe fn zero<const T: u8>() {
    // SAFETY: by contract.
    unsafe { asm!("tilezero tmm{t}", t = const T, options(nostack, nomem, preserves_flags)) }
}

/// Tile T becomes 16 rows of 64 bytes, `stride` bytes apart.
///
/// # Safety
/// A [`Configured`] is alive on this thread; the rows are readable.
#[inline(always)]
pub(crate) unsafe fn load<const T: u8>(p: *const u8, stride: usize) {
    // SAFETY: by contract.
    unsafe {
        asm!("tileloadd tmm{t}, [{p} + {s}]", t = const T, p = in(reg) p, s = in(reg) stride,
            options(nostack, readonly, preserves_flags));
    }
}

/// Writes tile T as 16 rows of 64 bytes, `stride` bytes apart.
///
/// # Safety
/// A [`Configured`] is alive on this thread; the rows are writable.
#[inline(always)]
pub(crate) unsafe fn store<const T: u8>(p: *mut u8, stride: usize) {
    // SAFETY: by contract.
    unsafe {
        asm!("tilestored [{p} + {s}], tmm{t}", t = const T, p = in(reg) p, s = in(reg) stride,
            options(nostack, preserves_flags));
    }
}

/// `C += A B` for tiles C of f32, A of bf16 rows and B of bf16 pairs.
///
/// # Safety
/// A [`Configured`] is alive on this thread.
#[inline(always)]
pub(crate) unsafe fn mul_add<const C: u8, const A: u8, const B: u8>() {
    // SAFETY: by contract.
    unsafe {
        asm!("tdpbf16ps tmm{c}, tmm{a}, tmm{b}", c = const C, a = const A, b = const B,
            options(nostack, nomem, preserves_flags));
    }
}
