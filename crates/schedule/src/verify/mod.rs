//! Checks that a program is sound, and counts what it takes.
//!
//! Sound means:
//! - every micro-batch passes each stage of its route once forward and once backward, the backward whole or as input part and
//!   then weight part, and each pass comes after what it needs;
//! - every message is sent once, after the pass that makes it, and received once, before the pass that needs it;
//! - both passes of a micro-batch through a stage name one version of the weights, and that version is there;
//! - every chunk has one Reduce, Step and Gather for each update, in this order, behind all gradient parts of the update;
//! - executed with sends that do not wait, receives that do, and reductions that wait for every holder of the stage, all
//!   ranks come to the end of their lists.
//!
//! One walk over each list and one over the program: linear in its instructions.

mod rank;
mod run;

use crate::communicate::Map;
use crate::{Flow, Program, ScheduleError};

/// Limits of a program.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Limits {
    /// Most live activations of a rank, in those of one micro-batch on all chunks that it visits there (M_B).
    pub live: Option<f64>,
    /// Share of them that stays from the input part of a backward to its weight part, M_W/M_B.
    pub weight_share: f64,
    /// Most versions of a chunk's weights.
    pub versions: Option<usize>,
}

impl Default for Limits {
    /// No limit; half of the activations wait for the weight part.
    fn default() -> Self {
        Self { live: None, weight_share: 0.5, versions: None }
    }
}

/// Memory and messages of a sound program.
#[derive(Debug, Clone, PartialEq)]
pub struct Report {
    /// Largest number of live activations of each rank, in those of one micro-batch (M_B).
    pub peak_live: Vec<f64>,
    /// Most versions of a chunk's weights that each rank keeps at once: the latest, and older ones still to be read.
    pub weight_versions: Vec<usize>,
    /// Messages between ranks.
    pub messages: usize,
    /// The first message that is received before one that the same rank sent earlier to the same receiver. Without one, an
    /// engine needs no tags: each message is the next from its sender.
    pub out_of_order: Option<OutOfOrder>,
}

/// A message that overtakes another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OutOfOrder {
    /// Sending rank.
    pub from: usize,
    /// Receiving rank.
    pub to: usize,
    /// Position of the Receive in the receiver's list.
    pub position: usize,
    /// Content of the message.
    pub flow: Flow,
    /// Of which micro-batch.
    pub micro: usize,
}

/// Checks a program that has its communication.
///
/// # Errors
/// The first thing that is wrong, with rank, position and instruction; [`ScheduleError::Deadlock`] with what each rank
/// waits for; [`ScheduleError::Memory`] where a limit is passed.
pub fn verify(program: &Program, limits: &Limits) -> Result<Report, ScheduleError> {
    let map = Map::of(program)?;
    let mut peak_live = Vec::with_capacity(program.ranks());
    let mut weight_versions = Vec::with_capacity(program.ranks());
    for rank in 0..program.ranks() {
        let taken = rank::check(program, &map, rank, limits)?;
        peak_live.push(taken.live);
        weight_versions.push(taken.versions);
    }
    let (messages, out_of_order) = run::run(program, &map)?;
    Ok(Report { peak_live, weight_versions, messages, out_of_order })
}
