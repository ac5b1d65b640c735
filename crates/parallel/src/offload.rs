//! Offloaded activations of a rank: its second memory, and the reads that are begun ahead.
//!
//! A value that is offloaded is copied to a buffer of the host, from which the thread of [`crate::second_memory`] writes it; there are
//! buffers for the values of [`LAYERS_AHEAD`] layers. The lists of a backward pass contain its reads. The reads are begun in that order, as
//! many as there are buffers for, that is [`LAYERS_AHEAD`] layers ahead; the first ones when the preceding backward pass has ended.
//! Neither numbers nor their order depend on when a copy ends.

use crate::chunk::Chunk;
use crate::error::ParallelError;
use crate::second_memory::{Buffers, CopyThread, SecondMemory};
use crate::steps::RankStep;
use crate::worker::Worker;
use bessemer_program::{Action, Pass, Phase, StepNode, reloads, transfer_buffers};
use bessemer_runtime::ModelError;
use bessemer_tensor::{Backend, Stream, TensorError, View};
use std::collections::VecDeque;

/// Layers whose values are in flight in each direction, besides those of the layer that runs.
const LAYERS_AHEAD: usize = 1;

/// Bytes between the memory of a device and the second memory.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct OffloadTraffic {
    /// Bytes that forward passes have written.
    pub written: u64,
    /// Bytes that backward passes have read. Operands of both parts of a split backward pass are read twice.
    pub read: u64,
}

/// A value that will be read back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Reload {
    at: u64,
    bytes: usize,
}

/// A backward pass whose values are read ahead.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct PlannedPass {
    chunk: usize,
    micro: usize,
    phase: Phase,
}

/// Second memory of a rank.
#[derive(Debug)]
pub(crate) struct Offloading {
    copies: CopyThread,
    /// Indexed by chunk: its first byte.
    bases: Vec<u64>,
    /// Buffers to read into that are free.
    free: Buffers,
    /// Passes that the next reloads are for; the first one runs or runs next.
    passes: VecDeque<PlannedPass>,
    /// Reloads whose read has begun, in their order.
    begun: VecDeque<Reload>,
    /// Reloads of the planned passes that follow.
    planned: VecDeque<Reload>,
    /// Bytes that the passes have moved so far.
    moved: OffloadTraffic,
}

/// The second memory in a pass of one chunk.
#[derive(Debug)]
pub(crate) struct PassOffload<'a> {
    offloading: &'a mut Offloading,
    base: u64,
}

/// First byte of the regions of each chunk, and one past the last byte. Chunks that share their slots share their regions
/// too, unless backward passes are split: then regions are kept sets, of which each chunk has its own.
fn bases(chunks: &[Chunk], pools: &[usize]) -> (Vec<u64>, u64) {
    let (mut bases, mut end): (Vec<u64>, u64) = (Vec::with_capacity(chunks.len()), 0);
    for (chunk, pool) in chunks.iter().zip(pools) {
        let layout = chunk.decoder.offload_layout();
        let same = chunks.get(*pool).filter(|_| *pool < bases.len() && chunk.decoder.stage().pending == 0);
        match same.filter(|first| {
            let first = first.decoder.offload_layout();
            first.region == layout.region && first.regions >= layout.regions
        }) {
            Some(_) => bases.push(bases[*pool]),
            None => {
                bases.push(end);
                end += layout.bytes();
            }
        }
    }
    (bases, end)
}

impl Worker {
    /// Bytes of second memory that this rank needs; 0 if its layers offload nothing.
    pub fn second_memory_bytes(&self) -> u64 {
        bases(&self.chunks, &self.pools).1
    }

    /// Bytes of host memory from which values are written to the second memory and into which they are read.
    pub(crate) fn offload_buffer_bytes(&self) -> u64 {
        let bytes = |buffers: std::collections::BTreeMap<usize, usize>| -> u64 {
            buffers.iter().map(|(bytes, count)| (bytes * count) as u64).sum()
        };
        bytes(self.transfer_buffers(false)) + bytes(self.transfer_buffers(true))
    }

    fn transfer_buffers(&self, reads: bool) -> std::collections::BTreeMap<usize, usize> {
        let programs = self.chunks.iter().flat_map(|chunk| chunk.decoder.all_programs());
        transfer_buffers(programs, LAYERS_AHEAD, reads)
    }

    /// Gives the rank its second memory, of [`Worker::second_memory_bytes`], and starts the thread that copies to it.
    ///
    /// # Errors
    /// The system's, if there can be no thread.
    pub fn set_second_memory(&mut self, memory: Box<dyn SecondMemory>) -> Result<(), ParallelError> {
        let made = |reads: bool| -> Buffers {
            // Avoids zeros, whose memory the system would allocate only in the step that first writes it.
            let of = |(bytes, count): (usize, usize)| (bytes, vec![vec![u8::MAX; bytes]; count]);
            self.transfer_buffers(reads).into_iter().map(of).collect()
        };
        let (writes, free) = (made(false), made(true));
        let reads = free.values().map(Vec::len).sum();
        let lists = |chunk: &Chunk| {
            let phases = [Phase::Backward, Phase::BackwardInput, Phase::BackwardWeight];
            let programs = || chunk.decoder.all_programs();
            phases.map(|phase| programs().map(|program| reloads(program, phase).count()).sum::<usize>())
        };
        let most = self.chunks.iter().flat_map(lists).max().unwrap_or(0);
        self.offloading = Some(Offloading {
            copies: CopyThread::start(memory, writes, reads)?,
            bases: bases(&self.chunks, &self.pools).0,
            free,
            passes: VecDeque::with_capacity(2),
            begun: VecDeque::with_capacity(reads + 1),
            planned: VecDeque::with_capacity(2 * most + 1),
            moved: OffloadTraffic::default(),
        });
        Ok(())
    }

    /// Bytes that this rank has moved to and from its second memory since it has one.
    pub fn offloaded(&self) -> OffloadTraffic {
        self.offloading.as_ref().map_or(OffloadTraffic::default(), |offloading| offloading.moved)
    }

    /// Bytes that a step of this rank moves to and from its second memory, according to its programs: with micro-batches of the longest
    /// length.
    pub fn step_offload_traffic(&self) -> OffloadTraffic {
        let mut traffic = OffloadTraffic::default();
        for node in self.step_nodes() {
            let Action::Begin(pass) = &node.action else { continue };
            let bytes = || self.chunks[node.chunk].decoder.offload_traffic(pass.phase);
            match pass.phase {
                Phase::Forward => traffic.written += bytes(),
                Phase::Score => {}
                _ => traffic.read += bytes(),
            }
        }
        traffic
    }

    /// Plans the reads of a backward pass that begins with node `at`.
    pub(crate) fn begin_reloads(&mut self, step: &RankStep, at: usize) -> Result<(), ParallelError> {
        let Some((planned, pass)) = planned_pass(&step.program.nodes[at]) else { return Ok(()) };
        let Some(offloading) = &mut self.offloading else { return Ok(()) };
        if offloading.passes.front() != Some(&planned) {
            offloading.forget()?;
            self.plan_reloads(planned, pass)?;
        }
        Ok(())
    }

    /// Forgets a backward pass that ends with node `at`, and plans the reads of the next one if its forward pass is over.
    pub(crate) fn plan_next_reloads(&mut self, step: &RankStep, at: usize) -> Result<(), ParallelError> {
        let Some(offloading) = &mut self.offloading else { return Ok(()) };
        let nodes = &step.program.nodes;
        if matches!(&nodes[at].action, Action::End(pass) if is_backward(pass.phase)) {
            offloading.passes.pop_front();
        }
        if !offloading.passes.is_empty() {
            return Ok(());
        }
        let later = &nodes[at + 1..];
        let found = later.iter().enumerate().find_map(|(number, node)| Some((number, planned_pass(node)?)));
        let Some((number, (planned, pass))) = found else { return Ok(()) };
        let awaited = |node: &StepNode| match &node.action {
            Action::Begin(pass) => {
                (pass.phase, node.chunk, pass.micro) == (Phase::Forward, planned.chunk, planned.micro)
            }
            // The reads after an update are another step's.
            Action::Update { .. } => true,
            _ => false,
        };
        match later[..number].iter().any(awaited) {
            true => Ok(()),
            false => self.plan_reloads(planned, pass),
        }
    }

    fn plan_reloads(&mut self, planned: PlannedPass, pass: &Pass) -> Result<(), ParallelError> {
        let Some(offloading) = &mut self.offloading else { return Ok(()) };
        let (chunk, base) = (&self.chunks[planned.chunk], offloading.bases[planned.chunk]);
        let reloads = &mut offloading.planned;
        let mut visit = |at: u64, bytes: usize| reloads.push_back(Reload { at: base + at, bytes });
        match pass.slot {
            Some(slot) => chunk.decoder.stage_reloads(slot, pass.phase, &mut visit)?,
            None => match chunk.pending.get(&pass.micro) {
                Some(pending) => chunk.decoder.pending_reloads(*pending, &mut visit),
                // Its input part has not run.
                None => return Ok(()),
            },
        }
        offloading.passes.push_back(planned);
        Ok(offloading.begin().map_err(ModelError::from)?)
    }

    /// Forgets the reads that are planned for passes that will not run.
    pub(crate) fn forget_reloads(&mut self) {
        if let Some(offloading) = &mut self.offloading {
            // An error of the second memory is reported by the next pass.
            let _ = offloading.forget();
        }
    }
}

fn is_backward(phase: Phase) -> bool {
    matches!(phase, Phase::Backward | Phase::BackwardInput | Phase::BackwardWeight)
}

/// The backward pass that a node begins.
fn planned_pass(node: &StepNode) -> Option<(PlannedPass, &Pass)> {
    let Action::Begin(pass) = &node.action else { return None };
    let planned = PlannedPass { chunk: node.chunk, micro: pass.micro, phase: pass.phase };
    is_backward(pass.phase).then_some((planned, pass))
}

impl Offloading {
    /// The second memory for a pass of a chunk.
    pub(crate) fn of_pass(&mut self, chunk: usize) -> PassOffload<'_> {
        let base = self.bases[chunk];
        PassOffload { offloading: self, base }
    }

    /// Begins planned reads, as many as there are buffers for.
    fn begin(&mut self) -> Result<(), TensorError> {
        while let Some(next) = self.planned.front().copied() {
            let Some(free) = self.free.get_mut(&next.bytes) else {
                let problem = format!("no buffer was planned for a value of {} bytes", next.bytes);
                return Err(TensorError::Outside(problem.into()));
            };
            let Some(buffer) = free.pop() else { return Ok(()) };
            self.copies.read(next.at, buffer)?;
            self.begun.push_back(next);
            self.planned.pop_front();
        }
        Ok(())
    }

    /// Ends the reads that have begun, and forgets those that are planned.
    fn forget(&mut self) -> Result<(), TensorError> {
        self.planned.clear();
        self.passes.clear();
        while self.begun.pop_front().is_some() {
            let buffer = self.copies.finish_read()?;
            self.free.entry(buffer.len()).or_default().push(buffer);
        }
        Ok(())
    }
}

impl PassOffload<'_> {
    /// Offloads a value, as [`bessemer_program::Ranks::offload`] specifies.
    pub(crate) fn offload(
        &mut self,
        backend: &mut dyn Backend,
        at: u64,
        src: View,
    ) -> Result<(), TensorError> {
        let bytes = src.len() * src.dtype().size();
        let mut buffer = self.offloading.copies.buffer(bytes)?;
        backend.order(Stream::Compute, Stream::ToHost)?;
        backend.read_bytes(Stream::ToHost, src, &mut buffer)?;
        self.offloading.moved.written += bytes as u64;
        self.offloading.copies.write(self.base + at, buffer)
    }

    /// Reloads a value, as [`bessemer_program::Ranks::reload`] specifies.
    pub(crate) fn reload(
        &mut self,
        backend: &mut dyn Backend,
        at: u64,
        dst: View,
    ) -> Result<(), TensorError> {
        let wanted = Reload { at: self.base + at, bytes: dst.len() * dst.dtype().size() };
        let offloading = &mut *self.offloading;
        if offloading.begun.front().or(offloading.planned.front()) != Some(&wanted) {
            // A pass that is not planned.
            offloading.forget()?;
            offloading.planned.push_back(wanted);
        }
        offloading.begin()?;
        let buffer = offloading.copies.finish_read()?;
        offloading.begun.pop_front();
        backend.order(Stream::Compute, Stream::ToDevice)?;
        backend.write_bytes(Stream::ToDevice, dst, &buffer)?;
        backend.order(Stream::ToDevice, Stream::Compute)?;
        offloading.moved.read += wanted.bytes as u64;
        offloading.free.entry(wanted.bytes).or_default().push(buffer);
        offloading.begin()
    }
}
