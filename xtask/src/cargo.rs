//! Calls of cargo, what its metadata contains, and the arguments that the reports share.

use serde_json::Value;
use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Command, Stdio};

/// A cargo command in the root of the workspace.
pub(crate) fn cargo(root: &Path) -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(root);
    command
}

/// Arguments of a report: `--NAME VALUE` for each of `names`, and after `--` the arguments of cargo.
pub(crate) struct Arguments<'a> {
    pub(crate) options: BTreeMap<&'a str, &'a str>,
    pub(crate) cargo: &'a [String],
}

impl<'a> Arguments<'a> {
    pub(crate) fn parse(arguments: &'a [String], names: &[&str]) -> Result<Self, String> {
        let end = arguments.iter().position(|a| a == "--");
        let (own, cargo) = match end {
            Some(at) => (&arguments[..at], &arguments[at + 1..]),
            None => (arguments, &arguments[..0]),
        };
        let mut options = BTreeMap::new();
        for pair in own.chunks(2) {
            match pair {
                [name, value] if names.contains(&name.as_str()) => {
                    options.insert(name.as_str(), value.as_str());
                }
                [name, ..] => {
                    let takes = names.join(" VALUE, ");
                    return Err(format!(
                        "`{name}`: expected {takes} VALUE, and arguments of cargo after `--`"
                    ));
                }
                [] => {}
            }
        }
        Ok(Self { options, cargo })
    }
}

/// Seconds of processor time that ended child processes took so far; none where the system has no `/proc`.
pub(crate) fn processor_seconds() -> Option<f64> {
    let stat = std::fs::read_to_string("/proc/self/stat").ok()?;
    // Fields after the name of the program, which ends with the last bracket: cutime and cstime are the 14th and 15th.
    let fields: Vec<&str> = stat.rsplit(')').next()?.split_whitespace().collect();
    let ticks = |at: usize| fields.get(at)?.parse::<f64>().ok();
    // Linux reports hundredths on every architecture.
    Some((ticks(13)? + ticks(14)?) / 100.0)
}

/// The kinds of a dependency on one package.
#[derive(Clone, Copy, Default)]
pub(crate) struct Edge {
    pub(crate) normal: bool,
    pub(crate) build: bool,
    pub(crate) dev: bool,
}

/// One package of the resolved graph.
pub(crate) struct Package {
    pub(crate) name: String,
    pub(crate) version: String,
    /// In this workspace.
    pub(crate) own: bool,
    /// From the root of the workspace.
    pub(crate) folder: String,
    pub(crate) proc_macro: bool,
    /// Positions of the packages it depends on.
    pub(crate) uses: Vec<(usize, Edge)>,
}

/// The resolved packages of the workspace, from `cargo metadata`.
pub(crate) fn packages(root: &Path) -> Result<Vec<Package>, String> {
    // Those of other platforms need not be downloaded.
    let rustc = Command::new("rustc").arg("-vV").output().map_err(|e| format!("rustc -vV: {e}"))?;
    let rustc = String::from_utf8_lossy(&rustc.stdout).into_owned();
    let host = rustc.lines().find_map(|line| line.strip_prefix("host: ")).ok_or("rustc -vV names no host")?;
    let output = cargo(root)
        .args(["metadata", "--format-version", "1", "--filter-platform", host])
        .stderr(Stdio::inherit())
        .output()
        .map_err(|e| format!("cargo metadata: {e}"))?;
    let text = String::from_utf8_lossy(&output.stdout);
    let metadata: Value = serde_json::from_str(&text).map_err(|e| format!("cargo metadata: {e}"))?;
    Ok(read_packages(&metadata))
}

fn text(value: &Value, key: &str) -> String {
    value[key].as_str().unwrap_or_default().to_string()
}

fn list<'a>(value: &'a Value, key: &str) -> impl Iterator<Item = &'a Value> {
    value[key].as_array().into_iter().flatten()
}

fn read_packages(metadata: &Value) -> Vec<Package> {
    let root = text(metadata, "workspace_root");
    let members: Vec<&str> = list(metadata, "workspace_members").filter_map(Value::as_str).collect();
    let mut at = BTreeMap::new();
    let mut packages: Vec<Package> = Vec::new();
    for package in list(metadata, "packages") {
        at.insert(text(package, "id"), packages.len());
        packages.push(Package {
            name: text(package, "name"),
            version: text(package, "version"),
            own: members.contains(&package["id"].as_str().unwrap_or_default()),
            folder: text(package, "manifest_path")
                .trim_start_matches(&root)
                .trim_start_matches('/')
                .trim_end_matches("/Cargo.toml")
                .to_string(),
            proc_macro: list(package, "targets").any(|t| list(t, "kind").any(|k| k == "proc-macro")),
            uses: Vec::new(),
        });
    }
    for node in list(&metadata["resolve"], "nodes") {
        let Some(&user) = at.get(&text(node, "id")) else { continue };
        for dependency in list(node, "deps") {
            let Some(&used) = at.get(&text(dependency, "pkg")) else { continue };
            let kinds: Vec<&Value> = list(dependency, "dep_kinds").map(|kind| &kind["kind"]).collect();
            let has = |name: &str| kinds.iter().any(|kind| *kind == name);
            let edge =
                Edge { normal: kinds.iter().any(|k| k.is_null()), build: has("build"), dev: has("dev") };
            packages[user].uses.push((used, edge));
        }
    }
    packages
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// `a` uses `b` and, in tests, `c`; `b` is outside, with a macro crate `m`.
    pub(crate) fn sample() -> Vec<Package> {
        let package = |id: &str, kind: &str| {
            let (path, targets) =
                (format!("/w/crates/{id}/Cargo.toml"), serde_json::json!([{"kind": [kind]}]));
            serde_json::json!({"id": id, "name": id, "version": "1.0.0", "manifest_path": path, "targets": targets})
        };
        let uses =
            |id: &str, kind: Option<&str>| serde_json::json!({"pkg": id, "dep_kinds": [{"kind": kind}]});
        read_packages(&serde_json::json!({
            "workspace_root": "/w",
            "workspace_members": ["a", "c"],
            "packages": [package("a", "lib"), package("b", "lib"), package("c", "lib"), package("m", "proc-macro")],
            "resolve": {"nodes": [
                {"id": "a", "deps": [uses("b", None), uses("c", Some("dev"))]},
                {"id": "b", "deps": [uses("m", None)]},
            ]},
        }))
    }

    #[test]
    fn metadata_names_members_macros_and_kinds_of_edges() {
        let packages = sample();
        let flags: Vec<(bool, bool)> = packages.iter().map(|p| (p.own, p.proc_macro)).collect();
        assert_eq!(packages[0].folder, "crates/a");
        assert_eq!(flags, [(true, false), (false, false), (true, false), (false, true)]);
        let kinds: Vec<(usize, bool, bool)> =
            packages[0].uses.iter().map(|(at, edge)| (*at, edge.normal, edge.dev)).collect();
        assert_eq!(kinds, [(1, true, false), (2, false, true)]);
    }

    #[test]
    fn options_end_at_two_dashes() {
        let words = |line: &str| line.split_whitespace().map(str::to_string).collect::<Vec<_>>();
        let line = words("--from x -- test --workspace");
        let arguments = Arguments::parse(&line, &["--from"]).expect("valid");
        assert_eq!((arguments.options["--from"], arguments.cargo.len()), ("x", 2));
        for wrong in ["--form x", "--from", "x"] {
            assert!(Arguments::parse(&words(wrong), &["--from"]).is_err(), "{wrong}");
        }
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn children_take_processor_time() {
        let before = processor_seconds().expect("/proc");
        let spin = "i=0; while [ $i -lt 300000 ]; do i=$((i+1)); done";
        assert!(Command::new("sh").args(["-c", spin]).status().expect("a shell").success());
        assert!(processor_seconds().expect("/proc") > before);
    }
}
