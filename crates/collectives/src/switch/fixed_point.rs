//! Floats as 32-bit integers, so that a sum does not depend on the order of its terms (Sapio et al. 2021, section 3.7).
//!
//! The values of a packet have one scale, a power of two. With |x| < 2^m for all of n workers, L = ceil(log2 n) and
//! s = 30 - L - m, a worker sends the integer nearest to 2^s x. Each is at most 2^(30 - L), so the sum is at most 2^30 and never
//! overflows. What comes back is 2^-s times the sum, rounded to f32: it differs from the exact sum by at most
//! `n 2^(m + L - 31)` and half a unit in the last place of the result. Workers send m of their own values one packet ahead, and
//! the switch answers with the largest.

/// Exponent of values that are all zero.
pub const ZERO: i32 = i32::MIN;
/// Exponent of values among which one is infinite or NaN: all values of the packet become NaN on every worker.
pub const NOT_FINITE: i32 = i32::MAX;

/// Returns the least m with |x| < 2^m for all values; [`ZERO`] and [`NOT_FINITE`] are special.
pub fn exponent(values: impl Iterator<Item = f32>) -> i32 {
    let largest = values.map(|x| x.to_bits() & 0x7fff_ffff).max().unwrap_or(0);
    match largest >> 23 {
        0 if largest == 0 => ZERO,
        0 => 32 - largest.leading_zeros() as i32 - 149,
        255 => NOT_FINITE,
        biased => biased as i32 - 126,
    }
}

/// 2^power, for powers that are exponents of normal f64.
fn power_of_two(power: i32) -> f64 {
    f64::from_bits(((1023 + i64::from(power.clamp(-1022, 1023))) as u64) << 52)
}

/// The scale that values of n workers share.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PacketScale {
    up: f64,
    down: f64,
}

impl PacketScale {
    /// The scale of values below 2^exponent in magnitude on each of `workers` workers.
    pub fn new(exponent: i32, workers: u32) -> PacketScale {
        match exponent {
            ZERO => PacketScale { up: 0.0, down: 0.0 },
            NOT_FINITE => PacketScale { up: 0.0, down: f64::NAN },
            m => {
                let s = 30 - workers.next_power_of_two().ilog2() as i32 - m.clamp(-149, 128);
                PacketScale { up: power_of_two(s), down: power_of_two(-s) }
            }
        }
    }

    /// The integer that is sent.
    pub fn fixed(self, x: f32) -> i32 {
        // A NaN, which only a value that is not finite gives here, becomes 0.
        (f64::from(x) * self.up).round_ties_even() as i32
    }

    /// The value that a sum stands for.
    pub fn float(self, sum: i32) -> f32 {
        (f64::from(sum) * self.down) as f32
    }
}

/// Largest difference of a sum of n workers to the exact one, before it is rounded to f32: n 2^(m + L - 31).
pub fn error_bound(exponent: i32, workers: u32) -> f64 {
    match exponent {
        ZERO => 0.0,
        NOT_FINITE => f64::INFINITY,
        m => f64::from(workers) * power_of_two(m + workers.next_power_of_two().ilog2() as i32 - 31),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exponents_bound_their_values_closely() {
        for (x, wanted) in [
            (1.0, 1),
            (-0.75, 0),
            (0.5, 0),
            (f32::MAX, 128),
            (f32::MIN_POSITIVE, -125),
            (f32::from_bits(1), -148),
            (f32::from_bits(0x7f_ffff), -126),
            (-0.0, ZERO),
            (f32::INFINITY, NOT_FINITE),
            (f32::NAN, NOT_FINITE),
        ] {
            assert_eq!(exponent([0.0, x].into_iter()), wanted, "{x}");
        }
        assert_eq!(exponent(std::iter::empty()), ZERO);
    }

    #[test]
    fn the_largest_sum_does_not_overflow() {
        for workers in [1, 2, 3, 7, 8, 255, 256, 65_535] {
            for m in [-148, -126, -3, 0, 1, 127, 128] {
                let scale = PacketScale::new(m, workers);
                // The largest f32 below 2^m.
                let most = (power_of_two(m) * (1.0 - power_of_two(-24))) as f32;
                let fixed = i64::from(scale.fixed(most));
                assert!(fixed * i64::from(workers) <= 1 << 30, "{workers} x {most}");
                assert!(fixed > 1 << (29 - workers.next_power_of_two().ilog2()));
                assert_eq!(scale.float(scale.fixed(-most)), -(scale.float(scale.fixed(most))));
            }
        }
    }

    #[test]
    fn what_is_not_finite_is_nan_for_all_and_zeros_stay() {
        let broken = PacketScale::new(NOT_FINITE, 4);
        assert!(broken.float(broken.fixed(1.0) + broken.fixed(f32::NAN)).is_nan());
        let zero = PacketScale::new(ZERO, 4);
        assert_eq!(zero.float(zero.fixed(0.0)).to_bits(), 0);
    }
}
