//! Units written into the lists of a program.

use super::bubbles::Bubbles;
use super::{Unit, When};
use bessemer_schedule::{Fill, Instruction, Program};

/// The program with the units of the update.
pub(super) struct Base {
    pub(super) program: Program,
    /// Where each instruction of the given program stands now, by rank.
    pub(super) moved: Vec<Vec<usize>>,
}

pub(super) fn instruction(unit: &Unit, rank: usize) -> Option<Instruction> {
    let place = unit.places.iter().find(|p| p.rank == rank)?;
    Some(Instruction::Fill(Fill { filler: unit.filler, chunk: place.chunk, unit: unit.number }))
}

/// Puts the units of the update before the rank's first step of the optimizer, or at the end where there is none: a step may
/// need the units of all chunks.
pub(super) fn with_updates(program: &Program, units: &[Unit]) -> Base {
    let mut base = Base { program: program.clone(), moved: Vec::with_capacity(program.ranks()) };
    for (rank, list) in program.lists.iter().enumerate() {
        let of_update = |u: &&Unit| u.when == When::Update;
        let fills = units.iter().filter(of_update).filter_map(|u| instruction(u, rank));
        let first = list.iter().position(|i| matches!(i, Instruction::Step { .. })).unwrap_or(list.len());
        let mut new = list.clone();
        new.splice(first..first, fills);
        let behind = new.len() - list.len();
        base.moved.push((0..list.len()).map(|at| if at < first { at } else { at + behind }).collect());
        base.program.lists[rank] = new;
    }
    base
}

/// One program a step, with what was put into its bubbles.
pub(super) fn programs(base: &Program, units: &[Unit], bubbles: &Bubbles) -> Vec<Program> {
    let write = |rows: &Vec<Vec<super::bubbles::Row>>| {
        let lists = (0..base.ranks()).map(|rank| {
            let mut list = Vec::new();
            let mut done = 0;
            for (gap, row) in bubbles.gaps[rank].iter().zip(&rows[rank]) {
                list.extend_from_slice(&base.lists[rank][done..gap.at]);
                list.extend(row.slots.iter().filter_map(|slot| instruction(&units[slot.unit], rank)));
                done = gap.at;
            }
            list.extend_from_slice(&base.lists[rank][done..]);
            list
        });
        Program { lists: lists.collect(), ..base.clone() }
    };
    bubbles.steps.iter().map(write).collect()
}
