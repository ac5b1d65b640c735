//! Values in 8 bits by blocks: an optimizer's moments as codes of a table, each block with a factor of its own (Dettmers et al.
//! 2022, "8-bit Optimizers via Block-wise Quantization").
//!
//! A block of [`MOMENT_BLOCK`] values x has the scale s, the value of largest magnitude with its sign, and for each value the code
//! whose table value is nearest to x / s. The table is the dynamic tree code: seven decades from 1 down to 1e-7, of which each has
//! half as many values as the one above it. Where the paper divides by |s|, this module divides by s: the value of largest magnitude
//! is then 1 in the table and comes back exactly. So values that were decoded are encoded to the same codes and scale again:
//! decoded values in f32 are a complete checkpoint of the codes.
//!
//! |x - decoded| is at most |s| times half of the widest gap of the table: [`DynamicCode::bound`].

/// Values of a moment that share a scale.
pub const MOMENT_BLOCK: usize = 256;

/// Most values of an activation that share a scale: columns of one row.
pub const ACTIVATION_BLOCK: usize = 256;

/// Scales of smaller magnitude count as zero. Above, no product with a table value is subnormal, so decoding keeps all bits.
pub const LEAST_SCALE: f32 = f32::from_bits((127 - 100) << 23);

/// Ends of the decades of a table.
const DECADES: [f32; 7] = [1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1.0];

/// Most magnitudes of a code.
const MOST: usize = 256;

/// Upper halves of f32 from 2^-23 to 1.
const BUCKETS: usize = (23 << 7) + 1;

/// Upper half of 2^-23, which is below half of the smallest magnitude of both codes.
const FIRST_BUCKET: u32 = (127 - 23) << 7;

/// A code of 8 bits for values from -1 to 1, or from 0 to 1.
#[derive(Debug)]
pub struct DynamicCode {
    /// By code, ascending.
    values: [f32; 256],
    /// By the upper half of a magnitude's bits, from 2^-23 to 1. In the upper half of an entry stands the number of the magnitude that
    /// is nearest to the bucket's lower end, in the lower half the lower half of the middle between it and the next one, above which
    /// the next one is nearer, or all bits if that middle lies in another bucket. No bucket has more than one middle.
    nearest: [u32; BUCKETS],
    /// The code of zero. Codes below it are negative.
    zero: i32,
    /// Number of the largest magnitude.
    most: i32,
    /// Number of the least magnitude of a value that is not 0.
    least: i32,
}

/// The code of first moments.
pub static SIGNED: DynamicCode = DynamicCode::new(true);

/// The code of second moments, of values from 0 on. A value that is not 0 is never encoded as 0: a first moment is never divided
/// by `eps` alone because its second moment was too small for the table.
pub static UNSIGNED: DynamicCode = DynamicCode::new(false);

impl DynamicCode {
    /// The table of the paper: decade i of 7 has 2^i magnitudes for a signed code, 2^(i+1) for an unsigned one, the middles of
    /// equal parts of [0.1, 1] times 10^(i-6); besides these 0 and 1.
    const fn new(signed: bool) -> DynamicCode {
        let mut magnitudes = [f32::INFINITY; MOST];
        magnitudes[0] = 0.0;
        let mut count = 1;
        let mut i = 0;
        while i < DECADES.len() {
            let parts = if signed { 1 << i } else { 2 << i };
            let mut part = 0;
            while part < parts {
                magnitudes[count] = DECADES[i] * ((edge(part, parts) + edge(part + 1, parts)) / 2.0);
                count += 1;
                part += 1;
            }
            i += 1;
        }
        magnitudes[count] = 1.0;
        let mut middles = [f32::INFINITY; MOST];
        let mut i = 0;
        while i < count {
            middles[i] = (magnitudes[i] + magnitudes[i + 1]) / 2.0;
            i += 1;
        }
        // All that is below 2^-23 falls into the first bucket, and is nearest to 0.
        let mut nearest = [0xffff; BUCKETS];
        let (mut bucket, mut at) = (1, 0);
        while bucket < BUCKETS {
            let least = (FIRST_BUCKET + bucket as u32) << 16;
            while f32::from_bits(least) > middles[at] {
                at += 1;
            }
            let middle = middles[at].to_bits();
            nearest[bucket] =
                (at as u32) << 16 | if middle >> 16 == least >> 16 { middle & 0xffff } else { 0xffff };
            bucket += 1;
        }
        let zero = if signed { 127 } else { 0 };
        let mut values = [0.0; 256];
        let mut code = 0;
        while code < 256 {
            values[code] = if code < zero { -magnitudes[zero - code] } else { magnitudes[code - zero] };
            code += 1;
        }
        let least = if signed { 0 } else { 1 };
        DynamicCode { values, nearest, zero: zero as i32, most: 255 - zero as i32, least }
    }

    /// The value of every code, ascending.
    pub fn values(&self) -> &[f32; 256] {
        &self.values
    }

    /// Largest distance of a value from what it is decoded to, over the magnitude of its block's scale, without rounding.
    pub fn bound(&self) -> f32 {
        let gaps = self.values.windows(2).map(|w| w[1] - w[0]);
        // Below the least value of a signed code is -1.
        let below = if self.zero > 0 { 2.0 * (1.0 + self.values[0]) } else { 0.0 };
        gaps.fold(below, f32::max) / 2.0
    }

    /// The code of a value, in a block with a scale whose magnitude is at least [`LEAST_SCALE`]. Between two codes that are equally near,
    /// the one of smaller magnitude.
    #[inline]
    pub fn nearest(&self, x: f32, scale: f32) -> u8 {
        let y = x / scale;
        let bits = y.to_bits() & 0x7fff_ffff;
        let bucket = (bits >> 16).saturating_sub(FIRST_BUCKET).min(BUCKETS as u32 - 1);
        let entry = self.nearest[bucket as usize];
        let magnitude = (entry >> 16) as i32 + i32::from(bits & 0xffff > entry & 0xffff);
        let magnitude = magnitude.max(self.least & i32::from(x != 0.0));
        // Without branches: signs are as good as random. One magnitude less below zero; -m is !m + 1.
        let negative = (y.to_bits() >> 31) as i32;
        let magnitude = magnitude.min(self.most - negative);
        (self.zero + (magnitude ^ -negative) + negative) as u8
    }

    /// Writes the codes of a block and returns its scale, which is not finite if a value is not. If the largest magnitude occurs with
    /// both signs, the scale is negative.
    pub fn encode(&self, block: &[f32], codes: &mut [u8]) -> f32 {
        // Integers order magnitudes as floats do, and not-a-number after all of them. The sign goes last.
        let largest = block.iter().fold(0, |most: u32, x| most.max(x.to_bits().rotate_left(1)));
        let scale = f32::from_bits(largest.rotate_right(1));
        if scale.abs() < LEAST_SCALE {
            codes.fill(self.zero as u8);
            return 0.0;
        }
        codes.iter_mut().zip(block).for_each(|(code, x)| *code = self.nearest(*x, scale));
        scale
    }

    /// Writes the values of a block's codes.
    pub fn decode(&self, codes: &[u8], scale: f32, block: &mut [f32]) {
        if scale == 0.0 {
            return block.fill(0.0);
        }
        for (x, code) in block.iter_mut().zip(codes) {
            *x = self.values[*code as usize] * scale;
        }
    }
}

/// End `i` of `parts` equal parts of [0.1, 1], as `torch.linspace` rounds it.
const fn edge(i: usize, parts: usize) -> f32 {
    let step = (1.0f32 - 0.1) / parts as f32;
    if i < parts.div_ceil(2) { 0.1 + step * i as f32 } else { 1.0 - step * (parts - i) as f32 }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plain(code: &DynamicCode, y: f32) -> usize {
        let distance = |i: &usize| (f64::from(code.values[*i]) - f64::from(y)).abs();
        (0..256).min_by(|a, b| distance(a).total_cmp(&distance(b))).unwrap_or(0)
    }

    #[test]
    fn tables_ascend_and_have_the_papers_ends() {
        for (code, least, next) in [(&SIGNED, -0.992_968_74, 0.992_968_74), (&UNSIGNED, 0.0, 0.996_484_4)] {
            assert!(code.values.windows(2).all(|w| w[0] < w[1]));
            assert_eq!((code.values[0], code.values[254], code.values[255]), (least, next, 1.0));
        }
        // Half of 0.9 / 64 and of 0.9 / 128.
        assert!((SIGNED.bound() - 0.45 / 64.0).abs() < 1e-6, "{}", SIGNED.bound());
        assert!((UNSIGNED.bound() - 0.45 / 128.0).abs() < 1e-6, "{}", UNSIGNED.bound());
    }

    #[test]
    fn a_largest_magnitude_with_both_signs_makes_a_negative_scale() {
        let mut codes = [0; 3];
        assert_eq!(SIGNED.encode(&[0.5, -0.5, 0.0], &mut codes), -0.5);
        assert_eq!(codes, [0, 255, 127]);
    }

    /// Beside every middle, at both ends of every bucket and at every value, in steps of one unit in the last place.
    #[test]
    fn the_nearest_code_is_found_everywhere() {
        for code in [&SIGNED, &UNSIGNED] {
            let edges = (0..=BUCKETS as u32).map(|b| (FIRST_BUCKET + b) << 16);
            let middles = code.values.windows(2).map(|w| (w[0] + w[1]) / 2.0);
            let points = code.values.iter().copied().chain(middles).map(|x| x.abs().to_bits()).chain(edges);
            for bits in points.flat_map(|b| b.saturating_sub(2)..=b + 2) {
                let y = f32::from_bits(bits);
                if y > 1.0 || bits > 0x7f00_0000 {
                    continue;
                }
                for y in [y, -y] {
                    if y < 0.0 && code.zero == 0 {
                        continue;
                    }
                    let (found, wanted) = (code.nearest(y, 1.0) as usize, plain(code, y));
                    let off = |i: usize| (f64::from(code.values[i]) - f64::from(y)).abs();
                    // A middle is rounded to f32.
                    let tie = off(found) - off(wanted) <= f64::from(y.abs()) * 2f64.powi(-23);
                    let never_zero = code.zero == 0 && wanted == 0 && y > 0.0 && found == 1;
                    assert!(tie || never_zero, "{y}: {found}, wanted {wanted}");
                }
            }
        }
    }

    #[test]
    fn what_was_decoded_is_encoded_to_the_same_codes() {
        for code in [&SIGNED, &UNSIGNED] {
            for scale in [1.0f32, 0.3, 1.7e-3, 3.9e-20, 1.3 * LEAST_SCALE, 3.4e38, -2.7, -1e-25] {
                let codes: Vec<u8> = (0..=255).collect();
                let (mut values, mut again) = (vec![0.0; 256], vec![0; 256]);
                code.decode(&codes, scale, &mut values);
                assert_eq!(code.encode(&values, &mut again), scale);
                assert_eq!(codes, again, "scale {scale}");
            }
        }
    }

    #[test]
    fn small_blocks_are_zero_and_broken_ones_stay_broken() {
        let mut codes = [7; 3];
        assert_eq!(SIGNED.encode(&[1e-31, -3e-31, 0.0], &mut codes), 0.0);
        let mut values = [1.0; 3];
        SIGNED.decode(&codes, 0.0, &mut values);
        assert_eq!(values, [0.0; 3]);
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            for code in [&SIGNED, &UNSIGNED] {
                let scale = code.encode(&[1.0, bad, 2.0], &mut codes);
                code.decode(&codes, scale, &mut values);
                assert!(values.iter().any(|v| !v.is_finite()), "{bad}: {values:?}");
            }
        }
        assert_eq!(SIGNED.encode(&[], &mut []), 0.0);
    }

    /// A second moment far below its block's largest one.
    #[test]
    fn an_unsigned_value_that_is_not_zero_stays_above_zero() {
        let mut codes = [0; 3];
        let scale = UNSIGNED.encode(&[1.0, 1e-12, 0.0], &mut codes);
        assert_eq!((scale, codes), (1.0, [255, 1, 0]));
    }

    /// Tables and codes of bitsandbytes 0.50.2 (`golden/optim/dynamic_codes.py`): its Python source makes the tables, its library for
    /// the CPU the codes of blocks whose value of largest magnitude is positive. Tables are equal. The library's codes are not the
    /// nearest ones everywhere, but nowhere further from the value by more than 2^-15 of the scale; the codes here never are further.
    #[test]
    fn tables_and_codes_are_those_of_bitsandbytes() {
        let golden = include_str!("../../../golden/optim/dynamic_codes.txt");
        let mut checked = 0;
        for line in golden.lines().filter(|l| !l.starts_with('#')) {
            let (name, rest) = line.split_once(": ").expect("a name");
            let code = if name.starts_with("signed") { &SIGNED } else { &UNSIGNED };
            if name.ends_with("table") {
                let table: Vec<f32> = rest.split(' ').map(|x| x.parse().expect("a number")).collect();
                assert_eq!(table, code.values);
                continue;
            }
            let (values, codes) = rest.split_once(" | ").expect("values and codes");
            let values: Vec<f32> = values.split(' ').map(|x| x.parse().expect("a number")).collect();
            let wanted: Vec<u8> = codes.split(' ').map(|x| x.parse().expect("a code")).collect();
            let mut found = vec![0; values.len()];
            let scale = f64::from(code.encode(&values, &mut found));
            for ((x, found), wanted) in values.iter().zip(found).zip(wanted) {
                let off =
                    |code_of: u8| (f64::from(code.values[code_of as usize]) - f64::from(*x) / scale).abs();
                let never_zero = code.zero == 0 && wanted == 0 && *x > 0.0 && found == 1;
                let nearest = off(found) <= off(wanted) + 1e-9 && off(wanted) <= off(found) + 2f64.powi(-15);
                assert!(nearest || never_zero, "{name}, {x}: {found}, wanted {wanted}");
                checked += 1;
            }
        }
        assert!(checked > 1000, "{checked}");
    }
}
