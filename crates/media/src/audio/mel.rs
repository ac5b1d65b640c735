//! The log-mel spectrogram of Whisper.
//!
//! Source: A. Radford et al., "Robust speech recognition via large-scale weak supervision", 2022, section 2.2, and its feature
//! extractor. At 16 kHz, frames of N = 400 samples every 160, centred (the signal is reflected by 200 samples at both ends), periodic
//! Hann window w_n = (1 - cos(2 pi n / N)) / 2; power spectrum P; mel energies M = F P with the filter bank below; then
//!
//! ```text
//! L = log10(max(M, 1e-10)),   L <- max(L, max L - 8),   y = (L + 4) / 4
//! ```
//!
//! with the maximum over the whole array. The last frame is dropped: S samples give floor(S / 160) frames.
//!
//! Filter bank (M. Slaney, "Auditory toolbox", 1998): triangles between neighbours of m + 2 points that are evenly spaced on a mel
//! scale which is linear below 1 kHz (3/200 mel a hertz) and logarithmic above (27 mel for a factor of 6.4), each scaled by 2 / its width
//! in hertz. Everything is computed in f64 and rounded to f32 at the end.

use super::fft::RealFft;
use crate::{MediaError, Result};

/// Samples of a frame.
pub const N_FFT: usize = 400;
/// Samples from one frame to the next.
pub const HOP: usize = 160;
/// Samples a second that the spectrogram is defined for.
pub const RATE: u32 = 16_000;

const BINS: usize = N_FFT / 2 + 1;

/// Treatment of audio of any length.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Padding {
    /// Zeros behind the samples up to this many; what is longer is cut. Whisper's is 30 s: 480,000.
    To(usize),
    /// Zeros up to the next multiple of the hop.
    ToHop,
    /// As it is: a last piece shorter than the hop has no frame.
    None,
}

/// Slaney's mel filter bank: `[mels, n_fft / 2 + 1]`, row by row, from `low` to `high` hertz.
pub fn mel_filters(mels: usize, n_fft: usize, rate: u32, low: f64, high: f64) -> Vec<f64> {
    let bins = n_fft / 2 + 1;
    let step = 6.4f64.ln() / 27.0;
    let mel = |hz: f64| {
        if hz >= 1000.0 { 15.0 + (hz / 1000.0).ln() * (27.0 / 6.4f64.ln()) } else { 3.0 * hz / 200.0 }
    };
    let hz = |mel: f64| if mel >= 15.0 { 1000.0 * (step * (mel - 15.0)).exp() } else { 200.0 * mel / 3.0 };
    let (first, last) = (mel(low), mel(high));
    let points: Vec<f64> =
        (0..mels + 2).map(|i| hz(first + (last - first) * i as f64 / (mels + 1) as f64)).collect();
    let nyquist = f64::from(rate / 2);
    let mut filters = Vec::with_capacity(mels * bins);
    for p in points.windows(3) {
        let scale = 2.0 / (p[2] - p[0]);
        for bin in 0..bins {
            let f = nyquist * bin as f64 / (bins - 1) as f64;
            let up = (f - p[0]) / (p[1] - p[0]);
            let down = (p[2] - f) / (p[2] - p[1]);
            filters.push(up.min(down).max(0.0) * scale);
        }
    }
    filters
}

/// Computes log-mel spectrograms; holds tables and scratch space, so one for each thread.
#[derive(Debug)]
pub struct LogMel {
    mels: usize,
    /// For each mel: first bin and the weights from there on that are not zero.
    filters: Vec<(usize, Vec<f64>)>,
    window: Vec<f64>,
    fft: RealFft,
    frame: Vec<f64>,
    power: Vec<f64>,
}

impl LogMel {
    /// For `mels` mel bands: 80 for Whisper up to large-v2, 128 for large-v3.
    ///
    /// # Errors
    /// [`MediaError::Argument`] for 0 or more than 512 bands.
    pub fn new(mels: usize) -> Result<LogMel> {
        if !(1..=512).contains(&mels) {
            return Err(MediaError::Argument(format!(
                "log-mel: wanted 1 to 512 bands (Whisper: 80 or 128), found {mels}"
            )));
        }
        let filters = mel_filters(mels, N_FFT, RATE, 0.0, 8000.0)
            .chunks_exact(BINS)
            .map(|row| {
                let first = row.iter().position(|&w| w > 0.0).unwrap_or(0);
                let end = row.iter().rposition(|&w| w > 0.0).map_or(first, |i| i + 1);
                (first, row[first..end].to_vec())
            })
            .collect();
        let angle = |n: usize| 2.0 * std::f64::consts::PI * n as f64 / N_FFT as f64;
        Ok(LogMel {
            mels,
            filters,
            window: (0..N_FFT).map(|n| 0.5 - 0.5 * angle(n).cos()).collect(),
            fft: RealFft::new(N_FFT).expect("400 = 2^4 5^2"),
            frame: vec![0.0; N_FFT],
            power: vec![0.0; BINS],
        })
    }

    /// Frames that `samples` samples give.
    pub fn frames(samples: usize, padding: Padding) -> usize {
        match padding {
            Padding::To(n) => n / HOP,
            Padding::ToHop => samples.div_ceil(HOP),
            Padding::None => samples / HOP,
        }
    }

    /// The spectrogram of mono samples at 16 kHz: `[mels, frames]`.
    ///
    /// # Errors
    /// [`MediaError::Argument`] if there is not a single frame; [`MediaError::Damaged`] for samples that are not finite.
    pub fn compute(&mut self, samples: &[f32], padding: Padding) -> Result<Vec<f32>> {
        let frames = Self::frames(samples.len(), padding);
        if frames == 0 {
            let n = samples.len();
            return Err(MediaError::Argument(format!(
                "log-mel: {n} samples are fewer than one frame of {HOP} samples"
            )));
        }
        let length = match padding {
            Padding::To(n) => n,
            Padding::ToHop => frames * HOP,
            Padding::None => samples.len(),
        };
        if samples.iter().any(|v| !v.is_finite()) {
            return Err(MediaError::damaged("audio", "a sample is not a finite number"));
        }
        let at = |i: usize| samples.get(i).map_or(0.0, |&v| f64::from(v));
        let mut log = vec![0.0f64; self.mels * frames];
        let mut highest = f64::NEG_INFINITY;
        for t in 0..frames {
            let begin = (t * HOP) as isize - (N_FFT / 2) as isize;
            for (n, (x, w)) in self.frame.iter_mut().zip(&self.window).enumerate() {
                *x = w * at(reflected(begin + n as isize, length));
            }
            self.fft.power(&self.frame, &mut self.power);
            for (m, (first, weights)) in self.filters.iter().enumerate() {
                let energy: f64 = weights.iter().zip(&self.power[*first..]).map(|(w, p)| w * p).sum();
                let level = energy.max(1e-10).log10();
                highest = highest.max(level);
                log[m * frames + t] = level;
            }
        }
        Ok(log.iter().map(|v| ((v.max(highest - 8.0) + 4.0) / 4.0) as f32).collect())
    }
}

/// Where index `i` of a signal of `length` samples lies when it is reflected at its first and last sample, again and again.
fn reflected(i: isize, length: usize) -> usize {
    if length <= 1 {
        return 0;
    }
    let period = 2 * (length as isize - 1);
    let i = i.rem_euclid(period);
    (if i < length as isize { i } else { period - i }) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reflection_leaves_out_the_edge() {
        let seen: Vec<usize> = (-4..9).map(|i| reflected(i, 4)).collect();
        assert_eq!(seen, [2, 3, 2, 1, 0, 1, 2, 3, 2, 1, 0, 1, 2]);
        assert_eq!(reflected(-3, 1), 0);
    }

    #[test]
    fn a_tone_lights_its_band() {
        let samples: Vec<f32> = (0..16_000)
            .map(|n| (2.0 * std::f64::consts::PI * 1000.0 * f64::from(n) / 16_000.0).sin() as f32 * 0.5)
            .collect();
        let y = LogMel::new(80).unwrap().compute(&samples, Padding::None).unwrap();
        assert_eq!(y.len(), 80 * 100);
        let loudest = (0..80).max_by(|&a, &b| y[a * 100 + 50].total_cmp(&y[b * 100 + 50])).unwrap();
        // The point of 1 kHz is 15 mel; of 45.245 mel at 8 kHz in 81 steps that is band 25 or 26.
        assert!((25..=26).contains(&loudest), "{loudest}");
        // No value lies more than 8 decades, that is 2 units, below the highest.
        let (low, high) = y.iter().fold((f32::MAX, f32::MIN), |(l, h), &v| (l.min(v), h.max(v)));
        assert!(high - low <= 2.0 + 1e-6);
    }

    #[test]
    fn lengths_follow_the_padding() {
        let mut mel = LogMel::new(80).unwrap();
        let one = vec![0.1; 1];
        assert_eq!(mel.compute(&one, Padding::To(480_000)).unwrap().len(), 80 * 3000);
        assert_eq!(mel.compute(&one, Padding::ToHop).unwrap().len(), 80);
        assert!(mel.compute(&one, Padding::None).is_err());
        assert!(mel.compute(&[], Padding::ToHop).is_err());
        assert!(mel.compute(&[f32::NAN; 200], Padding::None).is_err());
        assert!(LogMel::new(0).is_err());
    }
}
