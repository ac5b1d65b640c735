//! Positions of a sequence that a launch of attention has: those of its queries, and those of its keys.

/// Some positions of a sequence, in ascending order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Positions {
    /// The first.
    pub first: usize,
    /// If they are two stretches, equally long: the first of the second one, behind the first stretch.
    pub later: Option<usize>,
    /// From one position to the next within a stretch; at least 1.
    pub stride: usize,
}

impl Default for Positions {
    fn default() -> Positions {
        Positions::from(0)
    }
}

impl From<usize> for Positions {
    /// Positions that follow each other, from this one on.
    fn from(first: usize) -> Positions {
        Positions { first, later: None, stride: 1 }
    }
}

impl Positions {
    /// Position number `i` of `count`.
    #[inline]
    pub fn at(&self, i: usize, count: usize) -> usize {
        match self.later {
            Some(later) if i >= count / 2 => later + (i - count / 2) * self.stride,
            _ => self.first + i * self.stride,
        }
    }

    /// How many of `count` positions stand before `position`.
    #[inline]
    pub fn before(&self, position: usize, count: usize) -> usize {
        let of = |first: usize, count: usize| {
            let away = position.saturating_sub(first);
            if self.stride == 1 { away.min(count) } else { away.div_ceil(self.stride).min(count) }
        };
        match self.later {
            Some(later) => of(self.first, count / 2) + of(later, count - count / 2),
            None => of(self.first, count),
        }
    }

    /// The stretches of `count` positions; the second may be empty.
    pub(super) fn stretches(&self, count: usize) -> [Stretch; 2] {
        let of = |first: usize, count: usize| Stretch {
            first: first as i64,
            stride: self.stride.max(1) as i64,
            count: count as i64,
        };
        let half = if self.later.is_some() { count / 2 } else { count };
        [of(self.first, half), of(self.later.unwrap_or_default(), count - half)]
    }

    /// How many of `count` positions, from number `i` on, follow each other without a gap.
    #[inline]
    pub fn run(&self, i: usize, count: usize) -> usize {
        match self.later {
            _ if self.stride > 1 => 1,
            Some(_) if i < count / 2 => count / 2 - i,
            _ => count - i,
        }
    }

    /// The position behind the last of `count`; `None` where that is no number.
    pub(super) fn end(&self, count: usize) -> Option<usize> {
        let (first, count) = self.later.map_or((self.first, count), |later| (later, count - count / 2));
        let steps = count.saturating_sub(1).checked_mul(self.stride)?;
        first.checked_add(steps)?.checked_add(usize::from(count > 0))
    }

    /// The problem with `count` such positions, if they are not in ascending order.
    pub(in crate::op) fn problem(&self, count: usize) -> Option<String> {
        let end = self.first + (count / 2).saturating_sub(1) * self.stride + 1;
        let apart = |later: usize| count.is_multiple_of(2) && later >= end;
        if self.stride > 0 && self.later.is_none_or(apart) {
            return None;
        }
        Some(match self.stride {
            0 => "a stride of at least 1".into(),
            _ => format!("two stretches of {count} positions, the second after position {}", self.first),
        })
    }
}

/// Positions `first + i stride` for i below `count`.
#[derive(Debug, Clone, Copy)]
pub(super) struct Stretch {
    pub(super) first: i64,
    pub(super) stride: i64,
    pub(super) count: i64,
}

impl Stretch {
    /// Pairs of a query of `self` and a key of `keys` that stands at least `back` positions before the one behind the query.
    pub(super) fn pairs(self, keys: Stretch, back: i64) -> i64 {
        let before = |i: i64| {
            let away = self.first + i * self.stride + 1 - back - keys.first;
            // Rounded up.
            -(-away).div_euclid(keys.stride)
        };
        if self.stride % keys.stride == 0 {
            return clamped_sum(before(0), self.stride / keys.stride, self.count, keys.count);
        }
        (0..self.count).map(|i| before(i).clamp(0, keys.count)).sum()
    }
}

/// The sum of `first + i step`, each at least 0 and at most `most`, over i below `count`; `step` is at least 1.
fn clamped_sum(first: i64, step: i64, count: i64, most: i64) -> i64 {
    let reaches = |value: i64| -(first - value).div_euclid(step);
    let positive = reaches(0).clamp(0, count);
    let full = reaches(most).clamp(positive, count);
    let between = full - positive;
    between * first + step * between * (positive + full - 1) / 2 + (count - full) * most
}

/// The keys of a launch that has some of those of a sequence.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SomeKeys {
    /// Their positions.
    pub positions: Positions,
    /// Positions of the whole sequence.
    pub seq: usize,
}
