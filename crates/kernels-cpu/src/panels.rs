//! Packing for register tiles: the rows of a factor in panels of `width` rows, `[panel][k][width]`, zeros in the rows that
//! are missing from the last panel. A register tile then reads both factors from end to end.
#![allow(unsafe_code)] // blocks by address

use crate::element::Element;
use crate::simd::{Simd, load_part, store_part};
use std::ops::Range;

/// Vectors along a row that are prefetched before they are packed: the time of some hundred floats hides a miss of every
/// cache, and rows are too many for the processor's own prefetcher to follow.
const AHEAD: usize = 8;
/// Steps of k that [`pack_columns`] takes at a time, and prefetches so long before it packs them, for the same reason.
pub(crate) const STEPS_AHEAD: usize = 8;
/// Bytes of a cache line.
const LINE: usize = 64;

/// Packs steps `steps` of k of a factor whose k is contiguous: element (row, k) at `src[row * ld + k]`. Costs a transposition
/// of vectors.
///
/// # Safety
/// `rows` rows of `k` elements at `src`, and space for whole panels at `dst`; no other thread writes these steps.
#[inline(always)]
pub(crate) unsafe fn pack_rows<S: Simd, T: Element>(
    src: *const T,
    ld: usize,
    rows: usize,
    (k, steps): (usize, Range<usize>),
    width: usize,
    dst: *mut f32,
) {
    for p in 0..rows.div_ceil(width) {
        let (have, to) = (width.min(rows - p * width), p * width * k);
        let mut i = steps.start;
        while i < steps.end {
            let nk = S::LANES.min(steps.end - i);
            // The same position some vectors later, which may be in the next panel.
            let later = i + AHEAD * S::LANES;
            let (panel, later) =
                if later < steps.end { (p, later) } else { (p + 1, later - steps.end + steps.start) };
            // Once for each line.
            if later * size_of::<T>() % LINE < S::LANES * size_of::<T>() {
                for r in panel * width..((panel + 1) * width).min(rows) {
                    // SAFETY: a prefetch may name any address.
                    unsafe { S::prefetch(src.wrapping_add(r * ld + later).cast()) };
                }
            }
            let mut c = 0;
            while c < width {
                let w = S::LANES.min(width - c);
                // SAFETY: the block is inside the rows; `wrapping_add` because an empty one may start past them.
                unsafe {
                    transpose::<S, _>(
                        src.wrapping_add((p * width + c) * ld + i),
                        ld,
                        have.saturating_sub(c).min(w),
                        nk,
                        dst.add(to + i * width + c),
                        width,
                        w,
                    );
                }
                c += S::LANES;
            }
            i += nk;
        }
    }
}

/// [`Simd::transpose`] of elements of any type.
///
/// # Safety
/// Same requirements as [`Simd::transpose`].
#[inline(always)]
unsafe fn transpose<S: Simd, T: Element>(
    src: *const T,
    ld: usize,
    nr: usize,
    nk: usize,
    dst: *mut f32,
    dst_ld: usize,
    width: usize,
) {
    // SAFETY: by contract; the buffer holds a block of the widest vectors.
    unsafe {
        if T::DTYPE == f32::DTYPE {
            return S::transpose(src.cast(), ld, nr, nk, dst, dst_ld, width);
        }
        let mut wide = [0.0f32; 256];
        assert!(S::LANES * S::LANES <= wide.len());
        for r in 0..nr {
            S::store(wide.as_mut_ptr().add(r * S::LANES), load_part::<S>(src.add(r * ld), nk));
        }
        S::transpose(wide.as_ptr(), S::LANES, nr, nk, dst, dst_ld, width);
    }
}

/// Packs steps `steps` of k of a factor whose rows are contiguous: element (row, k) at `src[k * ld + row]`. Copies a few steps
/// of one panel after the other: one step of all panels would write to as many places, a multiple of 4 KiB apart and so in one
/// set of L1, if k is 1024.
///
/// # Safety
/// `k` times `rows` elements at `src`, and space for whole panels at `dst`; no other thread writes these steps.
#[inline(always)]
pub(crate) unsafe fn pack_columns<S: Simd, T: Element>(
    src: *const T,
    ld: usize,
    rows: usize,
    (k, steps): (usize, Range<usize>),
    width: usize,
    dst: *mut f32,
) {
    for k0 in steps.clone().step_by(STEPS_AHEAD) {
        let few = k0..(k0 + STEPS_AHEAD).min(steps.end);
        for p in 0..rows.div_ceil(width) {
            let have = width.min(rows - p * width);
            let mut c = 0;
            while c < width {
                let w = S::LANES.min(width - c);
                // Parts of vectors are slower than whole ones, in 16 bits and when stored.
                let whole = rows - p * width >= c + S::LANES;
                let count = if whole { S::LANES } else { have.saturating_sub(c).min(w) };
                for i in few.clone() {
                    // SAFETY: elements that exist, and a step of a panel, or a whole vector that ends in later steps, which
                    // are packed later; `wrapping_add` because an empty part may start past the elements. A prefetch may
                    // name any address.
                    unsafe {
                        let from = src.wrapping_add(i * ld + p * width + c);
                        S::prefetch(from.wrapping_add(STEPS_AHEAD * ld).cast());
                        let (v, to) = (load_part::<S>(from, count), dst.add((p * k + i) * width + c));
                        if width < S::LANES && i * width + S::LANES <= steps.end * width {
                            S::store(to, v);
                        } else {
                            store_part::<S>(to, v, w);
                        }
                    }
                }
                c += S::LANES;
            }
        }
    }
}
