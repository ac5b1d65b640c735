//! Check of the evaluated batches of a program.

use crate::error::ParallelError;
use bessemer_schedule::{Fill, Filler, Instruction, Place, Program};
use bessemer_sim::{Costs, PassTimes, simulate};
use std::collections::HashMap;

/// Whether every batch that is evaluated passes each stage once, before the only update, in an order without
/// deadlock.
pub(crate) fn check(program: &Program) -> Result<(), ParallelError> {
    let wrong = |what: String| Err(ParallelError::Layout(format!("schedule {:?}: {what}", program.name)));
    let mut passed: HashMap<usize, Vec<Place>> = HashMap::new();
    for (rank, list) in program.lists.iter().enumerate() {
        let mut updated = false;
        for instruction in list {
            updated |= matches!(instruction, Instruction::Step { .. });
            if let Instruction::Fill(Fill { filler: Filler::Evaluate, chunk, unit }) = *instruction {
                if updated || program.updates > 1 {
                    return wrong(format!(
                        "pipeline rank {rank} evaluates batch {unit} after an update, which others have not had: wanted \
                         evaluations before the step's only update"
                    ));
                }
                passed.entry(unit).or_default().push(Place { rank, chunk });
            }
        }
    }
    for (unit, places) in &mut passed {
        let mut route = program.routes[0].clone();
        places.sort_unstable();
        route.sort_unstable();
        if *places != route {
            return wrong(format!("evaluated batch {unit} does not pass each stage of the first route once"));
        }
    }
    if passed.is_empty() {
        return Ok(());
    }
    let costs = Costs::per_rank(program, &PassTimes::new(1.0, 1.0, 1.0));
    simulate(program, &costs).map(drop).or_else(|e| wrong(e.to_string()))
}
