//! Locations of offloaded values in the second memory: one region for each micro-batch in flight, in it the units one after the other.
//!
//! A micro-batch in flight is one between its forward pass and its backward pass, or the weight part of it: a slot, or a kept set
//! where backward passes are split. Programs of one unit, such as those of several lengths, use the same location.

use crate::decoder::{Decoder, PassMemory};
use crate::error::ModelError;
use crate::slots::Pending;
use crate::units::StageUnit;
use bessemer_program::{Phase, UnitProgram, offloaded_bytes, offloads, reloads};

/// Locations of the values of each unit in the second memory.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct OffloadLayout {
    /// Indexed by unit: its first byte within a region.
    units: Vec<u64>,
    /// Bytes of the region of one micro-batch.
    pub region: u64,
    /// Micro-batches in flight at most.
    pub regions: usize,
}

impl OffloadLayout {
    /// Bytes of all regions.
    pub fn bytes(&self) -> u64 {
        self.region * self.regions as u64
    }
}

impl Decoder {
    /// The programs of all units for micro-batches of any length in any slot.
    pub fn all_programs(&self) -> impl Iterator<Item = &UnitProgram> {
        self.all_units().map(|unit| &unit.program)
    }

    /// Units for micro-batches of any length in any slot.
    pub(crate) fn all_units(&self) -> impl Iterator<Item = &StageUnit> {
        let shorter = self.shorter.iter().flat_map(|length| &length.units);
        self.units.iter().chain(&self.stored).chain(shorter)
    }

    /// Lays out the second memory.
    pub(crate) fn lay_out_second_memory(&mut self) {
        let (mut end, regions) = (0, self.held.kept.len().max(self.stage.slots));
        let units = self.units.iter().map(|unit| {
            let mine = self.all_units().filter(|other| other.unit == unit.unit);
            let begin = end;
            end += mine.map(|unit| offloaded_bytes(&unit.program)).max().unwrap_or(0);
            begin
        });
        let units = units.collect();
        self.second_memory = OffloadLayout { units, region: end, regions };
    }

    /// Locations of offloaded values in the second memory; no bytes if none are offloaded.
    pub fn offload_layout(&self) -> &OffloadLayout {
        &self.second_memory
    }

    /// Bytes that a pass of this phase moves to the second memory, if it is a forward pass, or back: of a micro-batch of the longest
    /// length, in a slot that recomputes if some do.
    pub fn offload_traffic(&self, phase: Phase) -> u64 {
        let of_unit = |unit: &StageUnit| -> u64 {
            let moved = offloads(&unit.program).filter(|_| phase == Phase::Forward);
            moved.chain(reloads(&unit.program, phase)).map(|moved| moved.bytes() as u64).sum()
        };
        self.units.iter().map(of_unit).sum()
    }

    /// First byte that unit number `at` has for the micro-batch of a pass.
    pub(crate) fn second_memory_of(&self, at: usize, memory: PassMemory) -> u64 {
        let region = if self.stage.pending > 0 { memory.kept } else { memory.slot };
        self.second_memory.region * region.unwrap_or(0) as u64
            + self.second_memory.units.get(at).copied().unwrap_or(0)
    }

    /// Calls `visit` with the first byte and the number of bytes of each value that the backward pass of the micro-batch in a slot,
    /// or its input part, reads back from the second memory, in that order.
    ///
    /// # Errors
    /// A slot that is not there.
    pub fn stage_reloads(
        &self,
        slot: usize,
        phase: Phase,
        visit: &mut dyn FnMut(u64, usize),
    ) -> Result<(), ModelError> {
        self.used(slot)?;
        let memory = PassMemory { slot: Some(slot), kept: self.held.of_slot[slot], pending: None };
        self.reloads_of(memory, phase, visit);
        Ok(())
    }

    /// Reloads of the weight part of a backward pass, as [`Decoder::stage_reloads`].
    pub fn pending_reloads(&self, pending: Pending, visit: &mut dyn FnMut(u64, usize)) {
        let memory = PassMemory { slot: None, kept: pending.kept, pending: Some(pending.set) };
        self.reloads_of(memory, Phase::BackwardWeight, visit);
    }

    fn reloads_of(&self, memory: PassMemory, phase: Phase, visit: &mut dyn FnMut(u64, usize)) {
        for at in (0..self.units.len()).rev() {
            let from = self.second_memory_of(at, memory);
            let unit = self.unit(at, memory.slot);
            reloads(&unit.program, phase).for_each(|moved| visit(from + moved.offset, moved.bytes()));
        }
    }
}
