//! The keys of `[corpus]`. Every doc comment below is printed to users as the key's documentation.

use crate::dialogue::DialogueConfig;
use crate::evaluate::EvaluateConfig;
use crate::mix::{MixConfig, SourceConfig};
use crate::source::Access;
use bessemer_dedup::DedupConfig;
use bessemer_privacy::decontaminate::DecontaminateConfig;
use bessemer_privacy::{PhoneRule, PrivacyRules};
use bessemer_rules::RulesConfig;
use bessemer_score::ScoresConfig;
use bessemer_web::url::UrlFilterConfig;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// Where the text comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum SourceKind {
    /// `path` if it is set (its kind is told from what is there), else the dependency sources that cargo
    /// lists in the current directory, else, with a warning, the embedded corpus. Every other kind is read or is an error.
    #[default]
    Auto,
    /// Sources and documentation of the normal and build dependencies of the Cargo workspace in `path` (default: the
    /// current directory), as its default members use them on this machine's target.
    Cargo,
    /// Every text and code file under the folder `path`, plain or compressed (.gz, .zst, .bz2, .xz); of web pages the main text.
    Folder,
    /// JSON lines: the file `path`, or every .jsonl, plain, .gz, .zst, .bz2 or .xz, below the folder `path`.
    Jsonl,
    /// Parquet: the file `path`, or every .parquet below the folder `path`.
    Parquet,
    /// Archives of the web: the file `path`, or every .warc and .wet, plain, .gz or .zst, below the folder `path`; a
    /// document is the main text of a page.
    Warc,
    /// Saved pages: the file `path`, or every .html, .htm and .xhtml below the folder `path`; a document is the main text of
    /// a page.
    Html,
    /// Papers: the file `path`, or every LaTeX source (.tex), article in JATS XML (.nxml, .xml) and archive of these (.tar, .tgz, .gz)
    /// below the folder `path`.
    Papers,
    /// Dumps of MediaWiki (`pages-articles.xml`), plain or compressed: the file `path`, or every .xml below the folder `path`; a
    /// document is an article.
    Wikipedia,
    /// Unpacked dumps of Stack Exchange: the file `path`, or every `Posts.xml` below the folder `path`; a document is a question with
    /// its best answers.
    StackExchange,
    /// One text file, kept byte for byte and cut into train and validation by position.
    File,
    /// The small corpus that the program carries: its own sources and synthetic tasks.
    Embedded,
}

/// What to do with bytes that are not UTF-8.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum InvalidUtf8 {
    /// Files of a `folder` are decoded if they are in a legacy encoding or UTF-16, which is told as browsers tell it; other
    /// documents are dropped.
    #[default]
    Detect,
    /// Drop the document.
    Drop,
    /// Replace each invalid sequence by U+FFFD.
    Repair,
}

/// Which documents the line rules judge.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Scope {
    /// Code files, told by extension.
    #[default]
    Code,
    /// Every document.
    All,
    /// No document.
    None,
}

/// What the split into train and validation follows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum SplitBy {
    /// By source where that puts at least one source on each side and holds out no more than twice the bytes that were asked
    /// for, else by document.
    #[default]
    Auto,
    /// All documents of one source (one crate in all its versions, one top folder, one file) on one side.
    Source,
    /// Each document by itself.
    Document,
}

/// `[corpus]`: which text, cleaned how.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct CorpusConfig {
    /// Where the text comes from: auto, cargo, folder, jsonl, parquet, warc, html, papers, wikipedia, stack-exchange, file or embedded.
    pub source: SourceKind,
    /// The file or folder to read, or with the feature `remote` an address: `s3://BUCKET/PREFIX`, `gs://…`, `az://…`, or the
    /// `https://` address of a file; empty means the current directory for `cargo` and nothing for the others.
    pub path: String,
    /// Several sources instead of `source` and `path`, each a table `[[corpus.sources]]` with `name`, `source`, `path`, and what
    /// training takes of it: `weight`, `epochs`, `slices` (docs/data.md). All other keys here hold for every one.
    pub sources: Vec<SourceConfig>,
    /// How training mixes them.
    pub mix: MixConfig,
    /// Name of the JSON field or Parquet column that holds the text. A JSON field may hold the turns of a chat instead; without such a
    /// field, `messages` and `conversations` are read (`dialogue`).
    pub text: String,
    /// Name of the JSON field or Parquet column that holds a document's URL, where there is one.
    pub url: String,
    /// Name of the JSON field or Parquet column that says when a document was fetched, in ISO 8601, where there is one.
    pub date: String,
    /// How chats and threads become text.
    pub dialogue: DialogueConfig,
    /// Extensions to keep, without the dot; empty means rs, md, c, h for `cargo` and the built-in list of text
    /// and code extensions for `folder`. `["*"]` keeps every file.
    pub extensions: Vec<String>,
    /// Sub-folders and files to leave out, as paths relative to the source's root.
    pub exclude: Vec<String>,
    /// Follow symbolic links that lead out of the folder `path`. Links that stay below it are always followed.
    pub follow_links: bool,
    /// For `cargo`: include the packages of the workspace itself too.
    pub workspace_members: bool,
    /// For `cargo`: target triple whose dependencies are listed; empty means the host's.
    pub target: String,
    /// Memory of the stage, such as "512MiB" or "2GiB": what rows may take beyond it goes to disk. It does not change
    /// the corpus. The program itself needs about 100 MiB and 25 MiB a thread of it; where the threads do not fit, fewer
    /// work. "auto" is 512 MiB, or what the threads need if that is more.
    pub memory: String,
    /// Documents whose URL is listed are dropped, before their text is looked at; the others keep a column `url`. Documents
    /// without a URL pass.
    pub urls: UrlFilterConfig,
    /// Rules that drop or edit documents.
    pub clean: CleanConfig,
    /// Profiles of rules and predicates, before those of `clean`.
    pub rules: RulesConfig,
    /// Columns that are computed for every document: language, quality and others. Those that predicates of `rules` name
    /// come before these, of the text as it was read; the others of the text that is kept.
    pub scores: ScoresConfig,
    /// Similar and repeated documents, beyond the equal ones of `clean.exact_dedup`. Named methods write a column `copies`.
    pub dedup: DedupConfig,
    /// Removal of personal data.
    pub privacy: PrivacyConfig,
    /// Removal of what evaluation sets hold (`contaminated`), after all edits and before deduplication. Does not touch a single
    /// `file` source.
    pub decontaminate: DecontaminateConfig,
    /// A sample of what is kept, judged once more. It changes no document.
    pub evaluate: EvaluateConfig,
    /// Train and validation.
    pub split: SplitConfig,
    /// How object stores are reached. The program's, not the recipe's: it is never written down.
    #[serde(skip)]
    pub access: Access,
    /// Cargo's home folder, where downloaded crates are unpacked; empty if it is not known. The program's, not the recipe's:
    /// where crates lie does not change the corpus.
    #[serde(skip)]
    pub cargo_home: PathBuf,
}

impl Default for CorpusConfig {
    fn default() -> Self {
        CorpusConfig {
            source: SourceKind::Auto,
            path: String::new(),
            sources: Vec::new(),
            mix: MixConfig::default(),
            text: "text".into(),
            url: "url".into(),
            date: "date".into(),
            dialogue: DialogueConfig::default(),
            extensions: Vec::new(),
            exclude: Vec::new(),
            follow_links: false,
            workspace_members: false,
            target: String::new(),
            memory: "auto".into(),
            urls: UrlFilterConfig::default(),
            clean: CleanConfig::default(),
            rules: RulesConfig::default(),
            scores: ScoresConfig::default(),
            dedup: DedupConfig::default(),
            privacy: PrivacyConfig::default(),
            decontaminate: DecontaminateConfig::default(),
            evaluate: EvaluateConfig::default(),
            split: SplitConfig::default(),
            access: Access::default(),
            cargo_home: PathBuf::new(),
        }
    }
}

/// `[corpus.clean]`: which documents are kept. Each rule gives the reason under which it drops. The rules do not
/// touch a single `file` source, which is kept byte for byte.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct CleanConfig {
    /// Apply the rules below; `false` keeps every readable text.
    pub enabled: bool,
    /// Documents with fewer bytes, after edits, are dropped (`too-short`).
    pub min_bytes: u64,
    /// Documents whose text has more bytes are dropped (`too-large`) without being read whole. A web page may have 16 times as many with its markup.
    pub max_bytes: u64,
    /// Bytes that are not UTF-8: `detect` the encoding of a folder's files, `drop` the document or `repair` it.
    pub invalid_utf8: InvalidUtf8,
    /// Drop files whose first comment lines say that a program wrote them (`generated`).
    pub drop_generated: bool,
    /// Drop code whose non-blank characters are numeric literals to more than this share (`numeric-table`);
    /// 1 switches the rule off.
    pub max_numeric_share: f64,
    /// Documents that the line rules judge: `code`, `all` or `none`.
    pub line_rules: Scope,
    /// Longest allowed line in characters (`long-line`).
    pub max_line_chars: u64,
    /// Largest allowed mean line length in characters (`long-mean-line`).
    pub max_mean_line_chars: f64,
    /// Smallest allowed share of letters and digits among all characters (`low-alphanumeric`).
    pub min_alphanumeric_share: f64,
    /// Drop documents whose text, apart from white space at line ends and blank lines, was seen before
    /// (`duplicate`), across the splits too.
    pub exact_dedup: bool,
}

impl Default for CleanConfig {
    fn default() -> Self {
        CleanConfig {
            enabled: true,
            min_bytes: 100,
            max_bytes: 200_000,
            invalid_utf8: InvalidUtf8::Detect,
            drop_generated: true,
            max_numeric_share: 0.4,
            line_rules: Scope::Code,
            max_line_chars: 1000,
            max_mean_line_chars: 100.0,
            min_alphanumeric_share: 0.25,
            exact_dedup: true,
        }
    }
}

/// `[corpus.privacy]`: personal data. Does not touch a single `file` source.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct PrivacyConfig {
    /// Replace e-mail addresses.
    pub emails: bool,
    /// Replacements for e-mail addresses, used in turn within a document.
    pub email_replacements: Vec<String>,
    /// Replace IPv4 addresses that are reachable from the public internet.
    pub ips: bool,
    /// Replacements for IPv4 addresses, used in turn within a document.
    pub ip_replacements: Vec<String>,
    /// Remove lines that name authors and copyright holders, and licence headers of code files. The attribution
    /// file keeps each source's licence.
    pub attribution_lines: bool,
    /// Replace IPv6 addresses that are reachable from the public internet.
    pub ipv6: bool,
    /// Phone numbers to replace: off, dolma or international.
    pub phones: PhoneRule,
    /// Replace payment card numbers: an issuer's range, its length, and Luhn's check.
    pub cards: bool,
    /// Replace international bank account numbers: a country's length, and the check modulo 97.
    pub ibans: bool,
    /// Replace keys and tokens: those of known form, private keys, JSON web tokens, and random-looking values assigned to names such
    /// as api_key.
    pub secrets: bool,
    /// Documents with more finds of `ipv6`, `phones`, `cards`, `ibans` and `secrets` together than this are dropped
    /// (`personal-data`); 0 keeps all.
    pub drop_above: u32,
    /// Replacements for IPv6 addresses, used in turn within a document.
    pub ipv6_replacements: Vec<String>,
    /// Replacements for phone numbers.
    pub phone_replacements: Vec<String>,
    /// Replacements for card numbers.
    pub card_replacements: Vec<String>,
    /// Replacements for bank account numbers.
    pub iban_replacements: Vec<String>,
    /// Replacements for keys and tokens.
    pub secret_replacements: Vec<String>,
}

impl Default for PrivacyConfig {
    fn default() -> Self {
        // Addresses that RFC 2606 and RFC 5737 reserve for documentation: they read like the real thing, reach
        // nobody, and are not themselves replaced when a text is cleaned twice.
        let rules = PrivacyRules::default();
        PrivacyConfig {
            emails: true,
            email_replacements: vec!["email@example.com".into(), "firstname.lastname@example.org".into()],
            ips: true,
            ip_replacements: vec!["192.0.2.1".into(), "198.51.100.1".into(), "203.0.113.1".into()],
            attribution_lines: true,
            ipv6: false,
            phones: PhoneRule::Off,
            cards: false,
            ibans: false,
            secrets: false,
            drop_above: 0,
            ipv6_replacements: rules.ipv6_replacements,
            phone_replacements: rules.phone_replacements,
            card_replacements: rules.card_replacements,
            iban_replacements: rules.iban_replacements,
            secret_replacements: rules.secret_replacements,
        }
    }
}

/// `[corpus.split]`: which documents are held out.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct SplitConfig {
    /// Share held out for validation: of the sources or documents by a keyed hash of their names, or the last
    /// share of the characters of a single `file`. Above 0 at least one document, or the end of one, is held out.
    pub validation_fraction: f64,
    /// What the split follows: auto, source or document.
    pub by: SplitBy,
    /// Key of the hash: another seed gives another split.
    pub seed: u64,
    /// Sources that are validation whatever their hash says.
    pub validation: Vec<String>,
    /// Sources that are train whatever their hash says.
    pub train: Vec<String>,
}

impl Default for SplitConfig {
    fn default() -> Self {
        SplitConfig {
            validation_fraction: 0.1,
            by: SplitBy::Auto,
            seed: 0,
            validation: Vec::new(),
            train: Vec::new(),
        }
    }
}

fn in_range(key: &str, value: f64, low: f64, high: f64) -> Result<(), String> {
    if value.is_finite() && value >= low && value <= high {
        Ok(())
    } else {
        Err(format!("{key} = {value}: expected a number from {low} to {high}"))
    }
}

/// Memory of the stage where none is stated.
const AUTO_MEMORY: usize = 512 << 20;
/// What the program takes beside rows: its code, tables, and buffers of the files that it writes.
const PROGRAM_MEMORY: usize = 100 << 20;
/// What the batches of a thread take.
const THREAD_MEMORY: usize = 25 << 20;
/// Rows that stay in memory at least.
const LEAST_ROWS: usize = 16 << 20;
/// The smallest memory in which one thread can work.
const LEAST_MEMORY: usize = 144 << 20;

/// What the stages before training may use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StageBudget {
    /// Worker threads, at most as many as were offered.
    pub threads: usize,
    /// Bytes of rows to hold in memory.
    pub row_bytes: usize,
}

impl CorpusConfig {
    /// Bytes that `memory` states; none for "auto".
    ///
    /// # Errors
    /// The text is no size, or one in which no thread could work.
    pub fn memory_bytes(&self) -> Result<Option<usize>, String> {
        const UNITS: [(&str, u64); 8] = [
            ("KiB", 1 << 10),
            ("MiB", 1 << 20),
            ("GiB", 1 << 30),
            ("TiB", 1 << 40),
            ("kB", 1_000),
            ("MB", 1_000_000),
            ("GB", 1_000_000_000),
            ("TB", 1_000_000_000_000),
        ];
        let text = self.memory.trim();
        if text == "auto" {
            return Ok(None);
        }
        let (number, unit) = UNITS
            .iter()
            .find_map(|(name, unit)| Some((text.strip_suffix(name)?, *unit)))
            .unwrap_or((text.strip_suffix('B').unwrap_or(text), 1));
        let bytes = number.trim().parse::<f64>().ok().map(|number| number * unit as f64);
        match bytes {
            Some(bytes) if bytes >= LEAST_MEMORY as f64 && bytes <= (1u64 << 50) as f64 => {
                Ok(Some(bytes as usize))
            }
            _ => Err(format!(
                "corpus.memory = {text:?}: expected \"auto\" or a size of at least {}MiB, such as \"2GiB\" (the program takes about \
                 {} MiB and each thread {} MiB)",
                LEAST_MEMORY >> 20,
                PROGRAM_MEMORY >> 20,
                THREAD_MEMORY >> 20
            )),
        }
    }

    /// What the stage may use of `threads` threads within `memory`: what is left beside the program and the batches that its
    /// threads work on is for rows.
    ///
    /// # Errors
    /// Those of [`CorpusConfig::memory_bytes`].
    pub fn budget(&self, threads: usize) -> Result<StageBudget, String> {
        let threads = threads.max(1);
        let wanted = PROGRAM_MEMORY + LEAST_ROWS + threads.saturating_mul(THREAD_MEMORY);
        let memory = self.memory_bytes()?.unwrap_or_else(|| wanted.max(AUTO_MEMORY));
        let fitting = memory.saturating_sub(PROGRAM_MEMORY + LEAST_ROWS) / THREAD_MEMORY;
        let threads = threads.min(fitting.max(1));
        Ok(StageBudget {
            threads,
            row_bytes: memory.saturating_sub(PROGRAM_MEMORY + threads * THREAD_MEMORY),
        })
    }

    /// Checks every value against its range. The message names the key, the value and what is allowed.
    pub fn check(&self) -> Result<(), String> {
        self.memory_bytes()?;
        self.check_sources()?;
        self.check_place()?;
        self.dialogue.check()?;
        self.clean.check()?;
        self.dedup.check().map_err(|message| format!("corpus.{message}"))?;
        self.rules.check().map_err(|message| format!("corpus.{message}"))?;
        self.urls.check().map_err(|message| format!("corpus.urls.{message}"))?;
        crate::score::check(&self.scores)?;
        let columns = self.columns();
        let columns: Vec<&str> = columns.iter().map(String::as_str).collect();
        self.rules.check_columns(&columns).map_err(|error| format!("corpus.{error}"))?;
        self.privacy.check()?;
        self.decontaminate.check("corpus.decontaminate")?;
        self.evaluate.check()?;
        self.split.check()
    }

    /// Checks what says where the text of a source lies.
    pub(crate) fn check_place(&self) -> Result<(), String> {
        if self.text.is_empty() {
            return Err(
                "corpus.text = \"\": expected the name of the column or field that holds the text".into()
            );
        }
        let needs_path = matches!(
            self.source,
            SourceKind::Folder
                | SourceKind::Jsonl
                | SourceKind::Parquet
                | SourceKind::Warc
                | SourceKind::Html
                | SourceKind::Papers
                | SourceKind::Wikipedia
                | SourceKind::StackExchange
                | SourceKind::File
        );
        if needs_path && self.path.is_empty() {
            let kind = serde_json::to_value(self.source).unwrap_or_default();
            return Err(format!(
                "corpus.path is missing: corpus.source = {kind} needs the path of what to read"
            ));
        }
        if self.source == SourceKind::Embedded && !self.path.is_empty() {
            return Err(format!(
                "corpus.path = {:?}: the embedded corpus has no path; drop the key or choose another source",
                self.path
            ));
        }
        for extension in &self.extensions {
            if extension.is_empty() || extension.contains(['/', '.']) {
                return Err(format!(
                    "corpus.extensions has {extension:?}: expected an extension without dot, such as \"rs\", or \"*\""
                ));
            }
        }
        for path in &self.exclude {
            if path.is_empty() || path.starts_with('/') || path.split('/').any(|part| part == "..") {
                return Err(format!(
                    "corpus.exclude has {path:?}: expected a path relative to the source's root"
                ));
            }
        }
        Ok(())
    }
}

impl CleanConfig {
    /// Largest allowed `max_bytes`: documents are held in memory whole while they are judged.
    pub const LARGEST_DOCUMENT: u64 = 256 << 20;

    /// Checks every value against its range.
    pub fn check(&self) -> Result<(), String> {
        if self.max_bytes == 0 || self.max_bytes > Self::LARGEST_DOCUMENT {
            return Err(format!(
                "corpus.clean.max_bytes = {}: expected 1 to {} (documents are held in memory whole)",
                self.max_bytes,
                Self::LARGEST_DOCUMENT
            ));
        }
        if self.min_bytes > self.max_bytes {
            return Err(format!(
                "corpus.clean.min_bytes = {}: expected at most corpus.clean.max_bytes = {}",
                self.min_bytes, self.max_bytes
            ));
        }
        if self.max_line_chars == 0 {
            return Err("corpus.clean.max_line_chars = 0: expected at least 1".into());
        }
        in_range("corpus.clean.max_numeric_share", self.max_numeric_share, 0.0, 1.0)?;
        in_range("corpus.clean.max_mean_line_chars", self.max_mean_line_chars, 1.0, 1e9)?;
        in_range("corpus.clean.min_alphanumeric_share", self.min_alphanumeric_share, 0.0, 1.0)
    }
}

impl PrivacyConfig {
    /// Whether more is looked for than e-mail and IPv4 addresses.
    pub(crate) fn finds(&self) -> bool {
        self.ipv6 || self.phones != PhoneRule::Off || self.cards || self.ibans || self.secrets
    }

    /// What is looked for beside e-mail and IPv4 addresses.
    pub(crate) fn rules(&self) -> PrivacyRules {
        PrivacyRules {
            ipv6: self.ipv6,
            phone: self.phones,
            cards: self.cards,
            ibans: self.ibans,
            secrets: self.secrets,
            drop_above: self.drop_above,
            ipv6_replacements: self.ipv6_replacements.clone(),
            phone_replacements: self.phone_replacements.clone(),
            card_replacements: self.card_replacements.clone(),
            iban_replacements: self.iban_replacements.clone(),
            secret_replacements: self.secret_replacements.clone(),
            ..PrivacyRules::none()
        }
    }

    /// Checks that there is something to replace with.
    pub fn check(&self) -> Result<(), String> {
        for (on, list, key) in [
            (self.emails, &self.email_replacements, "corpus.privacy.email_replacements"),
            (self.ips, &self.ip_replacements, "corpus.privacy.ip_replacements"),
        ] {
            if on && list.is_empty() {
                return Err(format!("{key} = []: expected at least one replacement"));
            }
        }
        self.rules().check("corpus.privacy")
    }
}

impl SplitConfig {
    /// Checks the fraction and that no source is on both lists.
    pub fn check(&self) -> Result<(), String> {
        in_range("corpus.split.validation_fraction", self.validation_fraction, 0.0, 0.9)?;
        match self.validation.iter().find(|name| self.train.contains(name)) {
            Some(name) => Err(format!(
                "corpus.split.validation and corpus.split.train both name {name:?}: expected one side"
            )),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defaults_are_valid_and_each_bad_value_is_named() {
        CorpusConfig::default().check().unwrap();
        let bad = |edit: &dyn Fn(&mut CorpusConfig), key: &str| {
            let mut config = CorpusConfig::default();
            edit(&mut config);
            let message = config.check().unwrap_err();
            assert!(message.contains(key), "{message} should name {key}");
        };
        bad(&|c| c.memory = "much".into(), "corpus.memory");
        bad(&|c| c.memory = "1kB".into(), "corpus.memory");
        bad(&|c| c.memory = "NaNGiB".into(), "corpus.memory");
        bad(&|c| c.text.clear(), "corpus.text");
        bad(&|c| c.source = SourceKind::Folder, "corpus.path");
        bad(&|c| c.extensions = vec![".rs".into()], "corpus.extensions");
        bad(&|c| c.exclude = vec!["../x".into()], "corpus.exclude");
        bad(&|c| c.clean.max_bytes = 0, "corpus.clean.max_bytes");
        bad(&|c| c.clean.min_bytes = 300_000, "corpus.clean.min_bytes");
        bad(&|c| c.clean.min_alphanumeric_share = f64::NAN, "min_alphanumeric_share");
        bad(&|c| c.rules.profiles = vec!["gopher-qualty".into()], "corpus.rules.profiles");
        bad(&|c| c.rules.keep = vec!["byts > 3".into()], "corpus.rules.keep");
        bad(&|c| c.privacy.email_replacements.clear(), "email_replacements");
        bad(
            &|c| {
                c.privacy.ipv6 = true;
                c.privacy.ipv6_replacements.clear();
            },
            "corpus.privacy.ipv6_replacements",
        );
        bad(&|c| c.decontaminate.ngram = 7, "corpus.decontaminate.ngram");
        bad(&|c| c.split.validation_fraction = 1.5, "validation_fraction");
        bad(
            &|c| {
                c.split.train = vec!["a".into()];
                c.split.validation = vec!["a".into()];
            },
            "corpus.split",
        );
    }

    #[test]
    fn sizes_are_read_with_their_unit() {
        let bytes = |text: &str| CorpusConfig { memory: text.into(), ..Default::default() }.memory_bytes();
        assert_eq!(bytes("2GiB"), Ok(Some(2 << 30)));
        assert_eq!(bytes("1.5 GB"), Ok(Some(1_500_000_000)));
        assert_eq!(bytes("268435456"), Ok(Some(256 << 20)));
        assert_eq!(bytes("auto"), Ok(None));
        assert!(bytes("-2GiB").is_err() && bytes("GiB").is_err() && bytes("infTiB").is_err());
        assert!(bytes("64MiB").unwrap_err().contains("at least 144MiB"));
    }

    #[test]
    fn threads_that_do_not_fit_into_the_stated_memory_do_not_work() {
        let budget = |text: &str, threads| {
            let config = CorpusConfig { memory: text.into(), ..Default::default() };
            let budget = config.budget(threads).unwrap();
            (budget.threads, budget.row_bytes >> 20)
        };
        assert_eq!(budget("144MiB", 8), (1, 19));
        assert_eq!(budget("256MiB", 8), (5, 31));
        assert_eq!(budget("2GiB", 8), (8, 1748));
        assert_eq!(budget("auto", 2), (2, 362));
        assert_eq!(budget("auto", 64), (64, 16), "what is not stated grows with the machine");
        for memory in 144..600 {
            let (threads, rows) = budget(&format!("{memory}MiB"), 12);
            assert!(100 + 25 * threads + rows <= memory && rows >= 15, "{memory}: {threads} {rows}");
        }
    }

    #[test]
    fn unknown_keys_are_refused() {
        let text = r#"{"source": "cargo", "clean": {"max_byte": 3}}"#;
        let message = serde_json::from_str::<CorpusConfig>(text).unwrap_err().to_string();
        assert!(message.contains("max_byte"), "{message}");
    }
}
