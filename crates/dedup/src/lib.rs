//! Deduplication: exact, Bloom, SimHash, MinHash with verification, substrings, lines and paragraphs, semantic.
