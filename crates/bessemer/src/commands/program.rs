//! `bessemer program`: what one rank of a recipe runs, and how long a step of all takes.

mod simulate;

use crate::cli::program::{PassChoice, UnitChoice};
use crate::cli::{ProgramCommand, ProgramShowArgs};
use crate::console::print;
use crate::failure::Failure;
use crate::recipes::load_recipe_for;
use bessemer_collectives::NullCommunicator;
use bessemer_filling::FillPlan;
use bessemer_parallel::{FillSupplier, Job, Worker};
use bessemer_program::{Node, Rank, print as text_of, print_step};
use bessemer_recipe::RecipeUse;
use bessemer_runtime::{Purpose, Rewrite, Shape, Unit};
use bessemer_tensor::null::NullBackend;
use serde_json::json;

pub(crate) fn run(command: &ProgramCommand, as_json: bool) -> Result<(), Failure> {
    match command {
        ProgramCommand::Show(args) => show(args, as_json),
        ProgramCommand::Simulate(args) => simulate::run(args, as_json),
    }
}

fn show(args: &ProgramShowArgs, as_json: bool) -> Result<(), Failure> {
    let recipe = load_recipe_for(&args.recipe.recipe, &args.recipe.overrides(), RecipeUse::Layout)?.value;
    if args.ranks == 0 {
        return Err(Failure::usage("--ranks 0: wanted at least one rank"));
    }
    if args.rank >= args.ranks {
        return Err(Failure::usage(format!("--rank {}: wanted one below --ranks {}", args.rank, args.ranks)));
    }
    let vocabulary = recipe.tokenizer.vocab_size as usize;
    let model = recipe.model.resolve(Some(vocabulary)).map_err(Failure::usage)?;
    let plan = bessemer_train::layout(&recipe, args.ranks as usize, &model).map_err(Failure::usage)?;
    let tokens = recipe.train.batch_tokens.max(recipe.train.seq_len);
    let batch = recipe.batch(plan.data_ranks() as u64, Some(tokens)).map_err(Failure::usage)?;
    let program = plan.program(batch.accumulation as usize, 1, None).map_err(Failure::usage)?;
    let sequences = batch.micro_batch as usize;
    let job = Job {
        model: &model,
        shape: Shape { sequences, seq: batch.seq_len as usize, purpose: Purpose::Train },
        activations: bessemer_train::activations(&recipe.train),
        types: recipe.train.types(),
        optim: &recipe.optim,
        losses: &bessemer_train::losses(&recipe),
        plan: &plan,
        program: &program,
    };
    let world = NullCommunicator::new("world", args.rank as usize, args.ranks as usize);
    let fill = FillPlan::new(&job, &recipe.parallel.fill, 0)?;
    let fill = fill.as_ref().map(|fill| fill as &dyn FillSupplier);
    let worker = Worker::filled(&mut NullBackend::new(), &job, fill, Box::new(world))?;
    if args.unit == Some(UnitChoice::Step) {
        let (chunks, nodes) = (worker.step_chunks(), worker.step_nodes());
        let text = print_step(&chunks, nodes);
        return match as_json {
            true => print(&serde_json::to_string(&json!({ "nodes": nodes.len(), "text": text }))?),
            false => print(text.trim_end()),
        }
        .map_err(Failure::from);
    }
    let decoder = worker.decoder();
    let after = match args.after {
        Some(PassChoice::Record) => Rewrite::Record,
        Some(PassChoice::Freeze) => Rewrite::Freeze,
        Some(PassChoice::Recompute) => Rewrite::Recompute,
        Some(PassChoice::Partition) => Rewrite::Partition,
        Some(PassChoice::Fuse) => Rewrite::Fuse,
        Some(PassChoice::Split) => Rewrite::Split,
        Some(PassChoice::Overlap) => Rewrite::Overlap,
        Some(PassChoice::Compress) => Rewrite::Compress,
        Some(PassChoice::Offload) | None => Rewrite::Offload,
    };
    let ranks: Vec<Rank> = decoder.ranks().iter().copied().chain(decoder.expert_rank()).collect();
    let mut list = Vec::new();
    for (unit, program, memory) in decoder.programs_after(after)? {
        let kind = match unit {
            Unit::Embedding => UnitChoice::Embedding,
            Unit::Layer(_) if decoder.is_distinct(unit) => UnitChoice::Layer,
            Unit::Layer(_) => continue,
            Unit::Head => UnitChoice::Head,
        };
        if args.unit.is_some_and(|wanted| wanted != kind) {
            continue;
        }
        for &phase in decoder.phases().iter().filter(|p| !program.list(**p).is_empty()) {
            let mut text = text_of(&program, &memory, phase, &ranks);
            if !matches!(unit, Unit::Layer(_)) {
                text =
                    text.replacen("program ", &format!("program {} ", format!("{unit:?}").to_lowercase()), 1);
            }
            let sent = |node: &Node| match node {
                Node::Collective(c) | Node::Start(c) => {
                    let rank = ranks.iter().find(|rank| rank.axis == c.axis);
                    rank.map_or(0, |rank| c.bytes_sent(rank.degree, rank.index))
                }
                Node::Launch(_) | Node::Wait { .. } | Node::Offload(_) | Node::Reload(_) => 0,
            };
            let bytes: u64 = program.list(phase).iter().map(sent).sum();
            let nodes = program.list(phase).len();
            list.push((format!("{unit:?}"), phase.name(), text, bytes, nodes));
        }
    }
    if as_json {
        let value: Vec<_> = list
            .iter()
            .map(|(unit, phase, text, bytes, nodes)| {
                json!({ "unit": unit, "phase": phase, "nodes": nodes, "bytes_sent": bytes, "text": text })
            })
            .collect();
        print(&serde_json::to_string(&value)?)?;
        return Ok(());
    }
    let texts: Vec<&str> = list.iter().map(|l| l.2.as_str()).collect();
    print(&texts.join("\n"))?;
    Ok(())
}
