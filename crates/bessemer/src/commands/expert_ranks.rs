//! A saved model on one rank, or with its experts over several ranks that are threads of this process.
//!
//! The first rank is the caller's thread. It has all tokens and does everything but the products of other ranks' experts, so a verb is the same
//! program with one rank and with several.

use crate::commands::ranks::{Broken, job_outcome};
use crate::commands::saved_model::SavedModel;
use crate::failure::Failure;
use crate::machine;
use bessemer_arch::{Model, TensorShard};
use bessemer_collectives::Communicator;
use bessemer_kernels_cpu::{CpuBackend, CpuConfig};
use bessemer_parallel::{ExpertPeers, MemoryPlan, ParallelError, compute_rows};
use bessemer_runtime::{CacheShape, Decoder, ExpertRows, Peers, Purpose, Shape, Stream};
use bessemer_train::{TrainError, recorded_threads};
use bessemer_units::Bytes;
use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{Builder, ScopedJoinHandle};
use std::time::Duration;

/// How long ranks wait between two passes: a server may have no request for as long as it likes. A rank that ends is noticed at once.
const PATIENCE: Duration = Duration::from_secs(u32::MAX as u64);

/// What a verb runs a saved model with.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ModelUse {
    /// Sequences of a batch that is scored, and tokens of each.
    pub(crate) batch: (usize, usize),
    /// Cache of texts that are generated.
    pub(crate) cached: Option<CacheShape>,
    /// Threads of each rank; 0 shares all cores out.
    pub(crate) threads: usize,
    /// Ranks.
    pub(crate) ranks: NonZeroUsize,
    /// Memory of adapters beside the model.
    pub(crate) adapters: Bytes,
}

impl ModelUse {
    fn shape(&self) -> Shape {
        Shape { sequences: self.batch.0, seq: self.batch.1, purpose: Purpose::Score }
    }

    /// Tokens of a pass at most.
    fn tokens(&self) -> usize {
        self.shape().tokens().max(self.cached.map_or(0, CacheShape::pass_rows))
    }

    fn backend(&self) -> Result<CpuBackend, Failure> {
        let threads = match self.threads {
            0 => (machine::threads(0) / self.ranks).max(1),
            n => n,
        };
        Ok(CpuBackend::new(CpuConfig { threads, ..CpuConfig::default() })?)
    }
}

/// Calls `work` with the model on this rank. `ended` is set if another rank has ended before, for work that waits for something else.
///
/// # Errors
/// Ranks that cannot share the experts of every layer, too little memory, errors of `work` or of another rank: of several errors the one that
/// caused the others.
pub(crate) fn with_decoder<T>(
    saved: &SavedModel,
    model_use: &ModelUse,
    ended: &AtomicBool,
    work: impl FnOnce(CpuBackend, Decoder) -> Result<T, Failure>,
) -> Result<T, Failure> {
    let ranks = model_use.ranks.get();
    if ranks == 1 {
        let (backend, decoder) =
            saved.decoder(model_use.batch, model_use.cached, model_use.threads, model_use.adapters)?;
        return work(backend, decoder);
    }
    check(saved.model(), ranks)?;
    let part = |rank: usize| {
        saved
            .model()
            .expert_shard(ranks, rank)
            .map_err(|e| Failure::usage(format!("--ranks {ranks}: {}", e.problem)))
    };
    let parts = (0..ranks).map(part).collect::<Result<Vec<_>, _>>()?;
    let mut backend = model_use.backend()?;
    plan(&parts, model_use, &mut backend)?.fits(1, machine::available_memory())?;
    let (_, mut worlds) = recorded_threads(ranks, PATIENCE);
    let others = worlds.split_off(1);
    let follow = |(world, part): (Box<dyn Communicator>, &'_ TensorShard)| {
        let followed = follow(saved, model_use, world, part);
        if followed.is_err() {
            ended.store(true, Ordering::Relaxed);
        }
        followed
    };
    std::thread::scope(|scope| {
        // Dropped where a thread cannot be started, so that those that run end.
        let first = worlds.pop().ok_or_else(|| Failure::new("there is no rank"));
        let (follow, mut threads) = (&follow, Vec::with_capacity(others.len()));
        for ((rank, world), part) in (1..).zip(others).zip(&parts[1..]) {
            let thread = Builder::new().name(format!("rank {rank}"));
            threads.push(thread.spawn_scoped(scope, move || follow((world, part)))?);
        }
        let lead = |world: Box<dyn Communicator>| -> Result<T, Failure> {
            let mut decoder = Decoder::of_tensor_shard(
                &mut backend,
                &parts[0],
                Stream::WHOLE,
                model_use.shape(),
                Default::default(),
                None,
            )?;
            decoder.verify()?;
            saved.write_part(&mut backend, decoder.params(), &parts[0])?;
            decoder.set_peers(Peers::new(ExpertPeers::new(world, &decoder)?));
            work(backend, decoder)
        };
        let led = first.and_then(lead);
        let panicked = |_| Err(Failure::panicked().into());
        let join = |rank: ScopedJoinHandle<'_, Result<(), Broken>>| rank.join().unwrap_or_else(panicked);
        let followed: Vec<_> = threads.into_iter().map(join).map(|rank| rank.map(|()| None)).collect();
        // The first rank only finds that another one has ended.
        let secondary = followed.iter().any(|rank| rank.as_ref().is_err_and(Broken::is_cause));
        let led = led.map(Some).map_err(|failure| Broken::of(failure, secondary));
        job_outcome(led, followed, &|| None)?.ok_or_else(|| Failure::new("rank 0 ended without a result"))
    })
}

/// Computes the rows of a rank's experts until the first rank ends.
fn follow(
    saved: &SavedModel,
    model_use: &ModelUse,
    world: Box<dyn Communicator>,
    part: &TensorShard,
) -> Result<(), Broken> {
    let in_job = |e: ParallelError| Broken::from(TrainError::from(e));
    let mut backend = model_use.backend()?;
    let mut rows = ExpertRows::new(&mut backend, part, model_use.tokens())
        .map_err(|e| in_job(ParallelError::from(e)))?;
    saved.write_part(&mut backend, rows.params(), part)?;
    compute_rows(world, part, &mut rows, &mut backend).map_err(in_job)
}

/// Memory of all ranks, which are in this process.
fn plan(
    parts: &[TensorShard],
    model_use: &ModelUse,
    backend: &mut CpuBackend,
) -> Result<MemoryPlan, Failure> {
    let mut all = MemoryPlan::of_part(&parts[0], model_use.shape(), model_use.cached, Some(&mut *backend))?;
    let other = MemoryPlan::of_expert_rows(&parts[1], model_use.tokens(), Some(backend))?;
    let others = other.buffers.total().0.saturating_mul(parts.len() as u64 - 1);
    all.add("experts of other ranks", Bytes(others));
    Ok(all)
}

/// Refuses ranks that cannot share the experts of every layer evenly.
fn check(model: &Model, ranks: usize) -> Result<(), Failure> {
    let mut counts: Vec<usize> =
        (0..model.layers).filter_map(|layer| model.experts_of(layer)).map(|of| of.count).collect();
    counts.sort_unstable();
    counts.dedup();
    let problem = match counts.iter().find(|count| !count.is_multiple_of(ranks)) {
        _ if counts.is_empty() => {
            "wanted 1 for a model without experts, which are all that ranks share here; take 1".to_owned()
        }
        Some(count) => {
            let divides = |ranks: &usize| counts.iter().all(|count| count.is_multiple_of(*ranks));
            let fitting: Vec<String> =
                (1..=counts[0]).filter(divides).map(|ranks| ranks.to_string()).collect();
            format!(
                "wanted a divisor of the experts of every layer, found a layer with {count} experts; take one of {}",
                fitting.join(", ")
            )
        }
        None => return Ok(()),
    };
    Err(Failure::usage(format!("--ranks {ranks}: {problem}")))
}
