//! Deduplication: side plans that say which rows repeat others.

pub(crate) mod exact;
