//! The integration tests of this crate as one program: each test program costs a link.

mod fasttext_models;
mod hostile;
mod kenlm_models;
mod sentencepiece;
