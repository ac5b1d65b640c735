//! The integration tests of this crate as one program: each test program costs a link.

mod dry_run;
mod evaluation;
mod fill;
mod overflow;
mod pipelines;
mod snapshot;
mod staleness;
