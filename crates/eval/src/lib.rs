//! Loss, perplexity, bits per byte, n-gram baselines, text generation.

pub mod kneser_ney;
pub mod ngram_ladder;
pub mod windows;
