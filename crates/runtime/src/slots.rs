//! Use of the slots and pending sets of a stage, and the values of its parameters that it reads.

use crate::decoder::Decoder;
use crate::error::ModelError;
use crate::stage::StageConfig;
use crate::step::StepContext;
use bessemer_tensor::View;

/// Operands of the weight part of one split backward pass, in the decoder that returned it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Pending {
    pub(crate) set: usize,
    /// Kept set of the micro-batch's forward pass.
    pub(crate) kept: Option<usize>,
}

/// Content of a slot.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum SlotUse {
    Free,
    /// A forward pass for its loss, with so many scored targets.
    Scored(u64),
    /// A forward pass whose backward pass is pending.
    Training(u64, StepContext),
}

/// Use of each slot and each set.
#[derive(Debug)]
pub(crate) struct Held {
    pub(crate) slots: Vec<SlotUse>,
    /// By slot: number of the micro-batch's length among the shorter ones. It outlives the backward pass, whose gradient is still
    /// to be sent.
    pub(crate) length: Vec<Option<usize>>,
    /// By slot: share of the tokens of its step that are scored targets.
    pub(crate) scored_share: Vec<f64>,
    /// Weights of the targets of the next batch that is written to a slot; empty: all 1.
    pub(crate) weights: Vec<f32>,
    /// Indexed by slot: the kept set of the training pass in it.
    pub(crate) of_slot: Vec<Option<usize>>,
    pub(crate) kept: Vec<bool>,
    pub(crate) pending: Vec<bool>,
}

impl Held {
    pub(crate) fn new(stage: &StageConfig) -> Held {
        let kept = if stage.pending > 0 { stage.slots + stage.pending } else { 0 };
        Held {
            slots: vec![SlotUse::Free; stage.slots],
            length: vec![None; stage.slots],
            scored_share: vec![1.0; stage.slots],
            weights: Vec::new(),
            of_slot: vec![None; stage.slots],
            kept: vec![false; kept],
            pending: vec![false; stage.pending],
        }
    }

    /// Frees a slot.
    pub(crate) fn free(&mut self, slot: usize) {
        self.slots[slot] = SlotUse::Free;
        if let Some(kept) = self.of_slot[slot].take() {
            self.kept[kept] = false;
        }
    }

    /// The first kept set that is free: there are as many as micro-batches can be between forward and weight part. The first
    /// of them every time, so that equal steps use equal memory.
    pub(crate) fn take_kept(&mut self) -> Option<usize> {
        let set = self.kept.iter().position(|used| !used)?;
        self.kept[set] = true;
        Some(set)
    }

    /// A kept set that nothing is in: for a pass that leaves nothing there.
    pub(crate) fn any_kept(&self) -> Option<usize> {
        self.kept.iter().position(|used| !used)
    }
}

impl Decoder {
    /// Frees a slot, e.g. when a step is given up. (The results of a score may also just be replaced.)
    ///
    /// # Errors
    /// A slot that does not exist.
    pub fn stage_release(&mut self, slot: usize) -> Result<(), ModelError> {
        self.used(slot)?;
        self.held.free(slot);
        Ok(())
    }

    /// States the share of the tokens of a step that are scored targets, for the training passes of a slot from here on; 1 before. Losses of
    /// routers are made of all tokens: the share makes them means over these, where token losses are means over scored targets.
    ///
    /// # Errors
    /// A slot that does not exist.
    pub fn stage_scored_share(&mut self, slot: usize, share: f64) -> Result<(), ModelError> {
        self.used(slot)?;
        self.held.scored_share[slot] = share;
        Ok(())
    }

    /// Weights the gradients of the targets of the next batch, in the order of its tokens; `None`: all by 1. The losses have no weights.
    pub fn stage_weigh_targets(&mut self, weights: Option<&[f32]>) {
        self.held.weights.clear();
        self.held.weights.extend_from_slice(weights.unwrap_or_default());
    }

    /// Forgets a pending set.
    ///
    /// # Errors
    /// A set that is not in use.
    pub fn stage_release_pending(&mut self, pending: Pending) -> Result<(), ModelError> {
        self.expect_pending(pending)?;
        self.release(pending);
        Ok(())
    }

    /// The sets of a split backward pass are free.
    pub(crate) fn release(&mut self, pending: Pending) {
        self.held.pending[pending.set] = false;
        if let Some(kept) = pending.kept {
            self.held.kept[kept] = false;
        }
    }

    /// Sets the values that passes read from here on, one view for each of [`Decoder::params`] and of its shape and type: another
    /// version of the weights (asynchronous schedules stash some). `None`: the parameters' own again, which [`Decoder::init`],
    /// [`Decoder::read_params`] and [`Decoder::write_param`] always use. Gradients are written to the same memory as before.
    ///
    /// # Errors
    /// Values that are not those of the parameters (the first that are not are named; nothing has changed then).
    pub fn stage_values(&mut self, values: Option<&[View]>) -> Result<(), ModelError> {
        let found = values.map_or(self.params.len(), <[View]>::len);
        if found != self.params.len() {
            let wanted = self.params.len();
            return Err(ModelError::Stage(format!("wanted values of {wanted} parameters, found {found}")));
        }
        for (p, view) in self.params.iter().zip(values.unwrap_or(&[])) {
            let own = p.value;
            if (view.rows, view.cols, view.dtype()) != (own.rows, own.cols, own.dtype()) {
                return Err(ModelError::ParameterPlace {
                    name: p.spec.name.clone(),
                    wanted: format!("values [{}, {}] of {}", own.rows, own.cols, own.dtype()),
                    found: format!("[{}, {}] of {}", view.rows, view.cols, view.dtype()),
                });
            }
            view.check()?;
        }
        match values {
            Some(values) => self.values.copy_from_slice(values),
            None => self.values.iter_mut().zip(&self.params).for_each(|(value, p)| *value = p.value),
        }
        Ok(())
    }

    pub(crate) fn used(&self, slot: usize) -> Result<SlotUse, ModelError> {
        self.held.slots.get(slot).copied().ok_or_else(|| {
            ModelError::Stage(format!("wanted one of the {} slots, found slot {slot}", self.stage.slots))
        })
    }

    pub(crate) fn scored(&self, slot: usize) -> u64 {
        match self.held.slots[slot] {
            SlotUse::Free => 0,
            SlotUse::Scored(scored) | SlotUse::Training(scored, _) => scored,
        }
    }

    pub(crate) fn training(&self, slot: usize) -> Result<StepContext, ModelError> {
        self.expect_training()?;
        match self.used(slot)? {
            SlotUse::Training(_, ctx) => Ok(ctx),
            SlotUse::Scored(_) => Err(nothing_in(slot, "a training pass (a forward pass with a context)")),
            SlotUse::Free => Err(nothing_in(slot, "a forward pass whose backward pass has not been run")),
        }
    }

    pub(crate) fn expect_pending(&self, pending: Pending) -> Result<(), ModelError> {
        match self.held.pending.get(pending.set) {
            Some(true) => Ok(()),
            _ => Err(ModelError::Stage(format!(
                "wanted a pending set with the input part of a backward pass, found set {} free; each has one weight \
                 part",
                pending.set
            ))),
        }
    }
}

pub(crate) fn nothing_in(slot: usize, wanted: &str) -> ModelError {
    ModelError::Stage(format!("wanted {wanted} in slot {slot}, found none"))
}
