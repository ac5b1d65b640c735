//! Sample order, packing and batches from token shards.
//!
//! ```text
//! token stream of a split:  t0 t1 t2 t3 t4 t5 t6 t7 t8 …       (documents one after another)
//! windows, sequence 4:      [t0 t1 t2 t3|t4]                   inputs t0..t3, targets t1..t4
//!                                       [t4 t5 t6 t7|t8]       inputs t4..t7, targets t5..t8
//! epoch e:                  windows in the order of a keyed bijection of [0, N)
//! sample counter c:         epoch c div N, place c mod N
//! ```
//!
//! Packing is *concatenate and cut*, as GPT data sets do: windows of S + 1 tokens that share one token with their
//! neighbour, so that every token is a target at most once in an epoch. [`Loader`] serves them for training in
//! an order that is a pure function of (seed, sample counter): nothing is stored, resuming costs nothing, and
//! neither batch size nor number of ranks changes what sample c is. With a [`Mixture`], a sample comes from one of the
//! split's components, chosen by their weights, and is the next of that component's own order. [`Loader::of_documents`] serves documents
//! instead of windows, in micro-batches of a few lengths. [`EvaluationWindows`] covers a split in
//! reading order, every token exactly once.
//!
//! Where shards have a mask of scored tokens, the targets that are not scored are [`IGNORED`] in every batch: a target is scored if the
//! token that it is, the one after its input, is. The mask changes no order: samples without a scored target keep their place, so
//! that an epoch is the same with and without a mask. [`Loader::count_targets`] counts the targets of samples without reading them.
//!
//! A warm [`Batch`] allocates nothing. A [`Prefetcher`] fills batches on threads of its own before they are wanted.
#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

mod batch;
mod config;
mod documents;
mod error;
mod evaluation;
mod grouped;
mod mixing;
mod mixture;
mod order;
mod prefetch;
mod state;
mod training;

pub use batch::{Batch, IGNORED, Sample, TargetCounts};
pub use config::{CacheKind, LoaderConfig, OrderKind};
pub use documents::DocumentConfig;
pub use error::LoadError;
pub use evaluation::EvaluationWindows;
pub use grouped::{EpochOrder, Grouping};
pub use mixing::{MOST_COMPONENTS, Mixture, Share, Taken};
pub use mixture::{
    Blend, blend, capped_weights, effective_epochs, exhaustive_blend, normalised, temperature_weights,
    wanted_samples,
};
pub use order::{ORDER_VERSION, Permutation};
pub use prefetch::{
    BatchReader, BatchRequest, BatchRequests, MOST_BATCHES_AHEAD, PrefetchConfig, PrefetchShape, Prefetcher,
};
pub use state::{LoaderState, MixtureShare, OrderDifference, OrderOrigin};
pub use training::Loader;
