//! Layers of a recipe: defaults, a base file, the file itself, `--set` overrides; and their merging.

use crate::builtin::{BuiltinRecipe, builtin_recipe};
use crate::error::{Diagnostic, RecipeError, Sink, quoted};
use crate::node::{self, Field, Node, Table, Value};
use crate::schema::{BASE_KEY, Choice, View};
use crate::source::{Place, Role, Source};
use serde_json::Value as Json;
use std::io::{ErrorKind, Read};
use std::path::Path;
use std::sync::Arc;

/// Largest recipe file. Recipes are a few kilobytes; anything near this is another kind of file.
const LARGEST: u64 = 1 << 20;

/// Keyword of the schema of a table: names of keys of which a layer gives one.
const ONE_OF: &str = "x-one-of";

/// Reads a recipe file as text. A name without a folder, of which there is no file, may be that of a built-in recipe.
pub(crate) fn read(path: &Path, role: Role) -> Result<Arc<Source>, RecipeError> {
    let is_absent = || std::fs::symlink_metadata(path).is_err_and(|e| e.kind() == ErrorKind::NotFound);
    match builtin(path) {
        Some(recipe) if is_absent() => Ok(builtin_source(recipe, role)),
        _ => read_file(path, role),
    }
}

/// The built-in recipe that a path without a folder names.
fn builtin(path: &Path) -> Option<BuiltinRecipe> {
    path.to_str().filter(|name| !name.contains('/')).and_then(builtin_recipe)
}

fn builtin_source(recipe: BuiltinRecipe, role: Role) -> Arc<Source> {
    Source::builtin(format!("built-in recipe {}", recipe.name), recipe.text.into(), role)
}

fn read_file(path: &Path, role: Role) -> Result<Arc<Source>, RecipeError> {
    let failed = |source| RecipeError::Read { path: path.to_path_buf(), source };
    let refused = |reason: String| RecipeError::NotARecipe { path: path.to_path_buf(), reason };
    let mut bytes = Vec::new();
    let file = match bessemer_durable::open_input(path) {
        Err(e) if e.kind() == ErrorKind::InvalidInput => {
            return Err(refused(format!("{e}; name a recipe file")));
        }
        Err(e) if e.kind() == ErrorKind::NotFound => {
            return Err(RecipeError::Absent { path: path.to_path_buf() });
        }
        opened => opened.map_err(failed)?,
    };
    file.take(LARGEST + 1).read_to_end(&mut bytes).map_err(failed)?;
    if bytes.len() as u64 > LARGEST {
        return Err(refused(format!("it is larger than {LARGEST} bytes")));
    }
    let text = bessemer_durable::decode_text(bytes).map_err(|e| refused(e.to_string()))?;
    Ok(Source::new(path.display().to_string(), text, role))
}

/// Takes the `base` key out of a parsed file.
pub(crate) fn take_base(file: &mut Node) -> Option<Field> {
    match &mut file.value {
        Value::Table(table) => table.remove(BASE_KEY),
        _ => None,
    }
}

/// Reads and parses the recipe that `base` names: a file, relative to the one that names it, or a built-in recipe. A built-in
/// recipe names another built-in one.
pub(crate) fn load_base(field: &Field, file: &Path, is_builtin: bool, sink: &mut Sink) -> Option<Node> {
    let place = field.node.place.as_ref();
    let Some(name) = field.node.text() else {
        sink.report(|| {
            Diagnostic::new(
                format!("`base` must be a string with the path of a recipe, found {}", field.node.describe()),
                place,
            )
        });
        return None;
    };
    let path = file.parent().unwrap_or(Path::new("")).join(name);
    let named = builtin(Path::new(name)).filter(|_| is_builtin || !path.exists());
    let read =
        named.map_or_else(|| read_file(&path, Role::Base), |recipe| Ok(builtin_source(recipe, Role::Base)));
    let source = match read {
        Ok(source) => source,
        Err(e) => {
            sink.report(|| Diagnostic::new(e.to_string(), place).help("`base` is relative to this file"));
            return None;
        }
    };
    let mut node = node::parse(&source, sink)?;
    if let Some(second) = take_base(&mut node) {
        sink.report(|| {
            Diagnostic::new("a base recipe cannot have a base of its own", second.key.as_ref())
                .help("inheritance is one level deep: merge the two files, or name the other one as base")
        });
        return None;
    }
    Some(node)
}

/// Parses one `key=value` of `--set`, or of a plan. Values are TOML; a bare word is a string, and where the key holds text
/// (`is_text`) anything is.
pub(crate) fn parse_set(
    source: &Arc<Source>,
    is_text: impl Fn(&[String]) -> bool,
    sink: &mut Sink,
) -> Option<Node> {
    let argument = source.text.as_str();
    let whole = Place::new(source, 0..argument.len());
    let mut refuse = |message: String, place: &Place| {
        sink.report(|| {
            Diagnostic::new(message, Some(place))
                .help("write --set table.key=value, for example --set train.seq_len=256")
        });
        None
    };
    if argument.contains(['\n', '\r']) {
        return refuse("--set: wanted key=value on one line, found several lines".into(), &whole);
    }
    let Some((key_text, value_text)) = argument.split_once('=') else {
        return refuse(format!("--set {} has no `=`", quoted(argument)), &whole);
    };
    let key_place = Place::new(source, 0..key_text.len());
    let Some(path) = key_path(key_text) else {
        return refuse(format!("{} is not a dotted key", quoted(key_text)), &key_place);
    };
    if path[0] == BASE_KEY {
        return refuse("`base` is a key of recipe files and cannot be set".into(), &key_place);
    }
    let raw = value_text.trim();
    let value_start = key_text.len() + 1 + (value_text.len() - value_text.trim_start().len());
    let value_place = Place::new(source, value_start..value_start + raw.len());
    if raw.is_empty() {
        return refuse(format!("{} has no value; for an empty string write ''", quoted(key_text)), &whole);
    }
    let mut trial = Sink::default();
    let parsed = node::parse(source, &mut trial);
    let leaf = parsed.as_ref().and_then(|node| path.iter().try_fold(node, |n, key| n.get(key)));
    let text = Node { value: Value::Str(raw.to_string()), place: Some(value_place) };
    let value = match leaf {
        Some(node) if node.text().is_none() && is_text(&path) => text,
        Some(node) => node.clone(),
        // Something that begins like a TOML value and is not one is a mistake, not a bare word.
        None if raw.starts_with(['"', '\'', '[', '{']) => {
            match trial.finish() {
                Err(RecipeError::Invalid { diagnostics, .. }) => {
                    diagnostics.into_iter().for_each(|d| sink.report(|| d));
                }
                _ => sink.report(|| Diagnostic::new("malformed value", Some(&whole))),
            }
            return None;
        }
        None => text,
    };
    Some(path.iter().rev().fold(value, |node, key| {
        let field = Field { key: Some(key_place.clone()), node };
        Node { value: Value::Table([(key.clone(), field)].into()), place: Some(key_place.clone()) }
    }))
}

/// A key that has a new name, in the same table.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RenamedKey {
    /// Dotted path of the table.
    pub(crate) table: &'static str,
    /// The old name, which is understood for one version.
    pub(crate) old: &'static str,
    /// The new name.
    pub(crate) new: &'static str,
}

/// Gives keys of a layer that were renamed their new names; a remark for each.
pub(crate) fn rename(layer: &mut Node, renamed: &[RenamedKey], sink: &mut Sink) -> Vec<String> {
    let mut remarks = Vec::new();
    for RenamedKey { table, old, new } in renamed {
        let node = table.split('.').try_fold(&mut *layer, |node, key| match &mut node.value {
            Value::Table(table) => table.get_mut(key).map(|field| &mut field.node),
            _ => None,
        });
        let Some(Node { value: Value::Table(fields), .. }) = node else { continue };
        let Some(field) = fields.remove(*old) else { continue };
        if fields.contains_key(*new) {
            let place = field.key.as_ref();
            sink.report(|| {
                Diagnostic::new(
                    format!("both `{table}.{new}` and its old name `{table}.{old}` are set"),
                    place,
                )
                .help(format!("leave `{old}` out"))
            });
            continue;
        }
        let at = field.key.as_ref().map_or_else(String::new, |place| format!("{}: ", place.location()));
        remarks.push(format!(
            "{at}`{table}.{old}` is now called `{table}.{new}`; the old name is read for one more version"
        ));
        fields.insert((*new).to_owned(), field);
    }
    remarks
}

/// The parts of a dotted key, by the rules of TOML.
fn key_path(text: &str) -> Option<Vec<String>> {
    // `[a]#` and the like parse as something else than a key: only a chain of tables that ends in the probe is one.
    let source = Source::new(String::new(), format!("{text}=0"), Role::Set);
    let mut node = node::parse(&source, &mut Sink::default())?;
    let mut path = Vec::new();
    while let Value::Table(table) = node.value {
        let mut entries = table.into_iter();
        let (key, field) = entries.next()?;
        if entries.next().is_some() {
            return None;
        }
        path.push(key);
        node = field.node;
    }
    matches!(node.value, Value::Int(0)).then_some(path)
}

/// Lays `over` on `under`: tables merge key by key, everything else is replaced. A table that chooses
/// another variant than the one below replaces it, because the keys of one mean nothing to the other.
pub(crate) fn merge(under: Node, over: Node, view: &View<'_>) -> Node {
    let replaced = other_variant(&under, &over, view);
    match (under.value, over.value) {
        (Value::Table(mut below), Value::Table(above)) if !replaced => {
            withdraw_rivals(&mut below, &above, view);
            for (key, field) in above {
                let merged = match below.remove(&key) {
                    Some(old) => {
                        let both = old.node.table().is_some() && field.node.table().is_some();
                        let node = match entry_view(view, &key).filter(|_| both) {
                            Some(inner) => merge(old.node, field.node, &inner),
                            None => field.node,
                        };
                        Field { key: field.key, node }
                    }
                    None => field,
                };
                below.insert(key, merged);
            }
            Node { value: Value::Table(below), place: over.place }
        }
        (_, value) => Node { value, place: over.place },
    }
}

/// Takes keys out of `below` that `above` replaces by another name: of the keys that the schema lists as `x-one-of`, one
/// with a value other than 0 in a layer withdraws the others of the layers below.
fn withdraw_rivals(below: &mut Table, above: &Table, view: &View<'_>) {
    let Some(rivals) = view.keyword(ONE_OF).and_then(Json::as_array) else { return };
    let rivals: Vec<&str> = rivals.iter().filter_map(Json::as_str).collect();
    let given = |key: &&str| above.get(*key).is_some_and(|field| !is_zero(&field.node));
    if rivals.iter().any(given) {
        below.retain(|key, _| !rivals.contains(&key.as_str()) || above.contains_key(key));
    }
}

fn is_zero(node: &Node) -> bool {
    match node.value {
        Value::Int(number) => number == 0,
        Value::Float(number) => number == 0.0,
        _ => false,
    }
}

/// The schema of entry `key` of a table that both layers have. Which variant the table is does not matter here:
/// any alternative that has the key will do.
fn entry_view<'a>(view: &View<'a>, key: &str) -> Option<View<'a>> {
    let of = |v: &View<'a>| v.property(key).or_else(|| v.map_values());
    of(view).or_else(|| view.alternatives()?.iter().find_map(of))
}

fn other_variant(under: &Node, over: &Node, view: &View<'_>) -> bool {
    match view.choose(over, None) {
        // The layer names its variant: does the layer below name the same?
        Some(Choice::One(variant)) if view.alternatives().is_some_and(|all| all.len() > 1) => {
            let same = |node: &Node| match view.choose(node, None) {
                Some(Choice::One(other)) => {
                    variant.properties().map(|(k, _)| k).eq(other.properties().map(|(k, _)| k))
                        && tag_values(&variant).eq(&tag_values(&other))
                }
                _ => false,
            };
            !same(under)
        }
        _ => false,
    }
}

fn tag_values(variant: &View<'_>) -> Vec<String> {
    let constants = variant.properties().filter_map(|(k, _)| {
        let value = variant.property(k)?.keyword("const")?.as_str()?.to_string();
        Some(value)
    });
    constants.collect()
}
