//! Bytes in, whole characters out: a token may end in the middle of a character.

/// Collects bytes and releases text as soon as its characters are complete. Bytes that cannot become a character are
/// released as U+FFFD, as `String::from_utf8_lossy` does.
#[derive(Debug, Default, Clone)]
pub struct Utf8Stream {
    /// The beginning of a character, at most 3 bytes, before the bytes of a push.
    pending: Vec<u8>,
}

impl Utf8Stream {
    /// Takes bytes and appends to `text` what is complete.
    pub fn push(&mut self, bytes: &[u8], text: &mut String) {
        self.pending.extend_from_slice(bytes);
        let mut done = 0;
        for chunk in self.pending.utf8_chunks() {
            text.push_str(chunk.valid());
            done += chunk.valid().len();
            let invalid = chunk.invalid();
            let at_end = done + invalid.len() == self.pending.len();
            if at_end && may_be_completed(invalid) {
                break;
            }
            if !invalid.is_empty() {
                text.push(char::REPLACEMENT_CHARACTER);
                done += invalid.len();
            }
        }
        self.pending.drain(..done);
    }

    /// Releases what is left: U+FFFD for a character that was never completed.
    pub fn finish(&mut self, text: &mut String) {
        if !self.pending.is_empty() {
            text.push(char::REPLACEMENT_CHARACTER);
            self.pending.clear();
        }
    }
}

/// Whether more bytes could make these, the end of a text, a character.
fn may_be_completed(bytes: &[u8]) -> bool {
    // No length of the error: the input ended before the character did.
    !bytes.is_empty() && std::str::from_utf8(bytes).is_err_and(|e| e.error_len().is_none())
}

#[cfg(test)]
mod tests {
    use super::*;
    use bessemer_tensor::rng::RngKey;

    fn in_pieces(bytes: &[u8], len: usize) -> (Vec<String>, String) {
        let mut stream = Utf8Stream::default();
        let mut pieces = Vec::new();
        for piece in bytes.chunks(len) {
            let mut text = String::new();
            stream.push(piece, &mut text);
            pieces.push(text);
        }
        let mut rest = String::new();
        stream.finish(&mut rest);
        let whole = pieces.concat() + &rest;
        (pieces, whole)
    }

    #[test]
    fn characters_come_out_whole_and_as_early_as_they_can() {
        let text = "aé€🎉z";
        let (pieces, whole) = in_pieces(text.as_bytes(), 1);
        assert_eq!(whole, text);
        assert_eq!(pieces, ["a", "", "é", "", "", "€", "", "", "", "🎉", "z"]);
    }

    #[test]
    fn any_bytes_in_any_pieces_give_the_lossy_text() {
        let key = RngKey::new(3, 0, "bytes");
        for case in 0..400u64 {
            // Mostly lead and continuation bytes, so that characters are made and broken.
            let bytes: Vec<u8> = (0..24)
                .map(|i| {
                    let word = key.block(case * 100 + i)[0];
                    match word & 3 {
                        0 => (word >> 8) as u8,
                        1 => 0xc0 | (word >> 8) as u8,
                        _ => 0x80 | (word >> 8) as u8 & 0x3f,
                    }
                })
                .collect();
            for len in [1, 2, 3, 5, 24] {
                let (_, whole) = in_pieces(&bytes, len);
                assert_eq!(whole, String::from_utf8_lossy(&bytes), "{bytes:x?} in pieces of {len}");
            }
        }
    }

    #[test]
    fn a_cut_character_at_the_end_becomes_a_replacement() {
        let (pieces, whole) = in_pieces(&"x🎉".as_bytes()[..4], 2);
        assert_eq!(pieces, ["x", ""]);
        assert_eq!(whole, "x\u{fffd}");
    }
}
