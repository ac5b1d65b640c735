//! The keys of `[corpus]`. Every doc comment below is printed to users as the key's documentation.

use crate::chats::ChatsConfig;
use crate::clean::CleanConfig;
use crate::decontaminate::DecontaminateConfig;
use crate::dedup::DedupConfig;
use crate::dialogue::DialogueConfig;
use crate::evaluate::EvaluateConfig;
use crate::privacy::PrivacyConfig;
use crate::rules::RulesConfig;
use crate::scores::ScoresConfig;
use crate::sources::{MixConfig, SourceConfig};
use crate::split::SplitConfig;
use crate::urls::UrlFilterConfig;
use bessemer_object_store::Access;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// Source of the text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum SourceKind {
    /// `path` if it is set (its kind is detected), else the dependency sources that cargo lists in the current directory, else,
    /// with a warning, Python's standard library, else the embedded corpus. Every other kind is read or is an error.
    #[default]
    Auto,
    /// Sources and documentation of the normal and build dependencies of the Cargo workspace in `path` (default: the
    /// current directory), as its default members use them on this machine's target.
    Cargo,
    /// Every text and code file under the folder `path`, plain or compressed (.gz, .zst, .bz2, .xz); of web pages the main text. Files
    /// without an extension, such as `README` and `NEWS.gz`, are read if their content is text.
    Folder,
    /// JSON lines: the file `path`, or every .jsonl, plain, .gz, .zst, .bz2 or .xz, below the folder `path`. A .json that holds a list of
    /// objects, a .csv and a .tsv with a line of names are read as rows too; below a folder only where it has no .jsonl.
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
    /// Name of the JSON field or Parquet column that holds the text; `a.b` is the field `b` inside `a`. A JSON field may hold the turns of a chat instead; without such a
    /// field, `messages` and `conversations` are read (`dialogue`).
    pub text: String,
    /// Name of the JSON field or Parquet column that holds a document's URL, where there is one.
    pub url: String,
    /// Name of the JSON field or Parquet column that says when a document was fetched, in ISO 8601, where there is one.
    pub date: String,
    /// How chats and threads become text.
    pub dialogue: DialogueConfig,
    /// Rows are chats, whose answers are trained on. See docs/finetuning.md.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub chats: Option<ChatsConfig>,
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
    /// Evaluation of a sample of the kept documents. It changes no document.
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
            chats: None,
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

impl CorpusConfig {
    /// Checks every value against its range. The message names the key, the value and what is allowed. Profiles of rules, predicates
    /// and the columns that they read are checked by `bessemer_corpus::check`.
    pub fn check(&self) -> Result<(), String> {
        self.memory_bytes()?;
        self.check_sources()?;
        self.check_place()?;
        self.dialogue.check()?;
        self.check_chats()?;
        self.clean.check()?;
        self.dedup.check().map_err(|message| format!("corpus.{message}"))?;
        self.rules.check().map_err(|message| format!("corpus.{message}"))?;
        self.urls.check().map_err(|message| format!("corpus.urls.{message}"))?;
        self.scores.check().map_err(|message| format!("corpus.scores: {message}"))?;
        self.privacy.check()?;
        self.decontaminate.check("corpus.decontaminate")?;
        self.evaluate.check()?;
        self.split.check()
    }

    /// Paths of files that the configuration names, each with its key, without the input.
    pub fn paths(&mut self) -> Vec<(String, &mut String)> {
        let tables = [
            self.urls.paths(),
            self.rules.paths(),
            self.scores.paths(),
            self.decontaminate.paths(),
            self.evaluate.paths(),
        ];
        tables.into_iter().flatten().map(|(key, path)| (format!("corpus.{key}"), path)).collect()
    }

    /// Checks what says where the text of a source lies.
    pub(crate) fn check_place(&self) -> Result<(), String> {
        if self.text.is_empty() {
            return Err(
                "corpus.text = \"\": expected the name of the column or field that holds the text".into()
            );
        }
        let needs_none = matches!(self.source, SourceKind::Auto | SourceKind::Cargo | SourceKind::Embedded);
        if !needs_none && self.path.is_empty() {
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
    fn unknown_keys_are_refused() {
        let text = r#"{"source": "cargo", "clean": {"max_byte": 3}}"#;
        let message = serde_json::from_str::<CorpusConfig>(text).unwrap_err().to_string();
        assert!(message.contains("max_byte"), "{message}");
    }
}
