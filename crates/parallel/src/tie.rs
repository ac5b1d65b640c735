//! The gradient of a token table that the first and the last stage both hold: each makes one term of it.
//!
//! Both add the two terms, so the two copies get the same update and stay the same bits. Parts over the shard axis are the
//! same at both ends, so only what a rank steps is exchanged.

use crate::chunk::Chunk;
use crate::exchange::{BUCKET, ExchangeError};
use crate::flat::TABLE;
use bessemer_collectives::Reduce;
use bessemer_tensor::{Backend, View};

/// The ends of the pipeline on this rank.
#[derive(Debug, Default)]
pub(crate) struct Tie {
    /// Chunks whose other end is on another rank, in the order of the routes: ranks that are the ends of several meet in
    /// one order.
    apart: Vec<usize>,
    /// First and last stage, where both are here.
    together: Vec<(usize, usize)>,
    values: Vec<f32>,
    other: Vec<f32>,
}

impl Tie {
    pub(crate) fn new(chunks: &[Chunk]) -> Tie {
        let holders: Vec<usize> =
            (0..chunks.len()).filter(|c| chunks[*c].table_gradient().is_some()).collect();
        let mut apart: Vec<usize> = holders.iter().copied().filter(|c| chunks[*c].ends.is_some()).collect();
        apart.sort_by_key(|c| chunks[*c].ends.as_ref().map(|e| e.0));
        let alone = |head: bool| {
            let is = move |c: &usize| chunks[*c].ends.is_none() && chunks[*c].place.span.head == head;
            holders.iter().copied().filter(is)
        };
        let together: Vec<(usize, usize)> = alone(false).zip(alone(true)).collect();
        let longest = holders.iter().filter_map(|c| chunks[*c].table_gradient()).map(|v| v.len()).max();
        let room = longest.unwrap_or(0).min(BUCKET);
        let other = Vec::with_capacity(if together.is_empty() { 0 } else { room });
        Tie { apart, together, values: Vec::with_capacity(room), other }
    }

    /// Bytes on the host.
    pub(crate) fn bytes(&self) -> u64 {
        4 * (self.values.capacity() + self.other.capacity()) as u64
    }

    /// Adds the terms up, wherever they are. Every holder has the same bits after it.
    pub(crate) fn add_up(
        &mut self,
        backend: &mut dyn Backend,
        chunks: &mut [Chunk],
    ) -> Result<(), ExchangeError> {
        let Tie { apart, together, values, other } = self;
        for &c in apart.iter() {
            let (Some(mine), Some((_, group))) = (chunks[c].table_gradient(), &mut chunks[c].ends) else {
                continue;
            };
            for view in buckets(mine) {
                values.resize(view.len(), 0.0);
                backend.read_f32(view, values)?;
                group.all_reduce(TABLE, &mut *values, Reduce::Sum)?;
                backend.write_f32(view, values)?;
            }
        }
        for &(first, last) in together.iter() {
            let (Some(first), Some(last)) = (chunks[first].table_gradient(), chunks[last].table_gradient())
            else {
                continue;
            };
            for (first, last) in buckets(first).zip(buckets(last)) {
                values.resize(first.len(), 0.0);
                other.resize(last.len(), 0.0);
                backend.read_f32(first, values)?;
                backend.read_f32(last, other)?;
                values.iter_mut().zip(other.iter()).for_each(|(sum, term)| *sum += term);
                backend.write_f32(first, values)?;
                backend.write_f32(last, values)?;
            }
        }
        Ok(())
    }
}

fn buckets(view: View) -> impl Iterator<Item = View> {
    (0..view.len()).step_by(BUCKET).map(move |start| view.columns(start, BUCKET.min(view.len() - start)))
}
