//! Tensors of a checkpoint into a rank's buffers.
//!
//! Every rank reads the elements that its layout needs. Of N ranks with the same weights each reads all of them, N times the
//! checkpoint's bytes from a file system that they share. Read once, each reads a part of what it has in common with others, and they gather
//! the rest from each other (ByteCheckpoint: Wan et al. 2025, section 4.2): with R ranks that want the same V bytes each reads V/R
//! and receives V (R - 1)/R, 4 MiB of a tensor at a time. Which ranks want the same of a tensor is found by hashes of what they want.

use super::memory_tier::host;
use crate::TrainError;
use bessemer_checkpoint::{CheckpointError, Loaded, SharedReads};
use bessemer_collectives::{Communicator, Parts};
use bessemer_memory_checkpoint::stable_hash;
use bessemer_parallel::{ParallelError, StateTensor, Worker};
use bessemer_tensor::Backend;
use std::ops::Range;

/// Messages.
const HOSTS: &str = "hosts that read checkpoints";
const WANTED: &str = "what ranks want of a checkpoint";
const SHARED: &str = "elements of a checkpoint";

/// Elements that are gathered at a time.
const WINDOW: usize = 1 << 20;
/// Fewest elements that a rank reads of a window for others.
const LEAST: usize = 1 << 16;
/// Tensors whose hashes are gathered at a time.
const TENSORS: usize = 256;

/// Elements of a tensor: (first, how many), one run after the other.
type Runs = Vec<(usize, usize)>;

/// Puts this rank's part of tensors into its buffers, from a checkpoint that is read ahead.
///
/// # Errors
/// Damage of the checkpoint, or an error of the device.
pub fn read_tensors<'t, E: From<ParallelError> + From<CheckpointError>>(
    worker: &mut Worker,
    backend: &mut dyn Backend,
    loaded: &Loaded,
    tensors: &'t [StateTensor],
) -> Result<(), E> {
    let of_tensor = |t: &'t StateTensor| {
        let runs = worker.wanted_runs(t).into_iter();
        runs.map(|runs| (t.name.as_str(), runs))
    };
    let plan = loaded.plan_reads(tensors.iter().flat_map(of_tensor))?;
    loaded.reading_ahead(plan, || {
        tensors.iter().try_for_each(|tensor| {
            worker.write_with(backend, tensor, &mut |runs, values| {
                loaded.read_runs(&tensor.name, runs, values).map_err(E::from)
            })
        })
    })
}

/// Whether ranks read what they have in common once. All ranks call this.
pub(super) fn reads_once(worker: &mut Worker, choice: SharedReads) -> Result<bool, TrainError> {
    if worker.plan().ranks() == 1 {
        return Ok(false);
    }
    Ok(match choice {
        SharedReads::Each => false,
        SharedReads::Once => true,
        SharedReads::Auto => {
            let hosts = worker.gather_numbers(HOSTS, &[host()])?;
            hosts.iter().any(|host| *host != hosts[0])
        }
    })
}

/// Ranks that want the same elements of some tensors.
struct Class {
    ranks: Vec<usize>,
    group: Box<dyn Communicator>,
}

/// A tensor as this rank reads it.
struct Reading {
    /// All elements that the rank wants.
    wanted: Runs,
    elements: usize,
    /// Position of its class; `None` if no other rank wants the same.
    class: Option<usize>,
}

/// [`read_tensors`], where what several ranks want is read once. All ranks call this, with the same checkpoint. A rank that finds damage
/// takes part to the end, so that none waits for it.
///
/// # Errors
/// As [`read_tensors`]; an answer of another rank.
pub(super) fn read_tensors_once<E: From<ParallelError> + From<CheckpointError>>(
    worker: &mut Worker,
    backend: &mut dyn Backend,
    loaded: &Loaded,
    tensors: &[StateTensor],
) -> Result<(), E> {
    let (readings, mut classes) = classify(worker, tensors)?;
    let rank = worker.rank();
    let shares = tensors.iter().zip(&readings).enumerate().flat_map(|(number, (tensor, reading))| {
        let class = reading.class.map(|class| &classes[class]);
        own_shares(number, reading, class, rank).into_iter().map(|runs| (tensor.name.as_str(), runs))
    });
    let plan = loaded.plan_reads(shares.collect::<Vec<_>>())?;
    let mut damage = None;
    loaded.reading_ahead(plan, || {
        for (number, (tensor, reading)) in tensors.iter().zip(&readings).enumerate() {
            let mut read = |runs: &[(usize, usize)], values: &mut [f32]| {
                let result = loaded.read_runs(&tensor.name, runs, values);
                damage = damage.take().or(result.err());
            };
            let Some(class) = reading.class else {
                worker.write_with::<E>(backend, tensor, &mut |runs, values| {
                    read(runs, values);
                    Ok(())
                })?;
                continue;
            };
            let Class { ranks, group } = &mut classes[class];
            let position = ranks.iter().position(|of| *of == rank).unwrap_or(0);
            let (mut window, mut taken, mut next) = (Vec::new(), 0, 0);
            worker.write_with::<E>(backend, tensor, &mut |_, mut values| {
                while !values.is_empty() {
                    if taken == window.len() {
                        let here = next..reading.elements.min(next + WINDOW);
                        let parts = shares_of(here.len(), ranks.len(), number + next / WINDOW);
                        window.resize(here.len(), 0.0);
                        let own = parts.range(position);
                        let runs = within(&reading.wanted, here.start + own.start, own.len());
                        read(&runs, &mut window[own]);
                        group.all_gather(SHARED, &mut window[..], &parts).map_err(ParallelError::from)?;
                        (taken, next) = (0, here.end);
                    }
                    let count = values.len().min(window.len() - taken);
                    let (now, later) = values.split_at_mut(count);
                    now.copy_from_slice(&window[taken..taken + count]);
                    taken += count;
                    values = later;
                }
                Ok(())
            })?;
        }
        Ok::<_, E>(())
    })?;
    damage.map_or(Ok(()), |e| Err(e.into()))
}

/// Finds which ranks want the same of each tensor, and makes their groups. All ranks call this.
fn classify(
    worker: &mut Worker,
    tensors: &[StateTensor],
) -> Result<(Vec<Reading>, Vec<Class>), ParallelError> {
    let rank = worker.rank();
    let (mut readings, mut classes) = (Vec::with_capacity(tensors.len()), Vec::<Class>::new());
    for tensors in tensors.chunks(TENSORS) {
        let wanted: Vec<Runs> =
            tensors.iter().map(|tensor| worker.wanted_runs(tensor).into_iter().flatten().collect()).collect();
        let hashes: Vec<u64> = wanted.iter().map(hash).collect();
        let all = worker.gather_numbers(WANTED, &hashes)?;
        for (number, wanted) in wanted.into_iter().enumerate() {
            let of_rank = |rank: &usize| all[rank * tensors.len() + number];
            let ranks: Vec<usize> =
                (0..all.len() / tensors.len()).filter(|other| of_rank(other) == of_rank(&rank)).collect();
            let known = classes.iter().position(|class| class.ranks == ranks);
            let class = match known {
                _ if wanted.is_empty() || ranks.len() == 1 => None,
                Some(class) => Some(class),
                None => {
                    let group = worker.world().group(SHARED, &ranks)?;
                    classes.push(Class { ranks, group });
                    Some(classes.len() - 1)
                }
            };
            let elements = wanted.iter().map(|run| run.1).sum();
            readings.push(Reading { wanted, elements, class });
        }
    }
    Ok((readings, classes))
}

/// Hash of what a rank wants of a tensor; 0: nothing.
fn hash(wanted: &Runs) -> u64 {
    if wanted.is_empty() {
        return 0;
    }
    let numbers = wanted.iter().flat_map(|run| [run.0 as u64, run.1 as u64]);
    let bytes: Vec<u8> = numbers.flat_map(u64::to_le_bytes).collect();
    stable_hash(&[&bytes]) as u64 | 1
}

/// What each of `ranks` ranks reads of the `elements` elements of a window. Where few ranks suffice, the next `turn` has others.
fn shares_of(elements: usize, ranks: usize, turn: usize) -> Parts {
    let share = elements.div_ceil(ranks).max(LEAST);
    let readers = elements.div_ceil(share);
    // Parts follow the order of the ranks, so the readers are neighbours.
    let first = turn % (ranks - readers + 1);
    Parts::of((0..ranks).map(|rank| match rank.checked_sub(first) {
        Some(reader) => elements.saturating_sub(reader * share).min(share),
        None => 0,
    }))
}

/// The runs that a rank reads of a tensor, by call of [`Loaded::read_runs`].
fn own_shares(number: usize, reading: &Reading, class: Option<&Class>, rank: usize) -> Vec<Runs> {
    let Some(Class { ranks, .. }) = class else { return vec![reading.wanted.clone()] };
    let position = ranks.iter().position(|of| *of == rank).unwrap_or(0);
    let windows = (0..reading.elements).step_by(WINDOW);
    let own = windows.map(|start| {
        let elements = WINDOW.min(reading.elements - start);
        let own = shares_of(elements, ranks.len(), number + start / WINDOW).range(position);
        within(&reading.wanted, start + own.start, own.len())
    });
    own.filter(|runs| !runs.is_empty()).collect()
}

/// The runs of `len` wanted elements from the `first` on.
fn within(wanted: &Runs, first: usize, len: usize) -> Runs {
    let (mut before, mut found) = (0, Runs::new());
    for (start, count) in wanted {
        let here: Range<usize> = first.max(before)..(first + len).min(before + count);
        if !here.is_empty() {
            found.push((start + here.start - before, here.len()));
        }
        before += count;
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_cover_a_window_once() {
        for (elements, ranks) in
            [(1, 2), (LEAST, 3), (LEAST + 1, 3), (WINDOW, 7), (5 * LEAST + 3, 4), (WINDOW - 1, 1)]
        {
            for turn in 0..5 {
                let parts = shares_of(elements, ranks, turn);
                assert_eq!((parts.len(), parts.count()), (elements, ranks));
                let most = (0..ranks).map(|rank| parts.range(rank).len()).max();
                assert!(most <= Some(elements.div_ceil(ranks).max(LEAST)), "{elements} {ranks} {turn}");
            }
        }
        // Small windows go to one rank after the other.
        let reader = |turn: usize| {
            let parts = shares_of(10, 4, turn);
            (0..4).position(|rank| !parts.range(rank).is_empty())
        };
        assert_eq!([0, 1, 2, 3, 4].map(reader), [0, 1, 2, 3, 0].map(Some));
    }

    #[test]
    fn runs_are_cut_where_shares_end() {
        let wanted = vec![(10, 5), (100, 1), (200, 10)];
        assert_eq!(within(&wanted, 0, 16), wanted);
        assert_eq!(within(&wanted, 3, 5), [(13, 2), (100, 1), (200, 2)]);
        assert_eq!(within(&wanted, 8, 8), [(202, 8)]);
        assert_eq!(within(&wanted, 8, 0), []);
        assert_ne!(hash(&wanted), hash(&vec![(10, 5), (100, 1), (200, 9)]));
        assert_eq!(hash(&Runs::new()), 0);
    }
}
