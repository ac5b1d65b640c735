//! Loss, perplexity, bits per byte, n-gram baselines, text generation.
