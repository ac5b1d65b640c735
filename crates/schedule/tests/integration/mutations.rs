//! Programs broken on purpose: the verifier finds what is broken, and agrees with a plain judge about what only may be.

use std::collections::HashSet;

use bessemer_schedule::{
    Flow, Instruction, Kind, Limits, Pass, Place, Program, ScheduleError, Shape, generate, verify,
};
use proptest::prelude::*;

/// Small programs of every kind.
fn programs() -> impl Strategy<Value = Program> {
    (prop::sample::select(Kind::ALL.to_vec()), 0_usize..3).prop_map(|(kind, size)| {
        let (p, m) = match kind {
            Kind::Chimera => [(2, 2), (4, 4), (4, 8)][size],
            Kind::DualPipe => [(2, 4), (4, 8), (4, 10)][size],
            _ => [(2, 4), (3, 6), (4, 8)][size],
        };
        let mut shape = Shape::new(p, m);
        shape.update_every = (kind == Kind::PipeDream).then_some(size % 2 + 1);
        generate(kind, &shape).unwrap_or_else(|error| panic!("{kind}: {error}"))
    })
}

fn found(program: &Program) -> Option<ScheduleError> {
    verify(program, &Limits::default()).err()
}

/// An event of the execution: a letter, and three numbers.
type Event = (char, usize, usize, usize);

/// The plain judge: executes the program in turns, one instruction of each rank at a time, and remembers everything.
struct Judge<'a> {
    program: &'a Program,
    events: HashSet<Event>,
}

impl Judge<'_> {
    fn sound(program: &Program) -> bool {
        let mut judge = Judge { program, events: HashSet::new() };
        let mut next = vec![0; program.ranks()];
        loop {
            let mut moved = false;
            for (rank, next) in next.iter_mut().enumerate() {
                let Some(instruction) = program.lists[rank].get(*next) else { continue };
                let Some(goes) = judge.step(rank, instruction) else { return false };
                *next += usize::from(goes);
                moved |= goes;
            }
            if !moved {
                break;
            }
        }
        let ended = next.iter().zip(&program.lists).all(|(next, list)| *next == list.len());
        ended && judge.everything_happened()
    }

    fn has(&self, event: Event) -> bool {
        self.events.contains(&event)
    }

    /// Notes an event; nothing if it happened before.
    fn once(&mut self, event: Event) -> Option<()> {
        self.events.insert(event).then_some(())
    }

    fn when(condition: bool) -> Option<()> {
        condition.then_some(())
    }

    fn stage(&self, rank: usize, micro: usize, chunk: usize) -> Option<usize> {
        let place = Place { rank, chunk };
        let stage = self.program.stage_at(place)?;
        Self::when(micro < self.program.micro_batches() && self.program.place(micro, stage) == place)?;
        Some(stage)
    }

    /// Whether the rank goes on, or nothing if the instruction is wrong here.
    fn step(&mut self, rank: usize, instruction: &Instruction) -> Option<bool> {
        match *instruction {
            Instruction::Forward(pass) => self.forward(rank, pass)?,
            Instruction::Backward(pass) => {
                self.input(rank, pass)?;
                self.weight(rank, pass)?;
            }
            Instruction::BackwardInput(pass) => self.input(rank, pass)?,
            Instruction::BackwardWeight(pass) => self.weight(rank, pass)?,
            Instruction::Together { forward, backward } => {
                Self::when(forward.micro != backward.micro)?;
                self.forward(rank, forward)?;
                self.input(rank, backward)?;
                self.weight(rank, backward)?;
            }
            Instruction::Send { flow, micro, chunk, to } => {
                let stage = self.stage(rank, micro, chunk)?;
                let forward = flow == Flow::Activation;
                let target = if forward { stage + 1 } else { stage.checked_sub(1)? };
                Self::when(target < self.program.stages && self.program.place(micro, target) == to)?;
                Self::when(to.rank != rank && self.has((if forward { 'F' } else { 'I' }, micro, stage, 0)))?;
                self.once((if forward { 'a' } else { 'g' }, micro, target, 0))?;
            }
            Instruction::Receive { flow, micro, chunk, from } => {
                let stage = self.stage(rank, micro, chunk)?;
                let forward = flow == Flow::Activation;
                let source = if forward { stage.checked_sub(1)? } else { stage + 1 };
                Self::when(source < self.program.stages && self.program.place(micro, source) == from)?;
                Self::when(from.rank != rank)?;
                if !self.has((if forward { 'a' } else { 'g' }, micro, stage, 0)) {
                    return Some(false);
                }
                self.once((if forward { 'A' } else { 'G' }, micro, stage, 0))?;
            }
            Instruction::Reduce { chunk, update } => {
                let stage = self.program.stage_at(Place { rank, chunk })?;
                self.events.insert(('r', rank, chunk, update));
                let there = |place: &Place| self.has(('r', place.rank, place.chunk, update));
                if !self.program.holders(stage).iter().all(there) {
                    return Some(false);
                }
                self.once(('R', rank, chunk, update))?;
            }
            Instruction::Step { chunk, update } => {
                Self::when(update == 0 || self.has(('S', rank, chunk, update - 1)))?;
                Self::when(self.has(('R', rank, chunk, update)))?;
                self.once(('S', rank, chunk, update))?;
            }
            Instruction::Gather { chunk, update } => {
                Self::when(update == 0 || self.has(('T', rank, chunk, update - 1)))?;
                Self::when(self.has(('S', rank, chunk, update)))?;
                self.once(('T', rank, chunk, update))?;
            }
            Instruction::Fill(_) => {}
        }
        Some(true)
    }

    fn forward(&mut self, rank: usize, pass: Pass) -> Option<()> {
        let stage = self.stage(rank, pass.micro, pass.chunk)?;
        if stage > 0 {
            let near = self.program.place(pass.micro, stage - 1).rank == rank;
            Self::when(self.has(if near {
                ('F', pass.micro, stage - 1, 0)
            } else {
                ('A', pass.micro, stage, 0)
            }))?;
        }
        Self::when(pass.version == 0 || self.has(('T', rank, pass.chunk, pass.version - 1)))?;
        self.events.insert(('v', pass.micro, stage, pass.version));
        self.once(('F', pass.micro, stage, 0))
    }

    fn input(&mut self, rank: usize, pass: Pass) -> Option<()> {
        let stage = self.stage(rank, pass.micro, pass.chunk)?;
        if stage + 1 < self.program.stages {
            let near = self.program.place(pass.micro, stage + 1).rank == rank;
            Self::when(self.has(if near {
                ('I', pass.micro, stage + 1, 0)
            } else {
                ('G', pass.micro, stage, 0)
            }))?;
        }
        Self::when(self.has(('v', pass.micro, stage, pass.version)))?;
        self.once(('I', pass.micro, stage, 0))
    }

    fn weight(&mut self, rank: usize, pass: Pass) -> Option<()> {
        let stage = self.stage(rank, pass.micro, pass.chunk)?;
        Self::when(
            self.has(('I', pass.micro, stage, 0)) && self.has(('v', pass.micro, stage, pass.version)),
        )?;
        Self::when(!self.has(('r', rank, pass.chunk, self.program.update_of[pass.micro])))?;
        self.once(('W', pass.micro, stage, 0))
    }

    fn everything_happened(&self) -> bool {
        let program = self.program;
        let passes = (0..program.micro_batches()).all(|micro| {
            (0..program.stages).all(|stage| {
                let away =
                    stage > 0 && program.place(micro, stage - 1).rank != program.place(micro, stage).rank;
                let back = away && !self.has(('g', micro, stage - 1, 0));
                self.has(('W', micro, stage, 0)) && !back && (!away || self.has(('a', micro, stage, 0)))
            })
        });
        let updates = (0..program.ranks()).all(|rank| {
            (0..program.chunks(rank))
                .all(|chunk| (0..program.updates).all(|u| self.has(('T', rank, chunk, u))))
        });
        passes && updates
    }
}

/// A rank with something in its list, and a position there.
fn position(program: &Program, rank: usize, at: &prop::sample::Index) -> (usize, usize) {
    let rank = rank % program.ranks();
    (rank, at.index(program.lists[rank].len()))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 600, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_lost_instruction_is_found(mut program in programs(), rank in 0_usize..8, at in any::<prop::sample::Index>()) {
        prop_assert!(Judge::sound(&program));
        let (rank, at) = position(&program, rank, &at);
        let lost = program.lists[rank].remove(at);
        prop_assert!(found(&program).is_some(), "{lost}");
    }

    #[test]
    fn a_doubled_instruction_is_found(
        mut program in programs(), rank in 0_usize..8, at in any::<prop::sample::Index>(), to in any::<prop::sample::Index>(),
    ) {
        let (rank, at) = position(&program, rank, &at);
        let twice = program.lists[rank][at];
        let to = to.index(program.lists[rank].len() + 1);
        program.lists[rank].insert(to, twice);
        prop_assert!(found(&program).is_some(), "{twice}");
    }

    #[test]
    fn a_wrong_version_is_found(mut program in programs(), rank in 0_usize..8, at in any::<prop::sample::Index>(), up in any::<bool>()) {
        let (rank, at) = position(&program, rank, &at);
        let change = |version: usize| if up { version + 1 } else { version.saturating_sub(1) };
        let before = program.lists[rank][at];
        match &mut program.lists[rank][at] {
            Instruction::Forward(pass) | Instruction::Backward(pass) | Instruction::BackwardInput(pass)
            | Instruction::BackwardWeight(pass) | Instruction::Together { backward: pass, .. } => {
                pass.version = change(pass.version);
            }
            _ => {}
        }
        let changed = program.lists[rank][at] != before;
        prop_assert_eq!(found(&program).is_some(), changed, "{}", before);
    }

    #[test]
    fn a_message_to_a_wrong_place_is_found(mut program in programs(), rank in 0_usize..8, at in any::<prop::sample::Index>(), by in 1_usize..4) {
        let (rank, at) = position(&program, rank, &at);
        let ranks = program.ranks();
        if let Instruction::Send { to: place, .. } | Instruction::Receive { from: place, .. } = &mut program.lists[rank][at] {
            let right = *place;
            if by == 3 { place.chunk += 1 } else { place.rank = (place.rank + by) % ranks }
            let changed = *place != right;
            prop_assert_eq!(found(&program).is_some(), changed);
        }
    }

    /// Two instructions that change places may leave a sound program: the judge says whether they do.
    #[test]
    fn swaps_are_judged_alike(
        mut program in programs(), rank in 0_usize..8, a in any::<prop::sample::Index>(), near in prop::option::of(1_usize..4),
        b in any::<prop::sample::Index>(),
    ) {
        let (rank, a) = position(&program, rank, &a);
        let b = near.map_or_else(|| position(&program, rank, &b).1, |near| (a + near).min(program.lists[rank].len() - 1));
        program.lists[rank].swap(a, b);
        let error = found(&program);
        prop_assert_eq!(error.is_none(), Judge::sound(&program), "swapped {} and {} of rank {}: {:?}", a, b, rank, error);
    }

    /// Likewise for an instruction that moves.
    #[test]
    fn moves_are_judged_alike(mut program in programs(), rank in 0_usize..8, a in any::<prop::sample::Index>(), by in -6_isize..7) {
        let (rank, a) = position(&program, rank, &a);
        let moved = program.lists[rank].remove(a);
        let to = a.saturating_add_signed(by).min(program.lists[rank].len());
        program.lists[rank].insert(to, moved);
        let error = found(&program);
        prop_assert_eq!(error.is_none(), Judge::sound(&program), "{} of rank {} from {} to {}: {:?}", moved, rank, a, to, error);
    }
}

#[test]
fn limits_are_kept() {
    let program = generate(Kind::OneFOneB, &Shape::new(4, 8)).unwrap();
    verify(&program, &Limits { live: Some(4.0), ..Limits::default() }).unwrap();
    let tight = verify(&program, &Limits { live: Some(3.5), ..Limits::default() });
    assert!(matches!(tight, Err(ScheduleError::Memory { rank: 0, peak: 4.0, .. })), "{tight:?}");
    let stashing = generate(Kind::PipeDream, &Shape::new(4, 8)).unwrap();
    let report = verify(&stashing, &Limits { versions: Some(4), ..Limits::default() }).unwrap();
    assert_eq!(report.weight_versions, [4, 3, 2, 1]);
    let tight = verify(&stashing, &Limits { versions: Some(3), ..Limits::default() });
    assert!(matches!(tight, Err(ScheduleError::Instruction { rank: 0, .. })), "{tight:?}");
    let two = generate(Kind::PipeDream2Bw, &Shape::new(4, 16)).unwrap();
    let report = verify(&two, &Limits { versions: Some(2), ..Limits::default() }).unwrap();
    assert_eq!(report.weight_versions, [2; 4]);
}
