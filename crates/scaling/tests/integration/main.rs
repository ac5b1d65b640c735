//! Scaling laws against the figures of their papers.

mod fits;
mod laws;
