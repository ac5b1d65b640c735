//! One verb a file.

pub(crate) mod bench;
pub(crate) mod checkpoint;
pub(crate) mod cluster;
pub(crate) mod compare;
pub(crate) mod completions;
pub(crate) mod config;
pub(crate) mod corpus;
pub(crate) mod doctor;
pub(crate) mod eval;
mod explain;
pub(crate) mod extract;
pub(crate) mod generate;
pub(crate) mod import;
pub(crate) mod init;
pub(crate) mod media;
mod meeting;
pub(crate) mod parity;
pub(crate) mod ranks;
pub(crate) mod report;
pub(crate) mod run;
pub(crate) mod saved_model;
pub(crate) mod schedule;
pub(crate) mod scores;
pub(crate) mod study;
pub(crate) mod tokenizer;
mod told;
mod waiting;
