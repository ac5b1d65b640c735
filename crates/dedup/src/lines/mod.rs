//! Lines and sentences that repeat: the first occurrence stays, later ones are cut out of their documents.
//!
//! | unit | what is compared | key | source |
//! |---|---|---|---|
//! | lines | a line in `cc_net`'s normal form for deduplication; blank lines stay | first 8 bytes of SHA-1 | cc_net (Wenzek et al. 2020) |
//! | sentences | every span of 3 consecutive sentences, each simplified | first 8 bytes of SHA-1 | C4 (Raffel et al. 2020), datatrove |
//!
//! As a plan: keys travel, texts do not: 8 bytes a line or sentence leave the row; shuffle by key, sort by (key, split, file,
//! row, place), all but the first of each key go back to their documents. So the result depends neither on threads nor
//! on memory, and a key's first occurrence is the lowest, in the training split if it is there at all.

mod cut;
mod stages;

pub use cut::{TextEdit, line_keys, sentence_keys, without_lines, without_sentences};
pub use stages::stages;
