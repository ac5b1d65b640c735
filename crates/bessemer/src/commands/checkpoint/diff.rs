//! `bessemer checkpoint diff`: what differs between two checkpoints.

use super::place::Place;
use crate::commands::saved_model::warned;
use crate::console::{Console, print};
use crate::failure::Failure;
use bessemer_checkpoint::CheckpointDifference;
use bessemer_train::Observer;
use bessemer_units::counted;
use std::path::Path;

pub(crate) fn run(
    a: &Path,
    b: &Path,
    tensors_only: bool,
    as_json: bool,
    console: &mut Console,
) -> Result<(), Failure> {
    let first = warned(Place::open(a)?.load_lazily(None)?, console);
    let second = warned(Place::open(b)?.load_lazily(None)?, console);
    let progress = &mut |done, total| console.progress("comparing", done, total);
    let mut found = CheckpointDifference::between(&first, &second, progress)?;
    if tensors_only {
        found.metadata.clear();
    }
    let same = found.is_empty();
    if as_json {
        let (a, b) = (first.path().display().to_string(), second.path().display().to_string());
        let mut value = serde_json::to_value(&found)?;
        value["same"] = same.into();
        value["a"] = a.into();
        value["b"] = b.into();
        print(&value.to_string())?;
    } else {
        print(&text(&found))?;
    }
    match same {
        true => Ok(()),
        false => {
            Err(Failure::new(format!("{} and {} differ", first.path().display(), second.path().display())))
        }
    }
}

fn text(found: &CheckpointDifference) -> String {
    let mut lines = Vec::new();
    for m in &found.metadata {
        let shown = |text: &str| if text.is_empty() { "(absent)".into() } else { text.to_string() };
        lines.push(format!("{:<44} {} -> {}", m.key, shown(&m.a), shown(&m.b)));
    }
    if !found.tensors.is_empty() {
        let head = ["tensor", "elements", "differing", "bits", "max abs", "relative L2"];
        lines.push(format!(
            "{:<44} {:>11} {:>11} {:>11} {:>12} {:>12}",
            head[0], head[1], head[2], head[3], head[4], head[5]
        ));
    }
    for t in &found.tensors {
        let relative = t.relative_l2.map_or("-".into(), |r| format!("{r:.4e}"));
        lines.push(format!(
            "{:<44} {:>11} {:>11} {:>11} {:>12.4e} {relative:>12}",
            t.name, t.elements, t.differing, t.bits, t.max_abs
        ));
    }
    lines.extend(found.described.iter().map(|d| format!("{:<44} {} -> {}", d.name, d.a, d.b)));
    lines.extend(found.only_a.iter().map(|name| format!("{name:<44} only in the first")));
    lines.extend(found.only_b.iter().map(|name| format!("{name:<44} only in the second")));
    let are = if found.equal == 1 { "is" } else { "are" };
    lines.push(format!("{} {are} equal to the bit", counted(found.equal, "tensor")));
    lines.join("\n")
}
