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
use crate::tensor::COPIES;
use crate::worker::{Feed, Job, Worker};
use bessemer_arch::PortionParam;
use bessemer_collectives::{
    Breaker, Collective, CollectiveError, CollectiveKind, Communicator, Memory, Message, NullCommunicator,
};
use bessemer_mesh::{Axis, Mesh};
use bessemer_model::{Param, StepContext, TokenBatch};
use bessemer_schedule::{Kind as ScheduleKind, generate};
use bessemer_tensor::null::NullBackend;
use bessemer_tensor::op::Op;
use bessemer_tensor::{Backend, Buffer, BufferSpec, Event, MemoryUse, Stream, TensorError, View};
use bessemer_units::Bytes;
use held::{Held, Memory as KnownMemory};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Tokens for each tensor rank that the check runs: enough that every rank has rows of its own.
const CHECKED_ROWS: usize = 4;

/// What device and communicator know together.
#[derive(Debug, Default)]
struct Known {
    memory: KnownMemory,
    /// Views that the host has read and not written back, oldest first. One collective may carry several of them.
    on_host: Vec<(View, Held)>,
    /// The collective since those reads, and whether it was among the ranks that hold the same heads.
    collective: Option<(CollectiveKind, bool)>,
    /// Views that a collective among the ranks with the same heads has completed.
    copies_summed: Vec<View>,
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
        self.written(dst)
    }

    fn write_bits(&mut self, dst: View, bits: &[u16]) -> Result<(), TensorError> {
        self.null.write_bits(dst, bits)?;
        self.written(dst)
    }

    fn read_f32(&mut self, src: View, values: &mut [f32]) -> Result<(), TensorError> {
        self.null.read_f32(src, values)?;
        self.was_read(src)
    }

    fn read_bits(&mut self, src: View, bits: &mut [u16]) -> Result<(), TensorError> {
        self.null.read_bits(src, bits)?;
        self.was_read(src)
    }

    fn write_u32(&mut self, dst: View, values: &[u32]) -> Result<(), TensorError> {
        self.null.write_u32(dst, values)
    }

    fn memory(&self) -> MemoryUse {
        self.null.memory()
    }
}

impl CheckingBackend {
    /// What came from the host is what a collective made of what was last read.
    fn written(&mut self, dst: View) -> Result<(), TensorError> {
        let mut known = self.shared.known();
        let Some((kind, among_copies)) = known.collective else {
            known.on_host.clear();
            known.memory.set(&dst, None);
            return Ok(());
        };
        // Written back in place, each view is what was read from it; elsewhere it is what was read last.
        let in_place = known.on_host.iter().position(|(src, _)| *src == dst);
        let read = match in_place {
            Some(at) => Some(known.on_host.remove(at)),
            None => known.on_host.pop(),
        };
        if in_place.is_none() || known.on_host.is_empty() {
            known.on_host.clear();
            known.collective = None;
        }
        let Some((src, held)) = read else {
            known.memory.set(&dst, None);
            return Ok(());
        };
        let name = known.memory.name(&src).to_owned();
        let wrong =
            |what: &str| Err(refused(format!("{} of {name}, which is {}: {what}", kind.name(), held.text())));
        if among_copies {
            known.memory.set(&dst, Some(held));
            known.copies_summed.push(dst);
            return Ok(());
        }
        let now = match (kind, held) {
            (CollectiveKind::AllReduce | CollectiveKind::AllGather, Held::Partial) => Held::Same,
            (CollectiveKind::ReduceScatter, Held::Partial) => Held::Rows,
            (CollectiveKind::AllGather, Held::Rows | Held::Columns) => Held::Same,
            (CollectiveKind::AllReduce | CollectiveKind::ReduceScatter, Held::Same) => {
                return wrong("it would be added up once for every rank");
            }
            _ => return wrong("nothing sensible comes of that"),
        };
        known.memory.set(&dst, Some(now));
        Ok(())
    }

    /// Remembers what is on the host.
    fn was_read(&mut self, src: View) -> Result<(), TensorError> {
        let mut known = self.shared.known();
        let held = known.memory.get(&src).map_err(refused)?.unwrap_or(Held::Same);
        if known.collective.take().is_some() {
            known.on_host.clear();
        }
        known.on_host.push((src, held));
        Ok(())
    }
}

/// A group of which only this rank exists, whose collectives on the tensor axis the device hears of.
#[derive(Debug)]
struct CheckingCommunicator {
    null: Box<dyn Communicator>,
    shared: Shared,
}

impl CheckingCommunicator {
    fn note(&self, kind: CollectiveKind) {
        let among_copies = self.null.label() == COPIES;
        if self.null.label() == "tensor" || among_copies {
            let mut known = self.shared.known();
            known.collective = Some((kind, among_copies));
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

    fn run(&mut self, collective: &Collective<'_>, memory: Memory<'_>) -> Result<(), CollectiveError> {
        let kind = collective.kind();
        let seen = [CollectiveKind::AllReduce, CollectiveKind::ReduceScatter, CollectiveKind::AllGather];
        if seen.contains(&kind) {
            self.note(kind);
        }
        self.null.run(collective, memory)
    }

    fn arrived(&mut self, message: Message<'_>) -> Result<bool, CollectiveError> {
        self.null.arrived(message)
    }

    fn group(&mut self, label: &str, ranks: &[usize]) -> Result<Box<dyn Communicator>, CollectiveError> {
        let null = self.null.group(label, ranks)?;
        Ok(Box::new(CheckingCommunicator { null, shared: self.shared.clone() }))
    }
}

/// One micro-batch of nothing.
struct OneBatch {
    ids: Vec<u32>,
}

impl Feed for OneBatch {
    fn micro_batch(&mut self, _: usize) -> Result<(TokenBatch<'_>, StepContext), ParallelError> {
        let batch = TokenBatch { ids: &self.ids, targets: &self.ids, positions: None };
        let ctx = StepContext { seed: 0, step: 0, first_sequence: 0, loss_scale: 1.0, accumulate: false };
        Ok((batch, ctx))
    }
}

/// Runs one micro-batch through all stages of a job's plan on tensor rank `index` and refuses what does not fit together.
/// The data-parallel axes change no layout and are left out; all stages are chunks of one pipeline rank, which hand over
/// what would travel.
///
/// # Errors
/// The operator or collective, the tensor, how it lies, and what would have to come first.
pub fn check_layouts(job: &Job<'_>, index: usize) -> Result<(), ParallelError> {
    check_changed(job, index, |_| ())
}

/// As [`check_layouts`], of a rank that was changed before its program is run.
fn check_changed(job: &Job<'_>, index: usize, change: impl FnOnce(&mut Worker)) -> Result<(), ParallelError> {
    let mesh = Mesh::along(Axis::Tensor, job.plan.tensor());
    let plan = Plan { mesh, overlap: false, ..job.plan.clone() };
    let shape =
        bessemer_schedule::Shape { chunks: Some(job.program.stages), ..bessemer_schedule::Shape::new(1, 1) };
    let program = generate(ScheduleKind::Interleaved, &shape)?;
    let shared = Shared::default();
    let mut backend = CheckingBackend { null: NullBackend::new(), shared: shared.clone() };
    let null = Box::new(NullCommunicator::new("world", index, plan.ranks()));
    let world = Box::new(CheckingCommunicator { null, shared: shared.clone() });
    // Layouts do not depend on the number of tokens, which host memory of the collectives grows with.
    let shape = bessemer_model::Shape {
        sequences: 1,
        seq: job.shape.seq.min(CHECKED_ROWS * plan.tensor()),
        ..job.shape
    };
    let described = Job { plan: &plan, program: &program, shape, ..*job };
    let mut worker = Worker::unchecked(&mut backend, &described, world)?;
    let placed = |cut: Option<usize>, view: &View| match cut.filter(|_| plan.tensor() > 1) {
        None => Held::Same,
        Some(0) if view.rows > 1 => Held::Rows,
        Some(_) => Held::Columns,
    };
    for chunk in &worker.chunks {
        for (param, portion) in chunk.memory.params.iter().zip(&chunk.portion) {
            let held = placed(portion.sharding.dim(), &param.value);
            shared.known().memory.set(&param.value, Some(held));
            if let Some(grad) = &param.grad {
                // Nothing is there yet, but what will be must lie as the value does.
                shared.known().memory.set(grad, (held == Held::Rows).then_some(held));
            }
        }
    }
    change(&mut worker);
    worker.run_passes(&mut backend, &mut OneBatch { ids: vec![0; shape.tokens()] })?;
    for chunk in &worker.chunks {
        for (param, portion) in chunk.memory.params.iter().zip(&chunk.portion) {
            let wanted = placed(portion.sharding.dim(), &param.value);
            check_gradient(&shared, param, portion, wanted)?;
        }
    }
    Ok(())
}

/// Whether the optimizer may take a gradient for what it should be.
fn check_gradient(
    shared: &Shared,
    param: &Param,
    portion: &PortionParam,
    wanted: Held,
) -> Result<(), ParallelError> {
    let Some(grad) = &param.grad else { return Ok(()) };
    for span in portion.replicated.iter().flat_map(|blocks| &blocks.local) {
        let rows = match portion.shape.len() {
            1 => grad.columns(span.start, span.len),
            _ => grad.rows(span.start, span.len),
        };
        if !shared.known().copies_summed.contains(&rows) {
            return Err(ParallelError::Layout(format!(
                "the gradient of the key and value heads of {} that several ranks hold is a sum over them: an \
                 all-reduce among the copies must come first",
                param.spec.name
            )));
        }
    }
    let found = shared.known().memory.get(grad).map_err(ParallelError::Layout)?;
    match found.filter(|f| *f != wanted) {
        None => Ok(()),
        Some(found) => Err(ParallelError::Layout(format!(
            "the optimizer would take the gradient of {} for {}, and it is {}: {} must come first",
            param.spec.name,
            wanted.text(),
            found.text(),
            found.remedy()
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bessemer_arch::{Model, ModelConfig};
    use bessemer_model::{ActivationConfig, Decoder, Product, Purpose, SeamAt, Seams, Shape, Stream};
    use bessemer_optim::OptimConfig;
    use bessemer_units::ParamStorage;

    fn models() -> Vec<Model> {
        let small = |architecture: &str| ModelConfig {
            architecture: architecture.into(),
            vocab_size: 101,
            layers: Some(2),
            width: Some(32),
            heads: Some(4),
            context: Some(16),
            dropout: 0.1,
            ..ModelConfig::default()
        };
        let llama = ModelConfig { kv_heads: Some(4), ..small("llama") };
        let grouped = ModelConfig { kv_heads: Some(2), qk_norm: Some(true), ..llama.clone() };
        let qkv_bias = ModelConfig { kv_heads: Some(2), qkv_bias: Some(true), ..llama.clone() };
        [small("gpt2"), llama, grouped, qkv_bias].iter().map(|m| m.resolve(None).unwrap()).collect()
    }

    const SHAPE: Shape = Shape { sequences: 2, seq: 16, purpose: Purpose::Train };

    /// What the check says of every rank of a tensor axis, each changed before its program is run.
    fn on_every_rank(
        model: &Model,
        (tensor, sequence): (usize, bool),
        change: fn(&mut Worker),
    ) -> Result<(), ParallelError> {
        let plan = &Plan { mesh: Mesh::along(Axis::Tensor, tensor), sequence, ..Plan::single() };
        let program = &plan.program(1, 1, None).unwrap();
        let (activations, types) = (ActivationConfig::default(), ParamStorage::default());
        let (optim, z_loss) = (&OptimConfig::default(), 1e-4);
        let job = Job { model, shape: SHAPE, activations, types, optim, z_loss, plan, program };
        (0..tensor).try_for_each(|index| check_changed(&job, index, change))
    }

    #[test]
    fn every_kind_of_layout_passes() {
        for model in models() {
            for layout in [(1, false), (2, false), (2, true), (4, false), (4, true)] {
                on_every_rank(&model, layout, |_| ()).unwrap_or_else(|e| panic!("{model:?} {layout:?}: {e}"));
            }
        }
    }

    #[test]
    fn gradients_that_nobody_adds_up_are_refused_by_name() {
        let [gpt, _, grouped, _] = &models()[..] else { panic!("four models") };
        let forget = |worker: &mut Worker| worker.chunks.iter_mut().for_each(|c| c.tensor.forget(false));
        // With the stream cut by rows norms and positions see a part of them; QK-norm always sees a part of the heads.
        let e = on_every_rank(gpt, (2, true), forget).unwrap_err().to_string();
        assert!(e.contains("gradient of embed.positions") && e.contains("one term of a sum"), "{e}");
        on_every_rank(gpt, (2, false), forget).unwrap();
        let e = on_every_rank(grouped, (2, false), forget).unwrap_err().to_string();
        assert!(e.contains("norm") && e.contains("one term of a sum"), "{e}");
        // Four ranks, two heads of keys and values.
        let e = on_every_rank(grouped, (4, false), |worker| {
            worker.chunks.iter_mut().for_each(|c| c.tensor.forget(true));
        });
        let e = e.unwrap_err().to_string();
        assert!(e.contains("key and value heads of layers.") && e.contains("among the copies"), "{e}");
    }

    /// Seams that leave something out.
    struct Forgetful {
        complete: Shared,
        /// Whether sums leave the blocks, whether their gradients enter them, whether losses are combined.
        does: [bool; 3],
    }

    impl Forgetful {
        /// What an all-reduce would make of it.
        fn sum(&self, view: View) {
            self.complete.known().memory.set(&view, Some(Held::Same));
        }
    }

    impl Seams for Forgetful {
        fn product(&self) -> Product {
            Product::Partial { adds_bias: true }
        }

        fn forward(&mut self, _: &mut dyn Backend, at: SeamAt, value: View) -> Result<(), TensorError> {
            if self.does[0] && crate::seams::is_out(at.place) {
                self.sum(value);
            }
            Ok(())
        }

        fn backward(&mut self, _: &mut dyn Backend, at: SeamAt, gradient: View) -> Result<(), TensorError> {
            if self.does[1] && !crate::seams::is_out(at.place) {
                self.sum(gradient);
            }
            Ok(())
        }

        fn loss_sums(&mut self, _: &mut dyn Backend, lse: View, target: View) -> Result<(), TensorError> {
            if self.does[2] {
                self.sum(lse);
                self.sum(target);
            }
            Ok(())
        }
    }

    /// What the check says of a portion of GPT-2 that runs through such seams.
    fn with_seams(does: [bool; 3]) -> Result<(), String> {
        let portion = models()[0].portion(2, 0).unwrap();
        let shared = Shared::default();
        let mut backend = CheckingBackend { null: NullBackend::new(), shared: shared.clone() };
        let config = ActivationConfig::default();
        let mut decoder =
            Decoder::of_portion(&mut backend, &portion, Stream::Whole, SHAPE, config, None).unwrap();
        for (param, part) in decoder.params().iter().zip(portion.params()) {
            let held = match part.sharding.dim() {
                None => Held::Same,
                Some(0) if param.value.rows > 1 => Held::Rows,
                Some(_) => Held::Columns,
            };
            shared.known().memory.set(&param.value, Some(held));
            if let (Held::Rows, Some(grad)) = (held, &param.grad) {
                shared.known().memory.set(grad, Some(held));
            }
        }
        let ids = vec![0; SHAPE.tokens()];
        let batch = TokenBatch { ids: &ids, targets: &ids, positions: None };
        let ctx = StepContext { seed: 0, step: 0, first_sequence: 0, loss_scale: 1.0, accumulate: false };
        let mut seams = Forgetful { complete: shared, does };
        let result = decoder.forward_backward_through(&mut backend, &mut seams, &batch, &ctx);
        result.map(|_| ()).map_err(|e| e.to_string())
    }

    #[test]
    fn what_is_left_out_is_refused_by_name() {
        with_seams([true; 3]).unwrap();
        let e = with_seams([false, true, true]).unwrap_err();
        assert!(
            e.contains("embed.out") && e.contains("one term of a sum") && e.contains("all-reduce"),
            "{e}"
        );
        let e = with_seams([true, false, true]).unwrap_err();
        assert!(e.contains("one term of a sum over the tensor axis"), "{e}");
        let e = with_seams([true, true, false]).unwrap_err();
        assert!(e.contains("lse") && e.contains("one term of a sum"), "{e}");
    }

    #[test]
    fn a_whole_value_is_not_added_up() {
        let shared = Shared::default();
        let mut backend = CheckingBackend { null: NullBackend::new(), shared: shared.clone() };
        let spec = BufferSpec { class: "x", name: "norms", dtype: bessemer_units::DType::F32, len: 4 };
        let view = backend.alloc(spec).unwrap().vector();
        shared.known().memory.set(&view, Some(Held::Same));
        let null = Box::new(NullCommunicator::new("tensor", 0, 2));
        let mut group: Box<dyn Communicator> =
            Box::new(CheckingCommunicator { null, shared: shared.clone() });
        let mut values = vec![0.0; 4];
        backend.read_f32(view, &mut values).unwrap();
        group.all_reduce("norms", &mut values, bessemer_collectives::Reduce::Sum).unwrap();
        let e = backend.write_f32(view, &values).unwrap_err().to_string();
        assert!(e.contains("norms") && e.contains("added up once for every rank"), "{e}");
    }
}
