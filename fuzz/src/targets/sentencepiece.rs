//! SentencePiece models (protobuf); what is read cuts text into pieces.

use bessemer_score::sentencepiece::SentencePiece;

/// Runs the target on one input.
pub fn run(data: &[u8]) {
    if let Ok(model) = SentencePiece::read(data, "fuzz") {
        model.pieces("some words, and \u{e9}\u{4e2d} others");
        model.pieces("");
    }
}
