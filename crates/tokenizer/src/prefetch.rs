//! A hint to the processor, where the language gives one.

/// Begins to load the cache line in which `value` starts. Nothing waits for it.
#[inline(always)]
#[cfg_attr(
    not(target_arch = "x86_64"),
    expect(unused_variables, reason = "stable Rust has no prefetch elsewhere")
)]
pub(crate) fn prefetch<T>(value: &T) {
    #[cfg(target_arch = "x86_64")]
    #[allow(unsafe_code, reason = "the intrinsic takes an address")]
    // SAFETY: a prefetch may name any address.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(std::ptr::from_ref(value).cast());
    }
}
