//! Checkpoints: a directory of safetensors files and a manifest that is written last.
//!
//! [`Store`] saves, lists, verifies, loads and removes checkpoints; [`hf`] writes and reads the layout of Hugging Face,
//! [`gguf`] the files of llama.cpp.
//! The format and what a crash may leave behind are specified in this crate's README.
//!
//! - A reader never takes a part of a checkpoint for a whole one, a power cut included (see [`Store::save`]).
//! - Every byte is held against a BLAKE3 checksum before it is used; the damaged file is named.
//! - Memory is bounded by the largest tensor, not by the checkpoint.
//! - Nothing in a file is executed or used as a path.
//!
//! ```
//! use bessemer_checkpoint::{HostTensors, SaveRequest, Store};
//! use bessemer_tensor::host::HostTensor;
//! use bessemer_units::DType;
//!
//! let dir = tempfile::tempdir()?;
//! let store = Store::open(dir.path().join("checkpoints"));
//! let w = HostTensor { name: "w".into(), shape: vec![2], dtype: DType::F32, values: vec![1.0, 2.0] };
//! store.save(SaveRequest {
//!     step: 10,
//!     tokens: 640,
//!     state: serde_json::json!({"sample": 80}),
//!     recipe: String::new(),
//!     tokenizer: None,
//!     tensors: &mut HostTensors::new(std::slice::from_ref(&w)),
//!     max_file_bytes: 1 << 30,
//!     progress: &mut |_done, _total| {},
//! })?;
//! let latest = store.latest_valid()?.expect("one was saved");
//! assert_eq!(latest.loaded.read_tensor("w")?, w);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

mod ahead;
mod base;
mod chunks;
mod compare;
mod compressed;
mod config;
mod copy;
mod difference;
mod element;
mod error;
pub mod format;
pub mod fs;
pub mod gguf;
pub mod hf;
mod load;
mod manifest;
mod memory_config;
mod merged;
mod parts;
mod publish;
mod remote;
mod reshard;
mod retention;
mod save;
mod slices;
mod source;
mod store;
mod verified;

pub use base::base_hash;
pub use compare::{MatchReport, ShapeMismatch};
pub use config::{AsyncChoice, Compression, SaveConfig, SaveConfigError, SaveEvery, SharedReads};
pub use difference::{CheckpointDifference, DescribedDifference, MetadataDifference, TensorDifference};
pub use error::{CheckpointError, Result, Skipped, SourceError};
pub use load::{Loaded, LoadedTensors, ReadPlan};
pub use manifest::{
    FileRecord, MANIFEST_NAME, MAX_MANIFEST_BYTES, Manifest, Previous, SliceRecord, TensorRecord, VERSION,
};
pub use memory_config::{MemoryConfig, MemoryKeep, MemoryOverflow};
pub use merged::MergedAdapters;
pub use remote::{Owner, RemoteGc, RemoteStore, Synchronised};
pub use reshard::ReshardRequest;
pub use retention::Retention;
pub use save::{
    Contents, PartRequest, SaveInProgress, SaveReport, SaveRequest, SaveTicket, TensorSlice, WrittenPart,
    slice_specs,
};
pub use slices::{Copied as SliceElements, Wanted as WantedElements, entry_name};
pub use source::{HostTensors, LentTensors, TensorParts, TensorSource, TensorSpec, TensorsFrom};
pub use store::{
    Accept, CheckpointInfo, GcReport, Latest, PIN_NAME, Scan, Store, parse_step_name, step_name,
};
