//! The vocabulary as llama.cpp's tokenizer model `gpt2` has it (keys `tokenizer.ggml.*` of a GGUF file).

use crate::byte_alphabet::spell;
use crate::error::{Result, TokenizerError};
use crate::pretokenize::Pretokenizer;
use crate::tokenizer::{Model, Tokenizer};

/// Kinds of tokens in `tokenizer.ggml.token_type`.
mod kind {
    pub(super) const NORMAL: i32 = 1;
    pub(super) const CONTROL: i32 = 3;
    pub(super) const USER_DEFINED: i32 = 4;
    pub(super) const UNUSED: i32 = 5;
}

/// What a GGUF file says of a byte-level BPE tokenizer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GgufVocabulary {
    /// `tokenizer.ggml.pre`.
    pub pre: &'static str,
    /// `tokenizer.ggml.tokens`: the spelling of each id.
    pub tokens: Vec<String>,
    /// `tokenizer.ggml.token_type`: 1 text, 3 control, 4 added, 5 no token.
    pub types: Vec<i32>,
    /// `tokenizer.ggml.merges`: two spellings with a space between them, in rank order.
    pub merges: Vec<String>,
}

impl Tokenizer {
    /// The vocabulary, from which llama.cpp makes the ids that [`Tokenizer::encode`] gives.
    ///
    /// # Errors
    /// [`TokenizerError::Unsupported`] for a tokenizer of characters, and for one whose ids would be others there: llama.cpp looks whole
    /// pieces up before merging with the pattern `llama3`, and with no other.
    pub fn gguf_vocabulary(&self) -> Result<GgufVocabulary> {
        let Model::ByteBpe { pretokenizer, bpe } = self.model() else {
            return Err(TokenizerError::Unsupported {
                part: "model",
                found: "with characters as tokens".into(),
                hint: "llama.cpp has byte-level BPE: train a tokenizer with kind = \"byte-bpe\"",
            });
        };
        self.check_whole_pieces(*pretokenizer, bpe.ignores_merges())?;
        let (mut tokens, mut types) = (Vec::new(), Vec::new());
        for id in 0..self.vocab_size() as u32 {
            let added = self.special_tokens();
            let (token, kind) = match (added.binary_search_by_key(&id, |t| t.id), self.token_bytes(id)) {
                (Ok(at), _) if added[at].special => (added[at].content.clone(), kind::CONTROL),
                (Ok(at), _) => (added[at].content.clone(), kind::USER_DEFINED),
                (Err(_), Some(bytes)) => (spell(bytes), kind::NORMAL),
                (Err(_), None) => (format!("[PAD{id}]"), kind::UNUSED),
            };
            tokens.push(token);
            types.push(kind);
        }
        let spelled = |id| spell(self.token_bytes(id).unwrap_or_default());
        let merges = bpe.merges().iter().map(|((a, b), _)| format!("{} {}", spelled(*a), spelled(*b)));
        Ok(GgufVocabulary { pre: pretokenizer.gguf_name(), merges: merges.collect(), tokens, types })
    }

    /// Errors if it matters whether whole pieces are looked up, and llama.cpp does the other thing.
    fn check_whole_pieces(&self, pretokenizer: Pretokenizer, looked_up: bool) -> Result<()> {
        let there = pretokenizer == Pretokenizer::Llama3;
        let differs = match (looked_up, there) {
            (true, false) => Some(String::new()),
            (false, true) => self.first_token_that_merges_do_not_make(pretokenizer)?,
            _ => None,
        };
        match differs {
            None => Ok(()),
            Some(token) => Err(TokenizerError::Unsupported {
                part: "ignore_merges",
                found: format!("{looked_up} with the pattern {} {token}", pretokenizer.name()),
                hint: "llama.cpp looks up whole pieces only with the pattern llama3, so its token ids would \
                       differ",
            }),
        }
    }

    /// The first token that is a piece of its own and that encoding does not give for its bytes.
    fn first_token_that_merges_do_not_make(&self, pretokenizer: Pretokenizer) -> Result<Option<String>> {
        let added = self.special_tokens();
        for id in 0..self.vocab_size() as u32 {
            let bytes = self.token_bytes(id).filter(|_| added.iter().all(|t| t.id != id));
            if let Some(bytes) = bytes.filter(|b| pretokenizer.pieces(b).len() == 1)
                && self.encode(bytes)? != [id]
            {
                return Ok(Some(format!("(token {id}, {:?})", String::from_utf8_lossy(bytes))));
            }
        }
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{TokenizerConfig, TokenizerKind};
    use crate::trainer::Trainer;

    fn trained(kind: TokenizerKind, pretokenizer: Pretokenizer) -> Tokenizer {
        let config = TokenizerConfig { kind, pretokenizer, vocab_size: 300, ..TokenizerConfig::default() };
        let mut trainer = Trainer::new(config).unwrap();
        trainer.feed("the other thing there, then: the one that they threw 1234 times into the sea\n");
        trainer.finish(|_| {}).unwrap()
    }

    #[test]
    fn every_id_has_a_spelling_and_every_merge_two() {
        for pretokenizer in Pretokenizer::ALL {
            let tokenizer = trained(TokenizerKind::ByteBpe, pretokenizer);
            let v = tokenizer.gguf_vocabulary().unwrap();
            assert_eq!(v.pre, pretokenizer.gguf_name());
            assert_eq!((v.tokens.len(), v.types.len()), (tokenizer.vocab_size(), tokenizer.vocab_size()));
            let end = tokenizer.end_of_text().unwrap() as usize;
            assert_eq!((v.tokens[end].as_str(), v.types[end]), ("<|endoftext|>", kind::CONTROL));
            assert_eq!(v.types.iter().filter(|t| **t == kind::NORMAL).count(), v.tokens.len() - 1);
            // Every merge makes a token of the list.
            assert!(v.merges.len() > 5);
            for merge in &v.merges {
                assert_eq!(merge.matches(' ').count(), 1, "{merge:?}");
                assert!(v.tokens.contains(&merge.replace(' ', "")), "{merge:?}");
            }
        }
    }

    #[test]
    fn a_tokenizer_with_other_ids_there_is_refused() {
        let e = trained(TokenizerKind::Char, Pretokenizer::Gpt2).gguf_vocabulary().unwrap_err().to_string();
        assert!(e.contains("byte-bpe"), "{e}");
        let read = |from: &Tokenizer, edit: &dyn Fn(&mut serde_json::Value)| {
            let mut json: serde_json::Value = serde_json::from_str(&from.to_json()).unwrap();
            edit(&mut json["model"]);
            Tokenizer::from_json(&json.to_string()).unwrap()
        };
        let gpt2 = trained(TokenizerKind::ByteBpe, Pretokenizer::Gpt2);
        let whole = read(&gpt2, &|model| model["ignore_merges"] = true.into());
        let e = whole.gguf_vocabulary().unwrap_err().to_string();
        assert!(e.contains("ignore_merges") && e.contains("gpt2"), "{e}");
        // A token that no merge makes any more: llama.cpp would give it all the same.
        let llama = trained(TokenizerKind::ByteBpe, Pretokenizer::Llama3);
        let cut = read(&llama, &|model| {
            model["merges"].as_array_mut().unwrap().pop();
        });
        let e = cut.gguf_vocabulary().unwrap_err().to_string();
        assert!(e.contains("llama3") && e.contains(&format!("(token {}", llama.vocab_size() - 1)), "{e}");
    }
}
