//! Longest and mean line, in characters without the line end: minified code, data in one line.

use super::Kind;
use bessemer_corpus_config::Scope;
use bessemer_dataflow::Result;
use bessemer_documents::{Document, DocumentPass, Scratch, Verdict};

/// The rule.
pub(super) struct LineLength {
    pub(super) scope: Scope,
    pub(super) max: u64,
    pub(super) max_mean: f64,
}

impl DocumentPass for LineLength {
    fn name(&self) -> &str {
        "line-length"
    }

    fn visit(&self, document: &mut Document<'_>, _: &mut Scratch) -> Result<Verdict> {
        let checked = match self.scope {
            Scope::All => true,
            Scope::Code => Kind::of(document) == Kind::Code,
            Scope::None => false,
        };
        if !checked {
            return Ok(Verdict::Keep);
        }
        let (mut lines, mut chars) = (0u64, 0u64);
        for line in document.text().lines() {
            // A line of n bytes has at most n characters: only long ones are counted exactly.
            let length = if line.is_ascii() { line.len() } else { line.chars().count() } as u64;
            lines += 1;
            chars += length;
            if length > self.max {
                let detail = format!("line {lines} has {length} characters, at most {}", self.max);
                return Ok(Verdict::drop("long-line", detail));
            }
        }
        let mean = chars as f64 / lines.max(1) as f64;
        if mean > self.max_mean {
            let detail = format!("mean line of {mean:.1} characters, at most {}", self.max_mean);
            return Ok(Verdict::drop("long-mean-line", detail));
        }
        Ok(Verdict::Keep)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rule::tests::visit_text;

    fn reason(scope: Scope, path: &str, text: &str) -> String {
        visit_text(LineLength { scope, max: 10, max_mean: 5.0 }, path, text).reason().to_string()
    }

    #[test]
    fn limits_are_inclusive_and_count_characters() {
        assert_eq!(reason(Scope::Code, "a.rs", "0123456789\n\n"), "");
        assert_eq!(reason(Scope::Code, "a.rs", "0123456789a\n\n\n\n"), "long-line");
        assert_eq!(reason(Scope::Code, "a.rs", "éééééééééé\r\n\r\n"), "");
        assert_eq!(reason(Scope::Code, "a.rs", "012345\n012345\n"), "long-mean-line");
        assert_eq!(reason(Scope::Code, "a.md", "0123456789a"), "");
        assert_eq!(reason(Scope::All, "a.md", "0123456789a"), "long-line");
        assert_eq!(reason(Scope::None, "a.rs", "0123456789a"), "");
        assert_eq!(reason(Scope::All, "a.rs", ""), "");
    }
}
