//! Encoded bytes to 8-bit RGB, upright, over a background where there is transparency.

use super::{Image, Orientation};
use crate::sniff::{self, Kind, sniff};
use crate::{Limits, MediaError, Result, guarded};
use std::io::Cursor;
use zune_core::bytestream::ZCursor;
use zune_core::colorspace::ColorSpace;
use zune_core::options::DecoderOptions;
use zune_jpeg::JpegDecoder;

/// What an image file says of itself before its pixels are decoded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Header {
    width: u64,
    height: u64,
    orientation: Orientation,
}

const WANTED: &str = "a JPEG, PNG or WebP image";

/// Decodes a JPEG (baseline or progressive; gray, YCbCr, RGB, CMYK, YCCK), PNG (every colour type and depth) or WebP image (lossy,
/// lossless, the first frame of an animation). The result is upright (EXIF orientation undone), and transparent parts show
/// `background` (red, green, blue). 16-bit samples lose their lower byte; embedded colour profiles are not applied.
///
/// # Errors
/// [`MediaError::Unknown`], [`MediaError::Damaged`] (truncated files included), [`MediaError::TooLarge`] before any pixel is decoded,
/// [`MediaError::Panicked`] for a defect of a decoder.
pub fn decode(bytes: &[u8], background: [u8; 3], limits: &Limits) -> Result<Image> {
    let kind = kind_of(bytes)?;
    check_file(bytes, limits)?;
    guarded(kind.name(), || {
        let (header, image) = match kind {
            Kind::Jpeg => jpeg(bytes, Some(limits))?,
            Kind::Png => png(bytes, Some((limits, background)))?,
            _ => webp(bytes, Some((limits, background)))?,
        };
        let image = image.ok_or_else(|| MediaError::damaged(kind.name(), "no pixels were decoded"))?;
        Ok(header.orientation.apply(image))
    })
}

/// Width and height of an image as [`decode`] would give it, from its header alone. Limits do not apply.
///
/// # Errors
/// As [`decode`].
pub fn header(bytes: &[u8]) -> Result<(u64, u64)> {
    let kind = kind_of(bytes)?;
    guarded(kind.name(), || {
        let (h, _) = match kind {
            Kind::Jpeg => jpeg(bytes, None)?,
            Kind::Png => png(bytes, None)?,
            _ => webp(bytes, None)?,
        };
        Ok(if h.orientation.swaps_sides() { (h.height, h.width) } else { (h.width, h.height) })
    })
}

fn kind_of(bytes: &[u8]) -> Result<Kind> {
    sniff(bytes)
        .filter(|k| k.is_image())
        .ok_or_else(|| MediaError::Unknown { wanted: WANTED, found: sniff::shown(bytes) })
}

pub(crate) fn check_file(bytes: &[u8], limits: &Limits) -> Result<()> {
    let found = bytes.len() as u64;
    if found > limits.file_bytes {
        return Err(MediaError::TooLarge {
            what: "bytes of an encoded file",
            limit: limits.file_bytes,
            found,
        });
    }
    Ok(())
}

impl Header {
    fn check(&self, format: &'static str, limits: &Limits) -> Result<()> {
        if self.width == 0 || self.height == 0 {
            return Err(MediaError::damaged(format, "the image has no pixels"));
        }
        let found = self.width.saturating_mul(self.height);
        if found > limits.pixels {
            return Err(MediaError::TooLarge { what: "pixels of an image", limit: limits.pixels, found });
        }
        Ok(())
    }
}

fn jpeg(bytes: &[u8], limits: Option<&Limits>) -> Result<(Header, Option<Image>)> {
    let damaged = |e: zune_jpeg::errors::DecodeErrors| MediaError::damaged("JPEG", e);
    // Strict: a file that ends early is refused and not filled up with gray.
    let options = DecoderOptions::default()
        .set_strict_mode(true)
        .set_max_width(usize::from(u16::MAX))
        .set_max_height(usize::from(u16::MAX))
        .jpeg_set_out_colorspace(ColorSpace::RGB);
    let mut decoder = JpegDecoder::new_with_options(ZCursor::new(bytes), options);
    decoder.decode_headers().map_err(damaged)?;
    let (width, height) =
        decoder.dimensions().ok_or_else(|| MediaError::damaged("JPEG", "no frame header"))?;
    let orientation = decoder.exif().map_or(Orientation::Upright, |e| Orientation::from_exif(e));
    let header = Header { width: width as u64, height: height as u64, orientation };
    let Some(limits) = limits else { return Ok((header, None)) };
    header.check("JPEG", limits)?;
    let data = decoder.decode().map_err(damaged)?;
    Ok((header, Some(Image::new(width, height, data)?)))
}

fn png(bytes: &[u8], wanted: Option<(&Limits, [u8; 3])>) -> Result<(Header, Option<Image>)> {
    let damaged = |e: png::DecodingError| MediaError::damaged("PNG", e);
    // The decoder's own buffers are rows and inflated chunks; the pixels are ours and are checked below.
    let mut decoder = png::Decoder::new_with_limits(Cursor::new(bytes), png::Limits { bytes: 64 << 20 });
    decoder.set_transformations(png::Transformations::normalize_to_color8());
    decoder.set_ignore_text_chunk(true);
    decoder.set_ignore_iccp_chunk(true);
    let info = decoder.read_header_info().map_err(damaged)?;
    let mut header = Header {
        width: u64::from(info.width),
        height: u64::from(info.height),
        orientation: Orientation::Upright,
    };
    let Some((limits, background)) = wanted else {
        // EXIF may stand behind the first rows; only a whole read finds all of it, and a header need not cost that.
        return Ok((header, None));
    };
    header.check("PNG", limits)?;
    let mut reader = decoder.read_info().map_err(damaged)?;
    let size = reader.output_buffer_size().ok_or_else(|| MediaError::damaged("PNG", "sizes overflow"))?;
    let mut data = vec![0; size];
    let frame = reader.next_frame(&mut data).map_err(damaged)?;
    data.truncate(frame.buffer_size());
    if let Some(exif) = &reader.info().exif_metadata {
        header.orientation = Orientation::from_exif(exif);
    }
    let rgb = match frame.color_type {
        png::ColorType::Rgb => data,
        png::ColorType::Rgba => over(background, data.chunks_exact(4).map(|p| ([p[0], p[1], p[2]], p[3]))),
        png::ColorType::Grayscale => data.iter().flat_map(|&v| [v; 3]).collect(),
        png::ColorType::GrayscaleAlpha => over(background, data.chunks_exact(2).map(|p| ([p[0]; 3], p[1]))),
        png::ColorType::Indexed => return Err(MediaError::damaged("PNG", "a palette was not expanded")),
    };
    Ok((header, Some(Image::new(frame.width as usize, frame.height as usize, rgb)?)))
}

fn webp(bytes: &[u8], wanted: Option<(&Limits, [u8; 3])>) -> Result<(Header, Option<Image>)> {
    let damaged = |e: image_webp::DecodingError| MediaError::damaged("WebP", e);
    let mut decoder = image_webp::WebPDecoder::new(Cursor::new(bytes)).map_err(damaged)?;
    decoder.set_memory_limit(16 << 20);
    let (width, height) = decoder.dimensions();
    // EXIF that cannot be read costs the orientation, not the image.
    let exif = decoder.exif_metadata().ok().flatten();
    let orientation = exif.map_or(Orientation::Upright, |e| Orientation::from_exif(&e));
    let header = Header { width: u64::from(width), height: u64::from(height), orientation };
    let Some((limits, background)) = wanted else { return Ok((header, None)) };
    header.check("WebP", limits)?;
    let size = decoder.output_buffer_size().ok_or_else(|| MediaError::damaged("WebP", "sizes overflow"))?;
    let mut data = vec![0; size];
    decoder.read_image(&mut data).map_err(damaged)?;
    if decoder.has_alpha() {
        data = over(background, data.chunks_exact(4).map(|p| ([p[0], p[1], p[2]], p[3])));
    }
    Ok((header, Some(Image::new(width as usize, height as usize, data)?)))
}

/// Colour c of opacity a over background b: (a c + (255 - a) b) / 255, rounded to the nearest.
fn over(background: [u8; 3], pixels: impl Iterator<Item = ([u8; 3], u8)>) -> Vec<u8> {
    let blend = |c: u8, b: u8, a: u8| {
        let t = u32::from(a) * u32::from(c) + u32::from(255 - a) * u32::from(b) + 128;
        (((t >> 8) + t) >> 8) as u8
    };
    pixels.flat_map(|(c, a)| std::array::from_fn::<u8, 3, _>(|i| blend(c[i], background[i], a))).collect()
}
