//! `bessemer plan`.

mod alpa;
mod annotations;
pub(crate) mod auto;
mod calibrate;
mod compare;
mod explain;
mod here;
mod layerwise;
mod picture;
mod pricing;
mod refuse;
mod search;
mod stated;
mod training;
mod validate;

use crate::cli::{PlanArgs, PlanCommand, SearchMethod};
use crate::console::Console;
use crate::failure::Failure;
use bessemer_durable::TextReader;
use bessemer_plan::Machine;
use bessemer_recipe::{Recipe, RecipeUse, load};
use std::io::Read;
use std::path::Path;

/// Most bytes of a table or of a machine's description.
const MOST_BYTES: u64 = 64 << 20;

pub(crate) fn run(args: &PlanArgs, as_json: bool, console: &mut Console) -> Result<(), Failure> {
    match (&args.command, &args.recipe, args.devices) {
        (Some(PlanCommand::Validate(args)), ..) => validate::run(args, as_json, console),
        (Some(PlanCommand::Calibrate(args)), ..) => calibrate::run(args, as_json, console),
        (None, Some(recipe), Some(devices)) => {
            let wanted = search::Wanted { recipe, devices: devices.get(), args };
            if args.compare {
                return compare::run(&wanted, as_json, console);
            }
            match args.method {
                SearchMethod::Exhaustive => search::run(&wanted, as_json, console),
                SearchMethod::Layers | SearchMethod::Mcmc | SearchMethod::Annotations => {
                    layerwise::run(&wanted, as_json, console)
                }
                SearchMethod::Alpa => alpa::run(&wanted, as_json, console),
            }
        }
        // The command line demands both.
        _ => Err(Failure::usage("wanted a recipe and --devices N, or validate TABLE")),
    }
}

/// Reads a recipe whose annotations may contradict each other: what completes them says what either costs.
fn annotations_allowed(wanted: &search::Wanted<'_>) -> Result<search::Training, Failure> {
    let mut loaded = load::<Recipe>(wanted.recipe, &wanted.args.sets)?;
    let annotate = std::mem::take(&mut loaded.value.parallel.annotate);
    if loaded.value.problems_for(RecipeUse::Layout).is_empty() {
        loaded.value.parallel.annotate = annotate;
        return search::Training::new(&loaded);
    }
    // Refused with the lines of the file.
    search::Training::load(wanted)
}

/// Reads the machine of `--machine`.
///
/// # Errors
/// A machine that is not in the catalogue, a file that cannot be read.
pub fn machine(name: &str) -> Result<Machine, Failure> {
    machine_of("--machine", name)
}

/// Reads a machine from the catalogue, or from a file where the name is that of one. `asked_by` is the option or key that names it.
fn machine_of(asked_by: &str, name: &str) -> Result<Machine, Failure> {
    let path = Path::new(name);
    if path.extension().is_some_and(|extension| extension == "toml") {
        return Machine::parse(&text_of(path)?)
            .map_err(|cause| Failure::usage(format!("{asked_by} {name}: {cause}")));
    }
    Machine::named(name)
        .map_err(|cause| Failure::usage(format!("{asked_by}: {cause}, or a file that ends with .toml")))
}

fn text_of(path: &Path) -> Result<String, Failure> {
    let failed = |cause: &dyn std::fmt::Display| Failure::new(format!("{}: {cause}", path.display()));
    let file = bessemer_durable::open_regular(path).map_err(|cause| failed(&cause))?;
    let mut text = String::new();
    TextReader::buffered(file)
        .take(MOST_BYTES + 1)
        .read_to_string(&mut text)
        .map_err(|cause| failed(&cause))?;
    if text.len() as u64 > MOST_BYTES {
        return Err(failed(&format!("is larger than {MOST_BYTES} bytes")));
    }
    Ok(text)
}
