//! The program of a schedule: lists of instructions, one for each rank.

use std::fmt;

use crate::ScheduleError;

/// A part of the model on a rank: chunk `chunk` of rank `rank`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Place {
    /// Position on the pipeline axis.
    pub rank: usize,
    /// Number of the stage among those of the rank.
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

/// Content of a message between two stages.
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
    /// Kind of work.
    pub filler: Filler,
    /// Chunk of the rank that it concerns.
    pub chunk: usize,
    /// Which of the pieces of this kind and chunk: whoever plans the fillers numbers them.
    pub unit: usize,
}

/// One instruction of a rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Instruction {
    /// Forward pass. Its input has been received, or was made by the chunk before on this rank, or is the tokens.
    Forward(Pass),
    /// The whole backward pass.
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
        /// Content of the message.
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
        /// Content of the message.
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

impl Instruction {
    /// Forward of a micro-batch with the weights that are there at the beginning.
    pub fn forward(micro: usize, chunk: usize) -> Self {
        Self::Forward(Pass { micro, chunk, version: 0 })
    }

    /// Whole backward of a micro-batch with the weights that are there at the beginning.
    pub fn backward(micro: usize, chunk: usize) -> Self {
        Self::Backward(Pass { micro, chunk, version: 0 })
    }

    /// Input part of the backward with the weights that are there at the beginning.
    pub fn backward_input(micro: usize, chunk: usize) -> Self {
        Self::BackwardInput(Pass { micro, chunk, version: 0 })
    }

    /// Weight part of the backward with the weights that are there at the beginning.
    pub fn backward_weight(micro: usize, chunk: usize) -> Self {
        Self::BackwardWeight(Pass { micro, chunk, version: 0 })
    }

    /// The passes in it, a forward before a backward.
    pub fn passes(&self) -> impl Iterator<Item = Pass> + use<> {
        let (first, second) = match *self {
            Self::Forward(pass) | Self::Backward(pass) => (Some(pass), None),
            Self::BackwardInput(pass) | Self::BackwardWeight(pass) => (Some(pass), None),
            Self::Together { forward, backward } => (Some(forward), Some(backward)),
            _ => (None, None),
        };
        first.into_iter().chain(second)
    }

    /// The pass whose gradients of the weights it makes.
    pub fn gradient_part(&self) -> Option<Pass> {
        match *self {
            Self::Backward(pass) | Self::BackwardWeight(pass) | Self::Together { backward: pass, .. } => {
                Some(pass)
            }
            _ => None,
        }
    }

    /// Whether it belongs to the update: it runs when all gradients and their norm are known.
    pub fn is_update(&self) -> bool {
        match self {
            Self::Step { .. } | Self::Gather { .. } => true,
            Self::Fill(fill) => fill.filler.is_update(),
            _ => false,
        }
    }

    pub(crate) fn error(&self, rank: usize, position: usize, what: String) -> ScheduleError {
        ScheduleError::Instruction { rank, position, instruction: self.to_string(), what }
    }
}

/// As in a schedule file: `F3` forward of micro-batch 3, `B3` whole backward, `I3` its input part, `W3` its weight part,
/// `F5&B3` together; `.1` behind a number is a chunk other than 0, `@2` a version other than 0.
impl fmt::Display for Instruction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Forward(pass) => write!(f, "F{pass}"),
            Self::Backward(pass) => write!(f, "B{pass}"),
            Self::BackwardInput(pass) => write!(f, "I{pass}"),
            Self::BackwardWeight(pass) => write!(f, "W{pass}"),
            Self::Together { forward, backward } => write!(f, "F{forward}&B{backward}"),
            Self::Send { flow, micro, chunk, to } => {
                write!(f, "send{}{micro}{}>{}{}", flow.letter(), Chunk(chunk), to.rank, Chunk(to.chunk))
            }
            Self::Receive { flow, micro, chunk, from } => {
                write!(f, "recv{}{micro}{}<{}{}", flow.letter(), Chunk(chunk), from.rank, Chunk(from.chunk))
            }
            Self::Reduce { chunk, update } => write!(f, "reduce{update}{}", Chunk(chunk)),
            Self::Step { chunk, update } => write!(f, "step{update}{}", Chunk(chunk)),
            Self::Gather { chunk, update } => write!(f, "gather{update}{}", Chunk(chunk)),
            Self::Fill(Fill { filler, chunk, unit }) => write!(f, "{}{unit}{}", filler.name(), Chunk(chunk)),
        }
    }
}

impl fmt::Display for Pass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.micro, Chunk(self.chunk))?;
        if self.version > 0 { write!(f, "@{}", self.version) } else { Ok(()) }
    }
}

/// A chunk as it is written behind a number.
struct Chunk(usize);

impl fmt::Display for Chunk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0 > 0 { write!(f, ".{}", self.0) } else { Ok(()) }
    }
}

impl Flow {
    /// `A` or `G`, as in a schedule file.
    pub fn letter(self) -> char {
        match self {
            Self::Activation => 'A',
            Self::Gradient => 'G',
        }
    }
}

impl Filler {
    /// Every kind of filler work.
    pub const ALL: [Filler; 6] = [
        Filler::Curvature,
        Filler::SyncCurvature,
        Filler::Invert,
        Filler::Precondition,
        Filler::Evaluate,
        Filler::Copy,
    ];

    /// Whether the work belongs to the update: it needs the complete gradients.
    pub fn is_update(self) -> bool {
        self == Self::Precondition
    }

    /// Whether the work changes parameters or the state of the optimizer, as checkpoints hold them.
    pub fn changes_state(self) -> bool {
        matches!(self, Self::SyncCurvature | Self::Invert)
    }

    /// The name in a schedule file.
    pub fn name(self) -> &'static str {
        match self {
            Self::Curvature => "curvature",
            Self::SyncCurvature => "sync-curvature",
            Self::Invert => "invert",
            Self::Precondition => "precondition",
            Self::Evaluate => "evaluate",
            Self::Copy => "copy",
        }
    }
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
