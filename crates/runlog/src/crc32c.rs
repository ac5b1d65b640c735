//! CRC-32C (Castagnoli), as TFRecord files use it.
//!
//! Reflected polynomial 0x82F63B78, initial value and final xor 0xFFFFFFFF (RFC 3720, section 12.1 and appendix
//! B.4). One table look-up a byte: event files are small.

const TABLE: [u32; 256] = {
    let mut table = [0; 256];
    let mut i = 0;
    while i < 256 {
        let mut crc = i as u32;
        let mut bit = 0;
        while bit < 8 {
            crc = if crc & 1 == 1 { crc >> 1 ^ 0x82F6_3B78 } else { crc >> 1 };
            bit += 1;
        }
        table[i] = crc;
        i += 1;
    }
    table
};

/// The CRC-32C of `bytes`.
pub(crate) fn crc32c(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(u32::MAX, |crc, &b| crc >> 8 ^ TABLE[(crc as u8 ^ b) as usize])
}

#[cfg(test)]
mod tests {
    use super::crc32c;

    #[test]
    fn crc32c_has_the_published_values() {
        // The check value of the CRC catalogue, and the examples of RFC 3720, appendix B.4.
        assert_eq!(crc32c(b"123456789"), 0xE306_9283);
        assert_eq!(crc32c(&[0; 32]), 0x8A91_36AA);
        assert_eq!(crc32c(&[0xFF; 32]), 0x62A8_AB43);
        assert_eq!(crc32c(&std::array::from_fn::<u8, 32, _>(|i| i as u8)), 0x46DD_794E);
        assert_eq!(crc32c(b""), 0);
    }
}
