//! `bessemer plan`.

pub(crate) mod auto;
mod calibrate;
mod picture;
mod validate;

use crate::cli::{PlanArgs, PlanCommand, SearchMethod};
use crate::console::{Console, print};
use crate::failure::Failure;
use crate::recipes::{home, source};
use bessemer_plan::GivenColumns;
use bessemer_planner::{LayerMethod, Wanted, alpa, compare, exhaustive, layerwise};

pub(crate) fn run(args: &PlanArgs, as_json: bool, console: &mut Console) -> Result<(), Failure> {
    match (&args.command, &args.recipe, args.devices) {
        (Some(PlanCommand::Validate(args)), ..) => validate::run(args, as_json, console),
        (Some(PlanCommand::Calibrate(args)), ..) => calibrate::run(args, as_json, console),
        (None, Some(recipe), Some(devices)) => {
            let home = home();
            let columns = given_columns(&args.columns)?;
            let wanted = Wanted {
                recipe: source(recipe, &args.sets, &home),
                devices: devices.get(),
                machine: &args.machine,
                fit: args.fit.as_deref(),
                columns: &columns,
                top: args.top,
                seed: args.seed,
                proposals: args.proposals,
                failures: &args.failures,
                save: args.save,
                restart: args.restart,
            };
            Ok(print(&found(&wanted, args, as_json, console)?)?)
        }
        // The command line demands both.
        _ => Err(Failure::usage("wanted a recipe and --devices N, or validate TABLE")),
    }
}

/// Values of `--column`.
fn given_columns(specs: &[String]) -> Result<GivenColumns, Failure> {
    GivenColumns::parse(specs).map_err(|cause| Failure::usage(format!("--column {cause}")))
}

/// Searches with the method of the command line.
fn found(
    wanted: &Wanted<'_>,
    args: &PlanArgs,
    as_json: bool,
    console: &mut Console,
) -> Result<String, Failure> {
    let detail = &mut |line: &str| console.detail(line);
    Ok(match args.method {
        _ if args.compare => compare(wanted, as_json, detail)?,
        SearchMethod::Exhaustive => {
            let (text, record) = exhaustive(wanted, as_json, detail)?;
            if let Some(path) = &args.svg {
                picture::write(path, &record, console)?;
            }
            text
        }
        SearchMethod::Layers => layerwise(wanted, LayerMethod::Layers, as_json, detail)?,
        SearchMethod::Mcmc => layerwise(wanted, LayerMethod::Mcmc, as_json, detail)?,
        SearchMethod::Annotations => layerwise(wanted, LayerMethod::Annotations, as_json, detail)?,
        SearchMethod::Alpa => alpa(wanted, as_json, detail)?,
    })
}
