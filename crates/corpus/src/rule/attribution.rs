//! Lines that name authors and copyright holders.
//!
//! Removed are comment lines of code, and lines of prose, that begin (behind comment and list marks) with one of
//! the words of [`START`] followed by a name, and `authors = […]` lines of manifests quoted in documentation.
//! In Markdown, the section under a heading that reads "Authors", "Contributors", "Maintainers" or "Credits" is
//! removed up to the next heading. Names elsewhere in a text are not found: that needs a language model.

use super::Kind;
use bessemer_dataflow::Result;
use bessemer_documents::{Document, DocumentPass, LINES, Scratch, Verdict};
use regex::Regex;

/// What begins a line that names people: an author mark with a colon, a copyright sign with a year or holder.
const START: &str = r"(?ix) ^\s* (?: //[/!]? | /?\*+!? | \#+ | --+ | ;+ | <!-- | [-*] | > )* \s*
    (?: @?(?: authors? | maintainers? | contributors? ) \s* [:=] \s* \S
      | @author \s+ \S
      | (?: written | created | developed | contributed | maintained ) \s+ by \s* :? \s+ (?-i: \p{Lu} | @ )
      | (?: \(c\) | © | copyright ) \s* (?: :|\(c\)|©|\d{4}|by\b|\s|,|-|–)* \s* \S .* (?: \d{4} | \(c\) | © | reserved | contributors | authors | developers )
      | (?: \(c\) | © | copyright ) \s* (?: \(c\) | © )? \s* \d{4}
    )";

/// Headings whose section lists people.
const HEADING: &str = r"(?i)^#{1,6}\s*(?:authors?|contributors?|maintainers?|credits|authors? (?:and|&) (?:contributors|maintainers))\s*:?\s*#*\s*$";

/// The rule.
pub(super) struct AttributionLines {
    start: Regex,
    heading: Regex,
}

impl AttributionLines {
    pub(super) fn new() -> Self {
        AttributionLines {
            start: Regex::new(START).expect("the pattern is a constant and compiles"),
            heading: Regex::new(HEADING).expect("the pattern is a constant and compiles"),
        }
    }
}

/// Whether a line of code is within a comment, recognised by how it begins.
fn is_comment(line: &str) -> bool {
    let line = line.trim_start();
    ["//", "/*", "*", "#", "--", ";", "<!--"].iter().any(|mark| line.starts_with(mark))
        && !line.starts_with("#[")
        && !line.starts_with("#!")
        && !line.starts_with("#define")
}

/// Cheap test before the pattern: one of its words.
fn may_name_people(text: &str) -> bool {
    const WORDS: &[&str] = &["author", "copyright", "©", "maintain", "contribut", "credits", "(c)"];
    const MORE: &[&str] = &["written by", "created by", "developed by"];
    let lower = text.to_ascii_lowercase();
    WORDS.iter().chain(MORE).any(|word| lower.contains(word))
}

impl DocumentPass for AttributionLines {
    fn name(&self) -> &str {
        "attribution-lines"
    }

    fn visit(&self, document: &mut Document<'_>, _: &mut Scratch) -> Result<Verdict> {
        if !may_name_people(document.text()) {
            return Ok(Verdict::Keep);
        }
        let kind = Kind::of(document);
        let is_markdown = document.path().ends_with(".md");
        let mut text = String::with_capacity(document.text().len());
        let mut lines = 0;
        let mut in_section = false;
        let mut in_fence = false;
        for line in document.text().split_inclusive('\n') {
            if is_markdown {
                let trimmed = line.trim_start();
                if trimmed.starts_with("```") || trimmed.starts_with("~~~") {
                    in_fence = !in_fence;
                }
                if !in_fence && line.starts_with('#') {
                    in_section = self.heading.is_match(line.trim_end());
                }
            }
            let checked = kind == Kind::Prose || is_comment(line);
            let names =
                in_section || (checked && may_name_people(line) && self.start.is_match(line.trim_end()));
            // A comment that opens or closes a block on this line must keep its mark.
            let opens = kind == Kind::Code && line.contains("/*") != line.contains("*/");
            if names && !opens {
                lines += 1;
            } else {
                text.push_str(line);
            }
        }
        if lines > 0 {
            document.set_text(text);
            document.edits_mut().add(LINES, lines);
        }
        Ok(Verdict::Keep)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rule::tests::visit_text;

    fn strip(path: &str, text: &str) -> String {
        visit_text(AttributionLines::new(), path, text).text
    }

    #[test]
    fn lines_that_name_people_go() {
        for line in [
            "// Author: Jane Doe\n",
            "//! Copyright (c) 2014 Jane Doe\n",
            " * @author Jane Doe\n",
            "/// Written by Jane Doe\n",
            "// Copyright 2012-2014 The Rust Project Developers. See the COPYRIGHT\n",
            "// © 2020 Jane Doe\n",
        ] {
            assert_eq!(
                strip("a.rs", &format!("fn a() {{}}\n{line}fn b() {{}}\n")),
                "fn a() {}\nfn b() {}\n",
                "{line}"
            );
        }
        assert_eq!(strip("a.md", "x\nauthors = [\"Jane Doe\"]\ny\n"), "x\ny\n");
        assert_eq!(strip("a.md", "# A\nx\n## Authors\n- Jane Doe\n\n## Use\ny\n"), "# A\nx\n## Use\ny\n");
        assert_eq!(strip("a.md", "Copyright 2020 Jane Doe\nx\n"), "x\n");
    }

    #[test]
    fn code_and_talk_about_authors_stay() {
        for text in [
            "let author: String = name();\n",
            "// The author of a commit is kept.\n",
            "/// Created by the `select()` function.\n",
            "/* Author: x\n*/\n",
            "pub struct Contributors { pub maintainers: Vec<String> }\n",
            "// copyright notices are parsed below\n",
            "#define AUTHOR: 1\n",
        ] {
            assert_eq!(strip("a.rs", text), text);
        }
        let fence = "# A\n```\n# Authors\nx\n```\n";
        assert_eq!(strip("a.md", fence), fence);
    }
}
