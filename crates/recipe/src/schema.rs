//! A reader of the JSON Schema that `schemars` derives from a config type.
//!
//! Only what a config needs: objects with named properties, maps, arrays, scalars with ranges, enums of
//! strings, options, and enums with data (tagged inside, tagged outside, or untagged).

use crate::node::Node;
use schemars::JsonSchema;
use serde_json::{Map, Value as Json};

/// How many `$ref`s are followed from one place; more means a cycle.
const REFERENCES: usize = 16;

/// The schema of `T` as JSON, with `base` as a further key at the top.
pub fn json_schema<T: JsonSchema>() -> Json {
    let mut schema = schemars::schema_for!(T).to_value();
    if let Some(properties) = schema.get_mut("properties").and_then(Json::as_object_mut) {
        properties.insert(
            BASE_KEY.into(),
            serde_json::json!({
                "type": "string",
                "description": "A recipe that this one starts from, relative to this file. Tables merge key by \
                                key, arrays and values replace. A base has no base of its own."
            }),
        );
    }
    schema
}

/// The key that names the file to inherit from.
pub(crate) const BASE_KEY: &str = "base";

/// All schema objects that apply to one place: the object itself, what it refers to, and its `allOf` members.
#[derive(Debug, Clone)]
pub(crate) struct View<'a> {
    root: &'a Json,
    parts: Vec<&'a Map<String, Json>>,
}

/// How an enum with data tells its variants apart.
#[derive(Debug)]
pub(crate) enum Choice<'a> {
    /// This alternative applies.
    One(View<'a>),
    /// The tag `key` has a value that no variant has, or (`found` = `None`) is missing.
    BadTag { key: &'a str, names: Vec<&'a str>, found: Option<&'a Node> },
    /// A table with none of the keys that stand for variants.
    BadKey { names: Vec<&'a str> },
    /// No tag: any alternative that accepts the value will do.
    Any(Vec<View<'a>>),
}

impl<'a> View<'a> {
    pub(crate) fn new(root: &'a Json, here: &'a Json) -> View<'a> {
        let mut parts = Vec::new();
        collect(root, here, &mut parts, 0);
        View { root, parts }
    }

    fn sub(&self, here: &'a Json) -> View<'a> {
        View::new(self.root, here)
    }

    /// The value of a keyword that applies here.
    pub(crate) fn keyword(&self, name: &str) -> Option<&'a Json> {
        self.parts.iter().find_map(|p| p.get(name))
    }

    pub(crate) fn description(&self) -> Option<&'a str> {
        self.keyword("description").and_then(Json::as_str)
    }

    /// Names and schemas of the properties, in the order of their declaration.
    pub(crate) fn properties(&self) -> impl Iterator<Item = (&'a str, &'a Json)> + '_ {
        self.parts
            .iter()
            .filter_map(|p| p.get("properties").and_then(Json::as_object))
            .flat_map(|m| m.iter().map(|(k, v)| (k.as_str(), v)))
    }

    pub(crate) fn property(&self, name: &str) -> Option<View<'a>> {
        self.properties().find(|(k, _)| *k == name).map(|(_, s)| self.sub(s))
    }

    /// The schema of entries without a name of their own, if this is a map.
    pub(crate) fn map_values(&self) -> Option<View<'a>> {
        match self.keyword("additionalProperties") {
            Some(schema @ Json::Object(_)) => Some(self.sub(schema)),
            _ => None,
        }
    }

    pub(crate) fn required(&self) -> impl Iterator<Item = &'a str> + '_ {
        self.parts
            .iter()
            .filter_map(|p| p.get("required").and_then(Json::as_array))
            .flat_map(|names| names.iter().filter_map(Json::as_str))
    }

    /// The schema of array element `index`.
    pub(crate) fn item(&self, index: usize) -> Option<View<'a>> {
        let fixed = self.keyword("prefixItems").and_then(Json::as_array).and_then(|items| items.get(index));
        fixed.or_else(|| self.keyword("items")).map(|s| self.sub(s))
    }

    /// JSON type names allowed here ("null" left out); empty if nothing is said.
    pub(crate) fn types(&self) -> Vec<&'a str> {
        match self.keyword("type") {
            Some(Json::String(one)) => vec![one],
            Some(Json::Array(several)) => {
                several.iter().filter_map(Json::as_str).filter(|t| *t != "null").collect()
            }
            _ if self.properties().next().is_some() => vec!["object"],
            _ => vec![],
        }
    }

    /// Strings that this schema lists as the only ones allowed, by `const` or `enum`.
    pub(crate) fn constants(&self) -> Option<Vec<&'a Json>> {
        if let Some(one) = self.keyword("const") {
            return Some(vec![one]);
        }
        self.keyword("enum").and_then(Json::as_array).map(|all| all.iter().filter(|v| !v.is_null()).collect())
    }

    /// The members of `oneOf` or `anyOf`, without `null`. A single one is the whole choice (an option).
    pub(crate) fn alternatives(&self) -> Option<Vec<View<'a>>> {
        let all = self.keyword("oneOf").or_else(|| self.keyword("anyOf"))?.as_array()?;
        let views = all.iter().map(|s| self.sub(s));
        Some(views.filter(|v| v.keyword("type").and_then(Json::as_str) != Some("null")).collect())
    }

    /// All strings allowed here if only strings from a list are: the names of an enum without data.
    pub(crate) fn names(&self) -> Option<Vec<&'a str>> {
        let strings = |all: Vec<&'a Json>| all.into_iter().map(Json::as_str).collect::<Option<Vec<_>>>();
        if let Some(constants) = self.constants() {
            return strings(constants);
        }
        let alternatives = self.alternatives().filter(|all| !all.is_empty())?;
        let mut names = Vec::new();
        for alternative in &alternatives {
            names.extend(alternative.names()?);
        }
        Some(names)
    }

    /// Decides which alternative a table belongs to. `effective` is the same table with the lower layers
    /// merged in: a layer may leave the tag to them.
    pub(crate) fn choose(&self, node: &'a Node, effective: Option<&'a Node>) -> Option<Choice<'a>> {
        let all = self.alternatives()?;
        if let [only] = all.as_slice() {
            return Some(Choice::One(only.clone()));
        }
        if node.table().is_none() {
            return Some(Choice::Any(all));
        }
        let tables: Vec<View<'a>> = all.into_iter().filter(|v| v.types().contains(&"object")).collect();
        if let Some(key) = tag_of(&tables) {
            let name_of = |v: &View<'a>| v.property(key).and_then(|p| p.keyword("const")?.as_str());
            let found = node.get(key).or_else(|| effective?.get(key));
            let fits = |v: &&View<'a>| name_of(v).is_some() && name_of(v) == found.and_then(Node::text);
            return Some(match tables.iter().find(fits) {
                Some(view) => Choice::One(view.clone()),
                None => Choice::BadTag { key, names: tables.iter().filter_map(name_of).collect(), found },
            });
        }
        let single = |v: &View<'a>| {
            let names: Vec<&'a str> = v.properties().map(|(k, _)| k).collect();
            matches!(names.as_slice(), [one] if v.required().any(|r| r == *one)).then(|| names[0])
        };
        if !tables.is_empty() && tables.iter().all(|v| single(v).is_some()) {
            let present = |v: &&View<'a>| single(v).is_some_and(|name| node.get(name).is_some());
            return Some(match tables.iter().find(present) {
                Some(view) => Choice::One(view.clone()),
                None => Choice::BadKey { names: tables.iter().filter_map(single).collect() },
            });
        }
        Some(Choice::Any(tables))
    }

    /// The schema that applies to `node` once options are unwrapped and a variant is chosen.
    pub(crate) fn settled(self, node: &'a Node, effective: Option<&'a Node>) -> View<'a> {
        let mut view = self;
        for _ in 0..REFERENCES {
            match view.choose(node, effective) {
                Some(Choice::One(inner)) => view = inner,
                _ => break,
            }
        }
        view
    }

    /// True if the value here is text and nothing else, so that `--set` need not quote it.
    pub(crate) fn is_text(&self) -> bool {
        if self.names().is_some() {
            return true;
        }
        match self.alternatives() {
            Some(all) if !all.is_empty() => all.iter().all(View::is_text),
            _ => self.types() == ["string"],
        }
    }
}

/// The property that is a constant in every alternative: the tag of an internally tagged enum.
fn tag_of<'a>(tables: &[View<'a>]) -> Option<&'a str> {
    let first = tables.first()?;
    let is_tag =
        |view: &View<'a>, key: &str| view.property(key).is_some_and(|p| p.keyword("const").is_some());
    first.properties().map(|(k, _)| k).find(|key| tables.iter().all(|v| is_tag(v, key)))
}

fn collect<'a>(root: &'a Json, here: &'a Json, parts: &mut Vec<&'a Map<String, Json>>, depth: usize) {
    let Some(map) = here.as_object() else { return };
    if depth > REFERENCES {
        return;
    }
    parts.push(map);
    if let Some(target) =
        map.get("$ref").and_then(Json::as_str).and_then(|r| r.strip_prefix('#')).and_then(|p| root.pointer(p))
    {
        collect(root, target, parts, depth + 1);
    }
    for member in map.get("allOf").and_then(Json::as_array).into_iter().flatten() {
        collect(root, member, parts, depth + 1);
    }
}

/// Dotted paths of all keys that the schema names, for suggestions. Variants with data are all walked.
pub(crate) fn all_keys(schema: &Json) -> Vec<String> {
    fn walk(view: &View<'_>, prefix: &str, depth: usize, keys: &mut Vec<String>) {
        if depth > 6 || keys.len() > 2000 {
            return;
        }
        for alternative in view.alternatives().unwrap_or_default() {
            walk(&alternative, prefix, depth, keys);
        }
        for (name, schema) in view.properties() {
            let path = if prefix.is_empty() { name.to_string() } else { format!("{prefix}.{name}") };
            if !keys.contains(&path) {
                keys.push(path.clone());
            }
            walk(&view.sub(schema), &path, depth + 1, keys);
        }
    }
    let mut keys = Vec::new();
    walk(&View::new(schema, schema), "", 0, &mut keys);
    keys
}
