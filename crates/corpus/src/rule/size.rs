//! Limits on the bytes of a text: too large before any other rule, too short after all edits.

use super::{Document, Rule, Verdict};

/// Drops documents whose text has more bytes. What a source stores for a document may be larger: a page's markup, other fields.
pub(super) struct MaxBytes(pub(super) u64);

impl Rule for MaxBytes {
    fn name(&self) -> &'static str {
        "max-bytes"
    }

    fn judge(&self, document: &Document<'_>) -> Verdict {
        let bytes = document.text.len() as u64;
        if bytes > self.0 {
            Verdict::Drop { reason: "too-large", detail: format!("{bytes} bytes, at most {}", self.0) }
        } else {
            Verdict::Keep
        }
    }
}

/// Drops documents of fewer bytes; white space at the ends does not count.
pub(super) struct MinBytes(pub(super) u64);

impl Rule for MinBytes {
    fn name(&self) -> &'static str {
        "min-bytes"
    }

    fn judge(&self, document: &Document<'_>) -> Verdict {
        let bytes = document.text.trim().len() as u64;
        if bytes < self.0 || bytes == 0 {
            Verdict::Drop {
                reason: "too-short",
                detail: format!("{bytes} bytes, at least {}", self.0.max(1)),
            }
        } else {
            Verdict::Keep
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rule::document;

    #[test]
    fn limits_are_inclusive_and_blank_ends_do_not_count() {
        assert_eq!(MaxBytes(3).judge(&document("a", "abc")), Verdict::Keep);
        assert!(matches!(
            MaxBytes(2).judge(&document("a", "abc")),
            Verdict::Drop { reason: "too-large", .. }
        ));
        assert_eq!(MinBytes(3).judge(&document("a", " abc\n")), Verdict::Keep);
        assert!(matches!(
            MinBytes(4).judge(&document("a", " abc\n")),
            Verdict::Drop { reason: "too-short", .. }
        ));
        assert!(matches!(
            MinBytes(0).judge(&document("a", " \n")),
            Verdict::Drop { reason: "too-short", .. }
        ));
    }
}
