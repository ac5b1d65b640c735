//! Longest and mean line, in characters without the line end: minified code, data in one line.

use super::{Document, Kind, Rule, Verdict};
use crate::config::Scope;

/// The rule.
pub(super) struct LineLength {
    pub(super) scope: Scope,
    pub(super) max: u64,
    pub(super) max_mean: f64,
}

impl Rule for LineLength {
    fn name(&self) -> &'static str {
        "line-length"
    }

    fn judge(&self, document: &Document<'_>) -> Verdict {
        let judged = match self.scope {
            Scope::All => true,
            Scope::Code => document.kind == Kind::Code,
            Scope::None => false,
        };
        if !judged {
            return Verdict::Keep;
        }
        let (mut lines, mut chars) = (0u64, 0u64);
        for line in document.text.lines() {
            // A line of n bytes has at most n characters: only long ones are counted exactly.
            let length = if line.is_ascii() { line.len() } else { line.chars().count() } as u64;
            lines += 1;
            chars += length;
            if length > self.max {
                let detail = format!("line {lines} has {length} characters, at most {}", self.max);
                return Verdict::Drop { reason: "long-line", detail };
            }
        }
        let mean = chars as f64 / lines.max(1) as f64;
        if mean > self.max_mean {
            let detail = format!("mean line of {mean:.1} characters, at most {}", self.max_mean);
            return Verdict::Drop { reason: "long-mean-line", detail };
        }
        Verdict::Keep
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rule::document;

    fn reason(scope: Scope, path: &str, text: &str) -> &'static str {
        match (LineLength { scope, max: 10, max_mean: 5.0 }).judge(&document(path, text)) {
            Verdict::Drop { reason, .. } => reason,
            _ => "kept",
        }
    }

    #[test]
    fn limits_are_inclusive_and_count_characters() {
        assert_eq!(reason(Scope::Code, "a.rs", "0123456789\n\n"), "kept");
        assert_eq!(reason(Scope::Code, "a.rs", "0123456789a\n\n\n\n"), "long-line");
        assert_eq!(reason(Scope::Code, "a.rs", "éééééééééé\r\n\r\n"), "kept");
        assert_eq!(reason(Scope::Code, "a.rs", "012345\n012345\n"), "long-mean-line");
        assert_eq!(reason(Scope::Code, "a.md", "0123456789a"), "kept");
        assert_eq!(reason(Scope::All, "a.md", "0123456789a"), "long-line");
        assert_eq!(reason(Scope::None, "a.rs", "0123456789a"), "kept");
        assert_eq!(reason(Scope::All, "a.rs", ""), "kept");
    }
}
