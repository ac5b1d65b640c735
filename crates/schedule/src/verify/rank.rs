//! Checks that need the list of one rank only.

use super::Limits;
use crate::communicate::Map;
use crate::{Flow, Instruction, Pass, Place, Program, ScheduleError};

/// Memory of a rank.
pub(super) struct Taken {
    pub(super) live: f64,
    pub(super) versions: usize,
}

// What has happened to a micro-batch in a chunk.
const FORWARD: u8 = 1;
const INPUT: u8 = 2;
const WEIGHT: u8 = 4;
const GOT_ACTIVATION: u8 = 8;
const GOT_GRADIENT: u8 = 16;
const SENT_ACTIVATION: u8 = 32;
const SENT_GRADIENT: u8 = 64;

/// A chunk's weights.
#[derive(Clone)]
struct Weights {
    /// Gradient parts still to come in the list, by update.
    left: Vec<usize>,
    /// Position of the last pass that reads each version.
    last_read: Vec<Option<usize>>,
    reduced: Vec<bool>,
    steps: usize,
    gathers: usize,
    /// Versions before the latest that are still to be read.
    old: usize,
}

struct Walk<'a> {
    program: &'a Program,
    map: &'a Map,
    rank: usize,
    /// By micro-batch and chunk.
    state: Vec<u8>,
    /// Version of the forward, by micro-batch and chunk.
    version: Vec<usize>,
    weights: Vec<Weights>,
    live: Live<'a>,
    versions: usize,
}

/// Checks a rank's list.
pub(super) fn check(
    program: &Program,
    map: &Map,
    rank: usize,
    limits: &Limits,
) -> Result<Taken, ScheduleError> {
    let list = &program.lists[rank];
    let mut walk = Walk::new(program, map, rank, limits)?;
    let mut peak = 0.0_f64;
    for (position, instruction) in list.iter().enumerate() {
        let wrong = |what| instruction.error(rank, position, what);
        peak = peak.max(walk.instruction(position, instruction).map_err(wrong)?);
        if let Some(limit) = limits.live
            && peak > limit + 1e-9
        {
            return Err(ScheduleError::Memory { rank, position, peak, limit });
        }
        if let Some(most) = limits.versions
            && walk.versions > most
        {
            return Err(wrong(format!(
                "{} versions of the weights are kept, the limit is {most}",
                walk.versions
            )));
        }
    }
    walk.complete()?;
    Ok(Taken { live: peak, versions: walk.versions })
}

impl<'a> Walk<'a> {
    fn new(program: &'a Program, map: &'a Map, rank: usize, limits: &Limits) -> Result<Self, ScheduleError> {
        let chunks = map.chunks(rank);
        let updates = program.updates;
        let weights = Weights {
            left: vec![0; updates],
            last_read: vec![None; updates + 1],
            reduced: vec![false; updates],
            steps: 0,
            gathers: 0,
            old: 0,
        };
        let mut weights = vec![weights; chunks];
        for (position, instruction) in program.lists[rank].iter().enumerate() {
            for pass in instruction.passes() {
                map.stage_of_pass(program, rank, pass)
                    .map_err(|what| instruction.error(rank, position, what))?;
                // A version that no update makes is refused where it is read.
                if let Some(last) = weights[pass.chunk].last_read.get_mut(pass.version) {
                    *last = Some(position);
                }
            }
            if let Some(pass) = instruction.gradient_part() {
                weights[pass.chunk].left[program.update_of[pass.micro]] += 1;
            }
        }
        let passes = chunks * program.micro_batches();
        Ok(Self {
            program,
            map,
            rank,
            state: vec![0; passes],
            version: vec![0; passes],
            weights,
            live: Live::new(map, rank, limits.weight_share),
            versions: 1,
        })
    }

    /// Live activations while the instruction runs.
    fn instruction(&mut self, position: usize, instruction: &Instruction) -> Result<f64, String> {
        match *instruction {
            Instruction::Forward(pass) => self.forward(pass)?,
            Instruction::Backward(pass) => {
                self.input(pass)?;
                self.weight(pass)?;
            }
            Instruction::BackwardInput(pass) => self.input(pass)?,
            Instruction::BackwardWeight(pass) => self.weight(pass)?,
            Instruction::Together { forward, backward } => {
                if forward.micro == backward.micro {
                    return Err("a micro-batch cannot go forward and backward at once".to_owned());
                }
                self.forward(forward)?;
                self.input(backward)?;
                self.weight(backward)?;
            }
            Instruction::Send { flow, micro, chunk, to } => self.send(flow, micro, chunk, to)?,
            Instruction::Receive { flow, micro, chunk, from } => self.receive(flow, micro, chunk, from)?,
            Instruction::Reduce { chunk, update } => self.reduce(chunk, update)?,
            Instruction::Step { chunk, update } => self.step(position, chunk, update)?,
            Instruction::Gather { chunk, update } => self.gather(chunk, update)?,
            Instruction::Fill(fill) => {
                if fill.chunk >= self.weights.len() {
                    return Err(format!("the number of chunks on the rank is {}", self.weights.len()));
                }
            }
        }
        // What a pass frees is free when it ends.
        let now = self.live.pass(self.program, instruction);
        for pass in instruction.passes() {
            let weights = &mut self.weights[pass.chunk];
            if pass.version < weights.steps && weights.last_read[pass.version] == Some(position) {
                weights.old -= 1;
            }
        }
        Ok(now)
    }

    fn at(&self, micro: usize, chunk: usize) -> usize {
        micro * self.weights.len() + chunk
    }

    fn has(&self, micro: usize, chunk: usize, what: u8) -> bool {
        self.state[self.at(micro, chunk)] & what != 0
    }

    /// Notes that something happened, the first time.
    fn mark(&mut self, micro: usize, chunk: usize, what: u8, twice: &str) -> Result<(), String> {
        let at = self.at(micro, chunk);
        if self.state[at] & what != 0 {
            return Err(format!("{twice} for the second time"));
        }
        self.state[at] |= what;
        Ok(())
    }

    fn stage(&self, pass: Pass) -> Result<usize, String> {
        self.map.stage_of_pass(self.program, self.rank, pass)
    }

    /// The place of the stage before or after, if there is one.
    fn beside(&self, micro: usize, stage: usize, earlier: bool) -> Option<Place> {
        let other = if earlier { stage.checked_sub(1)? } else { stage + 1 };
        self.program.routes[self.program.route_of[micro]].get(other).copied()
    }

    fn forward(&mut self, pass: Pass) -> Result<(), String> {
        let Pass { micro, chunk, version } = pass;
        let stage = self.stage(pass)?;
        if let Some(before) = self.beside(micro, stage, true) {
            if before.rank == self.rank && !self.has(micro, before.chunk, FORWARD) {
                return Err(format!(
                    "its input is made by chunk {} of this rank, later in the list",
                    before.chunk
                ));
            }
            if before.rank != self.rank && !self.has(micro, chunk, GOT_ACTIVATION) {
                return Err(format!("its input from rank {} has not been received", before.rank));
            }
        }
        self.mark(micro, chunk, FORWARD, "the micro-batch goes forward through this chunk")?;
        let there = self.weights[chunk].gathers;
        if version > there {
            return Err(format!(
                "version {version} of the weights does not exist; updates of this chunk so far: {there}"
            ));
        }
        let at = self.at(micro, chunk);
        self.version[at] = version;
        Ok(())
    }

    fn input(&mut self, pass: Pass) -> Result<(), String> {
        let Pass { micro, chunk, .. } = pass;
        let stage = self.stage(pass)?;
        if !self.has(micro, chunk, FORWARD) {
            return Err("the micro-batch has not gone forward through this chunk".to_owned());
        }
        if let Some(after) = self.beside(micro, stage, false) {
            if after.rank == self.rank && !self.has(micro, after.chunk, INPUT) {
                return Err(format!(
                    "its gradient is made by chunk {} of this rank, later in the list",
                    after.chunk
                ));
            }
            if after.rank != self.rank && !self.has(micro, chunk, GOT_GRADIENT) {
                return Err(format!("its gradient from rank {} has not been received", after.rank));
            }
        }
        self.same_version(pass)?;
        self.mark(micro, chunk, INPUT, "the micro-batch goes backward through this chunk")
    }

    fn weight(&mut self, pass: Pass) -> Result<(), String> {
        let Pass { micro, chunk, .. } = pass;
        self.stage(pass)?;
        if !self.has(micro, chunk, INPUT) {
            return Err("the weight part comes before the input part".to_owned());
        }
        self.same_version(pass)?;
        self.mark(micro, chunk, WEIGHT, "the micro-batch's gradients of the weights are made")?;
        let update = self.program.update_of[micro];
        let weights = &mut self.weights[chunk];
        weights.left[update] -= 1;
        Ok(())
    }

    fn same_version(&self, pass: Pass) -> Result<(), String> {
        let forward = self.version[self.at(pass.micro, pass.chunk)];
        if pass.version != forward {
            return Err(format!(
                "it reads version {} of the weights, its forward read {forward}",
                pass.version
            ));
        }
        Ok(())
    }

    fn send(&mut self, flow: Flow, micro: usize, chunk: usize, to: Place) -> Result<(), String> {
        let stage = self.stage(Pass { micro, chunk, version: 0 })?;
        let forward = flow == Flow::Activation;
        let beside = self.beside(micro, stage, !forward);
        self.other(beside, to)?;
        if !self.has(micro, chunk, if forward { FORWARD } else { INPUT }) {
            return Err("it is sent before it is made".to_owned());
        }
        self.mark(micro, chunk, if forward { SENT_ACTIVATION } else { SENT_GRADIENT }, "it is sent")
    }

    fn receive(&mut self, flow: Flow, micro: usize, chunk: usize, from: Place) -> Result<(), String> {
        let stage = self.stage(Pass { micro, chunk, version: 0 })?;
        let forward = flow == Flow::Activation;
        let beside = self.beside(micro, stage, forward);
        self.other(beside, from)?;
        self.mark(micro, chunk, if forward { GOT_ACTIVATION } else { GOT_GRADIENT }, "it is received")?;
        if self.has(micro, chunk, if forward { FORWARD } else { INPUT }) {
            return Err("it is received after the pass that needs it".to_owned());
        }
        Ok(())
    }

    /// Whether a message's other end is where the route goes.
    fn other(&self, beside: Option<Place>, named: Place) -> Result<(), String> {
        match beside {
            None => Err("the route has no stage there".to_owned()),
            Some(place) if place.rank == self.rank => {
                Err(format!("the stage there is chunk {} of this rank, which needs no message", place.chunk))
            }
            Some(place) if place != named => {
                Err(format!("the stage there is on rank {}, chunk {}", place.rank, place.chunk))
            }
            Some(_) => Ok(()),
        }
    }

    fn weights(&mut self, chunk: usize, update: usize) -> Result<&mut Weights, String> {
        if update >= self.program.updates {
            return Err(format!("the number of updates in the program is {}", self.program.updates));
        }
        let held = self.weights.len();
        self.weights.get_mut(chunk).ok_or_else(|| format!("the number of chunks on the rank is {held}"))
    }

    fn reduce(&mut self, chunk: usize, update: usize) -> Result<(), String> {
        let weights = self.weights(chunk, update)?;
        if weights.left[update] > 0 {
            return Err(format!("gradient parts of this update that come later: {}", weights.left[update]));
        }
        if std::mem::replace(&mut weights.reduced[update], true) {
            return Err("the update is reduced for the second time".to_owned());
        }
        Ok(())
    }

    fn step(&mut self, position: usize, chunk: usize, update: usize) -> Result<(), String> {
        let weights = self.weights(chunk, update)?;
        if weights.steps != update {
            return Err(format!("the next step of this chunk is that of update {}", weights.steps));
        }
        if !weights.reduced[update] {
            return Err("the gradients have not been reduced".to_owned());
        }
        weights.steps += 1;
        if weights.last_read[update].is_some_and(|last| last > position) {
            weights.old += 1;
        }
        let versions = weights.old + 1;
        self.versions = self.versions.max(versions);
        Ok(())
    }

    fn gather(&mut self, chunk: usize, update: usize) -> Result<(), String> {
        let weights = self.weights(chunk, update)?;
        if weights.gathers != update || weights.steps <= update {
            return Err(format!(
                "steps of this chunk so far: {}, gathers: {}",
                weights.steps, weights.gathers
            ));
        }
        weights.gathers += 1;
        Ok(())
    }

    /// Whether everything happened that has to.
    fn complete(&self) -> Result<(), ScheduleError> {
        for micro in 0..self.program.micro_batches() {
            for chunk in 0..self.weights.len() {
                let place = Place { rank: self.rank, chunk };
                let Ok(stage) = self.stage(Pass { micro, chunk, version: 0 }) else { continue };
                let elsewhere = |place: Option<Place>| place.is_some_and(|place| place.rank != self.rank);
                let needs = [
                    (true, FORWARD, "forward"),
                    (true, INPUT, "backward"),
                    (true, WEIGHT, "weight part of its backward"),
                    (elsewhere(self.beside(micro, stage, false)), SENT_ACTIVATION, "send of its activation"),
                    (elsewhere(self.beside(micro, stage, true)), SENT_GRADIENT, "send of its gradient"),
                ];
                for (needed, what, pass) in needs {
                    if needed && !self.has(micro, chunk, what) {
                        return Err(ScheduleError::Missing { micro, pass, stage, place });
                    }
                }
            }
        }
        for (chunk, weights) in self.weights.iter().enumerate() {
            let updates = self.program.updates;
            if weights.gathers < updates {
                let what = format!(
                    "rank {}, chunk {chunk} has {} step(s) and {} gather(s) for {updates} update(s)",
                    self.rank, weights.steps, weights.gathers
                );
                return Err(ScheduleError::Malformed { what });
            }
        }
        Ok(())
    }
}

/// Counts a rank's live activations. Micro-batches that visit as many chunks of the rank are counted together, in whole
/// numbers, so that nothing is lost by adding fractions.
struct Live<'a> {
    map: &'a Map,
    rank: usize,
    /// By number of visits: passes whose activations are all there, and passes that wait for their weight part.
    classes: Vec<(usize, i64, i64)>,
    weight_share: f64,
}

impl<'a> Live<'a> {
    fn new(map: &'a Map, rank: usize, weight_share: f64) -> Self {
        let mut classes: Vec<_> = map.visits(rank).iter().map(|&(_, visits)| (visits, 0, 0)).collect();
        classes.sort_unstable();
        classes.dedup();
        Self { map, rank, classes, weight_share }
    }

    /// Live activations while an instruction runs; afterwards what it frees is free.
    fn pass(&mut self, program: &Program, instruction: &Instruction) -> f64 {
        if let Instruction::Forward(pass) | Instruction::Together { forward: pass, .. } = *instruction {
            self.add(program, pass, 1, 0);
        }
        let now = self.count();
        match *instruction {
            Instruction::Backward(pass) | Instruction::Together { backward: pass, .. } => {
                self.add(program, pass, -1, 0);
            }
            Instruction::BackwardInput(pass) => self.add(program, pass, -1, 1),
            Instruction::BackwardWeight(pass) => self.add(program, pass, 0, -1),
            _ => {}
        }
        now
    }

    fn add(&mut self, program: &Program, pass: Pass, full: i64, pending: i64) {
        let route = program.route_of[pass.micro];
        let visits = self.map.visits(self.rank);
        let Ok(at) = visits.binary_search_by_key(&route, |visit| visit.0) else { return };
        let visits = visits[at].1;
        if let Some(class) = self.classes.iter_mut().find(|class| class.0 == visits) {
            class.1 += full;
            class.2 += pending;
        }
    }

    fn count(&self) -> f64 {
        let of = |&(visits, full, pending): &(usize, i64, i64)| {
            (full as f64 + pending as f64 * self.weight_share) / visits as f64
        };
        self.classes.iter().map(of).sum()
    }
}
