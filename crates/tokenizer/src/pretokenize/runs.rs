//! Lengths of runs of one class, the inner loop of every pre-tokenizer.
//!
//! ASCII letters are measured eight bytes at a time in one 64-bit word (Lamport 1975, "Multiple byte processing
//! with full-word instructions"): the comparisons of all eight bytes are additions that cannot carry into the next
//! byte once bit 7 is cleared. Most English and source-code words end within the first eight bytes, so the usual
//! word costs one round without a branch a byte.

use super::classes::{Class, class_at};

const LOW_SEVEN: u64 = 0x7F7F_7F7F_7F7F_7F7F;
const HIGH: u64 = 0x8080_8080_8080_8080;
const ONES: u64 = 0x0101_0101_0101_0101;

/// Bit 7 of each byte set iff that byte is an ASCII letter.
#[inline(always)]
const fn letter_mask(word: u64) -> u64 {
    let folded = (word & LOW_SEVEN) | (ONES * 0x20);
    let at_least_a = folded + ONES * (0x80 - b'a' as u64);
    let beyond_z = folded + ONES * (0x80 - b'z' as u64 - 1);
    at_least_a & !beyond_z & !word & HIGH
}

/// End of the run of letters that starts at `at` (`at` itself when there is none).
#[inline(always)]
pub(super) fn letters(text: &[u8], mut at: usize) -> usize {
    loop {
        while let Some(chunk) = text.get(at..at + 8) {
            let word = u64::from_le_bytes(chunk.try_into().expect("a slice of eight bytes"));
            let others = !letter_mask(word) & HIGH;
            if others != 0 {
                at += (others.trailing_zeros() / 8) as usize;
                break;
            }
            at += 8;
        }
        // Here stands a byte that is no ASCII letter, or fewer than eight bytes remain.
        match text.get(at) {
            Some(byte) if byte.is_ascii_alphabetic() => at += 1,
            Some(0x80..) => {
                while text.get(at).is_some_and(|byte| *byte >= 0x80) {
                    match class_at(text, at) {
                        (Class::Letter, len) => at += len,
                        _ => return at,
                    }
                }
            }
            _ => return at,
        }
    }
}

/// End of the run of numbers that starts at `at`, at most `limit` characters long.
#[inline(always)]
pub(super) fn numbers(text: &[u8], mut at: usize, limit: usize) -> usize {
    for _ in 0..limit {
        if at >= text.len() {
            break;
        }
        match class_at(text, at) {
            (Class::Number, len) => at += len,
            _ => break,
        }
    }
    at
}

/// End of the run of `[^\s\p{L}\p{N}]` that starts at `at`.
#[inline(always)]
pub(super) fn others(text: &[u8], mut at: usize) -> usize {
    while at < text.len() {
        match class_at(text, at) {
            (Class::Other, len) => at += len,
            _ => break,
        }
    }
    at
}

/// End of the run of carriage returns and line feeds that starts at `at`.
#[inline(always)]
pub(super) fn newlines(text: &[u8], mut at: usize) -> usize {
    while at < text.len() && matches!(text[at], b'\r' | b'\n') {
        at += 1;
    }
    at
}

/// A run of `\s`.
pub(super) struct WhiteRun {
    /// One past the last character.
    pub(super) end: usize,
    /// Start of the last character.
    pub(super) last: usize,
    /// One past the last carriage return or line feed in it, if it has one.
    pub(super) after_newline: Option<usize>,
}

/// The run of white space that starts at `at`; `text[at]` is white space.
#[inline(always)]
pub(super) fn white(text: &[u8], at: usize) -> WhiteRun {
    let mut run = WhiteRun { end: at, last: at, after_newline: None };
    while run.end < text.len() {
        let (class, len) = class_at(text, run.end);
        if !class.is_white() {
            break;
        }
        run.last = run.end;
        run.end += len;
        if class == Class::Newline {
            run.after_newline = Some(run.end);
        }
    }
    run
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn letter_mask_marks_exactly_the_ascii_letters_in_every_byte_position() {
        for b in 0..=255u8 {
            for position in 0..8 {
                for filler in [0u8, b'a', b'Z', b'`', b'{', 0xFF] {
                    let mut bytes = [filler; 8];
                    bytes[position] = b;
                    let mask = letter_mask(u64::from_le_bytes(bytes));
                    for (i, byte) in bytes.iter().enumerate() {
                        assert_eq!(
                            (mask >> (8 * i)) as u8,
                            if byte.is_ascii_alphabetic() { 0x80 } else { 0 }
                        );
                    }
                }
            }
        }
    }

    #[test]
    fn letters_run_on_through_letter_beyond_ascii() {
        let text = "abcdefghijklmnopéèqrst 1".as_bytes();
        assert_eq!(letters(text, 0), text.len() - 2);
        assert_eq!(letters(text, text.len() - 2), text.len() - 2);
        assert_eq!(letters(text, text.len()), text.len());
    }
}
