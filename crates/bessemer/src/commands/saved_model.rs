//! A saved model made ready to use: its checkpoint, tokenizer and a backend.

use crate::cli::RunArgs;
use crate::console::Console;
use crate::failure::Failure;
use crate::run_dir::{RunDir, similar};
use bessemer_arch::{Model, TensorShard};
use bessemer_checkpoint::{Latest, Loaded};
use bessemer_kernels_cpu::{CpuBackend, CpuConfig};
use bessemer_parallel::MemoryPlan;
use bessemer_runtime::{ActivationConfig, CacheShape, Decoder, Param, Purpose, Shape};
use bessemer_tensor::Backend;
use bessemer_tokenizer::{Tokenizer, TokenizerError};
use bessemer_train::TrainState;
use bessemer_units::Bytes;
use std::path::Path;
use std::sync::Arc;

/// A checkpoint with what belongs to it.
pub(crate) struct SavedModel {
    pub(crate) checkpoint: Loaded,
    pub(crate) state: TrainState,
    pub(crate) tokenizer: Arc<Tokenizer>,
}

impl SavedModel {
    /// The checkpoint that the arguments name, verified, and its tokenizer. Warns of newer checkpoints that are damaged.
    pub(crate) fn open(args: &RunArgs, console: &mut Console) -> Result<SavedModel, Failure> {
        let dir = RunDir::new(&args.run);
        let checkpoint = warned(open_checkpoint(&dir, args.step)?, console);
        let tokenizer = Arc::new(dir.load_tokenizer()?);
        let state = TrainState::of(checkpoint.manifest())
            .map_err(|e| Failure::new(format!("{}: {e}", checkpoint.path().display())))?;
        if tokenizer.fingerprint() != state.identity.tokenizer {
            return Err(Failure::new(format!(
                "{} is not the tokenizer that checkpoint {} was trained with: wanted fingerprint {}, found \
                 {}; restore the original tokenizer.json",
                dir.tokenizer().display(),
                checkpoint.path().display(),
                state.identity.tokenizer,
                tokenizer.fingerprint()
            )));
        }
        Ok(SavedModel { checkpoint, state, tokenizer })
    }

    /// The architecture.
    pub(crate) fn model(&self) -> &Model {
        &self.state.identity.model
    }

    /// The parameters on a CPU backend, for scoring batches of `shape` and, with a cache, generating. `beside`: memory that the caller takes besides.
    pub(crate) fn decoder(
        &self,
        shape: (usize, usize),
        cached: Option<CacheShape>,
        threads: usize,
        beside: Bytes,
    ) -> Result<(CpuBackend, Decoder), Failure> {
        let mut backend = CpuBackend::new(CpuConfig { threads, ..CpuConfig::default() })?;
        let shape = Shape { sequences: shape.0, seq: shape.1, purpose: Purpose::Score };
        let activations = ActivationConfig::default();
        let mut plan = MemoryPlan::of_decoder(self.model(), shape, activations, cached, Some(&mut backend))?;
        plan.add("adapters", beside);
        plan.fits(1, crate::machine::available_memory())?;
        let decoder = Decoder::new(&mut backend, self.model(), shape)?;
        self.require_parameters()?;
        for p in decoder.params() {
            let tensor = self.checkpoint.read_tensor(&p.spec.name)?;
            backend.write_f32(p.value, &tensor.values)?;
        }
        Ok((backend, decoder))
    }

    /// Reads the elements of `params` that a part of the model has.
    ///
    /// # Errors
    /// Tensors that are not those of the model; errors of the files or of the device.
    pub(crate) fn write_part(
        &self,
        backend: &mut CpuBackend,
        params: &[Param],
        part: &TensorShard,
    ) -> Result<(), Failure> {
        self.require_parameters()?;
        let shards = part.params();
        for param in params {
            let name = &param.spec.name;
            let Some(shard) = shards.iter().find(|shard| shard.name() == name) else { continue };
            let runs: Vec<(usize, usize)> = shard.runs().iter().map(|run| (run.whole, run.len)).collect();
            let mut values = vec![0.0; shard.len()];
            self.checkpoint.read_runs(name, &runs, &mut values)?;
            backend.write_f32(param.value, &values)?;
        }
        Ok(())
    }

    /// Refuses a checkpoint whose parameters are not those of the model.
    pub(crate) fn require_parameters(&self) -> Result<(), Failure> {
        let params = self.model().params();
        let wanted = params.iter().map(|p| (p.name.as_str(), p.shape.as_slice()));
        self.checkpoint.require_match(wanted, is_parameter)?;
        Ok(())
    }
}

/// False for the optimizer's tensors.
pub(crate) fn is_parameter(name: &str) -> bool {
    !bessemer_optim::is_state_name(name)
}

/// The checkpoint of a step, or the newest intact one.
fn open_checkpoint(dir: &RunDir, step: Option<u64>) -> Result<Latest, Failure> {
    exists(dir.root())?;
    let store = dir.store()?;
    match step {
        Some(step) => Ok(Latest {
            loaded: store.load(step).map_err(|e| Failure::new(format!("--step {step}: {e}")))?,
            skipped: Vec::new(),
        }),
        None => store.latest_valid()?.ok_or_else(|| no_checkpoint(dir)),
    }
}

/// The checkpoint that was chosen, after a warning of each newer one that cannot be used.
pub(crate) fn warned(latest: Latest, console: &mut Console) -> Loaded {
    for skipped in &latest.skipped {
        let used = latest.loaded.path().display();
        console.say(&format!("warning: {skipped}; {used} is used instead"));
    }
    latest.loaded
}

/// The tokenizer in a file; an error names the file.
pub(crate) fn load_tokenizer(path: &Path) -> Result<Tokenizer, Failure> {
    Tokenizer::load(path).map_err(|e| named_tokenizer_error(path, e))
}

/// The error of a tokenizer with the path of its file.
pub(crate) fn named_tokenizer_error(path: &Path, error: TokenizerError) -> Failure {
    match error {
        TokenizerError::Io { .. } | TokenizerError::TooLarge { .. } => error.into(),
        // These tell what is wrong within "tokenizer.json", wherever that was.
        _ => Failure::new(format!("{}: {error}", path.display())),
    }
}

/// A run directory without a checkpoint.
pub(crate) fn no_checkpoint(dir: &RunDir) -> Failure {
    let path = dir.checkpoints();
    if path.symlink_metadata().is_ok() && !path.is_dir() {
        return Failure::new(format!("{} is not a directory; move it away and train again", path.display()));
    }
    Failure::new(format!(
        "{} holds no checkpoint; train first: bessemer run RECIPE",
        dir.checkpoints().display()
    ))
}

/// Errors if there is no such run directory.
pub(crate) fn exists(run: &Path) -> Result<(), Failure> {
    if run.is_dir() {
        return Ok(());
    }
    let hint = match similar(run) {
        Some(near) => format!("did you mean {}?", near.display()),
        None => "name one that `bessemer run RECIPE` created; `bessemer runs` lists them".into(),
    };
    Err(Failure::new(format!("no run directory {}; {hint}", run.display())))
}
