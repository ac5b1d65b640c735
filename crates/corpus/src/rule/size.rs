//! Limits on the bytes of a text: too large before any other rule, too short after all edits.

use bessemer_dataflow::Result;
use bessemer_documents::{Document, DocumentPass, Scratch, Verdict};

/// Drops documents whose text has more bytes. What a source stores for a document may be larger: a page's markup, other fields.
pub(super) struct MaxBytes(pub(super) u64);

impl DocumentPass for MaxBytes {
    fn name(&self) -> &str {
        "max-bytes"
    }

    fn visit(&self, document: &mut Document<'_>, _: &mut Scratch) -> Result<Verdict> {
        let bytes = document.text().len() as u64;
        if bytes > self.0 {
            return Ok(Verdict::drop("too-large", format!("{bytes} bytes, at most {}", self.0)));
        }
        Ok(Verdict::Keep)
    }
}

/// Drops documents of fewer bytes; white space at the ends does not count.
pub(super) struct MinBytes(pub(super) u64);

impl DocumentPass for MinBytes {
    fn name(&self) -> &str {
        "min-bytes"
    }

    fn visit(&self, document: &mut Document<'_>, _: &mut Scratch) -> Result<Verdict> {
        let bytes = document.text().trim().len() as u64;
        if bytes < self.0 || bytes == 0 {
            return Ok(Verdict::drop("too-short", format!("{bytes} bytes, at least {}", self.0.max(1))));
        }
        Ok(Verdict::Keep)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rule::tests::visit_text;

    #[test]
    fn limits_are_inclusive_and_blank_ends_do_not_count() {
        let reason = |rule, text| visit_text(rule, "a", text).reason().to_string();
        assert_eq!(reason(MaxBytes(3), "abc"), "");
        assert_eq!(reason(MaxBytes(2), "abc"), "too-large");
        assert_eq!(visit_text(MinBytes(3), "a", " abc\n").reason(), "");
        assert_eq!(visit_text(MinBytes(4), "a", " abc\n").reason(), "too-short");
        assert_eq!(visit_text(MinBytes(0), "a", " \n").reason(), "too-short");
    }
}
