//! The configuration of a corpus as values: kinds, defaults and ranges of every key of `[corpus]`.
//!
//! The crates that do the work (`corpus`, `dedup`, `privacy`, `rules`, `score`, `web`) take these values as arguments. A recipe is
//! read and checked without them. `bessemer_corpus::check` also checks what needs them: profiles of rules and predicates.
#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

mod chats;
mod clean;
mod corpus;
pub mod decontaminate;
pub mod dedup;
mod dialogue;
mod evaluate;
mod memory;
pub mod privacy;
mod rules;
pub mod scores;
mod sources;
mod split;
pub mod urls;

pub use chats::{ChatsConfig, LongChats, ScoredAnswers};
pub use clean::{CleanConfig, InvalidUtf8, LongTexts, Scope};
pub use corpus::{CorpusConfig, SourceKind};
pub use dialogue::DialogueConfig;
pub use evaluate::EvaluateConfig;
pub use memory::StageBudget;
pub use rules::{RulesConfig, is_profile_path};
pub use sources::{ComponentConfig, MOST_COMPONENTS, MixConfig, SliceConfig, SourceConfig};
pub use split::{SplitBy, SplitConfig};

/// Errors with the key, its value and its range, unless the value is in it.
fn in_range(key: &str, value: f64, low: f64, high: f64) -> Result<(), String> {
    if value.is_finite() && value >= low && value <= high {
        Ok(())
    } else {
        Err(format!("{key} = {value}: expected a number from {low} to {high}"))
    }
}
