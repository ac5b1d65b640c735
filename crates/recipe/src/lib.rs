//! Strict TOML recipes: raw, checked, resolved.
//!
//! **Raw**: layers of TOML, each value with its place. **Checked**: each layer against the JSON Schema of
//! the config type, so that an unknown key, a wrong type or a value out of range is an error with file,
//! line, column and the nearest valid name. **Resolved**: one complete value, which knows for every key
//! where it came from and can be written back as documented TOML.
//!
//! The machinery ([`load`]) works for any config type; [`Recipe`] composes the configs of all crates.
#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

mod builtin;
mod check;
mod early_stop;
mod error;
mod init;
mod integrity;
mod layer;
mod lengths;
mod load;
mod node;
mod origin;
mod planned;
mod preferences;
mod recipe;
mod run;
mod schema;
mod source;
mod starter;
mod teacher;
mod train;
mod tuner;
mod value_de;
mod write;

pub use builtin::{BUILTIN_RECIPES, BuiltinRecipe, builtin_recipe};
pub use early_stop::EarlyStopConfig;
pub use error::{Diagnostic, RecipeError, SHOWN_ERRORS};
pub use init::{InitConfig, InitOptimizer, InitSchedule, continued_recipe};
pub use integrity::{IntegrityConfig, Rerun};
pub use lengths::SequenceLengths;
pub use load::{Loaded, Problem, load, load_at, parse};
pub use origin::{Difference, Origin, Setting, show_diff};
pub use planned::{LayoutPlan, load_planned, set_argument};
pub use preferences::PreferencesConfig;
pub use recipe::{CorpusCheck, Recipe, RecipeUse, load_recipe, load_recipe_for, parse_recipe};
pub use run::{PrometheusConfig, RunConfig, TraceConfig};
pub use schema::json_schema;
pub use source::Location;
pub use starter::{Budget, Starter, TextFacts};
pub use teacher::TeacherConfig;
pub use train::{BatchPlan, OnDivergence, SpikeAction, TrainConfig, TrainedSoFar};
pub use tuner::{ChatFacts, Tuner};
pub use write::to_toml;
