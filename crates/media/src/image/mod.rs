//! Images: 8-bit RGB, rows from the top, three bytes a pixel.

mod crop;
mod decode;
mod exif;
mod patches;
mod resize;

pub use crop::{CropRange, Draws, Rect, centre_crop, random_resized_crop, resize_shorter_side};
pub(crate) use decode::check_file;
pub use decode::{decode, header};
pub use exif::Orientation;
pub use patches::{CLIP, IMAGENET, Normalisation, patchify, psnr, unpatchify};
pub use resize::{Filter, resize, resize_samples};

use crate::{MediaError, Result};

/// An 8-bit RGB image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Image {
    width: usize,
    height: usize,
    data: Vec<u8>,
}

impl Image {
    /// An image of `width` x `height` pixels from its rows; `data` has `3 * width * height` bytes.
    ///
    /// # Errors
    /// [`MediaError::Argument`] if a side is 0 or the length differs.
    pub fn new(width: usize, height: usize, data: Vec<u8>) -> Result<Image> {
        let wanted = width.checked_mul(height).and_then(|n| n.checked_mul(3));
        if width == 0 || height == 0 || wanted != Some(data.len()) {
            let found = data.len();
            return Err(MediaError::Argument(format!(
                "image: wanted 3 bytes for each of {width} x {height} pixels (at least one), found {found} bytes"
            )));
        }
        Ok(Image { width, height, data })
    }

    /// Pixels in a row.
    pub fn width(&self) -> usize {
        self.width
    }

    /// Number of rows.
    pub fn height(&self) -> usize {
        self.height
    }

    /// The bytes, `[height, width, 3]`.
    pub fn data(&self) -> &[u8] {
        &self.data
    }

    /// The bytes, without the image.
    pub fn into_data(self) -> Vec<u8> {
        self.data
    }

    /// The part of the image inside `rect`.
    ///
    /// # Errors
    /// [`MediaError::Argument`] if `rect` is empty or leaves the image.
    pub fn crop(&self, rect: Rect) -> Result<Image> {
        let inside = |at: usize, n: usize, all: usize| n > 0 && at <= all && n <= all - at;
        if !inside(rect.left, rect.width, self.width) || !inside(rect.top, rect.height, self.height) {
            let (w, h) = (self.width, self.height);
            return Err(MediaError::Argument(format!(
                "crop: {rect:?} is empty or leaves the image of {w} x {h} pixels"
            )));
        }
        let mut data = Vec::with_capacity(3 * rect.width * rect.height);
        for row in self.data.chunks_exact(3 * self.width).skip(rect.top).take(rect.height) {
            data.extend_from_slice(&row[3 * rect.left..3 * (rect.left + rect.width)]);
        }
        Image::new(rect.width, rect.height, data)
    }

    /// Luma, one byte a pixel: L = (19595 R + 38470 G + 7471 B + 2^15) / 2^16, ITU-R BT.601 weights rounded as Pillow's `L`.
    pub fn luma(&self) -> Vec<u8> {
        let weigh = |p: &[u8]| {
            (19595 * u32::from(p[0]) + 38470 * u32::from(p[1]) + 7471 * u32::from(p[2]) + 0x8000) >> 16
        };
        self.data.chunks_exact(3).map(|p| weigh(p) as u8).collect()
    }
}
