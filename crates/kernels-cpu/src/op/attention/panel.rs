//! A panel of queries: one query a lane. Scores of a block of keys are `[key][query]`, so that everything done to a query,
//! its maximum, its sum, its mask, is done lane by lane.
#![allow(unsafe_code)] // blocks of scores by address

use super::mask::Sight;
use super::products::{COLUMNS, Copied, Left, Onto, register_tiles, rows};
use crate::op::dropout::{Mask, factors};
use crate::simd::math::exp2;
use crate::simd::{Simd, load_part};
use std::ops::Range;

/// Queries of a panel at most.
pub(super) const MOST: usize = 64;

/// Placeholder for "no score yet": far below every score, and still finite.
pub(super) const LOWEST: f32 = -1e30;

/// Queries `t .. t + count` of one sequence, in PANEL lanes: so many floats are from the scores of one key to those of the next.
pub(super) struct Panel {
    pub(super) count: usize,
    /// The last key that each query sees, as f32: exact below 2^24. Lanes past `count` do as the last query. Below 0, before the first
    /// key, or past the last one where these are the positions of queries.
    last: [f32; MOST],
    /// The first key that each query sees; after `last` if it sees none.
    first: [f32; MOST],
    /// Whether the positions of queries and of keys are consecutive, so that `last` is as far from a key as the query is.
    follow: bool,
    /// The position of each query, if `follow` is false.
    positions: [f32; MOST],
}

impl Panel {
    #[inline(always)]
    pub(super) fn new<S: Simd>(sight: &Sight<'_>, b: usize, t: usize, count: usize) -> Panel {
        const { assert!(S::PANEL <= MOST) };
        let zeros = [0.0; MOST];
        let mut panel = Panel { count, last: zeros, first: zeros, follow: false, positions: zeros };
        let of_stretch = sight.first_of_stretch().filter(|_| sight.is_stretch(t, count));
        let Some(from) = of_stretch else {
            panel.set_apart::<S>(sight, b, t);
            return panel;
        };
        let from = from as f32;
        panel.follow = true;
        let (start, to) = (sight.position(t) as f32 - from, sight.position(t + count - 1) as f32 - from);
        let window = sight.window() as f32;
        for (r, (last, first)) in panel.last.iter_mut().zip(&mut panel.first).enumerate().take(S::PANEL) {
            *last = (start + r as f32).min(to);
            *first = (*last + 1.0 - window).max(0.0);
        }
        if let Some(starts) = sight.starts(b, t, count) {
            for (r, first) in panel.first.iter_mut().enumerate().take(S::PANEL) {
                *first = first.max(starts[r.min(count - 1)] as f32 - from);
            }
        }
        panel
    }

    /// Sets the ranges of queries or keys whose positions are not consecutive.
    #[inline(never)]
    fn set_apart<S: Simd>(&mut self, sight: &Sight<'_>, b: usize, t: usize) {
        for r in 0..S::PANEL {
            let query = t + r.min(self.count - 1);
            self.last[r] = sight.end(query) as f32 - 1.0;
            self.first[r] = sight.first(b, query) as f32;
            self.positions[r] = sight.position(query) as f32;
        }
    }

    /// Keys of `keys` that at least one of the queries of these lanes sees.
    #[inline(always)]
    pub(super) fn seen(&self, lanes: Range<usize>, keys: &Range<usize>) -> Range<usize> {
        let last = self.count.min(lanes.end) - 1;
        let end = ((self.last[last] + 1.0) as usize).clamp(keys.start, keys.end);
        (self.first[lanes.start] as usize).max(keys.start).min(end)..end
    }

    /// Queries that may see one of the keys.
    #[inline(always)]
    pub(super) fn seeing(&self, keys: &Range<usize>) -> Range<usize> {
        let from = self.last[..self.count].partition_point(|last| *last < keys.start as f32);
        let mut end = self.count;
        while end > from && self.first[end - 1] >= keys.end as f32 {
            end -= 1;
        }
        from..end
    }

    pub(super) fn vectors<S: Simd>(&self) -> usize {
        self.count.div_ceil(S::LANES)
    }

    /// `out[key][query] = sum_i k[key][i] q[i][query]` for the keys that each pair of vectors sees; the rest of `out` is left.
    ///
    /// # Safety
    /// `k`: rows of e columns, the first key at row `skip`. `q`: e rows, `out`: a row for each key, of `width` floats.
    #[inline(always)]
    pub(super) unsafe fn scores<S: Simd>(
        &self,
        keys: &Range<usize>,
        (k, skip): (Copied, usize),
        e: usize,
        q: *const f32,
        out: *mut f32,
    ) {
        let width = S::PANEL;
        for lane in (0..self.count).step_by(S::NR) {
            let vectors = (self.count - lane).div_ceil(S::LANES).min(2);
            let both = self.seen(lane..lane + S::NR, keys);
            // Keys after the last query of the first vector are for the second alone.
            let split = if vectors == 2 {
                self.seen(lane..lane + S::LANES, keys).end.clamp(both.start, both.end)
            } else {
                both.end
            };
            for (part, vectors, lane) in
                [(both.start..split, vectors, lane), (split..both.end, 1, lane + S::LANES)]
            {
                for (row, count) in register_tiles::<S>(part.len()) {
                    let at = part.start - keys.start + row;
                    for i in (0..e).step_by(COLUMNS) {
                        // SAFETY: keys of the block, lanes of the panel.
                        unsafe {
                            let a = k.place(skip + at, i);
                            let left = Left { at: a, row_step: COLUMNS, depth_step: 1 };
                            let (depth, q) = (COLUMNS.min(e - i), q.add(i * width + lane));
                            let c = (out.add(at * width + lane), width);
                            let onto = if i == 0 { Onto::Nothing } else { Onto::Sum };
                            rows::<S>(count, vectors, depth, left, |at| q.add(at), width, c, onto);
                        }
                    }
                }
            }
        }
    }

    /// Adds `slope (key - query)` to the scores of vector v, and makes those that a query must not see -infinity; `other`, if
    /// there, becomes 0 in their places.
    ///
    /// # Safety
    /// `z` and `other`: rows of `width` floats, one for each key.
    #[inline(always)]
    pub(super) unsafe fn mask<S: Simd>(
        &self,
        sight: &Sight<'_>,
        v: usize,
        keys: &Range<usize>,
        slope: f32,
        z: *mut f32,
        other: Option<*mut f32>,
    ) {
        let lane = v * S::LANES;
        let seen = self.seen(lane..lane + S::LANES, keys);
        // SAFETY: lanes of the panel and keys of the block.
        unsafe {
            let (last, first) =
                (S::load(self.last.as_ptr().add(lane)), S::load(self.first.as_ptr().add(lane)));
            let place = |key: usize| (key - keys.start) * S::PANEL + lane;
            if slope != 0.0 {
                for key in seen.clone() {
                    let to = z.add(place(key));
                    let away = if self.follow {
                        S::sub(S::splat(key as f32), last)
                    } else {
                        let positions = S::load(self.positions.as_ptr().add(lane));
                        S::sub(S::splat(sight.key_position(key) as f32), positions)
                    };
                    S::store(to, S::fma(S::splat(slope), away, S::load(to)));
                }
            }
            // Some queries see the key and others do not: before the last first key, and after the first last key.
            let starting = (self.first[lane + S::LANES - 1] as usize).clamp(seen.start, seen.end);
            let ending = ((self.last[lane] + 1.0) as usize).clamp(starting, seen.end);
            for key in (seen.start..starting).chain(ending..seen.end) {
                let (k, to) = (S::splat(key as f32), place(key));
                let hide = |x: S::V, hidden: f32| {
                    let hidden = S::splat(hidden);
                    S::select_lt(k, first, hidden, S::select_lt(last, k, hidden, x))
                };
                S::store(z.add(to), hide(S::load(z.add(to)), f32::NEG_INFINITY));
                if let Some(other) = other {
                    S::store(other.add(to), hide(S::load(other.add(to)), 0.0));
                }
            }
        }
    }

    /// Replaces scores by exponentials of `z - max` with running maxima and sums, zeros where a vector sees nothing. `alpha`
    /// becomes the factors of the earlier sums.
    ///
    /// # Safety
    /// `z`: rows of `width` floats, one for each key; the others: `width` floats.
    #[inline(always)]
    pub(super) unsafe fn softmax<S: Simd>(
        &self,
        keys: &Range<usize>,
        z: *mut f32,
        maxima: *mut f32,
        totals: *mut f32,
        alpha: *mut f32,
    ) {
        for v in 0..self.vectors::<S>() {
            let lane = v * S::LANES;
            let seen = self.seen(lane..lane + S::LANES, keys);
            // SAFETY: lanes of the panel and keys of the block.
            unsafe {
                let at = |key: usize| z.add((key - keys.start) * S::PANEL + lane);
                let old = S::load(maxima.add(lane));
                // Four chains: one would wait for itself.
                let mut best = [old; 4];
                let mut key = seen.start;
                while key + 4 <= seen.end {
                    for (i, best) in best.iter_mut().enumerate() {
                        *best = S::max(S::load(at(key + i)), *best);
                    }
                    key += 4;
                }
                while key < seen.end {
                    best[0] = S::max(S::load(at(key)), best[0]);
                    key += 1;
                }
                let new = S::max(S::max(best[0], best[1]), S::max(best[2], best[3]));
                let log2e = S::splat(std::f32::consts::LOG2_E);
                // Exactly 1 where the maximum stays: a block of keys that a query does not see leaves its sums as they are,
                // so its bits do not depend on the other queries of the panel.
                let factor = exp2::<S>(S::mul(S::sub(old, new), log2e));
                let factor = S::select_lt(old, new, factor, S::splat(1.0));
                let shift = S::sub(S::splat(0.0), S::mul(new, log2e));
                let mut sum = S::splat(0.0);
                for key in seen.clone() {
                    let p = exp2::<S>(S::fma(S::load(at(key)), log2e, shift));
                    S::store(at(key), p);
                    sum = S::add(sum, p);
                }
                self.clear::<S>(v, &seen, keys, z);
                S::store(maxima.add(lane), new);
                S::store(totals.add(lane), S::fma(S::load(totals.add(lane)), factor, sum));
                S::store(alpha.add(lane), factor);
            }
        }
    }

    /// Zeros in vector v for keys of the block outside `seen`.
    #[inline(always)]
    unsafe fn clear<S: Simd>(&self, v: usize, seen: &Range<usize>, keys: &Range<usize>, z: *mut f32) {
        for key in (keys.start..seen.start).chain(seen.end..keys.end) {
            // SAFETY: by the contract of the callers.
            unsafe { S::store(z.add((key - keys.start) * S::PANEL + v * S::LANES), S::splat(0.0)) };
        }
    }

    /// Replaces scores and products `dout . v` by the weights `m p` and `dz / scale`; zeros where a vector sees nothing. `lse_log2`:
    /// each query's log-sum-exp times log2(e); `d`: each query's `dout . out`; `drop`: factors in the layout of the scores.
    ///
    /// # Safety
    /// `z`, `dp`, `drop`: rows of `width` floats, one for each key; the others: `width` floats.
    #[inline(always)]
    pub(super) unsafe fn gradients<S: Simd>(
        &self,
        keys: &Range<usize>,
        z: *mut f32,
        dp: *mut f32,
        lse_log2: *const f32,
        d: *const f32,
        drop: Option<*const f32>,
    ) {
        for v in 0..self.vectors::<S>() {
            let lane = v * S::LANES;
            let seen = self.seen(lane..lane + S::LANES, keys);
            // SAFETY: lanes of the panel and keys of the block.
            unsafe {
                let log2e = S::splat(std::f32::consts::LOG2_E);
                let shift = S::sub(S::splat(0.0), S::load(lse_log2.add(lane)));
                let d = S::load(d.add(lane));
                for key in seen.clone() {
                    let at = (key - keys.start) * S::PANEL + lane;
                    let w = exp2::<S>(S::fma(S::load(z.add(at)), log2e, shift));
                    let g = S::load(dp.add(at));
                    let (kept, g) = match drop {
                        Some(drop) => (S::mul(w, S::load(drop.add(at))), S::mul(g, S::load(drop.add(at)))),
                        None => (w, g),
                    };
                    S::store(z.add(at), kept);
                    S::store(dp.add(at), S::mul(w, S::sub(g, d)));
                }
                self.clear::<S>(v, &seen, keys, z);
                self.clear::<S>(v, &seen, keys, dp);
            }
        }
    }

    /// Dropout factors of a block, in the layout of the scores; the element of query r and a key at position s has number `element(r) + s`.
    ///
    /// # Safety
    /// `out`: rows of `width` floats, one for each key; `buffer`: `width` rows of [`drop_row`] floats.
    #[inline(always)]
    pub(super) unsafe fn drop_factors<S: Simd>(
        &self,
        sight: &Sight<'_>,
        mask: &Mask,
        keys: &Range<usize>,
        element: impl Fn(usize) -> usize,
        buffer: *mut f32,
        out: *mut f32,
    ) {
        let step = drop_row(keys.len());
        // SAFETY: by contract.
        unsafe {
            let mut at = keys.start;
            while at < keys.end {
                let (run, position) = (sight.run(at).min(keys.end - at), sight.key_position(at));
                for r in 0..self.count {
                    let to = buffer.add(r * step + at - keys.start);
                    factors(mask, (element(r) + position) as u64, run, to);
                }
                at += run;
            }
            for lane in (0..self.count).step_by(S::LANES) {
                let nr = S::LANES.min(self.count - lane);
                for k in (0..keys.len()).step_by(S::LANES) {
                    let nk = S::LANES.min(keys.len() - k);
                    let (from, to) = (buffer.add(lane * step + k), out.add(k * S::PANEL + lane));
                    S::transpose(from, step, nr, nk, to, S::PANEL, S::LANES);
                }
            }
        }
    }

    /// Multiplies the weights of all queries by the factors in the same layout.
    ///
    /// # Safety
    /// Both: rows of `width` floats, one for each key.
    #[inline(always)]
    pub(super) unsafe fn multiply<S: Simd>(&self, keys: &Range<usize>, z: *mut f32, by: *const f32) {
        for key in 0..keys.len() {
            for v in 0..self.vectors::<S>() {
                let at = key * S::PANEL + v * S::LANES;
                // SAFETY: by contract.
                unsafe { S::store(z.add(at), S::mul(S::load(z.add(at)), S::load(by.add(at)))) };
            }
        }
    }

    /// Writes the queries' copied rows of e columns as columns: e rows of `width` floats, zeros past `count`.
    ///
    /// # Safety
    /// `from` and `to` have these shapes.
    #[inline(always)]
    pub(super) unsafe fn columns<S: Simd>(&self, from: Copied, e: usize, to: *mut f32) {
        let width = S::PANEL;
        for lane in (0..width).step_by(S::LANES) {
            let nr = self.count.saturating_sub(lane).min(S::LANES);
            for i in (0..e).step_by(S::LANES) {
                let nk = S::LANES.min(e - i);
                // SAFETY: by contract.
                unsafe {
                    let to = to.add(i * width + lane);
                    S::transpose(from.place(lane, i), COLUMNS, nr, nk, to, width, S::LANES);
                }
            }
        }
    }

    /// Adds `c[query] = sum_key w[key][query] x[key]`, for the keys that the queries see, to the contents of c.
    ///
    /// # Safety
    /// `w`: rows of `width` floats, one for each key; `x`: rows of `vectors` vectors, the first key at row `skip`; c: `count`
    /// rows as wide, without gaps; `alpha`: `width` factors for them, if the old values are to be scaled.
    #[inline(always)]
    pub(super) unsafe fn to_queries<S: Simd>(
        &self,
        keys: &Range<usize>,
        w: *const f32,
        (x, skip): (Copied, usize),
        vectors: usize,
        c: *mut f32,
        alpha: Option<*const f32>,
    ) {
        let (width, step) = (S::PANEL, vectors * S::LANES);
        for (r, count) in register_tiles::<S>(self.count) {
            let seen = self.seen(r..r + count, keys);
            if seen.is_empty() {
                continue;
            }
            let at = seen.start - keys.start;
            // SAFETY: by contract.
            unsafe {
                let left = Left { at: w.add(at * width + r), row_step: 1, depth_step: width };
                let onto = alpha.map_or(Onto::Sum, |alpha| Onto::Scaled(alpha.add(r)));
                let b = |column| x.place(skip + at, column).cast_const();
                rows::<S>(count, vectors, seen.len(), left, b, COLUMNS, (c.add(r * step), step), onto);
            }
        }
    }

    /// `c[key] += sum_query w[key][query] x[query]` over the queries that see the keys, for two products at once.
    ///
    /// # Safety
    /// `w`: rows of `width` floats, one for each key; `x`: `count` rows of `vectors` vectors; c: rows as wide for each key,
    /// without gaps.
    #[inline(always)]
    pub(super) unsafe fn to_keys<S: Simd>(
        &self,
        keys: &Range<usize>,
        vectors: usize,
        products: [(*const f32, Copied, *mut f32); 2],
    ) {
        let (width, step) = (S::PANEL, vectors * S::LANES);
        for (key, count) in register_tiles::<S>(keys.len()) {
            let seeing = self.seeing(&(keys.start + key..keys.start + key + count));
            if seeing.is_empty() {
                continue;
            }
            for (w, x, c) in products {
                // SAFETY: by contract.
                unsafe {
                    let at = w.add(key * width + seeing.start);
                    let left = Left { at, row_step: width, depth_step: 1 };
                    let b = |column| x.place(seeing.start, column).cast_const();
                    let c = (c.add(key * step), step);
                    rows::<S>(count, vectors, seeing.len(), left, b, COLUMNS, c, Onto::Sum);
                }
            }
        }
    }
}

/// Floats between the rows of a buffer of dropout factors for a block of keys.
pub(super) const fn drop_row(keys: usize) -> usize {
    crate::ctx::padded(keys)
}

/// Sets `count` floats, a multiple of LANES.
///
/// # Safety
/// `to` has space for them.
#[inline(always)]
pub(super) unsafe fn fill<S: Simd>(to: *mut f32, count: usize, value: f32) {
    for i in (0..count).step_by(S::LANES) {
        // SAFETY: by contract.
        unsafe { S::store(to.add(i), S::splat(value)) };
    }
}

/// `to[r][i] = (first ? 0 : to[r][i]) + factor from[r][i]` for `count` rows of e floats.
///
/// # Safety
/// `count` rows, `from_step` and `to_step` floats apart; those of `from` are whole vectors.
#[inline(always)]
pub(super) unsafe fn add_rows<S: Simd>(
    count: usize,
    e: usize,
    factor: f32,
    (from, from_step): (*const f32, usize),
    (to, to_step): (*mut f32, usize),
    first: bool,
) {
    for r in 0..count {
        for i in (0..e).step_by(S::LANES) {
            let n = S::LANES.min(e - i);
            // SAFETY: by contract.
            unsafe {
                let to = to.add(r * to_step + i);
                let old = if first { S::splat(0.0) } else { load_part::<S>(to.cast_const(), n) };
                let new = S::fma(S::load(from.add(r * from_step + i)), S::splat(factor), old);
                crate::simd::store_part::<S>(to, new, n);
            }
        }
    }
}
