//! The axes along which work and tensors are spread.

/// An axis of the mesh. The order of the variants is the one in which labels and tables list them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Axis {
    /// Stages of layers, one behind the other.
    Pipeline,
    /// Data parallelism whose ranks hold the same tensors (DDP, the outer axis of HSDP).
    Replicate,
    /// Data parallelism whose ranks share optimizer state, gradients or parameters (ZeRO, FSDP).
    Shard,
    /// Parts of a sequence.
    Context,
    /// Parts of such a part, on ranks that exchange them for heads where positions are related (Ulysses within another method).
    ContextHeads,
    /// Tensor parallelism in one dimension.
    Tensor,
    /// Rows of a grid of tensor parallelism in two or more dimensions.
    TensorRow,
    /// Columns of that grid.
    TensorColumn,
    /// Its depth.
    TensorDepth,
    /// Data parallelism whose ranks share the experts of a layer and exchange their tokens: other parameters are replicated or
    /// sharded over it as over the other axes of data parallelism.
    Expert,
}

impl Axis {
    /// Every axis, in the order of the labels.
    pub const ALL: [Axis; 10] = [
        Axis::Pipeline,
        Axis::Replicate,
        Axis::Shard,
        Axis::Context,
        Axis::ContextHeads,
        Axis::Tensor,
        Axis::TensorRow,
        Axis::TensorColumn,
        Axis::TensorDepth,
        Axis::Expert,
    ];

    /// The axes whose ranks see different data.
    pub const DATA: [Axis; 3] = [Axis::Replicate, Axis::Shard, Axis::Expert];

    /// The axes whose ranks share sequences.
    pub const SEQUENCES: [Axis; 2] = [Axis::ContextHeads, Axis::Context];

    /// The axes whose ranks share every layer of a micro-batch.
    pub const LAYER: [Axis; 6] = [
        Axis::Tensor,
        Axis::TensorRow,
        Axis::TensorColumn,
        Axis::TensorDepth,
        Axis::ContextHeads,
        Axis::Context,
    ];

    /// Name in labels, recipes and messages.
    pub fn name(self) -> &'static str {
        match self {
            Axis::Pipeline => "pipeline",
            Axis::Replicate => "replicate",
            Axis::Shard => "shard",
            Axis::Context => "context",
            Axis::ContextHeads => "context-heads",
            Axis::Tensor => "tensor",
            Axis::TensorRow => "tensor-row",
            Axis::TensorColumn => "tensor-column",
            Axis::TensorDepth => "tensor-depth",
            Axis::Expert => "expert",
        }
    }

    /// The order in which axes shard a dim that several of them shard: those that must keep heads whole first, so that what
    /// they leave can be divided anywhere.
    pub(crate) const SHARDING: [Axis; 10] = [
        Axis::Tensor,
        Axis::TensorRow,
        Axis::TensorColumn,
        Axis::TensorDepth,
        Axis::ContextHeads,
        Axis::Context,
        Axis::Expert,
        Axis::Shard,
        Axis::Replicate,
        Axis::Pipeline,
    ];

    /// Place in [`Axis::ALL`].
    pub(crate) fn slot(self) -> usize {
        self as usize
    }
}

impl std::fmt::Display for Axis {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}
