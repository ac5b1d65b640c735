//! The schedules by name.

use std::fmt;
use std::str::FromStr;

use crate::{Program, ScheduleError, communicate, orders};

/// A schedule that has a generator.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Kind {
    /// All forwards, then all backwards.
    GPipe,
    /// One forward, one backward, with a flush (PipeDream-Flush, DAPPLE).
    OneFOneB,
    /// Asynchronous 1F1B with weight stashing.
    PipeDream,
    /// Asynchronous 1F1B with two versions of the weights.
    PipeDream2Bw,
    /// 1F1B over several chunks a rank.
    Interleaved,
    /// All micro-batches through one chunk of a rank before the next.
    BreadthFirst,
    /// Two (or 2f) pipelines in opposite directions.
    Chimera,
    /// Zero bubble with the memory of 1F1B.
    ZbH1,
    /// Zero bubble with twice the memory of 1F1B.
    ZbH2,
    /// Zero bubble over two chunks in the form of a V.
    ZbV,
    /// Two directions with forward and backward run together.
    DualPipe,
    /// DualPipe over two chunks in the form of a V.
    DualPipeV,
    /// The V of ZB-V with half the memory of 1F1B.
    VHalf,
    /// The V of ZB-V with a third of the memory of 1F1B.
    VMin,
    /// The zero-bubble heuristic, its options searched under a memory limit.
    ZbAuto,
}

impl Kind {
    /// Every kind, in the order of the documentation.
    pub const ALL: [Kind; 15] = [
        Kind::GPipe,
        Kind::OneFOneB,
        Kind::PipeDream,
        Kind::PipeDream2Bw,
        Kind::Interleaved,
        Kind::BreadthFirst,
        Kind::Chimera,
        Kind::ZbH1,
        Kind::ZbH2,
        Kind::ZbV,
        Kind::DualPipe,
        Kind::DualPipeV,
        Kind::VHalf,
        Kind::VMin,
        Kind::ZbAuto,
    ];

    /// The name in recipes and on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Kind::GPipe => "gpipe",
            Kind::OneFOneB => "1f1b",
            Kind::PipeDream => "pipedream",
            Kind::PipeDream2Bw => "pipedream-2bw",
            Kind::Interleaved => "interleaved",
            Kind::BreadthFirst => "breadth-first",
            Kind::Chimera => "chimera",
            Kind::ZbH1 => "zb-h1",
            Kind::ZbH2 => "zb-h2",
            Kind::ZbV => "zb-v",
            Kind::DualPipe => "dualpipe",
            Kind::DualPipeV => "dualpipev",
            Kind::VHalf => "v-half",
            Kind::VMin => "v-min",
            Kind::ZbAuto => "zb-auto",
        }
    }

    /// Chunks that a rank holds where the shape does not say.
    pub fn default_chunks(self) -> usize {
        match self {
            Kind::Interleaved | Kind::Chimera | Kind::ZbV | Kind::DualPipe | Kind::DualPipeV => 2,
            Kind::BreadthFirst | Kind::VHalf | Kind::VMin => 2,
            _ => 1,
        }
    }

    /// Whether weights are updated while micro-batches are in flight.
    pub fn asynchronous(self) -> bool {
        matches!(self, Kind::PipeDream | Kind::PipeDream2Bw)
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Kind {
    type Err = ScheduleError;

    fn from_str(text: &str) -> Result<Self, ScheduleError> {
        Kind::ALL.into_iter().find(|kind| kind.name() == text).ok_or_else(|| ScheduleError::UnknownKind {
            found: text.chars().take(80).collect(),
            known: Kind::ALL.map(Kind::name).join(", "),
        })
    }
}

/// Times by which a generator that plans with times decides, in one unit of the caller's choice. They are those of a rank
/// and a micro-batch: where a rank holds several chunks that the micro-batch visits, each takes its share.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Costs {
    /// T_F, forward.
    pub forward: f64,
    /// T_B, backward with respect to the input.
    pub backward: f64,
    /// T_W, backward with respect to the weights.
    pub weight: f64,
    /// T_comm, one message between neighbours.
    pub message: f64,
}

impl Default for Costs {
    /// Three equal parts and messages that take no time.
    fn default() -> Self {
        Self { forward: 1.0, backward: 1.0, weight: 1.0, message: 0.0 }
    }
}

/// How Chimera passes more micro-batches than it has ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Join {
    /// Units of D micro-batches, one after the other.
    #[default]
    Concatenate,
    /// Forward passes of two micro-batches together, so that a forward takes as long as a backward.
    ForwardDoubling,
    /// Micro-batches of half the size in the backward pass.
    BackwardHalving,
}

/// The sizes of a schedule, and what its generator is to know besides.
#[derive(Debug, Clone, PartialEq)]
pub struct Shape {
    /// P, pipeline ranks.
    pub ranks: usize,
    /// Micro-batches of the program, in all updates.
    pub micro_batches: usize,
    /// v, chunks of a rank; without it what the kind has by its nature, 2 for `interleaved`.
    pub chunks: Option<usize>,
    /// Micro-batches of one update in an asynchronous schedule; without it 1 for `pipedream`, and for `pipedream-2bw` the
    /// fewest that are at least P and divide the micro-batches.
    pub update_every: Option<usize>,
    /// f of Chimera: 2f pipelines.
    pub pairs: usize,
    /// Chimera with more micro-batches than ranks.
    pub join: Join,
    /// Times for the generators that plan with them (`chimera`, `zb-auto`).
    pub costs: Costs,
    /// `zb-auto`: most live activations of a rank, in those of one micro-batch (M_B); without it 2P.
    pub memory_limit: Option<f64>,
    /// Share of a micro-batch's activations that stays between input and weight part, M_W/M_B.
    pub weight_share: f64,
}

impl Shape {
    /// The plain form with everything else left to the kind.
    pub fn new(ranks: usize, micro_batches: usize) -> Self {
        Self {
            ranks,
            micro_batches,
            chunks: None,
            update_every: None,
            pairs: 1,
            join: Join::default(),
            costs: Costs::default(),
            memory_limit: None,
            weight_share: 0.5,
        }
    }
}

/// Most passes of one direction, over all ranks, that a program may have: beyond it a program no longer fits in memory.
pub const MOST_PASSES: usize = 1 << 24;

/// Makes the program of a schedule, with communication and updates in it.
///
/// # Errors
/// [`ScheduleError::Shape`] where the sizes do not fit the schedule, with sizes that would.
pub fn generate(kind: Kind, shape: &Shape) -> Result<Program, ScheduleError> {
    check(kind, shape)?;
    let passes = match kind {
        Kind::GPipe => orders::gpipe(shape),
        Kind::OneFOneB => orders::one_f_one_b(shape),
        Kind::PipeDream => orders::pipedream(shape)?,
        Kind::PipeDream2Bw => orders::pipedream_2bw(shape)?,
        Kind::Interleaved => orders::interleaved(shape)?,
        Kind::BreadthFirst => orders::breadth_first(shape),
        Kind::Chimera => orders::chimera(shape)?,
        Kind::ZbH1 => orders::zb_h1(shape),
        Kind::ZbH2 => orders::zb_h2(shape),
        Kind::ZbV => orders::zb_v(shape),
        Kind::DualPipe => orders::dualpipe(shape)?,
        Kind::DualPipeV => orders::dualpipev(shape)?,
        Kind::VHalf => orders::v_half(shape),
        Kind::VMin => orders::v_min(shape),
        Kind::ZbAuto => orders::zb_auto(shape)?,
    };
    communicate(passes)
}

/// Checks the conditions that hold for every kind.
fn check(kind: Kind, shape: &Shape) -> Result<(), ScheduleError> {
    if shape.ranks == 0 || shape.micro_batches == 0 {
        let found = format!("{} ranks and {} micro-batches", shape.ranks, shape.micro_batches);
        return Err(ScheduleError::shape(kind, "at least one rank and one micro-batch", found, "give both"));
    }
    let chunks = shape.chunks.unwrap_or(kind.default_chunks());
    let any = matches!(kind, Kind::Interleaved | Kind::BreadthFirst);
    if chunks == 0 || (!any && shape.chunks.is_some_and(|c| c != kind.default_chunks())) {
        let wanted = match any {
            true => "at least one chunk on a rank".to_owned(),
            false => format!("chunks on a rank: {}", kind.default_chunks()),
        };
        let advice = "leave the chunks away, or take interleaved or breadth-first, which take any number";
        return Err(ScheduleError::shape(kind, wanted, format!("{chunks}"), advice));
    }
    // Each of Chimera's pipelines has its chunk on every rank.
    let chunks = if kind == Kind::Chimera { shape.pairs.saturating_mul(2).max(2) } else { chunks };
    let passes = shape.ranks.checked_mul(chunks).and_then(|places| places.checked_mul(shape.micro_batches));
    if passes.is_none_or(|passes| passes > MOST_PASSES) {
        let found = format!("{} x {} x {chunks}", shape.ranks, shape.micro_batches);
        let wanted = format!("at most {MOST_PASSES} ranks x micro-batches x chunks");
        return Err(ScheduleError::shape(kind, wanted, found, "take fewer micro-batches"));
    }
    Ok(())
}
