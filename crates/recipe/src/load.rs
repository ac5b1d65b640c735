//! Loading: layers are read, checked, merged and turned into a value that remembers where it came from.

use crate::check::{Ask, Checker};
use crate::error::{Diagnostic, RecipeError, Sink};
use crate::layer::{self, RenamedKey};
use crate::node::{self, Node};
use crate::schema::{self, View};
use crate::source::{Role, Source};
use crate::value_de::ValueError;
use schemars::JsonSchema;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value as Json;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A resolved config: every key has a value, and every value a known origin.
#[derive(Debug, Clone)]
pub struct Loaded<T> {
    /// The config itself.
    pub value: T,
    /// The file that was loaded; `None` for text.
    pub path: Option<PathBuf>,
    /// All layers merged, with places.
    pub(crate) merged: Node,
    /// `value` as JSON: complete, in the order of declaration.
    pub(crate) resolved: Json,
    pub(crate) schema: Json,
    /// Remarks on keys that were found under their old names.
    pub renamed: Vec<String>,
}

/// Keys that were renamed, in any config type.
const RENAMED: &[RenamedKey] = &[RenamedKey { table: "parallel", old: "stage", new: "data" }];

/// Loads a recipe file with `--set` overrides on top.
///
/// Layers, each overriding the ones before: `T::default()`, the file named by `base`, the file, each of
/// `sets` (`"a.b.c=value"`) in order. Every layer is checked against the JSON Schema of `T`; all mistakes are
/// reported together, with their places.
///
/// # Errors
/// [`RecipeError`] if a file cannot be read or any layer says something that is not allowed.
pub fn load<T>(path: &Path, sets: &[String]) -> Result<Loaded<T>, RecipeError>
where
    T: DeserializeOwned + Serialize + JsonSchema + Default,
{
    load_at(path, sets, None)
}

/// [`load`] with a home directory, which stands for `~` at the beginning of paths in the file, its base and `sets`.
///
/// # Errors
/// As [`load`].
pub fn load_at<T>(path: &Path, sets: &[String], home: Option<&Path>) -> Result<Loaded<T>, RecipeError>
where
    T: DeserializeOwned + Serialize + JsonSchema + Default,
{
    let source = layer::read(path, Role::File)?;
    resolve(&source, Some(path), &arguments(sets), home, &|_| {})
}

/// Loads a recipe from text, for example the resolved one that a checkpoint carries. `name` stands for the
/// path in errors; `base` is refused.
///
/// # Errors
/// [`RecipeError::Invalid`], as for [`load`].
pub fn parse<T>(name: &str, text: &str, sets: &[String]) -> Result<Loaded<T>, RecipeError>
where
    T: DeserializeOwned + Serialize + JsonSchema + Default,
{
    resolve(&Source::new(name.into(), text.into(), Role::File), None, &arguments(sets), None, &|_| {})
}

/// Arguments of `--set` as sources of layers.
pub(crate) fn arguments(sets: &[String]) -> Vec<Arc<Source>> {
    sets.iter().map(|set| Source::new(set.clone(), set.clone(), Role::Set)).collect()
}

/// Resolves a file with layers of one key each on top: arguments of `--set`, keys of a plan. `edit` changes what files say before it
/// is laid on what is below.
pub(crate) fn resolve<T>(
    source: &Arc<Source>,
    path: Option<&Path>,
    sets: &[Arc<Source>],
    home: Option<&Path>,
    edit: &dyn Fn(&mut Node),
) -> Result<Loaded<T>, RecipeError>
where
    T: DeserializeOwned + Serialize + JsonSchema + Default,
{
    let schema = schema::json_schema::<T>();
    let keys = schema::all_keys(&schema);
    let defaults = to_json(&T::default())?;
    let value;
    let merged;
    let mut renamed = Vec::new();
    {
        let root = View::new(&schema, &schema);
        let mut sink = Sink::default();
        let mut layers = files(source, path, &mut sink);
        let mut so_far = Node::from_json(&defaults)
            .ok_or_else(|| RecipeError::Unwritable("wanted a table of keys".into()))?;
        let mut lay = |mut layer: Node, so_far: &mut Node, sink: &mut Sink| {
            if let Some(home) = home {
                layer.below_home(home);
            }
            renamed.extend(layer::rename(&mut layer, RENAMED, sink));
            let effective = layer::merge(so_far.clone(), layer.clone(), &root);
            Checker { ask: Ask::Layer, all_keys: &keys }.check(&layer, Some(&effective), &root, "", sink);
            *so_far = effective;
        };
        for mut layer in layers.drain(..) {
            edit(&mut layer);
            lay(layer, &mut so_far, &mut sink);
        }
        for set in sets {
            let is_text = |path: &[String]| holds_text(&schema, &so_far, path);
            if let Some(layer) = layer::parse_set(set, is_text, &mut sink) {
                lay(layer, &mut so_far, &mut sink);
            }
        }
        sink.finish()?;
        let mut sink = Sink::default();
        Checker { ask: Ask::Missing, all_keys: &keys }.check(&so_far, Some(&so_far), &root, "", &mut sink);
        sink.finish()?;
        value = T::deserialize(&so_far).map_err(|e| not_understood(&e, &so_far))?;
        merged = so_far;
    }
    let resolved = to_json(&value)?;
    Ok(Loaded { value, path: path.map(Path::to_path_buf), merged, resolved, schema, renamed })
}

/// The base, if there is one, and the file; nothing of what does not parse.
fn files(source: &Arc<Source>, path: Option<&Path>, sink: &mut Sink) -> Vec<Node> {
    let Some(mut file) = node::parse(source, sink) else { return Vec::new() };
    let mut layers = Vec::new();
    if let Some(base) = layer::take_base(&mut file) {
        match path {
            Some(path) => layers.extend(layer::load_base(&base, path, source.is_builtin, sink)),
            None => sink.report(|| {
                Diagnostic::new("`base` needs a recipe file to be relative to", base.key.as_ref())
                    .help("a resolved recipe is complete and has no base")
            }),
        }
    }
    layers.push(file);
    layers
}

/// True if the schema wants text at `path`; the layers so far say which variants apply.
fn holds_text(schema: &Json, so_far: &Node, path: &[String]) -> bool {
    let mut view = View::new(schema, schema);
    let mut node = Some(so_far);
    for key in path {
        if let Some(node) = node {
            view = view.settled(node, None);
        }
        let Some(inner) = view.property(key).or_else(|| view.map_values()) else { return false };
        view = inner;
        node = node.and_then(|n| n.get(key));
    }
    view.is_text()
}

fn not_understood(error: &ValueError, root: &Node) -> RecipeError {
    let (node, path) = error.find(root);
    let what = if path.is_empty() { String::new() } else { format!("`{path}`: ") };
    let diagnostic = Diagnostic::new(format!("{what}{}", error.message), node.place.as_ref());
    RecipeError::Invalid { diagnostics: vec![diagnostic], more: 0 }
}

pub(crate) fn to_json<T: Serialize>(value: &T) -> Result<Json, RecipeError> {
    serde_json::to_value(value).map_err(|e| RecipeError::Unwritable(e.to_string()))
}

/// A mistake found by a config's own check, as `key path` and sentence.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// Dotted key of the section or value that is wrong.
    pub key: String,
    /// Fault, with the allowed range.
    pub message: String,
}

impl<T> Loaded<T> {
    /// Turns problems found in [`Loaded::value`] into an error that points at the places where they were
    /// written. If a message names a key of its section, the place is that key's.
    ///
    /// # Errors
    /// [`RecipeError::Invalid`] if there is any problem.
    pub fn refuse(&self, problems: Vec<Problem>) -> Result<(), RecipeError> {
        let mut sink = Sink::default();
        for problem in problems {
            sink.report(|| {
                let place = self
                    .named_key(&problem)
                    .or_else(|| self.node_at(&problem.key))
                    .and_then(|n| n.place.as_ref());
                // Some checks name the full key themselves.
                let named = problem.message.starts_with(&format!("{}.", problem.key));
                let prefix = if named { String::new() } else { format!("[{}] ", problem.key) };
                Diagnostic::new(format!("{prefix}{}", problem.message), place)
            });
        }
        sink.finish()
    }

    fn named_key(&self, problem: &Problem) -> Option<&Node> {
        let section = self.node_at(&problem.key)?;
        let is_word = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.');
        let words = problem.message.split(|c| !is_word(c)).map(|w| w.trim_matches('.'));
        words.filter(|w| !w.is_empty()).find_map(|word| {
            let inside = word.strip_prefix(&problem.key).and_then(|w| w.strip_prefix('.')).unwrap_or(word);
            let node = inside.split('.').try_fold(section, |n, key| n.get(key))?;
            node.place.is_some().then_some(node)
        })
    }

    pub(crate) fn node_at(&self, dotted: &str) -> Option<&Node> {
        dotted.split('.').filter(|k| !k.is_empty()).try_fold(&self.merged, |node, key| node.get(key))
    }

    /// The resolved value of a dotted key.
    pub fn resolved_at(&self, dotted: &str) -> Option<&Json> {
        dotted.split('.').try_fold(&self.resolved, |value, key| value.get(key))
    }
}
