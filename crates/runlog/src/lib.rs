//! Typed events and records of a run.
