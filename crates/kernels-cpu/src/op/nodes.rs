//! The topology-aware gate. A group of tokens is one thread's, so bits depend on no number of threads.
//!
//! Cost: a pass over the logits of a group, a sort of its tokens that would leave.
#![allow(unsafe_code)] // rows of the workspace

use super::route::precedes;
use crate::arena::Arena;
use crate::ctx::Ctx;
use bessemer_tensor::op::{DropoutMask, KeepInNode};
use std::cmp::Ordering;
use std::ops::Range;

/// The best of these experts for a token: number and logit.
fn best(experts: impl Iterator<Item = usize>, logit: impl Fn(usize) -> f32) -> Option<(usize, f32)> {
    let of = experts.map(|e| (e, logit(e)));
    of.reduce(|best, found| if precedes(found, best) { found } else { best })
}

/// Number in the batch of the first token.
fn first_token(arena: &Arena, op: &KeepInNode) -> u64 {
    let counters = arena.u32(&op.counters);
    DropoutMask::stream(std::array::from_fn(|i| counters.0[i])).1
}

/// Writes the row of a token if it is here: logits of the experts that are open to it.
fn write_row(arena: &Arena, op: &KeepInNode, token: usize, open: impl Fn(usize) -> bool) {
    let (logits, out) = (arena.f32(&op.logits), arena.f32(&op.out));
    let Some(row) = op.here.row_of(token, out.rows) else { return };
    for e in 0..logits.cols {
        out.set(row, e, if open(e) { logits.get(token, e) } else { KeepInNode::CLOSED });
    }
}

/// One group. `list` has a place for each of its tokens.
fn restrict(arena: &Arena, op: &KeepInNode, group: usize, list: &mut [u32]) {
    let logits = arena.f32(&op.logits);
    let tokens = group * op.group..(group + 1) * op.group;
    let first = tokens.start;
    let best_of = |token: usize, experts: Range<usize>| best(experts, |e| logits.get(token, e));
    let node = op.experts_of(first_token(arena, op) + first as u64);
    let mut leave = 0;
    for token in tokens.clone() {
        if best_of(token, 0..logits.cols).is_some_and(|(e, _)| !node.contains(&e)) {
            list[leave] = (token - first) as u32;
            leave += 1;
        }
    }
    if leave < op.leaving {
        tokens.for_each(|token| write_row(arena, op, token, |_| true));
        return;
    }
    let key = |place: u32| {
        let logit = best_of(first + place as usize, 0..logits.cols).map_or(f32::NAN, |(_, logit)| logit);
        (place as usize, logit)
    };
    list[..leave].sort_unstable_by(|a, b| match (a == b, precedes(key(*a), key(*b))) {
        (true, _) => Ordering::Equal,
        (_, true) => Ordering::Less,
        (_, false) => Ordering::Greater,
    });
    list[..leave][..op.leaving].sort_unstable();
    let leavers = &list[..op.leaving];
    for token in tokens {
        if leavers.binary_search(&((token - first) as u32)).is_err() {
            write_row(arena, op, token, |e| node.contains(&e));
            continue;
        }
        let inside = best_of(token, node.clone()).map(|(e, _)| e);
        let outside = best_of(token, 0..logits.cols).map(|(e, _)| e);
        write_row(arena, op, token, |e| inside == Some(e) || outside == Some(e));
    }
}

pub(crate) fn workspace(threads: usize, op: &KeepInNode) -> usize {
    threads * op.group.next_multiple_of(16)
}

pub(crate) fn keep(ctx: &Ctx<'_>, op: &KeepInNode) {
    let places = op.group.next_multiple_of(16);
    let rows = ctx.scratch().take(ctx.pool.threads() * places);
    ctx.pool.run(op.logits.rows / op.group, &|group, worker| {
        // SAFETY: each worker has a row of the workspace of its own; u32 has the size of f32, and every number is written before it is read.
        let list = unsafe {
            std::slice::from_raw_parts_mut(rows.at(worker * places, places).cast::<u32>(), op.group)
        };
        restrict(ctx.arena, op, group, list);
    });
}

/// A token leaves if fewer than the limit come before it.
pub(crate) fn reference(arena: &Arena, op: &KeepInNode) {
    let logits = arena.f32(&op.logits);
    let every = || 0..logits.cols;
    let top = |token: usize| {
        every().reduce(
            |a, b| {
                if precedes((b, logits.get(token, b)), (a, logits.get(token, a))) { b } else { a }
            },
        )
    };
    for token in 0..logits.rows {
        let node = op.experts_of(first_token(arena, op) + token as u64);
        let first = token / op.group * op.group;
        let leaves = |t: &usize| top(*t).is_some_and(|e| !node.contains(&e));
        let would: Vec<usize> = (first..first + op.group).filter(leaves).collect();
        let logit = |t: usize| top(t).map_or(f32::NAN, |e| logits.get(t, e));
        let before = would.iter().filter(|t| precedes((**t, logit(**t)), (token, logit(token)))).count();
        let inside = node.clone().find(|e| {
            node.clone().all(|f| f == *e || precedes((*e, logits.get(token, *e)), (f, logits.get(token, f))))
        });
        let open = |e: usize| match (would.len() < op.leaving, would.contains(&token) && before < op.leaving)
        {
            (true, _) => true,
            (false, true) => inside == Some(e) || top(token) == Some(e),
            (false, false) => node.contains(&e),
        };
        write_row(arena, op, token, open);
    }
}
