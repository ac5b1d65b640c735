//! Storage of activations, and computations of passes besides the model.

use crate::teacher::TeacherOperands;
use bessemer_arch::Unit;
use bessemer_program::UnitProgram;
use bessemer_units::{CompressionPlan, OffloadPlan, ParamStorage, RecomputePlan, Storage};

/// Storage of activations in a decoder made to train. A decoder made to score keeps f32, and nothing longer than a layer.
#[derive(Debug, Default, Clone, PartialEq)]
pub struct ActivationConfig {
    /// Element type of activations and of their gradients.
    pub storage: Storage,
    /// Values that the backward pass of each layer recomputes.
    pub recompute: RecomputePlan,
    /// Lengths that the sequences of a micro-batch may have besides [`crate::Shape::seq`], which is the longest; in any order. Each
    /// has programs of its own, in the memory of the longest. One made to score has none.
    pub lengths: Vec<usize>,
    /// Form in which each layer stores its activations for the backward pass.
    pub compression: CompressionPlan,
    /// Layers whose stored activations are in a second memory until the backward pass, accessed through [`crate::Ranks::offload`] and
    /// [`crate::Ranks::reload`].
    pub offload: OffloadPlan,
    /// Lets operands of a backward pass use the memory of gradients that it writes later. Gradients then last until the next
    /// forward pass, and no pass adds to them: for steps of one micro-batch.
    pub in_gradients: bool,
    /// Passes of the caller's own over the programs of one device, before those of [`crate::Rewrite`], in their order.
    pub passes: Vec<UnitPass>,
    /// Types of parameters and of their gradients, which a grid's programs gather and sum in values of these types.
    pub params: ParamStorage,
    /// Operands of a student's loss from its teacher ([`crate::Decoder::set_teacher`]), if there is one. A decoder made to score has none.
    pub teacher: Option<TeacherOperands>,
}

/// A pass over the program of a unit as the model's code has recorded it: it may add operators, values and auxiliary losses
/// ([`bessemer_program::Recorder::of`]). The layout changes a unit later, so a pass is written for one device, too.
#[derive(Debug, Clone, Copy)]
pub struct UnitPass {
    /// Its name: passes of one name are the same.
    pub name: &'static str,
    /// Rewrites a unit.
    pub apply: fn(Unit, UnitProgram) -> UnitProgram,
}

impl PartialEq for UnitPass {
    fn eq(&self, other: &UnitPass) -> bool {
        self.name == other.name
    }
}

impl Eq for UnitPass {}

/// Rows of logits made at a time by [`crate::Decoder::logits`].
pub(crate) const LOGIT_ROWS: usize = 16;
