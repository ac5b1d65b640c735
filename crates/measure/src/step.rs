//! A whole training step on random tokens, measured.

use crate::{Job, Ledger, MeasureError, RandomText, SEED, Spent, Timed};
use bessemer_checkpoint::hf::{HfExport, export_hf};
use bessemer_checkpoint::{TensorSpec, TensorsFrom};
use bessemer_runtime::Decoder;
use bessemer_tensor::Backend;
use bessemer_train::{Runner, give_second_memory};
use bessemer_units::DType;
use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

/// How many steps are measured.
pub struct Steps<'a> {
    /// Steps before the timed ones.
    pub warmup: u64,
    /// Timed steps.
    pub timed: u64,
    /// Where the initial weights and the tokens are written.
    pub dump: Option<&'a Path>,
}

/// Times of the timed steps.
#[derive(Debug, Default)]
pub struct Times {
    /// Seconds of each step.
    pub step: Vec<f64>,
    /// Seconds of each forward pass.
    pub forward: Vec<f64>,
    /// Seconds of each loss and its gradient.
    pub loss: Vec<f64>,
    /// Seconds of each backward pass.
    pub backward: Vec<f64>,
    /// Seconds of each update.
    pub optimizer: Vec<f64>,
    /// All launches, by operator and shapes.
    pub operators: BTreeMap<(&'static str, String), Spent>,
}

impl Times {
    /// Takes a step that began at `begun` and ended at `ended`.
    fn add(&mut self, begun: Instant, ended: Instant, ledger: Ledger) {
        let updating = ledger.norm.unwrap_or(ended);
        let mut note = |list: fn(&mut Times) -> &mut Vec<f64>, time: Duration| {
            list(self).push(time.as_secs_f64());
        };
        note(|t| &mut t.step, ended - begun);
        note(|t| &mut t.optimizer, ended - updating);
        if let Some((from, to)) = ledger.loss {
            note(|t| &mut t.forward, from - begun);
            note(|t| &mut t.loss, to - from);
            note(|t| &mut t.backward, updating - to);
        }
        for (key, spent) in ledger.shapes {
            let sum = self.operators.entry(key).or_default();
            sum.launches += spent.launches;
            sum.time += spent.time;
            sum.flops += spent.flops;
            sum.bytes += spent.bytes;
        }
    }
}

/// Runs the steps: losses of all, times of those after the warm-up. `report` gets a line for each step.
///
/// # Errors
/// A step that fails, or does not fit into memory; a directory that cannot be written.
pub fn measure_steps(
    job: &Job,
    steps: &Steps<'_>,
    backend: &mut Timed,
    report: &mut dyn FnMut(&str),
) -> Result<(Vec<f64>, Times), MeasureError> {
    let mut runner = Runner::alone(backend, &job.model, job.shape, job.activations.clone(), &job.optim)?;
    give_second_memory(&mut runner.worker, &job.offload_dir, Path::new("."))?;
    runner.worker.init(backend, SEED)?;
    let mut text = RandomText::new(job, job.tokens(), job.shape, 0);
    if let Some(dir) = steps.dump {
        dump(job, dir, runner.worker.decoder(), backend, text.stream())?;
        report(&format!("initial weights and tokens: {}", dir.display()));
    }
    let (mut losses, mut times) = (Vec::new(), Times::default());
    backend.take();
    for step in 0..steps.warmup + steps.timed {
        text.step = step;
        let begun = Instant::now();
        let loss = runner.step(backend, &mut text, step + 1, job.optim.lr)?.loss.mean();
        let ended = Instant::now();
        let ledger = backend.take();
        let rate = job.tokens() as f64 / (ended - begun).as_secs_f64();
        report(&format!("step {step}: loss {loss:.4}, {rate:.0} tokens/s"));
        losses.push(loss);
        if step >= steps.warmup {
            times.add(begun, ended, ledger);
        }
    }
    Ok((losses, times))
}

/// Files of the dump beside config.json and model.safetensors: the batch, T + 1 ids a sequence without the overlap, and
/// what was run on it.
const TOKENS: &str = "tokens.u32";
const JOB: &str = "job.json";

/// Writes weights, ids (raw little-endian u32: inputs, then the target of the last one) and the job.
fn dump(
    job: &Job,
    dir: &Path,
    decoder: &Decoder,
    backend: &mut dyn Backend,
    stream: &[u32],
) -> Result<(), MeasureError> {
    let specs = decoder.params().iter().map(|p| TensorSpec {
        name: p.spec.name.clone(),
        shape: p.spec.shape.clone(),
        dtype: DType::F32,
    });
    let mut tensors = TensorsFrom::new(specs.collect(), |i, values: &mut [f32]| {
        Ok(backend.read_f32(decoder.params()[i].value, values)?)
    });
    let ids: Vec<u8> = stream.iter().flat_map(|t| t.to_le_bytes()).collect();
    export_hf(
        dir,
        HfExport {
            model: &job.model,
            model_type: None,
            balance: None,
            tensors: &mut tensors,
            dtype: DType::F32,
            vocab_size: None,
            bos_token_id: None,
            eos_token_id: None,
            extra_files: vec![(TOKENS.into(), ids), (JOB.into(), serde_json::to_vec_pretty(&job.facts())?)],
            max_file_bytes: u64::MAX,
            overwrite: true,
            progress: &mut |_, _| {},
        },
    )?;
    Ok(())
}
