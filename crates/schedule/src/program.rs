//! What a program is.

/// A part of the model on a rank: chunk `chunk` of rank `rank`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Place {
    /// Position on the pipeline axis.
    pub rank: usize,
    /// Which of the stages held there.
    pub chunk: usize,
}

/// One micro-batch in one chunk of the rank whose list this stands in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Pass {
    /// Number of the micro-batch within the program.
    pub micro: usize,
    /// Chunk of this rank.
    pub chunk: usize,
    /// Updates that are in the weights which this pass reads, counted from the program's beginning. 0 everywhere in a
    /// synchronous schedule; both passes of a micro-batch through a stage name the same.
    pub version: usize,
}

/// What travels between two stages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Flow {
    /// A stage's output, to the next stage.
    Activation,
    /// The gradient of a stage's input, to the stage before.
    Gradient,
}

/// Work that is not a micro-batch's, put where a rank would wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Filler {
    /// Curvature factors of one layer from one micro-batch (K-FAC).
    Curvature,
    /// A layer's curvature factors summed over the data-parallel ranks (K-FAC).
    SyncCurvature,
    /// Inverse of one layer's factors (K-FAC).
    Invert,
    /// A layer's gradient multiplied by the inverses (K-FAC).
    Precondition,
    /// An evaluation micro-batch through a chunk.
    Evaluate,
    /// A part of the training state copied for a checkpoint.
    Copy,
}

/// One piece of filler work.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Fill {
    /// What it is.
    pub filler: Filler,
    /// Which chunk of the rank it concerns.
    pub chunk: usize,
    /// Which of the pieces of this kind and chunk: whoever plans the fillers numbers them.
    pub unit: usize,
}

/// What a rank does next.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Instruction {
    /// Forward pass. Its input has been received, or was made by the chunk before on this rank, or is the tokens.
    Forward(Pass),
    /// Both parts of the backward pass.
    Backward(Pass),
    /// The gradient of the input. What the weights' gradients need stays.
    BackwardInput(Pass),
    /// The gradients of the weights.
    BackwardWeight(Pass),
    /// A forward pass and the whole backward pass of another micro-batch, their computation and messages interleaved.
    Together {
        /// Goes forward.
        forward: Pass,
        /// Goes backward.
        backward: Pass,
    },
    /// Hands over what the pass of `micro` through `chunk` just made. The sender does not wait for the receiver.
    Send {
        /// What.
        flow: Flow,
        /// Of which micro-batch.
        micro: usize,
        /// Made by this chunk of this rank.
        chunk: usize,
        /// For this chunk of another rank.
        to: Place,
    },
    /// Waits for what `from` hands over, which the next pass of `micro` through `chunk` needs.
    Receive {
        /// What.
        flow: Flow,
        /// Of which micro-batch.
        micro: usize,
        /// For this chunk of this rank.
        chunk: usize,
        /// Made by this chunk of another rank.
        from: Place,
    },
    /// Sums a chunk's gradients over all ranks that hold its stage (data-parallel ones, and the mirrored rank of a
    /// bidirectional schedule), for update number `update`.
    Reduce {
        /// Chunk of this rank.
        chunk: usize,
        /// From 0.
        update: usize,
    },
    /// The optimizer's step on a chunk: makes version `update + 1` of its weights from the latest.
    Step {
        /// Chunk of this rank.
        chunk: usize,
        /// From 0.
        update: usize,
    },
    /// Brings a chunk's updated weights together where ranks updated only parts of them.
    Gather {
        /// Chunk of this rank.
        chunk: usize,
        /// From 0.
        update: usize,
    },
    /// Filler work.
    Fill(Fill),
}

/// A schedule: what every rank does, in order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Program {
    /// Name of the schedule.
    pub name: String,
    /// S, parts of the model.
    pub stages: usize,
    /// Updates of every chunk's weights; 1 in a synchronous schedule.
    pub updates: usize,
    /// For each route, where each stage is passed.
    pub routes: Vec<Vec<Place>>,
    /// For each micro-batch, its route.
    pub route_of: Vec<usize>,
    /// For each micro-batch, the update that its gradient is part of.
    pub update_of: Vec<usize>,
    /// One list per rank.
    pub lists: Vec<Vec<Instruction>>,
}

impl Program {
    /// P, pipeline ranks.
    pub fn ranks(&self) -> usize {
        self.lists.len()
    }

    /// Micro-batches of the program.
    pub fn micro_batches(&self) -> usize {
        self.route_of.len()
    }

    /// Where a micro-batch's pass through a stage happens.
    pub fn place(&self, micro: usize, stage: usize) -> Place {
        self.routes[self.route_of[micro]][stage]
    }

    /// The stage that a chunk of a rank holds, if any route passes there.
    pub fn stage_at(&self, place: Place) -> Option<usize> {
        self.routes.iter().find_map(|route| route.iter().position(|p| *p == place))
    }

    /// Chunks that a rank holds.
    pub fn chunks(&self, rank: usize) -> usize {
        let chunks = self.routes.iter().flatten().filter(|p| p.rank == rank).map(|p| p.chunk + 1);
        chunks.max().unwrap_or(0)
    }

    /// Every place that holds a stage, without repetition, in the order of routes.
    pub fn holders(&self, stage: usize) -> Vec<Place> {
        let mut places = Vec::new();
        for place in self.routes.iter().map(|route| route[stage]) {
            if !places.contains(&place) {
                places.push(place);
            }
        }
        places
    }
}
