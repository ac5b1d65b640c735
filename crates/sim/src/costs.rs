//! Costs of instructions and messages.

use crate::error::time;
use crate::{Jitter, SimError};
use bessemer_schedule::{Fill, Filler, Instruction, Place, Program};
use bessemer_units::Link;
use std::collections::BTreeMap;

/// Times of one micro-batch on one rank or in one stage, in any unit.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PassTimes {
    /// T_F.
    pub forward: f64,
    /// T_B, backward with respect to the input.
    pub backward_input: f64,
    /// T_W, backward with respect to the weights.
    pub backward_weight: f64,
    /// A forward and the full backward of another micro-batch run together; their sum if left out.
    pub together: Option<f64>,
}

impl PassTimes {
    /// Times whose overlapped pairs gain nothing.
    pub fn new(forward: f64, backward_input: f64, backward_weight: f64) -> PassTimes {
        PassTimes { forward, backward_input, backward_weight, together: None }
    }

    /// T_F + T_B + T_W.
    pub fn sum(&self) -> f64 {
        self.forward + self.backward_input + self.backward_weight
    }
}

/// Times of one micro-batch in one chunk, and of what happens once for the chunk.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct ChunkTimes {
    /// Forward pass.
    pub forward: f64,
    /// The whole backward pass.
    pub backward: f64,
    /// Its input part.
    pub backward_input: f64,
    /// Its weight part.
    pub backward_weight: f64,
    /// Gradients summed over the ranks that hold the stage.
    pub reduce: f64,
    /// The optimizer's step.
    pub step: f64,
    /// All-gather of updated weights.
    pub gather: f64,
    /// A unit of each kind of filler, in the order of [`Filler::ALL`].
    pub fill: [f64; Filler::ALL.len()],
}

/// Costs of messages.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Messages {
    /// Bytes of an activation or gradient that goes from stage to stage.
    pub bytes: f64,
    /// Every link that `links` does not name.
    pub link: Link,
    /// Links that differ, by (from, to).
    pub links: BTreeMap<(usize, usize), Link>,
}

impl Messages {
    /// The link from one rank to another.
    pub fn link(&self, from: usize, to: usize) -> Link {
        self.links.get(&(from, to)).copied().unwrap_or(self.link)
    }

    /// Time that a message keeps a link busy.
    pub(crate) fn transfer(&self, link: Link) -> f64 {
        if self.bytes == 0.0 { 0.0 } else { self.bytes / link.bandwidth }
    }
}

/// Costs of a program.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Costs {
    /// Times by rank and chunk.
    pub chunks: Vec<Vec<ChunkTimes>>,
    /// Times of overlapped pairs by (rank, chunk that goes forward, chunk that goes backward); the sum of the two where
    /// there is none.
    pub together: BTreeMap<(usize, usize, usize), f64>,
    /// Times of single units of filler work by rank; that of the chunk and kind where there is none.
    pub units: BTreeMap<(usize, Fill), f64>,
    /// Messages between ranks.
    pub messages: Messages,
    /// Variation of the instructions' times.
    pub jitter: Jitter,
}

/// Stages that a micro-batch is passed on through the rank of `place`, of those routes that pass there: its share of
/// the rank's work and activations is one over this.
pub fn visits(program: &Program, place: Place) -> usize {
    let route = program.routes.iter().find(|route| route.contains(&place));
    route.map_or(1, |route| route.iter().filter(|p| p.rank == place.rank).count())
}

impl Costs {
    /// The same times on every rank for one micro-batch, split evenly over the chunks that it visits there.
    pub fn per_rank(program: &Program, times: &PassTimes) -> Costs {
        Costs::by_rank(program, &vec![*times; program.ranks()])
    }

    /// Times of each rank for one micro-batch, split evenly over the chunks that it visits there.
    pub fn by_rank(program: &Program, times: &[PassTimes]) -> Costs {
        let share = |rank, chunk| 1.0 / visits(program, Place { rank, chunk }) as f64;
        Costs::from_places(program, |place| (times[place.rank], share(place.rank, place.chunk)))
    }

    /// Times of each stage for one micro-batch, wherever it is held.
    pub fn per_stage(program: &Program, times: &[PassTimes]) -> Costs {
        let idle = PassTimes::new(0.0, 0.0, 0.0);
        Costs::from_places(program, |place| (program.stage_at(place).map_or(idle, |s| times[s]), 1.0))
    }

    fn from_places(program: &Program, times: impl Fn(Place) -> (PassTimes, f64)) -> Costs {
        let mut costs = Costs::default();
        for rank in 0..program.ranks() {
            let chunks = program.chunks(rank);
            let all: Vec<_> = (0..chunks).map(|chunk| times(Place { rank, chunk })).collect();
            let chunk = |(t, share): &(PassTimes, f64)| ChunkTimes {
                forward: t.forward * share,
                backward: (t.backward_input + t.backward_weight) * share,
                backward_input: t.backward_input * share,
                backward_weight: t.backward_weight * share,
                ..ChunkTimes::default()
            };
            costs.chunks.push(all.iter().map(chunk).collect());
            for (f, (forward, forward_share)) in all.iter().enumerate() {
                for (b, (backward, backward_share)) in all.iter().enumerate() {
                    if let (Some(x), Some(y)) = (forward.together, backward.together) {
                        let pair = (x * forward_share + y * backward_share) / 2.0;
                        costs.together.insert((rank, f, b), pair);
                    }
                }
            }
        }
        costs
    }

    /// Time of an instruction without jitter; 0 for messages.
    ///
    /// # Panics
    /// If rank or chunk have no times; [`Costs::check`] finds that.
    pub fn time(&self, rank: usize, instruction: &Instruction) -> f64 {
        let chunks = &self.chunks[rank];
        match instruction {
            Instruction::Forward(p) => chunks[p.chunk].forward,
            Instruction::Backward(p) => chunks[p.chunk].backward,
            Instruction::BackwardInput(p) => chunks[p.chunk].backward_input,
            Instruction::BackwardWeight(p) => chunks[p.chunk].backward_weight,
            Instruction::Together { forward, backward } => {
                let pair = self.together.get(&(rank, forward.chunk, backward.chunk));
                pair.copied().unwrap_or(chunks[forward.chunk].forward + chunks[backward.chunk].backward)
            }
            Instruction::Reduce { chunk, .. } => chunks[*chunk].reduce,
            Instruction::Step { chunk, .. } => chunks[*chunk].step,
            Instruction::Gather { chunk, .. } => chunks[*chunk].gather,
            Instruction::Fill(fill) if !self.units.is_empty() && self.units.contains_key(&(rank, *fill)) => {
                self.units[&(rank, *fill)]
            }
            Instruction::Fill(fill) => {
                let kind = Filler::ALL.iter().position(|f| *f == fill.filler).expect("ALL names every kind");
                chunks[fill.chunk].fill[kind]
            }
            Instruction::Send { .. } | Instruction::Receive { .. } => 0.0,
        }
    }

    /// Whether every time can be one, and every rank and chunk of the program has its times.
    ///
    /// # Errors
    /// [`SimError::Value`], [`SimError::Missing`].
    pub fn check(&self, program: &Program) -> Result<(), SimError> {
        for rank in 0..program.ranks() {
            let have = self.chunks.get(rank).map_or(0, Vec::len);
            if have < program.chunks(rank) {
                return Err(SimError::Missing { rank, chunk: have, have });
            }
        }
        for (rank, chunks) in self.chunks.iter().enumerate() {
            for (chunk, t) in chunks.iter().enumerate() {
                let passes = [t.forward, t.backward, t.backward_input, t.backward_weight];
                let rest = [t.reduce, t.step, t.gather].into_iter().chain(t.fill);
                for value in passes.into_iter().chain(rest) {
                    time(|| format!("a time of rank {rank}, chunk {chunk},"), value)?;
                }
            }
        }
        for ((rank, ..), value) in &self.together {
            time(|| format!("the time of an overlapped pair on rank {rank}"), *value)?;
        }
        for ((rank, fill), value) in &self.units {
            time(|| format!("the time of {} on rank {rank}", Instruction::Fill(*fill)), *value)?;
        }
        time(|| "the size of a message".into(), self.messages.bytes)?;
        for link in self.messages.links.values().chain([&self.messages.link]) {
            time(|| "the latency of a link".into(), link.latency)?;
            if link.bandwidth.is_nan() || link.bandwidth <= 0.0 {
                let what = "the bandwidth of a link (which may not be 0)".into();
                return Err(SimError::Value { what, value: link.bandwidth });
            }
        }
        if !(0.0..=1.0).contains(&self.jitter.share) {
            let what = "the jitter (a share of at most 1)".into();
            return Err(SimError::Value { what, value: self.jitter.share });
        }
        Ok(())
    }
}
