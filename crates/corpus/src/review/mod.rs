//! People in the loop of the data factory (Gan et al. 2023, Ziya2, section 2.1): documents that people review, and the changes of
//! rules and thresholds that follow from their verdicts.
//!
//! - [`ReviewSample::draw`]: a sample of kept and dropped documents, stratified by the reason of a drop, and by the measure in which a
//!   kept document differs most from the others, so that small groups of junk are in it.
//! - [`Decision::of`]: limits that drop what people would drop, limits that drop what people would keep, and precision and recall of
//!   the filters before and after, estimated with the weights of the sample.
//!
//! Only drops by the text are reviewed: by `[corpus.clean]`, by limits of profiles and by predicates. Whether a document is a
//! duplicate, damaged or part of an evaluation set is no question of taste.

mod decide;
mod estimate;
mod limits;
mod sample;

pub use decide::{Change, Decision, DecisionSettings, ReasonPrecision, RecipeEdit};
pub use estimate::{Estimate, FilterQuality};
pub use limits::NewLimit;
pub use sample::{Feature, ReviewDocument, ReviewOptions, ReviewSample, Stratum};

/// Side of a limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Side {
    /// Documents below it are dropped.
    Below,
    /// Documents above it are dropped.
    Above,
}
