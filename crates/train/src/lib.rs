//! The run: the training step, saving and resuming, evaluation on the way.
//!
//! ```text
//! shards ─► loader.batch(sample counter) ─► forward_backward x accumulation ─► optimizer ─► one Step record
//!                                                    every so often: Eval, Sample, Save records
//! ```
//! State of a run is small: parameters, optimizer moments, and one number, the samples consumed. Everything random is a
//! function of (seed, step, name, element), so a run that was killed and goes on has the same bits as one that never
//! stopped.

mod curvature;
mod error;
mod evaluation;
mod input;
mod memory;
mod mixture;
mod observer;
pub mod parity;
mod spikes;
mod state;
pub mod study;
mod trainer;

pub use curvature::Capturing;
pub use error::TrainError;
pub use input::{Peak, TrainerInput};
pub use memory::{MemoryPlan, refuse_what_cannot_fit};
pub use mixture::{repeated_too_often, run_mixture};
pub use observer::{Observer, Silent};
pub use spikes::{Rollback, SpikeState};
pub use state::{RunIdentity, TrainState, checkpoints};
pub use trainer::{Closed, Outcome, Trainer};
