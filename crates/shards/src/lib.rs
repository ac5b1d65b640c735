//! The token-shard file format: writer, reader, index, checksums.
//!
//! A tokenised corpus is stored as *shard files*: flat little-endian token arrays with a document index,
//! written once and then read at positions. Every byte of a file is covered by a checksum, so that a torn, cut,
//! foreign or silently changed file is refused by name instead of being trained on. `README.md` beside this
//! crate specifies the format byte by byte.
//!
//! - [`ShardWriter`] writes one file: temporary name, fsync, rename, fsync of the directory.
//! - [`ShardReader`] reads one file: header, trailer and checksums are verified on open, token blocks and pieces of the document index on first
//!   touch.
//! - [`ShardSetWriter`] and [`ShardSet`] hold one split (train, validation) in several files, listed by a
//!   `shards.json` that is written last: its presence means that the split is complete.
//! - Documents may have tokens that are not scored, such as the questions of a chat ([`ShardSetWriter::push_scored`]). A file with such a
//!   token has a mask of one bit a token, which every reader must have; readers replace unscored tokens among targets
//!   ([`ShardSet::replace_unscored`]).
//!
//! A token costs 2 bytes up to a vocabulary of 65,536 and 4 bytes above; a document costs 32 bytes of index.
#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

mod cache;
mod component;
mod error;
mod file;
mod format;
mod mask;
mod meta;
mod reader;
mod repeated;
mod set;
mod set_index;
mod set_writer;
mod writer;

#[cfg(test)]
#[allow(clippy::unwrap_used)] // A failed unwrap in a test is a failed test with a backtrace.
mod cache_tests;
#[cfg(test)]
#[allow(clippy::unwrap_used)] // A failed unwrap in a test is a failed test with a backtrace.
mod damage_tests;
#[cfg(test)]
#[allow(clippy::unwrap_used)] // A failed unwrap in a test is a failed test with a backtrace.
mod mask_tests;

pub use cache::{CacheConfig, CachePolicy};
pub use component::Component;
pub use error::{Part, ScoredRangeFault, ShardError};
pub use format::{BLOCK_BYTES, VERSION};
pub use meta::{DocumentId, Fingerprint, ShardMeta, token_bytes_for};
pub use reader::{Document, ReadCounters, ShardReader};
pub use repeated::{RepeatedBlocks, repeated_blocks};
pub use set::ShardSet;
pub use set_index::{INDEX_FILE, INDEX_VERSION};
pub use set_writer::{DEFAULT_FILE_BYTES, SetSummary, ShardSetWriter, SplitMeta};
pub use writer::{ShardSummary, ShardWriter};
