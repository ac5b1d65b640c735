//! Named profiles of rules that keep, edit or drop documents with the exact semantics of their origin, and predicates
//! over document columns.
//!
//! A profile is a value: a list of steps in TOML (`profiles/`, or a user's file). Most steps compare one measure of the
//! document with limits; others edit it line by line. One computation serves the filter ([`Profile::evaluate_with`]) and
//! the explanation ([`Profile::explain`]).
//!
//! ```
//! use bessemer_rules::{DocumentView, Profile, Verdict};
//! let profile = Profile::named("gopher-quality").expect("it is carried");
//! let outcome = profile.evaluate(&DocumentView::of("I am too small..."));
//! assert_eq!(outcome.verdict, Verdict::Drop("gopher_short_doc".into()));
//! ```
#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

mod comments;
mod concatenated;
mod config;
mod edit;
mod error;
mod evaluate;
mod features;
mod fineweb2;
mod hashing;
mod interned;
mod lines;
mod measures;
mod predicate;
mod profile;
mod read;
mod repetition;
mod words;

pub use config::{build_profiles, check_columns};
pub use edit::{C4Options, CorrectionOptions, PhrasePosition};
pub use error::{Error, Result};
pub use evaluate::{DocumentView, Outcome, RuleResult, RuleVerdict, Verdict};
pub use features::Scratch;
pub use lines::Lines;
pub use measures::{MEASURES, MeasureSpec};
pub use predicate::{METADATA_PREFIX, Predicate, Row, Value, json_field, json_value};
pub use profile::{Profile, ProfileFile, StepFile};
pub use repetition::Variant;
pub use words::WordSegmenter;

/// Version of the verdicts and edited texts that this crate makes. Raised whenever one of them changes for the same input and configuration:
/// finished corpora are reused under it.
pub const VERSION: u32 = 2;
