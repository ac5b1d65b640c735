//! Capacities of experts. A group of tokens, or an expert of a group, is one thread's, so bits depend on no number of threads.
//!
//! Cost: one pass over the choices of a group; by scores, a sort of the choices of each expert.
#![allow(unsafe_code)] // rows of the workspace

use super::dropout::{Mask, uniform};
use crate::arena::Arena;
use crate::ctx::Ctx;
use bessemer_tensor::TensorError;
use bessemer_tensor::op::{DropRule, DropoutMask, KeepChoices, RandomNumbers};
use std::cmp::Ordering;

fn numbers(arena: &Arena, op: &RandomNumbers, row: usize) {
    let mask = DropoutMask { p: 0.0, counters: op.counters, first: 0 };
    let (mask, out) = (Mask::new(&mask, &arena.u32(&op.counters)), arena.f32(&op.out));
    (0..out.cols).for_each(|c| out.set(row, c, uniform(&mask, (row * out.cols + c) as u64)));
}

pub(crate) fn random(ctx: &Ctx<'_>, op: &RandomNumbers) {
    const ROWS: usize = 256;
    ctx.pool.run(op.out.rows.div_ceil(ROWS), &|tile, _| {
        (tile * ROWS..op.out.rows.min((tile + 1) * ROWS)).for_each(|row| numbers(ctx.arena, op, row));
    });
}

pub(crate) fn random_reference(arena: &Arena, op: &RandomNumbers) {
    (0..op.out.rows).for_each(|row| numbers(arena, op, row));
}

/// Whether a choice is sent at all.
fn is_sent(arena: &Arena, op: &KeepChoices, token: usize, choice: usize) -> bool {
    let Some(second) = op.second.filter(|_| choice == 1) else { return true };
    2.0 * arena.f32(&second.weights).get(token, 1) > arena.f32(&second.random).get(token, 0)
}

/// Choices of a group in the order in which they take places; `taken` counts those of each expert.
fn keep_in_order(arena: &Arena, op: &KeepChoices, group: usize, taken: &mut [u32]) {
    let (experts, kept) = (arena.index_mat(&op.experts), arena.index_mat(&op.kept));
    taken.fill(0);
    let mut take = |t: usize, s: usize| {
        let place = &mut taken[experts.get(t, s) as usize];
        if let Some(row) = op.here.row_of(t, kept.rows) {
            kept.set(row, s, u32::from((*place as usize) < op.capacity && is_sent(arena, op, t, s)));
        }
        *place += 1;
    };
    let tokens = group * op.group..(group + 1) * op.group;
    match op.drop {
        DropRule::Choice => {
            for s in 0..experts.cols {
                tokens.clone().for_each(|t| take(t, s));
            }
        }
        DropRule::Position | DropRule::Score => {
            for t in tokens {
                (0..experts.cols).for_each(|s| take(t, s));
            }
        }
    }
}

/// The choices of one expert in a group: those with the largest scores are kept. `list` has a place for each token of the group.
fn keep_best(arena: &Arena, op: &KeepChoices, (group, expert): (usize, usize), list: &mut [u32]) {
    let (experts, kept) = (arena.index_mat(&op.experts), arena.index_mat(&op.kept));
    let Some(scores) = op.scores.map(|scores| arena.f32(&scores)) else { return };
    let (first, mut found) = (group * op.group, 0);
    let choice = |t: usize| (0..experts.cols).find(|s| experts.get(t, *s) as usize == expert);
    for t in first..first + op.group {
        if let Some(s) = choice(t) {
            list[found] = (t - first) as u32;
            found += 1;
            if let Some(row) = op.here.row_of(t, kept.rows) {
                kept.set(row, s, 0);
            }
        }
    }
    let score = |place: u32| scores.get(first + place as usize, expert);
    let list = &mut list[..found];
    list.sort_unstable_by(|a, b| {
        let by_score =
            score(*b).partial_cmp(&score(*a)).unwrap_or_else(|| score(*a).is_nan().cmp(&score(*b).is_nan()));
        if by_score == Ordering::Equal { a.cmp(b) } else { by_score }
    });
    for place in list.iter().take(op.capacity) {
        let t = first + *place as usize;
        if let (Some(row), Some(s)) = (op.here.row_of(t, kept.rows), choice(t)) {
            kept.set(row, s, u32::from(is_sent(arena, op, t, s)));
        }
    }
}

/// Numbers of a thread: a place for each expert, or for each token of a group.
fn places(op: &KeepChoices) -> usize {
    let places = if op.drop == DropRule::Score { op.group } else { op.count };
    places.next_multiple_of(16)
}

pub(crate) fn workspace(threads: usize, op: &KeepChoices) -> usize {
    threads * places(op)
}

fn check(arena: &Arena, op: &KeepChoices) -> Result<(), TensorError> {
    arena.index_mat(&op.experts).check("keep_choices", "experts", op.count)
}

pub(crate) fn keep(ctx: &Ctx<'_>, op: &KeepChoices) -> Result<(), TensorError> {
    check(ctx.arena, op)?;
    let (places, groups) = (places(op), op.experts.rows / op.group);
    let rows = ctx.scratch().take(ctx.pool.threads() * places);
    let numbers = |worker: usize, len: usize| {
        // SAFETY: each worker has a row of the workspace of its own; u32 has the size of f32, and every number is written before it is read.
        unsafe { std::slice::from_raw_parts_mut(rows.at(worker * places, places).cast::<u32>(), len) }
    };
    match op.drop {
        DropRule::Score => ctx.pool.run(groups * op.count, &|tile, worker| {
            keep_best(ctx.arena, op, (tile / op.count, tile % op.count), numbers(worker, op.group));
        }),
        _ => ctx.pool.run(groups, &|group, worker| {
            keep_in_order(ctx.arena, op, group, numbers(worker, op.count));
        }),
    }
    Ok(())
}

/// A choice is kept if fewer than the capacity come before it.
fn best_reference(arena: &Arena, op: &KeepChoices, group: usize) {
    let (experts, kept) = (arena.index_mat(&op.experts), arena.index_mat(&op.kept));
    let Some(scores) = op.scores.map(|scores| arena.f32(&scores)) else { return };
    let tokens = || group * op.group..(group + 1) * op.group;
    for (t, s) in tokens().flat_map(|t| (0..experts.cols).map(move |s| (t, s))) {
        let Some(row) = op.here.row_of(t, kept.rows) else { continue };
        let expert = experts.get(t, s);
        let score = |t: usize| scores.get(t, expert as usize);
        let chooses = |u: &usize| (0..experts.cols).any(|s| experts.get(*u, s) == expert);
        let precedes = |u: &usize| match (score(*u).is_nan(), score(t).is_nan()) {
            (false, false) => score(*u) > score(t) || (score(*u) == score(t) && *u < t),
            (other, this) => this && (!other || *u < t),
        };
        let before = tokens().filter(|u| chooses(u) && precedes(u)).count();
        kept.set(row, s, u32::from(before < op.capacity && is_sent(arena, op, t, s)));
    }
}

pub(crate) fn keep_reference(arena: &Arena, op: &KeepChoices) -> Result<(), TensorError> {
    check(arena, op)?;
    for group in 0..op.experts.rows / op.group {
        match op.drop {
            DropRule::Score => best_reference(arena, op, group),
            _ => keep_in_order(arena, op, group, &mut vec![0; op.count]),
        }
    }
    Ok(())
}
