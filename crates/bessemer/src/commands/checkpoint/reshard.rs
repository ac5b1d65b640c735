//! `bessemer checkpoint reshard`: a checkpoint in the files of another layout, or in another number of files.

use super::place::Place;
use crate::cli::ReshardArgs;
use crate::commands::saved_model::warned;
use crate::console::{Console, print};
use crate::failure::Failure;
use bessemer_checkpoint::{Loaded, ReshardRequest, Store, TensorSlice};
use bessemer_recipe::parse_recipe;
use bessemer_train::{Observer, TrainState, layout_slices};
use bessemer_units::{Bytes, counted};
use serde_json::json;
use std::collections::HashMap;

/// A recipe that has everything that a recipe needs.
const ANY_RECIPE: &str = "[train]\nsteps = 1\n";

pub(crate) fn run(args: &ReshardArgs, as_json: bool, console: &mut Console) -> Result<(), Failure> {
    let from = warned(Place::open(&args.from)?.load_lazily(args.step)?, console);
    let mut request = match &args.layout {
        Some(layout) => of_layout(&from, layout, args.ranks.get())?,
        None => ReshardRequest::even(&from.specs(), args.ranks.get()),
    };
    request.max_file_bytes = args.max_file_mib.saturating_mul(1 << 20);
    let store = Store::open(&args.out);
    let progress = &mut |done, total| console.progress("resharding", done, total);
    let report = store.reshard(&from, &request, progress)?;
    let files = store.load_lazily(from.manifest().step)?.manifest().files.len();
    Ok(print(&match as_json {
        true => json!({ "path": report.path.display().to_string(), "bytes": report.bytes, "files": files })
            .to_string(),
        false => format!("{} ({}, {})", report.path.display(), Bytes(report.bytes), counted(files, "file")),
    })?)
}

/// The boxes of each rank of a layout, as a run with that layout would save them.
fn of_layout(from: &Loaded, layout: &str, ranks: usize) -> Result<ReshardRequest, Failure> {
    let manifest = from.manifest();
    let place = from.path().display();
    let state = TrainState::of(manifest).map_err(|e| Failure::new(format!("{place}: {e}")))?;
    let keys = layout.split(',').map(str::trim).filter(|key| !key.is_empty());
    let sets: Vec<String> = keys.map(|key| format!("parallel.{key}")).collect();
    let mut recipe = parse_recipe("recipe in the checkpoint", &manifest.recipe, &[])?.value;
    // Keys that are not named have their defaults, and not the values of the run that saved.
    recipe.parallel = parse_recipe("--layout", ANY_RECIPE, &sets)?.value.parallel;
    let (tensors, slices) = layout_slices(&recipe, ranks, &state.identity.model)?;
    let places: HashMap<&str, usize> =
        manifest.tensors.iter().enumerate().map(|(i, t)| (t.name.as_str(), i)).collect();
    let number = |tensor: usize| {
        let name = tensors[tensor].name.as_str();
        places.get(name).copied().ok_or_else(|| {
            Failure::new(format!("{place}: tensor {name:?} of the layout is not in the checkpoint"))
        })
    };
    let boxes = |slices: Vec<bessemer_parallel::OwnSlice>| {
        slices.into_iter().map(|s| Ok(TensorSlice { tensor: number(s.tensor)?, part: s.part })).collect()
    };
    let ranks = slices.into_iter().map(boxes).collect::<Result<_, Failure>>()?;
    Ok(ReshardRequest { ranks, max_file_bytes: u64::MAX })
}
