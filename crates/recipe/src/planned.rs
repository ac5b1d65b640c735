//! Recipes whose layout a plan chooses: which keys it may choose, and its choice as the topmost layer.

use crate::error::RecipeError;
use crate::layer;
use crate::load::{self, Loaded};
use crate::node::{Node, Value};
use crate::origin::Origin;
use crate::recipe::{CorpusCheck, Recipe, RecipeUse};
use crate::source::{Place, Role, Source};
use crate::write::toml_value;
use bessemer_parallel::{LayoutChoice, PlannedLayout};
use serde_json::{Value as Json, json};
use std::path::Path;
use std::sync::Arc;

/// Layout that a plan chose for `parallel.layout = "auto"`.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct LayoutPlan {
    /// Ranks that share the training.
    pub ranks: u64,
    /// Their machine, in words.
    pub machine: String,
    /// Values by dotted key, of keys that the recipe leaves to the plan.
    pub settings: Vec<(String, Json)>,
}

/// Table of a resolved recipe that says what a plan chose.
const TABLE: &str = "parallel.planned";

impl LayoutPlan {
    /// Returns the plan that a resolved recipe carries, if it carries one.
    pub fn of(loaded: &Loaded<Recipe>) -> Option<LayoutPlan> {
        let PlannedLayout { ranks, machine, keys } = &loaded.value.parallel.planned;
        let value = |key: &String| Some((key.clone(), loaded.resolved_at(key)?.clone()));
        let settings = keys.iter().map(value).collect::<Option<Vec<_>>>()?;
        (*ranks > 0).then(|| LayoutPlan { ranks: *ranks, machine: machine.clone(), settings })
    }

    /// Ranks and machine of the plan, in words.
    pub fn subject(&self) -> String {
        let plural = if self.ranks == 1 { "" } else { "s" };
        format!("{} rank{plural}, {}", self.ranks, self.machine)
    }

    /// One layer for each key, the record of the plan included.
    fn layers(&self) -> Vec<Arc<Source>> {
        let keys: Vec<&String> = self.settings.iter().map(|(key, _)| key).collect();
        let record = [
            ("parallel.layout".to_owned(), json!(LayoutChoice::Auto)),
            (format!("{TABLE}.ranks"), json!(self.ranks)),
            (format!("{TABLE}.machine"), json!(self.machine)),
            (format!("{TABLE}.keys"), json!(keys)),
        ];
        let subject = self.subject();
        let layer = |(key, value): &(String, Json)| {
            Source::new(subject.clone(), set_argument(key, value), Role::Plan)
        };
        self.settings.iter().chain(&record).map(layer).collect()
    }
}

/// A key with its value, as `--set` takes it.
pub fn set_argument(key: &str, value: &Json) -> String {
    format!("{key}={}", toml_value(value))
}

/// Loads a recipe file with `--set` overrides, and the choice of a plan on top. What an earlier plan chose, which a resolved recipe
/// lists in `parallel.planned`, is forgotten.
///
/// # Errors
/// As [`load_recipe_for`](crate::load_recipe_for), with the same `home` and `check_corpus`.
pub fn load_planned(
    path: &Path,
    sets: &[String],
    home: Option<&Path>,
    plan: &LayoutPlan,
    recipe_use: RecipeUse,
    check_corpus: CorpusCheck,
) -> Result<Loaded<Recipe>, RecipeError> {
    let source = layer::read(path, Role::File)?;
    let layers: Vec<Arc<Source>> = load::arguments(sets).into_iter().chain(plan.layers()).collect();
    let loaded = load::resolve::<Recipe>(&source, Some(path), &layers, home, &forget)?;
    loaded.refuse(loaded.value.problems_with(recipe_use, check_corpus))?;
    Ok(loaded)
}

/// Takes out of a file what it says that a plan chose.
fn forget(file: &mut Node) {
    let keys = match file.at(&format!("{TABLE}.keys")).map(|node| &node.value) {
        Some(Value::Array(keys)) => keys.iter().filter_map(Node::text).map(str::to_owned).collect(),
        _ => Vec::new(),
    };
    for key in keys.iter().map(String::as_str).chain([TABLE]) {
        if let Some((table, name)) = file.entry_at(key) {
            table.remove(name);
        }
    }
}

impl Loaded<Recipe> {
    /// Whether the recipe leaves a key to a plan: nobody wrote it, or an earlier plan did.
    pub fn is_free(&self, key: &str) -> bool {
        matches!(Origin::of(self.node_at(key)), Origin::Default | Origin::Plan { .. })
    }

    /// Gives keys that the file says a plan chose that plan as their origin. One that a layer above the file's sets has its own.
    pub(crate) fn attribute_to_plan(&mut self) {
        let PlannedLayout { ranks, machine, keys } = self.value.parallel.planned.clone();
        let list = self.node_at(&format!("{TABLE}.keys")).and_then(|node| node.place.clone());
        let (1.., LayoutChoice::Auto, Some(list)) = (ranks, self.value.parallel.layout, list) else { return };
        let plan = LayoutPlan { ranks, machine, settings: Vec::new() };
        let source = Source::new(plan.subject(), list.source.text.clone(), Role::Plan);
        for key in keys {
            let Some((table, name)) = self.merged.entry_at(&key) else { continue };
            let place = table.get_mut(name).and_then(|field| field.node.place.as_mut());
            if let Some(place) = place.filter(|place| Arc::ptr_eq(&place.source, &list.source)) {
                *place = Place::new(&source, place.span.clone());
            }
        }
    }
}
