//! What a finished corpus consists of, and how it is written.

pub(crate) mod attribution;
pub(crate) mod built_with;
pub(crate) mod card;
pub(crate) mod documents;
pub(crate) mod durable;
pub(crate) mod extra;
pub(crate) mod parquet_file;
pub(crate) mod scores;
pub(crate) mod series;
pub(crate) mod summary;
