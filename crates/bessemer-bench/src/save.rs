//! `bessemer-bench save`: what a checkpoint costs a training, and how fast it is written and loaded, beside plain sequential
//! writing and reading of as many bytes in the same directory.

use crate::cli::BenchSaveArgs;
use crate::job;
use bessemer::{Console, Failure, print};
use bessemer_checkpoint::{
    LentTensors, SaveRequest, Store, TensorParts, TensorSpec,
    fs::{DIRECT_ALIGNMENT, FileSystem, OsFileSystem, evict_from_cache},
};
use bessemer_durable::ConfinedDir;
use bessemer_kernels_cpu::{CpuBackend, CpuConfig};
use bessemer_measure::{Job, RandomText, SEED, machine};
use bessemer_parallel::{FinishedCopy, MemoryPlan, OwnSlices, StateTensor};
use bessemer_tensor::rng::RngKey;
use bessemer_train::{Runner, TrainError, read_tensors};
use bessemer_units::Bytes;
use bessemer_units::stats::{mean, upper_median};
use serde_json::json;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

/// Bytes of a plain write or read.
const PIECE: usize = 4 << 20;
/// Largest file of the checkpoint, the recipe's default.
const MAX_FILE_BYTES: u64 = 4 << 30;

/// Seconds of every round.
#[derive(Debug, Default)]
struct Times {
    plain_write: Vec<f64>,
    /// Past the page cache.
    direct_write: Vec<f64>,
    plain_read: Vec<f64>,
    /// A save that training waits for.
    save: Vec<f64>,
    load: Vec<f64>,
    /// Waiting for the copy that a save beside training is written from.
    stall: Vec<f64>,
    /// Until that save was durable.
    background: Vec<f64>,
    /// Steps without a save, and beside one.
    clean: Vec<f64>,
    beside: Vec<f64>,
    /// Processor seconds of a save that training waits for, and of a load.
    save_processor: Vec<f64>,
    load_processor: Vec<f64>,
}

/// Processor seconds of this process, of all its threads; in steps of 10 ms. Nothing where the system does not say.
fn processor_seconds() -> Option<f64> {
    let text = bessemer_durable::read_system("/proc/self/stat");
    // User and system time are the 14th and 15th field; the second one is a name in brackets.
    let mut fields = text.rsplit_once(')')?.1.split_ascii_whitespace().skip(11);
    let mut ticks = || fields.next()?.parse::<u64>().ok();
    Some((ticks()? + ticks()?) as f64 / 100.0)
}

/// A training whose state is saved.
struct Training<'a> {
    job: &'a Job,
    backend: CpuBackend,
    runner: Runner,
    text: RandomText,
    tensors: Vec<StateTensor>,
    slices: Arc<OwnSlices>,
    store: Store,
    step: u64,
}

/// Removes the directory of the benchmark.
struct Folder {
    path: PathBuf,
    keep: bool,
}

/// Removes a directory that the benchmark made, with all that is in it.
fn remove(path: &Path) -> std::io::Result<()> {
    let name = path.file_name().unwrap_or_default();
    ConfinedDir::open_named(bessemer_durable::parent(path))?.remove_tree(name, &|_, _| true)
}

impl Drop for Folder {
    fn drop(&mut self) {
        if !self.keep {
            // Best effort: what stays bears this program's name.
            let _ = remove(&self.path);
        }
    }
}

pub(crate) fn run(args: &BenchSaveArgs, as_json: bool, console: &mut Console) -> Result<(), Failure> {
    if args.step.steps == 0 {
        return Err(Failure::usage("--steps 0: wanted at least 1"));
    }
    let job = job::of_args(&args.step)?;
    let threads = machine::threads(args.step.threads as u64);
    let mut backend = CpuBackend::new(CpuConfig { threads, matmul: job.matmul, ..CpuConfig::default() })?;
    let mut memory =
        MemoryPlan::alone(&job.model, job.shape, job.activations.clone(), &job.optim, Some(&mut backend))?;
    memory.add("copies for checkpoints", memory.copy);
    memory.fits(1, machine::available_memory())?;
    let path = args.dir.join(format!("bessemer-bench-save-{}", std::process::id()));
    bessemer_durable::create_dir(&path).map_err(|e| Failure::usage(format!("--dir: {e}")))?;
    let folder = Folder { path, keep: args.keep };

    let mut runner = Runner::alone(&mut backend, &job.model, job.shape, job.activations.clone(), &job.optim)?;
    runner.worker.init(&mut backend, SEED)?;
    let tensors = runner.worker.tensors(&job.optim)?;
    let slices = Arc::new(runner.worker.own_slices(&tensors)?);
    let text = RandomText::new(&job, job.tokens(), job.shape, 0);
    let store = Store::open(folder.path.join("checkpoints"));
    let mut training = Training { job: &job, backend, runner, text, tensors, slices, store, step: 0 };
    for _ in 0..args.step.warmup {
        training.step()?;
    }
    let mut times = Times::default();
    // Its pages are touched beforehand, as the trainer's are: a vector of zeros would have none.
    let mut copy = vec![1.0; training.slices.elements()];
    let mut bytes = 0;
    for round in 1..=args.rounds {
        let (used, written) = training.round(args.step.steps, &folder.path, copy, &mut times)?;
        (copy, bytes) = (used, written);
        console.say(&format!("round {round} of {}", args.rounds));
    }
    report(&job, &folder, bytes, &mut times, as_json)
}

impl Training<'_> {
    /// Seconds of a step.
    fn step(&mut self) -> Result<f64, Failure> {
        let begun = Instant::now();
        self.text.step = self.step;
        self.step += 1;
        self.runner.step(&mut self.backend, &mut self.text, self.step, self.job.optim.lr)?;
        Ok(begun.elapsed().as_secs_f64())
    }

    /// Measures everything once; `memory` for the copy comes back, with the bytes of a checkpoint.
    fn round(
        &mut self,
        steps: u64,
        folder: &Path,
        memory: Vec<f32>,
        times: &mut Times,
    ) -> Result<(Vec<f32>, u64), Failure> {
        let specs = specs(&self.slices, &self.tensors);
        let (slices, backend) = (Arc::clone(&self.slices), &mut self.backend);
        let mut from_device = TensorParts::new(specs.clone(), |i, first, values: &mut [f32]| {
            let from = slices.slices()[i].at.start + first;
            Ok(slices.read(&mut *backend, from..from + values.len(), values)?)
        });
        // The checkpoints of the round before must not cost this one their removal.
        if folder.join("checkpoints").exists() {
            remove(&folder.join("checkpoints"))?;
        }
        let processor = processor_seconds();
        let report = self.store.save(request(1, &mut from_device, &mut |_, _| ()))?;
        drop(from_device);
        times.save_processor.extend(processor_seconds().zip(processor).map(|(now, then)| now - then));
        times.save.push(report.seconds);
        let bytes = report.bytes;

        let plain = folder.join("plain");
        times.direct_write.push(write_directly(&plain, bytes)?);
        bessemer_durable::remove_file(&plain)?;
        times.plain_write.push(write_plainly(&plain, bytes)?);
        evict_from_cache(&plain)?;
        times.plain_read.push(read_plainly(&plain)?);
        bessemer_durable::remove_file(&plain)?;

        for file in bessemer_durable::list(&report.path)? {
            evict_from_cache(&file)?;
        }
        let (begun, processor) = (Instant::now(), processor_seconds());
        let loaded = self.store.load_lazily(1)?;
        read_tensors::<TrainError>(&mut self.runner.worker, &mut self.backend, &loaded, &self.tensors)?;
        self.runner.worker.adopt_state(&mut self.backend)?;
        times.load.push(begun.elapsed().as_secs_f64());
        times.load_processor.extend(processor_seconds().zip(processor).map(|(now, then)| now - then));

        for _ in 0..steps {
            times.clean.push(self.step()?);
        }
        // As the trainer does: copied beside the passes of a step, which waits before its update.
        let begun = Instant::now();
        let copying = self.slices.begin_copy(&mut self.backend, memory)?;
        let began = begun.elapsed();
        self.text.step = self.step;
        self.step += 1;
        let passes = self.runner.passes(&mut self.backend, &mut self.text)?;
        let waiting = Instant::now();
        let FinishedCopy { copy, held_up, .. } = copying.wait()?;
        times.stall.push((began + waiting.elapsed() + held_up).as_secs_f64());
        self.runner.update(&mut self.backend, self.step, self.job.optim.lr, passes.grad_norm)?;
        times.beside.push(begun.elapsed().as_secs_f64());
        let store = self.store.clone();
        let writer = std::thread::Builder::new().name("checkpoint".into()).spawn(move || {
            let mut source = LentTensors::new(specs, |i| copy.values(&copy.slices()[i]));
            let saved = store.save(request(2, &mut source, &mut |_, _| ()));
            drop(source);
            (saved, copy)
        })?;
        while !writer.is_finished() {
            times.beside.push(self.step()?);
        }
        let Ok((saved, copy)) = writer.join() else {
            return Err(Failure::usage("the thread that writes the checkpoint panicked"));
        };
        times.background.push(saved?.seconds);
        Ok((copy.into_memory(), bytes))
    }
}

/// The tensors of a single rank, in the order in which it saves them.
fn specs(slices: &OwnSlices, tensors: &[StateTensor]) -> Vec<TensorSpec> {
    let spec = |t: &StateTensor| TensorSpec { name: t.name.clone(), shape: t.shape.clone(), dtype: t.dtype };
    slices.slices().iter().map(|slice| spec(&tensors[slice.tensor])).collect()
}

fn request<'a>(
    step: u64,
    tensors: &'a mut dyn bessemer_checkpoint::TensorSource,
    progress: &'a mut dyn FnMut(u64, u64),
) -> SaveRequest<'a> {
    let (state, recipe) = (json!({}), String::new());
    SaveRequest {
        step,
        tokens: 0,
        state,
        recipe,
        tokenizer: None,
        tensors,
        max_file_bytes: MAX_FILE_BYTES,
        progress,
    }
}

/// Random bytes.
fn random_bytes(count: usize) -> Vec<u8> {
    let key = RngKey::new(SEED, 0, "bench.save");
    (0..count as u64 / 16).flat_map(|i| key.block(i)).flat_map(u32::to_le_bytes).collect()
}

/// Writes and syncs a file of random bytes past the page cache, where the file system can do so; seconds.
fn write_directly(path: &Path, bytes: u64) -> Result<f64, Failure> {
    let memory = random_bytes(2 * PIECE);
    let piece = &memory[memory.as_ptr().align_offset(DIRECT_ALIGNMENT)..][..PIECE];
    let begun = Instant::now();
    let mut file = OsFileSystem.create_file(path)?;
    let mut left = bytes;
    while left > 0 {
        let now = left.min(PIECE as u64);
        file.write_all(&piece[..now as usize])?;
        left -= now;
    }
    file.sync()?;
    Ok(begun.elapsed().as_secs_f64())
}

/// Writes and syncs a file of random bytes; seconds.
fn write_plainly(path: &Path, bytes: u64) -> Result<f64, Failure> {
    let piece = random_bytes(PIECE);
    let begun = Instant::now();
    let mut file = bessemer_durable::create_replacing(path)?;
    let mut left = bytes;
    while left > 0 {
        let now = left.min(piece.len() as u64);
        file.write_all(&piece[..now as usize])?;
        left -= now;
    }
    file.sync_all()?;
    Ok(begun.elapsed().as_secs_f64())
}

/// Reads a file; seconds.
fn read_plainly(path: &Path) -> Result<f64, Failure> {
    let mut piece = vec![0u8; PIECE];
    let begun = Instant::now();
    let mut file = bessemer_durable::open_regular(path)?;
    while file.read(&mut piece)? > 0 {}
    Ok(begun.elapsed().as_secs_f64())
}

fn report(job: &Job, folder: &Folder, bytes: u64, times: &mut Times, as_json: bool) -> Result<(), Failure> {
    let steps_beside = times.beside.len();
    let (clean, beside) = (mean(&times.clean), mean(&times.beside));
    let longer = beside / clean - 1.0;
    let (write, read) = (upper_median(&mut times.plain_write), upper_median(&mut times.plain_read));
    let direct = upper_median(&mut times.direct_write);
    // The disk's rate is that of the faster way.
    let disk = write.min(direct);
    let per_gib = |seconds: &mut Vec<f64>| {
        (!seconds.is_empty()).then(|| upper_median(seconds) * (1u64 << 30) as f64 / bytes as f64)
    };
    let (save_processor, load_processor) =
        (per_gib(&mut times.save_processor), per_gib(&mut times.load_processor));
    let (save, load) = (upper_median(&mut times.save), upper_median(&mut times.load));
    let (stall, background) = (upper_median(&mut times.stall), upper_median(&mut times.background));
    if as_json {
        let result = json!({
            "model": job.model.summary(),
            "bytes": bytes,
            "rounds": times.save.len(),
            "directory": folder.keep.then_some(folder.path.as_path()),
            "seconds": {
                "plain_write": write,
                "direct_write": direct,
                "plain_read": read,
                "save": save,
                "load": load,
                "stall": stall,
                "background": background,
                "step": clean,
                "step_beside": beside,
            },
            "all_seconds": {
                "plain_write": times.plain_write,
                "direct_write": times.direct_write,
                "plain_read": times.plain_read,
                "save": times.save,
                "load": times.load,
                "stall": times.stall,
                "background": times.background,
            },
            "processor_seconds_per_gib": { "save": save_processor, "load": load_processor },
            "save_rate_of_plain": disk / save,
            "load_rate_of_plain": read / load,
            "steps_beside": steps_beside,
            "slowdown": longer,
        });
        return Ok(print(&serde_json::to_string(&result)?)?);
    }
    let row = |name: &str, seconds: f64, of: Option<f64>| {
        let rate = Bytes((bytes as f64 / seconds) as u64);
        let share = of.map_or(String::new(), |plain| format!("{:>7.0} %", 100.0 * plain / seconds));
        format!("{name:<44} {:>10.1} ms {:>12}/s{share}\n", 1e3 * seconds, rate.to_string())
    };
    let mut text = format!(
        "{}\ncheckpoint of {}, medians of {} rounds\n",
        job.model.summary(),
        Bytes(bytes),
        times.save.len()
    );
    text += &row("plain write of as many bytes, synced", write, None);
    text += &row("plain write past the page cache, synced", direct, None);
    text += &row("save that training waits for", save, Some(disk));
    text += &row("save beside training, until durable", background, Some(disk));
    text += &row("  of it training waits, for a copy", stall, None);
    text += &row("plain read of as many bytes", read, None);
    text += &row("load, every byte verified", load, Some(read));
    if let (Some(save), Some(load)) = (save_processor, load_processor) {
        text += &format!("processor seconds a GiB: save {save:.2}, load {load:.2}\n");
    }
    text += &format!(
        "step {:.1} ms, beside a save {:.1} ms ({:+.1} %, {steps_beside} steps); training waits {:.2} % of one for the copy",
        1e3 * clean,
        1e3 * beside,
        100.0 * longer,
        100.0 * stall / clean
    );
    if folder.keep {
        text += &format!("\nthe checkpoints are in {}", folder.path.display());
    }
    Ok(print(&text)?)
}
