//! Scores of documents: language, quality, perplexity, importance, tags; fastText and KenLM models, read and trained.
