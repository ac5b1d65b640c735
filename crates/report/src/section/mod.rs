//! The sections of the report, one file each: facts in, HTML out, nothing if there is nothing to say.

pub(crate) mod curves;
pub(crate) mod data;
pub(crate) mod environment;
pub(crate) mod headline;
pub(crate) mod loads;
pub(crate) mod plan;
pub(crate) mod samples;
pub(crate) mod tasks;
pub(crate) mod timeline;
