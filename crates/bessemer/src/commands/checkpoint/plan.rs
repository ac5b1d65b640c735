//! `bessemer checkpoint plan`: what each rank of a layout writes of a checkpoint, and needs of one, without running it.

use crate::cli::CheckpointPlanArgs;
use crate::console::print;
use crate::failure::Failure;
use crate::recipes::load_recipe;
use bessemer_train::{RankBytes, checkpoint_bytes};
use bessemer_units::Bytes;
use serde_json::json;

/// Reads one number of bytes off a rank.
type BytesOfRank = fn(&RankBytes) -> u64;

pub(crate) fn run(args: &CheckpointPlanArgs, as_json: bool) -> Result<(), Failure> {
    let recipe = load_recipe(&args.recipe.recipe, &args.recipe.overrides())?.value;
    let (ranks, vocabulary) = (args.ranks.get(), recipe.tokenizer.vocab_size as usize);
    let model = recipe.model.resolve_for(vocabulary, Some(0)).map_err(Failure::usage)?;
    let (total, of_ranks) = checkpoint_bytes(&recipe, ranks, &model)?;
    if as_json {
        let parameters = model.parameters();
        let value = json!({ "ranks": ranks, "parameters": parameters, "bytes": total, "of_ranks": of_ranks });
        return Ok(print(&value.to_string())?);
    }
    Ok(print(&text(model.parameters(), total, &of_ranks))?)
}

fn text(parameters: usize, total: u64, of_ranks: &[RankBytes]) -> String {
    let mut lines = vec![
        format!(
            "{:.2} billion parameters, {} of state on {} ranks",
            parameters as f64 / 1e9,
            Bytes(total),
            of_ranks.len()
        ),
        format!(
            "{:<10} {:>12} {:>12} {:>12} {:>10} {:>14}",
            "a rank", "least", "mean", "most", "of rank", "most / mean"
        ),
    ];
    let columns: [(&str, BytesOfRank); 2] = [("writes", |rank| rank.written), ("reads", |rank| rank.read)];
    for (name, of) in columns {
        let list: Vec<u64> = of_ranks.iter().map(of).collect();
        let (least, most) =
            (list.iter().min().copied().unwrap_or(0), list.iter().max().copied().unwrap_or(0));
        let mean = list.iter().sum::<u64>() as f64 / list.len().max(1) as f64;
        let rank = list.iter().position(|bytes| *bytes == most).unwrap_or(0);
        lines.push(format!(
            "{name:<10} {:>12} {:>12} {:>12} {rank:>10} {:>14.4}",
            Bytes(least).to_string(),
            Bytes(mean as u64).to_string(),
            Bytes(most).to_string(),
            most as f64 / mean.max(1.0)
        ));
    }
    lines.join("\n")
}
