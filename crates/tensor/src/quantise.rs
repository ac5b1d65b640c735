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

/// Magnitudes in a decade of the table as a line: a value y above `above` is nearest to number `y slope + intercept`, rounded down, and
/// at most `top`.
#[derive(Debug, Clone, Copy)]
struct Line {
    above: f32,
    slope: f32,
    intercept: f32,
    top: f32,
}

/// What [`Line`] leaves unsaid: a number of at most 255 is off by less than a dozen roundings (of slope, intercept, product, sum, and
/// of the table's values, their middles and the edges that they are made from), 2^-24 of itself each.
const UNSURE: f32 = 1.0 / 4096.0;

/// 1.5 2^23: a float that is added to it keeps the nearest integer in its lowest bits.
const TO_INTEGER: f32 = 12_582_912.0;

/// A code of 8 bits for values from -1 to 1, or from 0 to 1.
#[derive(Debug)]
pub struct DynamicCode {
    /// By code, ascending.
    values: [f32; 256],
    /// By the upper half of a magnitude's bits, from 2^-23 to 1. In the upper half of an entry stands the number of the magnitude that
    /// is nearest to the bucket's lower end, in the lower half the lower half of the middle between it and the next one, above which
    /// the next one is nearer, or all bits if that middle lies in another bucket. No bucket has more than one middle.
    nearest: [u32; BUCKETS],
    /// By decade.
    lines: [Line; DECADES.len()],
    /// The middle between the last decade and 1.
    above_all: f32,
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
        let mut lines = [Line { above: 0.0, slope: 0.0, intercept: 0.0, top: 0.0 }; DECADES.len()];
        let mut count = 1;
        let mut i = 0;
        while i < DECADES.len() {
            let parts = if signed { 1 << i } else { 2 << i };
            // Number `count` begins at a tenth of the decade's end, and each takes 0.9 / parts of it.
            let slope = parts as f64 / (0.9 * DECADES[i] as f64);
            lines[i].slope = slope as f32;
            lines[i].intercept = (count as f64 - 0.1 * DECADES[i] as f64 * slope) as f32;
            lines[i].top = (count + parts - 1) as f32;
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
        lines[0].above = middles[0];
        let mut i = 1;
        while i < lines.len() {
            lines[i].above = middles[lines[i - 1].top as usize];
            i += 1;
        }
        let above_all = middles[count - 1];
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
        DynamicCode { values, nearest, lines, above_all, zero: zero as i32, most: 255 - zero as i32, least }
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

    /// The code nearest to `y`, the quotient of `x` and the scale of its block.
    #[inline(always)]
    fn nearest(&self, x: f32, y: f32) -> u8 {
        let bits = y.to_bits() & 0x7fff_ffff;
        let bucket = (bits >> 16).saturating_sub(FIRST_BUCKET).min(BUCKETS as u32 - 1);
        let entry = self.nearest[bucket as usize];
        self.code(x, y, (entry >> 16) as i32 + i32::from(bits & 0xffff > entry & 0xffff))
    }

    /// The code of a magnitude with the sign of `y`. Without branches: signs are as good as random.
    #[inline(always)]
    fn code(&self, x: f32, y: f32, magnitude: i32) -> u8 {
        let magnitude = magnitude.max(self.least & i32::from(x != 0.0));
        let negative = (y.to_bits() >> 31) as i32;
        // One magnitude less below zero; -m is !m + 1.
        let magnitude = magnitude.min(self.most - negative);
        (self.zero + (magnitude ^ -negative) + negative) as u8
    }

    /// Writes [`DynamicCode::nearest`] of every value, by lines instead of by table, without branches: for several values at once. Returns
    /// false if one of them is so near to a middle that its code may be the one beside it.
    #[inline(always)]
    fn nearest_by_lines(&self, values: &[f32], scale: f32, codes: &mut [u8]) -> bool {
        let (lines, above_all) = (self.lines, self.above_all);
        let mut unsure = 0;
        for (code, x) in codes.iter_mut().zip(values) {
            let y = *x / scale;
            let magnitude = y.abs();
            let mut line = Line { above: 0.0, slope: 0.0, intercept: 0.5, top: 0.0 };
            for decade in lines {
                let here = magnitude > decade.above;
                line.slope = if here { decade.slope } else { line.slope };
                line.intercept = if here { decade.intercept } else { line.intercept };
                line.top = if here { decade.top } else { line.top };
            }
            let number = magnitude * line.slope + line.intercept;
            let down = (number - 0.5 + TO_INTEGER) - TO_INTEGER;
            // False for what is not a number.
            let sure = (number - down - 0.5).abs() < 0.5 - UNSURE;
            unsure |= u32::from(!sure);
            let down = down.min(line.top) + TO_INTEGER;
            let number = (down.to_bits() & 0xff) as i32 + i32::from(magnitude > above_all);
            *code = self.code(*x, y, number);
        }
        unsure == 0
    }

    /// Writes the codes of a block and returns its scale, which is not finite if a value is not. If the largest magnitude occurs with
    /// both signs, the scale is negative.
    #[inline(always)]
    pub fn encode(&self, block: &[f32], codes: &mut [u8]) -> f32 {
        // Integers order magnitudes as floats do, and not-a-number after all of them. The sign goes last.
        let largest = block.iter().fold(0, |most: u32, x| most.max(x.to_bits().rotate_left(1)));
        let scale = f32::from_bits(largest.rotate_right(1));
        if scale.abs() < LEAST_SCALE {
            codes.fill(self.zero as u8);
            return 0.0;
        }
        if !self.nearest_by_lines(block, scale, codes) {
            codes.iter_mut().zip(block).for_each(|(code, x)| *code = self.nearest(*x, *x / scale));
        }
        scale
    }

    /// Writes the values of a block's codes.
    #[inline(always)]
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

    /// All of [`the_nearest_code_is_found_everywhere`]'s points, and a thousand in every binade, among a scale: lines give the codes of the
    /// table, but where they say that they may not.
    #[test]
    fn lines_give_the_codes_of_the_table() {
        for code in [&SIGNED, &UNSIGNED] {
            let edges = (0..=BUCKETS as u32).map(|b| (FIRST_BUCKET + b) << 16);
            let points = code.values.iter().map(|x| x.abs().to_bits()).chain(edges);
            let near = points.flat_map(|b| b.saturating_sub(40)..=b + 40);
            let middles = code.values.windows(2).map(|w| ((w[0] + w[1]) / 2.0).abs().to_bits());
            let near = near.chain(middles.flat_map(|b| b - 300..=b + 300));
            let all =
                near.chain((60 << 23..127 << 23).step_by(8191)).map(f32::from_bits).filter(|y| *y <= 1.0);
            let (mut sure, mut all_points) = (0, 0);
            for (scale, y) in all.flat_map(|y| [(1.0f32, y), (-3.7e-4, y)]) {
                for x in [y * scale, -y * scale] {
                    if x / scale < 0.0 && code.zero == 0 {
                        continue;
                    }
                    let mut found = [0];
                    all_points += 1;
                    if code.nearest_by_lines(&[x], scale, &mut found) {
                        sure += 1;
                        assert_eq!(found[0], code.nearest(x, x / scale), "{x} / {scale}");
                    }
                }
            }
            assert!(sure > all_points / 2, "{sure} of {all_points}");
        }
        // Evenly spread values: nearly all are sure.
        let values: Vec<f32> = (0..1 << 20).map(|i| i as f32 / (1 << 20) as f32).collect();
        let sure = values.iter().filter(|x| SIGNED.nearest_by_lines(&[**x], 1.0, &mut [0])).count();
        assert!(sure > values.len() * 99 / 100, "{sure}");
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
                    let (found, wanted) = (code.nearest(y, y) as usize, plain(code, y));
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
