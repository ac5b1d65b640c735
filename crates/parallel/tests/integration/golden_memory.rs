//! Activation memory of published models, counted from the programs of a dry run, against Korthikanti et al. 2022 ("Reducing
//! Activation Recomputation in Large Transformer Models", section 4 and appendix B).
//!
//! Megatron-LM stores other tensors than this program. Each difference is a term of its own, counted from the same program:
//!
//! | term | Megatron-LM | here |
//! |---|---|---|
//! | masks of dropout after a block | 1 byte an element | functions of counters: none |
//! | scores: softmax, its mask, its product with the mask | 5 a s² b bytes | one pass over them, none |
//! | log-sum-exps of the scores | none | 4 a s b bytes |
//! | mean and 1/sigma of the norms | not counted | 16 s b bytes |
//! | residual stream that leaves the last layer of a stage | not counted | 2 s b h bytes |
//!
//! The memory that a program keeps, with these terms, is the closed form to the byte.

use bessemer_arch::{Model, ModelConfig, Span};
use bessemer_collectives::NullCommunicator;
use bessemer_optim::OptimConfig;
use bessemer_parallel::{Job, ParallelConfig, Plan, Worker};
use bessemer_program::{Class, Home, Node, Phase};
use bessemer_runtime::{ActivationConfig, Decoder, Purpose, Shape, StageConfig, Stream};
use bessemer_schedule::{Instruction, Program};
use bessemer_tensor::null::NullBackend;
use bessemer_tensor::op::Op;
use bessemer_tensor::{Backend, Buffer, BufferSpec, Event, MemoryUse, TensorError, View};
use bessemer_units::{Bytes, ParamStorage, Recompute, Storage};

/// A model of the paper's table 3, with the layout of its first rank.
struct Published {
    /// s.
    tokens: u64,
    /// b.
    sequences: u64,
    /// h.
    width: u64,
    /// a.
    heads: u64,
    /// L.
    layers: u64,
    /// t.
    tensor: u64,
    /// p.
    pipeline: u64,
    /// v.
    chunks: u64,
    micro_batches: usize,
}

const GPT_22B: Published = Published {
    tokens: 2048,
    sequences: 4,
    width: 6144,
    heads: 64,
    layers: 48,
    tensor: 8,
    pipeline: 1,
    chunks: 0,
    micro_batches: 1,
};
const GPT_175B: Published = Published {
    tokens: 2048,
    sequences: 1,
    width: 12288,
    heads: 96,
    layers: 96,
    tensor: 8,
    pipeline: 8,
    chunks: 3,
    micro_batches: 64,
};

impl Published {
    fn model(&self) -> Model {
        let config = ModelConfig {
            architecture: "gpt2".into(),
            vocab_size: 51200,
            layers: Some(self.layers),
            width: Some(self.width),
            heads: Some(self.heads),
            context: Some(self.tokens),
            dropout: 0.1,
            ..ModelConfig::default()
        };
        config.resolve(None).unwrap()
    }

    fn shape(&self) -> Shape {
        Shape { sequences: self.sequences as usize, seq: self.tokens as usize, purpose: Purpose::Train }
    }

    fn sbh(&self) -> u64 {
        self.tokens * self.sequences * self.width
    }

    /// 5 a s² b / t.
    fn scores(&self) -> u64 {
        5 * self.heads * self.tokens * self.tokens * self.sequences / self.tensor
    }

    /// One layer on rank 0 of the tensor axis.
    fn layer(&self, stream: Stream, recompute: Recompute) -> Layer {
        let tensor_shard = self.model().tensor_shard(self.tensor as usize, 0).unwrap();
        let span = Span { embedding: false, layers: 1..2, head: false };
        let stage = StageConfig { span, slots: 1, pending: 0, overlap: false, shadowing: None };
        let (mut null, config) = (NullBackend::new(), activations(recompute));
        let decoder =
            Decoder::of_stage(&mut null, &tensor_shard, stream, self.shape(), config, &stage, None).unwrap();
        let (_, program, memory) = decoder.programs().next().unwrap();
        let mut layer = Layer::default();
        let mut reads = program.list(Phase::Backward).iter().flat_map(Node::touches);
        let again = reads.any(|touch| program.values[touch.value()].class == Class::StreamIn);
        for (value, home) in program.values.iter().zip(&memory.homes) {
            let kept = *home == Home::Saved || (again && value.class == Class::StreamIn);
            match value.name.rsplit('.').next() {
                _ if !kept => {}
                Some("lse") => layer.lse += value.bytes(),
                Some("mean" | "rstd") => layer.statistics += value.bytes(),
                _ => layer.inputs += value.bytes(),
            }
        }
        for op in program.list(Phase::Forward).iter().filter_map(Node::op) {
            match op {
                Op::Dropout(o) => layer.masks += o.x.len() as u64,
                Op::Attention(o) => layer.scores += 5 * (o.shape.heads * o.q.rows * o.shape.seq) as u64,
                _ => {}
            }
        }
        layer
    }

    fn plan(&self, config: &ParallelConfig) -> (Plan, Program) {
        let ranks = (self.tensor * self.pipeline) as usize;
        let plan = Plan::new(config, ranks, &self.model(), OptimConfig::default().optimizer).unwrap();
        let program = plan.program(self.micro_batches, 1, None).unwrap();
        (plan, program)
    }

    fn config(&self, sequence: bool) -> ParallelConfig {
        ParallelConfig {
            tensor: self.tensor.into(),
            sequence,
            pipeline: self.pipeline,
            chunks: self.chunks,
            schedule: if self.chunks > 1 { "interleaved" } else { "1f1b" }.into(),
            ..ParallelConfig::default()
        }
    }
}

fn activations(recompute: Recompute) -> ActivationConfig {
    ActivationConfig { storage: Storage::Bf16, recompute: recompute.into(), ..ActivationConfig::default() }
}

/// Bytes of one layer and micro-batch on one rank: the kept ones, and the terms in which Megatron-LM's differ.
#[derive(Debug, Default, Clone, Copy)]
struct Layer {
    /// Inputs of operators of the backward pass, in the type of activations.
    inputs: u64,
    lse: u64,
    statistics: u64,
    masks: u64,
    scores: u64,
}

/// Korthikanti et al. 2022, table 2. The scores of attention, which the paper recomputes selectively, are never stored here.
#[test]
fn a_layer_keeps_the_bytes_of_the_closed_forms() {
    for of in [GPT_22B, GPT_175B] {
        let (sbh, sb, t) = (of.sbh(), of.tokens * of.sequences, of.tensor);
        for (stream, rows, selective) in [
            (Stream::WHOLE, 1, 10 * sbh + 24 * sbh / t),
            (Stream::PARTITIONED, 1, 8 * sbh + 26 * sbh / t),
            (Stream::ROWS, t, 34 * sbh / t),
        ] {
            let stored = of.layer(stream, Recompute::None);
            assert_eq!(stored.inputs + stored.masks, selective, "{stream:?}");
            assert_eq!((stored.lse, stored.statistics), (4 * of.heads * sb / t, 16 * sb / rows));
            assert_eq!((stored.masks, stored.scores), (2 * sbh / rows, of.scores()));
        }
        // Values that this program recomputes in addition.
        let kept = |stream, recompute| {
            let layer = of.layer(stream, recompute);
            assert_eq!(layer.statistics, 0);
            layer.inputs + layer.lse
        };
        let lse = 4 * of.heads * sb / t;
        for (recompute, whole, sharded) in [
            (Recompute::Selective, 4 * sbh, 16 * sbh / t + lse),
            (Recompute::Attention, 4 * sbh, 14 * sbh / t),
            (Recompute::AttentionOutput, 2 * sbh, 2 * sbh / t + lse),
            (Recompute::Full, 2 * sbh, 0),
        ] {
            assert_eq!(kept(Stream::WHOLE, recompute), whole + sharded, "{recompute}");
            assert_eq!(kept(Stream::ROWS, recompute), whole / t + sharded, "{recompute}");
            let input = 2 * sbh - 2 * sbh / t;
            assert_eq!(kept(Stream::PARTITIONED, recompute), whole + sharded - input, "{recompute}");
        }
    }
}

/// Korthikanti et al. 2022, figure 7: percent of the bytes that tensor parallelism alone stores.
#[test]
fn shares_of_each_technique_are_the_published_ones() {
    for (of, published) in [(GPT_22B, [66.77, 49.37, 16.14, 7.59]), (GPT_175B, [61.96, 56.52, 18.48, 8.70])] {
        let selective = |stream| {
            let layer = of.layer(stream, Recompute::None);
            layer.inputs + layer.masks
        };
        let scores = of.layer(Stream::WHOLE, Recompute::None).scores;
        let all = (selective(Stream::WHOLE) + scores) as f64;
        let found = [
            selective(Stream::ROWS) + scores,
            selective(Stream::WHOLE),
            selective(Stream::ROWS),
            of.layer(Stream::WHOLE, Recompute::Full).inputs,
        ];
        for (found, published) in found.iter().zip(published) {
            let percent = 100.0 * *found as f64 / all;
            assert!((percent - published).abs() < 0.005, "{percent} {published}");
        }
    }
}

/// Pairs of a layer and a micro-batch that the first rank holds at once at most, by its list.
fn layers_in_flight(program: &Program, spans: &[Span]) -> u64 {
    let layers = |micro: usize, chunk: usize| {
        let stage = (0..program.stages).find(|s| {
            let place = program.place(micro, *s);
            (place.rank, place.chunk) == (0, chunk)
        });
        spans[stage.unwrap()].layers.len() as u64
    };
    let (mut held, mut most) = (0, 0);
    for instruction in &program.lists[0] {
        match *instruction {
            Instruction::Forward(pass) => held += layers(pass.micro, pass.chunk),
            Instruction::Backward(pass) => held -= layers(pass.micro, pass.chunk),
            _ => {}
        }
        most = most.max(held);
    }
    most
}

/// Figures of the whole first rank: 22B and 175B with sequence parallelism and selective recomputation, 175B with everything
/// stored under tensor parallelism alone.
#[test]
fn the_first_rank_holds_the_published_memory() {
    for (of, sequence, scores, published) in
        [(GPT_22B, true, false, 9.56), (GPT_175B, true, false, 12.35), (GPT_175B, false, true, 66.84)]
    {
        let config = of.config(sequence);
        let (plan, program) = of.plan(&config);
        let model = of.model();
        let layer = of.layer(plan.stream(), Recompute::None);
        let in_flight = layers_in_flight(&program, &plan.spans(&model, program.stages).unwrap());
        // Layers of one micro-batch, and with v chunks 1 + (p-1)/(pv) times as many.
        let factor = of.layers * if of.chunks > 1 { of.pipeline * of.chunks + of.pipeline - 1 } else { 1 };
        assert_eq!(in_flight, factor / if of.chunks > 1 { of.pipeline * of.chunks } else { 1 });
        let megatron = layer.inputs + layer.masks + if scores { layer.scores } else { 0 };
        let found = (in_flight * megatron) as f64 / f64::from(1 << 30);
        assert!((found - published).abs() < 0.005, "{found} GiB, published {published}");

        // The rank itself.
        let mut device = Named::default();
        let world = Box::new(NullCommunicator::new("world", 0, plan.ranks()));
        let job = Job {
            model: &model,
            shape: of.shape(),
            activations: activations(Recompute::None),
            types: ParamStorage::default(),
            optim: &OptimConfig::default(),
            losses: &[],
            plan: &plan,
            program: &program,
        };
        Worker::new(&mut device, &job, world).unwrap();
        let of_slots = |name: &str| device.bytes(|found| found == name);
        let slots = of_slots("ids") / (4 * of.tokens * of.sequences);
        let layers = device.bytes(|name| name.starts_with("layers."));
        let stream = of_slots("residual stream");
        let row = 2 * of.sbh() / if sequence { of.tensor } else { 1 };
        let layers_of_slots = device.count("attention.lse");
        // Each slot has the stream that leaves its last layer besides.
        assert_eq!(stream, (layers_of_slots + slots) * row);
        assert_eq!(
            layers + stream - slots * row,
            layers_of_slots * (layer.inputs + layer.lse + layer.statistics)
        );
        // Chunks share their slots: no more than are in flight at once.
        assert_eq!(layers_of_slots, in_flight);
    }
}

/// The null backend, with the names of its activations.
#[derive(Default)]
struct Named {
    null: NullBackend,
    buffers: Vec<(String, u64)>,
}

impl Named {
    fn bytes(&self, wanted: impl Fn(&str) -> bool) -> u64 {
        self.buffers.iter().filter(|b| wanted(&b.0)).map(|b| b.1).sum()
    }

    fn count(&self, end: &str) -> u64 {
        self.buffers.iter().filter(|b| b.0.ends_with(end)).count() as u64
    }
}

impl Backend for Named {
    fn name(&self) -> &str {
        "named"
    }
    fn alloc(&mut self, spec: BufferSpec<'_>) -> Result<Buffer, TensorError> {
        if spec.class == "activations" {
            self.buffers.push((spec.name.into(), (spec.len * spec.dtype.size()) as u64));
        }
        self.null.alloc(spec)
    }
    fn workspace(&self, op: &Op) -> Result<Bytes, TensorError> {
        self.null.workspace(op)
    }
    fn reserve_workspace(&mut self, bytes: Bytes) -> Result<(), TensorError> {
        self.null.reserve_workspace(bytes)
    }
    fn launch(&mut self, stream: bessemer_tensor::Stream, op: &Op) -> Result<(), TensorError> {
        self.null.launch(stream, op)
    }
    fn record(&mut self, stream: bessemer_tensor::Stream) -> Result<Event, TensorError> {
        self.null.record(stream)
    }
    fn wait(&mut self, stream: bessemer_tensor::Stream, event: Event) -> Result<(), TensorError> {
        self.null.wait(stream, event)
    }
    fn sync(&mut self) -> Result<(), TensorError> {
        self.null.sync()
    }
    fn write_f32(&mut self, dst: View, values: &[f32]) -> Result<(), TensorError> {
        self.null.write_f32(dst, values)
    }
    fn write_u32(&mut self, dst: View, values: &[u32]) -> Result<(), TensorError> {
        self.null.write_u32(dst, values)
    }
    fn read_f32(&mut self, src: View, values: &mut [f32]) -> Result<(), TensorError> {
        self.null.read_f32(src, values)
    }
    fn read_bytes(
        &mut self,
        stream: bessemer_tensor::Stream,
        src: View,
        bytes: &mut [u8],
    ) -> Result<(), TensorError> {
        self.null.read_bytes(stream, src, bytes)
    }
    fn write_bytes(
        &mut self,
        stream: bessemer_tensor::Stream,
        dst: View,
        bytes: &[u8],
    ) -> Result<(), TensorError> {
        self.null.write_bytes(stream, dst, bytes)
    }
    fn memory(&self) -> MemoryUse {
        self.null.memory()
    }
}
