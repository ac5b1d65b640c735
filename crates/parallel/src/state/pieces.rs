//! Where every element of the job's state is taken from: the ranks' own stretches of it, each element from one rank at least.

use super::{MASTER, Of, Place, StateTensor};
use crate::error::ParallelError;
use crate::worker::Worker;
use bessemer_tensor::View;
use std::ops::Range;

/// Elements of a whole tensor: (first, how many), one after the other.
pub(crate) type Runs = Vec<(usize, usize)>;

/// A stretch of memory on this rank that is part of a whole tensor.
#[derive(Debug, Clone)]
pub(crate) struct OwnPiece {
    /// Position in the list of tensors.
    pub(crate) tensor: usize,
    /// Chunk of this rank.
    pub(crate) chunk: usize,
    /// Its memory, without gaps.
    pub(crate) view: View,
    /// Which elements of the whole tensor they are.
    pub(crate) runs: Runs,
}

impl Worker {
    /// The stretches of `tensors` for which this rank stands: the first copy's, of the ranks that [`Worker::read`] asks.
    pub(crate) fn own_pieces(&self, tensors: &[StateTensor]) -> Result<Vec<OwnPiece>, ParallelError> {
        let mut pieces = Vec::new();
        for (index, tensor) in tensors.iter().enumerate() {
            let holder = self.holder(tensor);
            if holder.rank != self.coord.pipeline || self.coord.replicate > 0 {
                continue;
            }
            if let Some((view, runs)) = self.own_piece(tensor, holder.chunk)? {
                if !view.is_contiguous() || view.len() != runs.iter().map(|run| run.1).sum::<usize>() {
                    let text = format!("{:?} does not lie in one stretch on a rank", tensor.name);
                    return Err(ParallelError::Layout(text));
                }
                pieces.push(OwnPiece { tensor: index, chunk: holder.chunk, view, runs });
            }
        }
        Ok(pieces)
    }

    fn own_piece(&self, tensor: &StateTensor, chunk: usize) -> Result<Option<(View, Runs)>, ParallelError> {
        let (plan, coord, chunk) = (&self.plan, self.coord, &self.chunks[chunk]);
        let master = format!("{MASTER}{}", tensor.name);
        let of = match &tensor.place {
            Place::Whole { name, owner, .. } => {
                let mine = coord.tensor == 0 && coord.shard == owner.unwrap_or(0);
                let view = mine.then(|| chunk.state_view(name, tensor.len())).transpose()?;
                return Ok(view.map(|view| (view, vec![(0, tensor.len())])));
            }
            Place::Param(_) if chunk.types.has_masters() => Of::State(&master),
            Place::Param(_) => Of::Value,
            Place::Gradient(_) => Of::Gradient,
            Place::Moment(_, name) => Of::State(name),
        };
        let param = chunk.param_of(tensor).ok_or_else(|| super::not_here(&tensor.name))?;
        let portion = &chunk.portion[param];
        if coord.tensor > 0 && portion.len() == tensor.len() {
            return Ok(None);
        }
        let (view, stretch): (Option<View>, Range<usize>) = match of {
            Of::Value if plan.keeps_values() => {
                ((coord.shard == 0).then_some(chunk.memory.params[param].value), 0..portion.len())
            }
            _ => {
                let place = chunk.place(param);
                (chunk.own_view(coord, place, &of)?, chunk.stretches(plan, place).range(coord.shard))
            }
        };
        let Some(view) = view else { return Ok(None) };
        let runs = portion.runs().into_iter().filter_map(|run| run.within(&stretch));
        Ok(Some((view, runs.map(|run| (run.whole, run.len)).collect())))
    }
}
