//! Character-level tokens: one id a character of a fixed alphabet, in code-point order (the setting of nanoGPT's
//! `shakespeare_char`).

use crate::error::{Result, TokenizerError};
use crate::pretokenize::decode;
use std::collections::HashMap;

/// Alphabet with its ids.
#[derive(Debug, Clone)]
pub(crate) struct CharModel {
    /// Id of each ASCII character, or [`ABSENT`].
    ascii: [u32; 128],
    beyond_ascii: HashMap<u32, u32>,
    len: usize,
}

const ABSENT: u32 = u32::MAX;

impl CharModel {
    pub(crate) fn new(alphabet: impl IntoIterator<Item = (char, u32)>) -> Self {
        let mut model = CharModel { ascii: [ABSENT; 128], beyond_ascii: HashMap::new(), len: 0 };
        for (c, id) in alphabet {
            match model.ascii.get_mut(c as usize) {
                Some(slot) => *slot = id,
                None => drop(model.beyond_ascii.insert(c as u32, id)),
            }
            model.len += 1;
        }
        model
    }

    /// Appends one id a character; on a character outside the alphabet `out` keeps what came before it.
    pub(crate) fn encode(&self, text: &[u8], out: &mut Vec<u32>) -> Result<()> {
        let mut at = 0;
        while at < text.len() {
            let found = match text[at] {
                byte @ 0..=0x7F => Some((self.ascii[usize::from(byte)], 1)).filter(|found| found.0 != ABSENT),
                _ => decode(&text[at..]).and_then(|(c, len)| Some((*self.beyond_ascii.get(&c)?, len))),
            };
            let Some((id, len)) = found else { return Err(self.unknown(text, at)) };
            out.push(id);
            at += len;
        }
        Ok(())
    }

    fn unknown(&self, text: &[u8], offset: usize) -> TokenizerError {
        let found = match decode(&text[offset..]).and_then(|(c, _)| char::from_u32(c)) {
            Some(c) => format!("character {c:?} (U+{:04X})", c as u32),
            None => format!("byte 0x{:02X}, which is not part of valid UTF-8,", text[offset]),
        };
        let line = 1 + text[..offset].iter().filter(|b| **b == b'\n').count();
        TokenizerError::UnknownCharacter { found, offset, line, alphabet: self.len }
    }
}
