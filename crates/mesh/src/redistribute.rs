//! Which collectives lead from one layout to another: the path of the smallest volume.
//!
//! Layouts are nodes. An edge is one collective (or none: a slice, a mask) over a group of ranks along one axis or, flat,
//! along several; all axes of the group change their placement alike. Dijkstra's algorithm (1959) finds the path with the
//! fewest elements sent by all ranks; of equal ones the fewest steps, then the fewest axes in a group, since every axis has
//! a communicator anyway. With N elements before the group of n ranks divides them, a rank sends on average:
//!
//! | from -> to | node | elements |
//! |---|---|---|
//! | R -> S; R -> P | slice; mask | 0 |
//! | S -> R | all-gather | N (n-1)/n |
//! | S(a) -> S(b) | all-to-all | N (n-1)/n^2 |
//! | P -> R | all-reduce | 2 N (n-1)/n |
//! | P(log-sum-exp) -> R | all-gather, combined in rank order | N (n-1) |
//! | P -> S | reduce-scatter | N (n-1)/n |

use crate::axis::Axis;
use crate::dim::even;
use crate::layout::{Form, Layout, LayoutError, Placement, Reduction, in_both};
use crate::mesh::Mesh;
use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};

/// Kind of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Action {
    /// Each gets the parts of all.
    AllGather {
        /// The dim that was sharded.
        dim: usize,
    },
    /// Each gets its part of the reduction of all.
    ReduceScatter {
        /// The dim that is sharded.
        dim: usize,
        /// The reduction.
        reduce: Reduction,
    },
    /// Each gets the reduction of all; a log-sum-exp from an all-gather of the terms.
    AllReduce {
        /// The reduction.
        reduce: Reduction,
    },
    /// Each sends each a part of its part.
    AllToAll {
        /// The dim that was sharded.
        from: usize,
        /// The dim that is sharded.
        to: usize,
    },
    /// Each keeps its part; nothing is sent.
    Slice {
        /// The dim that is sharded.
        dim: usize,
    },
    /// The first rank keeps the values, the others take the neutral element of the reduction (of a maximum they keep them
    /// too); nothing is sent.
    Mask {
        /// The reduction.
        reduce: Reduction,
    },
}

/// One step from a layout to the next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Step {
    /// The axes of the group, in the order in which they shard a dim.
    pub axes: Vec<Axis>,
    /// Kind of the step.
    pub action: Action,
    /// The layout before.
    pub before: Layout,
    /// The layout after.
    pub after: Layout,
}

impl Step {
    /// Elements that `rank` sends under ring algorithms: of N elements over n ranks N (n-1)/n for an all-gather or a
    /// reduce-scatter, twice that for an all-reduce. Where parts differ in length it is what the rank does not hold
    /// itself: N less its own part (received in an all-gather and an all-to-all, sent in a reduce-scatter).
    pub fn volume(&self, form: &Form, mesh: &Mesh, rank: usize) -> u64 {
        let elements = |layout: &Layout, rank: usize| {
            layout.shape(form, mesh, &mesh.coord(rank)).iter().product::<usize>() as u64
        };
        let others = |layout: &Layout| {
            let group = mesh.group(rank, &self.axes);
            group.iter().filter(|r| **r != rank).map(|r| elements(layout, *r)).sum::<u64>()
        };
        match self.action {
            Action::Slice { .. } | Action::Mask { .. } => 0,
            Action::AllGather { .. } | Action::AllReduce { reduce: Reduction::LogSumExp } => {
                others(&self.before)
            }
            Action::ReduceScatter { .. } => others(&self.after),
            Action::AllReduce { .. } => {
                let whole = elements(&self.before, rank) as usize;
                let own = even(whole, mesh.size(&self.axes), mesh.position(rank, &self.axes)).len;
                2 * (whole - own) as u64
            }
            Action::AllToAll { .. } => {
                let coord = mesh.coord(rank);
                let before = self.before.ranges(form, mesh, &coord);
                let after = self.after.ranges(form, mesh, &coord);
                let kept: usize = before.iter().zip(&after).map(|(a, b)| in_both(a, b)).product();
                elements(&self.after, rank) - kept as u64
            }
        }
    }

    /// Elements that all ranks together send, times the number of ranks: an exact integer, as parts of unequal length count
    /// with their mean.
    fn weight(&self, form: &Form, mesh: &Mesh) -> u128 {
        let (world, n) = (mesh.world() as u128, mesh.size(&self.axes) as u128);
        // Mean elements of a shard, times the square of the ranks. No axis divides twice.
        let mean = |layout: &Layout| -> u128 {
            let of = |(d, dim): (usize, &crate::dim::Dim)| -> (u128, u128) {
                let parts = |a: &Axis| mesh.degree(*a);
                let axes: Vec<usize> = layout.sharding(d).iter().map(parts).filter(|n| *n > 1).collect();
                let all = axes.first().map_or(dim.len(), |parts| dim.total_of_parts(*parts));
                (all as u128, axes.iter().product::<usize>() as u128)
            };
            let (all, parts) = (form.dims.iter().enumerate().map(of))
                .fold((1, 1), |(all, parts), (a, p)| (all * a, parts * p));
            all * (world / parts) * world
        };
        match self.action {
            Action::Slice { .. } | Action::Mask { .. } => 0,
            Action::AllGather { .. } | Action::AllReduce { reduce: Reduction::LogSumExp } => {
                mean(&self.before) * (n - 1)
            }
            Action::ReduceScatter { .. } => mean(&self.after) * (n - 1),
            Action::AllReduce { .. } => 2 * mean(&self.before) / n * (n - 1),
            Action::AllToAll { .. } => mean(&self.after) / n * (n - 1),
        }
    }

    /// Elements that a rank sends, as a mean over the ranks: what [`redistribute`] makes as small as can be.
    pub fn mean_volume(&self, form: &Form, mesh: &Mesh) -> f64 {
        self.weight(form, mesh) as f64 / (mesh.world() as f64).powi(2)
    }
}

/// What a path is chosen by, the first field first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Cost {
    /// [`Step::weight`]s.
    elements: u128,
    steps: usize,
    /// Axes of all groups.
    axes: usize,
}

/// The steps from one layout to another, none if they are the same on this mesh.
///
/// # Errors
/// Layouts that the tensor cannot have.
pub fn redistribute(
    tensor: &str,
    form: &Form,
    mesh: &Mesh,
    from: &Layout,
    to: &Layout,
) -> Result<Vec<Step>, LayoutError> {
    from.check(tensor, form, mesh)?;
    to.check(tensor, form, mesh)?;
    let (from, to) = (from.on(mesh), to.on(mesh));
    // By layout: the best path's cost so far, and its last step.
    let start = Cost { elements: 0, steps: 0, axes: 0 };
    let mut best: HashMap<Layout, (Cost, Option<Step>)> = HashMap::from([(from, (start, None))]);
    let mut layouts = vec![from];
    let mut open = BinaryHeap::from([Reverse((start, 0))]);
    while let Some(Reverse((cost, number))) = open.pop() {
        let now = layouts[number];
        if now == to {
            break;
        }
        if best.get(&now).is_some_and(|known| known.0 < cost) {
            continue;
        }
        for step in steps_from(&now, &to, form, mesh) {
            let cost = Cost {
                elements: cost.elements + step.weight(form, mesh),
                steps: cost.steps + 1,
                axes: cost.axes + step.axes.len(),
            };
            if best.get(&step.after).is_none_or(|known| cost < known.0) {
                open.push(Reverse((cost, layouts.len())));
                layouts.push(step.after);
                best.insert(step.after, (cost, Some(step)));
            }
        }
    }
    let mut path = Vec::new();
    let mut at = to;
    while let Some((_, Some(step))) = best.get(&at) {
        at = step.before;
        path.push(step.clone());
    }
    path.reverse();
    Ok(path)
}

/// Every step that is possible in a layout. Values become partial only where they are wanted so.
fn steps_from(now: &Layout, to: &Layout, form: &Form, mesh: &Mesh) -> Vec<Step> {
    let axes: Vec<Axis> = Axis::SHARDING.into_iter().filter(|a| mesh.degree(*a) > 1).collect();
    let mut steps = Vec::new();
    for bits in 1u32..1 << axes.len() {
        let group: Vec<Axis> =
            axes.iter().enumerate().filter(|(i, _)| bits >> i & 1 == 1).map(|(_, a)| *a).collect();
        let was = now.at(group[0]);
        if group.iter().any(|a| now.at(*a) != was) {
            continue;
        }
        let mut take = |action: Action, placement: Placement| {
            let after = group.iter().fold(*now, |layout, axis| layout.with(*axis, placement));
            if after.check("", form, mesh).is_ok() {
                steps.push(Step { axes: group.clone(), action, before: *now, after });
            }
        };
        // The group divides what the other axes of a dim have left: it comes after all of them, and is undone first.
        let follows =
            |dim: &usize| now.sharding(*dim).last().is_none_or(|last| sharded_before(*last, group[0]));
        let joins: Vec<usize> = (0..form.dims.len()).filter(follows).collect();
        match was {
            Placement::Replicate => {
                joins.iter().for_each(|&dim| take(Action::Slice { dim }, Placement::Shard { dim }));
                if let wanted @ Placement::Partial { reduce } = to.at(group[0])
                    && group.iter().all(|a| to.at(*a) == wanted)
                {
                    take(Action::Mask { reduce }, wanted);
                }
            }
            Placement::Partial { reduce } => {
                take(Action::AllReduce { reduce }, Placement::Replicate);
                if reduce != Reduction::LogSumExp {
                    for &dim in &joins {
                        take(Action::ReduceScatter { dim, reduce }, Placement::Shard { dim });
                    }
                }
            }
            Placement::Shard { dim: from } if now.sharding(from).ends_with(&group) => {
                take(Action::AllGather { dim: from }, Placement::Replicate);
                for &dim in joins.iter().filter(|dim| **dim != from) {
                    take(Action::AllToAll { from, to: dim }, Placement::Shard { dim });
                }
            }
            Placement::Shard { .. } => {}
        }
    }
    steps
}

/// True if `a` shards a dim before `b` does.
fn sharded_before(a: Axis, b: Axis) -> bool {
    let place = |axis: Axis| Axis::SHARDING.iter().position(|a| *a == axis);
    place(a) < place(b)
}
