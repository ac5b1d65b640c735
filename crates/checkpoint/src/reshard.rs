//! Resharding: the tensors of a checkpoint written anew in other slices and files, bit for bit.
//!
//! Any layout loads any checkpoint, so no run needs this. It serves who wants the files of a target layout (each rank then reads one
//! file), files of another size or number, or a checkpoint of an older format version in the present one. As in ByteCheckpoint and
//! Universal Checkpointing, the plan is the intersection of saved with wanted boxes; memory holds one wanted box as f32.

use crate::error::{CheckpointError, Result, SourceError};
use crate::load::Loaded;
use crate::save::{Contents, PartRequest, SaveReport, TensorSlice, slice_specs};
use crate::source::{TensorSource, TensorSpec};
use crate::store::Store;
use bessemer_mesh::{BoxRange, box_runs};

/// How a checkpoint is written anew.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReshardRequest {
    /// The boxes of each rank, by the tensors' numbers in the checkpoint: together each tensor exactly once.
    pub ranks: Vec<Vec<TensorSlice>>,
    /// Largest tensor file in bytes; a larger box gets a file of its own.
    pub max_file_bytes: u64,
}

impl ReshardRequest {
    /// The tensors of a checkpoint over `files` files of about the same size: each tensor is cut along its first dim into as many
    /// boxes, one of a file. With fewer rows than files some files get none of a tensor, other files for each tensor.
    pub fn even(tensors: &[TensorSpec], files: usize) -> ReshardRequest {
        let mut ranks = vec![Vec::new(); files];
        for (tensor, t) in tensors.iter().enumerate() {
            let rows = t.shape.first().copied().unwrap_or(1);
            for file in 0..files {
                let (from, to) = (rows * file / files, rows * (file + 1) / files);
                let mut part = BoxRange::whole(&t.shape);
                if let (Some(start), Some(len)) = (part.start.first_mut(), part.shape.first_mut()) {
                    (*start, *len) = (from, to - from);
                }
                if to > from {
                    ranks[(file + tensor) % files].push(TensorSlice { tensor, part });
                } else if rows == 0 && file == 0 {
                    ranks[tensor % files].push(TensorSlice { tensor, part: BoxRange::whole(&t.shape) });
                }
            }
        }
        ReshardRequest { ranks, max_file_bytes: u64::MAX }
    }
}

/// The boxes of one rank, read from a checkpoint.
struct Boxes<'a> {
    from: &'a Loaded,
    slices: &'a [TensorSlice],
    specs: Vec<TensorSpec>,
}

impl TensorSource for Boxes<'_> {
    fn specs(&self) -> &[TensorSpec] {
        &self.specs
    }

    fn fill(&mut self, index: usize, values: &mut [f32]) -> std::result::Result<(), SourceError> {
        let TensorSlice { tensor, part } = &self.slices[index];
        let t = &self.from.manifest().tensors[*tensor];
        let runs: Vec<_> = box_runs(&t.shape, part).into_iter().map(|run| (run.whole, run.len)).collect();
        Ok(self.from.read_runs(&t.name, &runs, values)?)
    }
}

impl Loaded {
    /// Names, shapes and types of its tensors, in its order.
    pub fn specs(&self) -> Vec<TensorSpec> {
        let spec = |t: &crate::manifest::TensorRecord| TensorSpec {
            name: t.name.clone(),
            shape: t.shape.clone(),
            dtype: t.dtype,
        };
        self.manifest().tensors.iter().map(spec).collect()
    }
}

impl Store {
    /// Saves a checkpoint that was loaded from elsewhere in other slices: the same step, state and bits. `progress` is called with (done,
    /// total) bytes.
    ///
    /// # Errors
    /// Boxes that leave a gap or overlap; a damaged checkpoint; no space; a checkpoint of this step that is here already.
    pub fn reshard(
        &self,
        from: &Loaded,
        request: &ReshardRequest,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<SaveReport> {
        let (manifest, specs) = (from.manifest(), from.specs());
        let step = manifest.step;
        let wrong = |problem: String| CheckpointError::Request { step, problem };
        if self.named_steps()?.contains(&step) {
            let place = self.path(step).display().to_string();
            return Err(wrong(format!("{place} already exists; name another directory, or remove it")));
        }
        if let Some(slice) = request.ranks.iter().flatten().find(|s| s.tensor >= specs.len()) {
            return Err(wrong(format!("a box of tensor {}, there are {}", slice.tensor, specs.len())));
        }
        let total = manifest.bytes();
        let saving = self.begin(step, total)?;
        let (mut parts, mut before) = (Vec::new(), 0);
        for (rank, slices) in request.ranks.iter().enumerate() {
            let mut source = Boxes { from, slices, specs: slice_specs(&specs, slices) };
            let part = PartRequest {
                rank,
                ranks: request.ranks.len(),
                tensors: &mut source,
                slices,
                max_file_bytes: request.max_file_bytes,
                progress: &mut |done, _| progress((before + done).min(total), total),
            };
            let part = self.write_part(saving.ticket(), part)?;
            before += part.bytes();
            parts.push(part);
        }
        let contents = Contents {
            tokens: manifest.tokens,
            state: manifest.state.clone(),
            recipe: manifest.recipe.clone(),
            tokenizer: manifest.tokenizer.clone(),
            tensors: specs,
        };
        saving.commit(parts, contents)
    }
}
