//! Interface of a stage's passes to other ranks and to observers.

use bessemer_arch::Unit;
use bessemer_program::{OneDevice, Phase, Ranks};
use bessemer_tensor::{Backend, TensorError};

/// [`Ranks`] of a stage, with notifications when units begin and end.
///
/// Order of the units of a pass, each between its `unit_begins` and `unit_ends`:
/// - forward and backward: embedding, layers from the first on in [`Phase::Forward`]; then in [`Phase::Backward`] the head,
///   whose loss is fused with its gradients and which therefore has no forward phase, the layers from the last on, the
///   embedding;
/// - loss or logits: all in [`Phase::Score`];
/// - a backward pass that is split: all units in [`Phase::BackwardInput`], and later, in the same order, in
///   [`Phase::BackwardWeight`].
///
/// The head reads a tied token table and begins its gradient, the embedding completes it: the table's values may be released in
/// between, its gradient must stay. All other gradients are written only within their unit. A pass that fails stops at once;
/// the unit that had begun does not end.
pub trait StageRanks: Ranks {
    /// The nodes of `unit` that follow read its parameters; in a backward phase they also write its gradients.
    ///
    /// # Errors
    /// An error of other ranks or of the backend.
    fn unit_begins(&mut self, _: &mut dyn Backend, _: Unit, _: Phase) -> Result<(), TensorError> {
        Ok(())
    }

    /// All nodes of this phase of `unit` have run.
    ///
    /// # Errors
    /// Same errors as [`StageRanks::unit_begins`].
    fn unit_ends(&mut self, _: &mut dyn Backend, _: Unit, _: Phase) -> Result<(), TensorError> {
        Ok(())
    }
}

impl StageRanks for OneDevice {}
