//! Which collectives lead from one layout to another.
//!
//! Along a dim that several axes cut, a part is a part of a part: the last cut must be undone before the one before it
//! can be. So the plan is, until the layout is the wanted one, the first of these that is possible:
//! 1. an axis that comes next in the wanted order of cuts of a dim cuts it: a slice if it was replicated, a
//!    reduce-scatter if it was partial, an all-to-all if it cuts another dim last; this only makes parts smaller;
//! 2. a partial value that is to be replicated is all-reduced, as long as parts are small;
//! 3. a last cut that is in the way is undone by an all-gather.

use crate::axis::Axis;
use crate::cut::{Span, even, total};
use crate::layout::{Form, Layout, LayoutError, Placement, Reduction};
use crate::mesh::Mesh;

/// What the ranks along one axis do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Action {
    /// Each gets the parts of all.
    AllGather {
        /// The dim that was cut.
        dim: usize,
    },
    /// Each gets its part of the reduction of all.
    ReduceScatter {
        /// The dim that is cut.
        dim: usize,
        /// The reduction.
        reduce: Reduction,
    },
    /// Each gets the reduction of all.
    AllReduce {
        /// The reduction.
        reduce: Reduction,
    },
    /// Each sends each a part of its part.
    AllToAll {
        /// The dim that was cut.
        from: usize,
        /// The dim that is cut.
        to: usize,
    },
    /// Each keeps its part; nothing is sent.
    Slice {
        /// The dim that is cut.
        dim: usize,
    },
}

/// One step from a layout to the next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Step {
    /// The axis whose ranks talk.
    pub axis: Axis,
    /// What they do.
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
            let group = mesh.group(rank, &[self.axis]);
            group.iter().filter(|r| **r != rank).map(|r| elements(layout, *r)).sum::<u64>()
        };
        match self.action {
            Action::Slice { .. } => 0,
            Action::AllGather { .. } => others(&self.before),
            Action::ReduceScatter { .. } => others(&self.after),
            Action::AllReduce { .. } => {
                let whole = elements(&self.before, rank) as usize;
                let own = even(whole, mesh.degree(self.axis), mesh.position(rank, &[self.axis])).len;
                2 * (whole - own) as u64
            }
            Action::AllToAll { .. } => {
                let coord = mesh.coord(rank);
                let before = self.before.spans(form, mesh, &coord);
                let after = self.after.spans(form, mesh, &coord);
                let kept: usize = before.iter().zip(&after).map(|(a, b)| in_both(a, b)).product();
                elements(&self.after, rank) - kept as u64
            }
        }
    }
}

/// Elements that lie in spans of both lists.
fn in_both(a: &[Span], b: &[Span]) -> usize {
    let overlap = |x: &Span, y: &Span| x.end().min(y.end()).saturating_sub(x.start.max(y.start));
    a.iter().map(|x| b.iter().map(|y| overlap(x, y)).sum::<usize>()).sum::<usize>().min(total(a))
}

/// The steps from one layout to another, none if they are the same on this mesh.
///
/// # Errors
/// Layouts that the tensor cannot have, or a partial value that is wanted where there is none (or another one): a sum
/// cannot be taken apart again.
pub fn redistribute(
    tensor: &str,
    form: &Form,
    mesh: &Mesh,
    from: &Layout,
    to: &Layout,
) -> Result<Vec<Step>, LayoutError> {
    let (mut now, to) = (from.on(mesh), to.on(mesh));
    now.check(tensor, form)?;
    to.check(tensor, form)?;
    for axis in Axis::ALL {
        if matches!(to.at(axis), Placement::Partial { .. }) && now.at(axis) != to.at(axis) {
            let (found, wanted) = (now.at(axis), to.at(axis));
            let remedy = "no collective leads there".into();
            return Err(LayoutError::Mismatch { tensor: tensor.into(), axis, wanted, found, remedy });
        }
    }
    let mut steps = Vec::new();
    while now != to {
        let (axis, action) = cut(&now, &to, form)
            .or_else(|| reduce(&now, &to))
            .or_else(|| gather(&now, &to, form))
            .expect("two different layouts without a new partial value leave one of the three");
        let placement = match action {
            Action::AllGather { .. } | Action::AllReduce { .. } => Placement::Replicate,
            Action::ReduceScatter { dim, .. } | Action::Slice { dim } => Placement::Shard { dim },
            Action::AllToAll { to, .. } => Placement::Shard { dim: to },
        };
        let after = now.with(axis, placement);
        steps.push(Step { axis, action, before: now, after });
        now = after;
    }
    Ok(steps)
}

/// Rule 1.
fn cut(now: &Layout, to: &Layout, form: &Form) -> Option<(Axis, Action)> {
    (0..form.dims.len()).find_map(|dim| {
        let (have, want) = (now.cuts(dim), to.cuts(dim));
        let next = want.strip_prefix(&have[..])?.first().copied()?;
        match now.at(next) {
            Placement::Replicate => Some((next, Action::Slice { dim })),
            Placement::Partial { reduce } => Some((next, Action::ReduceScatter { dim, reduce })),
            Placement::Shard { dim: from } if now.cuts(from).last() == Some(&next) => {
                Some((next, Action::AllToAll { from, to: dim }))
            }
            Placement::Shard { .. } => None,
        }
    })
}

/// Rule 2.
fn reduce(now: &Layout, to: &Layout) -> Option<(Axis, Action)> {
    Axis::CUTTING.into_iter().find_map(|axis| match (now.at(axis), to.at(axis)) {
        (Placement::Partial { reduce }, Placement::Replicate) => Some((axis, Action::AllReduce { reduce })),
        _ => None,
    })
}

/// Rule 3.
fn gather(now: &Layout, to: &Layout, form: &Form) -> Option<(Axis, Action)> {
    (0..form.dims.len()).find_map(|dim| {
        let have = now.cuts(dim);
        if to.cuts(dim).starts_with(&have) {
            return None;
        }
        have.last().map(|axis| (*axis, Action::AllGather { dim }))
    })
}
