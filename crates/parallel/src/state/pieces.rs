//! Where every element of the job's state is taken from: the ranks' own stretches of it, each element from one rank at least.

use super::{Reading, StateTensor};
use crate::error::ParallelError;
use crate::worker::Worker;
use bessemer_mesh::ElementRun;
use bessemer_optim::StateView;

/// Elements of a whole tensor: (first, how many), one after the other.
type Runs = Vec<(usize, usize)>;

/// A stretch of memory on this rank that is part of a whole tensor.
#[derive(Debug, Clone)]
pub struct OwnPiece {
    /// Position in the list of tensors.
    pub tensor: usize,
    /// Chunk of this rank.
    pub chunk: usize,
    /// Its memory, without gaps.
    pub view: StateView,
    /// Elements of the whole tensor: (first, how many), one after the other.
    pub runs: Vec<(usize, usize)>,
}

impl Worker {
    /// The stretches of `tensors` for which this rank stands: the first copy's, of the ranks that [`Worker::read`] asks.
    ///
    /// # Errors
    /// A tensor that does not lie in one stretch on a rank.
    pub fn own_pieces(&self, tensors: &[StateTensor]) -> Result<Vec<OwnPiece>, ParallelError> {
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

    fn own_piece(
        &self,
        tensor: &StateTensor,
        chunk: usize,
    ) -> Result<Option<(StateView, Runs)>, ParallelError> {
        let (coord, chunk) = (self.coord, &self.chunks[chunk]);
        let Reading { param, len, parts, view } = chunk.reading(&self.plan, coord, tensor)?;
        let Some(view) = view else { return Ok(None) };
        // The first rank stands for what every rank of an axis has.
        if (parts.is_none() && coord.shard > 0) || (param.is_none() && coord.tensor > 0) {
            return Ok(None);
        }
        let stretch = parts.map_or(0..len, |parts| parts.range(coord.shard));
        let all = ElementRun { whole: 0, local: 0, len };
        let runs = param.map_or_else(|| vec![all], |param| chunk.tensor_shard[param].runs());
        let runs = runs.into_iter().filter_map(|run| run.within(&stretch));
        Ok(Some((view, runs.map(|run| (run.whole, run.len)).collect())))
    }
}
