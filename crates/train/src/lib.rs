//! Training runs: the step, checkpoints and resuming, evaluation while training.
//!
//! ```text
//! shards ─► loader.batch(sample counter) ─► Runner: passes of every micro-batch ─► spike check ─► Runner: update ─► Step record
//!                                           every so often: Eval, Sample, Save records
//! ```
//! [`Runner`] is the only code that steps: the trainer, `parity`, `study` and the benchmarks of `bessemer-bench` use it, and
//! evaluation scores its batches through it. The one exception is the reference of asynchronous schedules in `parity`, which
//! must not share code with the code that it is compared with.
//!
//! State of a run is small: parameters, optimizer moments, and one number, the samples consumed. Everything random is a
//! function of (seed, step, name, element), so a run that was killed and resumes has the same bits as one that never
//! stopped.
#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

mod early_stop;
mod error;
mod evaluation;
mod held_out;
mod input;
mod integrity;
mod memory;
mod mixture;
mod observer;
mod offload;
mod predicted;
mod preferences;
mod runner;
mod simulated;
mod skipped;
mod slices;
mod spikes;
mod state;
mod traffic;
mod trainer;

pub use early_stop::EarlyStopState;
pub use error::TrainError;
pub use input::{Peak, TrainerInput};
pub use memory::{
    COPIES, activations, copies_on_host, layout, losses, planned_memory, planned_memory_on,
    refuse_what_cannot_fit, refuse_what_cannot_run,
};
pub use mixture::{repeated_too_often, run_mixture};
pub use observer::{Activity, Observer, Silent};
pub use offload::give_second_memory;
pub use predicted::{PredictedStep, predicted_routed_step, predicted_step};
pub use runner::{Passes, REMEMBERED_COLLECTIVES, Runner, StepResult, on_threads, recorded_threads};
pub use simulated::{SimulatedRanks, SimulatedStep, ask_costs, simulate, simulated_step};
pub use skipped::SkippedSamples;
pub use slices::{RankBytes, checkpoint_bytes, layout_slices};
pub use spikes::{Rollback, SpikeState};
pub use state::{
    BatchOrigin, Difference, InitialState, RunIdentity, TeacherState, TrainState, checkpoints, checkpoints_in,
};
pub use traffic::planned_traffic;
pub use trainer::{
    Closed, MEMORY_RUN_FILE, OpenInitial, OtherCheckpoints, Outcome, Trainer, read_tensors,
    sweep_copies_in_memory,
};
