//! Tensors are read in batches, so that small ones do not cost collectives or messages of their own.

use super::StateTensor;
use crate::error::ParallelError;
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

/// Whole tensors that were read together with one that was asked for: a checkpoint takes them one at a time.
#[derive(Debug)]
pub struct ReadAhead {
    lens: Vec<usize>,
    tensors: Range<usize>,
    values: Vec<f32>,
}

impl ReadAhead {
    /// For tensors of so many elements, in their order. Nothing is read yet.
    pub fn new(lens: Vec<usize>) -> ReadAhead {
        ReadAhead { lens, tensors: 0..0, values: Vec::new() }
    }

    /// Reads the batch that begins with tensor `first`. `read` is given its range and a buffer for its values.
    ///
    /// # Errors
    /// A tensor that is not there, or what `read` answers.
    pub fn read(
        &mut self,
        first: usize,
        read: impl FnOnce(Range<usize>, &mut [f32]) -> Result<(), ParallelError>,
    ) -> Result<(), ParallelError> {
        if first >= self.lens.len() {
            let text = format!("the state has no tensor {first}, only {}", self.lens.len());
            return Err(ParallelError::Layout(text));
        }
        let tensors = batch(&self.lens, first);
        self.tensors = 0..0;
        self.values.resize(self.lens[tensors.clone()].iter().sum(), 0.0);
        read(tensors.clone(), &mut self.values)?;
        self.tensors = tensors;
        Ok(())
    }

    /// The values of tensor `index`, if the last batch has them.
    pub fn get(&self, index: usize) -> Option<&[f32]> {
        let before = self.lens[self.tensors.start..].iter().take(index.checked_sub(self.tensors.start)?);
        let here = self.tensors.contains(&index);
        here.then(|| &self.values[before.sum()..][..self.lens[index]])
    }
}
