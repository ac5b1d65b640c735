//! Metrics against the programs that define them, and against figures of papers and their tests.

mod counted;
mod golden;
mod published;
mod sets;
mod wordnet;
