//! Judgement of texts by people and by models.
//!
//! - [`Study`]: the texts and the question: which of two is better ([`Question::Pairs`]), or how good is one ([`Question::Scale`]).
//! - [`Store`]: a study and its judgements in one file of JSON lines that other tools read (README.md).
//! - [`next_task`]: who judges what next, a pure function of the seed, the judge and what has been judged. Judges do not see which system
//!   wrote what; which of two stands left is drawn for each judge; one task in ten comes again, turned round, so that a judge's own
//!   constancy is known.
//! - [`Results`]: ratings (Bradley and Terry 1952) and means with intervals, agreement (Krippendorff 2011), constancy, the pull of the left side,
//!   HUSE (Hashimoto et al. 2019).
//! - [`model`]: judges that are models, their templates, and how far they agree with people.
//! - [`Page`]: the page of the judges, over HTTP; [`exchange`]: sheets for judges without it.
#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

mod assign;
mod error;
pub mod exchange;
mod journal;
#[cfg(feature = "migrate")]
mod migrate;
pub mod model;
mod page;
mod results;
mod store;
mod study;
mod verdicts;

pub use assign::{Judged, Task, TaskKey, next_task};
pub use error::JudgeError;
#[cfg(feature = "migrate")]
pub use migrate::migrate;
pub use page::Page;
pub use results::{JudgeFacts, Likert, Rating, Results};
pub use store::{Judgement, Store};
pub use study::{Item, Question, Study, SystemText};
pub use verdicts::{ModelJudge, Verdict};
