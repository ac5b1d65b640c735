//! Decontamination: documents that hold questions and answers of evaluation sets.
//!
//! An [`Index`] holds hashes of n-grams of words of the sets: those of the answer, those across the end of the question
//! and the beginning of the answer, and, if wanted, those of the question. A document with one of them is dropped, or the
//! place is cut out with a margin (GPT-3's way).
//!
//! | | words | n-grams | short answers | removal |
//! |---|---|---|---|---|
//! | profile `datatrove` | English words of the simplified text | xxh64 of the words with spaces, 12 words by default | not found | document |
//! | profile `native` | words of UAX #29, each simplified | a rolling hash over hashes of words, 8 to 50 words | question whole, answer soon after it | document or window |

mod index;
mod read;

pub use index::{Decontaminated, Hit, Index, Report, SetCount};
pub use read::{EvaluationSet, Item, ReadError, read};
