//! Lines, paragraphs and sentences that repeat.
