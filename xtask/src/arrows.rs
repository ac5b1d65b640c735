//! The layer table of ARCHITECTURE.md against the manifests.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

/// One row of the table.
#[derive(Debug, PartialEq)]
struct Row {
    layer: u32,
    may_use: BTreeSet<String>,
}

/// Rows `| layer | crate | holds | uses |`; a layer cell left empty repeats the one above.
fn table(text: &str) -> BTreeMap<String, Row> {
    let mut crates = BTreeMap::new();
    let mut layer = 0;
    let mut inside = false;
    for line in text.lines() {
        if line.starts_with("| layer |") {
            inside = true;
            continue;
        }
        if !line.starts_with('|') {
            inside = false;
        }
        if !inside || line.starts_with("|--") || line.starts_with("| --") {
            continue;
        }
        let cells: Vec<&str> = line.trim_matches('|').split('|').map(str::trim).collect();
        let [f, name, _, uses] = cells[..] else { continue };
        if let Some(n) = f.split_whitespace().next().and_then(|n| n.parse().ok()) {
            layer = n;
        }
        let may_use = names(uses);
        crates.insert(name.trim_matches('`').to_string(), Row { layer, may_use });
    }
    crates
}

fn names(cell: &str) -> BTreeSet<String> {
    cell.split(',')
        .map(|s| s.trim().trim_matches('`').to_string())
        .filter(|s| !s.is_empty() && s != "–")
        .collect()
}

/// Crates that a manifest depends on, and its outside crates (normal and build dependencies).
fn manifest(path: &Path) -> Result<(BTreeSet<String>, BTreeSet<String>), String> {
    let text = fs::read_to_string(path).map_err(|e| format!("{}: {e}", path.display()))?;
    let doc: toml::Table = text.parse().map_err(|e| format!("{}: {e}", path.display()))?;
    let (mut crates, mut outside) = (BTreeSet::new(), BTreeSet::new());
    for section in ["dependencies", "build-dependencies"] {
        for name in doc.get(section).and_then(|d| d.as_table()).into_iter().flat_map(|t| t.keys()) {
            match name.strip_prefix("bessemer-").or((name == "bessemer").then_some("bessemer")) {
                Some(krate) => crates.insert(krate.to_string()),
                None => outside.insert(name.clone()),
            };
        }
    }
    Ok((crates, outside))
}

/// Everything that differs, one line each.
pub(crate) fn check(root: &Path) -> Vec<String> {
    let mut problems = Vec::new();
    let Ok(text) = fs::read_to_string(root.join("ARCHITECTURE.md")) else {
        return vec!["ARCHITECTURE.md is missing".into()];
    };
    let crates = table(&text);
    let listed = fs::read_to_string(root.join("docs/dependencies.md")).unwrap_or_default();
    let mut folders = BTreeSet::new();
    for entry in fs::read_dir(root.join("crates")).into_iter().flatten().flatten() {
        folders.insert(entry.file_name().to_string_lossy().into_owned());
    }
    for name in folders.iter().filter(|f| !crates.contains_key(*f)) {
        problems.push(format!("crates/{name} has no row in ARCHITECTURE.md"));
    }
    for name in &folders {
        let root = root.join("crates").join(name).join("src");
        let top = ["lib.rs", "main.rs"].iter().find_map(|file| fs::read_to_string(root.join(file)).ok());
        if !top.is_some_and(|text| text.contains("clippy::disallowed_methods")) {
            problems.push(format!(
                "crates/{name}: its first lines neither deny clippy::disallowed_methods outside of tests nor allow it \
                 with a reason (see clippy.toml)"
            ));
        }
    }
    for (name, krate) in &crates {
        if !folders.contains(name) {
            problems.push(format!("ARCHITECTURE.md lists {name}, but crates/{name} does not exist"));
            continue;
        }
        let (used, outside) = match manifest(&root.join("crates").join(name).join("Cargo.toml")) {
            Ok(pair) => pair,
            Err(e) => {
                problems.push(e);
                continue;
            }
        };
        // The program may use everything.
        let all = krate.may_use.contains("all");
        for u in &used {
            if !all && !krate.may_use.contains(u) {
                problems.push(format!("{name} depends on {u}; its row in ARCHITECTURE.md does not say so"));
            }
            match crates.get(u) {
                Some(below) if below.layer < krate.layer => {}
                Some(below) => problems.push(format!(
                    "{name} (layer {}) depends on {u} (layer {}): arrows point down",
                    krate.layer, below.layer
                )),
                None => problems.push(format!("{name} depends on {u}, which has no row in ARCHITECTURE.md")),
            }
        }
        for extra in krate.may_use.difference(&used).filter(|e| *e != "all") {
            problems.push(format!("ARCHITECTURE.md says that {name} uses {extra}; its manifest does not"));
        }
        for o in outside.iter().filter(|o| !listed.contains(&format!("`{o}`"))) {
            problems
                .push(format!("{name} depends on the crate {o}, which has no line in docs/dependencies.md"));
        }
    }
    problems
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_reads_layers_crates_and_uses() {
        let t = table(
            "x\n| layer | crate | holds | uses |\n|---|---|---|---|\n| 0 words | `units` | q | – |\n| | `b` | r | units |\n| 1 facts | `c` | s | units, b |\n",
        );
        assert_eq!(t["units"], Row { layer: 0, may_use: BTreeSet::new() });
        assert_eq!(t["b"].layer, 0);
        assert_eq!(t["c"], Row { layer: 1, may_use: BTreeSet::from(["units".into(), "b".into()]) });
    }
}
