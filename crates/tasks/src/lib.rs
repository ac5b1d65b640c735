//! Tasks for language models: from documents to requests, from answers to scores. The model itself is somebody else's.
//!
//! - [`Catalog`]: tasks by name: task files of the lm-evaluation-harness (EleutherAI), the formats of BLiMP, CrowS-Pairs, WinoBias and BBQ, and the small
//!   [`families`] that are generated here.
//! - [`kola`]: generated tasks by the cognitive levels of KoLA, and the facts that they ask about.
//! - [`Task::requests`]: what a model is asked, exactly as the harness asks it. [`Task::score`]: what its [`Answer`]s are worth, with standard errors
//!   and a signature.
//!
//! Reads files; no network, no Python, no random source but seeds.
#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

mod catalog;
mod config;
mod data;
mod error;
pub mod families;
mod filters;
pub mod formats;
pub mod kola;
mod metrics;
mod python;
mod task;
mod template;
mod yaml;

pub use catalog::{Catalog, Group, GroupScores, Selection};
pub use config::{Generation, Level};
pub use data::{Document, ParquetReader, read as read_documents};
pub use error::TaskError;
pub use task::{
    Answer, Calibration, DocumentRequests, DocumentValues, FEWSHOT_SEED, GroupScore, GroupedScore,
    PerturbedRequests, Request, Score, Task, TaskRequests, TaskScores, words,
};
