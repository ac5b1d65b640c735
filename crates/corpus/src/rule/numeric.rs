//! Tables of numbers written as code: Unicode tables, test vectors, cryptographic constants.
//!
//! Share of the characters that belong to numeric literals among all that are not blank. A literal begins with
//! an ASCII digit that no letter, digit or underscore precedes, and runs to the next character other than
//! those (`0xFF_u8`, `1.5e3` counts as `1` and `5e3`). Hand-written code lies below 10 %, tables above 40 %.

use super::Kind;
use bessemer_dataflow::Result;
use bessemer_documents::{Document, DocumentPass, Scratch, Verdict};

/// Drops code above this share.
pub(super) struct NumericTable(pub(super) f64);

/// (characters in numeric literals, characters that are not blank), as ASCII bytes and non-ASCII bytes alike.
fn numeric_share(text: &str) -> f64 {
    let (mut numeric, mut visible) = (0u64, 0u64);
    let (mut in_word, mut in_number) = (false, false);
    for byte in text.bytes() {
        if byte.is_ascii_whitespace() {
            in_word = false;
            continue;
        }
        visible += 1;
        let word = byte.is_ascii_alphanumeric() || byte == b'_' || byte >= 0x80;
        if word {
            if !in_word {
                in_number = byte.is_ascii_digit();
            }
            numeric += u64::from(in_number);
        }
        in_word = word;
    }
    if visible == 0 { 0.0 } else { numeric as f64 / visible as f64 }
}

impl DocumentPass for NumericTable {
    fn name(&self) -> &str {
        "numeric-table"
    }

    fn visit(&self, document: &mut Document<'_>, _: &mut Scratch) -> Result<Verdict> {
        if Kind::of(document) != Kind::Code {
            return Ok(Verdict::Keep);
        }
        let share = numeric_share(document.text());
        if share > self.0 {
            let detail = format!("{:.3} of the characters are numeric literals, at most {}", share, self.0);
            return Ok(Verdict::drop("numeric-table", detail));
        }
        Ok(Verdict::Keep)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rule::tests::visit_text;

    #[test]
    fn tables_are_told_from_code() {
        assert_eq!(numeric_share("12 ab"), 0.5);
        assert_eq!(numeric_share("a12 x_1"), 0.0);
        assert_eq!(numeric_share(""), 0.0);
        let table = "0x1f, 0x2e, 0x3d, 0x4c,\n".repeat(50);
        let reason = |path, text| visit_text(NumericTable(0.4), path, text).reason().to_string();
        assert_eq!(reason("t.rs", &table), "numeric-table");
        assert_eq!(reason("t.md", &table), "");
        let code = "for i in 0..10 { sum += values[i] * 2; }\n".repeat(50);
        assert_eq!(reason("t.rs", &code), "");
    }
}
