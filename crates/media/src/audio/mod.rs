//! Audio: mono samples in [-1, 1], resampled, as log-mel spectrograms.

mod decode;
mod fft;
mod mel;
mod resample;

pub use decode::{AudioHeader, decode, header};
pub use mel::{HOP, LogMel, N_FFT, Padding, RATE, mel_filters};
pub use resample::Resampler;

/// Mono audio.
#[derive(Debug, Clone, PartialEq)]
pub struct Audio {
    /// Samples a second.
    pub rate: u32,
    /// The samples, full scale at 1.
    pub samples: Vec<f32>,
}

impl Audio {
    /// Length in seconds.
    pub fn seconds(&self) -> f64 {
        self.samples.len() as f64 / f64::from(self.rate)
    }
}
