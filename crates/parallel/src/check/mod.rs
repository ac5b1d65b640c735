//! The layout check: before step 0 one rank's real program is run on a device that computes nothing and remembers how every
//! matrix lies over the tensor axis.
//!
//! An operator that takes a term of a sum for the sum, a cut matrix for a whole one, or a part of the vocabulary for all of
//! it, is refused by name; so is a collective that would add up what is whole already, and a gradient that the optimizer
//! would see before it is complete. Such mistakes make no error in a run: the loss is only a little wrong, or wrong by
//! log t (Megatron-LM issue 7452). What is checked is not a description of the program but the program: the same [`Worker`],
//! its seams and their collectives.

mod held;
mod rules;

use crate::error::ParallelError;
use crate::plan::Plan;
use crate::seams::Micro;
use crate::worker::{Job, Worker};
use bessemer_collectives::{
    Breaker, CollectiveError, Communicator, Kind, NullCommunicator, Parts, Reduce, Source, Values,
};
use bessemer_model::{StepContext, TokenBatch};
use bessemer_tensor::null::NullBackend;
use bessemer_tensor::op::Op;
use bessemer_tensor::{Backend, Buffer, BufferSpec, Event, MemoryUse, Stream, TensorError, View};
use bessemer_units::Bytes;
use held::{Held, Memory};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// What device and communicator know together.
#[derive(Debug, Default)]
struct Known {
    memory: Memory,
    /// What the host read last, and what a collective made of it.
    on_host: Option<(View, Held)>,
    collective: Option<Kind>,
}

#[derive(Debug, Clone, Default)]
struct Shared(Arc<Mutex<Known>>);

impl Shared {
    fn known(&self) -> MutexGuard<'_, Known> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A device that remembers how matrices lie.
#[derive(Debug, Default)]
struct CheckingBackend {
    null: NullBackend,
    shared: Shared,
}

fn refused(text: String) -> TensorError {
    TensorError::Outside(text.into())
}

impl Backend for CheckingBackend {
    fn name(&self) -> &str {
        "layout check"
    }

    fn alloc(&mut self, spec: BufferSpec<'_>) -> Result<Buffer, TensorError> {
        self.shared.known().memory.name_next(spec.name);
        self.null.alloc(spec)
    }

    fn workspace(&self, op: &Op) -> Result<Bytes, TensorError> {
        self.null.workspace(op)
    }

    fn reserve_workspace(&mut self, bytes: Bytes) -> Result<(), TensorError> {
        self.null.reserve_workspace(bytes)
    }

    fn launch(&mut self, stream: Stream, op: &Op) -> Result<(), TensorError> {
        self.null.launch(stream, op)?;
        rules::apply(&mut self.shared.known().memory, op).map_err(refused)
    }

    fn record(&mut self, stream: Stream) -> Event {
        self.null.record(stream)
    }

    fn wait(&mut self, stream: Stream, event: Event) {
        self.null.wait(stream, event);
    }

    fn sync(&mut self) -> Result<(), TensorError> {
        Ok(())
    }

    fn write_f32(&mut self, dst: View, values: &[f32]) -> Result<(), TensorError> {
        self.null.write_f32(dst, values)?;
        let mut known = self.shared.known();
        let (on_host, collective) = (known.on_host.take(), known.collective.take());
        let (Some((src, held)), Some(kind)) = (on_host, collective) else {
            known.memory.set(&dst, None);
            return Ok(());
        };
        let name = known.memory.name(&src).to_owned();
        let wrong =
            |what: &str| Err(refused(format!("{} of {name}, which is {}: {what}", kind.name(), held.text())));
        let now = match (kind, held) {
            (Kind::AllReduce | Kind::AllGather, Held::Partial) => Held::Same,
            (Kind::ReduceScatter, Held::Partial) => Held::Rows,
            (Kind::AllGather, Held::Rows) => Held::Same,
            (Kind::AllReduce | Kind::ReduceScatter, Held::Same) => {
                return wrong("it would be added up once for every rank");
            }
            _ => return wrong("nothing sensible comes of that"),
        };
        known.memory.set(&dst, Some(now));
        Ok(())
    }

    fn write_u32(&mut self, dst: View, values: &[u32]) -> Result<(), TensorError> {
        self.null.write_u32(dst, values)
    }

    fn read_f32(&mut self, src: View, values: &mut [f32]) -> Result<(), TensorError> {
        self.null.read_f32(src, values)?;
        let mut known = self.shared.known();
        let held = known.memory.get(&src).map_err(refused)?.unwrap_or(Held::Same);
        known.on_host = Some((src, held));
        known.collective = None;
        Ok(())
    }

    fn memory(&self) -> MemoryUse {
        self.null.memory()
    }
}

/// A group of which only this rank exists, whose collectives on the tensor axis the device hears of.
#[derive(Debug)]
struct CheckingCommunicator {
    null: Box<dyn Communicator>,
    shared: Shared,
}

impl CheckingCommunicator {
    fn note(&self, kind: Kind) {
        if self.null.label() == "tensor" {
            self.shared.known().collective = Some(kind);
        }
    }
}

impl Communicator for CheckingCommunicator {
    fn label(&self) -> &str {
        self.null.label()
    }

    fn rank(&self) -> usize {
        self.null.rank()
    }

    fn size(&self) -> usize {
        self.null.size()
    }

    fn breaker(&self) -> Breaker {
        self.null.breaker()
    }

    fn all_reduce(&mut self, _: &str, _: Values<'_>, _: Reduce) -> Result<(), CollectiveError> {
        self.note(Kind::AllReduce);
        Ok(())
    }

    fn reduce_scatter(
        &mut self,
        _: &str,
        _: Values<'_>,
        _: &Parts,
        _: Reduce,
    ) -> Result<(), CollectiveError> {
        self.note(Kind::ReduceScatter);
        Ok(())
    }

    fn all_gather(&mut self, _: &str, _: Values<'_>, _: &Parts) -> Result<(), CollectiveError> {
        self.note(Kind::AllGather);
        Ok(())
    }

    fn all_to_all(
        &mut self,
        name: &str,
        send: (Source<'_>, &Parts),
        receive: (Values<'_>, &Parts),
    ) -> Result<(), CollectiveError> {
        self.null.all_to_all(name, send, receive)
    }

    fn broadcast(&mut self, name: &str, root: usize, values: Values<'_>) -> Result<(), CollectiveError> {
        self.null.broadcast(name, root, values)
    }

    fn send(&mut self, name: &str, to: usize, values: Source<'_>) -> Result<(), CollectiveError> {
        self.null.send(name, to, values)
    }

    fn receive(&mut self, name: &str, from: usize, values: Values<'_>) -> Result<(), CollectiveError> {
        self.null.receive(name, from, values)
    }

    fn barrier(&mut self, name: &str) -> Result<(), CollectiveError> {
        self.null.barrier(name)
    }

    fn group(&mut self, label: &str, ranks: &[usize]) -> Result<Box<dyn Communicator>, CollectiveError> {
        let null = self.null.group(label, ranks)?;
        Ok(Box::new(CheckingCommunicator { null, shared: self.shared.clone() }))
    }
}

/// Runs the program of tensor rank `index` of a job's plan for one micro-batch and refuses what does not fit together.
/// The data-parallel axes change no layout and are left out.
///
/// # Errors
/// The operator or collective, the tensor, how it lies, and what would have to come first.
pub fn check_layouts(job: &Job<'_>, index: usize) -> Result<(), ParallelError> {
    let plan = Plan { ranks: job.plan.tensor, replicate: 1, shard: 1, overlap: false, ..job.plan.clone() };
    let shared = Shared::default();
    let mut backend = CheckingBackend { null: NullBackend::new(), shared: shared.clone() };
    let null = Box::new(NullCommunicator::new("world", index, plan.ranks));
    let world = Box::new(CheckingCommunicator { null, shared: shared.clone() });
    let mut worker = Worker::new(&mut backend, &Job { plan: &plan, ..*job }, world)?;
    let placed = |held_by_cut: Option<usize>, view: &View| match held_by_cut {
        None => Held::Same,
        Some(0) if view.rows > 1 => Held::Rows,
        Some(_) => Held::Columns,
    };
    for (param, portion) in worker.memory.params.iter().zip(&worker.portion) {
        let held = placed(portion.sharding.cut, &param.value);
        shared.known().memory.set(&param.value, Some(held));
        if let Some(grad) = &param.grad {
            // Nothing is there yet, but what will be must lie as the value does.
            shared.known().memory.set(grad, (held == Held::Rows).then_some(held));
        }
    }
    let ids = vec![0; job.shape.tokens()];
    let batch = TokenBatch { ids: &ids, targets: &ids, positions: None };
    let ctx = StepContext { seed: 0, step: 0, first_sequence: 0, loss_scale: 1.0, accumulate: false };
    worker.forward_backward(&mut backend, &batch, &ctx, Micro { first: true, last: true })?;
    for (param, portion) in worker.memory.params.iter().zip(&worker.portion) {
        let Some(grad) = &param.grad else { continue };
        let wanted = placed(portion.sharding.cut, &param.value);
        let found = shared.known().memory.get(grad).map_err(ParallelError::Layout)?;
        if let Some(found) = found.filter(|f| *f != wanted) {
            return Err(ParallelError::Layout(format!(
                "the optimizer would take the gradient of {} for {}, and it is {}: {} must come first",
                param.spec.name,
                wanted.text(),
                found.text(),
                found.remedy()
            )));
        }
    }
    Ok(())
}
