//! The licence text at the head of a code file.
//!
//! The first block of comment lines is removed when it speaks of copyright or a licence, up to the blank line or
//! code that ends it. It names people and repeats in every file; the attribution file keeps the licence itself.
//! Documentation comments of Rust (`//!`, `///`) are never touched.

use super::Kind;
use bessemer_dataflow::Result;
use bessemer_documents::{Document, DocumentPass, LINES, Scratch, Verdict};

/// The rule.
pub(super) struct LicenceHeader;

/// Lower-case phrases that only licence headers hold.
const PHRASES: &[&str] = &[
    "copyright",
    "spdx-license-identifier",
    "licensed under",
    "licensed to the",
    "license, version",
    "permission is hereby granted",
    "all rights reserved",
    "licence",
    "license",
];

/// Bytes of the head comment, if the text begins with one: lines of `//` or `#`, or one `/* … */`.
fn head_comment(text: &str) -> Option<usize> {
    let start = text.len() - text.trim_start().len();
    let body = &text[start..];
    if body.starts_with("/*") && !body.starts_with("/**/") && !body.starts_with("/*!") {
        let end = start + body.find("*/")? + 2;
        // Something behind the comment on its last line is code and keeps the comment.
        let rest = text[end..].split('\n').next().unwrap_or("");
        return rest.trim().is_empty().then(|| (end + rest.len() + 1).min(text.len()));
    }
    let mut end = start;
    for line in body.split_inclusive('\n') {
        let plain = line.trim();
        let is_rust_doc =
            plain.starts_with("//!") || (plain.starts_with("///") && !plain.starts_with("////"));
        let is_comment = (plain.starts_with("//") && !is_rust_doc)
            || (plain.starts_with('#') && !plain.starts_with("#!") && !plain.starts_with("#["))
                && (plain.len() == 1 || plain[1..].starts_with([' ', '#', '\t']));
        if !is_comment {
            break;
        }
        end += line.len();
    }
    (end > start).then_some(end)
}

impl DocumentPass for LicenceHeader {
    fn name(&self) -> &str {
        "licence-header"
    }

    fn visit(&self, document: &mut Document<'_>, _: &mut Scratch) -> Result<Verdict> {
        if Kind::of(document) != Kind::Code {
            return Ok(Verdict::Keep);
        }
        let mut rest: &str = document.text();
        let mut lines = 0;
        // Two blocks at most: a copyright block and the licence behind it.
        for _ in 0..2 {
            let Some(end) = head_comment(rest) else { break };
            let lower = rest[..end].to_ascii_lowercase();
            if !PHRASES.iter().any(|phrase| lower.contains(phrase)) {
                break;
            }
            lines += rest[..end].lines().count() as u64;
            rest = rest[end..].trim_start_matches(['\n', '\r']);
        }
        if lines == 0 {
            return Ok(Verdict::Keep);
        }
        let rest = rest.to_string();
        document.set_text(rest);
        document.edits_mut().add(LINES, lines);
        Ok(Verdict::Keep)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rule::tests::visit_text;

    fn strip(path: &str, text: &str) -> String {
        visit_text(LicenceHeader, path, text).text
    }

    #[test]
    fn headers_go_and_documentation_stays() {
        assert_eq!(
            strip("a.rs", "// Copyright 2020 Jane Doe\n// MIT\n\n//! Docs.\nfn f() {}\n"),
            "//! Docs.\nfn f() {}\n"
        );
        assert_eq!(strip("a.c", "/*\n * Licensed under X\n */\nint x;\n"), "int x;\n");
        assert_eq!(strip("a.py", "#!/bin/sh\n# Copyright\nx\n"), "#!/bin/sh\n# Copyright\nx\n");
        assert_eq!(strip("a.py", "# Copyright\nx\n"), "x\n");
        assert_eq!(strip("a.rs", "// Plain remark\nfn f() {}\n"), "// Plain remark\nfn f() {}\n");
        assert_eq!(
            strip("a.rs", "//! Copyright notices are parsed here.\n"),
            "//! Copyright notices are parsed here.\n"
        );
        assert_eq!(strip("a.rs", "#[license]\nfn f() {}\n"), "#[license]\nfn f() {}\n");
        assert_eq!(strip("a.c", "/* license */ int x;\n"), "/* license */ int x;\n");
        assert_eq!(strip("a.c", "/* unclosed license"), "/* unclosed license");
        assert_eq!(strip("a.md", "# License\nMIT\n"), "# License\nMIT\n");
        assert_eq!(strip("a.rs", "// Copyright\n"), "");
        assert_eq!(strip("a.c", "/* c */\n\n/* license */\nint x;"), "/* c */\n\n/* license */\nint x;");
    }
}
