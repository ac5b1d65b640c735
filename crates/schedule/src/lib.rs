//! Pipeline schedules as programs.
//!
//! A schedule decides which micro-batch passes which part of the model when. Here it is a [`Program`]: one list of
//! [`Instruction`]s per pipeline rank, made by a generator, checked by a verifier, and then read by everybody: the
//! trainer executes it, the simulator times it, pictures draw it. A new schedule is one file that returns a list.
//!
//! Words. A *stage* is a contiguous part of the model, numbered from its beginning; the program has S of them. A *rank* is a
//! position on the pipeline axis, of which there are P. A *chunk* is one of the stages that a rank holds, numbered on
//! that rank. A *route* says which (rank, chunk) each stage of a micro-batch is passed on: most schedules have one
//! route, bidirectional ones (Chimera, DualPipe) two, and then every stage is held by two ranks.
//!
//! This crate is pure: no tensor, file, clock, thread or random source.
#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

mod communicate;
mod error;
mod kind;
mod orders;
mod program;
mod text;
mod timing;
mod verify;

pub use communicate::communicate;
pub use error::ScheduleError;
pub use kind::{Costs, Join, Kind, MOST_PASSES, Shape, generate};
pub use program::{Fill, Filler, Flow, Instruction, Pass, Place, Program};
pub use text::parse;
pub use verify::{Limits, OutOfOrder, Report, verify};
