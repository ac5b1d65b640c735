//! Shadows of experts: their choice, and their gradients.
#![allow(unsafe_code)] // rows by address

use super::tiles::{Block, blocks};
use crate::arena::Arena;
use crate::ctx::Ctx;
use crate::element::{Element, with_element};
use crate::operand::{IndexMat, Mat};
use crate::simd::{Kernel, Simd, dispatch, load_part, store_part};
use bessemer_tensor::TensorError;
use bessemer_tensor::op::{AddShadowGradients, ChooseShadows, NO_EXPERT, RowCounts, choose_shadows};
use std::ops::Range;

/// Rows by the offsets of all devices.
struct Offsets<'a>(&'a IndexMat);

impl RowCounts for Offsets<'_> {
    fn ranks(&self) -> usize {
        self.0.rows
    }
    fn experts(&self) -> usize {
        self.0.cols - 1
    }
    fn rows(&self, rank: usize, expert: usize) -> u64 {
        u64::from(self.0.get(rank, expert + 1)) - u64::from(self.0.get(rank, expert))
    }
}

/// One thread: it reads G E numbers a few times for each slot.
pub(crate) fn choose(arena: &Arena, op: &ChooseShadows) -> Result<(), TensorError> {
    let (offsets, routed) = (arena.index_mat(&op.offsets), arena.index_mat(&op.routed));
    for g in 0..offsets.rows {
        for e in 1..offsets.cols {
            let (from, to) = (offsets.get(g, e - 1), offsets.get(g, e));
            if from > to {
                let (op, at) = ("choose_shadows", g * offsets.cols + e);
                return Err(TensorError::Index { op, operand: "offsets", at, index: to, len: from as usize });
            }
        }
    }
    let rows = Offsets(&offsets);
    let slots = arena.index_mat(&op.slots);
    // SAFETY: a written operand of a checked operator, which overlaps no other.
    let shadows = unsafe { slots.row_mut(0) };
    choose_shadows(&rows, &op.costs, shadows);
    let taken = shadows.iter().position(|slot| *slot == NO_EXPERT).unwrap_or(shadows.len());
    let shadows = &shadows[..taken];
    for g in 0..offsets.rows {
        let mut next: u64 = shadows.iter().map(|e| rows.rows(g, *e as usize)).sum();
        routed.set(g, 0, next as u32);
        for e in 0..offsets.cols - 1 {
            next += if shadows.contains(&(e as u32)) { 0 } else { rows.rows(g, e) };
            routed.set(g, e + 1, next as u32);
        }
    }
    Ok(())
}

/// Errors unless slots have ascending experts below `experts`, and no expert follows an empty slot.
pub(crate) fn check_slots(op: &'static str, slots: &IndexMat, experts: usize) -> Result<(), TensorError> {
    let mut least = 0;
    for at in 0..slots.cols {
        let index = slots.get(0, at);
        if index != NO_EXPERT && !(least..experts).contains(&(index as usize)) {
            return Err(TensorError::Index { op, operand: "slots", at, index, len: experts });
        }
        least = if index == NO_EXPERT { usize::MAX } else { index as usize + 1 };
    }
    Ok(())
}

/// Slots with experts of this device: they follow each other, because slots ascend.
struct Own {
    first: usize,
    slots: Range<usize>,
}

impl Own {
    fn new(slots: &IndexMat, op: &AddShadowGradients) -> Result<Own, TensorError> {
        let here = op.first..op.first + op.experts;
        check_slots("add_shadow_gradients", slots, usize::MAX)?;
        let at = |slot: usize| slots.get(0, slot) as usize;
        let first = (0..slots.cols).find(|slot| here.contains(&at(*slot))).unwrap_or(0);
        let count = (first..slots.cols).take_while(|slot| here.contains(&at(*slot))).count();
        Ok(Own { first: op.first, slots: first..first + count })
    }

    /// By row of the shadows' matrices with so many rows each: the row of the gradient.
    fn row(&self, slots: &IndexMat, row: usize, outputs: usize) -> usize {
        let expert = slots.get(0, self.slots.start + row / outputs) as usize - self.first;
        expert * outputs + row % outputs
    }
}

/// Adds the terms of all devices to rows of the gradient.
struct Add<'a, T> {
    terms: &'a Mat,
    devices: usize,
    /// Rows of one device's terms.
    rows: usize,
    to: &'a dyn Fn(usize) -> usize,
    dweight: &'a Mat<T>,
    block: Block,
}

impl<T: Element> Kernel for Add<'_, T> {
    type Out = ();
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        for row in self.block.rows.clone() {
            let to = (self.to)(row);
            for device in 0..self.devices {
                for c in self.block.cols.clone().step_by(S::LANES) {
                    let n = S::LANES.min(self.block.cols.end - c);
                    // SAFETY: columns c .. c + n of rows that are there: `to` is one of the gradient's.
                    unsafe {
                        let at = self.dweight.row(to).add(c);
                        let term = load_part::<S>(self.terms.row(device * self.rows + row).add(c), n);
                        store_part::<S>(at, S::add(load_part::<S>(at, n), term), n);
                    }
                }
            }
        }
    }
}

pub(crate) fn add(ctx: &Ctx<'_>, op: &AddShadowGradients) -> Result<(), TensorError> {
    let slots = ctx.arena.index_mat(&op.slots);
    let (own, outputs, terms) = (Own::new(&slots, op)?, op.outputs(), ctx.f32(&op.terms));
    let rows = own.slots.len() * outputs;
    with_element!(op.dweight.dtype(), T => {
        let dweight = ctx.mat::<T>(&op.dweight);
        blocks(ctx, rows, dweight.cols, &|block| {
            let to = &|row| own.row(&slots, row, outputs);
            let add = Add { terms: &terms, devices: op.devices(), rows, to, dweight: &dweight, block };
            // SAFETY: the instruction set is available; operands are checked views; blocks are disjoint, and so are the rows of different shadows.
            unsafe { dispatch(ctx.rung, add) }
        });
    });
    Ok(())
}

pub(crate) fn add_reference(arena: &Arena, op: &AddShadowGradients) -> Result<(), TensorError> {
    let slots = arena.index_mat(&op.slots);
    let (own, outputs) = (Own::new(&slots, op)?, op.outputs());
    let (terms, dweight) = (arena.any(&op.terms), arena.any(&op.dweight));
    let rows = own.slots.len() * outputs;
    for row in 0..rows {
        for c in 0..dweight.cols {
            for device in 0..op.devices() {
                dweight.put(own.row(&slots, row, outputs), c, terms.get(device * rows + row, c), true);
            }
        }
    }
    Ok(())
}
