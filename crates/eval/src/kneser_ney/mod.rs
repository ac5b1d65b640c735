//! Interpolated modified Kneser-Ney n-gram models over bytes: the baseline that a neural model has to beat.
//!
//! Chen and Goodman, "An empirical study of smoothing techniques for language modeling" (TR-10-98, Harvard, 1998),
//! with the conventions of Heafield et al., "Scalable modified Kneser-Ney language model estimation" (ACL 2013).
//! A document `x` of symbols is the sequence `<s> x </s>` by itself; contexts do not reach across documents. A fragment
//! `y` from the middle of a document, as in the windows that a neural model is trained on, is the sequence `<f> y`.
//!
//! For an n-gram `hw` (context `h`, symbol `w`) of order `n`:
//!
//! ```text
//! c(hw)   = occurrences                    if n is the model's order or hw begins with <s> or <f>
//!         = distinct symbols before hw     otherwise
//! p(w|h)  = max(c(hw) - D_n(c(hw)), 0) / S(h)  +  g(h) p(w|h')       h' = h without its first symbol
//! S(h)    = sum over w of c(hw)
//! g(h)    = sum over w of D_n(c(hw)) / S(h)        (1 where h was never followed by anything)
//! p(w|)   falls back on 1/|V|, V = the alphabet and </s>
//! D_n(k)  = k - (k+1) Y t_{k+1}/t_k  for k = 1, 2, 3 and more;  Y = t_1/(t_1 + 2 t_2),  t_k = n-grams with c = k
//! ```
//!
//! Where some `t_k` (k = 1..4) is 0, or a discount leaves (0, k], the order takes D = (0.5, 1, 1.5). (Heafield et al.
//! let a discount of exactly 0 stand; then a context could give an unseen symbol the probability 0, and a bit count
//! would be infinite.) The probabilities of all symbols and `</s>` sum to 1 after every context.
//!
//! **Bits per byte**, here and for neural models: all nats of the model, the end-of-document symbols' included, over
//! ln 2 and over the bytes of the text. The end of a document costs bits but counts no bytes.
//!
//! Counting packs the last `order` symbols into a `u64` and sorts: O(n log n) integer work, in parts that threads share.
//! The n-grams of each lower order are derived from the distinct ones of the order above. The finished model is a
//! trie in sorted arrays (6 bytes for an n-gram of the highest order, 22 for a lower one) and holds counts, so
//! probabilities are computed in f64 without loss. Scoring keeps the nodes of all suffixes of the history and takes
//! at most `order` binary searches among at most |V| neighbours for a symbol.

mod count;
#[cfg(test)]
mod tests;
mod trie;

pub use count::{KneserNeyTrainer, NgramError};
pub use trie::{KneserNey, Scorer};

/// Default order: five bytes, a context of four.
pub const DEFAULT_ORDER: u32 = 5;

/// Symbols of a byte-level model besides the end of a document.
pub const BYTES: u16 = 256;

/// Default bound on the memory of training: 1.5 GiB.
pub const DEFAULT_MEMORY: u64 = 3 << 29;

/// Loss of a text under an n-gram model.
#[derive(Debug, Default, Clone, Copy, PartialEq)]
pub struct NgramScore {
    /// Bits of all symbols, ends of documents included.
    pub bits: f64,
    /// Bytes of the text.
    pub bytes: u64,
    /// Documents.
    pub documents: u64,
    /// `bits / bytes`; 0 without a byte.
    pub bits_per_byte: f64,
}

/// Sizes of a trained model, for the report of a run.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct NgramSizes {
    /// Distinct n-grams by order, from 1; `<s>`, and `<f>` if there was a fragment, are
    /// counted among those of order 1.
    pub ngrams: Vec<u64>,
    /// Bytes of the tables.
    pub table_bytes: u64,
    /// Symbols that training saw, ends of documents included.
    pub symbols: u64,
    /// Documents whose end training saw.
    pub documents: u64,
}

impl KneserNey {
    /// Trains a byte-level model on documents. `progress` is called now and then with the bytes taken in so far.
    ///
    /// # Errors
    /// See [`KneserNeyTrainer::new`] and [`KneserNeyTrainer::push`].
    pub fn train<D: AsRef<[u8]>>(
        documents: impl IntoIterator<Item = D>,
        order: u32,
        threads: usize,
        progress: &mut dyn FnMut(u64),
    ) -> Result<KneserNey, NgramError> {
        let mut trainer = KneserNeyTrainer::new(BYTES, order, threads, DEFAULT_MEMORY)?;
        let (mut bytes, mut reported) = (0u64, 0u64);
        for document in documents {
            let document = document.as_ref();
            trainer.push_bytes(document)?;
            trainer.end_document()?;
            bytes += document.len() as u64;
            if bytes - reported >= 1 << 20 {
                progress(bytes);
                reported = bytes;
            }
        }
        let model = trainer.finish()?;
        progress(bytes);
        Ok(model)
    }

    /// Bits of one document of bytes, with or without the cost of its end. Infinite for a byte outside the alphabet
    /// of a model that was not trained on bytes.
    pub fn bits(&self, document: &[u8], include_end: bool) -> f64 {
        self.symbol_nats(document.iter().map(|&b| u16::from(b)), include_end) / std::f64::consts::LN_2
    }

    /// Scores documents, each with its end.
    pub fn score<D: AsRef<[u8]>>(&self, documents: impl IntoIterator<Item = D>) -> NgramScore {
        let mut score = NgramScore::default();
        for document in documents {
            let document = document.as_ref();
            score.bits += self.bits(document, true);
            score.bytes += document.len() as u64;
            score.documents += 1;
        }
        if score.bytes > 0 {
            score.bits_per_byte = score.bits / score.bytes as f64;
        }
        score
    }
}
