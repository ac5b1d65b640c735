//! Perplexity of a document, as cc_net computes it.

use super::LanguageModel;
use bessemer_text::cc_net_normalize;

/// Cuts a normalised line into the pieces that a model was estimated over.
pub trait Pieces: Send + Sync {
    /// Calls `each` with the pieces in order.
    fn for_each(&self, line: &str, each: &mut dyn FnMut(&str));
}

/// Words between white space: for models estimated over words.
#[derive(Debug, Clone, Copy, Default)]
pub struct WhiteSpace;

impl Pieces for WhiteSpace {
    fn for_each(&self, line: &str, each: &mut dyn FnMut(&str)) {
        super::words(line).for_each(each);
    }
}

/// 10^(-sum of log10 / sum of (pieces + 1)) over the lines of `text`, each normalised as cc_net does. The models of
/// cc_net were estimated over pieces of [`crate::sentencepiece::SentencePiece`]; [`WhiteSpace`] is for models over words.
pub fn perplexity_of_document(model: &LanguageModel, pieces: &dyn Pieces, text: &str) -> f64 {
    let (mut log10, mut count) = (0.0f64, 0u64);
    for line in text.split('\n') {
        let line = cc_net_normalize(line);
        let mut state = model.begin();
        pieces.for_each(&line, &mut |piece| {
            log10 += model.score_word(&mut state, piece).log10 as f64;
            count += 1;
        });
        log10 += model.score_id(&mut state, model.end).log10 as f64;
        count += 1;
    }
    10f64.powf(-log10 / count as f64)
}
