//! Bytes to UTF-8. Files with a zero byte among their first 8 KiB count as binary (git's rule); other bytes that
//! are not UTF-8 are dropped or repaired. A byte-order mark is removed, unless the text must stay verbatim.

use bessemer_corpus_config::InvalidUtf8;
use bessemer_documents::{COMPONENT, Document, DocumentPass, Scratch, Verdict};
use std::borrow::Cow;
use std::collections::BTreeSet;

/// Bytes that are searched for a zero.
const BINARY_PROBE: usize = 8192;

/// Offset of the zero byte by which a file counts as binary, if there is one.
pub(crate) fn is_binary(bytes: &[u8]) -> Option<usize> {
    bytes[..bytes.len().min(BINARY_PROBE)].iter().position(|&byte| byte == 0)
}

/// The decoder.
pub(crate) struct Decode {
    invalid: InvalidUtf8,
    /// Chained sources whose documents are kept byte for byte.
    exempt: BTreeSet<String>,
    /// Every document is kept byte for byte.
    verbatim: bool,
}

enum Decoded<'a> {
    Text(Cow<'a, str>),
    Dropped(&'static str, String),
}

impl Decode {
    /// A decoder. Documents of the components `exempt`, or all if `verbatim`, keep every byte: no byte-order mark is removed and
    /// zero bytes are text.
    pub(crate) fn of(invalid: InvalidUtf8, exempt: BTreeSet<String>, verbatim: bool) -> Decode {
        Decode { invalid, exempt, verbatim }
    }

    fn decode<'a>(&self, bytes: &'a [u8], verbatim: bool) -> Decoded<'a> {
        if !verbatim && let Some(offset) = is_binary(bytes) {
            return Decoded::Dropped("binary", format!("zero byte at offset {offset}"));
        }
        let text = match (std::str::from_utf8(bytes), self.invalid) {
            (Ok(text), _) => Cow::Borrowed(text),
            (Err(_), InvalidUtf8::Repair) => String::from_utf8_lossy(bytes),
            (Err(error), InvalidUtf8::Detect | InvalidUtf8::Drop) => {
                let offset = error.valid_up_to();
                return Decoded::Dropped(
                    "invalid-utf8",
                    format!("byte {:#04x} at offset {offset}", bytes[offset]),
                );
            }
        };
        match text {
            Cow::Borrowed(text) if !verbatim => {
                Decoded::Text(Cow::Borrowed(text.strip_prefix('\u{feff}').unwrap_or(text)))
            }
            text => Decoded::Text(text),
        }
    }
}

impl DocumentPass for Decode {
    fn name(&self) -> &str {
        "decode"
    }

    fn visit(&self, document: &mut Document<'_>, _: &mut Scratch) -> bessemer_dataflow::Result<Verdict> {
        let is_exempt = document.string(COMPONENT).is_some_and(|component| self.exempt.contains(component));
        Ok(match self.decode(document.bytes(), self.verbatim || is_exempt) {
            Decoded::Dropped(reason, detail) => Verdict::drop(reason, detail),
            Decoded::Text(text) => {
                document.set_text(text);
                if is_exempt { Verdict::Exempt } else { Verdict::Keep }
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decoded(decode: &Decode, bytes: &[u8]) -> String {
        match decode.decode(bytes, decode.verbatim) {
            Decoded::Text(text) => text.into_owned(),
            Decoded::Dropped(reason, detail) => format!("{reason}: {detail}"),
        }
    }

    #[test]
    fn binary_and_invalid_bytes_are_dropped_with_the_offset_or_repaired() {
        let drop = &Decode::of(InvalidUtf8::Drop, BTreeSet::new(), false);
        let repair = &Decode::of(InvalidUtf8::Repair, BTreeSet::new(), false);
        let verbatim = &Decode::of(InvalidUtf8::Drop, BTreeSet::new(), true);
        assert_eq!(decoded(drop, b"ab\0c"), "binary: zero byte at offset 2");
        assert_eq!(decoded(repair, b"ab\0c"), "binary: zero byte at offset 2");
        assert_eq!(decoded(verbatim, b"ab\0c"), "ab\0c");
        assert_eq!(decoded(drop, b"ab\xffc"), "invalid-utf8: byte 0xff at offset 2");
        assert_eq!(decoded(repair, b"ab\xffc"), "ab\u{fffd}c");
        assert_eq!(decoded(drop, "é".as_bytes()), "é");
        assert_eq!(
            decoded(drop, "é".as_bytes().split_last().unwrap().1),
            "invalid-utf8: byte 0xc3 at offset 0"
        );
        assert_eq!(decoded(drop, "\u{feff}x".as_bytes()), "x");
        assert_eq!(decoded(verbatim, "\u{feff}x".as_bytes()), "\u{feff}x");
    }
}
