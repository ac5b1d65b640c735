//! Recipes that `init` writes for a text and a machine.

use bessemer_corpus_config::SourceKind;
use bessemer_recipe::{Budget, Recipe, Starter, TextFacts, parse};
use bessemer_units::Bytes;

fn facts(bytes: u64) -> TextFacts {
    TextFacts { source: SourceKind::Folder, path: "texts".into(), field: None, files: 3, bytes }
}

const LAPTOP: Budget = Budget { peak_flops_per_s: 2e11, hours: 1.0, memory: Bytes(8 << 30) };

#[test]
fn every_rung_makes_a_recipe_that_reads_back() {
    for bytes in [10, 1_000_000, 100_000_000, 1 << 33, 1 << 43] {
        for hours in [0.01, 1.0, 100.0, 100_000.0] {
            let text =
                TextFacts { field: Some("body \"x\"".into()), source: SourceKind::Jsonl, ..facts(bytes) };
            let starter = Starter::new(&text, Budget { hours, memory: Bytes(1 << 40), ..LAPTOP }).unwrap();
            let toml = starter.to_toml("my", &text, hours, "bessemer run my.toml").unwrap();
            let recipe = parse::<Recipe>("my.toml", &toml, &[]).unwrap().value;
            assert_eq!((recipe.corpus.text.as_str(), recipe.train.steps), ("body \"x\"", starter.steps));
            assert!(toml.lines().all(|l| l.len() <= 125), "{toml}");
        }
    }
    let text = facts(1000);
    let starter = Starter::new(&text, LAPTOP).unwrap();
    let problems = starter.to_toml("a/b", &text, 1.0, "").unwrap_err();
    assert!(problems[0].message.contains("run.name"), "{problems:?}");
}
