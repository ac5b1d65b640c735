//! `bessemer checkpoint import`: a run directory from a Hugging Face model directory.

use crate::commands::saved_model::load_tokenizer;
use crate::console::{Console, print};
use crate::failure::Failure;
use crate::run_dir::RunDir;
use bessemer_checkpoint::SaveRequest;
use bessemer_checkpoint::hf::import_hf;
use bessemer_loader::LoaderState;
use bessemer_recipe::continued_recipe;
use bessemer_tokenizer::Tokenizer;
use bessemer_train::{Observer, RunIdentity, SpikeState, TrainState, checkpoints};
use std::fs;
use std::path::Path;

/// Files of the checkpoint grow to this size at most.
const FILE_BYTES: u64 = 4 << 30;

pub(crate) fn run(from: &Path, out: &Path, console: &mut Console) -> Result<(), Failure> {
    let dir = RunDir::new(out);
    if dir.checkpoints().symlink_metadata().is_ok() {
        return Err(Failure::new(format!(
            "{} holds checkpoints already; import into a new directory",
            dir.root().display()
        )));
    }
    let mut model = import_hf(from)?;
    for note in model.notes() {
        console.say(&format!("note: {note}"));
    }
    let tokenizer_file = from.join("tokenizer.json");
    let tokenizer = match tokenizer_file.exists() {
        true => Some(load_tokenizer(&tokenizer_file)?),
        false => {
            console
                .say("note: no tokenizer.json there; put one into the run directory to evaluate or generate");
            None
        }
    };
    let fingerprint = tokenizer.as_ref().map(Tokenizer::fingerprint).unwrap_or_default();
    let architecture = model.model().clone();
    let state = TrainState {
        step: 0,
        updates: Some(0),
        tokens: 0,
        seconds: 0.0,
        loader: LoaderState { seq_len: architecture.context as u64, ..LoaderState::default() },
        spikes: SpikeState::default(),
        loss_scale: None,
        best: Vec::new(),
        batch_origin: None,
        initial: None,
        identity: RunIdentity {
            model: architecture.clone(),
            tokenizer: fingerprint.clone(),
            seed: 0,
            sequences_per_step: 0,
        },
    };
    fs::create_dir_all(dir.root())?;
    if let Some(tokenizer) = &tokenizer {
        tokenizer.save(&dir.tokenizer())?;
    }
    let report = checkpoints(dir.root()).save(SaveRequest {
        step: 0,
        tokens: 0,
        state: serde_json::to_value(&state)?,
        recipe: String::new(),
        tokenizer: tokenizer.is_some().then_some(fingerprint),
        tensors: &mut model,
        max_file_bytes: FILE_BYTES,
        progress: &mut |done, total| console.progress("importing", done, total),
    })?;
    let file = tokenizer.is_some().then(|| dir.tokenizer());
    let base = continued_recipe(&architecture, dir.root(), file.as_deref())?;
    bessemer_durable::write(&dir.recipe(), base.as_bytes())?;
    console.say(&architecture.summary());
    console.say(&format!("{} can be the base of a recipe that trains it further", dir.recipe().display()));
    Ok(print(&report.path.display().to_string())?)
}
