//! Resampling by a rational factor with a windowed sinc.
//!
//! Formula: with in:out reduced to M:L, output n lies at input position p = n M / L and is
//!
//! ```text
//! y_n = sum_k x_k g(k - p),   g(t) = 2 c sinc(2 c t) w(t / h),   c = rho min(1, L / M) / 2,   h = Z / (2 c)
//! ```
//!
//! with w Kaiser's window of shape beta (J. Kaiser, "Nonrecursive digital filter design using the I0-sinh window function", 1974), Z = 32
//! zero crossings to a side, beta = 9, and the cut-off rho = 0.95 of the lower Nyquist frequency (J. Smith, "Digital audio
//! resampling", 1984-2020). The phases p mod 1 are multiples of 1/L, so g is tabulated for L phases. Outside the signal there is
//! silence, and nothing is delayed. Sums are formed in one fixed order. Pass-band and stop-band are measured in the tests; docs/media.md
//! has the figures.

use crate::{MediaError, Result};

const CROSSINGS: f64 = 32.0;
const BETA: f64 = 9.0;
const ROLL_OFF: f64 = 0.95;
/// A table of more taps is refused: rates with a large reduced factor, far apart.
const MOST_TAPS: usize = 1 << 24;
const LANES: usize = 8;

/// A resampler between two rates.
#[derive(Debug)]
pub struct Resampler {
    step_in: u64,
    step_out: u64,
    /// Taps of a phase, a multiple of [`LANES`].
    width: usize,
    /// Inputs before the position's whole part that the first tap stands at.
    left: usize,
    /// `[step_out, width]`
    taps: Vec<f32>,
}

/// Modified Bessel function of the first kind, order 0, by its power series.
fn bessel_i0(x: f64) -> f64 {
    let (mut sum, mut term, mut k) = (1.0, 1.0, 1.0);
    while term > sum * 1e-17 {
        term *= (x / (2.0 * k)).powi(2);
        sum += term;
        k += 1.0;
    }
    sum
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

impl Resampler {
    /// From `from` to `to` samples a second.
    ///
    /// # Errors
    /// [`MediaError::Argument`] for a rate of 0 or above 768 kHz, [`MediaError::Unsupported`] where the table would be too large.
    pub fn new(from: u32, to: u32) -> Result<Resampler> {
        if !(1..=768_000).contains(&from) || !(1..=768_000).contains(&to) {
            return Err(MediaError::Argument(format!(
                "resampling: wanted rates from 1 to 768,000 Hz, found {from} and {to}"
            )));
        }
        let (from, to) = (u64::from(from), u64::from(to));
        let divisor = gcd(from, to);
        let (step_in, step_out) = (from / divisor, to / divisor);
        let cutoff = 0.5 * ROLL_OFF * (step_out as f64 / step_in as f64).min(1.0);
        let reach = CROSSINGS / (2.0 * cutoff);
        let left = reach.floor() as usize;
        let width = (2 * left + 2).next_multiple_of(LANES);
        if width.saturating_mul(step_out as usize) > MOST_TAPS {
            return Err(MediaError::Unsupported {
                format: "resampling",
                what: format!("a factor of {step_out}/{step_in}"),
                hint: "bring the audio to a common rate such as 44.1 or 48 kHz first",
            });
        }
        let mut taps = Vec::with_capacity(width * step_out as usize);
        let window = bessel_i0(BETA);
        for phase in 0..step_out {
            let offset = phase as f64 / step_out as f64;
            for k in 0..width {
                let t = k as f64 - left as f64 - offset;
                let inside = 1.0 - (t / reach).powi(2);
                let x = 2.0 * cutoff * t * std::f64::consts::PI;
                let sinc = if x == 0.0 { 1.0 } else { x.sin() / x };
                let w = if inside <= 0.0 { 0.0 } else { bessel_i0(BETA * inside.sqrt()) / window };
                taps.push((2.0 * cutoff * sinc * w) as f32);
            }
        }
        Ok(Resampler { step_in, step_out, width, left, taps })
    }

    /// Samples that come out for `samples` samples: ceil(samples * out / in).
    pub fn output_length(&self, samples: usize) -> usize {
        (samples as u64 * self.step_out).div_ceil(self.step_in) as usize
    }

    /// Resamples a whole signal.
    pub fn run(&self, input: &[f32]) -> Vec<f32> {
        if self.step_in == self.step_out {
            return input.to_vec();
        }
        let mut padded = vec![0.0; self.left + input.len() + self.width];
        padded[self.left..self.left + input.len()].copy_from_slice(input);
        let mut output = Vec::with_capacity(self.output_length(input.len()));
        // Position n M / L as whole part and phase, stepped without a division.
        let (mut whole, mut phase) = (0, 0);
        let (advance, turn) = ((self.step_in / self.step_out) as usize, self.step_in % self.step_out);
        for _ in 0..self.output_length(input.len()) {
            let taps = &self.taps[phase as usize * self.width..][..self.width];
            output.push(dot(&padded[whole..whole + self.width], taps));
            whole += advance;
            phase += turn;
            if phase >= self.step_out {
                phase -= self.step_out;
                whole += 1;
            }
        }
        output
    }
}

/// A sum of products in eight lanes, summed pairwise: one order on every processor.
fn dot(x: &[f32], taps: &[f32]) -> f32 {
    let mut lanes = [0.0f32; LANES];
    for (x, t) in x.chunks_exact(LANES).zip(taps.chunks_exact(LANES)) {
        for (lane, (x, t)) in lanes.iter_mut().zip(x.iter().zip(t)) {
            *lane += x * t;
        }
    }
    ((lanes[0] + lanes[4]) + (lanes[2] + lanes[6])) + ((lanes[1] + lanes[5]) + (lanes[3] + lanes[7]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::f64::consts::PI;

    fn tone(hz: f64, rate: u32, n: usize) -> Vec<f32> {
        (0..n).map(|i| (2.0 * PI * hz * i as f64 / f64::from(rate)).sin() as f32).collect()
    }

    /// Level in dB of what comes out for a tone of full scale, away from the ends, and its distance from the ideal tone.
    fn response(from: u32, to: u32, hz: f64) -> (f64, f64) {
        let y = Resampler::new(from, to).unwrap().run(&tone(hz, from, from as usize));
        let ideal = tone(hz, to, y.len());
        let inner = y.len() / 4..3 * y.len() / 4;
        let power = |v: &[f32]| v.iter().map(|&v| f64::from(v).powi(2)).sum::<f64>() / v.len() as f64;
        let error: Vec<f32> = y.iter().zip(&ideal).map(|(a, b)| a - b).collect();
        let db = |p: f64| 10.0 * (p / 0.5).max(1e-30).log10();
        (db(power(&y[inner.clone()])), db(power(&error[inner])))
    }

    #[test]
    fn the_pass_band_is_flat_and_the_stop_band_is_dark() {
        for (from, to) in
            [(44_100, 16_000), (48_000, 16_000), (22_050, 16_000), (8_000, 16_000), (11_025, 16_000)]
        {
            let nyquist = f64::from(from.min(to)) / 2.0;
            for share in [0.01, 0.1, 0.3, 0.6, 0.8, 0.86, 0.9] {
                let (level, error) = response(from, to, share * nyquist);
                println!("{from} to {to}, {share} of Nyquist: level {level:.5} dB, error {error:.1} dB");
                if share > 0.86 {
                    continue;
                }
                assert!(level.abs() < 0.01, "{from} to {to}, {share} of Nyquist: {level} dB");
                assert!(error < -80.0, "{from} to {to}, {share} of Nyquist: error {error} dB");
            }
            if from > to {
                for share in [1.05, 1.15, 1.3] {
                    let hz = share * nyquist;
                    if hz < f64::from(from) / 2.0 {
                        let (level, _) = response(from, to, hz);
                        println!("{from} to {to}, {share} of Nyquist: level {level:.1} dB");
                        assert!(level < -80.0, "{from} to {to}, {share} of Nyquist: {level} dB");
                    }
                }
            }
        }
    }

    #[test]
    fn lengths_and_refusals() {
        let r = Resampler::new(44_100, 16_000).unwrap();
        assert_eq!(r.run(&vec![0.0; 44_100]).len(), 16_000);
        assert_eq!(r.run(&[1.0]).len(), 1);
        assert!(r.run(&[]).is_empty());
        assert_eq!(Resampler::new(16_000, 16_000).unwrap().run(&[0.5, 1.0]), [0.5, 1.0]);
        assert!(Resampler::new(0, 16_000).is_err());
        assert!(Resampler::new(767_999, 16_000).is_err());
    }
}
