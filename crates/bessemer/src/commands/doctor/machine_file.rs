//! `bessemer doctor --machine FILE`: this machine as a machine of the planner, in a file.

use crate::console::Console;
use crate::failure::Failure;
use crate::machine;
use bessemer_measure::{Effort, measure_machine};
use bessemer_plan::Machine;
use bessemer_units::MatmulPrecision;
use std::path::Path;

/// Measures this machine as `ranks` devices and writes it.
pub(super) fn write(
    file: &Path,
    ranks: usize,
    matmul: MatmulPrecision,
    console: &mut Console,
) -> Result<Machine, Failure> {
    let each = (machine::threads(0) / ranks).max(1);
    let machine = measure_machine(ranks, each, matmul, &Effort::thorough(), &mut |what| console.say(what))?;
    let text = machine.to_toml().map_err(Failure::new)?;
    bessemer_durable::write(file, text.as_bytes())
        .map_err(|cause| Failure::new(format!("--machine {}: {cause}", file.display())))?;
    Ok(machine)
}
