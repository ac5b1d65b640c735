//! Counter-based random numbers: Philox 4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC'11).
//!
//! Every random number of a run is a pure function of (seed, step, tensor name, global element), so initialisation and
//! dropout do not depend on threads, ranks or the order of work. Cost: ten rounds of two 32-bit multiplications for
//! four 32-bit values.

use bessemer_units::splitmix;

/// Key of one stream of random numbers: a tensor at a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct RngKey {
    /// Low and high word of the Philox key.
    pub key: [u32; 2],
    /// Upper half of the counter: the step.
    pub step: u64,
}

impl RngKey {
    /// The stream of `name` at `step` under `seed`. Names are distinguished by 64-bit FNV-1a, mixed with the seed by
    /// SplitMix64.
    pub fn new(seed: u64, step: u64, name: &str) -> RngKey {
        let mut h = 0xcbf2_9ce4_8422_2325u64;
        for b in name.bytes() {
            h = (h ^ u64::from(b)).wrapping_mul(0x0000_0100_0000_01b3);
        }
        let z = splitmix::mix(h ^ seed.wrapping_mul(splitmix::GAMMA));
        RngKey { key: [z as u32, (z >> 32) as u32], step }
    }

    /// Four uniform 32-bit words for block `block` of the stream (elements `4*block .. 4*block+4`).
    #[inline]
    pub fn block(&self, block: u64) -> [u32; 4] {
        philox4x32_10(
            [block as u32, (block >> 32) as u32, self.step as u32, (self.step >> 32) as u32],
            self.key,
        )
    }

    /// Uniform in [0, 1) with 24 bits, for element `element`.
    #[inline]
    pub fn uniform(&self, element: u64) -> f32 {
        unit(self.block(element / 4)[(element % 4) as usize])
    }

    /// Fills `out` with independent normal values (mean 0, standard deviation `std`) for the elements that start at
    /// `first`, by the Box-Muller transform in f64 on word pairs of a block.
    pub fn fill_normal(&self, first: u64, std: f32, out: &mut [f32]) {
        for (i, x) in out.iter_mut().enumerate() {
            let element = first + i as u64;
            let w = self.block(element / 4);
            let pair = (element % 4) as usize & !1;
            // (0, 1]: the logarithm must be finite.
            let u1 = (f64::from(w[pair]) + 1.0) / 4_294_967_296.0;
            let u2 = f64::from(w[pair + 1]) / 4_294_967_296.0;
            let r = (-2.0 * u1.ln()).sqrt();
            let angle = std::f64::consts::TAU * u2;
            let z = if element.is_multiple_of(2) { r * angle.cos() } else { r * angle.sin() };
            *x = (z * f64::from(std)) as f32;
        }
    }

    /// Fills `out` with independent uniform values in (-bound, bound) for the elements that start at `first`.
    pub fn fill_uniform(&self, first: u64, bound: f32, out: &mut [f32]) {
        for (i, x) in out.iter_mut().enumerate() {
            let element = first + i as u64;
            let word = self.block(element / 4)[(element % 4) as usize];
            // The middles of 2^32 equal parts: symmetric around zero.
            let unit = (f64::from(word) + 0.5) / 4_294_967_296.0;
            *x = ((2.0 * unit - 1.0) * f64::from(bound)) as f32;
        }
    }
}

/// Uniform in [0, 1) from the upper 24 bits of a word.
#[inline]
pub fn unit(word: u32) -> f32 {
    (word >> 8) as f32 * (1.0 / 16_777_216.0)
}

/// One Philox 4x32-10 block.
#[inline]
pub fn philox4x32_10(mut c: [u32; 4], mut k: [u32; 2]) -> [u32; 4] {
    for round in 0..10 {
        if round > 0 {
            k[0] = k[0].wrapping_add(0x9E37_79B9);
            k[1] = k[1].wrapping_add(0xBB67_AE85);
        }
        let p0 = u64::from(c[0]) * 0xD251_1F53;
        let p1 = u64::from(c[2]) * 0xCD9E_8D57;
        c = [(p1 >> 32) as u32 ^ c[1] ^ k[0], p1 as u32, (p0 >> 32) as u32 ^ c[3] ^ k[1], p0 as u32];
    }
    c
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Known answers of the Random123 distribution (kat_vectors, philox4x32 10 rounds).
    #[test]
    fn philox_known_answers() {
        assert_eq!(philox4x32_10([0; 4], [0; 2]), [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]);
        assert_eq!(
            philox4x32_10([u32::MAX; 4], [u32::MAX; 2]),
            [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd]
        );
        assert_eq!(
            philox4x32_10([0x243f_6a88, 0x85a3_08d3, 0x1319_8a2e, 0x0370_7344], [0xa409_3822, 0x299f_31d0]),
            [0xd16c_fe09, 0x94fd_cceb, 0x5001_e420, 0x2412_6ea1]
        );
    }

    #[test]
    fn normal_values_have_the_right_moments_and_do_not_depend_on_the_cut() {
        let key = RngKey::new(7, 0, "w");
        let mut all = vec![0.0; 100_000];
        key.fill_normal(0, 2.0, &mut all);
        let mean = all.iter().map(|x| f64::from(*x)).sum::<f64>() / all.len() as f64;
        let var = all.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>() / all.len() as f64;
        assert!(mean.abs() < 0.03 && (var - 4.0).abs() < 0.08, "{mean} {var}");
        let mut part = vec![0.0; 1000];
        key.fill_normal(501, 2.0, &mut part);
        assert_eq!(part, all[501..1501]);
    }

    #[test]
    fn uniform_values_fill_the_interval_evenly_and_do_not_depend_on_the_cut() {
        let key = RngKey::new(7, 0, "w");
        let mut all = vec![0.0; 100_000];
        key.fill_uniform(0, 0.5, &mut all);
        let mean = all.iter().map(|x| f64::from(*x)).sum::<f64>() / all.len() as f64;
        let var = all.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>() / all.len() as f64;
        assert!(mean.abs() < 5e-3 && (var - 0.25 / 3.0).abs() < 1e-3, "{mean} {var}");
        let most = all.iter().fold(0f32, |m, x| m.max(x.abs()));
        assert!(most <= 0.5 && most > 0.4999, "{most}");
        let mut part = vec![0.0; 1000];
        key.fill_uniform(501, 0.5, &mut part);
        assert_eq!(part, all[501..1501]);
    }

    #[test]
    fn names_steps_and_seeds_give_other_streams() {
        let a = RngKey::new(1, 2, "a").block(0);
        assert_ne!(a, RngKey::new(1, 2, "b").block(0));
        assert_ne!(a, RngKey::new(1, 3, "a").block(0));
        assert_ne!(a, RngKey::new(2, 2, "a").block(0));
    }
}
