//! The step, resuming, supervision of a run.
