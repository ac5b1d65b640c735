//! From pixels to what a vision transformer reads, and back.
//!
//! Normalisation: y = (x / 255 - mean_c) / std_c for channel c. Patches of side p: `[H, W, 3]` to `[H/p * W/p, p * p * 3]`, patches and
//! the pixels in a patch both row by row, channels last (A. Dosovitskiy et al., "An image is worth 16x16 words", 2021, eq. 1).
//! PSNR = 10 log10(255^2 / mean((a - b)^2)) dB.

use super::Image;
use crate::{MediaError, Result};

/// Mean and standard deviation of each channel, in units of the full range.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Normalisation {
    /// Mean of red, green, blue.
    pub mean: [f32; 3],
    /// Standard deviation of red, green, blue.
    pub std: [f32; 3],
}

/// Of ImageNet, as torchvision and timm models take them.
pub const IMAGENET: Normalisation = Normalisation { mean: [0.485, 0.456, 0.406], std: [0.229, 0.224, 0.225] };

/// Of CLIP's training images (A. Radford et al., 2021), as its code and transformers' `OPENAI_CLIP_MEAN` and `_STD` have them.
#[allow(clippy::excessive_precision)] // as published
pub const CLIP: Normalisation = Normalisation {
    mean: [0.481_454_66, 0.457_827_5, 0.408_210_73],
    std: [0.268_629_54, 0.261_302_58, 0.275_777_11],
};

impl Normalisation {
    /// Normalises bytes of interleaved channels (red, green, blue, red, ...), in any order of pixels.
    pub fn apply(&self, bytes: &[u8]) -> Vec<f32> {
        // 256 values a channel: a table is the same number as the formula, once.
        let table: [[f32; 256]; 3] =
            std::array::from_fn(|c| std::array::from_fn(|v| (v as f32 / 255.0 - self.mean[c]) / self.std[c]));
        let mut out = Vec::with_capacity(bytes.len());
        for (i, pixel) in bytes.chunks(3).enumerate() {
            debug_assert!(pixel.len() == 3 || 3 * i + pixel.len() == bytes.len());
            out.extend(pixel.iter().zip(&table).map(|(&v, t)| t[usize::from(v)]));
        }
        out
    }
}

fn grid(width: usize, height: usize, side: usize) -> Result<(usize, usize)> {
    if side == 0 || !width.is_multiple_of(side) || !height.is_multiple_of(side) || width == 0 || height == 0 {
        return Err(MediaError::Argument(format!(
            "patches of {side} x {side} pixels do not tile an image of {width} x {height}; resize or crop it to a multiple first"
        )));
    }
    Ok((width / side, height / side))
}

/// Cuts an image into patches of `side` x `side` pixels: `[H/side * W/side, side * side * 3]`.
///
/// # Errors
/// [`MediaError::Argument`] if the sides of the image are no multiples of `side`.
pub fn patchify(image: &Image, side: usize) -> Result<Vec<u8>> {
    let (columns, rows) = grid(image.width(), image.height(), side)?;
    let mut out = Vec::with_capacity(image.data().len());
    for row in 0..rows {
        for column in 0..columns {
            for y in row * side..(row + 1) * side {
                let at = 3 * (y * image.width() + column * side);
                out.extend_from_slice(&image.data()[at..at + 3 * side]);
            }
        }
    }
    Ok(out)
}

/// The image of `width` x `height` pixels that [`patchify`] cut up.
///
/// # Errors
/// [`MediaError::Argument`] if sides or length do not fit.
pub fn unpatchify(patches: &[u8], width: usize, height: usize, side: usize) -> Result<Image> {
    let (columns, _) = grid(width, height, side)?;
    if patches.len() != 3 * width * height {
        let found = patches.len();
        return Err(MediaError::Argument(format!(
            "patches: wanted {} bytes, found {found}",
            3 * width * height
        )));
    }
    let mut data = vec![0; patches.len()];
    for (i, run) in patches.chunks_exact(3 * side).enumerate() {
        let (patch, y) = (i / side, i % side);
        let at = 3 * ((patch / columns * side + y) * width + patch % columns * side);
        data[at..at + 3 * side].copy_from_slice(run);
    }
    Image::new(width, height, data)
}

/// Peak signal-to-noise ratio in dB; infinite for equal images.
///
/// # Errors
/// [`MediaError::Argument`] if the sizes differ.
pub fn psnr(a: &Image, b: &Image) -> Result<f64> {
    if (a.width(), a.height()) != (b.width(), b.height()) {
        return Err(MediaError::Argument("PSNR: the images have different sizes".into()));
    }
    let square = |(x, y): (&u8, &u8)| u64::from(x.abs_diff(*y)).pow(2);
    let sum: u64 = a.data().iter().zip(b.data()).map(square).sum();
    if sum == 0 {
        return Ok(f64::INFINITY);
    }
    Ok(10.0 * (255.0 * 255.0 * a.data().len() as f64 / sum as f64).log10())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn image(width: usize, height: usize) -> Image {
        Image::new(width, height, (0..3 * width * height).map(|i| (i * 31 % 251) as u8).collect()).unwrap()
    }

    #[test]
    fn patches_lie_as_the_reshape_says_and_go_back() {
        for side in [14, 16] {
            let image = image(3 * side, 2 * side);
            let patches = patchify(&image, side).unwrap();
            // x[r p + y, c p + x, k] = patches[r C + c][(y p + x) 3 + k]
            for (r, c, y, x, k) in [(0, 0, 0, 0, 0), (1, 2, 3, 5, 1), (0, 1, 13, 13, 2), (1, 0, 7, 0, 0)] {
                let pixel = image.data()[3 * ((r * side + y) * 3 * side + c * side + x) + k];
                assert_eq!(patches[(r * 3 + c) * side * side * 3 + (y * side + x) * 3 + k], pixel);
            }
            assert_eq!(unpatchify(&patches, 3 * side, 2 * side, side).unwrap(), image);
        }
        assert!(patchify(&image(15, 14), 14).is_err());
        assert!(patchify(&image(14, 14), 0).is_err());
        assert!(unpatchify(&[0; 3], 14, 14, 14).is_err());
    }

    #[test]
    fn normalisation_and_psnr_are_their_formulas() {
        let y = IMAGENET.apply(&[0, 128, 255, 51]);
        let wanted =
            [-0.485 / 0.229, (128.0 / 255.0 - 0.456) / 0.224, (1.0 - 0.406) / 0.225, (0.2 - 0.485) / 0.229];
        for (a, b) in y.iter().zip(wanted) {
            assert!((a - b as f32).abs() < 1e-6, "{a} {b}");
        }
        let a = Image::new(2, 1, vec![10, 20, 30, 40, 50, 60]).unwrap();
        let b = Image::new(2, 1, vec![11, 20, 30, 40, 50, 62]).unwrap();
        let wanted = 10.0 * (65025.0f64 / (5.0 / 6.0)).log10();
        assert!((psnr(&a, &b).unwrap() - wanted).abs() < 1e-12);
        assert_eq!(psnr(&a, &a).unwrap(), f64::INFINITY);
        assert!(psnr(&a, &image(3, 1)).is_err());
    }
}
