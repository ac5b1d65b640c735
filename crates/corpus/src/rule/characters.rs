//! Share of letters and digits (Unicode) among all characters, white space included: ASCII art, tables of
//! punctuation, encoded data with padding.

use bessemer_dataflow::Result;
use bessemer_documents::{Document, DocumentPass, Scratch, Verdict};

/// Drops documents below this share.
pub(super) struct Alphanumeric(pub(super) f64);

impl DocumentPass for Alphanumeric {
    fn name(&self) -> &str {
        "alphanumeric"
    }

    fn visit(&self, document: &mut Document<'_>, _: &mut Scratch) -> Result<Verdict> {
        let (mut good, mut all) = (0u64, 0u64);
        if document.text().is_ascii() {
            all = document.text().len() as u64;
            good = document.text().bytes().map(|byte| u64::from(byte.is_ascii_alphanumeric())).sum();
        } else {
            for character in document.text().chars() {
                all += 1;
                good += u64::from(character.is_alphanumeric());
            }
        }
        let share = good as f64 / all.max(1) as f64;
        if all > 0 && share < self.0 {
            let detail = format!("{share:.3} of the characters are letters or digits, at least {}", self.0);
            return Ok(Verdict::drop("low-alphanumeric", detail));
        }
        Ok(Verdict::Keep)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rule::tests::visit_text;

    #[test]
    fn the_limit_is_inclusive_in_ascii_and_beyond() {
        let kept = |text| visit_text(Alphanumeric(0.25), "a", text).dropped.is_none();
        assert!(kept("a..."));
        assert!(!kept("a...."));
        assert!(kept("é……·"));
        assert!(!kept("é……··"));
        assert!(kept(""));
    }
}
