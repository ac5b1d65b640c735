//! `bessemer schedule`: pipeline schedules simulated and drawn.

mod dry_run;
mod energy;
mod fill;
pub(crate) mod measured;
pub(crate) mod picture;
mod program;
pub(crate) mod show;

use crate::cli::ScheduleCommand;
use crate::console::Console;
use crate::failure::Failure;

pub(crate) fn run(command: &ScheduleCommand, as_json: bool, console: &mut Console) -> Result<(), Failure> {
    match command {
        ScheduleCommand::Show(args) => show::run(args, as_json, console),
        ScheduleCommand::Fill(args) => fill::run(args, as_json, console),
        ScheduleCommand::Energy(args) => energy::run(args, as_json, console),
    }
}
