//! `bessemer plan RECIPE --method layers|mcmc`: plans whose layers may differ.

use crate::pricing::Pricing;
use crate::search::calibration;
use crate::stated::expect_simple;
use crate::{PlannerError, Training, Wanted, annotations, machine};
use bessemer_parallel::{MemoryPlan, ParallelConfig};
use bessemer_plan::layerwise::{
    BlockLayout, Degrees, LayerChoice, LayerPlan, Prices, Proposals, Searched, Setting, Solved, Walk,
    degrees, search, solve, step, uniform, wander,
};
use bessemer_plan::{Calibration, Machine, MachineCosts};
use bessemer_train::{planned_memory, predicted_step};
use bessemer_units::{Bytes, Recompute};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fmt::Write;
use std::rc::Rc;

/// Plans that are simulated, and at most planned by a dry run.
const MOST_SIMULATED: usize = 64;
/// Bytes that stay free of a device for what a plan does not count: 2 %.
const KEPT_FREE: f64 = 0.02;
/// Searches at most, each with a lower limit of memory than the one whose plans the dry run has found too large.
const MOST_WALKS: i32 = 5;
/// Limit of memory beside that of the Markov chain before.
const LOWERED: f64 = 0.95;
/// The same of the dynamic program, which does not walk on from the edge of the limit.
const LOWERED_FOR_LAYERS: f64 = 0.85;

/// A search for plans whose layers may differ.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LayerMethod {
    /// Dynamic programming over layers with memory (Galvatron).
    Layers,
    /// A Markov chain over operator groups with a simulated step (FlexFlow).
    Mcmc,
    /// The layouts that follow from `parallel.annotate` (GShard).
    Annotations,
}

impl LayerMethod {
    fn name(self) -> &'static str {
        match self {
            LayerMethod::Layers => "layers",
            LayerMethod::Mcmc => "mcmc",
            LayerMethod::Annotations => "annotations",
        }
    }
}

/// A plan as it is shown.
#[derive(Debug, Clone)]
pub(crate) struct Shown {
    pub(crate) name: String,
    pub(crate) keys: Vec<String>,
    /// Seconds of the simulated step.
    pub(crate) seconds: f64,
    /// Seconds as sums over units.
    pub(crate) sums: f64,
    /// Bytes of the rank that holds most, as the prices count them.
    pub(crate) memory: f64,
    /// Bytes of the rank that holds most, by the dry run.
    pub(crate) planned: Option<Bytes>,
}

/// Answer of one method.
#[derive(Debug, Clone, Default)]
pub(crate) struct Answer {
    /// Plans that fit, the fastest first.
    pub(crate) plans: Vec<Shown>,
    /// Combinations that were looked at.
    pub(crate) evaluations: u64,
    /// Lines about the search.
    pub(crate) notes: Vec<String>,
    /// Best by number of proposals.
    pub(crate) progress: Vec<(usize, f64)>,
    pub(crate) proposals: Option<Proposals>,
}

/// A job with the prices of its units.
pub(crate) struct Planning<'a> {
    pub(crate) wanted: &'a Wanted<'a>,
    pub(crate) training: &'a Training,
    pub(crate) machine: &'a Machine,
    pub(crate) calibration: &'a Calibration,
    pub(crate) pricing: Pricing<'a>,
}

/// Plans whose layers may differ.
///
/// # Errors
/// Nothing that fits, a recipe that states the layouts of single layers.
pub fn layerwise(
    wanted: &Wanted<'_>,
    method: LayerMethod,
    as_json: bool,
    detail: &mut dyn FnMut(&str),
) -> Result<String, PlannerError> {
    let machine = machine(wanted.machine)?;
    let calibration = calibration(wanted, &machine)?;
    let training = match method {
        LayerMethod::Annotations => wanted.recipe.training_annotated()?,
        LayerMethod::Layers | LayerMethod::Mcmc => wanted.recipe.training()?,
    };
    let mut planning = Planning::new(wanted, &training, &machine, &calibration);
    let answer = match method {
        LayerMethod::Annotations => return annotations::run(&mut planning, as_json, detail),
        LayerMethod::Mcmc => planning.mcmc(detail)?,
        LayerMethod::Layers => planning.layers(detail)?,
    };
    let Some(best) = answer.plans.first() else { return Err(planning.nothing(&answer)) };
    if as_json {
        return Ok(serde_json::to_string(&planning.as_value(method, &answer))?);
    }
    let mut text = planning.head();
    for note in &answer.notes {
        let _ = writeln!(text, "{note}");
    }
    let _ = writeln!(text, "{:>10} {:>12} {:>10}  plan", "step", "tokens/s", "memory");
    for shown in &answer.plans {
        let _ = writeln!(
            text,
            "{:>8.3} s {:>12.0} {:>10}  {}",
            shown.seconds,
            training.tokens() / shown.seconds,
            shown.planned.unwrap_or(Bytes(shown.memory as u64)).to_string(),
            shown.name
        );
    }
    let _ = writeln!(text, "keys of the first: --set {}", best.keys.join(" --set "));
    Ok(text)
}

impl<'a> Planning<'a> {
    pub(crate) fn new(
        wanted: &'a Wanted<'a>,
        training: &'a Training,
        machine: &'a Machine,
        calibration: &'a Calibration,
    ) -> Planning<'a> {
        let pricing = Pricing::new(training, machine, &calibration.efficiency);
        Planning { wanted, training, machine, calibration, pricing }
    }

    /// Refuses a recipe that says itself what single layers do, or asks for what has no price here.
    fn expect_open(&self) -> Result<(), PlannerError> {
        let recipe = &self.training.recipe;
        let given = [
            ("train.recompute_layers", recipe.train.recompute_layers.last().is_some()),
            ("parallel.annotate", !recipe.parallel.annotate.0.is_empty()),
        ];
        match given.iter().find(|(_, given)| *given) {
            Some((key, _)) => Err(PlannerError::request(format!(
                "{key} sets the layout of single layers, which this search chooses; expected none (--method \
                 annotations completes parallel.annotate)"
            ))),
            None => {
                // What the keys of a plan say does not matter here.
                let parallel = &recipe.parallel;
                let besides = ParallelConfig {
                    context: parallel.context,
                    partition_activations: parallel.partition_activations,
                    reduce_dtype: parallel.reduce_dtype,
                    ..ParallelConfig::default()
                };
                expect_simple(&besides, recipe.train.offload)
            }
        }
    }

    pub(crate) fn setting(&self) -> Setting<'a> {
        Setting {
            machine: self.machine,
            efficiency: &self.calibration.efficiency,
            global_batch: self.training.sequences,
            bytes: self.training.bytes.parameters,
            overlap: self.training.recipe.parallel.overlap,
            in_flight: self.training.recipe.parallel.pieces_in_flight(),
            memory: self.machine.memory * (1.0 - KEPT_FREE),
        }
    }

    pub(crate) fn degrees(&self) -> Vec<Degrees> {
        let seq = self.training.recipe.train.seq_len as usize;
        degrees(&self.training.shape, seq, self.training.sequences, self.wanted.devices)
    }

    /// Searches with a part of the memory.
    fn search(&mut self, method: Method, of: &[Degrees], part: f64) -> Searched {
        let setting = self.setting();
        let setting = Setting { memory: setting.memory * part, ..setting };
        let pricing = &mut self.pricing;
        search(&setting, of, &mut |degrees| pricing.prices(degrees), method)
    }

    /// The dynamic program over layers.
    pub(crate) fn layers(&mut self, detail: &mut dyn FnMut(&str)) -> Result<Answer, PlannerError> {
        self.expect_open()?;
        let mut answer = Answer::default();
        for round in 0..MOST_WALKS {
            let searched = self.search(solve, &self.degrees(), LOWERED_FOR_LAYERS.powi(round));
            answer.evaluations += searched.evaluations;
            answer.notes = vec![searched_note(&searched)];
            let plans = self.simulated(&searched.plans)?;
            answer.plans = self.planned(plans, detail);
            // Without a plan at all a lower limit finds none either.
            if !answer.plans.is_empty() || searched.plans.is_empty() {
                break;
            }
        }
        Ok(answer)
    }

    /// Plans whose layers are alike, among some degrees.
    pub(crate) fn alike(
        &mut self,
        of: &dyn Fn(&Degrees) -> bool,
        detail: &mut dyn FnMut(&str),
    ) -> Result<Answer, PlannerError> {
        self.expect_open()?;
        let some: Vec<Degrees> = self.degrees().into_iter().filter(|degrees| of(degrees)).collect();
        let searched = self.search(uniform, &some, 1.0);
        let plans = self.simulated(&searched.plans)?;
        let plans = self.planned(plans, detail);
        Ok(Answer { plans, evaluations: searched.evaluations, ..Answer::default() })
    }

    /// The Markov chain, from data parallelism on.
    pub(crate) fn mcmc(&mut self, detail: &mut dyn FnMut(&str)) -> Result<Answer, PlannerError> {
        self.expect_open()?;
        let setting = self.setting();
        let (seed, budget) = (self.wanted.seed, self.wanted.proposals as usize);
        let mut spaces: Vec<(Degrees, Rc<Prices>)> = Vec::new();
        for degrees in self.degrees() {
            if let Ok(prices) = self.pricing.prices(&degrees) {
                spaces.push((degrees, prices));
            }
        }
        // Data-parallel ranks alone if there is such a layout, the smallest micro-batch first.
        let plain =
            |degrees: &Degrees| (degrees.tensor * degrees.pipeline, degrees.micro_batch, degrees.zero);
        spaces.sort_by_key(|(degrees, _)| plain(degrees));
        let borrowed: Vec<(Degrees, &Prices)> = spaces.iter().map(|(of, prices)| (*of, &**prices)).collect();
        let Some((degrees, prices)) = borrowed.first().copied() else { return Ok(Answer::default()) };
        let (count, layers) = (degrees.pipeline, prices.layers.len());
        let start = LayerPlan {
            degrees,
            stages: (0..count).map(|stage| layers / count + usize::from(stage < layers % count)).collect(),
            choices: vec![0; layers],
        };
        let mut answer = Answer::default();
        for round in 0..MOST_WALKS {
            let limit = Setting { memory: setting.memory * LOWERED.powi(round), ..setting };
            let walk =
                wander(&limit, &borrowed, start.clone(), seed, budget).map_err(PlannerError::failed)?;
            answer.evaluations += budget as u64;
            answer.proposals = Some(walk.proposals);
            answer.notes = walk_notes(&walk, seed, borrowed.len());
            let prices = borrowed.iter().find(|(of, _)| *of == walk.plan.degrees).map(|(_, prices)| *prices);
            let Some(prices) = prices.filter(|_| walk.fits) else { break };
            let shown = shown(&walk.plan, prices, walk.step.seconds, f64::NAN, &walk.step.memory);
            answer.progress = walk.progress;
            answer.plans = self.planned(vec![shown], detail);
            if !answer.plans.is_empty() {
                break;
            }
        }
        Ok(answer)
    }

    /// Simulates the fastest of these plans.
    fn simulated(&mut self, plans: &[Solved]) -> Result<Vec<Shown>, PlannerError> {
        let setting = self.setting();
        let mut all = Vec::new();
        for solved in plans.iter().take(MOST_SIMULATED) {
            let prices = self.pricing.prices(&solved.plan.degrees).map_err(PlannerError::failed)?;
            let step = step(&setting, &prices, &solved.plan).map_err(PlannerError::failed)?;
            all.push(shown(&solved.plan, &prices, step.seconds, solved.seconds, &solved.memory));
        }
        all.sort_by(|a, b| a.seconds.total_cmp(&b.seconds));
        Ok(all)
    }

    /// Those of the plans that fit by their dry run, as many as are wanted.
    fn planned(&self, plans: Vec<Shown>, detail: &mut dyn FnMut(&str)) -> Vec<Shown> {
        let mut fitting = Vec::new();
        for mut shown in plans {
            match self.dry_run(&shown.keys) {
                Err(reason) => detail(&format!("{}: {reason}", shown.name)),
                Ok(memory) if memory.buffers.total().0 as f64 > self.machine.memory => {
                    let held = memory.buffers.total();
                    detail(&format!("{}: {held} by its dry run", shown.name));
                }
                Ok(memory) => {
                    shown.planned = Some(memory.buffers.total());
                    fitting.push(shown);
                }
            }
            if fitting.len() as u64 == self.wanted.top {
                break;
            }
        }
        fitting
    }

    pub(crate) fn dry_run(&self, keys: &[String]) -> Result<MemoryPlan, String> {
        let recipe = self.wanted.recipe.load(keys).map_err(|cause| cause.to_string())?.value;
        let planned = planned_memory(&recipe, self.wanted.devices, &self.training.model);
        planned.map(MemoryPlan::of_device).map_err(|cause| cause.to_string())
    }

    /// Seconds of a step of the recipe with these keys, from the programs of its ranks.
    pub(crate) fn seconds_of(&self, keys: &[String]) -> Result<f64, PlannerError> {
        let recipe = self.wanted.recipe.load(keys)?.value;
        let devices = self.wanted.devices;
        let mut costs = MachineCosts::new(self.machine, self.calibration.efficiency, devices);
        Ok(predicted_step(&recipe, devices, &self.training.model, &mut costs)?.seconds)
    }

    /// Opening lines of the printed result: model, devices, batch.
    pub(crate) fn head(&self) -> String {
        let mut text = format!(
            "{}\n{} x {}, {} sequences of {} tokens a step\n",
            self.training.model.summary(),
            self.wanted.devices,
            self.machine.name,
            self.training.sequences,
            self.training.recipe.train.seq_len
        );
        if self.wanted.fit.is_none() {
            text += "constants of the cost model are not fitted: times may be off by a third (--fit TABLE \
                     fits them)\n";
        }
        text
    }

    fn nothing(&self, answer: &Answer) -> PlannerError {
        let notes: String = answer.notes.iter().map(|note| format!("; {note}")).collect();
        PlannerError::failed(format!(
            "no plan of {} devices fits into the {} of a {}{notes}; take more devices, or a smaller sequence or model",
            self.wanted.devices,
            Bytes(self.machine.memory as u64),
            self.machine.name
        ))
    }

    pub(crate) fn as_value(&self, method: LayerMethod, answer: &Answer) -> Value {
        let plan = |shown: &Shown| {
            json!({
                "name": shown.name,
                "keys": shown.keys,
                "seconds": shown.seconds,
                "seconds_by_sums": shown.sums.is_finite().then_some(shown.sums),
                "tokens_per_second": self.training.tokens() / shown.seconds,
                "memory": shown.planned.map(|bytes| bytes.0),
                "memory_by_prices": shown.memory,
            })
        };
        json!({
            "machine": self.machine.name,
            "method": method.name(),
            "evaluations": answer.evaluations,
            "notes": answer.notes,
            "proposals": answer.proposals,
            "progress": answer.progress,
            "layouts": answer.plans.iter().map(plan).collect::<Vec<_>>(),
        })
    }
}

/// A search of one plan for given degrees.
type Method = fn(&Setting<'_>, &Prices, Degrees) -> Option<Solved>;

fn searched_note(searched: &Searched) -> String {
    let Searched { degrees, pruned, too_large, refused, evaluations, .. } = searched;
    let mut text = format!(
        "{degrees} degrees: {pruned} cannot be the fastest, {too_large} do not fit, {refused} have no prices; {evaluations} \
         combinations of layers and stages"
    );
    if let Some(reason) = &searched.reason {
        let _ = write!(text, "; the first without prices: {reason}");
    }
    text
}

fn walk_notes(walk: &Walk, seed: u64, degrees: usize) -> Vec<String> {
    let p = walk.proposals;
    let kinds =
        [("random", p.random), ("propagated", p.propagated), ("stages", p.stages), ("degrees", p.degrees)];
    let budget: usize = kinds.iter().map(|(_, of)| of.proposed).sum();
    let kinds = kinds.map(|(kind, of)| format!("{kind} {} of {}", of.accepted, of.proposed));
    vec![
        format!(
            "Markov chain of {budget} proposals, seed {seed}, over {degrees} degrees; accepted: {}",
            kinds.join(", ")
        ),
        format!("best by proposal: {}", progress_text(&walk.progress)),
    ]
}

/// "9.1 s at the start, 8.2 s after 12, ..., 7.9 s after 310".
fn progress_text(progress: &[(usize, f64)]) -> String {
    const SHOWN: usize = 6;
    let later: Vec<_> = progress.iter().filter(|(number, _)| *number > 0).collect();
    let every = later.len().div_ceil(SHOWN).max(1);
    let start = progress.first().map_or(f64::NAN, |(_, seconds)| *seconds);
    let mut text = format!("{start:.3} s at the start");
    for (at, (number, seconds)) in later.iter().enumerate() {
        if (later.len() - 1 - at).is_multiple_of(every) {
            let _ = write!(text, ", {seconds:.3} s after {number}");
        }
    }
    text
}

fn shown(plan: &LayerPlan, prices: &Prices, seconds: f64, sums: f64, memory: &[f64]) -> Shown {
    Shown {
        name: describe(plan, prices),
        keys: keys(plan, prices),
        seconds,
        sums,
        memory: memory.iter().copied().fold(0.0, f64::max),
        planned: None,
    }
}

/// Layout of one of a layer's blocks.
type LayoutOf = fn(&LayerChoice) -> BlockLayout;

/// A plan in words.
pub(crate) fn describe(plan: &LayerPlan, prices: &Prices) -> String {
    let Degrees { tensor, sequence, data, pipeline, micro_batch, zero } = plan.degrees;
    let mut parts = Vec::new();
    if tensor > 1 {
        parts.push(format!("tensor {tensor}{}", if sequence { " with sequence" } else { "" }));
    }
    if pipeline > 1 {
        let even = plan.stages.windows(2).all(|pair| pair[0] == pair[1]);
        let stages = if even { String::new() } else { format!(" of {:?} layers", plan.stages) };
        parts.push(format!("pipeline {pipeline}{stages}"));
    }
    if data > 1 {
        let kind = if zero == 0 { "DDP".to_owned() } else { format!("ZeRO-{zero}") };
        parts.push(format!("data {data} ({kind})"));
    }
    parts.push(format!("micro-batch {micro_batch}"));
    let layers = |wanted: &dyn Fn(usize) -> bool| {
        let numbers: Vec<usize> =
            (0..plan.choices.len()).filter(|layer| wanted(plan.choices[*layer])).collect();
        (numbers.len(), ranges(&numbers))
    };
    let blocks: [(&str, LayoutOf); 2] =
        [("attention", |choice| choice.attention), ("feed-forward", |choice| choice.feed_forward)];
    for (block, layout) in blocks {
        let (count, of) = layers(&|choice| layout(&prices.choices[choice]) == BlockLayout::Replicated);
        if count > 0 {
            let of = if count == plan.choices.len() { "all layers".into() } else { format!("layers {of}") };
            parts.push(format!("{block} of {of} replicated"));
        }
    }
    for (recompute, count, of) in recomputed(plan, prices) {
        let of = if count == plan.choices.len() { String::new() } else { format!(" in layers {of}") };
        parts.push(format!("recompute {recompute}{of}"));
    }
    parts.join(", ")
}

/// Policies of recomputation, with the layers that have them.
fn recomputed(plan: &LayerPlan, prices: &Prices) -> Vec<(Recompute, usize, String)> {
    let mut layers: BTreeMap<Recompute, Vec<usize>> = BTreeMap::new();
    for (layer, choice) in plan.choices.iter().enumerate() {
        layers.entry(prices.choices[*choice].recompute).or_default().push(layer);
    }
    layers.into_iter().map(|(recompute, of)| (recompute, of.len(), ranges(&of))).collect()
}

/// Ascending numbers as "0-5,8".
pub(crate) fn ranges(numbers: &[usize]) -> String {
    let mut parts: Vec<(usize, usize)> = Vec::new();
    for &number in numbers {
        match parts.last_mut() {
            Some((_, last)) if *last + 1 == number => *last = number,
            _ => parts.push((number, number)),
        }
    }
    let text = |(first, last): &(usize, usize)| {
        if first == last { first.to_string() } else { format!("{first}-{last}") }
    };
    parts.iter().map(text).collect::<Vec<_>>().join(",")
}

/// The keys of a recipe that mean a plan.
pub(crate) fn keys(plan: &LayerPlan, prices: &Prices) -> Vec<String> {
    let Degrees { tensor, sequence, pipeline, micro_batch, zero, .. } = plan.degrees;
    let data = if zero == 0 { "ddp".to_owned() } else { format!("zero{zero}") };
    let mut keys = vec![
        format!("parallel.tensor={tensor}"),
        format!("parallel.sequence={sequence}"),
        format!("parallel.pipeline={pipeline}"),
        "parallel.schedule=\"1f1b\"".to_owned(),
        "parallel.chunks=0".to_owned(),
        format!("parallel.stages={:?}", if pipeline > 1 { &plan.stages[..] } else { &[] }),
        format!("parallel.data=\"{data}\""),
        "parallel.shard=0".to_owned(),
        format!("train.micro_batch={micro_batch}"),
    ];
    let recomputed = recomputed(plan, prices);
    let most = recomputed.iter().max_by_key(|(_, count, _)| *count).map(|(recompute, ..)| *recompute);
    keys.extend(most.map(|most| format!("train.recompute=\"{most}\"")));
    let others = recomputed.iter().filter(|(recompute, ..)| Some(*recompute) != most);
    keys.extend(others.map(|(recompute, _, of)| format!("train.recompute_layers.'{of}'=\"{recompute}\"")));
    for (layer, choice) in plan.choices.iter().enumerate() {
        let choice = prices.choices[*choice];
        for (block, layout) in [("attention", choice.attention), ("mlp", choice.feed_forward)] {
            if layout == BlockLayout::Replicated {
                keys.push(format!("parallel.annotate.'layers.{layer}.{block}.*'=\"replicate\""));
            }
        }
    }
    keys
}
