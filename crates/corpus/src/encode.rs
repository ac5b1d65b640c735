//! Documents as tokens: of plain text, or as a caller encodes them.

use bessemer_tokenizer::Tokenizer;
use std::ops::Range;
use std::sync::Arc;

/// A document as tokens.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct EncodedDocument {
    /// Its tokens, with those that encode no text, such as a separator.
    pub tokens: Vec<u32>,
    /// Bytes of the text that they encode.
    pub text_bytes: u64,
    /// Ranges of the tokens that are scored, ascending and without overlaps; `None`: all of them.
    pub scored: Option<Vec<Range<usize>>>,
}

/// Encodes documents for [`crate::encode_to_shards`]: a function of the text, so that shards are a function of the corpus.
pub trait DocumentEncoder: Send + Sync {
    /// Everything but the tokenizer that the tokens depend on, such as the hash of a chat template. Shards of another identity are made
    /// again. Empty for plain text.
    fn identity(&self) -> String;

    /// Encodes the text of a document as documents of the shards, which stay together; none leaves it out.
    ///
    /// # Errors
    /// Defect of the text: wanted and found. The caller names the document.
    fn encode(&self, text: &str) -> Result<Vec<EncodedDocument>, String>;
}

/// Encodes all of a text, followed by the end-of-text token where the tokenizer has one. All tokens are scored.
pub(crate) struct PlainText(pub(crate) Arc<Tokenizer>);

impl DocumentEncoder for PlainText {
    fn identity(&self) -> String {
        String::new()
    }

    fn encode(&self, text: &str) -> Result<Vec<EncodedDocument>, String> {
        let mut tokens = self.0.encode(text.as_bytes()).map_err(|e| e.to_string())?;
        tokens.extend(self.0.end_of_text());
        Ok(vec![EncodedDocument { tokens, text_bytes: text.len() as u64, scored: None }])
    }
}
