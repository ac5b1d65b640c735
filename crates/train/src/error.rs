//! Errors of a run.

use crate::state::Difference;
use std::path::{Path, PathBuf};

/// Errors that end a run.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TrainError {
    /// The recipe does not fit the data.
    #[error("{0}")]
    Recipe(String),
    /// The run would not fit into memory.
    #[error(transparent)]
    Memory(#[from] bessemer_parallel::MemoryShortage),
    /// Offloaded activations have no place.
    #[error(
        "train.offload = \"disk\" needs a file of {bytes} on this rank, and {problem}; set another \
         train.offload_dir, offload fewer layers (train.offload_layers), recompute or compress more \
         (train.recompute, train.compress), or set train.offload = \"none\""
    )]
    Offload {
        /// Bytes of the file.
        bytes: bessemer_units::Bytes,
        /// The system's error, with the folder.
        problem: std::io::Error,
    },
    /// The run directory holds a checkpoint of something else.
    #[error(
        "the newest checkpoint in {place} belongs to another run: {} is {} there and {} in this recipe, \
         which cannot change within a run; restore the old recipe, or start a new run under another run.name \
         (train.init.from loads the parameters of a checkpoint of the same model and tokenizer)",
        difference.what, difference.found, difference.wanted
    )]
    OtherRun {
        /// The checkpoint.
        place: String,
        /// The difference.
        difference: Difference,
    },
    /// The checkpoint that a run would begin with has another model or tokenizer.
    #[error(
        "train.init.from: {} is {} in {place} and {} in this recipe; use the model and the tokenizer of that \
         checkpoint: in its run directory, recipe.toml has the [model] section (name the file as `base`), \
         and tokenizer.json is the tokenizer (name it in tokenizer.file)",
        difference.what, difference.found, difference.wanted
    )]
    OtherInitialModel {
        /// The checkpoint.
        place: String,
        /// The difference.
        difference: Difference,
    },
    /// A checkpoint without the state of the recipe's optimizer.
    #[error(
        "{place} holds {found} optimizer state, wanted that of optim.optimizer = {optimizer:?}; set the \
         optimizer that it was trained with, or start a run under another run.name with train.init.from = \
         {place:?} and train.init.optimizer = \"fresh\""
    )]
    OtherOptimizer {
        /// The checkpoint.
        place: String,
        /// The recipe's.
        optimizer: String,
        /// Description of the optimizer state that is there.
        found: String,
    },
    /// A checkpoint's state cannot be understood.
    #[error("the state in checkpoint {place} cannot be read: {problem}")]
    State {
        /// The checkpoint.
        place: String,
        /// Description of the fault.
        problem: String,
    },
    /// The loss, the gradient or the parameters are not finite any more.
    #[error(
        "step {step}: {what}; {}: lower optim.lr, lengthen the warm-up, or set train.on_divergence = \"rollback\"",
        healthy_text(.healthy)
    )]
    Diverged {
        /// The step that was over.
        step: u64,
        /// Name of the value that is not finite.
        what: String,
        /// The newest checkpoint before the divergence, if this rank has its path.
        healthy: Option<PathBuf>,
    },
    /// Ranks did not hold the same bits, and there is no checkpoint from before.
    #[error(
        "step {step}: the ranks computed inconsistent values, and there is no checkpoint yet; run the same \
         command to start over"
    )]
    StartAgain {
        /// The step that was over.
        step: u64,
    },
    /// A host has made wrong numbers again and again.
    #[error("{what}; too many wrong results from these hosts: {hosts}; continue without them")]
    BadHost {
        /// The step at hand.
        step: u64,
        /// The newest fault.
        what: String,
        /// Their names.
        hosts: String,
        /// Whether this rank is on one of them.
        own: bool,
    },
    /// Wrong numbers were computed, and the rank cannot be identified.
    #[error("{what}; run the same command with the ranks on other hosts to find the faulty host")]
    Disambiguate {
        /// The step at hand.
        step: u64,
        /// The newest fault.
        what: String,
    },
    /// An error of the model.
    #[error(transparent)]
    Model(#[from] bessemer_runtime::ModelError),
    /// An error of the device.
    #[error(transparent)]
    Tensor(#[from] bessemer_tensor::TensorError),
    /// An error of a rank of the job, its layout or its peers.
    #[error(transparent)]
    Parallel(#[from] bessemer_parallel::ParallelError),
    /// An error of the optimizer.
    #[error(transparent)]
    Optim(#[from] bessemer_optim::OptimError),
    /// An error of the loader.
    #[error(transparent)]
    Load(#[from] bessemer_loader::LoadError),
    /// An error of the shards.
    #[error(transparent)]
    Shard(#[from] bessemer_shards::ShardError),
    /// An error of the checkpoint store.
    #[error(transparent)]
    Checkpoint(#[from] bessemer_checkpoint::CheckpointError),
    /// An error of copies of the state in memory.
    #[error(transparent)]
    MemoryCopies(Box<bessemer_memory_checkpoint::MemoryError>),
    /// An error of evaluation or generation.
    #[error(transparent)]
    Eval(#[from] bessemer_eval::EvalError),
    /// An error of the log of the run.
    #[error(transparent)]
    RunLog(#[from] bessemer_runlog::RunLogError),
}

fn healthy_text(path: &Option<PathBuf>) -> String {
    match path.as_deref().map(Path::display) {
        Some(path) => format!(
            "the last healthy checkpoint is {path} (to continue from it, move newer checkpoints away and run \
             again)"
        ),
        None => "no earlier checkpoint exists".into(),
    }
}

impl From<bessemer_memory_checkpoint::MemoryError> for TrainError {
    fn from(e: bessemer_memory_checkpoint::MemoryError) -> Self {
        TrainError::MemoryCopies(Box::new(e))
    }
}

impl TrainError {
    /// Whether an evaluation was ended by a request to stop.
    pub(crate) fn is_stop(&self) -> bool {
        matches!(self, TrainError::Eval(bessemer_eval::EvalError::Stopped))
    }

    /// Whether this only reports that another rank of the job ended, which has the reason.
    pub fn is_secondary(&self) -> bool {
        use bessemer_collectives::CollectiveError;
        use bessemer_parallel::ParallelError;
        matches!(self, TrainError::Parallel(ParallelError::Collective(CollectiveError::PeerLost { .. })))
    }

    /// Whether a device had too little memory for the run's buffers.
    pub fn is_out_of_memory(&self) -> bool {
        use bessemer_optim::OptimError;
        use bessemer_parallel::ParallelError;
        use bessemer_runtime::ModelError;
        use bessemer_tensor::TensorError;
        let tensor = match self {
            TrainError::Tensor(e)
            | TrainError::Model(ModelError::Tensor(e))
            | TrainError::Optim(OptimError::Tensor(e))
            | TrainError::Parallel(ParallelError::Tensor(e)) => e,
            TrainError::Parallel(ParallelError::Model(ModelError::Tensor(e))) => e,
            TrainError::Parallel(ParallelError::Optim(OptimError::Tensor(e))) => e,
            _ => return false,
        };
        matches!(tensor, TensorError::OutOfMemory { .. })
    }
}
