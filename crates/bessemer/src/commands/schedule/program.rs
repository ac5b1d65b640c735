//! The program and the costs that the command line names.

use crate::cli::ProgramArgs;
use crate::failure::Failure;
use bessemer_schedule::{Kind, Limits, Program, Shape, generate, verify};
use bessemer_sim::{Costs, Jitter, Link, Messages, PassTimes};
use std::path::Path;

/// Most passes of one direction over all ranks; a longer picture is unreadable.
const MOST_PASSES: usize = 1 << 20;
/// Largest schedule file.
const MOST_BYTES: u64 = 64 << 20;

/// Makes or loads the program and checks it.
pub(crate) fn program(args: &ProgramArgs) -> Result<Program, Failure> {
    let program = match args.kind.parse::<Kind>() {
        Ok(kind) => generate(kind, &shape(kind, args)?).map_err(Failure::usage)?,
        Err(unknown) => {
            let path = Path::new(&args.kind);
            if !path.exists() {
                return Err(Failure::usage(format!("{unknown}; and there is no file {:?}", args.kind)));
            }
            from_file(path, args)?
        }
    };
    verify(&program, &Limits { weight_share: args.pending_share, ..Limits::default() })
        .map_err(|e| Failure::usage(format!("{}: {e}", args.kind)))?;
    Ok(program)
}

fn shape(kind: Kind, args: &ProgramArgs) -> Result<Shape, Failure> {
    let (Some(ranks), Some(micro_batches)) = (args.stages, args.micro_batches) else {
        let wanted = "--stages P and --micro-batches M";
        return Err(Failure::usage(format!("{kind}: wanted {wanted}, e.g. --stages 4 --micro-batches 8")));
    };
    let chunks = args.chunks.unwrap_or(kind.default_chunks());
    let passes = ranks.checked_mul(micro_batches).and_then(|n| n.checked_mul(chunks.max(1)));
    if passes.is_none_or(|n| n > MOST_PASSES) {
        return Err(Failure::usage(format!(
            "{ranks} stages x {micro_batches} micro-batches x {chunks} chunks: wanted at most {MOST_PASSES} in all; \
             a schedule repeats itself, fewer micro-batches show the same"
        )));
    }
    let [forward, backward, weight] = args.times;
    let mut shape = Shape::new(ranks, micro_batches);
    shape.chunks = args.chunks;
    shape.update_every = args.update_every;
    shape.memory_limit = args.memory_limit;
    shape.weight_share = args.pending_share;
    let message = args.latency + args.transfer;
    shape.costs = bessemer_schedule::Costs { forward, backward, weight, message };
    Ok(shape)
}

fn from_file(path: &Path, args: &ProgramArgs) -> Result<Program, Failure> {
    if args.stages.is_some() || args.micro_batches.is_some() || args.chunks.is_some() {
        return Err(Failure::usage(format!(
            "{}: a schedule file contains its own sizes; leave out --stages, --micro-batches and --chunks",
            path.display()
        )));
    }
    let named = |e: &dyn std::fmt::Display| Failure::usage(format!("{}: {e}", path.display()));
    let text = bessemer_durable::read_small_input(path, MOST_BYTES).map_err(|e| named(&e))?;
    bessemer_schedule::parse(&text).map_err(|e| named(&e))
}

/// Times of one micro-batch on one rank.
pub(crate) fn times(args: &ProgramArgs) -> PassTimes {
    let [forward, backward_input, backward_weight] = args.times;
    PassTimes { together: args.together, ..PassTimes::new(forward, backward_input, backward_weight) }
}

/// Costs that are equal on every rank, and costs of messages.
pub(crate) fn costs(program: &Program, args: &ProgramArgs) -> Costs {
    let link = Link { latency: args.latency, bandwidth: 1.0 };
    Costs {
        messages: Messages { bytes: args.transfer, link, ..Messages::default() },
        jitter: Jitter { share: args.jitter, seed: args.seed },
        ..Costs::per_rank(program, &times(args))
    }
}
