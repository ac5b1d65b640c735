//! Tensors of a checkpoint into a rank's buffers.
//!
//! Every rank reads the elements that its layout needs. If N ranks have the same weights, each reads all of them, N times the
//! checkpoint's bytes from a file system that they share. With shared reads, each reads a part of the common elements and sends it to the
//! others (ByteCheckpoint: Wan et al. 2025, section 4.2): of R ranks that need the same V bytes each reads V/R
//! and receives V (R - 1)/R, 4 MiB at a time. Hashes of the needed elements show which ranks need the same ones of a tensor.
//!
//! The elements that a class of such ranks needs are one byte stream, tensor after tensor. Ranks read stripes of it round-robin. A chunk is
//! verified whole, so a stripe of four chunks makes a rank read at most five. Stripes are read ahead, by all ranks at the same time.

use super::memory_tier::host;
use crate::TrainError;
use bessemer_checkpoint::{CheckpointError, Loaded, SharedReads};
use bessemer_collectives::Communicator;
use bessemer_memory_checkpoint::stable_hash;
use bessemer_parallel::{ParallelError, StateTensor, Worker};
use bessemer_tensor::Backend;
use std::ops::Range;

/// Messages.
const HOSTS: &str = "hosts that read checkpoints";
const WANTED: &str = "the parts of a checkpoint that each rank needs";
const SHARED: &str = "elements of a checkpoint";

/// Elements that are sent at a time.
const WINDOW: usize = 1 << 20;
/// Chunks of a stripe.
const CHUNKS: usize = 4;
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

/// Whether ranks read common elements once. All ranks call this.
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

/// Ranks that need the same elements of some tensors.
struct Class {
    ranks: Vec<usize>,
    group: Box<dyn Communicator>,
}

/// A tensor as this rank reads it.
struct Reading {
    /// All elements that the rank needs.
    wanted: Runs,
    elements: usize,
    /// Position of its class; `None` if no other rank needs the same.
    class: Option<usize>,
    /// First element in the stream of its class.
    first: usize,
}

impl Reading {
    /// The next elements from `start` on that are sent together, and the position of the rank that reads them.
    fn next(&self, start: usize, stripe: usize, ranks: usize) -> (Range<usize>, usize) {
        let at = self.first + start;
        let end = self.elements.min(start + WINDOW - at % WINDOW);
        (start..end, at / stripe % ranks)
    }
}

/// [`read_tensors`], with elements that several ranks need read once. All ranks call this, with the same checkpoint. A rank that finds
/// damage participates to the end, to avoid a deadlock.
///
/// # Errors
/// Same errors as [`read_tensors`]; an error of another rank.
pub(super) fn read_tensors_once<E: From<ParallelError> + From<CheckpointError>>(
    worker: &mut Worker,
    backend: &mut dyn Backend,
    loaded: &Loaded,
    tensors: &[StateTensor],
) -> Result<(), E> {
    let (readings, mut classes) = classify(worker, tensors)?;
    let rank = worker.rank();
    // Counts elements of 4 bytes, in whole windows.
    let chunk = loaded.manifest().files.iter().map(|file| file.chunk_bytes as usize).max().unwrap_or(0);
    let stripe = (CHUNKS * chunk / 4).next_multiple_of(WINDOW).max(WINDOW);
    let shares = tensors.iter().zip(&readings).flat_map(|(tensor, reading)| {
        let class = reading.class.map(|class| &classes[class]);
        own_shares(reading, class, rank, stripe).into_iter().map(|runs| (tensor.name.as_str(), runs))
    });
    let plan = loaded.plan_reads(shares.collect::<Vec<_>>())?;
    let mut damage = None;
    loaded.reading_ahead(plan, || {
        for (tensor, reading) in tensors.iter().zip(&readings) {
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
                        let (here, reader) = reading.next(next, stripe, ranks.len());
                        window.resize(here.len(), 0.0);
                        if reader == position {
                            read(&within(&reading.wanted, here.start, here.len()), &mut window);
                        }
                        group.broadcast(SHARED, reader, &mut window[..]).map_err(ParallelError::from)?;
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

/// Finds which ranks need the same of each tensor, and makes their groups. All ranks call this.
fn classify(
    worker: &mut Worker,
    tensors: &[StateTensor],
) -> Result<(Vec<Reading>, Vec<Class>), ParallelError> {
    let rank = worker.rank();
    let (mut readings, mut classes) = (Vec::with_capacity(tensors.len()), Vec::<Class>::new());
    let mut streams = Vec::<usize>::new();
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
                    streams.push(0);
                    Some(classes.len() - 1)
                }
            };
            let elements: usize = wanted.iter().map(|run| run.1).sum();
            let first = class.map_or(0, |class| {
                streams[class] += elements;
                streams[class] - elements
            });
            readings.push(Reading { wanted, elements, class, first });
        }
    }
    Ok((readings, classes))
}

/// Hash of the elements that a rank needs of a tensor; 0: none.
fn hash(wanted: &Runs) -> u64 {
    if wanted.is_empty() {
        return 0;
    }
    let numbers = wanted.iter().flat_map(|run| [run.0 as u64, run.1 as u64]);
    let bytes: Vec<u8> = numbers.flat_map(u64::to_le_bytes).collect();
    stable_hash(&[&bytes]) as u64 | 1
}

/// The runs that a rank reads of a tensor, by call of [`Loaded::read_runs`].
fn own_shares(reading: &Reading, class: Option<&Class>, rank: usize, stripe: usize) -> Vec<Runs> {
    let Some(Class { ranks, .. }) = class else { return vec![reading.wanted.clone()] };
    let position = ranks.iter().position(|of| *of == rank).unwrap_or(0);
    let (mut next, mut own) = (0, Vec::new());
    while next < reading.elements {
        let (here, reader) = reading.next(next, stripe, ranks.len());
        next = here.end;
        if reader == position {
            own.push(within(&reading.wanted, here.start, here.len()));
        }
    }
    own
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
    fn ranks_take_turns_in_whole_stripes_of_the_stream() {
        let (stripe, ranks) = (4 * WINDOW, 3);
        let lens = [10, 3 * WINDOW, WINDOW - 10, 9 * WINDOW + 5, 0, 7];
        let mut first = 0;
        for elements in lens {
            let reading = Reading { wanted: vec![(0, elements)], elements, class: Some(0), first };
            let mut next = 0;
            while next < elements {
                let (here, reader) = reading.next(next, stripe, ranks);
                assert!(here.start == next && !here.is_empty() && here.len() <= WINDOW);
                for at in [here.start, here.end - 1] {
                    assert_eq!((first + at) / stripe % ranks, reader);
                }
                next = here.end;
            }
            assert_eq!(next, elements);
            first += elements;
        }
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
