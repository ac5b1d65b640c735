//! The pass `offload`: values that are moved to a second, larger memory until the backward pass (Rajbhandari et al. 2021, ZeRO-Infinity,
//! section 5.1.2; torchtune's and Megatron-LM's activation offloading).
//!
//! A value that a backward list reads as stored is offloaded after the last node of the forward list that touches it,
//! and reloaded before the first node of each backward list that does. In between it takes no memory here: the value itself lives
//! within one list, in scratch. The residual stream that enters a unit leaves when the unit begins, so the memory between units is
//! free for the next one. Values are copied as they are, so bits are unchanged.
//!
//! [`Node::Offload`] ends when the value has been read, not when it has been written: a copy of it is then in flight, in a
//! buffer of the host. [`Node::Reload`] ends when the value is here. The lists determine the next reload
//! ([`reloads`]), which their executor begins ahead; [`transfer_buffers`] returns buffers that suffice.

use crate::node::{Node, OffloadedValue};
use crate::unit::{Phase, UnitProgram};
use bessemer_tensor::View;
use std::collections::BTreeMap;

/// The lists that may find a value stored.
const BACKWARD: [Phase; 3] = [Phase::Backward, Phase::BackwardInput, Phase::BackwardWeight];

/// Bytes of which the places of values in the second memory are multiples: a page.
pub const OFFLOAD_ALIGNMENT: u64 = 4096;

/// Offloads all values that a unit stores. The unit is otherwise finished: it is the last pass before [`crate::seal()`].
pub fn offload(unit: &mut UnitProgram) {
    let mut offset = 0;
    let stored: Vec<usize> = (0..unit.values.len()).filter(|id| unit.is_stored(*id)).collect();
    for id in stored {
        let bytes = unit.values[id].bytes();
        unit.put_away(
            id,
            "reloaded",
            |all| Node::Offload(moved(all, offset)),
            |all| Node::Reload(moved(all, offset)),
        );
        offset += bytes.next_multiple_of(OFFLOAD_ALIGNMENT);
    }
}

fn moved(view: View, offset: u64) -> OffloadedValue {
    OffloadedValue { offset, view, versions: Vec::new() }
}

/// The values that leave in a unit's forward list, in its order.
pub fn offloads(unit: &UnitProgram) -> impl Iterator<Item = &OffloadedValue> {
    unit.list(Phase::Forward).iter().filter_map(|node| match node {
        Node::Offload(moved) => Some(moved),
        _ => None,
    })
}

/// The values that are reloaded in a list, in its order.
pub fn reloads(unit: &UnitProgram, phase: Phase) -> impl Iterator<Item = &OffloadedValue> {
    unit.list(phase).iter().filter_map(|node| match node {
        Node::Reload(moved) => Some(moved),
        _ => None,
    })
}

/// Bytes that a unit has in the second memory for one micro-batch.
pub fn offloaded_bytes(unit: &UnitProgram) -> u64 {
    offloads(unit).map(|moved| moved.end().next_multiple_of(OFFLOAD_ALIGNMENT)).max().unwrap_or(0)
}

/// Buffers of the host by their bytes, so that the values written by `layers_ahead` units are in flight while the next one runs. With
/// `reads`: for values that are reloaded, `layers_ahead` units before they are read. Values of one size share their buffers.
pub fn transfer_buffers<'p>(
    units: impl Iterator<Item = &'p UnitProgram>,
    layers_ahead: usize,
    reads: bool,
) -> BTreeMap<usize, usize> {
    let mut most = BTreeMap::new();
    for unit in units {
        let phases: &[Phase] = if reads { &BACKWARD } else { &[Phase::Forward] };
        for phase in phases {
            let mut of_list: BTreeMap<usize, usize> = BTreeMap::new();
            let mut add = |moved: &OffloadedValue| *of_list.entry(moved.bytes()).or_default() += layers_ahead;
            match reads {
                true => reloads(unit, *phase).for_each(&mut add),
                false => offloads(unit).for_each(&mut add),
            }
            for (bytes, count) in of_list {
                let of_all = most.entry(bytes).or_default();
                *of_all = count.max(*of_all);
            }
        }
    }
    most
}
