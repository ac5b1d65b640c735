//! Normal forms of text, and how it is cut into words, lines, sentences and n-grams.
