//! The tokenizer: text to ids and back.

use crate::added_tokens::{AddedToken, AddedTokens, Recognised};
use crate::batch::{Part, parts, share_out};
use crate::bpe::Bpe;
use crate::char_model::CharModel;
use crate::config::TokenizerKind;
use crate::error::{Result, TokenizerError};
use crate::pretokenize::Pretokenizer;
use crate::scratch::Scratch;
use std::ops::Range;
use std::sync::{Mutex, PoisonError};

/// How text becomes ids.
#[derive(Debug)]
pub(crate) enum Model {
    ByteBpe { pretokenizer: Pretokenizer, bpe: Box<Bpe> },
    Char(Box<CharModel>),
}

/// Bytes of each token in id order; empty for a hole in the ids.
pub(crate) type TokenBytes = Vec<Box<[u8]>>;

/// What a tokenizer is built from, by training or from a file; already checked to be consistent.
#[derive(Debug)]
pub(crate) struct Parts {
    pub(crate) model: Model,
    pub(crate) tokens: TokenBytes,
    pub(crate) added: Vec<AddedToken>,
    /// Kept for other readers of the file; never applied here.
    pub(crate) post_processor: serde_json::Value,
}

/// Tokens of a text with their places ([`Tokenizer::encode_placed`]).
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PlacedTokens {
    /// Ids.
    pub ids: Vec<u32>,
    /// Where the text of each token ends, in bytes; it begins where that of the one before ends.
    pub ends: Vec<usize>,
}

/// A trained tokenizer. Immutable, `Send` and `Sync`: share one among threads.
///
/// Plain [`encode`](Self::encode) treats text as text: it recognises added tokens that are not special, and never gives a
/// special one, even where the text spells it, because documents must not be able to end themselves or forge control tokens. Whoever wants special tokens
/// recognised says so with [`encode_with_special`](Self::encode_with_special), and whoever wants one put somewhere
/// (end of text between documents) writes its id.
pub struct Tokenizer {
    model: Model,
    /// Bytes of all tokens, one after the other.
    bytes: Vec<u8>,
    /// `bytes[starts[id]..starts[id + 1]]` is token `id`.
    starts: Vec<u32>,
    added: AddedTokens,
    post_processor: serde_json::Value,
    fingerprint: blake3::Hash,
    /// Working memories for callers that bring none.
    idle: Mutex<Vec<Scratch>>,
}

impl std::fmt::Debug for Tokenizer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tokenizer")
            .field("kind", &self.kind())
            .field("vocab_size", &self.vocab_size())
            .field("fingerprint", &self.fingerprint())
            .finish_non_exhaustive()
    }
}

impl Tokenizer {
    pub(crate) fn from_parts(parts: Parts) -> Result<Self> {
        let Parts { model, tokens, added, post_processor } = parts;
        let mut starts = Vec::with_capacity(tokens.len() + 1);
        let mut bytes = Vec::with_capacity(tokens.iter().map(|token| token.len()).sum());
        starts.push(0);
        for token in &tokens {
            bytes.extend_from_slice(token);
            starts.push(u32::try_from(bytes.len()).map_err(|_| {
                TokenizerError::Inconsistent("the tokens together hold more than 4 GiB".to_owned())
            })?);
        }
        let mut tokenizer = Tokenizer {
            model,
            bytes,
            starts,
            added: AddedTokens::new(added),
            post_processor,
            fingerprint: blake3::Hash::from_bytes([0; 32]),
            idle: Mutex::new(Vec::new()),
        };
        tokenizer.fingerprint = blake3::hash(tokenizer.to_json().as_bytes());
        Ok(tokenizer)
    }

    /// The same tokenizer without a post-processor.
    pub(crate) fn without_post_processor(mut self) -> Tokenizer {
        self.post_processor = serde_json::Value::Null;
        self.fingerprint = blake3::hash(self.to_json().as_bytes());
        self
    }

    pub(crate) fn model(&self) -> &Model {
        &self.model
    }

    pub(crate) fn post_processor(&self) -> &serde_json::Value {
        &self.post_processor
    }

    /// Byte-level BPE or characters.
    pub fn kind(&self) -> TokenizerKind {
        match self.model {
            Model::ByteBpe { .. } => TokenizerKind::ByteBpe,
            Model::Char(_) => TokenizerKind::Char,
        }
    }

    /// The pattern that cuts the text; `None` for a character tokenizer.
    pub fn pretokenizer(&self) -> Option<Pretokenizer> {
        match self.model {
            Model::ByteBpe { pretokenizer, .. } => Some(pretokenizer),
            Model::Char(_) => None,
        }
    }

    /// Number of ids: every id is below it. Special tokens count.
    pub fn vocab_size(&self) -> usize {
        self.starts.len() - 1
    }

    /// Special and other added tokens, in id order.
    pub fn special_tokens(&self) -> &[AddedToken] {
        self.added.tokens()
    }

    /// The id that ends a document: that of `<|endoftext|>`, `<|end_of_text|>`, `<|im_end|>`, `</s>` or `<eos>`,
    /// whichever is the first of these that is a special token; else that of the only special token; else none.
    pub fn end_of_text(&self) -> Option<u32> {
        let special: Vec<&AddedToken> = self.special_tokens().iter().filter(|token| token.special).collect();
        ["<|endoftext|>", "<|end_of_text|>", "<|im_end|>", "</s>", "<eos>"]
            .iter()
            .find_map(|name| special.iter().find(|token| token.content == *name))
            .or(if let [only] = &special[..] { Some(only) } else { None })
            .map(|token| token.id)
    }

    /// The bytes of a token (a special token's own text); `None` for an id that no token has.
    pub fn token_bytes(&self, id: u32) -> Option<&[u8]> {
        let start = *self.starts.get(id as usize)?;
        let end = *self.starts.get(id as usize + 1)?;
        Some(&self.bytes[start as usize..end as usize]).filter(|bytes| !bytes.is_empty())
    }

    /// Bytes of text that each id stands for, by id; 0 for special tokens and holes. The denominator of bits per byte.
    pub fn byte_lengths(&self) -> Vec<u32> {
        let mut lengths: Vec<u32> = self.starts.windows(2).map(|two| two[1] - two[0]).collect();
        for token in self.special_tokens().iter().filter(|token| token.special) {
            lengths[token.id as usize] = 0;
        }
        lengths
    }

    /// Lower-case hexadecimal BLAKE3 of [`to_json`](Self::to_json): equal for tokenizers that give equal ids from
    /// equal files, whatever the spacing and order of the file they were read from.
    pub fn fingerprint(&self) -> String {
        self.fingerprint.to_hex().to_string()
    }

    /// Ids of `text`. Never a special token; added tokens that are not special are recognised where they are spelled out.
    ///
    /// # Errors
    /// Only a character tokenizer can fail: [`TokenizerError::UnknownCharacter`]. Byte-level BPE encodes any bytes.
    pub fn encode(&self, text: &[u8]) -> Result<Vec<u32>> {
        let mut scratch = self.borrow_scratch();
        let mut out = Vec::with_capacity(text.len() / 3);
        let done = self.encode_into(&mut scratch, text, &mut out);
        self.return_scratch(scratch);
        done.map(|()| out)
    }

    /// Appends the ids of `text` to `out`, with working memory of the caller: the fastest way to encode many texts
    /// on one thread. On an error `out` holds the ids up to the unknown character.
    ///
    /// # Errors
    /// As [`encode`](Self::encode).
    pub fn encode_into(&self, scratch: &mut Scratch, text: &[u8], out: &mut Vec<u32>) -> Result<()> {
        self.encode_recognising(scratch, text, Recognised::Text, out)
    }

    fn encode_recognising(
        &self,
        scratch: &mut Scratch,
        text: &[u8],
        recognised: Recognised<'_>,
        out: &mut Vec<u32>,
    ) -> Result<()> {
        if !self.added.any(recognised) {
            return self.encode_text(scratch, text, out);
        }
        for segment in self.added.segments(text, recognised) {
            match segment.id {
                Some(id) => out.push(id),
                None => self.encode_text(scratch, &text[segment.range], out)?,
            }
        }
        Ok(())
    }

    /// Appends the ids of text without added tokens.
    fn encode_text(&self, scratch: &mut Scratch, text: &[u8], out: &mut Vec<u32>) -> Result<()> {
        match &self.model {
            Model::ByteBpe { pretokenizer, bpe } => {
                scratch.claim(self.fingerprint.as_bytes());
                scratch.encode(bpe, *pretokenizer, text, out);
                Ok(())
            }
            Model::Char(model) => model.encode(text, out),
        }
    }

    /// Ids of `text`, in which all added tokens, also special ones, are recognised where they are spelled out, as Hugging Face's
    /// `encode(text, add_special_tokens=False)` does.
    ///
    /// # Errors
    /// As [`encode`](Self::encode).
    pub fn encode_with_special(&self, text: &[u8]) -> Result<Vec<u32>> {
        let mut scratch = self.borrow_scratch();
        let mut out = Vec::new();
        let done = self.encode_recognising(&mut scratch, text, Recognised::All, &mut out);
        self.return_scratch(scratch);
        done.map(|()| out)
    }

    /// Ids of `text` with their places. Special tokens are recognised where they are spelled out and `allowed` is true for their bytes; added
    /// tokens that are not special wherever they are spelled out. Pairs merge over all text between recognised tokens.
    ///
    /// # Errors
    /// As [`encode`](Self::encode).
    pub fn encode_placed(&self, text: &[u8], allowed: &dyn Fn(Range<usize>) -> bool) -> Result<PlacedTokens> {
        let mut scratch = self.borrow_scratch();
        let mut placed = PlacedTokens::default();
        let mut done = Ok(());
        for segment in self.added.segments(text, Recognised::Placed(allowed)) {
            match segment.id {
                Some(id) => {
                    placed.ids.push(id);
                    placed.ends.push(segment.range.end);
                }
                None => {
                    done = self.encode_text(&mut scratch, &text[segment.range.clone()], &mut placed.ids);
                    let mut end = segment.range.start;
                    for &id in &placed.ids[placed.ends.len()..] {
                        end += self.token_bytes(id).map_or(0, <[u8]>::len);
                        placed.ends.push(end);
                    }
                    if done.is_err() {
                        break;
                    }
                }
            }
        }
        self.return_scratch(scratch);
        done.map(|()| placed)
    }

    /// Ids of each text, on up to `threads` threads that live for this call. The result does not depend on them.
    ///
    /// # Errors
    /// As [`encode`](Self::encode), for the first text that fails.
    pub fn encode_batch<T: AsRef<[u8]> + Sync>(&self, texts: &[T], threads: usize) -> Result<Vec<Vec<u32>>> {
        struct Worker {
            scratch: Scratch,
            /// Index of the part and its ids.
            done: Vec<(usize, Result<Vec<u32>>)>,
        }
        // An added token must not be cut.
        let divisible = self.pretokenizer().is_some() && !self.added.any(Recognised::Text);
        let parts: Vec<Part> = parts(texts, divisible);
        let mut workers: Vec<Worker> = (0..threads.max(1))
            .map(|_| Worker { scratch: self.borrow_scratch(), done: Vec::new() })
            .collect();
        share_out(&parts, &mut workers, |worker, group| {
            for (i, part) in group.clone().zip(&parts[group]) {
                let mut ids = Vec::with_capacity(part.bytes.len() / 3);
                let result = self.encode_into(&mut worker.scratch, part.bytes, &mut ids);
                worker.done.push((i, result.map(|()| ids)));
            }
        });
        let mut done: Vec<(usize, Result<Vec<u32>>)> = Vec::with_capacity(parts.len());
        for worker in workers {
            self.return_scratch(worker.scratch);
            done.extend(worker.done);
        }
        done.sort_unstable_by_key(|part| part.0);
        let mut out: Vec<Vec<u32>> = texts.iter().map(|_| Vec::new()).collect();
        for (i, ids) in done {
            let all = &mut out[parts[i].text];
            let mut ids = ids?;
            if all.is_empty() { *all = ids } else { all.append(&mut ids) }
        }
        Ok(out)
    }

    /// The bytes that ids stand for; a special token gives its own text.
    ///
    /// # Errors
    /// [`TokenizerError::UnknownId`] for an id that no token has.
    pub fn decode(&self, ids: &[u32]) -> Result<Vec<u8>> {
        let mut out = Vec::with_capacity(ids.len() * 4);
        for (position, &id) in ids.iter().enumerate() {
            let bytes = self.token_bytes(id).ok_or_else(|| TokenizerError::UnknownId {
                id,
                position,
                vocab_size: self.vocab_size(),
            })?;
            out.extend_from_slice(bytes);
        }
        Ok(out)
    }

    fn borrow_scratch(&self) -> Scratch {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop().unwrap_or_default()
    }

    fn return_scratch(&self, scratch: Scratch) {
        /// More than this many callers at once are rare; what they leave is dropped.
        const KEPT: usize = 64;
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        if idle.len() < KEPT {
            idle.push(scratch);
        }
    }
}
