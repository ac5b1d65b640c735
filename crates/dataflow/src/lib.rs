//! A plan is a source and a list of stages over Arrow record batches; the executor here runs it on local threads within a memory budget.
//!
//! [`Plan`] is a value: it says what happens to rows and names every function. [`Executor`] runs it on the
//! threads of one machine; an executor on a cluster would read the same value. What the stages promise, and why
//! the result depends neither on threads nor on memory, is written in the crate's README and in [`Stage`].
//!
//! Crates with algorithms supply functions of a batch ([`BatchMap`], [`FlatMap`]), folds of runs of equal key
//! ([`Reducer`]) and operators that see all rows ([`PipelineBreaker`]), and lists of [`Stage`]s made of them.
#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

mod batch;
mod batch_file;
mod error;
mod execute;
mod plan;
mod source;

pub use batch::{column, optional, select, side_rows, with_columns};
pub use batch_file::scan_files;
pub use error::{Error, Result};
pub use execute::{Executor, held_bytes, join, partitions_of, scatter};
pub use plan::{
    BatchMap, BreakerContext, FlatMap, Fold, Input, Output, PipelineBreaker, Plan, Reducer, Sink, Stage,
};
pub use source::{Batches, KeptRows, Morsel, Scan, Source, morsel};
