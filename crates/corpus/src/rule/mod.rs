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
pub(crate) use profiles::{BatchRow, Profiles};

use crate::config::{CorpusConfig, Scope};
use arrow_array::builder::StringBuilder;
use arrow_array::{ArrayRef, RecordBatch, UInt32Array};
use arrow_schema::{DataType, Field};
use bessemer_dataflow::{BatchMap, optional, with_columns};
use bessemer_documents::{Rows, head};
use std::borrow::Cow;
use std::ops::AddAssign;
use std::sync::Arc;

/// What a document is written in, told from its path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A programming language.
    Code,
    /// Anything else.
    Prose,
}

impl Kind {
    /// Extensions of the languages to which the code rules apply.
    pub const CODE: &[&str] = &[
        "rs", "c", "h", "cc", "cpp", "cxx", "hh", "hpp", "hxx", "cu", "cuh", "py", "pyi", "js", "mjs", "ts",
        "tsx", "jsx", "java", "kt", "scala", "go", "rb", "php", "swift", "cs", "fs", "hs", "ml", "mli",
        "lua", "pl", "pm", "sh", "bash", "zsh", "jl", "r", "zig", "nim", "d", "f90", "asm", "s", "sql",
        "proto", "el", "clj", "ex", "exs", "erl", "dart", "v", "sv", "vhd", "cmake",
    ];

    /// Told by the extension.
    pub fn of(path: &str) -> Kind {
        let extension = path.rsplit_once('.').map_or("", |(_, extension)| extension);
        if Self::CODE.iter().any(|code| extension.eq_ignore_ascii_case(code)) {
            Kind::Code
        } else {
            Kind::Prose
        }
    }
}

/// A document as a rule sees it.
#[derive(Debug, Clone)]
pub struct Document<'a> {
    /// Path below its source.
    pub path: &'a str,
    /// Code or prose.
    pub kind: Kind,
    /// The text, with the edits of earlier rules.
    pub text: Cow<'a, str>,
}

/// How many edits were made.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Edits {
    /// E-mail addresses replaced.
    pub emails: u32,
    /// IP addresses replaced.
    pub ips: u32,
    /// Lines removed.
    pub lines: u32,
    /// Phone, card and account numbers replaced.
    pub numbers: u32,
    /// Keys and tokens replaced.
    pub secrets: u32,
}

impl AddAssign for Edits {
    fn add_assign(&mut self, other: Edits) {
        self.emails += other.emails;
        self.ips += other.ips;
        self.lines += other.lines;
        self.numbers += other.numbers;
        self.secrets += other.secrets;
    }
}

/// What a rule says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// Unchanged.
    Keep,
    /// Kept with another text.
    Edit(String, Edits),
    /// Dropped.
    Drop {
        /// The reason, a fixed word that statistics count by.
        reason: &'static str,
        /// The measured value and the limit.
        detail: String,
    },
}

/// A rule on single documents.
pub trait Rule: Send + Sync {
    /// Its name.
    fn name(&self) -> &'static str;
    /// Its verdict. Must not depend on anything but the document and the rule's own configuration.
    fn judge(&self, document: &Document<'_>) -> Verdict;
}

/// The rules that a configuration asks for, in order.
pub fn chain(config: &CorpusConfig) -> Vec<Box<dyn Rule>> {
    let (clean, privacy) = (&config.clean, &config.privacy);
    let mut rules: Vec<Box<dyn Rule>> = Vec::new();
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
    rules.extend(scrub::passes(privacy).map(|rule| Box::new(rule) as Box<dyn Rule>));
    if clean.enabled {
        rules.push(Box::new(size::MinBytes(clean.min_bytes)));
    }
    rules
}

/// Result of a chain on one document.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Judged<'a> {
    /// The text after all edits that were made before a drop.
    pub text: Cow<'a, str>,
    /// Edits made.
    pub edits: Edits,
    /// Reason and detail of the drop, if any.
    pub dropped: Option<(&'static str, String)>,
}

/// Runs a document through the rules.
pub fn judge<'a>(rules: &[Box<dyn Rule>], path: &'a str, text: &'a str) -> Judged<'a> {
    let mut document = Document { path, kind: Kind::of(path), text: Cow::Borrowed(text) };
    let mut edits = Edits::default();
    for rule in rules {
        match rule.judge(&document) {
            Verdict::Keep => {}
            Verdict::Edit(text, made) => {
                document.text = Cow::Owned(text);
                edits += made;
            }
            Verdict::Drop { reason, detail } => {
                return Judged { text: document.text, edits, dropped: Some((reason, detail)) };
            }
        }
    }
    Judged { text: document.text, edits, dropped: None }
}

/// The chain as a map over batches.
pub(crate) struct Rules {
    chain: Vec<Box<dyn Rule>>,
    /// Whether rows get the columns `numbers` and `secrets`.
    finds: bool,
}

impl Rules {
    /// The rules that a configuration asks for.
    pub(crate) fn new(config: &CorpusConfig) -> Rules {
        Rules { chain: chain(config), finds: config.privacy.finds() }
    }
}

impl BatchMap for Rules {
    fn name(&self) -> &str {
        "rules"
    }

    fn apply(&self, batch: RecordBatch) -> bessemer_dataflow::Result<RecordBatch> {
        let rows = Rows::of(self.name(), &batch)?;
        let count = batch.num_rows();
        let mut texts = StringBuilder::with_capacity(count, rows.text.value_data().len());
        let (mut reasons, mut details) = (StringBuilder::new(), StringBuilder::new());
        let mut edits: [Vec<u32>; 5] = Default::default();
        for index in 0..count {
            let text = rows.text.value(index);
            let mut made = Edits {
                emails: rows.emails.value(index),
                ips: rows.ips.value(index),
                lines: rows.lines.value(index),
                ..Edits::default()
            };
            if let Some(reason) = optional(rows.reason, index) {
                reasons.append_value(reason);
                details.append_option(optional(rows.detail, index));
                texts.append_value(text);
            } else {
                let judged = judge(&self.chain, rows.path.value(index), text);
                match judged.dropped {
                    None => {
                        reasons.append_null();
                        details.append_null();
                        texts.append_value(&judged.text);
                        made += judged.edits;
                    }
                    Some((reason, detail)) => {
                        reasons.append_value(reason);
                        details.append_value(detail);
                        texts.append_value(head(&judged.text));
                    }
                }
            }
            edits[0].push(made.emails);
            edits[1].push(made.ips);
            edits[2].push(made.lines);
            edits[3].push(made.numbers);
            edits[4].push(made.secrets);
        }
        let edits = edits.map(|counts| Arc::new(UInt32Array::from(counts)) as ArrayRef);
        let [emails, ips, lines, numbers, secrets] = edits;
        let count = |name: &str, counts: ArrayRef| (Field::new(name, DataType::UInt32, false), counts);
        let mut columns: Vec<(Field, ArrayRef)> = vec![
            (Field::new("reason", DataType::Utf8, true), Arc::new(reasons.finish())),
            (Field::new("detail", DataType::Utf8, true), Arc::new(details.finish())),
            count("emails", emails),
            count("ips", ips),
            count("lines", lines),
            (Field::new("text", DataType::Utf8, false), Arc::new(texts.finish())),
        ];
        if self.finds {
            columns.extend([count("numbers", numbers), count("secrets", secrets)]);
        }
        with_columns(&batch, columns)
    }
}

#[cfg(test)]
pub(crate) fn document<'a>(path: &'a str, text: &'a str) -> Document<'a> {
    Document { path, kind: Kind::of(path), text: Cow::Borrowed(text) }
}
