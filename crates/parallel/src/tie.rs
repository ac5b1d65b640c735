//! The gradient of a token table that the first and the last stage both hold: each makes one term of it.
//!
//! Both add the two terms, so the two copies get the same update and keep the same bits. Parts over the shard axis are the
//! same at both ends, so only the part that a rank steps is exchanged.

use crate::chunk::Chunk;
use crate::exchange::{ExchangeError, stream};
use crate::flat::TABLE;
use bessemer_collectives::{Collective, HostStaging, Pattern, Reduce};
use bessemer_mesh::Axis;
use bessemer_program::BUCKET;
use bessemer_tensor::op::{Add, Copy, Op};
use bessemer_tensor::{Backend, Stream, View};

/// The ends of the pipeline on this rank.
#[derive(Debug, Default)]
pub(crate) struct Tie {
    /// Chunks whose other end is on another rank, in the order of the routes: ranks that are the ends of several communicate in
    /// one order.
    apart: Vec<usize>,
    /// First and last stage, where both are here.
    together: Vec<(usize, usize)>,
}

impl Tie {
    /// Plans the sums, and host memory for them.
    pub(crate) fn new(chunks: &[Chunk], staging: &HostStaging) -> Tie {
        let holders: Vec<usize> =
            (0..chunks.len()).filter(|c| chunks[*c].table_gradient().is_some()).collect();
        let mut apart: Vec<usize> = holders.iter().copied().filter(|c| chunks[*c].ends.is_some()).collect();
        apart.sort_by_key(|c| chunks[*c].ends.as_ref().map(|e| e.0));
        let alone = |head: bool| {
            let is = move |c: &usize| chunks[*c].ends.is_none() && chunks[*c].place.span.head == head;
            holders.iter().copied().filter(is)
        };
        let together: Vec<(usize, usize)> = alone(false).zip(alone(true)).collect();
        let gradients = || holders.iter().filter_map(|c| chunks[*c].table_gradient());
        let room = gradients().map(|v| v.len()).max().unwrap_or(0).min(BUCKET);
        if let Some(gradient) = gradients().next().filter(|_| !apart.is_empty()) {
            staging.plan(1, gradient.dtype(), room);
        }
        Tie { apart, together }
    }

    /// Adds the terms up, wherever they are. Every holder has the same bits after it.
    pub(crate) fn add_up(
        &mut self,
        backend: &mut dyn Backend,
        chunks: &mut [Chunk],
    ) -> Result<(), ExchangeError> {
        let sum = Collective::new(TABLE, Pattern::AllReduce(Reduce::Sum));
        for &c in &self.apart {
            let (Some(mine), Some((_, group))) = (chunks[c].table_gradient(), &mut chunks[c].ends) else {
                continue;
            };
            for view in buckets(mine) {
                group.run(backend, stream(Axis::Pipeline), &sum, &[view], &[view])?;
            }
        }
        Ok(self.sums_here(chunks).try_for_each(|op| backend.launch(Stream::Compute, &op))?)
    }

    /// Chunks to whose terms another rank's are added, by an all-reduce of [`Chunk::table_gradient`] each.
    pub(crate) fn apart(&self) -> &[usize] {
        &self.apart
    }

    /// Operators that add the terms of both ends on this rank.
    pub(crate) fn sums_here<'a>(&'a self, chunks: &'a [Chunk]) -> impl Iterator<Item = Op> + 'a {
        let ends = self.together.iter().filter_map(|&(first, last)| {
            Some((chunks[first].table_gradient()?, chunks[last].table_gradient()?))
        });
        ends.flat_map(|(first, last)| -> [Op; 2] {
            [Add { a: first, b: last, out: first }.into(), Copy { src: first, dst: last }.into()]
        })
    }
}

fn buckets(view: View) -> impl Iterator<Item = View> {
    (0..view.len()).step_by(BUCKET).map(move |start| view.columns(start, BUCKET.min(view.len() - start)))
}
