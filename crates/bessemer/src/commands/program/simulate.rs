//! `bessemer program simulate`: a step of a recipe's layout on a machine, by the loads of its experts.

use crate::cli::ProgramSimulateArgs;
use crate::cli::program::Routing;
use crate::console::print;
use crate::failure::Failure;
use crate::recipes::load_recipe_for;
use bessemer_arch::Model;
use bessemer_parallel::Plan;
use bessemer_plan::{Axis, Efficiency, Machine, MachineCosts};
use bessemer_program::CollectiveKind;
use bessemer_recipe::RecipeUse;
use bessemer_runlog::{LOADS_FILE, Loads as LoadsFile};
use bessemer_sim::replay::{
    CollectiveSeconds, Loads, NodeCosts, Progress, ReplayGroup, RoutingProfile, Traffic,
};
use bessemer_sim::shadow::{ShadowChoice, ShadowRates};
use bessemer_train::{PredictedStep, predicted_routed_step};
use serde_json::{Value, json};

/// Bytes of an exchange whose bandwidth counts in the choice of shadows.
const EXCHANGED: u64 = 1 << 28;

/// A simulated step.
struct Row {
    routing: String,
    /// Most shadows of a layer.
    slots: u64,
    step: PredictedStep,
}

pub(super) fn run(args: &ProgramSimulateArgs, as_json: bool) -> Result<(), Failure> {
    let mut recipe = load_recipe_for(&args.recipe.recipe, &args.recipe.overrides(), RecipeUse::Layout)?.value;
    let vocabulary = recipe.tokenizer.vocab_size as usize;
    let model = recipe.model.resolve(Some(vocabulary)).map_err(Failure::usage)?;
    let ranks = args.ranks as usize;
    let plan = bessemer_train::layout(&recipe, ranks, &model).map_err(Failure::usage)?;
    let machine = bessemer_planner::machine(&args.machine)?;
    let efficiency = Efficiency::default();
    let plain = args.routing == [Routing::Balanced] && args.shadows == [0];
    if !plain && plan.experts() == 1 {
        return Err(Failure::usage(
            "--routing, --shadows: wanted experts over ranks, found parallel.experts = 1: rows that are not exchanged take the same time for \
             all loads; set parallel.experts",
        ));
    }
    let mut rows = Vec::new();
    for routing in &args.routing {
        let loads = loads(routing, &model)?;
        for slots in &args.shadows {
            recipe.parallel.shadows = *slots;
            if *slots > 0 && recipe.parallel.shadow_flops == 0.0 {
                let ShadowRates { flops, bandwidth } = rates(&machine, efficiency, &plan);
                (recipe.parallel.shadow_flops, recipe.parallel.shadow_bandwidth) = (flops, bandwidth);
            }
            let profile = RoutingProfile { loads: loads.clone() };
            let mut costs = MachineCosts::new(&machine, efficiency, ranks);
            let step = predicted_routed_step(&recipe, ranks, &model, &profile, &mut costs)?;
            rows.push(Row { routing: name(routing), slots: *slots, step });
        }
    }
    let text = match as_json {
        true => serde_json::to_string(&json!({
            "ranks": ranks,
            "machine": machine.name,
            "steps": rows.iter().map(Row::value).collect::<Vec<Value>>(),
        }))?,
        false => table(&rows),
    };
    Ok(print(text.trim_end())?)
}

/// Rates of a rank by which shadows are chosen: those of products, and of an exchange between the ranks that have all experts.
fn rates(machine: &Machine, efficiency: Efficiency, plan: &Plan) -> ShadowRates {
    let mut costs = MachineCosts::new(machine, efficiency, plan.ranks());
    let ranks = plan.mesh.group(0, plan.expert_axes);
    let medium = costs.medium(&ranks);
    let exchange = Traffic::even(CollectiveKind::AllToAll, EXCHANGED, ranks.len());
    let (label, progress) = (Axis::Expert.name().to_owned(), Progress::Thread);
    let group = ReplayGroup { label, number: 0, ranks, progress, medium };
    let CollectiveSeconds { processor, link, handoff } = costs.collective(&group, exchange);
    ShadowRates {
        flops: machine.matrix_flops * efficiency.product_share,
        bandwidth: exchange.sent as f64 / (processor + link + handoff),
    }
}

/// The loads that an argument names.
fn loads(routing: &Routing, model: &Model) -> Result<Loads, Failure> {
    let (directory, steps) = match routing {
        Routing::Balanced => return Ok(Loads::Balanced),
        Routing::Zipf(exponent) => return Ok(Loads::Zipf(*exponent)),
        Routing::Run { directory, steps } => (directory, *steps),
    };
    let place = directory.join(LOADS_FILE);
    let wrong = |problem: String| Failure::usage(format!("--routing {}: {problem}", place.display()));
    let file = if directory.is_dir() { LoadsFile::open(directory.as_path())? } else { None };
    let Some(mut file) = file else {
        return Err(wrong(
            "no such file: wanted the directory of a run of a model with experts, balanced, or zipf=EXPONENT"
                .into(),
        ));
    };
    let of_layer = |layer| model.experts_of(layer).map_or(0, |experts| experts.count as u32);
    let wanted: Vec<u32> = (0..model.layers).map(of_layer).collect();
    if file.experts() != wanted {
        let few = |experts: &[u32]| match experts.len() {
            0..=8 => format!("{experts:?}"),
            n => format!("{:?} and {} more layers", &experts[..8], n - 8),
        };
        return Err(wrong(format!(
            "loads of another model: wanted experts by layer {}, found {}",
            few(&wanted),
            few(file.experts())
        )));
    }
    let Some(span) = file.sum(steps)? else {
        let last = file.records().checked_sub(1).map(|last| file.read(last)).transpose()?.flatten();
        let until = last.map_or("no step".into(), |last| format!("steps until {}", last.step));
        return Err(wrong(format!("wanted steps from {} to {}, found {until}", steps[0], steps[1])));
    };
    let mut from = 0;
    let layers = wanted.iter().map(|count| {
        let counts = span.counts[from..from + *count as usize].to_vec();
        from += *count as usize;
        counts
    });
    Ok(Loads::Recorded(layers.collect()))
}

fn name(routing: &Routing) -> String {
    match routing {
        Routing::Balanced => "balanced".into(),
        Routing::Zipf(exponent) => format!("zipf={exponent}"),
        Routing::Run { directory, steps: [1, u64::MAX] } => directory.display().to_string(),
        Routing::Run { directory, steps: [first, last] } => format!("{}:{first}-{last}", directory.display()),
    }
}

impl Row {
    /// Seconds that nothing hides of exchanges of rows and shadows, and of waiting for the rank with most rows.
    fn exchanges(&self) -> f64 {
        self.step.exposed.get(Axis::Expert.name()).copied().unwrap_or(0.0)
    }

    /// Experts that are shadowed, over all layers.
    fn shadows(&self) -> usize {
        self.step.shadows.values().map(|choice| choice.experts.len()).sum()
    }

    /// Seconds of the layers with experts of a micro-batch by the cost model: without shadows, with them.
    fn model(&self) -> Option<[f64; 2]> {
        let sum =
            |of: fn(&ShadowChoice) -> u128| self.step.shadows.values().map(of).sum::<u128>() as f64 * 1e-12;
        (!self.step.shadows.is_empty()).then(|| [sum(|choice| choice.without), sum(|choice| choice.time)])
    }

    fn value(&self) -> Value {
        let shadows: Vec<Value> = self
            .step
            .shadows
            .iter()
            .map(|(layer, choice)| {
                json!({
                    "layer": layer,
                    "experts": choice.experts,
                    "seconds": choice.time as f64 * 1e-12,
                    "seconds_without": choice.without as f64 * 1e-12,
                })
            })
            .collect();
        json!({
            "routing": self.routing,
            "most_shadows": self.slots,
            "seconds": self.step.seconds,
            "compute_seconds": self.step.compute,
            "optimizer_seconds": self.step.optimizer,
            "exposed_seconds": self.step.exposed,
            "shadows": shadows,
        })
    }
}

fn table(rows: &[Row]) -> String {
    let widest = rows.iter().map(|row| row.routing.chars().count()).max().unwrap_or(0).max(8);
    let mut text = format!(
        "{:<widest$}  {:>12}  {:>11}  {:>11}  {:>11}  {:>7}  layers by the cost model\n",
        "routing", "most shadows", "step", "compute", "exchanges", "shadows"
    );
    let ms = |seconds: f64| format!("{:.3} ms", 1e3 * seconds);
    for row in rows {
        let model =
            row.model().map_or(String::new(), |[without, with]| format!("{} -> {}", ms(without), ms(with)));
        let line = format!(
            "{:<widest$}  {:>12}  {:>11}  {:>11}  {:>11}  {:>7}  {model}",
            row.routing,
            row.slots,
            ms(row.step.seconds),
            ms(row.step.compute),
            ms(row.exchanges()),
            row.shadows()
        );
        text += &format!("{}\n", line.trim_end());
    }
    text
}
