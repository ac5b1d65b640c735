//! `bessemer plan --svg`: bars of the time and the memory of the best layouts.

use crate::console::Console;
use crate::failure::Failure;
use bessemer_report::plan_bars;
use bessemer_report::plot::standalone;
use bessemer_runlog::Plan;
use std::path::Path;

/// Writes the picture.
///
/// # Errors
/// The system's, with the path.
pub(super) fn write(path: &Path, plan: &Plan, console: &mut Console) -> Result<(), Failure> {
    bessemer_durable::write(path, standalone(&plan_bars(plan).svg()).as_bytes())
        .map_err(|cause| Failure::new(format!("--svg {}: {cause}", path.display())))?;
    console.say(&format!("wrote {}", path.display()));
    Ok(())
}
