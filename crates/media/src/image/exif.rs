//! The orientation that a camera wrote into EXIF, and its undoing.
//!
//! EXIF 2.3, 4.6.4: tag 0x0112 of IFD 0 is a SHORT from 1 to 8, which says where row 0 and column 0 of the stored image lie in
//! the scene. Everything else of EXIF is skipped, and a block that contradicts itself counts as orientation 1.

use super::Image;

/// How stored rows and columns lie in the scene.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Orientation {
    /// 1: as stored.
    #[default]
    Upright,
    /// 2: mirrored left to right.
    MirroredHorizontally,
    /// 3: turned by 180 degrees.
    Turned180,
    /// 4: mirrored top to bottom.
    MirroredVertically,
    /// 5: transposed.
    Transposed,
    /// 6: to be turned by 90 degrees clockwise.
    Turned90,
    /// 7: mirrored at the other diagonal.
    Transversed,
    /// 8: to be turned by 270 degrees clockwise.
    Turned270,
}

impl Orientation {
    /// From the value of tag 0x0112; anything but 2 to 8 is upright.
    pub fn from_tag(value: u16) -> Orientation {
        use Orientation::*;
        match value {
            2 => MirroredHorizontally,
            3 => Turned180,
            4 => MirroredVertically,
            5 => Transposed,
            6 => Turned90,
            7 => Transversed,
            8 => Turned270,
            _ => Upright,
        }
    }

    /// From an EXIF block: a TIFF header and directories, with or without `Exif\0\0` in front.
    pub fn from_exif(block: &[u8]) -> Orientation {
        let tiff = block.strip_prefix(b"Exif\0\0").unwrap_or(block);
        tag_value(tiff).map_or(Orientation::Upright, Orientation::from_tag)
    }

    /// Whether width and height change places.
    pub fn swaps_sides(self) -> bool {
        use Orientation::*;
        matches!(self, Transposed | Turned90 | Transversed | Turned270)
    }

    /// The image as it was seen.
    pub fn apply(self, image: Image) -> Image {
        use Orientation::*;
        let (w, h) = (image.width, image.height);
        let source = |x: usize, y: usize| match self {
            Upright => (x, y),
            MirroredHorizontally => (w - 1 - x, y),
            Turned180 => (w - 1 - x, h - 1 - y),
            MirroredVertically => (x, h - 1 - y),
            Transposed => (y, x),
            Turned90 => (y, h - 1 - x),
            Transversed => (w - 1 - y, h - 1 - x),
            Turned270 => (w - 1 - y, x),
        };
        if self == Upright {
            return image;
        }
        let (width, height) = if self.swaps_sides() { (h, w) } else { (w, h) };
        let mut data = Vec::with_capacity(image.data.len());
        for y in 0..height {
            for x in 0..width {
                let (sx, sy) = source(x, y);
                let at = 3 * (sy * w + sx);
                data.extend_from_slice(&image.data[at..at + 3]);
            }
        }
        Image { width, height, data }
    }
}

fn tag_value(tiff: &[u8]) -> Option<u16> {
    let little = match tiff.get(..4)? {
        b"II\x2a\0" => true,
        b"MM\0\x2a" => false,
        _ => return None,
    };
    let u16_at = |at: usize| -> Option<u16> {
        let b: [u8; 2] = tiff.get(at..at.checked_add(2)?)?.try_into().ok()?;
        Some(if little { u16::from_le_bytes(b) } else { u16::from_be_bytes(b) })
    };
    let u32_at = |at: usize| -> Option<u32> {
        let b: [u8; 4] = tiff.get(at..at.checked_add(4)?)?.try_into().ok()?;
        Some(if little { u32::from_le_bytes(b) } else { u32::from_be_bytes(b) })
    };
    let directory = u32_at(4)? as usize;
    let entries = usize::from(u16_at(directory)?);
    for i in 0..entries {
        let entry = directory.checked_add(2 + 12 * i)?;
        if u16_at(entry)? == 0x0112 {
            // A SHORT lies in the first two bytes of the value field.
            let short = u16_at(entry + 2)? == 3 && u32_at(entry + 4)? == 1;
            return if short { u16_at(entry + 8) } else { None };
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn block(value: u16, little: bool) -> Vec<u8> {
        let mut b = if little { b"II\x2a\0".to_vec() } else { b"MM\0\x2a".to_vec() };
        let two = |v: u16| if little { v.to_le_bytes() } else { v.to_be_bytes() };
        let four = |v: u32| if little { v.to_le_bytes() } else { v.to_be_bytes() };
        b.extend(four(8));
        b.extend(two(2));
        for (tag, kind, v) in [(0x0100, 3, 77), (0x0112, 3, value)] {
            b.extend(two(tag));
            b.extend(two(kind));
            b.extend(four(1));
            b.extend(two(v));
            b.extend([0, 0]);
        }
        b
    }

    #[test]
    fn the_tag_is_found_in_both_byte_orders() {
        for little in [true, false] {
            assert_eq!(Orientation::from_exif(&block(6, little)), Orientation::Turned90);
            let with_prefix = [b"Exif\0\0".to_vec(), block(3, little)].concat();
            assert_eq!(Orientation::from_exif(&with_prefix), Orientation::Turned180);
            for cut in 0..30 {
                assert_eq!(Orientation::from_exif(&block(6, little)[..cut]), Orientation::Upright);
            }
        }
        assert_eq!(Orientation::from_exif(&block(9, true)), Orientation::Upright);
    }

    #[test]
    fn every_orientation_puts_the_corner_where_the_standard_says() {
        // 3 x 2 pixels numbered 0..6 in their red channel.
        let image = Image::new(3, 2, (0..6).flat_map(|i| [i, 0, 0]).collect()).unwrap();
        let reds = |v: u16| {
            let o = Orientation::from_tag(v).apply(image.clone());
            (o.width, o.data.chunks_exact(3).map(|p| p[0]).collect::<Vec<_>>())
        };
        assert_eq!(reds(1), (3, vec![0, 1, 2, 3, 4, 5]));
        assert_eq!(reds(2), (3, vec![2, 1, 0, 5, 4, 3]));
        assert_eq!(reds(3), (3, vec![5, 4, 3, 2, 1, 0]));
        assert_eq!(reds(4), (3, vec![3, 4, 5, 0, 1, 2]));
        assert_eq!(reds(5), (2, vec![0, 3, 1, 4, 2, 5]));
        assert_eq!(reds(6), (2, vec![3, 0, 4, 1, 5, 2]));
        assert_eq!(reds(7), (2, vec![5, 2, 4, 1, 3, 0]));
        assert_eq!(reds(8), (2, vec![2, 5, 1, 4, 0, 3]));
    }
}
