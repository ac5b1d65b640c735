//! The pass `memory`: which values must outlive their list, and the offsets of the others in memory that all lists share.
//!
//! | home | lives |
//! |---|---|
//! | bound | as long as its provider defines: parameters, gradients, inputs, the residual stream |
//! | saved | from the forward pass of a micro-batch to its backward pass, or to the input part of it |
//! | kept | from the forward pass to the weight part of a split backward pass |
//! | pending | from the input part to the weight part |
//! | scratch | within one list |
//!
//! A scratch value lives from the first node that touches it to the last. An operator that may work in place does, where its
//! input ends there. Offsets are found greedily: values by decreasing size, each at the lowest offset that is free while it
//! lives (first fit decreasing); by order of the list and by length of life too, and the least of the three is taken. The
//! largest sum of values that live at one node bounds it from below.

use crate::node::Node;
use crate::overlap_experts::rows_of_piece;
use crate::unit::{Phase, UnitProgram};
use crate::value::Class;
use bessemer_tensor::op::Access;
use bessemer_units::DType;
use std::collections::BTreeMap;
use std::ops::Range;

/// Memory that a value lives in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Home {
    /// Memory that does not belong to the unit.
    Bound,
    /// Once for each micro-batch between its forward and its backward pass.
    Saved,
    /// Once for each micro-batch between its forward pass and the weight part of its backward pass.
    Kept,
    /// Once for each micro-batch between the two parts of its backward pass.
    Pending,
    /// The arena that all lists share.
    Scratch,
}

impl Home {
    /// Whether a value of this home is scratch in lists of the phase: values between the parts of a split backward pass
    /// lives within one list in the others.
    pub fn is_scratch(self, phase: Phase) -> bool {
        let parts = matches!(phase, Phase::BackwardInput | Phase::BackwardWeight);
        self == Home::Scratch || (self == Home::Pending && !parts)
    }
}

/// Elements of scratch, by element type.
pub type Scratch = BTreeMap<DType, usize>;

/// Memory plan of a unit: a home for each value, and offsets within the scratch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnitMemory {
    /// Indexed by value.
    pub homes: Vec<Home>,
    /// Indexed by [`Phase`] and value: first element in the scratch of the value's type, for scratch that the phase touches.
    pub offsets: [Vec<Option<usize>>; 5],
    /// Indexed by [`Phase`] and value: the saved value whose memory a scratch value takes, as the phase is the last to read it.
    pub takes: [Vec<Option<usize>>; 5],
    /// Elements of scratch.
    pub scratch: Scratch,
    /// The least that any placement needs.
    pub bound: Scratch,
}

/// Alignment of scratch values, in bytes.
pub const ALIGNMENT: usize = 256;

/// Places the values of the phases that will run.
pub fn plan_memory(unit: &UnitProgram, phases: &[Phase]) -> UnitMemory {
    let homes: Vec<Home> = (0..unit.values.len()).map(|id| home(unit, phases, id)).collect();
    let mut offsets: [Vec<Option<usize>>; 5] = std::array::from_fn(|_| vec![None; unit.values.len()]);
    let mut takes: [Vec<Option<usize>>; 5] = std::array::from_fn(|_| vec![None; unit.values.len()]);
    let (mut scratch, mut bound) = (Scratch::new(), Scratch::new());
    for phase in phases {
        if matches!(phase, Phase::Backward | Phase::BackwardInput) {
            takes[phase.index()] = taken(unit, *phase, &homes);
        }
        let lives = lives(unit, *phase, &homes, &takes[phase.index()]);
        for dtype in DType::ALL {
            let mine: Vec<&Life> = lives.iter().filter(|l| l.dtype == dtype).collect();
            if mine.is_empty() {
                continue;
            }
            let requests: Vec<Request> =
                mine.iter().map(|l| Request { first: l.first, last: l.last, len: l.len }).collect();
            let placed = place(&requests);
            let (most, least) = (scratch.entry(dtype).or_default(), bound.entry(dtype).or_default());
            (*most, *least) = ((*most).max(placed.len), (*least).max(placed.bound));
            for (life, offset) in mine.iter().zip(&placed.offsets) {
                for id in &life.values {
                    offsets[phase.index()][*id] = Some(*offset);
                }
            }
        }
    }
    UnitMemory { homes, offsets, takes, scratch, bound }
}

fn home(unit: &UnitProgram, phases: &[Phase], id: usize) -> Home {
    if unit.values[id].class != Class::Local {
        return Home::Bound;
    }
    let has = |phase: Phase| phases.contains(&phase);
    let read = |phase: Phase| has(phase) && unit.reads_first(phase, id);
    if read(Phase::BackwardWeight) {
        return if unit.writes(Phase::BackwardInput, id) { Home::Pending } else { Home::Kept };
    }
    let saved = read(Phase::Backward) || read(Phase::BackwardInput);
    if saved { Home::Saved } else { Home::Scratch }
}

/// One stretch of scratch, which several values may have one after the other.
#[derive(Debug, Clone)]
struct Life {
    values: Vec<usize>,
    dtype: DType,
    len: usize,
    first: usize,
    last: usize,
}

/// The scratch values of a phase, each with those that take its place. One that takes the place of a saved value needs none.
fn lives(unit: &UnitProgram, phase: Phase, homes: &[Home], takes: &[Option<usize>]) -> Vec<Life> {
    let list = unit.list(phase);
    let mut range: BTreeMap<usize, (usize, usize)> = BTreeMap::new();
    for (at, node) in list.iter().enumerate() {
        for touch in node.touches() {
            let life = range.entry(touch.value()).or_insert((at, at));
            life.1 = at;
        }
    }
    let mut lives: Vec<Life> = Vec::new();
    for (at, node) in list.iter().enumerate() {
        for touch in node.touches() {
            let id = touch.value();
            let (first, last) = range[&id];
            let new = first == at && homes[id].is_scratch(phase) && takes[id].is_none();
            if !new || lives.iter().any(|l| l.values.contains(&id)) {
                continue;
            }
            let value = &unit.values[id];
            let joined = replaced(unit, node, id)
                .filter(|old| homes[*old].is_scratch(phase) && range[old].1 == at)
                .and_then(|old| lives.iter_mut().find(|l| l.values.contains(&old) && l.last == at));
            match joined {
                Some(life) => {
                    life.values.push(id);
                    life.last = last;
                }
                None => {
                    let len = value.len().next_multiple_of(ALIGNMENT / value.dtype.size());
                    lives.push(Life { values: vec![id], dtype: value.dtype, len, first, last });
                }
            }
        }
    }
    lives
}

/// The value whose memory `id` may take at the node that first writes it: every view of `id` that the node writes is exactly a
/// view of that value that it reads.
fn replaced(unit: &UnitProgram, node: &Node, id: usize) -> Option<usize> {
    let Node::Launch(launch) = node else { return None };
    if !launch.op.may_be_in_place() {
        return None;
    }
    let touches = node.touches();
    let value = &unit.values[id];
    let candidates = touches.iter().filter(|t| t.access == Access::Read).map(|t| t.value());
    candidates.into_iter().find(|old| {
        let (of, written) = (&unit.values[*old], touches.iter().filter(|t| t.value() == id));
        let same = |w: &crate::node::Touch| {
            touches.iter().any(|r| {
                let shape = |v: &bessemer_tensor::View| (v.offset, v.rows, v.cols, v.stride);
                r.value() == *old && r.access == Access::Read && shape(&r.view) == shape(&w.view)
            })
        };
        *old != id && of.dtype == value.dtype && of.len() == value.len() && written.into_iter().all(same)
    })
}

/// Returns per value the saved value whose memory a scratch value of the phase takes, where the phase is the last to read it.
fn taken(unit: &UnitProgram, phase: Phase, homes: &[Home]) -> Vec<Option<usize>> {
    let list = unit.list(phase);
    let touched = |nodes: &[Node], id: usize| nodes.iter().flat_map(Node::touches).any(|t| t.value() == id);
    let mut takes = vec![None; unit.values.len()];
    for (at, node) in list.iter().enumerate() {
        for touch in node.touches() {
            let id = touch.value();
            if homes[id].is_scratch(phase) && touch.access == Access::Write && !touched(&list[..at], id) {
                let old = replaced(unit, node, id).filter(|old| homes[*old] == Home::Saved);
                takes[id] = old.filter(|old| {
                    !touched(&list[at + 1..], *old) || is_replaced_in_pieces(unit, &list[at..], id, *old)
                });
            }
        }
    }
    takes
}

/// Whether the nodes that write `id` each write over rows of `old` that no later node touches.
fn is_replaced_in_pieces(unit: &UnitProgram, list: &[Node], id: usize, old: usize) -> bool {
    let mut replaced_rows: Vec<(u32, Range<usize>)> = Vec::new();
    list.iter().all(|node| {
        let touches = node.touches();
        let writes = touches.iter().any(|touch| touch.value() == id && touch.access != Access::Read);
        if !touches.iter().any(|touch| touch.value() == old) {
            return !writes;
        }
        let Some((offsets, rows)) = rows_of_piece(node) else { return false };
        let apart = |(of, others): &(u32, Range<usize>)| {
            *of == offsets && (rows.end <= others.start || others.end <= rows.start)
        };
        let keeps = replaced_rows.iter().all(apart) && (!writes || replaced(unit, node, id) == Some(old));
        if writes {
            replaced_rows.push((offsets, rows.clone()));
        }
        keeps
    })
}

/// A stretch of memory that is wanted from node `first` to node `last`, both included.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Request {
    /// First node.
    pub first: usize,
    /// Last node.
    pub last: usize,
    /// Elements.
    pub len: usize,
}

/// Result of a placement.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Placed {
    /// Indexed by request: first element.
    pub offsets: Vec<usize>,
    /// Elements of all of it.
    pub len: usize,
    /// Largest sum of stretches wanted at one node: no placement needs less.
    pub bound: usize,
}

/// Offsets for stretches such that no two that are wanted at one node overlap.
pub fn place(requests: &[Request]) -> Placed {
    let by = |key: &dyn Fn(&Request) -> (std::cmp::Reverse<usize>, usize)| {
        let mut order: Vec<usize> = (0..requests.len()).collect();
        order.sort_by_key(|i| key(&requests[*i]));
        first_fit(requests, &order)
    };
    let orders = [
        by(&|r| (std::cmp::Reverse(r.len), r.first)),
        by(&|r| (std::cmp::Reverse(r.last - r.first), r.first)),
        by(&|r| (std::cmp::Reverse(0), r.first)),
    ];
    let end = |offsets: &Vec<usize>| offsets.iter().zip(requests).map(|(o, r)| o + r.len).max().unwrap_or(0);
    let best = orders.into_iter().min_by_key(end).unwrap_or_default();
    let at =
        |node: usize| requests.iter().filter(|r| (r.first..=r.last).contains(&node)).map(|r| r.len).sum();
    let bound = requests.iter().map(|r| at(r.first)).max().unwrap_or(0);
    Placed { len: end(&best), offsets: best, bound }
}

/// Each stretch, in this order, at the lowest offset that is free while it is wanted.
fn first_fit(requests: &[Request], order: &[usize]) -> Vec<usize> {
    let mut offsets = vec![0; requests.len()];
    let mut placed: Vec<usize> = Vec::with_capacity(order.len());
    for &i in order {
        let r = requests[i];
        let mut taken: Vec<(usize, usize)> = placed
            .iter()
            .filter(|p| requests[**p].first <= r.last && r.first <= requests[**p].last)
            .map(|p| (offsets[*p], offsets[*p] + requests[*p].len))
            .collect();
        taken.sort_unstable();
        let mut offset = 0;
        for (from, to) in taken {
            if offset + r.len <= from {
                break;
            }
            offset = offset.max(to);
        }
        offsets[i] = offset;
        placed.push(i);
    }
    offsets
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(first: usize, last: usize, len: usize) -> Request {
        Request { first, last, len }
    }

    /// google/minimalloc, benchmarks/examples/input.12.csv: buffers of 4 units, capacity 12. Its end of a life is exclusive.
    #[test]
    fn the_published_example_fits_its_bound() {
        let requests = [(0, 3), (3, 9), (0, 9), (9, 21), (0, 21)].map(|(a, b)| request(a, b - 1, 4));
        let placed = place(&requests);
        assert_eq!((placed.len, placed.bound), (12, 12));
    }

    /// All orders of up to six random stretches: first fit over every order contains an optimal one, and ours is close.
    #[test]
    fn placements_never_overlap_and_are_near_the_best() {
        let mut seed = 7u64;
        let mut next = |below: usize| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (seed >> 33) as usize % below
        };
        let (mut ours, mut best) = (0, 0);
        for _ in 0..300 {
            let requests: Vec<Request> = (0..6)
                .map(|_| {
                    let first = next(8);
                    request(first, first + next(4), 1 + next(9))
                })
                .collect();
            let placed = place(&requests);
            for (i, a) in requests.iter().enumerate() {
                for (j, b) in requests.iter().enumerate().skip(i + 1) {
                    let together = a.first <= b.last && b.first <= a.last;
                    let apart = placed.offsets[i] + a.len <= placed.offsets[j]
                        || placed.offsets[j] + b.len <= placed.offsets[i];
                    assert!(!together || apart, "{requests:?} {placed:?}");
                }
            }
            assert!(placed.len >= placed.bound);
            ours += placed.len;
            best += exhaustive(&requests);
        }
        assert!(ours * 100 <= best * 103, "{ours} against {best}");
    }

    fn exhaustive(requests: &[Request]) -> usize {
        fn go(requests: &[Request], order: &mut Vec<usize>, least: &mut usize) {
            if order.len() == requests.len() {
                let offsets = first_fit(requests, order);
                let end = offsets.iter().zip(requests).map(|(o, r)| o + r.len).max().unwrap_or(0);
                *least = (*least).min(end);
            }
            for i in 0..requests.len() {
                if !order.contains(&i) {
                    order.push(i);
                    go(requests, order, least);
                    order.pop();
                }
            }
        }
        let mut least = usize::MAX;
        go(requests, &mut Vec::new(), &mut least);
        least
    }
}
