//! Where each resolved value came from, and how two resolved recipes differ.

use crate::check::join;
use crate::load::Loaded;
use crate::node::{Node, Value};
use crate::source::Role;
use crate::write::toml_value;
use serde_json::Value as Json;
use std::fmt;

/// Origin of a value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Origin {
    /// Nobody wrote it.
    Default,
    /// The file named by `base`.
    Base {
        /// Path of the base file.
        file: String,
        /// Line, from one.
        line: usize,
    },
    /// The recipe file.
    File {
        /// Path of the recipe file.
        file: String,
        /// Line, from one.
        line: usize,
    },
    /// An override on the command line.
    Set {
        /// The argument of `--set`.
        argument: String,
    },
    /// The plan of `parallel.layout = "auto"`.
    Plan {
        /// Ranks and machine that it was made for.
        subject: String,
    },
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Origin::Default => f.write_str("default"),
            Origin::Base { file, line } => write!(f, "base {file}:{line}"),
            Origin::File { file, line } => write!(f, "{file}:{line}"),
            Origin::Set { argument } => write!(f, "--set {argument}"),
            Origin::Plan { subject } => write!(f, "plan for {subject}"),
        }
    }
}

impl Origin {
    pub(crate) fn of(node: Option<&Node>) -> Origin {
        let Some(place) = node.and_then(|n| n.place.as_ref()) else { return Origin::Default };
        let file = place.source.name.clone();
        match place.source.role {
            Role::Base => Origin::Base { file, line: place.line() },
            Role::File => Origin::File { file, line: place.line() },
            Role::Set => Origin::Set { argument: file },
            Role::Plan => Origin::Plan { subject: file },
        }
    }
}

/// One resolved key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Setting {
    /// Dotted key.
    pub key: String,
    /// Value in TOML syntax; "(not set)" for an option that is absent.
    pub value: String,
    /// Origin of the value.
    pub origin: Origin,
}

/// One key that two recipes resolve differently.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Difference {
    /// Dotted key.
    pub key: String,
    /// Value on the left in TOML syntax; `None` if the key does not exist there.
    pub left: Option<String>,
    /// Value on the right.
    pub right: Option<String>,
}

/// What stands for the value of an option that is absent.
const UNSET: &str = "(not set)";

impl<T> Loaded<T> {
    /// Every resolved key in the order of declaration, with its origin.
    pub fn settings(&self) -> Vec<Setting> {
        let mut settings = Vec::new();
        walk(&self.resolved, Some(&self.merged), "", &mut |key, value, node| {
            settings.push(Setting { key, value, origin: Origin::of(node) });
        });
        settings
    }

    /// The origin of one dotted key, or `None` if the recipe has no such key.
    pub fn origin(&self, key: &str) -> Option<Origin> {
        self.settings().into_iter().find(|s| s.key == key).map(|s| s.origin)
    }

    /// `config show --origin`: one line per key, `key = value  # origin`, aligned.
    pub fn show_origins(&self) -> String {
        let settings = self.settings();
        let left = |s: &Setting| format!("{} = {}", s.key, s.value);
        // Long values (lists of patterns) do not push everybody's origin off the screen.
        let width = settings.iter().map(|s| left(s).chars().count()).filter(|w| *w <= 60).max().unwrap_or(0);
        settings.iter().map(|s| format!("{:<width$}  # {}\n", left(s), s.origin)).collect()
    }

    /// `config diff`: the keys that `self` and `other` resolve differently, in the order of `self`.
    pub fn diff(&self, other: &Loaded<T>) -> Vec<Difference> {
        let (left, right) = (self.settings(), other.settings());
        let value = |all: &[Setting], key: &str| all.iter().find(|s| s.key == key).map(|s| s.value.clone());
        let keys = left
            .iter()
            .map(|s| &s.key)
            .chain(right.iter().map(|s| &s.key).filter(|k| value(&left, k).is_none()));
        keys.map(|key| Difference { key: key.clone(), left: value(&left, key), right: value(&right, key) })
            .filter(|d| d.left != d.right)
            .collect()
    }
}

/// A difference list as lines: `key: left -> right`.
pub fn show_diff(differences: &[Difference]) -> String {
    let side = |s: &Option<String>| s.clone().unwrap_or_else(|| "(no such key)".into());
    differences.iter().map(|d| format!("{}: {} -> {}\n", d.key, side(&d.left), side(&d.right))).collect()
}

/// Calls `leaf` for each value that is not a table (arrays of tables are walked, other arrays are one value).
fn walk<'n>(
    json: &Json,
    node: Option<&'n Node>,
    path: &str,
    leaf: &mut dyn FnMut(String, String, Option<&'n Node>),
) {
    match json {
        Json::Object(map) if !map.is_empty() || path.is_empty() => {
            for (key, inner) in map {
                walk(inner, node.and_then(|n| n.get(key)), &join(path, key), leaf);
            }
        }
        Json::Array(items) if !items.is_empty() && items.iter().all(Json::is_object) => {
            let nodes = match node.map(|n| &n.value) {
                Some(Value::Array(nodes)) => nodes.as_slice(),
                _ => &[],
            };
            for (i, item) in items.iter().enumerate() {
                walk(item, nodes.get(i), &format!("{path}[{i}]"), leaf);
            }
        }
        Json::Null => leaf(path.to_string(), UNSET.to_string(), node),
        other => leaf(path.to_string(), toml_value(other), node),
    }
}
