//! Bytes to UTF-8. Files with a zero byte among their first 8 KiB count as binary (git's rule); other bytes that
//! are not UTF-8 are dropped or repaired. A byte-order mark is removed, unless the text must stay verbatim.

use crate::config::InvalidUtf8;
use arrow_array::builder::StringBuilder;
use arrow_array::{BinaryArray, RecordBatch, StringArray};
use arrow_schema::{DataType, Field};
use bessemer_dataflow::{BatchMap, column, optional, with_columns};
use bessemer_documents::{HEAD_BYTES, head};
use std::borrow::Cow;
use std::sync::Arc;

/// Bytes that are searched for a zero.
const BINARY_PROBE: usize = 8192;

/// Offset of the zero byte by which a file counts as binary, if there is one.
pub(crate) fn is_binary(bytes: &[u8]) -> Option<usize> {
    bytes[..bytes.len().min(BINARY_PROBE)].iter().position(|&byte| byte == 0)
}

/// The decoder.
pub(crate) struct Decode {
    pub(crate) invalid: InvalidUtf8,
    /// Keep every byte: no byte-order mark is removed and zero bytes are text.
    pub(crate) verbatim: bool,
}

enum Decoded<'a> {
    Text(Cow<'a, str>),
    Dropped(&'static str, String),
}

impl Decode {
    fn decode<'a>(&self, bytes: &'a [u8]) -> Decoded<'a> {
        if !self.verbatim
            && let Some(offset) = is_binary(bytes)
        {
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
            Cow::Borrowed(text) if !self.verbatim => {
                Decoded::Text(Cow::Borrowed(text.strip_prefix('\u{feff}').unwrap_or(text)))
            }
            text => Decoded::Text(text),
        }
    }
}

/// The readable beginning of bytes that are no text.
fn lossy_head(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(&bytes[..bytes.len().min(HEAD_BYTES)]);
    head(&text).replace('\0', "\u{fffd}")
}

impl BatchMap for Decode {
    fn name(&self) -> &str {
        "decode"
    }

    fn apply(&self, batch: RecordBatch) -> bessemer_dataflow::Result<RecordBatch> {
        let raw: &BinaryArray = column(self.name(), &batch, "text")?;
        let old_reasons: &StringArray = column(self.name(), &batch, "reason")?;
        let old_details: &StringArray = column(self.name(), &batch, "detail")?;
        let mut texts = StringBuilder::with_capacity(batch.num_rows(), raw.value_data().len());
        let (mut reasons, mut details) = (StringBuilder::new(), StringBuilder::new());
        for index in 0..batch.num_rows() {
            let bytes = raw.value(index);
            if let Some(reason) = optional(old_reasons, index) {
                reasons.append_value(reason);
                details.append_option(optional(old_details, index));
                texts.append_value(lossy_head(bytes));
                continue;
            }
            match self.decode(bytes) {
                Decoded::Text(text) => {
                    reasons.append_null();
                    details.append_null();
                    texts.append_value(text);
                }
                Decoded::Dropped(reason, detail) => {
                    reasons.append_value(reason);
                    details.append_value(detail);
                    texts.append_value(lossy_head(bytes));
                }
            }
        }
        with_columns(
            &batch,
            vec![
                (Field::new("reason", DataType::Utf8, true), Arc::new(reasons.finish())),
                (Field::new("detail", DataType::Utf8, true), Arc::new(details.finish())),
                (Field::new("text", DataType::Utf8, false), Arc::new(texts.finish())),
            ],
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(decode: &Decode, bytes: &[u8]) -> String {
        match decode.decode(bytes) {
            Decoded::Text(text) => text.into_owned(),
            Decoded::Dropped(reason, detail) => format!("{reason}: {detail}"),
        }
    }

    #[test]
    fn binary_and_invalid_bytes_are_dropped_with_the_offset_or_repaired() {
        let drop = Decode { invalid: InvalidUtf8::Drop, verbatim: false };
        let repair = Decode { invalid: InvalidUtf8::Repair, verbatim: false };
        let verbatim = Decode { invalid: InvalidUtf8::Drop, verbatim: true };
        assert_eq!(said(&drop, b"ab\0c"), "binary: zero byte at offset 2");
        assert_eq!(said(&repair, b"ab\0c"), "binary: zero byte at offset 2");
        assert_eq!(said(&verbatim, b"ab\0c"), "ab\0c");
        assert_eq!(said(&drop, b"ab\xffc"), "invalid-utf8: byte 0xff at offset 2");
        assert_eq!(said(&repair, b"ab\xffc"), "ab\u{fffd}c");
        assert_eq!(said(&drop, "é".as_bytes()), "é");
        assert_eq!(
            said(&drop, "é".as_bytes().split_last().unwrap().1),
            "invalid-utf8: byte 0xc3 at offset 0"
        );
        assert_eq!(said(&drop, "\u{feff}x".as_bytes()), "x");
        assert_eq!(said(&verbatim, "\u{feff}x".as_bytes()), "\u{feff}x");
    }
}
