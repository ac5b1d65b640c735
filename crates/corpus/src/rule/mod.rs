//! Rules: each looks at one document and keeps, edits or drops it. One rule a file.
//!
//! The chain runs in the order of [`chain`]; the first rule that drops gives the reason. Line and character
//! rules follow the code filters of RedPajama v1 and StarCoder (longest line 1000, mean line 100, letters and
//! digits 25 %).

mod attribution;
mod characters;
mod decode;
mod decontaminate;
mod generated;
mod licence_header;
mod lines;
mod numeric;
mod profiles;
mod scrub;
mod size;
pub(crate) mod urls;

pub(crate) use decode::{Decode, is_binary};
pub(crate) use decontaminate::{CONTAMINATED, Decontaminate};
pub(crate) use profiles::{DocumentRow, Profiles};

use bessemer_corpus_config::{CorpusConfig, Scope};
use bessemer_documents::{Document, DocumentPass};

/// Code or prose, decided by the path of a document.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A programming language.
    Code,
    /// Anything else.
    Prose,
}

impl Kind {
    /// Extensions of the languages to which the code rules apply.
    pub(crate) const CODE: &[&str] = &[
        "rs", "c", "h", "cc", "cpp", "cxx", "hh", "hpp", "hxx", "cu", "cuh", "py", "pyi", "js", "mjs", "ts",
        "tsx", "jsx", "java", "kt", "scala", "go", "rb", "php", "swift", "cs", "fs", "hs", "ml", "mli",
        "lua", "pl", "pm", "sh", "bash", "zsh", "jl", "r", "zig", "nim", "d", "f90", "asm", "s", "sql",
        "proto", "el", "clj", "ex", "exs", "erl", "dart", "v", "sv", "vhd", "cmake",
    ];

    /// Decides by the extension of the document's path.
    pub(crate) fn of(document: &Document<'_>) -> Kind {
        Kind::of_path(document.path())
    }

    /// Decides by the extension of a path.
    pub(crate) fn of_path(path: &str) -> Kind {
        let extension = path.rsplit_once('.').map_or("", |(_, extension)| extension);
        if Self::CODE.iter().any(|code| extension.eq_ignore_ascii_case(code)) {
            Kind::Code
        } else {
            Kind::Prose
        }
    }
}

/// The rules that a configuration asks for, in order.
pub(crate) fn chain(config: &CorpusConfig) -> Vec<Box<dyn DocumentPass>> {
    let (clean, privacy) = (&config.clean, &config.privacy);
    let mut rules: Vec<Box<dyn DocumentPass>> = Vec::new();
    if clean.enabled {
        rules.push(Box::new(size::MaxBytes(clean.max_bytes)));
        if clean.drop_generated {
            rules.push(Box::new(generated::Generated::new()));
        }
        if clean.max_numeric_share < 1.0 {
            rules.push(Box::new(numeric::NumericTable(clean.max_numeric_share)));
        }
        if clean.line_rules != Scope::None {
            rules.push(Box::new(lines::LineLength {
                scope: clean.line_rules,
                max: clean.max_line_chars,
                max_mean: clean.max_mean_line_chars,
            }));
        }
        if clean.min_alphanumeric_share > 0.0 {
            rules.push(Box::new(characters::Alphanumeric(clean.min_alphanumeric_share)));
        }
    }
    if privacy.attribution_lines {
        rules.push(Box::new(licence_header::LicenceHeader));
        rules.push(Box::new(attribution::AttributionLines::new()));
    }
    rules.extend(scrub::passes(privacy).map(|rule| Box::new(rule) as Box<dyn DocumentPass>));
    if clean.enabled {
        rules.push(Box::new(size::MinBytes(clean.min_bytes)));
    }
    rules
}

#[cfg(test)]
pub(crate) mod tests {
    use arrow_array::StringArray;
    use bessemer_dataflow::{BatchMap, column, optional};
    use bessemer_documents::{DocumentPass, DocumentPasses, Edits, Origin, RowBuilder, Rows};

    /// Result of a rule on a document.
    #[derive(Debug, PartialEq, Eq)]
    pub(crate) struct Visited {
        /// Why it was dropped, and the detail.
        pub(crate) dropped: Option<(String, String)>,
        pub(crate) text: String,
        pub(crate) edits: Edits,
    }

    impl Visited {
        /// The reason; empty for a document that was kept.
        pub(crate) fn reason(&self) -> &str {
            self.dropped.as_ref().map_or("", |(reason, _)| reason)
        }
    }

    /// Runs a decoder and these rules on one document.
    pub(crate) fn visit(rules: Vec<Box<dyn DocumentPass>>, path: &str, text: &[u8]) -> Visited {
        let mut builder = RowBuilder::default();
        builder.push(&Origin { path, ..Origin::default() }, text);
        let batch = DocumentPasses::new(rules, &[]).apply(builder.finish().unwrap()).unwrap();
        let rows = Rows::of("test", &batch).unwrap();
        let details: &StringArray = column("test", &batch, "detail").unwrap();
        let dropped = optional(rows.reason, 0).map(|reason| (reason.into(), details.value(0).into()));
        Visited { dropped, text: rows.text.value(0).into(), edits: rows.edits.get(0) }
    }

    /// Runs one rule on one text.
    pub(crate) fn visit_text(rule: impl DocumentPass + 'static, path: &str, text: &str) -> Visited {
        let decode = super::Decode::of(bessemer_corpus_config::InvalidUtf8::Drop, Default::default(), false);
        visit(vec![Box::new(decode), Box::new(rule)], path, text.as_bytes())
    }
}
