//! Part of `bessemer corpus stats` about several sources: documents of each, and samples that training takes from each.

use crate::failure::Failure;
use crate::recipes::load_recipe;
use crate::run_dir::{RECIPE, RunDir, SHARDS};
use bessemer_corpus::{ComponentSummary, Count, TOKENS_FILE};
use bessemer_loader::Taken;
use bessemer_shards::ShardSet;
use bessemer_train::{repeated_too_often, run_mixture};
use bessemer_units::{Bytes, Tokens};
use std::fmt::Write;
use std::path::Path;

/// Samples that the training of a recipe takes from each component of the shards of a run directory; by default of the recipe in
/// that directory. Empty without shards or recipe, and for a corpus of one source.
pub(super) fn taken(path: &Path, recipe: Option<&Path>) -> Result<Vec<Taken>, Failure> {
    let dir = RunDir::new(path);
    let has_recipe = recipe.is_some() || dir.has(RECIPE);
    if !has_recipe || !dir.shards().join(TOKENS_FILE).is_file() {
        return Ok(Vec::new());
    }
    let recipe = match recipe {
        Some(recipe) => load_recipe(recipe, &[])?.value,
        None => dir.load_recipe()?.value,
    };
    Ok(run_mixture(&recipe, &ShardSet::open(dir.dir(SHARDS)?, "train")?)?)
}

/// A line a component, and remarks.
pub(super) fn text(components: &[ComponentSummary], taken: &[Taken]) -> String {
    let mut text = String::new();
    if components.is_empty() {
        return text;
    }
    let width = components.iter().map(|component| component.name.len()).max().unwrap_or(0).max(10);
    let _ = writeln!(
        text,
        "{:<width$}  {:>9} {:>10} {:>10} {:>9}{}",
        "component",
        "documents",
        "train",
        "validation",
        "dropped",
        if taken.is_empty() { "" } else { "    tokens  weight  samples  epochs" }
    );
    for component in components {
        let dropped: u64 = component.dropped.values().map(|count: &Count| count.documents).sum();
        let _ = write!(
            text,
            "{:<width$}  {:>9} {:>10} {:>10} {dropped:>9}",
            component.name,
            component.train.documents + component.validation.documents,
            Bytes(component.train.bytes).to_string(),
            Bytes(component.validation.bytes).to_string()
        );
        if let Some(taken) = taken.iter().find(|taken| taken.name == component.name) {
            let _ = write!(
                text,
                " {:>9}  {:>4.1} % {:>8} {:>7.2}",
                Tokens(taken.tokens).to_string(),
                100.0 * taken.weight,
                taken.samples,
                taken.epochs
            );
        }
        text.push('\n');
    }
    for warning in repeated_too_often(taken) {
        let _ = writeln!(text, "warning: {warning}");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_a_component_and_a_warning_beyond_four_passes() {
        let count = |documents, bytes| Count { documents, bytes };
        let component = |name: &str| ComponentSummary {
            name: name.into(),
            train: count(9, 90_000),
            validation: count(1, 10_000),
            dropped: [("duplicate".to_string(), count(3, 100))].into(),
        };
        let taken = |name: &str, weight, epochs| Taken {
            name: name.into(),
            tokens: 25_000,
            samples_per_epoch: 97,
            weight,
            samples: (97.0 * epochs) as u64,
            epochs,
        };
        let components = [component("web"), component("web.recent")];
        let all = text(&components, &[taken("web", 0.25, 0.5), taken("web.recent", 0.75, 6.0)]);
        let lines: Vec<&str> = all.lines().collect();
        assert_eq!(lines.len(), 4, "{all}");
        assert!(lines[0].ends_with("weight  samples  epochs") && lines[2].contains("75.0 %"), "{all}");
        assert!(lines[2].ends_with("582    6.00"), "{all}");
        assert!(lines[3].starts_with("warning") && lines[3].contains("web.recent"), "{all}");
        assert!(text(&components, &[]).lines().count() == 3 && text(&[], &[]).is_empty());
    }
}
