//! `[corpus.chats]`: documents that are chats become tokens of which the answers are scored.

use crate::commands::chat_template;
use crate::failure::Failure;
use crate::run_dir::RunDir;
use bessemer_chat::{Answers, Chat, ChatEncoder, ChatError, ChatTokens, FittedChat, Pair};
use bessemer_corpus::{DocumentEncoder, EncodedDocument, chat_of_text, document_id, pair_of_text};
use bessemer_corpus_config::{LongChats, ScoredAnswers};
use bessemer_durable::ConfinedDir;
use bessemer_recipe::Recipe;
use bessemer_tokenizer::Tokenizer;
use serde_json::json;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Encodes the chats of a recipe.
pub(crate) struct ChatDocuments {
    encoder: ChatEncoder,
    answers: Answers,
    long: LongChats,
    /// Documents are pairs of a chosen and a rejected answer.
    pairs: bool,
    /// Most tokens of a chat.
    longest: usize,
    /// Files by which a run has the template.
    files: [(&'static str, String); 2],
    /// Chats left out because they are too long.
    left_out: AtomicU64,
    /// Chats that lost their oldest turns.
    shortened: AtomicU64,
}

impl ChatDocuments {
    /// The encoder that a recipe asks for; `None` if its documents are no chats.
    ///
    /// # Errors
    /// A template that is not found or not readable, or whose special tokens the tokenizer lacks.
    pub(crate) fn of(
        recipe: &Recipe,
        tokenizer: &Arc<Tokenizer>,
    ) -> Result<Option<Arc<ChatDocuments>>, Failure> {
        let Some(chats) = &recipe.corpus.chats else { return Ok(None) };
        let (key, name) = match chats.template.is_empty() {
            true => ("train.init.from", &recipe.train.init.from),
            false => ("corpus.chats.template", &chats.template),
        };
        let path = Path::new(name);
        let of_key = |e: Failure| Failure::new(format!("{key} = {name:?}: {}", e.message));
        if chats.template.is_empty() && !path.is_dir() {
            let problem = "wanted a directory with a chat template, found none; set corpus.chats.template";
            return Err(of_key(Failure::new(problem)));
        }
        let template = chat_template::named(path, tokenizer).map_err(of_key)?;
        let config = match path.is_dir() {
            true => chat_template::config_of(&RunDir::new(path)).map_err(of_key)?,
            false => None,
        };
        let files = chat_template::files_for_run(&template, config);
        let encoder =
            ChatEncoder::new(template, Arc::clone(tokenizer)).map_err(|e| of_key(Failure::new(e)))?;
        Ok(Some(Arc::new(ChatDocuments {
            encoder,
            answers: match chats.answers {
                ScoredAnswers::All => Answers::All,
                ScoredAnswers::Last => Answers::Last,
            },
            long: chats.long,
            pairs: chats.pairs,
            longest: usize::try_from(recipe.train.seq_len).unwrap_or(usize::MAX),
            files,
            left_out: AtomicU64::new(0),
            shortened: AtomicU64::new(0),
        })))
    }

    /// Writes the template into the directory of a run, where `serve` and exports find it.
    pub(crate) fn store(&self, run: &ConfinedDir) -> Result<(), Failure> {
        for (name, text) in &self.files {
            if run.read(name).ok().as_deref() != Some(text.as_bytes()) {
                run.write(name, text.as_bytes())?;
            }
        }
        Ok(())
    }

    /// The tokens of a chat with all its turns: those of a pair have the same questions.
    fn whole(&self, chat: &Chat) -> Result<FittedChat, ChatError> {
        let tokens = self.encoder.encode(chat, self.answers)?;
        match tokens.ids.len() <= self.longest {
            true => Ok(FittedChat { tokens, dropped: 0 }),
            false => Err(ChatError::TooLong { tokens: tokens.ids.len(), context: self.longest }),
        }
    }

    /// Chats that have lost their oldest turns, and those that were left out, since it was made.
    pub(crate) fn shortened_and_left_out(&self) -> [u64; 2] {
        [&self.shortened, &self.left_out].map(|count| count.load(Ordering::Relaxed))
    }
}

impl DocumentEncoder for ChatDocuments {
    fn identity(&self) -> String {
        let tokens = self.encoder.template().tokens();
        let mut parts = json!([
            self.encoder.template().source(),
            [&tokens.bos, &tokens.eos, &tokens.pad, &tokens.unk],
            tokens.adds_bos,
            self.answers == Answers::Last,
            self.long == LongChats::Drop,
            self.longest,
        ]);
        if let (true, Some(parts)) = (self.pairs, parts.as_array_mut()) {
            parts.push("pairs".into());
        }
        let hash: String = document_id(&parts.to_string()).iter().map(|byte| format!("{byte:02x}")).collect();
        format!("chats {hash}")
    }

    fn encode(&self, text: &str) -> Result<Vec<EncodedDocument>, String> {
        let encoded: Result<Vec<FittedChat>, ChatError> = match self.pairs {
            true => {
                let Pair { chosen, rejected } = pair_of_text(text)?;
                [chosen, rejected].iter().map(|chat| self.whole(chat)).collect()
            }
            false => self
                .encoder
                .encode_within(&chat_of_text(text)?, self.answers, self.longest)
                .map(|one| vec![one]),
        };
        let fitted = match encoded {
            Ok(fitted) => fitted,
            Err(ChatError::TooLong { .. }) if self.long == LongChats::Drop => {
                self.left_out.fetch_add(1, Ordering::Relaxed);
                return Ok(Vec::new());
            }
            Err(e @ ChatError::TooLong { .. }) => {
                return Err(format!(
                    "{e}: train.seq_len = {}, or corpus.chats.long = \"drop\" leaves such chats out",
                    self.longest
                ));
            }
            Err(e) => return Err(e.to_string()),
        };
        let bytes = |id: &u32| self.encoder.tokenizer().token_bytes(*id).map_or(0, <[u8]>::len) as u64;
        let document = |FittedChat { tokens: ChatTokens { ids, scored }, dropped }| {
            self.shortened.fetch_add(u64::from(dropped > 0), Ordering::Relaxed);
            EncodedDocument { text_bytes: ids.iter().map(bytes).sum(), tokens: ids, scored: Some(scored) }
        };
        Ok(fitted.into_iter().map(document).collect())
    }
}
