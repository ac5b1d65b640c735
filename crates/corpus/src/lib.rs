//! Sources, the plan that a configuration asks for, documents and shards as its result.
//!
//! [`build`] reads a source (a Cargo workspace's dependencies, a folder, JSON lines, Parquet, web archives, papers, dumps of
//! encyclopedias and forums, one file, or the embedded corpus), cleans it and writes a directory:
//!
//! | file | holds |
//! |---|---|
//! | `documents-train-00000.parquet`, … | kept documents: id, source, version, licence, path, text, … |
//! | `documents-validation-00000.parquet`, … | the same, held out by source name |
//! | `documents-train-web-00000.parquet`, … | of several sources, those of each component, a source or a slice of one |
//! | `dropped.parquet` | every dropped document: reason, measured value, beginning of its text |
//! | `ATTRIBUTION.md` | sources with version, licence, files, bytes |
//! | `card.html` | the data card: removal by rule and source, distributions, samples |
//! | `corpus.json` | statistics, and the hashes of the other files; written last |
//!
//! and beside it `NAME.tombstones.json`, if documents were [deleted](delete()): the list of those that no build takes up again.
//!
//! [`CorpusReader`] reads it back. The work in between is a [`bessemer_dataflow::Plan`]: a value that
//! says what happens to rows, run on local threads within a memory budget. The result is a pure function of
//! configuration and input: not of threads, memory or interruptions.
#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

mod build;
mod chats;
mod check;
mod components;
mod compose;
mod cut;
mod delete;
mod dialogue;
mod encode;
mod error;
mod evaluate;
mod held_out;
mod identity;
mod inspect;
mod output;
mod parts;
mod read;
mod remote;
mod require;
pub mod review;
mod rule;
mod sample;
mod score;
mod source;
mod split;
mod tokenize;
mod tombstone;
mod verify;

pub use bessemer_documents::{HEAD_BYTES, Split};
pub use build::{BuildContext, Built, Progress, build, build_on, explain};
pub use chats::{chat_of_text, pair_of_text, text_of_chat};
pub use check::check;
pub use delete::{Deletion, delete};
pub use encode::{DocumentEncoder, EncodedDocument};
pub use error::{Error, Result};
pub use evaluate::{Evaluation, Measure, ProfileEvaluation, REVIEW_FILE};
pub use identity::VERSIONS;
pub use inspect::{InspectFilter, Inspected, NamedDocument};
pub use output::card::{RunCard, data_card, run_card};
pub use output::summary::{
    ATTRIBUTION_FILE, BuiltWith, CARD_FILE, ComponentSummary, CorpusSummary, Count, DROPPED_FILE,
    FORMAT_VERSION, FileSummary, SUMMARY_FILE, ScoreSummary, SourceSummary, SplitSummary,
};
pub use read::{CorpusDocument, CorpusReader};
pub use remote::{Engine, RemotePlan};
pub use sample::{Sample, sample};
pub use source::{
    Access, Listing, Skipped, SkippedFiles, Source, SourceInfo, begins_as_text, check_inputs,
    open_compressed, open_json_lines, repair_json, source_kind_of,
};
pub use split::side_of;
pub use tokenize::{TOKENS_FILE, TokenSummary, Tokenized, document_id, encode_to_shards, tokenize_to_shards};
pub use tombstone::{TOMBSTONES_VERSION, Tombstones, tombstones_path};
pub use verify::{Verification, VerifiedFile, verify};
