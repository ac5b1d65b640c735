//! Tensors are read in batches, so that small ones do not cost collectives or messages of their own.

use super::StateTensor;
use std::ops::Range;

/// Elements that are read from the ranks at a time, unless one tensor alone has more: 4 MiB on the host.
const BATCH: usize = 1 << 20;

/// The batch that begins with tensor `first`: tensors of at most 2^20 elements together, or one larger one.
fn batch(lens: &[usize], first: usize) -> Range<usize> {
    let mut elements = 0;
    let fits = |len: &&usize| {
        elements += **len;
        elements <= BATCH
    };
    first..first + lens[first..].iter().take_while(fits).count().max(1)
}

/// A tensor list as batches for [`crate::Worker::read_batch`]: the same on every rank.
pub fn batches(tensors: &[StateTensor]) -> impl Iterator<Item = Range<usize>> + '_ {
    let lens: Vec<usize> = tensors.iter().map(StateTensor::len).collect();
    let mut next = 0;
    std::iter::from_fn(move || {
        let here = (next < lens.len()).then(|| batch(&lens, next))?;
        next = here.end;
        Some(here)
    })
}
