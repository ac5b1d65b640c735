//! GPT-2's bijection between bytes and printable characters (`bytes_to_unicode` in its `encoder.py`), by which
//! byte-level tokens are spelled in tokenizer.json: a byte that Latin-1 prints stands for itself, the other 68 take
//! U+0100, U+0101, ... in ascending order. So a space is written `Ġ` and a line feed `Ċ`.

/// Bytes in ascending order of the character that spells them: the order of the 256 base tokens in every vocabulary.
pub(crate) const BYTES_IN_ALPHABET_ORDER: [u8; 256] = {
    let mut order = [0u8; 256];
    let mut n = 0;
    let mut pass = 0;
    while pass < 2 {
        let mut b = 0;
        while b < 256 {
            if prints(b as u8) == (pass == 0) {
                order[n] = b as u8;
                n += 1;
            }
            b += 1;
        }
        pass += 1;
    }
    order
};

const fn prints(b: u8) -> bool {
    matches!(b, b'!'..=b'~' | 0xA1..=0xAC | 0xAE..=0xFF)
}

/// Number of bytes that stand for themselves.
const PRINTABLE: usize = 188;

const CHAR_OF_BYTE: [char; 256] = {
    let mut table = ['\0'; 256];
    let mut i = 0;
    while i < 256 {
        let b = BYTES_IN_ALPHABET_ORDER[i];
        table[b as usize] = if i < PRINTABLE {
            b as char
        } else {
            match char::from_u32(0x100 + (i - PRINTABLE) as u32) {
                Some(c) => c,
                None => panic!("U+0100 to U+0143 are characters"),
            }
        };
        i += 1;
    }
    table
};

/// The character that spells a byte.
pub(crate) fn char_of_byte(b: u8) -> char {
    CHAR_OF_BYTE[b as usize]
}

/// The byte that a character spells.
pub(crate) fn byte_of_char(c: char) -> Option<u8> {
    let code_point = c as usize;
    match code_point {
        0x100..=0x143 => Some(BYTES_IN_ALPHABET_ORDER[PRINTABLE + code_point - 0x100]),
        0..=0xFF => Some(code_point as u8).filter(|b| prints(*b)),
        _ => None,
    }
}

/// Spells a byte string.
pub(crate) fn spell(bytes: &[u8]) -> String {
    bytes.iter().map(|b| char_of_byte(*b)).collect()
}

/// The byte string that a spelling stands for, unless it has a character outside the alphabet.
pub(crate) fn unspell(text: &str) -> Option<Vec<u8>> {
    text.chars().map(byte_of_char).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spelling_is_a_bijection_with_the_published_spellings() {
        let every: Vec<u8> = (0..=255).collect();
        assert_eq!(unspell(&spell(&every)), Some(every));
        assert_eq!(spell(b" a\n\t\0\x7f\xad\xff"), "ĠaĊĉĀġŃÿ");
        assert_eq!(unspell("a b"), None);
        let order: Vec<char> = BYTES_IN_ALPHABET_ORDER.iter().map(|b| char_of_byte(*b)).collect();
        assert!(order.is_sorted());
        assert_eq!((order[0], order[187], order[188], order[255]), ('!', 'ÿ', 'Ā', 'Ń'));
    }
}
