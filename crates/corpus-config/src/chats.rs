//! The keys of `[corpus.chats]`.

use crate::clean::{CleanConfig, LongTexts, Scope};
use crate::corpus::{CorpusConfig, SourceKind};
use crate::decontaminate::DecontaminateAction;
use crate::dedup::Method;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::borrow::Cow;

/// Answers of a chat that have a loss.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum ScoredAnswers {
    /// All.
    #[default]
    All,
    /// The last one of each chat.
    Last,
}

/// Chats whose last question with its answer is longer than a training sequence.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum LongChats {
    /// An error that names the chat.
    #[default]
    Refuse,
    /// The chat is left out of the shards.
    Drop,
}

/// `[corpus.chats]`: fine-tuning on chats. Rows of the source `jsonl` or `parquet` are chats, encoded by a template; only their answers have a loss.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ChatsConfig {
    /// Template: a name (`chatml`, `gemma`, `llama-2`, `llama-3`, `mistral`, `phi`, `qwen`), a Jinja file, a `tokenizer_config.json`, or the
    /// directory of a model or a run. Empty: that of `train.init.from`.
    pub template: String,
    /// Answers that have a loss: all or last.
    pub answers: ScoredAnswers,
    /// A chat longer than `train.seq_len` loses its oldest turns. One whose last question with its answer is longer: refuse or drop. No
    /// answer is cut.
    pub long: LongChats,
    /// Rows are pairs for `train.preferences`: `chosen` and `rejected` answers after the same turns. No turn of a pair is left out.
    pub pairs: bool,
}

/// Largest text of a chat, bytes.
const LARGEST_CHAT: u64 = 16 << 20;

impl CleanConfig {
    /// The rules for chats: equal ones are dropped, if that is on; rules that measure or cut prose and code do nothing.
    fn of_chats(&self) -> CleanConfig {
        CleanConfig {
            min_bytes: 0,
            max_bytes: LARGEST_CHAT,
            long: LongTexts::Drop,
            drop_generated: false,
            max_numeric_share: 1.0,
            line_rules: Scope::None,
            min_alphanumeric_share: 0.0,
            ..self.clone()
        }
    }
}

impl CorpusConfig {
    /// The configuration that documents are made by: of chats without the rules that measure prose and code, or remove lines.
    pub fn of_documents(&self) -> Cow<'_, CorpusConfig> {
        if self.chats.is_none() {
            return Cow::Borrowed(self);
        }
        let mut config = self.clone();
        config.clean = self.clean.of_chats();
        config.privacy.attribution_lines = false;
        Cow::Owned(config)
    }

    /// Refuses what would not read rows, or would take pieces out of a chat.
    pub(crate) fn check_chats(&self) -> Result<(), String> {
        if self.chats.is_none() {
            return Ok(());
        }
        if !self.sources.is_empty() || !matches!(self.source, SourceKind::Jsonl | SourceKind::Parquet) {
            let found = match self.sources.is_empty() {
                true => format!("corpus.source = {}", serde_json::to_value(self.source).unwrap_or_default()),
                false => "[[corpus.sources]]".into(),
            };
            return Err(format!(
                "[corpus.chats] wanted corpus.source = \"jsonl\" and corpus.path (.jsonl, .json, .csv or .tsv), or \"parquet\", found {found}"
            ));
        }
        let plain = CleanConfig { exact_dedup: self.clean.exact_dedup, ..CleanConfig::default() };
        if self.clean != plain && self.clean != plain.of_chats() {
            return Err(
                "[corpus.chats] with [corpus.clean]: its rules are for prose and code; wanted no key there but exact_dedup"
                    .into(),
            );
        }
        let cuts = |method: &&Method| matches!(method, Method::Bloom | Method::Substring | Method::Lines);
        if let Some(method) = self.dedup.methods.iter().find(cuts) {
            let name = serde_json::to_value(method).unwrap_or_default();
            return Err(format!(
                "[corpus.chats] with corpus.dedup.methods = [{name}], which takes pieces out of texts: wanted exact, minhash, \
                 simhash or semantic"
            ));
        }
        if !self.rules.profiles.is_empty() {
            return Err(format!(
                "[corpus.chats] with corpus.rules.profiles = {:?}, which may take lines out of texts: wanted none; corpus.rules.keep \
                 drops whole chats",
                self.rules.profiles
            ));
        }
        if !self.decontaminate.sets.is_empty() && self.decontaminate.action == DecontaminateAction::Window {
            return Err(
                "[corpus.chats] with corpus.decontaminate.action = \"window\", which takes pieces out of texts: wanted \"drop\""
                    .into(),
            );
        }
        Ok(())
    }
}
