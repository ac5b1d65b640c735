//! Crops of training and evaluation, and the random numbers of the first kind.
//!
//! The random-resized crop draws an area A of 8% to 100% of the image and an aspect ratio rho, log-uniform in [3/4, 4/3]; the
//! crop has w = round(sqrt(A rho)), h = round(sqrt(A / rho)) and a uniform place. After ten draws that do not fit it is the
//! largest centred crop whose ratio is in range. Source: C. Szegedy et al., "Going deeper with convolutions", 2015, section 6, with
//! the loop of torchvision's `RandomResizedCrop.get_params`.

use super::{Filter, Image, resize};
use crate::Result;
use bessemer_units::splitmix::{GAMMA, SplitMix64, mix, nth, unit};

/// A rectangle of pixels.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rect {
    /// First column.
    pub left: usize,
    /// First row.
    pub top: usize,
    /// Columns.
    pub width: usize,
    /// Rows.
    pub height: usize,
}

/// Range that a random-resized crop draws from.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct CropRange {
    /// Share of the image's area, lowest and highest.
    pub area: (f64, f64),
    /// Width over height, lowest and highest.
    pub ratio: (f64, f64),
}

impl Default for CropRange {
    /// Area 0.08 to 1, ratio 3/4 to 4/3.
    fn default() -> CropRange {
        CropRange { area: (0.08, 1.0), ratio: (3.0 / 4.0, 4.0 / 3.0) }
    }
}

/// Random numbers of one sample: number i is a function of (seed, sample, i) and of nothing else.
#[derive(Debug, Clone)]
pub struct Draws(SplitMix64);

impl Draws {
    /// The numbers of `sample` under `seed`, from the first.
    pub fn new(seed: u64, sample: u64) -> Draws {
        Draws(SplitMix64(mix(nth(seed, 0) ^ sample.wrapping_mul(GAMMA).wrapping_add(GAMMA))))
    }

    /// The next number, uniform in [0, 1) with 53 bits.
    pub fn uniform(&mut self) -> f64 {
        unit(self.0.next_u64())
    }
}

/// The centred rectangle of at most `width` x `height` pixels in an image of `of` = (width, height). Odd remainders go right and
/// down.
pub fn centre_crop(of: (usize, usize), width: usize, height: usize) -> Rect {
    let (width, height) = (width.min(of.0), height.min(of.1));
    Rect { left: (of.0 - width) / 2, top: (of.1 - height) / 2, width, height }
}

/// A random rectangle of an image of `of` = (width, height); `uniform` gives numbers in [0, 1).
pub fn random_resized_crop(of: (usize, usize), range: CropRange, mut uniform: impl FnMut() -> f64) -> Rect {
    let (w, h) = (of.0 as f64, of.1 as f64);
    let between = |(low, high): (f64, f64), u: f64| low + (high - low) * u;
    let (low, high) = range.ratio;
    for _ in 0..10 {
        let area = w * h * between(range.area, uniform());
        let ratio = between((low.ln(), high.ln()), uniform()).exp();
        let width = (area * ratio).sqrt().round_ties_even() as usize;
        let height = (area / ratio).sqrt().round_ties_even() as usize;
        if (1..=of.0).contains(&width) && (1..=of.1).contains(&height) {
            let place = |room: usize, u: f64| ((u * (room + 1) as f64) as usize).min(room);
            let top = place(of.1 - height, uniform());
            let left = place(of.0 - width, uniform());
            return Rect { left, top, width, height };
        }
    }
    let (width, height) = if w / h < low {
        (of.0, (w / low).round_ties_even() as usize)
    } else if w / h > high {
        ((h * high).round_ties_even() as usize, of.1)
    } else {
        of
    };
    centre_crop(of, width.max(1), height.max(1))
}

/// Resizes so that the shorter side has `side` pixels; the longer one is cut to whole pixels, as torchvision's `Resize` does.
///
/// # Errors
/// If `side` is 0.
pub fn resize_shorter_side(image: &Image, side: usize, filter: Filter) -> Result<Image> {
    let (w, h) = (image.width(), image.height());
    let long = |long: usize, short: usize| ((side * long) / short).max(1);
    let (width, height) = if w <= h { (side, long(h, w)) } else { (long(w, h), side) };
    resize(image, width, height, filter)
}

#[cfg(test)]
mod tests {
    use super::*;
    use bessemer_units::stats::mean;

    #[test]
    fn the_numbers_depend_on_seed_and_sample_alone() {
        let take = |seed, sample| {
            let mut d = Draws::new(seed, sample);
            [d.uniform(), d.uniform(), d.uniform()]
        };
        assert_eq!(take(1, 2), take(1, 2));
        assert_ne!(take(1, 2), take(2, 1));
        assert_ne!(take(1, 2), take(1, 3));
        let mean = (0..20_000).map(|s| Draws::new(7, s).uniform()).sum::<f64>() / 20_000.0;
        assert!((mean - 0.5).abs() < 4.0 / (12.0f64 * 20_000.0).sqrt(), "{mean}");
    }

    #[test]
    fn crops_stay_inside_and_have_the_areas_and_ratios_that_were_drawn() {
        let of = (640, 480);
        let (mut areas, mut logs) = (Vec::new(), Vec::new());
        for sample in 0..4000 {
            let mut draws = Draws::new(3, sample);
            let r = random_resized_crop(of, CropRange::default(), || draws.uniform());
            assert!(r.width > 0 && r.height > 0 && r.left + r.width <= of.0 && r.top + r.height <= of.1);
            let ratio = r.width as f64 / r.height as f64;
            assert!((0.74..1.35).contains(&ratio), "{r:?}");
            let area = (r.width * r.height) as f64 / (640.0 * 480.0);
            assert!((0.079..=1.0).contains(&area));
            areas.push(area);
            logs.push(ratio.ln());
        }
        // What torchvision's loop gives for this size, from 4,000 draws of another generator: crops that do not fit are drawn
        // again, which takes from the large and the tall ones. Standard errors are 0.004 and 0.003.
        assert!((mean(&areas) - 0.4287).abs() < 0.02, "{}", mean(&areas));
        assert!((mean(&logs) - 0.0311).abs() < 0.015, "{}", mean(&logs));
    }

    #[test]
    fn a_strip_falls_back_to_the_centre() {
        let r = random_resized_crop((1000, 10), CropRange::default(), || 0.999);
        assert_eq!(r, Rect { left: 493, top: 0, width: 13, height: 10 });
        assert_eq!(random_resized_crop((1, 1), CropRange::default(), || 0.5), centre_crop((1, 1), 1, 1));
    }
}
